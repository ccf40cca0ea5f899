"""The episode file: what goes in comes out, and what is not one is refused with a sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from butfor.datasets.files import write_columns
from butfor.datasets.recording import read_arrays
from butfor.rollouts.episodes import SCHEMA_VERSION, Episodes, EpisodeStream, concatenate


def make(lengths: list[int], steps: int, seed: int = 0, **optional: Any) -> Episodes:
    """Episodes with 4 numbers a state, 2 an action and 3 a goal; every number occurs only once."""
    generator = np.random.default_rng(seed)
    count = len(lengths)

    def normal(*shape: int) -> NDArray[np.float32]:
        return generator.standard_normal(shape).astype(np.float32)

    return Episodes(
        observation=normal(count, steps + 1, 4),
        action=normal(count, steps, 2),
        achieved_goal=normal(count, steps + 1, 3),
        desired_goal=normal(count, steps + 1, 3),
        length=np.array(lengths, dtype=np.int64),
        sampled=generator.random((count, steps)) < 0.5,
        **optional,
    )


def flags(count: int, steps: int, seed: int) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random((count, steps)) < 0.5


def full() -> Episodes:
    """Every optional array present."""
    metadata: dict[str, Any] = {"env": "slide", "ä": [1, None, {"deep": 0.5}]}
    return make(
        [3, 1, 2],
        3,
        contact=flags(3, 3, 1),
        label={"exact": flags(3, 3, 2), "kinetic_energy": flags(3, 3, 3)},
        score=np.random.default_rng(4).random((3, 3)).astype(np.float32),
        reset_seed=np.array([2**32 - 1, 0, 7]),
        metadata=metadata,
    )


def assert_same(left: Episodes, right: Episodes) -> None:
    names = ["observation", "action", "achieved_goal", "desired_goal", "length", "sampled", "contact", "score"]
    names.append("reset_seed")
    pairs = {name: (getattr(left, name), getattr(right, name)) for name in names}
    assert list(left.label) == list(right.label)
    pairs |= {f"label {name}": (left.label[name], right.label[name]) for name in left.label}
    for name, (one, other) in pairs.items():
        assert (one is None) == (other is None), name
        if one is not None:
            assert one.dtype == other.dtype, name
            np.testing.assert_array_equal(one, other, err_msg=name)
    assert left.metadata == right.metadata


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    full().save(tmp_path / "data.npz")
    return tmp_path / "data.npz"


def changed(path: Path, **changes: Any) -> Path:
    """The file with some of its arrays replaced, or left out where None."""
    with np.load(path) as file:
        arrays = dict(file) | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


# ------------------------------------------------------------------------------------------- save, load


def test_round_trip_with_everything(saved: Path) -> None:
    assert_same(Episodes.load(saved), full())


def test_round_trip_with_nothing_optional(tmp_path: Path) -> None:
    episodes = make([2], 2)
    episodes.save(tmp_path / "data.npz")
    loaded = Episodes.load(tmp_path / "data.npz")
    assert_same(loaded, episodes)
    assert loaded.contact is None
    assert loaded.score is None
    assert loaded.label == {}
    assert loaded.metadata == {}


@pytest.mark.parametrize("name", ["data.npz", "data", "data.npz.old", "new/folder/data.npz"])
def test_the_file_gets_exactly_the_name_that_was_given(tmp_path: Path, name: str) -> None:
    make([1], 1).save(str(tmp_path / name))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]
    assert len(Episodes.load(str(tmp_path / name))) == 1


def test_special_numbers_survive(tmp_path: Path) -> None:
    episodes = make([1], 1)
    episodes.observation[0, 0] = np.array([np.nan, np.inf, -0.0, 1e-45])
    episodes.save(tmp_path / "data.npz")
    assert Episodes.load(tmp_path / "data.npz").observation.tobytes() == episodes.observation.tobytes()


def test_the_file_is_readable_without_butfor(saved: Path) -> None:
    with np.load(saved, allow_pickle=False) as file:
        assert int(file["schema_version"]) == SCHEMA_VERSION
        assert json.loads(str(file["metadata"])) == full().metadata
        assert set(file.files) == {
            "schema_version", "metadata", "observation", "action", "achieved_goal", "desired_goal", "length",
            "sampled", "contact", "score", "reset_seed", "label_exact", "label_kinetic_energy",
        }  # fmt: skip


def test_object_arrays_are_not_saved_and_the_old_file_stays(saved: Path) -> None:
    before = saved.read_bytes()
    episodes = full()
    episodes.contact = np.full((3, 3), None, dtype=object)
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        episodes.save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_unknown_arrays_are_ignored(saved: Path) -> None:
    assert_same(Episodes.load(changed(saved, reward=np.zeros(3))), full())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data\.npz"):
        Episodes.load(tmp_path / "data.npz")


def test_a_file_cut_off_anywhere_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in [*range(0, len(whole), 101), len(whole) - 1]:
        saved.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"data\.npz"):
            Episodes.load(saved)


def test_a_damaged_file_is_refused_with_a_sentence_or_read(saved: Path) -> None:
    """Some bytes carry nothing (a date); damage to any other must not show as an error of the zip library."""
    whole = saved.read_bytes()
    unclear, refused = {}, 0
    for position in range(0, len(whole), 19):
        saved.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        try:
            Episodes.load(saved)
        except ValueError as error:
            refused += "data.npz" in str(error)
        except Exception as error:
            unclear[position] = repr(error)
    assert refused > 0
    assert not unclear


def write_text(path: Path) -> None:
    path.write_text("observation, action\n1, 2\n")


def write_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros((2, 3, 4), np.float32))


def write_pickle(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def write_other_arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, weight=np.zeros(3))


def write_objects(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, weight=np.array([{"a": 1}], dtype=object))


def write_scores(path: Path) -> None:
    number = np.arange(4.0)[:, None]
    write_columns(path, read_arrays([number], [number[1:]]), {"cube": number[:, 0]})


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (write_text, "npz file"),
        (write_array, "npz file"),
        (write_pickle, "npz file"),
        (write_other_arrays, "weight"),
        (write_objects, "weight"),
        (write_scores, "cai"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, write: Callable[[Path], None], what: str) -> None:
    path = tmp_path / "data.npz"
    write(path)
    with pytest.raises(ValueError, match=rf"data\.npz.*{what}"):
        Episodes.load(path)


@pytest.mark.parametrize(
    "version", [np.array(SCHEMA_VERSION + 1), np.array(0), np.array("one"), np.array([1, 1]), None]
)
def test_another_schema_version_is_refused(saved: Path, version: NDArray[Any] | None) -> None:
    with pytest.raises(ValueError, match=r"data\.npz"):
        Episodes.load(changed(saved, schema_version=version))


def test_a_newer_schema_version_is_named(saved: Path) -> None:
    path = changed(saved, schema_version=np.array(SCHEMA_VERSION + 1))
    with pytest.raises(ValueError, match=rf"schema version {SCHEMA_VERSION + 1}.* reads {SCHEMA_VERSION}"):
        Episodes.load(path)


class Malicious:
    """Whoever unpickles it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["contact", "observation", "metadata", "label_exact", "schema_version"])
