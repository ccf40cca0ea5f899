"""Anyone's data: every form that is read, what is refused, and a copy of a Minari data set that has scores besides."""

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
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.namespace import list_local_namespaces

from butfor import Influence
from butfor.datasets.files import Recording, read_arrays, read_data, read_minari, read_npz, write_columns, write_minari
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig
from butfor.rollouts.episodes import Episodes

pytestmark = pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:env_spec is None")
LENGTHS = (3, 1, 4)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float64)


def some_episodes(lengths: tuple[int, ...] = LENGTHS) -> tuple[list[Any], list[Any]]:
    """Observations [T + 1, 3] and actions [T, 2] of each episode, all numbers different."""
    random = np.random.default_rng(0)
    return [random.normal(size=(n + 1, 3)) for n in lengths], [random.uniform(-1, 1, (n, 2)) for n in lengths]


def same(found: Recording, observations: list[Any], actions: list[Any]) -> None:
    """The recording holds these episodes, in this order."""
    np.testing.assert_array_equal(found.observation, np.concatenate(observations))
    np.testing.assert_array_equal(found.action, np.concatenate(actions))
    assert found.length.tolist() == [len(one) for one in actions]


def flat(observations: list[Any], actions: list[Any]) -> dict[str, Any]:
    """One row a step, as D4RL has it."""
    rows = {"observations": [one[:-1] for one in observations], "actions": actions}
    rows |= {"next_observations": [one[1:] for one in observations]}
    rows |= {"timeouts": [np.arange(len(one)) == len(one) - 1 for one in actions]}
    return {name: np.concatenate(parts) for name, parts in rows.items()} | {
        "terminals": np.zeros(sum(map(len, actions)), bool)
    }


def test_a_recording_knows_where_its_states_stand() -> None:
    found = read_arrays(*some_episodes())
    assert found.episode.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert found.time.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4]
    assert np.flatnonzero(found.last).tolist() == [3, 5, 10]
    assert len(found) == 3
    chosen = np.array([False, True, False, True, False, False, False, True])
    obs, action, next_obs = found.transitions(chosen)
    np.testing.assert_array_equal(obs, found.observation[[1, 4, 9]])
    np.testing.assert_array_equal(action, found.action[[1, 3, 7]])
    np.testing.assert_array_equal(next_obs, found.observation[[2, 5, 10]])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6).map(tuple))
def test_all_forms_of_the_same_episodes_are_read_alike(lengths: tuple[int, ...]) -> None:
    observations, actions = some_episodes(lengths)
    rows, most = flat(observations, actions), max(lengths)
    padded = [np.stack([np.pad(one, ((0, most + more - len(one)), (0, 0)), constant_values=np.nan) for one in parts])
              for parts, more in ((observations, 1), (actions, 0))]  # fmt: skip
    obs, action, after, timeouts = (rows[key] for key in ("observations", "actions", "next_observations", "timeouts"))
    ended = np.arange(most) == np.array(lengths)[:, None] - 1
    for found in (
        read_arrays(observations, actions),
        read_arrays(obs, action, after, timeouts=timeouts),
        read_arrays(obs, action, after),  # an episode ends where the next row does not follow
        read_arrays(obs, action, after, length=lengths),
        read_arrays(np.concatenate(observations), action, length=lengths),
        read_arrays(*padded, length=lengths),
        read_arrays(*padded, terminals=ended),
        read_arrays(padded[0][:, :-1], padded[1], padded[0][:, 1:], timeouts=ended),
    ):
        same(found, observations, actions)
        np.testing.assert_array_equal(np.concatenate(found.transitions()[::2]), np.concatenate([obs, after]))


def test_without_the_state_after_it_the_last_action_is_not_used() -> None:
    observations, actions = some_episodes()
    ends = np.concatenate([np.arange(n + 1) == n for n in LENGTHS])
    spare = np.concatenate([np.concatenate([one, np.full((1, 2), 9.0)]) for one in actions])
    same(read_arrays(np.concatenate(observations), spare, terminals=ends), observations, actions)
    rows = [n + 1 for n in LENGTHS]
    same(read_arrays(np.concatenate(observations), spare, length=rows), observations, actions)
    same(read_arrays(observations[0], actions[0]), observations[:1], actions[:1])  # one state more than actions
    padded = np.zeros((3, 5, 3)), np.full((3, 5, 2), 9.0)
    for place, n in enumerate(LENGTHS):
        padded[0][place, : n + 1], padded[1][place, :n] = observations[place], actions[place]
    same(read_arrays(*padded, length=rows), observations, actions)


