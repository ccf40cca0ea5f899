"""Datasets on disk: .npz files under every usual name, and a copy of a Minari dataset with scores added."""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.namespace import list_local_namespaces
from support.recordings import BOX, flat, same, some_episodes

from butfor import Influence
from butfor.datasets.files import read_data, read_minari, read_npz, write_columns, write_minari
from butfor.datasets.recording import read_arrays
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig
from butfor.rollouts.episodes import Episodes

pytestmark = pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:env_spec is None")


@pytest.mark.parametrize("names", [("observations", "actions"), ("obs", "action")])
def test_an_npz_file_may_use_the_usual_names(names: tuple[str, str], tmp_path: Path) -> None:
    observations, actions = some_episodes()
    rows = flat(observations, actions)
    rows[names[0]], rows[names[1]] = rows.pop("observations"), rows.pop("actions")
    np.savez(tmp_path / "a.npz", **rows, rewards=np.zeros(8))
    found = read_data(tmp_path / "a.npz")
    same(found, observations, actions)
    assert found.source == str(tmp_path / "a.npz")


def test_an_npz_file_may_hold_the_parts_of_a_dictionary(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"observations/robot/arm": np.ones((4, 2)), "observations/cube": np.zeros((4, 1))}
    np.savez(tmp_path / "a.npz", actions=np.zeros((3, 1)), **parts)
    assert read_npz(tmp_path / "a.npz").sizes == {"cube": 1, "robot/arm": 2}


def test_an_episode_file_of_this_package(tmp_path: Path) -> None:
    random, goal = np.random.default_rng(0), np.zeros((2, 5, 1), np.float32)
    obs, action = random.normal(size=(2, 5, 3)).astype(np.float32), random.normal(size=(2, 4, 2)).astype(np.float32)
    sampled = np.array([[True, False, True, True], [False, True, False, False]])
    Episodes(obs, action, goal, goal, np.array([4, 2]), sampled).save(tmp_path / "a.npz")
    found = read_data(tmp_path / "a.npz")
    same(found, [obs[0], obs[1, :3]], [action[0], action[1, :2]])
    assert found.sampled is not None
    assert found.sampled.tolist() == [True, False, True, True, False, True]
    assert found.action_space is None


def test_an_episode_file_may_tell_the_bounds_of_its_actions(tmp_path: Path) -> None:
    obs, action, goal = (np.zeros(shape, np.float32) for shape in ((1, 5, 3), (1, 4, 2), (1, 5, 1)))
    path, file = tmp_path / "a.npz", Episodes(obs, action, goal, goal, np.array([4]), np.ones((1, 4), bool))
    file.metadata = {"action_low": [-1, -2], "action_high": [1, 3]}
    file.save(path)
    low, high = np.array([-1.0, -2]), np.array([1.0, 3])
    assert read_data(path).action_space == gymnasium.spaces.Box(low, high, dtype=np.float64)
    wrong: list[Any] = [([-1], [1]), ([-1, -2], None), ([1, 1], [-1, 2]), ("low", "high"), ([-1, 0], [1, float("nan")])]
    for bounds in wrong:
        file.metadata = {"action_low": bounds[0], "action_high": bounds[1]}
        file.save(path)
        with pytest.raises(ValueError, match=r"a\.npz .*action"):
            read_data(path)


def test_arrays_of_objects_that_are_not_needed_are_not_read(tmp_path: Path) -> None:
    observations, actions = some_episodes()
    np.savez(tmp_path / "a.npz", allow_pickle=True, **flat(observations, actions), infos=np.array([{}, {}], object))
    same(read_npz(tmp_path / "a.npz"), observations, actions)


