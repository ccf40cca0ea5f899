"""Which episodes and states are shown, that pictures and numbers are theirs, and what a map must look like."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("mujoco")

from imageio.v3 import imread

import butfor.reporting.pictures as module
from butfor.detection.collect import CollectConfig, collect_file
from butfor.envs import make_vector_env
from butfor.envs.drawing import RING_COLOUR, open_context
from butfor.envs.facts import BUILT_IN
from butfor.envs.truth import Forker, exact_label
from butfor.influence.influence import Influence
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import make_generators
from butfor.models.tables import Units
from butfor.reporting.pictures import (
    SIZE,
    central_seed,
    choose_failures,
    choose_timelines,
    close_up,
    influence_map,
    place_gripper,
    write_pictures,
)
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.rollouts.play import play_again
from butfor.runs.files import read_json, write_json
from butfor.spaces.actions import ActionLaw

FETCH = BUILT_IN["pick-and-place"]
STEPS = 16  # of the episodes that are played: an expert is at the object by then


def untrained() -> Influence:
    """Two seeds of a model of the object that has not learned anything."""
    model = GaussianDynamics(25, 4, 3, ModelConfig(layers=1, width=8), make_generators([0, 1]))
    return Influence(model, Units.raw(ActionLaw((-1.0,) * 4, (1.0,) * 4), {"object": [3, 4, 5]}, [50.0] * 3, 25))


def shortened(episodes: Episodes) -> Episodes:
    """Their first steps."""
    states = {
        name: getattr(episodes, name)[:, : STEPS + 1] for name in ("observation", "achieved_goal", "desired_goal")
    }
    steps = {name: getattr(episodes, name)[:, :STEPS] for name in ("action", "sampled", "contact")}
    label = {name: value[:, :STEPS] for name, value in episodes.label.items()}
    arrays: dict[str, Any] = states | steps | {"length": np.full(len(episodes), STEPS), "label": label}
    return replace(episodes, **arrays)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    """Two random and two expert episodes."""
    folder = tmp_path_factory.mktemp("parts")
    labels, kinds = ("exact", "contact", "heuristic"), ("random", "noisy-expert")
    configs = [CollectConfig("pick-and-place", kind, 2, labels, seed) for seed, kind in enumerate(kinds)]
    parts = [collect_file(config, folder / f"{config.policy}.npz") for config in configs]
    return shortened(concatenate(parts))


def make_run(folder: Path, episodes: Episodes, env: str = "pick-and-place") -> Path:
    """A finished detection run, as far as pictures need it; its two seeds have scores that count the states."""
    config = {"schema": 1, "kind": "detection", "label": f"detection-{env}", "config": {"env": env}}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    episodes.save(folder / "data" / "test.npz")
    untrained().save(folder / "model.safetensors")
    episode, time = episodes.valid.nonzero()
    score = np.arange(len(episode), dtype=np.float32)
    np.savez(folder / "scores.npz", cai=np.stack([score, score + 3]), episode=episode, time=time)
    return folder


@pytest.fixture(scope="module")
def run(played: Episodes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its pictures, small ones."""
    try:
        open_context(8, 8).free()
    except RuntimeError as error:
        pytest.skip(str(error))
    folder = make_run(tmp_path_factory.mktemp("run"), played)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TIMELINE_PICTURE", SIZE)
        patch.setattr(module, "CLOSE_PICTURE", 2 * SIZE)
        assert write_pictures(folder, grid=3) == folder / "pictures"
    return folder


# --- the choice -----------------------------------------------------------------------------------


def made(contact: list[list[int]], way: list[float], goal: list[float]) -> Episodes:
    """Episodes of 20 steps with contacts at these times, whose object ends `way` from 0 along x, its goal at `goal`."""
    count, steps = len(contact), 20
    touched = np.zeros((count, steps), bool)
    for number, times in enumerate(contact):
        touched[number, times] = True
    achieved, desired = np.zeros((2, count, steps + 1, 3), np.float32)
    achieved[:, :, 0] = np.linspace(0, 1, steps + 1) * np.array(way)[:, None]
    desired[:, :, 0] = np.array(goal)[:, None]
    observation, action = np.zeros((count, steps + 1, 25), np.float32), np.zeros((count, steps, 4), np.float32)
    length, false = np.full(count, steps), np.zeros((count, steps), bool)
    return Episodes(observation, action, achieved, desired, length, false, touched, {"exact": touched})