def test_the_parts_of_a_dictionary_stand_in_the_order_of_their_names() -> None:
    obs = {
        "robot": {"hand": np.full((4, 2), 4.0), "arm": np.full((4, 3), 3.0)},
        "cube": np.arange(4),
        "b": np.ones((4, 1, 2)),
    }
    found = read_arrays(obs, np.zeros((3, 1)))
    assert found.sizes == {"b": 2, "cube": 1, "robot/arm": 3, "robot/hand": 2}
    assert found.observation[2].tolist() == [1, 1, 2, 3, 3, 3, 4, 4]
    assert found.entities(["cube=cube", "hand=robot/hand:1"]) == {"cube": [2], "hand": [7]}
    assert read_arrays(obs, np.zeros((3, 1)), ignore=["b", "robot/arm"]).sizes == {"cube": 1, "robot/hand": 2}


def test_padded_parts_may_be_single_numbers_and_matrices_are_not_padded_episodes() -> None:
    padded = {"clock": np.arange(6.0).reshape(2, 3), "place": np.zeros((2, 3, 2))}
    found = read_arrays(padded, {"push": np.ones((2, 2, 1)), "turn": np.zeros((2, 2))})
    assert (found.length.tolist(), found.sizes) == ([2, 2], {"clock": 1, "place": 2})
    assert found.observation[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.action.tolist() == [[1, 0]] * 4
    matrix, action = np.arange(24.0).reshape(4, 2, 3), np.zeros((4, 2))  # one row a step, as many numbers in an action
    for told in ({"terminals": [0, 1, 0, 1]}, {"length": [2, 2]}, {"next_observation": matrix + 100}):
        assert read_arrays(matrix, action, **told).sizes == {"": 6}
    with pytest.raises(ValueError, match="give terminals"):
        read_arrays(np.arange(24.0).reshape(4, 6), action)


def test_flags_tell_where_last_states_stand_among_the_others() -> None:
    observations, actions = some_episodes()
    ended = np.concatenate([np.arange(n) == n - 1 for n in LENGTHS])
    same(read_arrays(np.concatenate(observations), np.concatenate(actions), terminals=ended), observations, actions)


def test_texts_and_tuples_may_be_ignored() -> None:
    obs = {"mission": np.array(["go"] * 4), "pair": (STATES, STATES), "x": STATES}
    assert read_arrays(obs, ACTS, ignore=["mission", "pair"]).sizes == {"x": 2}
    with pytest.raises(TypeError, match=r"'mission' is of type <U2.*--ignore mission"):
        read_arrays(obs, ACTS)


def test_actions_of_every_kind() -> None:
    obs = np.zeros((4, 2))
    whole = read_arrays(obs, np.array([5, 7, 6]), action_space=spaces.Discrete(3, start=5))
    assert whole.action.tolist() == [0, 2, 1]
    assert whole.action_space == spaces.Discrete(3)
    for given_actions in (np.array([[1], [0], [1]]), np.array([True, False, True])):
        found = read_arrays(obs, given_actions)
        assert (found.action.tolist(), found.action.dtype.kind) == ([1, 0, 1], "i")
    assert read_arrays(obs, np.array([0.5, 0.1, 0.2])).action.shape == (3, 1)
    assert read_arrays(obs, np.zeros((3, 2)), action_space=spaces.Box(-np.inf, np.inf, (2,))).action_space is None
    largest = float(np.finfo(np.float32).max)  # how some worlds say that there is no bound
    assert read_arrays(obs, np.zeros((3, 2)), action_space=spaces.Box(-largest, largest, (2,))).action_space is None
    both = spaces.Dict({"turn": spaces.Box(0, 2, (1,)), "push": spaces.Box(-1, 1, (1, 2))})
    found = read_arrays(obs, {"turn": np.full((3, 1), 2.0), "push": np.ones((3, 1, 2))}, action_space=both)
    assert found.action[0].tolist() == [1, 1, 2]
    assert isinstance(found.action_space, spaces.Box)
    assert found.action_space.low.tolist() == [-1, -1, 0]
    with pytest.raises(TypeError, match="action space is MultiDiscrete"):
        read_arrays(obs, np.zeros((3, 2), int), action_space=spaces.MultiDiscrete([2, 2]))
    with pytest.raises(TypeError, match="action space is Tuple"):
        read_arrays([obs], [(np.zeros((3, 2)), np.zeros(3))], action_space=spaces.Tuple([BOX, spaces.Discrete(2)]))


STATES, ACTS = np.zeros((4, 2)), np.zeros((3, 1))
NAN = np.where(np.arange(8).reshape(4, 2) == 5, np.nan, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observation": np.zeros((4, 64, 64, 3), np.uint8)}, r"images \(\[64, 64, 3\] a step\)"),
        ({"observation": np.zeros((4, 84 * 84), np.uint8)}, "images"),
        ({"observation": np.zeros((4, 64, 64))}, "images"),
        ({"observation": {"s": STATES, "camera": np.zeros((4, 8, 8), np.uint8)}}, "leave it out: --ignore camera"),
        ({"observation": NAN}, "NaN, infinity or.* in 1 state.*episode 0, step 2, column 1;"),
        ({"observation": {"a": STATES, "b": NAN}}, "step 2, column 1 of 'b'"),
        ({"action": np.array([[0.0], [np.inf], [0.0]])}, "action with NaN, infinity or.* in episode 0, step 1"),
        ({"observation": np.zeros((3, 2))}, "Nothing says where the episodes end"),
        (
            {"observation": np.zeros((7, 2))},
            r"7 observations and 3 actions; 1 episode\(s\) of 3 steps in all have 4 and 3",
        ),
        ({"length": [1, 1]}, r"4 observations and 3 actions; 2 episode\(s\) of 2 steps in all have 4 and 2"),
        ({"observation": np.zeros((3, 2)), "length": [1, 1]}, "sum 2; expected 3"),
        ({"observation": np.zeros((2, 2)), "terminals": [0, 0, 1]}, "2 observations and 3 actions"),
        ({"observation": np.zeros((3, 2)), "terminals": [0, 1]}, r"shape \[2\]; expected \[3\]"),
        ({"observation": np.zeros((3, 2)), "next_observation": np.zeros((3, 3))}, r"\[3, 3\]; expected \[3, 2\]"),
        ({"observation": np.array(["a", "b", "c", "d"])}, "type <U1; expected arrays of numbers"),
        ({"observation": {"a": STATES, "b": (STATES,)}}, "'b' is a tuple"),
        ({"observation": {"a": STATES, "b": np.zeros((5, 1))}}, "differ in their number of rows"),
        ({"observation": {"a": STATES}, "ignore": ["b"]}, "ignore names b, but the observation has a"),
        ({"observation": {"a": STATES}, "ignore": ["a"]}, "no part left"),
        ({"observation": np.zeros((1, 2)), "action": np.zeros((0, 1))}, "no step to learn from"),
        ({"observation": [STATES], "action": [np.zeros((4, 1))]}, "4 observations and 4 actions; expected one"),
        ({"observation": np.zeros((2, 4, 2)), "action": np.zeros((2, 3, 1)), "length": [2, 4]}, "up to 3"),
        ({"observation": np.where(np.isnan(NAN), 1e39, 0.0)}, "too large for single precision in 1 state.*step 2"),
        ({"action": np.array([[0.0], [np.inf], [0.0]], np.float16)}, "infinity.* in episode 0, step 1"),
        ({"terminals": [0.0, np.nan, 1.0]}, "terminals holds nan in row 1; give booleans, or 0 and 1"),
        ({"terminals": np.array(["False", "False", "True"])}, "terminals holds 'False' in row 0; give booleans"),
        ({"timeouts": [False, None, True]}, "timeouts holds None in row 1; give booleans"),
        ({"sampled": [1, 0, 2]}, "sampled holds 2 in row 2; give booleans"),
        (
            {"observation": np.zeros((2, 4, 2)), "action": np.zeros((2, 3, 1)), "terminals": [[0, 0, 1], [0, -1, 0]]},
            "terminals holds -1 in row 1, 1; give booleans",
        ),
        ({"sampled": [True]}, r"sampled has shape \[1\]; expected \[3\]"),
        ({"length": [3, 0]}, "length holds not only whole numbers from 1 on"),
        ({"length": [np.nan]}, "length holds not only whole numbers from 1 on"),
        ({"action": np.array([0, 10**9, 1])}, "whole numbers from 0 to 1000000000.*Save continuous actions as floats"),
        ({"action": np.array([0, -1, 1])}, "whole numbers from -1 to 1; discrete actions run from 0 on"),
        ({"action": np.zeros((3, 2), int)}, "whole numbers in 2 columns"),
        ({"action": np.array(5)}, "action is a single number"),
        (
            {"terminals": [0, 1, 0]},
            r"2 episode\(s\) of 3 steps in all have 5 and 3",
        ),  # what followed row 1 is not known
        ({"ignore": ["a"]}, "the observation has no parts"),
        ({"observation": [STATES], "action": [ACTS], "sampled": [True]}, "leave the other arrays out"),
        ({"observation": [STATES], "action": [ACTS, ACTS]}, "1 episodes of observations and 2 of actions"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        read_arrays(**{"observation": STATES, "action": ACTS} | arguments)
    assert "\n" not in str(raised.value)


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
        with pytest.raises(ValueError, match=r"expected 2 number\(s\) each, the lower ones first"):
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
        "objects.npz": "pickled objects, which could run code",
        "names.npz": "no array observation or observations.*it has actions, x",
        "cut.npz": "no whole .npz file",
        "table.npz": "table.npz is no .npz file, whatever its name",
        "table.csv": "of a type that is not read",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_data(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="There is no file"):
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
    with pytest.raises(ValueError, match="'a/b' cannot be written"):
        write_columns(tmp_path / "x.npz", found, {"a/b": scores["cube"]})
    for wrong in (np.arange(3.0), np.zeros((11, 1))):
        with pytest.raises(ValueError, match="There are not 11 scores, one for each state, of 'other'"):
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
    with pytest.raises(FileExistsError, match="b-v0 exists already; give another id or say --overwrite"):
        write_minari(name, "b-v0", found, {"cube": np.ones(11)})
    write_minari(name, "b-v0", found, {"cube": np.ones(11)}, overwrite=True)
    assert minari.load_dataset("b-v0")[0].infos["cai"].tolist() == [[1]] * 4
    assert not list((tmp_path / "minari").rglob(".*"))
    wrong = {"b": "cannot name", "../c-v0": "cannot name", "c/d-v0": "cannot name"}  # Minari reads no namespace c
    for new, message in (wrong | {name: "is the data set that is read"}).items():
        with pytest.raises(ValueError, match=message):
            write_minari(name, new, found, {"cube": np.ones(11)}, overwrite=True)
    with pytest.raises(ValueError, match="not 11 scores, one for each state, of 'cube'"):
        write_minari(name, "c-v0", found, {"cube": np.ones(10)})
    with pytest.raises(ValueError, match="has infos 'cai' already"):
        write_minari("b-v0", "c-v0", found, {"cube": np.ones(11)})
    with pytest.raises(ValueError, match="scores are of 1 episodes"):
        write_minari(name, "c-v0", read_arrays(STATES, ACTS), {"cube": np.ones(4)})
    (tmp_path / "minari" / "d-v0").mkdir()
    with pytest.raises(FileExistsError, match="is no data set of Minari's"):
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
    with pytest.raises(FileNotFoundError, match=r"no Minari data set 'cube-v0' in .*: it has none"):
        read_data("cube-v0")
    make("mine/cube-v1")
    with pytest.raises(FileNotFoundError, match=r"it has mine/cube-v1\. Nothing is downloaded"):
        read_data("mine/cube-v0")
    with pytest.raises(FileNotFoundError, match="no file 'mine/cube'"):
        read_data("mine/cube")


def test_a_data_set_that_is_broken(make: Make, tmp_path: Path) -> None:
    name = make("a-v0")
    (tmp_path / "minari" / name / "data" / "main_data.hdf5").write_text("no HDF5")
    with pytest.raises(ValueError, match="a-v0 is damaged"):
        read_data(name)
    (tmp_path / "minari" / name / "data" / "main_data.hdf5").unlink()
    with pytest.raises(ValueError, match="no data set that this Minari reads"):
        read_data(name)
    (tmp_path / "minari" / name / "data" / "metadata.json").write_text("{")
    with pytest.raises(ValueError, match="no data set that this Minari reads"):
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
        with pytest.raises((ValueError, TypeError), match="images" if name == "image-v0" else "expected arrays"):
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
