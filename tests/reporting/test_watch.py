"""Videos of a briefly trained agent: their frames, what the strip shows of them, and every mistake of a user."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

pytest.importorskip("imageio_ffmpeg", reason="videos need the extra 'video'")

from imageio_ffmpeg import count_frames_and_secs, read_frames
from PIL import Image
from support.small_training import small

import butfor.reporting.watch as module
from butfor.envs import make_vector_env
from butfor.influence.influence import Influence
from butfor.models.dynamics import GaussianDynamics
from butfor.models.networks import make_generators
from butfor.reporting.watch import AREA, PALE_GREEN, Course, draw_strip, watch
from butfor.rollouts.play import episode_seed
from butfor.spaces.actions import ActionLaw
from butfor.training.agents.ddpg import Agent, AgentConfig, load_policy, save_agent
from butfor.training.goal_env import open_goal_env
from butfor.training.loop import train
from butfor.training.settings import preset

Frames = NDArray[np.uint8]
STEPS = 30  # of an episode of slide


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, 5 and 6, with an influence model in the folder `with`, without in `without`."""
    folder, start = tmp_path_factory.mktemp("runs"), preset("slide")
    model = replace(start.model, network=replace(start.model.network, layers=1, width=8), batch_size=32)
    config = replace(
        start, seeds=2, first_seed=5, episodes=6, warmup=4, evaluation_episodes=1, checkpoint_seconds=1e6,
        agent=AgentConfig(layers=1, width=8, updates=2, batch_size=16, normalizer_batches=1),
        model=replace(model, schedule=((10, 30),)),
    )  # fmt: skip
    train(replace(config, influence=("priority",)), folder / "with")
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
def courses(monkeypatch: pytest.MonkeyPatch) -> list[Course]:
    """What `watch` hands to the strip, frame by frame."""
    seen: list[Course] = []

    def draw(course: Course, step: int, width: int) -> Image.Image:
        seen.append(course)
        return draw_strip(course, step, width)

    monkeypatch.setattr(module, "draw_strip", draw)
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
            row = frames[episode * (STEPS + 1) + t, 82]  # through the object, which is green and 8 pixels wide
            green = np.flatnonzero((row[:, 1] - row[:, 0] > 55) & (row[:, 1] - row[:, 2] > 35))
            assert abs(green.mean() + 0.5 - (240 + 40 * states[t, 2])) < 1.5
        rose = np.flatnonzero(row[:, 0] - row[:, 1] > 25)
        assert abs((rose.min() + rose.max()) / 2 - (240 + 40 * goal)) < 5  # the object may cover its edge


def test_the_strip_shows_the_influence_of_the_seeds_own_replica(
    runs: Path, tmp_path: Path, courses: list[Course]
) -> None:
    for replica, seed in enumerate((5, 6)):
        watch(runs / "with", tmp_path / "a.gif", seed=seed, first=2)
        states, goal = states_of(runs / "with", seed, 2)
        expected = Influence.load(runs / "with" / "influence.safetensors", replica=replica).score(states)["object"]
        course = courses[-1]
        np.testing.assert_allclose(course.values, expected, rtol=1e-4, atol=1e-7)
        assert np.array_equal(course.reached, abs(states[:, 2] - np.float32(goal)) <= 0.5)
        assert course.title == f"slide, seed {seed}, episode 2"
        assert course.words(3)[1].startswith("CAI ")
    assert len(courses) == 2 * (STEPS + 1)


@pytest.mark.parametrize("combine", ["max", "agent"])
def test_of_several_entities_the_strip_shows_what_counted_in_training(
    tmp_path: Path, courses: list[Course], combine: str
) -> None:
    entities = ("agent=0", "object=2")
    config = small(influence=("bonus",), entities=entities, combine=combine, episodes=5, first_seed=5)
    run = train(config, tmp_path / "run")
    watch(run, tmp_path / "a.gif")
    scores = Influence.load(run / "influence.safetensors", replica=0).score(states_of(run, 5, 0)[0])
    agent, thing = scores["agent"], scores["object"]
    expected = np.maximum(agent, thing) if combine == "max" else agent
    np.testing.assert_allclose(courses[0].values, expected, rtol=1e-4, atol=1e-7)
    words = "max of agent and object" if combine == "max" else "agent"
    assert courses[0].title == f"slide, seed 5, episode 0; {words}"