def test_timelines_are_the_first_of_their_kind_and_the_best_manipulation() -> None:
    long = list(range(8, 20))
    episodes = made(
        [[18], [3, 9], [2, 6], [], long, long, long, [5], []],
        [0.01, 0.01, 0.01, 0.3, 0.04, 0.2, 0.3, 0.2, 0.0],
        [1.0, 1.0, 1.0, 0.3, 0.04, 0.2, 0.3, 0.2, 1.0],
    )
    # 0 touches near the end, 1 over 7 steps, 2 within 5; 4 moves it less than 5 cm; 5 and 6 succeed, 6 moves it farther
    titles = ("No contact", "A brief touch", "A successful manipulation")
    assert choose_timelines(episodes) == dict(zip(titles, (3, 2, 6), strict=True))


def test_a_manipulation_past_the_goal_stands_in_for_a_successful_one() -> None:
    long = list(range(8, 20))
    episodes = made([long, long], [0.2, 0.3], [1.0, 1.0])
    assert choose_timelines(episodes) == {"A manipulation that does not end at the goal": 1}


def test_contacts_in_the_padding_do_not_count() -> None:
    episodes = made([[15]], [0.0], [1.0])
    assert choose_timelines(replace(episodes, length=np.array([12]))) == {"No contact": 0}


def test_failures_are_the_worst_of_both_kinds_one_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAILURES", 4)
    episodes = made([[0, 1], [0], [0], []], [0.0] * 4, [1.0] * 4)
    score = np.zeros((4, 20))
    score[0, :3], score[1, :2], score[2, :2], score[3, :2] = [0.1, 0.2, 9], [0.3, 5], [0.4, 8], [1, 2]
    # missed: 0.1 and not 0.2 (the same episode), then 0.3; of the free states 9 and 5 are in episodes already shown
    assert choose_failures(episodes, score) == [
        ("missed", 0, 0), ("missed", 1, 0), ("false alarm", 2, 1), ("false alarm", 3, 1),
    ]  # fmt: skip
    score[3, 19] = 99
    assert choose_failures(replace(episodes, length=np.full(4, 19)), score)[-1] == ("false alarm", 3, 1)


# --- playing again --------------------------------------------------------------------------------


def test_episodes_played_again_come_through_their_states(played: Episodes) -> None:
    env: Any = make_vector_env("pick-and-place", 2)
    seen: list[NDArray[Any]] = []
    play_again(env, played, [3, 1], lambda time: seen.append(env.unwrapped.physics.observation.copy()))
    env.close()
    expected = played.observation[[3, 1], :STEPS].swapaxes(0, 1)
    np.testing.assert_array_equal(np.stack(seen).astype(np.float32), expected)


def test_another_course_than_the_stored_one_is_refused(played: Episodes) -> None:
    env = make_vector_env("pick-and-place", 1)
    action = played.action.copy()
    action[2, 1] = [1, 1, 1, 0]
    with pytest.raises(ValueError, match=r"Episode 2\b.*0\.\d* .*step [2-4]"):
        play_again(env, replace(played, action=action), [2], lambda time: None)
    env.close()


# --- the map --------------------------------------------------------------------------------------


