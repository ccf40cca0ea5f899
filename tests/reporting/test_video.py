"""Videos of briefly trained agents: which episodes, what they show, and what is refused or skipped."""

import importlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from butfor.runs.files import read_json

pytest.importorskip("imageio_ffmpeg", reason="videos need the extra 'video'")

from imageio_ffmpeg import count_frames_and_secs, read_frames
from PIL import Image
from support.pages import HOSTILE, Tags
from support.small_training import small
from support.study_runs import write_training

from butfor.analysis.arms import ReadArm
from butfor.analysis.claims import Curve
from butfor.cli.study import Selection, films, run, status
from butfor.envs import make_vector_env
from butfor.influence.influence import Influence
from butfor.models.dynamics import GaussianDynamics
from butfor.models.networks import make_generators
from butfor.models.tables import Units
from butfor.reporting import video
from butfor.reporting.study_page import write_study_report
from butfor.reporting.video import (
    LIGHT_BLUE,
    LIGHT_GREEN,
    Film,
    RecordedEpisode,
    draw_panel,
    film_study,
    watch,
)
from butfor.rollouts.play import episode_seed
from butfor.runs import locks
from butfor.runs.locks import locked
from butfor.scenes.scene import read_scene
from butfor.spaces.actions import ActionLaw
from butfor.studies import paper as studies
from butfor.studies.paper import Study, write_study
from butfor.studies.units import run_unit, unit_name
from butfor.training.agents.policy import AgentConfig, Policy, load_policy, save_agent
from butfor.training.goal_env import open_goal_env
from butfor.training.run import train
from butfor.training.settings import preset