def test_code_in_an_episode_file_is_never_run(saved: Path, tmp_path: Path, name: str) -> None:
    trace = tmp_path / "trace"
    changed(saved, **{name: np.array([Malicious(trace)], dtype=object)})
    with pytest.raises(ValueError, match=r"data\.npz"):
        Episodes.load(saved)
    assert not trace.exists()
    np.load(saved, allow_pickle=True)[name]
    assert trace.exists()  # so the file was a danger indeed


@pytest.mark.parametrize("name", ["observation", "action", "length", "sampled", "desired_goal"])
def test_a_file_without_a_needed_array_is_refused(saved: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.npz.*{name}"):
        Episodes.load(changed(saved, **{name: None}))


@pytest.mark.parametrize("metadata", ["", "{", "no JSON", "[]"])
def test_broken_metadata_is_refused_with_the_file_named(saved: Path, metadata: str) -> None:
    with pytest.raises(ValueError, match=r"data\.npz"):
        Episodes.load(changed(saved, metadata=np.array(metadata)))


def test_wrong_shapes_in_a_file_are_refused_with_the_file_named(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.npz.*contact"):
        Episodes.load(changed(saved, contact=np.zeros((3, 4), bool)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("action", np.full((3, 3, 2), "left")),
        ("observation", np.zeros((3, 4, 4), complex)),
        ("length", np.array([1.5, 2.0, 3.0])),
        ("contact", np.full((3, 3), 0.5)),
        ("sampled", np.full((3, 3), "yes")),
    ],
)
def test_arrays_of_a_wrong_type_are_refused(saved: Path, name: str, value: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match=name):
        Episodes.load(changed(saved, **{name: value}))


# ------------------------------------------------------------------------------------------------ shapes


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("observation", (2, 3, 4)),  # T instead of T + 1
        ("observation", (3, 4, 4)),  # another number of episodes
        ("observation", (2, 4)),
        ("action", (2, 3)),
        ("action", (2, 4, 2)),
        ("achieved_goal", (2, 3, 3)),
        ("achieved_goal", (2, 4)),
        ("desired_goal", (2, 4, 3, 1)),
        ("length", (3,)),
        ("length", (2, 1)),
        ("sampled", (2, 4)),
        ("contact", (2, 4)),
        ("contact", (2,)),
        ("score", (2, 3, 1)),
        ("score", (1, 3)),
    ],
)
def test_wrong_shapes_are_refused_with_the_shape(name: str, shape: tuple[int, ...]) -> None:
    good = make([3, 2], 3, contact=flags(2, 3, 0), score=np.zeros((2, 3), np.float32))
    fields = {field: getattr(good, field) for field in Episodes.__dataclass_fields__}
    fields[name] = np.ones(shape, dtype=fields[name].dtype)
    with pytest.raises(ValueError, match=f"{name} has shape") as caught:
        Episodes(**fields)
    assert str(list(shape))[1:-1] in str(caught.value)