def test_without_an_influence_model_the_strip_shows_the_reward_and_says_so(
    runs: Path, tmp_path: Path, courses: list[Course]
) -> None:
    watch(runs / "without", tmp_path / "a.gif")
    states, goal = states_of(runs / "without", 5, 0)
    assert np.array_equal(courses[0].values, np.where(abs(states[:, 2] - np.float32(goal)) <= 0.5, 0, -1))
    assert courses[0].title == "slide, seed 5, episode 0; no influence model in this run"
    assert courses[0].words(0)[:2] == ("step 0", "reward -1.00")


def test_a_gif_has_as_many_frames_and_plays_forever(runs: Path, tmp_path: Path) -> None:
    with Image.open(watch(runs / "with", tmp_path / "a.gif", size=320)) as video:
        assert video.format == "GIF"
        assert (video.n_frames, video.size) == (STEPS + 1, (320, 80 + 80))  # type: ignore[attr-defined]
        assert (video.info["duration"], video.info["loop"]) == (100, 0)


def test_without_ffmpeg_the_default_is_a_gif_and_mp4_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"becomes a \.gif.*imageio-ffmpeg.*butfor\[video\]"):
        path = watch(runs / "with")
    assert path == runs / "with" / "watch.gif"
    path.unlink()
    with pytest.raises(ImportError, match=r"needs imageio-ffmpeg; install it with.*or write a \.gif"):
        watch(runs / "with", runs / "a.mp4")


# --- the strip ------------------------------------------------------------------------------------


def course(values: list[float], reached: list[bool] | None = None) -> Course:
    return Course("CAI", "nats", np.array(values), np.array(reached or [False] * len(values)), "a title")


def count(strip: Image.Image, colour: tuple[int, int, int]) -> NDArray[np.int64]:
    """Pixels of a colour in each column."""
    return np.asarray((np.abs(np.asarray(strip).astype(int) - colour).max(-1) <= 2).sum(0))


def column(step: int, last: int) -> int:
    """The plot of a strip 480 pixels wide goes from 44 to 468."""
    return round(44 + 424 * step / last)


def test_the_words_name_step_influence_and_success() -> None:
    shown = course([0.0] * 17 + [0.831, 1.0], [False] * 17 + [True, False])
    assert shown.words(17) == ("step 17", "CAI 0.83 nats", "goal reached")
    assert shown.words(18) == ("step 18", "CAI 1.00 nats", "")
    assert course([0.0125, 0.05]).words(1) == ("step 1", "CAI 0.050 nats", "")


def test_the_scale_goes_from_zero_to_the_episodes_largest_value() -> None:
    assert course([0.5, 2.0]).scale() == (0, 2)
    assert course([-1.0, 0.0]).scale() == (-1, 0)
    assert course([0.0, 1e-5]).scale() == (0, 0.01)  # noise is not blown up


def test_the_area_is_as_high_as_the_influence_up_to_now() -> None:
    shown = course([1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 0.0, 0.0])
    strips = [draw_strip(shown, step, 480) for step in range(8)]
    for step, strip in enumerate(strips):
        assert strip.size == (480, 120)
        area = count(strip, AREA)
        assert not area[column(step, 7) + 1 :].any()
        # the plot is 58 pixels high, of which the lines at its edges and above the area take some
        for t, share in ((1, 1 / 4), (4, 1)):
            if step > t:
                assert abs(area[column(t, 7)] - 58 * share) < 4
    before, after = (np.asarray(strip)[48:, : column(1, 7)] for strip in strips[2::5])
    assert np.array_equal(before, after)  # what is drawn stays


def test_a_reached_goal_is_marked_when_it_happens() -> None:
    shown = course([1.0] * 11, [False] * 5 + [True] * 3 + [False] * 3)
    for step in range(11):
        green = count(draw_strip(replace(shown, values=np.zeros(11)), step, 480), PALE_GREEN)
        for t in range(11):
            assert (green[column(t, 10)] > 40) == (5 <= t <= min(step, 7))
    words = [np.asarray(draw_strip(shown, step, 480))[:26, 200:] for step in (4, 5)]
    assert (words[0] == 255).all()
    assert (words[1] != 255).any()