Frames = NDArray[np.uint8]
STEPS = 30  # of an episode of slide
ARMS = {"with": small(use=("priority",), first_seed=5, seeds=2), "without": small(), "not run": small(seeds=3)}
TINY = Study("tiny", "Tiny", "About nothing.", ARMS)

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, 5 and 6, with an influence model in the folder `with`, without in `without`."""
    folder, start = tmp_path_factory.mktemp("runs"), preset("slide")
    model = replace(start.cai, network=replace(start.cai.network, layers=1, width=8), batch_size=32)
    config = replace(
        start, seeds=2, first_seed=5, episodes=6, warmup=4, evaluation_episodes=1, checkpoint_seconds=1e6,
        agent=AgentConfig(layers=1, width=8, updates=2, batch_size=16, normalizer_batches=1),
        fit_schedule=((10, 30),), cai=model,
    )  # fmt: skip
    train(replace(config, use=("priority",)), folder / "with")
    train(config, folder / "without")
    return folder


def read(path: Path) -> Frames:
    """All frames of an .mp4 [N, height, width, 3]."""
    frames: Iterator[Any] = read_frames(path)
    width, height = next(frames)["size"]
    return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames])


def states_of(run: Path, seed: int, episode: int) -> tuple[NDArray[Any], float]:
    """The states [T + 1, 4] and the goal of one evaluation episode, played by hand."""
    policy, env = load_policy(run, seed), make_vector_env("slide", 1)
    obs = env.reset(seed=[episode_seed(seed, 1, episode)])[0]  # type: ignore[arg-type]
    states, goal = [obs["observation"][0]], float(obs["desired_goal"][0, 0])
    for _ in range(STEPS):
        obs = env.step(policy(obs))[0]
        states.append(obs["observation"][0])
    env.close()
    return np.stack(states), goal


@pytest.fixture
def plots(monkeypatch: pytest.MonkeyPatch) -> list[RecordedEpisode]:
    """What `watch` hands to the strip, frame by frame."""
    seen: list[RecordedEpisode] = []

    def draw(plot: RecordedEpisode, step: int, width: int) -> Image.Image:
        seen.append(plot)
        return draw_panel(plot, step, width)

    monkeypatch.setattr(video, "draw_panel", draw)
    return seen


# --- videos ---------------------------------------------------------------------------------------


def test_a_video_has_a_frame_for_every_state(runs: Path) -> None:
    path = watch(runs / "with")
    assert path == runs / "with" / "watch.mp4"
    assert count_frames_and_secs(path) == (STEPS + 1, pytest.approx((STEPS + 1) / 10))  # slide has 10 frames a second
    assert read(path).shape == (STEPS + 1, 120 + 120, 480, 3)
    path.unlink()


def test_the_pictures_are_those_of_the_evaluation_episodes(runs: Path, tmp_path: Path) -> None:
    frames = read(watch(runs / "with", tmp_path / "a" / "b.MP4", seed=6, episodes=2, first=3)).astype(int)
    assert len(frames) == 2 * (STEPS + 1)
    for episode in range(2):
        states, goal = states_of(runs / "with", 6, 3 + episode)
        for t in range(STEPS + 1):
            row = frames[episode * (STEPS + 1) + t, 82]  # through the object, which is orange and 8 pixels wide
            orange = np.flatnonzero((row[:, 0] - row[:, 1] > 55) & (row[:, 1] - row[:, 2] > 35))
            assert abs(orange.mean() + 0.5 - (240 + 40 * states[t, 2])) < 1.5
        zone = np.flatnonzero((row[:, 1] - row[:, 0] > 25) & (row[:, 2] > row[:, 0]))
        assert abs((zone.min() + zone.max()) / 2 - (240 + 40 * goal)) < 5  # the object may cover its edge


def test_the_strip_shows_the_influence_of_the_seeds_own_replica(
    runs: Path, tmp_path: Path, plots: list[RecordedEpisode]
) -> None:
    for replica, seed in enumerate((5, 6)):
        watch(runs / "with", tmp_path / "a.gif", seed=seed, first=2)
        states, goal = states_of(runs / "with", seed, 2)
        expected = Influence.load(runs / "with" / "influence.safetensors", replica=replica).score(states)["object"]
        plot = plots[-1]
        np.testing.assert_allclose(plot.values, expected, rtol=1e-4, atol=1e-7)
        assert np.array_equal(plot.reached, abs(states[:, 2] - np.float32(goal)) <= 0.5)
        assert plot.title == f"slide, seed {seed}, episode 2"
        assert plot.texts(3)[1].startswith("CAI ")
    assert len(plots) == 2 * (STEPS + 1)


@pytest.mark.parametrize("combine", ["max", "agent"])
def test_of_several_entities_the_strip_shows_what_counted_in_training(
    tmp_path: Path, plots: list[RecordedEpisode], combine: str
) -> None:
    entities = ("agent=0", "object=2")
    config = small(use=("bonus",), entities=entities, combine=combine, episodes=5, first_seed=5)
    run = train(config, tmp_path / "run")
    watch(run, tmp_path / "a.gif")
    scores = Influence.load(run / "influence.safetensors", replica=0).score(states_of(run, 5, 0)[0])
    agent, thing = scores["agent"], scores["object"]
    expected = np.maximum(agent, thing) if combine == "max" else agent
    np.testing.assert_allclose(plots[0].values, expected, rtol=1e-4, atol=1e-7)
    words = "max of agent and object" if combine == "max" else "agent"
    assert plots[0].title == f"slide, seed 5, episode 0; {words}"


def test_without_an_influence_model_the_strip_shows_the_reward_and_says_so(
    runs: Path, tmp_path: Path, plots: list[RecordedEpisode]
) -> None:
    watch(runs / "without", tmp_path / "a.gif")
    states, goal = states_of(runs / "without", 5, 0)
    assert np.array_equal(plots[0].values, np.where(abs(states[:, 2] - np.float32(goal)) <= 0.5, 0, -1))
    assert plots[0].title == "slide, seed 5, episode 0; no influence model in this run"
    assert plots[0].texts(0)[:2] == ("step 0", "reward -1.00")


def test_a_gif_has_as_many_frames_and_plays_forever(runs: Path, tmp_path: Path) -> None:
    with Image.open(watch(runs / "with", tmp_path / "a.gif", size=320)) as gif:
        assert gif.format == "GIF"
        assert (gif.n_frames, gif.size) == (STEPS + 1, (320, 80 + 80))  # type: ignore[attr-defined]
        assert (gif.info["duration"], gif.info["loop"]) == (100, 0)


def test_without_ffmpeg_the_default_is_a_gif_and_mp4_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"\.gif.*imageio-ffmpeg"):
        path = watch(runs / "with")
    assert path == runs / "with" / "watch.gif"
    path.unlink()
    with pytest.raises(ImportError, match=r"a\.mp4 needs imageio-ffmpeg"):
        watch(runs / "with", runs / "a.mp4")


# --- the strip ------------------------------------------------------------------------------------


def plot(values: list[float], reached: list[bool] | None = None) -> RecordedEpisode:
    return RecordedEpisode([], "CAI", "nats", np.array(values), np.array(reached or [False] * len(values)), "a title")


def count(strip: Image.Image, colour: tuple[int, int, int]) -> NDArray[np.int64]:
    """Pixels of a colour in each column."""
    return np.asarray((np.abs(np.asarray(strip).astype(int) - colour).max(-1) <= 2).sum(0))


def column(step: int, last: int) -> int:
    """The plot of a strip 480 pixels wide goes from 44 to 468."""
    return round(44 + 424 * step / last)


def test_the_words_name_step_influence_and_success() -> None:
    shown = plot([0.0] * 17 + [0.831, 1.0], [False] * 17 + [True, False])
    assert shown.texts(17) == ("step 17", "CAI 0.83 nats", "goal reached")
    assert shown.texts(18) == ("step 18", "CAI 1.00 nats", "")
    assert plot([0.0125, 0.05]).texts(1) == ("step 1", "CAI 0.050 nats", "")


def test_the_scale_goes_from_zero_to_the_episodes_largest_value() -> None:
    assert plot([0.5, 2.0]).scale() == (0, 2)
    assert plot([-1.0, 0.0]).scale() == (-1, 0)
    assert plot([0.0, 1e-5]).scale() == (0, 0.01)  # noise is not blown up


def test_the_area_is_as_high_as_the_influence_up_to_now() -> None:
    shown = plot([1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 0.0, 0.0])
    strips = [draw_panel(shown, step, 480) for step in range(8)]
    for step, strip in enumerate(strips):
        assert strip.size == (480, 120)
        area = count(strip, LIGHT_BLUE)
        assert not area[column(step, 7) + 1 :].any()
        # the plot is 58 pixels high, of which the lines at its edges and above the area take some
        for t, share in ((1, 1 / 4), (4, 1)):
            if step > t:
                assert abs(area[column(t, 7)] - 58 * share) < 4
    before, after = (np.asarray(strip)[48:, : column(1, 7)] for strip in strips[2::5])
    assert np.array_equal(before, after)  # what is drawn stays


def test_a_reached_goal_is_marked_when_it_happens() -> None:
    shown = plot([1.0] * 11, [False] * 5 + [True] * 3 + [False] * 3)
    for step in range(11):
        green = count(draw_panel(replace(shown, values=np.zeros(11)), step, 480), LIGHT_GREEN)
        for t in range(11):
            assert (green[column(t, 10)] > 40) == (5 <= t <= min(step, 7))
    words = [np.asarray(draw_panel(shown, step, 480))[:26, 200:] for step in (4, 5)]
    assert (words[0] == 255).all()
    assert (words[1] != 255).any()


def test_an_episode_of_one_state_can_be_drawn() -> None:
    assert not count(draw_panel(plot([0.3]), 0, 480), LIGHT_BLUE).any()


# --- other environments ---------------------------------------------------------------------------------


class Walk(gymnasium.Env[Any, Any]):
    """Goes where it is told and ends after three steps; drawing it fails at the time `break_at`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = Dict({key: Box(-9, 9, (2,)) for key in ("observation", "achieved_goal", "desired_goal")})
    action_space = Box(-1, 1, (2,))

    def __init__(self, render_mode: str | None = None, picture: Any = None, break_at: int = -1) -> None:
        self.render_mode, self.picture, self.break_at = render_mode, picture, break_at

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.place, self.time = self.place + action, self.time + 1
        return self._obs(), -1.0, self.time == 3, False, {"is_success": self.time == 3}

    def render(self) -> Any:
        if self.time == self.break_at:
            raise OSError("out of paint")
        return np.full((33, 50, 3), 60 * self.time, np.uint8) if self.picture is None else self.picture[0]

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return (np.linalg.norm(achieved - desired, axis=-1) < 0.01).astype(np.float32) - 1

    def _obs(self) -> Any:
        return {"observation": self.place, "achieved_goal": self.place, "desired_goal": np.full(2, 5, np.float32)}