def test_a_label_of_a_wrong_shape_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"label_exact has shape \[1, 4\]"):
        make([3], 3, label={"good": flags(1, 3, 0), "exact": flags(1, 4, 0)})


@pytest.mark.parametrize("lengths", [[0, 2], [1, 4], [-1, 2]])
def test_impossible_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"length .*-?\d to \d; expected 1 to 3"):
        make(lengths, 3)


def test_no_episodes_are_fine(tmp_path: Path) -> None:
    make([], 3).save(tmp_path / "none.npz")
    episodes = Episodes.load(tmp_path / "none.npz")
    assert len(episodes) == 0
    assert [part.shape for part in episodes.transitions()] == [(0, 4), (0, 2), (0, 4)]


# ------------------------------------------------------------------------------------ valid, transitions


def test_valid_marks_the_steps_before_each_length() -> None:
    expected = [[True, True, True], [True, False, False], [True, True, False]]
    assert make([3, 1, 2], 3).valid.tolist() == expected


def test_transitions_are_the_real_steps_episode_by_episode() -> None:
    episodes = make([3, 1, 2], 3)
    obs, action, next_obs = episodes.transitions()
    steps = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    assert obs.shape == (6, 4)
    assert action.shape == (6, 2)
    for row, (episode, time) in enumerate(steps):
        np.testing.assert_array_equal(obs[row], episodes.observation[episode, time])
        np.testing.assert_array_equal(action[row], episodes.action[episode, time])
        np.testing.assert_array_equal(next_obs[row], episodes.observation[episode, time + 1])


# ------------------------------------------------------------------------------------------- concatenate


def test_concatenate_pads_shorter_episodes_and_keeps_every_transition() -> None:
    parts = [make([2, 3], 3, 0), make([5], 5, 1), make([1], 2, 2)]
    joined = concatenate(parts)
    assert joined.action.shape == (4, 5, 2)
    assert joined.observation.shape == (4, 6, 4)
    assert joined.length.tolist() == [2, 3, 5, 1]
    for column, given in zip(joined.transitions(), zip(*[p.transitions() for p in parts], strict=True), strict=True):
        np.testing.assert_array_equal(column, np.concatenate(given))
    np.testing.assert_array_equal(joined.desired_goal[3, :3], parts[2].desired_goal[0])
    assert not joined.observation[3, 3:].any()
    assert not joined.sampled[3, 2:].any()
    assert joined.sampled.dtype == np.bool_
    assert joined.observation.dtype == np.float32