def test_an_episode_of_one_state_can_be_drawn() -> None:
    assert not count(draw_strip(course([0.3]), 0, 480), AREA).any()


# --- other worlds ---------------------------------------------------------------------------------


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
    """A world under a new name."""
    id = f"test/Watched{sum('Watched' in known for known in gymnasium.registry)}-v0"
    options: dict[str, Any] = {"entry_point": Walk, "max_episode_steps": 10} | kwargs
    gymnasium.register(id, **options)
    return id


def untrained(folder: Path, world: str, sizes: tuple[int, int, int]) -> Path:
    """A run folder with an agent that has not learned anything."""
    law, random = ActionLaw((-1.0,) * sizes[1], (1.0,) * sizes[1]), make_generators([0])
    agent = Agent(sizes[0] + sizes[2], sizes[1], AgentConfig(layers=1, width=8), random)
    save_agent(folder / "model.safetensors", agent, law, sizes, world, [0])
    return folder


def test_any_world_that_can_be_drawn_can_be_watched(tmp_path: Path, courses: list[Course]) -> None:
    frames = read(watch(untrained(tmp_path, register(), (2, 2, 2)), size=300))
    assert frames.shape == (4, 198 + 74, 300, 3)  # 33 x 50 becomes 198 x 300; the episode ends after three steps
    assert count_frames_and_secs(tmp_path / "watch.mp4")[1] == pytest.approx(4 / 20)
    for t in range(4):
        assert abs(frames[t, 90:100, 140:160].mean() - 60 * t) < 5
    assert courses[0].reached.tolist() == [False, False, False, True]  # the last, because the world says so


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "uint8"])
def test_pictures_of_floats_or_of_other_whole_numbers_are_as_bright(tmp_path: Path, kind: str) -> None:
    picture = np.full((32, 48, 4), 0.6 if kind.startswith("float") else 153, kind)
    run = untrained(tmp_path, register(kwargs={"picture": [picture]}), (2, 2, 2))
    frames = read(watch(run, size=240))
    assert abs(frames[:, 40:120, 60:180].mean() - 153) < 3


def test_a_world_that_a_function_makes_can_be_watched(tmp_path: Path) -> None:
    def make_env(render_mode: str | None = "rgb_array") -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(Walk(render_mode=render_mode), 10)

    run = untrained(tmp_path, "my-world", (2, 2, 2))
    frames = read(watch(run, size=300, make_env=make_env))
    assert frames.shape == (4, 198 + 74, 300, 3)
    with pytest.raises(ValueError, match="my-world cannot be drawn: make_env makes it with render_mode=None; let it"):
        watch(run, make_env=lambda: make_env(None))
    with pytest.raises(ValueError, match=r"no world named 'my-world'.*make_env="):
        watch(run)