def test_the_gripper_stands_where_it_is_sent_and_reports_whom_it_touched() -> None:
    # The object is 5 cm wide, a finger 2.7 cm along x and 1.4 cm along y, with 10 cm between the open fingers: the
    # gripper fits around the object, a finger comes down on it at y = 5.7 cm, and edges it aside at 8.9 cm.
    offsets = np.array([[0, 0], [0, 0.057], [0, -0.089], [0.045, 0], [-0.045, 0], [0.12, -0.12]])
    env: Any = make_vector_env("pick-and-place", len(offsets) + 1)
    states, placed = place_gripper(FETCH, env, 1, offsets)
    assert placed.tolist() == [True, False, False, True, True, True]
    layout = env.unwrapped.layout
    seen = states[placed][:, layout.observation]
    np.testing.assert_allclose(seen[:, :2] - seen[:, 3:5], offsets[placed], atol=5e-3)
    np.testing.assert_allclose(seen[:, 2], seen[:, 5], atol=5e-3)
    assert np.ptp(states[placed][:, layout.object_pose], axis=0).max() < 1e-6
    assert np.abs(seen[:, 20:23]).max() < 1e-3  # at rest
    effect = exact_label(Forker(env), states)[1]
    env.close()
    # an action asks for 5 cm at most, of which 0.65 cm lead up to the object; the left is as good as the right
    assert (effect[[3, 4]] > 0.01).all()
    assert (effect[[3, 4]] < 0.05).all()
    assert effect[3] == pytest.approx(effect[4], rel=0.2)
    assert effect[5] == 0


def test_a_map_is_over_y_and_x_in_centimetres() -> None:
    influence = untrained()
    found = influence_map(FETCH, 1, influence, 5, lambda *given: None)
    assert found["x"].tolist() == found["y"].tolist() == pytest.approx([-12, -6, 0, 6, 12])
    assert found["half"].tolist() == [2.5, 2.5]
    # the fingers open along y, so the gripper hits the object 6 cm in front of it or behind it, not beside it
    missing = np.zeros((5, 5), bool)
    missing[[1, 3], 2] = True
    for name in ("cai", "effect"):
        assert np.array_equal(np.isnan(found[name]), missing)
    effect = found["effect"]
    assert (effect[:, [0, 4]] == 0).all()
    assert (effect[2, 1:4] > 1e-3).all()
    assert 0 <= np.nanmin(found["cai"]) < np.nanmax(found["cai"])


def test_the_map_begins_with_an_object_beside_the_gripper(played: Episodes) -> None:
    observation = played.observation.copy()
    observation[:, 0, 6:8] = [[0.1, 0.0], [0.0, 0.15], [0.05, 0.1], [-0.1, 0.0]]
    assert played.reset_seed is not None
    assert central_seed(FETCH, replace(played, observation=observation)) == played.reset_seed[1]


# --- the folder -----------------------------------------------------------------------------------


def test_the_index_lists_what_is_there(run: Path, played: Episodes) -> None:
    folder = run / "pictures"
    index = read_json(folder / "index.json")
    named = [name for timeline in index["timelines"] for name in timeline["frames"]]
    named += [failure["image"] for failure in index["failures"]] + [index["map"]["file"]]
    assert sorted([*named, "index.json"]) == sorted(path.name for path in folder.iterdir())
    for name in named[:2] + named[-2:-1]:
        assert imread(folder / name).shape == (SIZE, SIZE, 3)
    with np.load(folder / "map.npz") as found:
        assert found["cai"].shape == found["effect"].shape == (3, 3)


def test_a_timeline_has_the_scores_and_marks_of_its_episode(run: Path, played: Episodes) -> None:
    timelines = read_json(run / "pictures" / "index.json")["timelines"]
    assert {timeline["title"]: timeline["episode"] for timeline in timelines} == choose_timelines(played)
    assert played.contact is not None
    for timeline in timelines:
        number = timeline["episode"]
        first = np.arange(STEPS * number, STEPS * (number + 1))
        assert timeline["score"] == [first.tolist(), (first + 3).tolist()]
        assert timeline["label"] == played.label["exact"][number].tolist()
        assert timeline["heuristic"] == played.label["heuristic"][number].tolist()
        assert timeline["contact"] == played.contact[number].tolist()
        assert len(timeline["frames"]) == STEPS


def test_a_failure_has_the_numbers_of_its_state(run: Path, played: Episodes) -> None:
    failures = read_json(run / "pictures" / "index.json")["failures"]
    assert {failure["kind"] for failure in failures} == {"missed", "false alarm"}
    for failure in failures:
        number, time = failure["episode"], failure["time"]
        assert failure["score"] == STEPS * number + time + 1.5
        assert failure["spread"] == 1.5
        assert failure["exact"] == played.label["exact"][number, time] == (failure["kind"] == "missed")
        assert (failure["effect"] > 1e-6) == failure["exact"]
        gripper, thing = played.observation[number, time, :3], played.observation[number, time, 3:6]
        assert failure["distance"] == pytest.approx(np.linalg.norm(gripper - thing), abs=1e-6)