class Unseen(Walk):
    """Takes no render mode."""

    def __init__(self) -> None:
        super().__init__()


class Blind(Walk):
    """Has another render mode."""

    metadata = {"render_modes": ["ansi"]}


def register(**kwargs: Any) -> str:
    """Register an environment under a new id."""
    id = f"test/Watched{sum('Watched' in known for known in gymnasium.registry)}-v0"
    options: dict[str, Any] = {"entry_point": Walk, "max_episode_steps": 10} | kwargs
    gymnasium.register(id, **options)
    return id


def untrained(folder: Path, env: str, sizes: tuple[int, int, int]) -> Path:
    """A run folder with an agent that has not learned anything."""
    law, random = ActionLaw((-1.0,) * sizes[1], (1.0,) * sizes[1]), make_generators([0])
    config = AgentConfig(layers=1, width=8)
    policy = Policy(sizes[0] + sizes[2], sizes[1], config, random)
    tensors = {f"policy.{name}": value for name, value in policy.state_dict().items()}
    save_agent(folder / "model.safetensors", tensors, config, law, sizes, env, [0])
    return folder


def test_any_env_that_renders_can_be_watched(tmp_path: Path, plots: list[RecordedEpisode]) -> None:
    frames = read(watch(untrained(tmp_path, register(), (2, 2, 2)), size=300))
    assert frames.shape == (4, 198 + 74, 300, 3)  # 33 x 50 becomes 198 x 300; the episode ends after three steps
    assert count_frames_and_secs(tmp_path / "watch.mp4")[1] == pytest.approx(4 / 20)
    for t in range(4):
        assert abs(frames[t, 90:100, 140:160].mean() - 60 * t) < 5
    assert plots[0].reached.tolist() == [False, False, False, True]  # the last, because the environment reports it


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "uint8"])
def test_pictures_of_floats_or_of_other_whole_numbers_are_as_bright(tmp_path: Path, kind: str) -> None:
    picture = np.full((32, 48, 4), 0.6 if kind.startswith("float") else 153, kind)
    run = untrained(tmp_path, register(kwargs={"picture": [picture]}), (2, 2, 2))
    frames = read(watch(run, size=240))
    assert abs(frames[:, 40:120, 60:180].mean() - 153) < 3