@pytest.mark.parametrize(
    ("world", "error", "message"),
    [
        ({"entry_point": Unseen}, ValueError, "Watched.* cannot be drawn: it takes no render_mode='rgb_array'"),
        ({"entry_point": Blind}, ValueError, r"it needs the render mode 'rgb_array', and has \['ansi'\]"),
        ({"kwargs": {"picture": [None]}}, ValueError, r"render\(\) gave None; expected an array \[height, width, 3\]"),
        ({"kwargs": {"picture": [np.zeros((4, 5))]}}, ValueError, r"gave an array \[4, 5\] of float64; expected"),
        ({"kwargs": {"picture": [np.zeros((4, 5, 2))]}}, ValueError, r"gave an array \[4, 5, 2\] of float64; expected"),
        ({"kwargs": {"picture": [np.zeros((0, 5, 3))]}}, ValueError, r"gave an array \[0, 5, 3\] of float64; expected"),
        ({"kwargs": {"picture": [np.zeros((4, 5, 3), bool)]}}, ValueError, r"\[4, 5, 3\] of bool; expected"),
        ({"kwargs": {"picture": [np.full((4, 5, 3), 7.0)]}}, ValueError, r"from 7 to 7; .* floats from 0 to 1"),
        ({"kwargs": {"picture": [np.full((4, 5, 3), np.nan)]}}, ValueError, r"of float64 from nan to nan; expected"),
        ({"kwargs": {"picture": [np.full((4, 5, 3), -1)]}}, ValueError, r"from -1 to -1; .*numbers from 0 to 255"),
        ({"kwargs": {"break_at": 2}}, RuntimeError, r"cannot be drawn \(out of paint\)\. .*MUJOCO_GL=egl"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium warns of these worlds, too
def test_a_world_that_cannot_be_drawn_is_refused(
    world: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        watch(untrained(tmp_path, register(**world), (2, 2, 2)))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]  # nothing half-written


def test_a_fetch_world_is_drawn_around_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, courses: list[Course]
) -> None:
    pytest.importorskip("mujoco")
    from butfor.envs.drawing import RING_COLOUR, open_context

    try:
        open_context(8, 8).free()
    except RuntimeError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(
        module, "open_goal_env", lambda *args, **kwargs: replace(open_goal_env(*args, **kwargs), steps=2)
    )
    untrained(tmp_path, "pick-and-place", (25, 4, 3))
    law, config = ActionLaw((-1.0,) * 4, (1.0,) * 4), preset("pick-and-place").model.network
    model = GaussianDynamics(25, 4, 3, config, make_generators([0]))
    Influence(model, law, {"object": [3, 4, 5]}, [50.0] * 3).save(tmp_path / "influence.safetensors")
    with Image.open(watch(tmp_path, tmp_path / "a.gif", size=240)) as video:
        assert (video.n_frames, video.size) == (3, (240, 240 + 60))  # type: ignore[attr-defined]
        picture = np.asarray(video.convert("RGB"))[:240]
    env: Any = make_vector_env("pick-and-place", 1, render_mode="rgb_array", width=360, height=360)
    env.reset(seed=[episode_seed(0, 1, 0)])
    whole = env.render()[0]
    env.close()
    # a sixth is cut off at the left, 4/15 of two thirds at the top; the goal's ring shows where the rest lies
    places = [np.argwhere(np.abs(shown.astype(int) - RING_COLOUR).max(-1) < 40) for shown in (whole, picture)]
    assert len(places[1]) > 20
    assert np.abs(places[0].mean(0) - [64, 60] - places[1].mean(0)).max() < 1.5
    assert courses[0].quantity == "CAI"


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"out": "a.avi"}, ValueError, r"a\.avi ends in '\.avi'; expected a name that ends in \.mp4 or \.gif"),
        ({"out": "a"}, ValueError, "ends in ''; expected"),
        ({"seed": 7}, ValueError, r"holds the seeds \[5, 6\]; there is no seed 7"),
        ({"episodes": 0}, ValueError, "episodes is 0 and first 0; expected at least 1 episode"),
        ({"first": -1}, ValueError, "episodes is 1 and first -1"),
        ({"size": 481}, ValueError, "size is 481; expected an even number of pixels, at least 240"),
        ({"size": 100}, ValueError, "size is 100"),
        (
            {"out": "/proc/x/y.mp4"},
            OSError,
            r"/proc/x/y.mp4 cannot be written: /proc takes no files \(.*\); give another",
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_played(
    runs: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    monkeypatch.setattr(module, "play", None)
    with pytest.raises(error, match=message):
        watch(runs / "with", **changes)


def test_a_folder_in_the_place_of_the_video_is_named(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gif").mkdir()
    with pytest.raises(FileExistsError, match=r"a\.gif is a folder; give the name of a video\."):
        watch(runs / "with", tmp_path / "a.gif")


def test_a_folder_without_an_agent_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no trained agent: there is no file .*model\.safetensors"):
        watch(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nothing holds no trained agent"):
        watch(tmp_path / "nothing")


def test_an_agent_of_another_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sizes \(25, 4, 3\); those of slide have \(4, 1, 1\)"):
        watch(untrained(tmp_path, "slide", (25, 4, 3)))


def test_the_model_file_is_as_good_as_its_folder(runs: Path, tmp_path: Path, courses: list[Course]) -> None:
    watch(runs / "with" / "model.safetensors", tmp_path / "a.gif")
    assert courses[0].quantity == "CAI"