def test_broken_and_foreign_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", observations=np.array([{"a": 1}], object), actions=np.zeros(1))
    np.savez(tmp_path / "names.npz", x=np.zeros(3), actions=np.zeros(1))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "names.npz").read_bytes()[:40])
    (tmp_path / "table.csv").write_text("1,2\n")
    (tmp_path / "table.npz").write_text("1,2\n")
    for name, message in {
        "objects.npz": "objects.npz .*pickle",
        "names.npz": "names.npz .*observation.*actions, x",
        "cut.npz": "cut.npz",
        "table.npz": "table.npz",
        "table.csv": "table.csv",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_data(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        read_data(tmp_path / "none.npz")


def test_a_column_file_has_a_row_for_every_state(tmp_path: Path) -> None:
    found = read_arrays(*some_episodes())
    scores = {"cube": np.arange(11.0), "other": np.arange(11.0) / 2}
    write_columns(tmp_path / "s.npz", found, scores, {"seed": 3})
    with np.load(tmp_path / "s.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["cai_cube"], scores["cube"])
        np.testing.assert_array_equal(file["cai_other"], scores["other"])
        assert file["cai_cube"].dtype == np.float32
        assert [file[name].tolist() for name in ("episode", "time", "last")] == [
            found.episode.tolist(), found.time.tolist(), found.last.tolist()]  # fmt: skip
        assert (int(file["schema_version"]), json.loads(str(file["metadata"]))) == (1, {"seed": 3})
    write_columns(tmp_path / "one.npz", found, {"cube": scores["cube"]})
    with np.load(tmp_path / "one.npz", allow_pickle=False) as file:
        assert "cai" in file.files
    with pytest.raises(ValueError, match="'a/b'"):
        write_columns(tmp_path / "x.npz", found, {"a/b": scores["cube"]})
    for wrong in (np.arange(3.0), np.zeros((11, 1))):
        with pytest.raises(ValueError, match=r"'other'.* 11"):
            write_columns(tmp_path / "x.npz", found, scores | {"other": wrong})
    assert not (tmp_path / "x.npz").exists()


Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a local Minari data set with everything that one can hold; nothing may be fetched."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))

    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is fetched")

    monkeypatch.setattr(socket.socket, "connect", refuse)

    def made(name: str = "mine/small/cube-v0", infos: bool = True, **changes: Any) -> str:
        random, buffers = np.random.default_rng(1), []
        for place, (obs, action) in enumerate(zip(*some_episodes(), strict=True)):
            n = len(action)
            info = {"x": random.normal(size=(n + 1, 2)), "inner": {"y": np.arange(n + 1)}}
            buffers.append(
                EpisodeBuffer(
                    seed=place + 7,
                    options={"level": {"height": place}},
                    observations={"state": obs[:, :2], "robot": {"arm": obs[:, 2:]}},
                    actions=action,
                    rewards=random.normal(size=n),
                    terminations=np.arange(n) == n - 1,
                    truncations=np.zeros(n, bool),
                    infos=info if infos else None,
                )
            )
        wide = spaces.Box(-9, 9, (2,), np.float64), spaces.Box(-9, 9, (1,), np.float64)
        space = spaces.Dict({"state": wide[0], "robot": spaces.Dict({"arm": wide[1]})})
        given_space = {"observation_space": space, "action_space": BOX}
        about: dict[str, Any] = {
            "author": "A",
            "description": "d",
            "algorithm_name": "random",
            "requirements": ["numpy"],
        }
        minari.create_dataset_from_buffers(name, buffers, env="CartPole-v1", eval_env="Acrobot-v1",
                                           **about | given_space | changes)  # fmt: skip
        return name

    return made


def test_a_minari_data_set_is_read(make: Make, tmp_path: Path) -> None:
    name = make()
    found, (observations, actions) = read_minari(name), some_episodes()
    same(found, [one[:, [2, 0, 1]] for one in observations], actions)  # robot/arm before state
    assert found.sizes == {"robot/arm": 1, "state": 2}
    assert isinstance(found.action_space, spaces.Box)
    assert found.action_space.high.tolist() == [1, 1]
    for other in (minari.load_dataset(name), tmp_path / "minari" / name):
        np.testing.assert_array_equal(read_minari(other).observation, found.observation)
    np.testing.assert_array_equal(read_data(name, ["state"]).observation, found.observation[:, :1])


def content(path: Path) -> dict[str, Any]:
    """Every array and attribute of an HDF5 file, by its path."""
    held: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        held[name] = (item[()], item.dtype, item.maxshape) if isinstance(item, h5py.Dataset) else None
        held.update({f"{name}@{key}": value for key, value in item.attrs.items()})

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return held


@pytest.mark.parametrize("infos", [True, False])
def test_a_scored_copy_differs_by_its_scores_alone(make: Make, infos: bool, tmp_path: Path) -> None:
    name = make(infos=infos)
    scores = np.arange(11.0) / 7
    target = write_minari(
        name, "new/cube-cai-v2", read_minari(name), {"cube": scores}, {"seed": 0}, beside={"r.txt": "é"}
    )
    assert (target / "r.txt").read_text(encoding="utf-8") == "é"
    old, new = minari.load_dataset(name), minari.load_dataset("new/cube-cai-v2")
    parts = np.split(scores.astype(np.float32)[:, None], [4, 6])
    for episode, score in zip(new.iterate_episodes(), parts, strict=True):
        np.testing.assert_array_equal(episode.infos["cai"], score)
        assert episode.infos["cai"].shape == (len(episode) + 1, 1)
    folders = [tmp_path / "minari" / one / "data" for one in (name, "new/cube-cai-v2")]
    before, after = (content(folder / "main_data.hdf5") for folder in folders)
    added = {f"episode_{place}/infos/cai" for place in range(3)}
    if not infos:
        added |= {f"episode_{place}/infos" for place in range(3)}
    assert set(after) - set(before) == added
    assert set(before) <= set(after)
    for key, value in before.items():
        np.testing.assert_equal(after[key], value, err_msg=key)
    about = [json.loads((folder / "metadata.json").read_text()) for folder in folders]
    differing = {key for key in about[1] if about[0].get(key) != about[1][key]}
    assert differing <= {"dataset_id", "dataset_size", "butfor"}
    assert about[1]["butfor"] == {"seed": 0}
    assert set(about[0]) <= set(about[1])
    assert (new.env_spec, new.spec.total_steps, new.observation_space) == (old.env_spec, 8, old.observation_space)
    metadata = [list(one.storage.get_episode_metadata([0, 1, 2])) for one in (old, new)]
    assert metadata[0] == metadata[1]
    assert [one["seed"] for one in metadata[1]] == [7, 8, 9]
    assert set(minari.list_local_datasets()) == {name, "new/cube-cai-v2"}
    assert "new" in list_local_namespaces()
    recovered = new.recover_environment(eval_env=True)
    assert recovered.spec is not None
    assert recovered.spec.id == "Acrobot-v1"


def test_several_entities_have_an_info_each(make: Make) -> None:
    name = make()
    write_minari(name, "b-v0", read_minari(name), {"cube": np.zeros(11), "arm": np.ones(11)})
    assert {"cai_cube", "cai_arm", "x", "inner"} == set(minari.load_dataset("b-v0")[2].infos)


def test_a_copy_replaces_another_only_if_told(make: Make, tmp_path: Path) -> None:
    name = make()
    found = read_minari(name)
    write_minari(name, "b-v0", found, {"cube": np.zeros(11)})
    with pytest.raises(FileExistsError, match="b-v0"):
        write_minari(name, "b-v0", found, {"cube": np.ones(11)})
    write_minari(name, "b-v0", found, {"cube": np.ones(11)}, overwrite=True)
    assert minari.load_dataset("b-v0")[0].infos["cai"].tolist() == [[1]] * 4
    assert not list((tmp_path / "minari").rglob(".*"))
    for new in ("b", "../c-v0", "c/d-v0", name):  # Minari reads no namespace of one letter
        with pytest.raises(ValueError, match=new):
            write_minari(name, new, found, {"cube": np.ones(11)}, overwrite=True)
    with pytest.raises(ValueError, match=r"'cube'.* 11"):
        write_minari(name, "c-v0", found, {"cube": np.ones(10)})
    with pytest.raises(ValueError, match=r"b-v0 .*'cai'"):
        write_minari("b-v0", "c-v0", found, {"cube": np.ones(11)})
    with pytest.raises(ValueError, match="1 episode"):
        write_minari(name, "c-v0", read_arrays(np.zeros((4, 2)), np.zeros((3, 1))), {"cube": np.ones(4)})
    (tmp_path / "minari" / "d-v0").mkdir()
    with pytest.raises(FileExistsError, match="d-v0"):
        write_minari(name, "d-v0", found, {"cube": np.ones(11)}, overwrite=True)


def test_a_failed_copy_leaves_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make()
    found = read_minari(name)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(h5py.Group, "create_dataset", fail)
    with pytest.raises(OSError, match="disk full"):
        write_minari(name, "other/b-v0", found, {"cube": np.zeros(11)})
    assert set(minari.list_local_datasets()) == {name}
    assert not list((tmp_path / "minari" / "other").iterdir())


def test_a_full_disk_is_told_before_hdf5_writes(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 crashes where it finds no room; there is more than it takes, and none is left over in the copy."""
    name = make(infos=False)
    found, data = read_minari(name), "data/main_data.hdf5"
    given = (tmp_path / "minari" / name / data).stat().st_size
    rooms, create = list[int](), h5py.Group.create_dataset

    def watched(self: Any, *arguments: Any, **given: Any) -> Any:
        rooms.append(Path(self.file.filename).stat().st_size)
        return create(self, *arguments, **given)

    monkeypatch.setattr(h5py.Group, "create_dataset", watched)
    target = write_minari(name, "b-v0", found, {"cube": np.zeros(11), "arm": np.zeros(11)})
    assert min(rooms) > (target / data).stat().st_size > given


def test_a_copy_that_cannot_take_its_place_leaves_the_one_before(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rename = make(), Path.rename
    found = read_minari(name)
    write_minari(name, "b-v0", found, {"cube": np.zeros(11)})
    source = tmp_path / "minari" / name / "data"
    for path in (source / "main_data.hdf5", source):
        path.chmod(path.stat().st_mode & 0o555)  # a read-only data set can be copied

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            assert (self / "data" / "main_data.hdf5").stat().st_mode & 0o200
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no"):
        write_minari(name, "b-v0", found, {"cube": np.ones(11)}, overwrite=True)
    source.chmod(0o755)
    assert minari.load_dataset("b-v0")[0].infos["cai"].tolist() == [[0]] * 4
    assert not list((tmp_path / "minari").rglob(".*"))


def test_a_data_set_that_is_not_there(make: Make) -> None:
    with pytest.raises(FileNotFoundError, match="'cube-v0'"):
        read_data("cube-v0")
    make("mine/cube-v1")
    with pytest.raises(FileNotFoundError, match="mine/cube-v1"):
        read_data("mine/cube-v0")
    with pytest.raises(FileNotFoundError, match="'mine/cube'"):
        read_data("mine/cube")


def test_a_data_set_that_is_broken(make: Make, tmp_path: Path) -> None:
    name = make("a-v0")
    (tmp_path / "minari" / name / "data" / "main_data.hdf5").write_text("no HDF5")
    with pytest.raises(ValueError, match="a-v0"):
        read_data(name)
    (tmp_path / "minari" / name / "data" / "main_data.hdf5").unlink()
    with pytest.raises(ValueError, match="a-v0"):
        read_data(name)
    (tmp_path / "minari" / name / "data" / "metadata.json").write_text("{")
    with pytest.raises(ValueError, match="a-v0"):
        read_data(name)


def test_a_data_set_that_minari_cannot_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make("a-v0", data_format="arrow")
    assert len(read_data(name)) == 3

    def fail(*_: Any) -> None:
        int(b"")  # as for infos of one dimension in Arrow files

    monkeypatch.setattr("minari.dataset._storages.arrow_storage._decode_info", fail)
    with pytest.raises(ValueError, match=r"Minari cannot read the episodes of a-v0 \(ValueError"):
        read_data(name)


def test_without_minari_the_sentence_says_what_to_install(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make()
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r"pip install 'butfor\[minari\]'"):
        read_data(name)


def test_images_and_texts_of_a_data_set_are_refused(make: Make) -> None:
    images = np.random.default_rng(0).integers(0, 255, (5, 32, 32, 3)).astype(np.uint8)
    for name, space, observations in (
        ("image-v0", spaces.Box(0, 255, (32, 32, 3), np.uint8), images),
        ("text-v0", spaces.Text(3), ["abc"] * 5),
        ("tuple-v0", spaces.Tuple([BOX, BOX]), (np.zeros((5, 2)), np.zeros((5, 2)))),
    ):  # fmt: skip
        steps: dict[str, Any] = {"rewards": np.zeros(4), "terminations": np.zeros(4, bool)}
        buffer = EpisodeBuffer(
            observations=observations, actions=np.zeros((4, 2)), truncations=np.zeros(4, bool), **steps
        )
        minari.create_dataset_from_buffers(name, [buffer], observation_space=space, action_space=BOX)
        with pytest.raises((ValueError, TypeError), match="images" if name == "image-v0" else "expected numbers"):
            read_minari(name)


def test_discrete_actions_of_a_data_set_are_fitted(make: Make) -> None:
    """CartPole at random: the action changes the cart's speed at once, and its place only a step later."""
    env, random, buffers = gymnasium.make("CartPole-v1"), np.random.default_rng(0), []
    for seed in range(30):
        observations, actions, done = [env.reset(seed=seed)[0]], list[int](), False
        while not done:
            actions.append(int(random.integers(2)))
            obs, _, done, *_ = env.step(actions[-1])
            observations.append(obs)
        n = len(actions)
        buffers.append(EpisodeBuffer(observations=np.array(observations), actions=np.array(actions), rewards=np.ones(n),
                                     terminations=np.arange(n) == n - 1, truncations=np.zeros(n, bool)))  # fmt: skip
    minari.create_dataset_from_buffers("cart-v0", buffers, env=env)
    found = read_minari("cart-v0")
    assert found.action_space == spaces.Discrete(2)
    entities = found.entities(["place=0", "speed=1"])
    fitting = FitConfig(batch_size=100, learning_rate=5e-3, max_epochs=20, validate_every=5)
    influence = Influence.fit(
        *found.transitions(), entities, action_space=found.action_space, fitting=fitting, model=ModelConfig(2, 32)
    )
    score = influence.score(found.observation)
    assert score["speed"].mean() > 0.6 * np.log(2)  # two actions that are told apart for sure: log 2
    assert score["place"].mean() < 0.1 * np.log(2)