def test_an_env_that_a_function_makes_can_be_watched(tmp_path: Path) -> None:
    def make_env(render_mode: str | None = "rgb_array") -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(Walk(render_mode=render_mode), 10)

    run = untrained(tmp_path, "my-env", (2, 2, 2))
    frames = read(watch(run, size=300, make_env=make_env))
    assert frames.shape == (4, 198 + 74, 300, 3)
    with pytest.raises(ValueError, match=r"my-env .*render_mode=None"):
        watch(run, make_env=lambda: make_env(None))
    with pytest.raises(ValueError, match="my-env"):
        watch(run)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"entry_point": Unseen}, ValueError, "Watched.*rgb_array"),
        ({"entry_point": Blind}, ValueError, "ansi"),
        ({"kwargs": {"picture": [None]}}, ValueError, "None"),
        ({"kwargs": {"picture": [np.zeros((4, 5))]}}, ValueError, r"\[4, 5\] of float64"),
        ({"kwargs": {"picture": [np.zeros((4, 5, 2))]}}, ValueError, r"\[4, 5, 2\] of float64"),
        ({"kwargs": {"picture": [np.zeros((0, 5, 3))]}}, ValueError, r"\[0, 5, 3\] of float64"),
        ({"kwargs": {"picture": [np.zeros((4, 5, 3), bool)]}}, ValueError, r"\[4, 5, 3\] of bool"),
        ({"kwargs": {"picture": [np.full((4, 5, 3), 7.0)]}}, ValueError, "from 7 to 7"),
        ({"kwargs": {"picture": [np.full((4, 5, 3), np.nan)]}}, ValueError, "of float64 from nan to nan"),
        ({"kwargs": {"picture": [np.full((4, 5, 3), -1)]}}, ValueError, "from -1 to -1"),
        ({"kwargs": {"break_at": 2}}, RuntimeError, "out of paint.*MUJOCO_GL=egl"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium warns of these environments, too
def test_an_env_that_cannot_be_rendered_is_refused(
    settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        watch(untrained(tmp_path, register(**settings), (2, 2, 2)))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]  # nothing half-written


def test_a_robot_is_rendered_around_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plots: list[RecordedEpisode]
) -> None:
    pytest.importorskip("mujoco")
    from butfor.envs.drawing import RING_COLOUR, open_context

    try:
        open_context(8, 8).free()
    except RuntimeError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(
        video, "open_goal_env", lambda *args, **kwargs: replace(open_goal_env(*args, **kwargs), steps=2)
    )
    untrained(tmp_path, "pick-and-place", (25, 4, 3))
    law, config = ActionLaw((-1.0,) * 4, (1.0,) * 4), preset("pick-and-place").cai.network
    model = GaussianDynamics(25, 4, 3, config, make_generators([0]))
    Influence(model, Units.raw(law, {"object": [3, 4, 5]}, [50.0] * 3, 25)).save(tmp_path / "influence.safetensors")
    with Image.open(watch(tmp_path, tmp_path / "a.gif", size=240)) as gif:
        assert (gif.n_frames, gif.size) == (3, (240, 240 + 60))  # type: ignore[attr-defined]
        picture = np.asarray(gif.convert("RGB"))[:240]
    env: Any = make_vector_env("pick-and-place", 1, render_mode="rgb_array", width=360, height=360)
    env.reset(seed=[episode_seed(0, 1, 0)])
    whole = env.render()[0]
    env.close()
    # a sixth is cut off at the left, 4/15 of two thirds at the top; the goal's ring shows where the rest lies
    places = [np.argwhere(np.abs(shown.astype(int) - RING_COLOUR).max(-1) < 40) for shown in (whole, picture)]
    assert len(places[1]) > 20
    assert np.abs(places[0].mean(0) - [64, 60] - places[1].mean(0)).max() < 1.5
    assert plots[0].quantity == "CAI"


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"out": "a.avi"}, ValueError, r"a\.avi"),
        ({"out": "nameless"}, ValueError, "nameless"),
        ({"seed": 7}, ValueError, r"7.*\[5, 6\]"),
        ({"episodes": 0}, ValueError, "episodes.*got 0"),
        ({"first": -1}, ValueError, "first.*-1"),
        ({"size": 481}, ValueError, "size.*481"),
        ({"size": 100}, ValueError, "size.*100"),
        ({"out": "/proc/x/y.mp4"}, OSError, r"/proc/x/y\.mp4"),
    ],
)
def test_mistakes_are_named_before_anything_is_played(
    runs: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    monkeypatch.setattr(video, "play", None)
    with pytest.raises(error, match=message):
        watch(runs / "with", **changes)


def test_a_folder_in_the_place_of_the_video_is_named(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gif").mkdir()
    with pytest.raises(FileExistsError, match=r"a\.gif is a folder"):
        watch(runs / "with", tmp_path / "a.gif")


def test_a_folder_without_an_agent_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        watch(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        watch(tmp_path / "nothing")


def test_an_agent_of_another_env_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(25, 4, 3\).*slide.*\(4, 1, 1\)"):
        watch(untrained(tmp_path, "slide", (25, 4, 3)))


def test_the_model_file_is_as_good_as_its_folder(runs: Path, tmp_path: Path, plots: list[RecordedEpisode]) -> None:
    watch(runs / "with" / "model.safetensors", tmp_path / "a.gif")
    assert plots[0].quantity == "CAI"


# --- films of a study: what is filmed ------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two runs of a study of three arms, and their films."""
    root = tmp_path_factory.mktemp("root")
    write_study(TINY, root, "paper")
    for label in ("with", "without"):
        run_unit(ARMS[label], root)
    film_study(root, "tiny")
    return root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(trained, tmp_path / "root"))


def folder_of(root: Path, label: str) -> Path:
    return root / unit_name(ARMS[label])


def names(root: Path, label: str) -> set[str]:
    """What a run folder and the root hold that is no part of a run, or a rest."""
    return {path.name for path in (*folder_of(root, label).iterdir(), *root.iterdir())} & {
        "player.json",
        "watch.mp4",
    } | {path.name for path in root.rglob(".*")}


def recorded(
    values: list[float], reached: list[bool] | None = None, size: tuple[int, int] = (40, 40)
) -> RecordedEpisode:
    """An episode whose pictures are grey: as many shades as steps."""
    shades = np.linspace(40, 200, len(values)).astype(int).tolist()
    flags = np.array(reached or [False] * len(values))
    images = [Image.new("RGB", size, (shade, shade, shade)) for shade in shades]
    return RecordedEpisode(images, "CAI", "nats", np.array(values), flags, "place, seed 1, episode 2")


# --- what is filmed ---------------------------------------------------------------------------------


def test_every_trained_arm_has_a_scene_and_a_video(root: Path) -> None:
    for label in ("with", "without"):
        folder = folder_of(root, label)
        assert names(root, label) == {"player.json", "watch.mp4"}
        assert (folder / "watch.mp4").read_bytes()[4:8] == b"ftyp"
        episodes = read_scene(folder / "player.json")["episodes"]
        assert [one["title"].split()[0] for one in episodes] == ["Best", "Typical", "Worst"]
        assert [bool(one["scores"]) for one in episodes] == [label == "with"] * 3


def test_the_best_seed_is_that_of_the_last_evaluation() -> None:
    arm, at = ReadArm("a", Path(), "training", "finished", ""), np.array([1, 2])
    assert video.best_seed(arm) is None  # never evaluated: the agent's first seed
    curve = Curve(at, np.array([[0.9, 0.5], [0.0, 0.8], [0.1, 0.8]]), 2)
    assert video.best_seed(replace(arm, curve=curve, seeds=(7, 8, 9))) == 9  # of two equal ends, more on the way
    held = {"held": Curve(at, np.array([[0.0, 1.0], [0.0, 0.2], [0.0, 0.1]]), 2)}
    arm = replace(arm, curve=curve, seeds=(7, 8, 9), behaviour=held)
    assert video.best_seed(arm) == 8
    alone = {"config": {"use": ["intrinsic"]}}
    assert video.best_seed(replace(arm, config=alone)) == 7  # without a reward for it, success is chance


@pytest.mark.parametrize(
    ("ends", "expected"),
    [([(0, 0), (1, 1), (0, 1), (0, 1)], 2), ([(0, 0), (1, 1), (0, 0), (1, 1)], 1), ([(0, 0), (1, 0)] * 2, 0)],
)
def test_the_episode_is_a_success_that_was_not_given(
    ends: list[tuple[int, int]], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(recorder: Any, number: int, render: bool) -> RecordedEpisode:
        assert not render
        return recorded([0.0] * 3, [bool(ends[number][0]), False, bool(ends[number][1])])

    monkeypatch.setattr(video.Recorder, "record", record)
    recorder: Any = object.__new__(video.Recorder)
    monkeypatch.setattr(video, "TRIED_EPISODES", len(ends))
    assert video.choose_episode(recorder) == expected


def test_the_outcome_is_told_in_words() -> None:
    assert recorded([0.0] * 2, [True, True]).outcome() == "the goal is reached from step 0 on"
    assert recorded([0.0] * 2, [True, False]).outcome() == "the goal is not reached at the end"


# --- called again, stopped, in other hands ----------------------------------------------------------


def test_what_is_newer_than_the_agent_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, made = folder_of(root, "with"), list[str]()
    scene = folder / "player.json"
    monkeypatch.setattr(video, "write_video", lambda path, episodes, recorder: made.append(path.name))
    assert [film.note for film in film_study(root, "tiny")[:2]] == ["kept: newer than the agent"] * 2
    scene.unlink()
    (film, *_) = film_study(root, "tiny")
    assert made == []
    assert film.files == (scene, folder / "watch.mp4")
    first = scene.stat().st_mtime_ns
    later = scene.stat().st_mtime - 10
    os.utime(scene, (later, later))  # training went on
    os.utime(folder / "watch.mp4", (later, later))
    os.utime(folder / "model.safetensors", (later + 5, later + 5))
    film_study(root, "tiny")
    assert made == ["watch.mp4"]
    assert scene.stat().st_mtime_ns > first


@pytest.mark.parametrize("moment", ["Recorder", "write_video", "write_evaluation_scene"])
def test_stopped_at_any_moment_it_leaves_nothing_half_done(
    root: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    for name in ("player.json", "watch.mp4"):
        (folder_of(root, "with") / name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(video, moment, stop)
        with pytest.raises(KeyboardInterrupt):
            film_study(root, "tiny")
    assert names(root, "with") == (set() if moment == "write_evaluation_scene" else {"player.json"})
    if moment == "write_video":
        film_study(root, "tiny")
        assert names(root, "with") == {"player.json", "watch.mp4"}


def test_an_arm_that_another_process_works_on_is_skipped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "GRACE", 0.0)
    (folder_of(root, "with") / "player.json").unlink()
    with locked(folder_of(root, "with")):
        first, second, _ = film_study(root, "tiny")
    assert first.files == ()
    assert f"process {os.getpid()} " in first.note
    assert second.note == "kept: newer than the agent"


def test_what_cannot_be_filmed_is_told_and_keeps_no_other_from_it(root: Path) -> None:
    (folder_of(root, "without") / "model.safetensors").unlink()  # as among result files
    untrained(write_training(root / "blind", [[0.5]]), register(entry_point=Blind), (2, 2, 2))
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    record = read_json(root / "studies" / "tiny.json")
    record["arms"][:0] = [{"label": name, "folder": name, "kind": "training"} for name in ("blind", "broken")]
    record["arms"].append({"label": "table", "folder": "table", "kind": "detection"})
    (root / "studies" / "tiny.json").write_text(json.dumps(record))
    blind, broken, good, bare, absent = film_study(root, "tiny")  # nothing of the detection
    assert "['ansi']" in blind.note
    assert broken.note.startswith("skipped: it cannot be read: ")
    assert len(good.files) == 2
    assert bare.note.startswith("skipped: ")
    assert "model.safetensors" in bare.note
    assert absent == Film("not run", (), "skipped: it has not been run")


def test_without_what_draws_it_says_how_to_get_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder_of(root, "without"))
    for name in ("player.json", "watch.mp4"):
        (folder_of(root, "with") / name).unlink()
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    film = film_study(root, "tiny")[0]
    assert [path.name for path in film.files] == ["player.json"]
    assert "imageio-ffmpeg" in film.note
    assert names(root, "with") == {"player.json"}
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "butfor.reporting.video")
    with pytest.raises(ImportError, match=r"pillow.*butfor\[video\]"):
        importlib.import_module("butfor.reporting.video")


# --- the page and the command -----------------------------------------------------------------------


def test_the_page_shows_all_arms_in_one_player(root: Path) -> None:
    page = write_study_report(root, "tiny").read_text(encoding="utf-8")
    (data,) = re.findall(r'<div class="bf-player"><script type="application/json">(.*?)</script>', page, re.DOTALL)
    titles = [one["title"] for one in json.loads(data)["episodes"]]
    assert [title.split(" of ")[0] for title in titles] == [
        f"{label}: {kind}" for label in ("with", "without") for kind in ("Best", "Typical", "Worst")
    ]
    assert [tag["aria-label"] for tag in Tags(page).named("video")] == [
        f"Episodes of the trained agent: {label}" for label in ("with", "without")
    ]
    (folder_of(root, "with") / "player.json").write_text(json.dumps({"title": HOSTILE}))
    page = write_study_report(root, "tiny").read_text(encoding="utf-8")
    assert "player.json is not a scene" in page
    assert HOSTILE not in page


def test_the_command_makes_films_and_the_page(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(studies.STUDIES, "tiny", TINY)
    films(("tiny",), root=root)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "Films of tiny:"
    assert " ".join(out[1].split()) == "with player.json, watch.mp4; kept: newer than the agent"
    assert " ".join(out[3].split()) == "not run skipped: it has not been run"
    assert (root / "reports" / "tiny.html").is_file()
    write_study(TINY, root, "small")
    films(("tiny-small",), root=root)
    assert "Films of tiny-small:" in capsys.readouterr().out
    with pytest.raises(ValueError, match="nothing"):
        films(root=root / "nothing")


def test_run_and_status_tell_what_is_left_to_another_process(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "GRACE", 0.0)
    monkeypatch.setitem(studies.STUDIES, "tiny", TINY)
    tiny = Selection(("tiny",), root=root)
    with locked(folder_of(root, "not run")):
        run(tiny, device="cpu")
        out = capsys.readouterr().out
        assert "absent, 0 of 10 episodes, " in out
        assert f"process {os.getpid()} on " in out
        assert "not finished: 1" in out
        status(tiny)
        assert f"process {os.getpid()} on " in capsys.readouterr().out
    status(tiny)
    assert f"process {os.getpid()} on " not in capsys.readouterr().out