def test_concatenate_keeps_optional_arrays_only_where_all_parts_have_them() -> None:
    score = np.ones((1, 2), np.float32)
    first = make([2], 2, 0, contact=flags(1, 2, 0), score=score, label={"exact": flags(1, 2, 1), "a": flags(1, 2, 2)})
    second = make([3], 3, 1, contact=flags(1, 3, 3), label={"b": flags(1, 3, 4), "exact": flags(1, 3, 5)})
    joined = concatenate([first, second])
    assert joined.score is None
    assert list(joined.label) == ["exact"]
    assert joined.contact is not None
    np.testing.assert_array_equal(joined.contact[0, :2], flags(1, 2, 0)[0])
    np.testing.assert_array_equal(joined.contact[1], flags(1, 3, 3)[0])
    np.testing.assert_array_equal(joined.label["exact"][joined.valid], [*flags(1, 2, 1)[0], *flags(1, 3, 5)[0]])
    assert not joined.contact[0, 2]


def test_concatenate_keeps_each_parts_metadata() -> None:
    joined = concatenate([make([1], 1, metadata={"policy": "random"}), make([1], 1, metadata={"seed": 2})])
    assert joined.metadata == {"parts": [{"policy": "random"}, {"seed": 2}]}


def test_concatenate_copies_so_that_the_parts_stay_as_they_were() -> None:
    part = make([2], 2)
    before = part.observation.copy()
    joined = concatenate([part])
    joined.observation[:] = 0
    np.testing.assert_array_equal(part.observation, before)


def test_joined_episodes_survive_the_file(tmp_path: Path) -> None:
    joined = concatenate([full(), make([4], 4, 9)])
    joined.save(tmp_path / "data.npz")
    assert_same(Episodes.load(tmp_path / "data.npz"), joined)


def test_episodes_of_different_environments_are_not_joined() -> None:
    other = make([1], 1)
    other.observation = np.zeros((1, 2, 7), np.float32)
    with pytest.raises(ValueError, match=r"observation.*\b7\b"):
        concatenate([make([1], 1), other])


def test_nothing_to_concatenate_is_said_so() -> None:
    with pytest.raises(ValueError, match="episodes"):
        concatenate([])


# --------------------------------------------------------------------------------------------- reset seeds


def test_reset_seeds_go_with_their_episodes(tmp_path: Path) -> None:
    """Through a file, a choice, and a join; where one part does not know its seeds, the whole does not."""
    episodes = full()
    episodes.save(tmp_path / "data.npz")
    loaded = Episodes.load(tmp_path / "data.npz")
    assert loaded.reset_seed is not None
    assert loaded.reset_seed.dtype == np.int64
    assert loaded.reset_seed.tolist() == [2**32 - 1, 0, 7]
    taken = loaded.take(np.array([2, 0]))
    assert taken.reset_seed is not None
    assert taken.reset_seed.tolist() == [7, 2**32 - 1]
    other = make([4], 4, reset_seed=np.array([5]))  # longer: the seeds have no time to be padded along
    joined = concatenate([loaded, other]).reset_seed
    assert joined is not None
    assert joined.tolist() == [2**32 - 1, 0, 7, 5]
    assert concatenate([loaded, make([4], 4)]).reset_seed is None
    assert make([1], 1).reset_seed is None