def test_a_frame_shows_the_state_that_it_is_named_after(run: Path, played: Episodes) -> None:
    timeline = read_json(run / "pictures" / "index.json")["timelines"][0]
    drawn: list[NDArray[Any]] = []
    env: Any = make_vector_env("pick-and-place", 1, render_mode="rgb_array", width=SIZE, height=SIZE)
    play_again(env, played, [timeline["episode"]], lambda time: drawn.append(env.render()[0]))
    for time in (0, STEPS - 1):
        shown, other = (imread(run / "pictures" / timeline["frames"][t]) for t in (time, STEPS - 1 - time))
        gap, wrong = (np.abs(frame.astype(int) - drawn[time]).mean() for frame in (shown, other))
        assert gap < 2 < wrong  # of 255: JPEG leaves something out
    env.close()


def test_the_picture_of_a_failure_is_cut_around_gripper_and_object(run: Path, played: Episodes) -> None:
    env: Any = make_vector_env("pick-and-place", 1, render_mode="rgb_array", width=2 * SIZE, height=2 * SIZE)

    def look(now: int) -> None:
        seen = env.unwrapped.physics.observation[0]
        drawn.append(close_up(env, 0, (seen[:3] + seen[3:6]) / 2))

    for failure in read_json(run / "pictures" / "index.json")["failures"]:
        number, time = failure["episode"], failure["time"]
        drawn: list[NDArray[Any]] = []
        play_again(env, played, [number], look)
        assert np.abs(imread(run / "pictures" / failure["image"]).astype(int) - drawn[time]).mean() < 2
    env.close()


def test_a_close_up_has_its_point_in_the_middle(run: Path) -> None:
    env: Any = make_vector_env("pick-and-place", 2, render_mode="rgb_array", width=3 * SIZE, height=3 * SIZE)
    goal = env.reset(seed=[1, 2])[0]["desired_goal"]
    for place in range(2):
        frame = close_up(env, place, goal[place])
        assert frame.shape == (SIZE, SIZE, 3)
        ring = np.argwhere(np.abs(frame.astype(int) - RING_COLOUR).max(-1) < 10)  # its middle is the goal
        assert len(ring) > 50
        assert np.abs((ring.min(0) + ring.max(0) + 1) / 2 - SIZE / 2).max() < 1.5
    env.close()


def test_pictures_go_on_where_they_were_cut_off(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMELINE_PICTURE", SIZE)
    monkeypatch.setattr(module, "CLOSE_PICTURE", 2 * SIZE)
    folder = run / "pictures"
    index = read_json(folder / "index.json")
    lost, kept = index["timelines"][0]["frames"][3:5]
    frame = (folder / kept).read_bytes()
    (folder / "index.json").unlink()
    (folder / lost).unlink()
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    stages: list[str] = []
    write_pictures(run, lambda stage, done, total, text: stages.append(stage), grid=3)
    assert (folder / lost).is_file()
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before
    assert read_json(folder / "index.json") == index
    assert set(stages) == {"pictures of episodes", "pictures of failures"}
    (folder / kept).unlink()  # a finished folder is left as it is
    write_pictures(run, grid=3)
    assert not (folder / kept).exists()
    (folder / kept).write_bytes(frame)


# --- mistakes -------------------------------------------------------------------------------------


def test_what_pictures_cannot_be_made_of_is_refused(played: Episodes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="slide"):
        write_pictures(make_run(tmp_path / "slide", played, "slide"))
    unfinished = make_run(tmp_path / "a", played)
    (unfinished / "scores.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"scores\.npz"):
        write_pictures(unfinished)
    for name in ("reset_seed", "contact"):
        changed: dict[str, Any] = {name: None}
        with pytest.raises(ValueError, match=name.replace("_", " ")):
            write_pictures(make_run(tmp_path / name, replace(played, **changed)))
    training = make_run(tmp_path / "training", played)
    write_json(training / "config.json", read_json(training / "config.json") | {"kind": "training"})
    with pytest.raises(ValueError, match="training"):
        write_pictures(training)