def test_a_file_without_reset_seeds_is_read(saved: Path) -> None:
    with np.load(saved) as file:
        arrays = {name: file[name] for name in file.files if name != "reset_seed"}
    np.savez(saved, **arrays)
    loaded = Episodes.load(saved)
    assert loaded.reset_seed is None
    np.testing.assert_array_equal(loaded.action, full().action)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        (np.zeros(3), "reset_seed .*float64"),
        (np.zeros(2, np.int64), "reset_seed"),
        (np.zeros((3, 1), np.int64), "reset_seed"),
    ],
)
def test_reset_seeds_of_another_kind_are_refused(seeds: NDArray[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([1, 1, 1], 2, reset_seed=seeds)


def test_a_stream_keeps_the_seeds_of_resets_in_its_order(tmp_path: Path) -> None:
    stream = EpisodeStream(tmp_path / "kept.npz", 0)
    for first in (0, 2):  # two seeds with two environments each: [seed 0: 0, 1; seed 1: 0, 1]
        part = make([3] * 4, 3, reset_seed=np.array([first, first + 1, 100 + first, 101 + first]))
        stream.add(part, 2)
        stream.flush(first + 2)
    stream.join({})
    kept = Episodes.load(tmp_path / "kept.npz").reset_seed
    assert kept is not None
    assert kept.tolist() == [0, 100, 1, 101, 2, 102, 3, 103]


# -------------------------------------------------------------------------------------------------- take


def test_take_gives_some_episodes_in_the_order_asked_for() -> None:
    whole = full()
    taken = whole.take(np.array([2, 0, 2]))
    assert len(taken) == 3
    for row, episode in enumerate([2, 0, 2]):
        for name in ("observation", "action", "achieved_goal", "desired_goal", "length", "sampled", "contact", "score"):
            np.testing.assert_array_equal(getattr(taken, name)[row], getattr(whole, name)[episode], err_msg=name)
        for name, label in whole.label.items():
            np.testing.assert_array_equal(taken.label[name][row], label[episode])
    assert taken.metadata == whole.metadata


def test_take_leaves_out_what_is_not_there_and_takes_masks() -> None:
    taken = make([1, 2, 3], 3).take(np.array([False, True, True]))
    assert taken.length.tolist() == [2, 3]
    assert taken.contact is None
    assert taken.score is None


# ------------------------------------------------------------------------------------------------ stream


def numbered(first: int, num_envs: int, seeds: int, steps: int = 3) -> Episodes:
    """`num_envs` episodes of each seed; environment i belongs to seed i // num_envs; the state is (seed, episode)."""
    episodes = make([1 + (first + i) % steps for i in range(seeds * num_envs)], steps, seed=first)
    for index in range(seeds * num_envs):
        episodes.observation[index, :, 0] = index // num_envs
        episodes.observation[index, :, 1] = first + index % num_envs
    return episodes


def written_order(path: Path) -> list[tuple[int, int]]:
    """(episode, seed) of every episode of a file."""
    episodes = Episodes.load(path)
    return [(int(state[1]), int(state[0])) for state in episodes.observation[:, 0]]


def expected_order(episodes: int, seeds: int = 2) -> list[tuple[int, int]]:
    return [(episode, seed) for episode in range(episodes) for seed in range(seeds)]


def streamed(path: Path, first: int, last: int, num_envs: int = 2, flush_every: int = 2, **metadata: Any) -> None:
    """Plays episodes `first` to `last` in rounds of `environments`, as a run does that goes on at `first`."""
    stream = EpisodeStream(path, first)
    for round_, episode in enumerate(range(first, last, num_envs)):
        stream.add(numbered(episode, num_envs, 2), 2)
        if round_ % flush_every == flush_every - 1:
            stream.flush(episode + num_envs)
    stream.flush(last)
    stream.join(metadata)


@pytest.mark.parametrize(("num_envs", "flush_every"), [(1, 1), (2, 1), (2, 3), (3, 2), (6, 1)])
def test_a_stream_keeps_episodes_in_order_seeds_in_turn(tmp_path: Path, num_envs: int, flush_every: int) -> None:
    path = tmp_path / "run" / "episodes.npz"
    streamed(path, 0, 12, num_envs, flush_every, env="slide")
    assert written_order(path) == expected_order(12)
    assert Episodes.load(path).metadata == {"env": "slide", "played": 12}
    assert [found.name for found in path.parent.iterdir()] == ["episodes.npz"]  # the parts are gone


def test_a_stream_keeps_every_number(tmp_path: Path) -> None:
    parts = [numbered(0, 2, 2), numbered(2, 2, 2)]
    stream = EpisodeStream(tmp_path / "a.npz", 0)
    for part in parts:
        stream.add(part, 2)
    stream.flush(4)
    stream.join({})
    joined = Episodes.load(tmp_path / "a.npz")
    order = [(0, 0), (0, 2), (0, 1), (0, 3), (1, 0), (1, 2), (1, 1), (1, 3)]  # (part, place in it)
    for row, (source, place) in enumerate(order):
        np.testing.assert_array_equal(joined.observation[row], parts[source].observation[place])
        np.testing.assert_array_equal(joined.action[row], parts[source].action[place])
        assert joined.length[row] == parts[source].length[place]


def test_nothing_is_there_under_the_final_name_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    stream = EpisodeStream(path, 0)
    stream.add(numbered(0, 2, 2), 2)
    stream.flush(2)
    stream.flush(2)  # nothing is waiting: no second part
    assert not path.exists()
    assert len(list((tmp_path / "a.npz.parts").iterdir())) == 1


def test_a_run_that_was_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """What was written after the last checkpoint is played again, and must not be there twice."""
    path = tmp_path / "a.npz"
    stream = EpisodeStream(path, 0)
    for episode in (0, 2, 4):
        stream.add(numbered(episode, 2, 2), 2)
        stream.flush(episode + 2)
    # killed: the checkpoint holds 4 episodes, the part of episodes 4 and 5 is on disk already
    streamed(path, 4, 10)
    assert written_order(path) == expected_order(10)


def test_a_part_past_the_checkpoint_is_gone_also_if_nothing_more_is_played(tmp_path: Path) -> None:
    stream = EpisodeStream(tmp_path / "a.npz", 0)
    for episode in (0, 2):
        stream.add(numbered(episode, 2, 2), 2)
        stream.flush(episode + 2)
    EpisodeStream(tmp_path / "a.npz", 2).join({})
    assert written_order(tmp_path / "a.npz") == expected_order(2)


def test_a_run_that_was_killed_while_episodes_were_waiting_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    stream = EpisodeStream(path, 0)
    stream.add(numbered(0, 2, 2), 2)
    stream.flush(2)
    stream.add(numbered(2, 2, 2), 2)  # never written; neither was a checkpoint
    streamed(path, 2, 6)
    assert written_order(path) == expected_order(6)


@pytest.mark.parametrize("again", [1, 2])
def test_a_finished_run_may_go_on(tmp_path: Path, again: int) -> None:
    path = tmp_path / "a.npz"
    streamed(path, 0, 4)
    for index in range(again):
        streamed(path, 4 + 4 * index, 8 + 4 * index)
    assert written_order(path) == expected_order(4 + 4 * again)


def test_a_finished_run_that_goes_on_and_is_killed_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    streamed(path, 0, 4)
    stream = EpisodeStream(path, 4)
    stream.add(numbered(4, 2, 2), 2)
    stream.flush(6)
    streamed(path, 4, 8)  # no checkpoint was written after episode 4
    assert written_order(path) == expected_order(8)


def test_a_run_that_was_killed_while_its_parts_were_removed_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    stream = EpisodeStream(path, 0)
    for episode in (0, 2):
        stream.add(numbered(episode, 2, 2), 2)
        stream.flush(episode + 2)
    kept = {part.name: part.read_bytes() for part in stream.folder.iterdir()}
    stream.join({})
    stream.folder.mkdir()
    for name, content in kept.items():  # as if killed right after the whole file was there
        (stream.folder / name).write_bytes(content)
    streamed(path, 4, 6)
    assert written_order(path) == expected_order(6)


def test_a_new_run_does_not_touch_a_file_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    make([1], 1).save(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"a\.npz"):
        EpisodeStream(path, 0)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_run_clears_away_the_parts_of_one_that_was_given_up(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    stream = EpisodeStream(path, 0)
    stream.add(numbered(0, 2, 2), 2)
    stream.flush(2)
    streamed(path, 0, 4, flush_every=1)
    assert written_order(path) == expected_order(4)


def test_a_stream_begins_only_under_a_name_that_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ValueError, match=r"a\.csv"):
        EpisodeStream(tmp_path / "a.csv", 0)
    with pytest.raises(FileExistsError, match=r"folder\.npz"):
        EpisodeStream(tmp_path / "folder.npz", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npz"]
