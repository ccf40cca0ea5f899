"""A video of a trained agent: its world, and beneath it the influence of its actions as it happens."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from butfor.envs import make_vector_env
from butfor.influence.influence import Influence
from butfor.influence.scoring import combine_scores
from butfor.rollouts.errors import EnvError
from butfor.rollouts.play import Observation, Played, episode_seed, play
from butfor.runs.files import check_place, written
from butfor.runs.record import config_from, read_run
from butfor.training.agents.ddpg import TrainedPolicy, load_policy
from butfor.training.goal_env import GoalEnv, MakeEnv, check_sizes, open_goal_env
from butfor.training.settings import Config

_INSTALL = "install it with: pip install 'butfor[video]'"
try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError as error:
    raise ImportError(f"Videos need pillow; {_INSTALL}.") from error

SMALLEST = 240  # pixels across; narrower, the text could not be read
OVERSIZE = 3  # the strip is drawn this many times as large and reduced, which makes its lines smooth
NARROWEST_SCALE = 0.01  # nats: less than this is not blown up to the height of the strip
PAPER, INK, GREY, FAINT = (255, 255, 255), (30, 30, 30), (110, 110, 110), (214, 214, 214)
LINE, AREA = (28, 92, 171), (170, 200, 235)
GREEN, PALE_GREEN = (20, 125, 60), (212, 240, 218)


@dataclass(frozen=True)
class Course:
    """What the strip shows of an episode: a value, and whether the goal is reached, in each of its T + 1 states."""

    quantity: str
    unit: str
    values: NDArray[np.float64]  # [T + 1]
    reached: NDArray[np.bool_]  # [T + 1]
    title: str

    def words(self, step: int) -> tuple[str, str, str]:
        """What is written at a step: ("step 17", "CAI 0.83 nats", "goal reached")."""
        value = f"{self.quantity} {self.number(self.values[step])} {self.unit}".rstrip()
        return f"step {step}", value, "goal reached" if self.reached[step] else ""

    def number(self, value: float) -> str:
        """Two digits after the point, three where the whole strip is about less than 0.1."""
        low, high = self.scale()
        return f"{value:.{2 if high - low >= 0.1 else 3}f}"

    def scale(self) -> tuple[float, float]:
        """The lowest and the highest number of the strip, the same in all of its pictures."""
        low, high = min(0.0, float(self.values.min())), max(0.0, float(self.values.max()))
        return low, max(high, low + NARROWEST_SCALE)


@dataclass(frozen=True)
class Stage:
    """A world that can be drawn, and one seed's agent to act in it."""

    env: VectorEnv[Any, Any, Any]
    world: GoalEnv
    policy: TrainedPolicy
    influence: Influence | None
    combine: str
    size: int
    """pixels across of a picture"""


@dataclass(frozen=True)
class Scene:
    """One episode: pictures of its T + 1 states, if they were drawn, and what the strip shows of them."""

    pictures: list[Image.Image]
    course: Course


def watch(
    run: Path | str,
    out: Path | str | None = None,
    seed: int | None = None,
    episodes: int = 1,
    first: int = 0,
    size: int = 480,
    *,
    make_env: MakeEnv | None = None,
) -> Path:
    """Draws episodes of a run's trained policy, played as in its evaluation, to a video; gives the video's path.

    `out` ends in .mp4 or .gif (default: watch.mp4 in the run's folder), `seed` is one of the run's (default: its
    first), `first` the number of the first episode, `size` the width in pixels. `make_env` makes one world with
    render_mode="rgb_array", where the run's world is not to be made by name.
    """
    if episodes < 1 or first < 0:
        raise ValueError(f"episodes is {episodes} and first {first}; expected at least 1 episode, numbered from 0.")
    if size < SMALLEST or size % 2:
        raise ValueError(f"size is {size}; expected an even number of pixels, at least {SMALLEST}.")
    path = _video_path(Path(run) if Path(run).is_dir() else Path(run).parent, out)
    with open_stage(run, seed, size, make_env) as stage:
        write_video(path, (play_scene(stage, number) for number in range(first, first + episodes)), stage)
    return path


@contextmanager
def open_stage(
    run: Path | str, seed: int | None = None, size: int = 480, make_env: MakeEnv | None = None
) -> Iterator[Stage]:
    """A run's world, drawn `size` pixels wide, with the trained policy and the influence model of one of its seeds."""
    policy = load_policy(run, seed)
    folder = Path(run) if Path(run).is_dir() else Path(run).parent
    influence = _load_influence(folder, policy)
    several = influence is not None and len(influence.entities) > 1
    combine = config_from(Config, read_run(folder)["config"]).combine if several else "sum"
    # the entity and its scale, which open_goal_env looks for otherwise, do not matter here
    world = open_goal_env(policy.env, entity=(0,), target_scale=1.0, make_env=make_env)
    check_sizes(world, run, policy.sizes)
    with closing(_open_drawn(world, size, make_env is not None)) as env:
        yield Stage(env, world, policy, influence, combine, size)


def draw_strip(course: Course, step: int, width: int) -> Image.Image:
    """The strip at a step: the words, and the values from the first step to this one over the whole episode's width."""
    pixel = width * OVERSIZE / 480  # all measures are those of a strip 480 pixels wide
    strip = Image.new("RGB", (width * OVERSIZE, strip_height(width) * OVERSIZE), PAPER)
    draw = ImageDraw.Draw(strip)
    large, small = (ImageFont.load_default(points * pixel) for points in (15, 11))
    left, right, top, bottom = 44 * pixel, 468 * pixel, 50 * pixel, 108 * pixel

    place = 12 * pixel
    last = len(course.values) - 1
    extremes = (int(course.values.argmin()), int(course.values.argmax()))
    widest = (f"step {last}", max((course.words(t)[1] for t in extremes), key=len), "")  # words keep their place
    for words, space, colour in zip(course.words(step), widest, (INK, LINE, GREEN), strict=True):
        draw.text((place, 6 * pixel), words, colour, large)
        place += draw.textlength(space, large) + 16 * pixel
    draw.text((12 * pixel, 27 * pixel), course.title, GREY, small)

    draw_course(draw, course, step, (left, top, right, bottom), pixel, [step])
    return strip.reduce(OVERSIZE)


def draw_course(
    draw: ImageDraw.ImageDraw,
    course: Course,
    step: int,
    box: tuple[float, float, float, float],
    pixel: float,
    dots: Sequence[int],
) -> None:
    """The values from the first step to this one, in a box whose width is that of the whole episode; dots at steps."""
    left, top, right, bottom = box
    small, last = ImageFont.load_default(11 * pixel), len(course.values) - 1
    low, high = course.scale()
    x = left + (right - left) * np.arange(last + 1) / max(last, 1)
    y = bottom - (bottom - top) * (np.clip(course.values, low, high) - low) / (high - low)
    half = (right - left) / max(last, 1) / 2
    for t in np.flatnonzero(course.reached[: step + 1]):
        draw.rectangle((max(x[t] - half, left), top, min(x[t] + half, right), bottom), PALE_GREEN)
    zero = bottom + (bottom - top) * low / (high - low)
    line = [(float(x[t]), float(y[t])) for t in range(step + 1)]
    if step:
        draw.polygon([(line[0][0], zero), *line, (line[-1][0], zero)], AREA)
    for edge in (top, bottom):
        draw.line((left, edge, right, edge), FAINT, round(pixel))
    draw.line(line, LINE, round(2 * pixel), joint="curve")
    radius = 3.5 * pixel
    for across, down in (line[t] for t in dots):
        draw.ellipse((across - radius, down - radius, across + radius, down + radius), LINE)
    for number, height in ((high, top), (low, bottom)):
        label = course.number(number).rstrip("0").rstrip(".")
        draw.text((left - 5 * pixel, height), label, GREY, small, anchor="rm")
    draw.text((left - 5 * pixel, (top + bottom) / 2), course.unit, GREY, small, anchor="rm")


def strip_height(width: int) -> int:
    """A quarter of the width, even."""
    return width // 8 * 2


def _video_path(folder: Path, out: Path | str | None) -> Path:
    """Where the video goes; refuses what cannot be written before anything is played."""
    missing = find_spec("imageio_ffmpeg") is None
    if out is None and missing:
        warnings.warn(f"The video becomes a .gif, for .mp4 needs imageio-ffmpeg; {_INSTALL}.", stacklevel=3)
    path = folder / ("watch.gif" if missing else "watch.mp4") if out is None else Path(out)
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise ValueError(f"The video {path} ends in {path.suffix!r}; expected a name that ends in .mp4 or .gif.")
    if missing and path.suffix.lower() == ".mp4":
        raise ImportError(f"A video of .mp4 needs imageio-ffmpeg; {_INSTALL}, or write a .gif.")
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder; give the name of a video.")
    check_place(path)
    return path


def _load_influence(folder: Path, policy: TrainedPolicy) -> Influence | None:
    """The influence model of one seed, where the run has any."""
    path = folder / "influence.safetensors"
    if not path.is_file():
        return None
    return Influence.load(path, replica=policy.seeds.index(policy.seed))


def _open_drawn(world: GoalEnv, size: int, made: bool) -> VectorEnv[Any, Any, Any]:
    """One world that can be drawn; the Fetch worlds draw larger than needed, so that they can be cut.

    One that a function of the user's has `made` draws as that says.
    """
    name, options = world.name, {"width": size * 3 // 2, "height": size * 3 // 2} if world.is_fetch else {}
    try:
        env = world.make(1) if made else make_vector_env(name, 1, render_mode="rgb_array", **options)
    except (TypeError, gymnasium.error.Error) as error:
        raise ValueError(f"{name} cannot be drawn: it takes no render_mode='rgb_array' ({error}).") from error
    modes = env.metadata.get("render_modes") or []
    if "rgb_array" not in modes:
        env.close()
        raise ValueError(f"{name} cannot be drawn: it needs the render mode 'rgb_array', and has {list(modes)}.")
    if made and env.render_mode != "rgb_array":
        env.close()
        text = f"{name} cannot be drawn: make_env makes it with render_mode={env.render_mode!r}"
        raise ValueError(f"{text}; let it make one with render_mode='rgb_array'.")
    return env


def _picture(env: VectorEnv[Any, Any, Any], world: GoalEnv, size: int) -> Image.Image:
    """The world now, `size` pixels wide and an even number high; of the Fetch worlds, what is around the table."""
    name = world.name
    try:
        drawn: Any = env.render()
    except Exception as error:  # each world fails in its own way
        hint = "" if world.is_fetch else " Where there is no screen, worlds of MuJoCo need MUJOCO_GL=egl."
        raise EnvError(f"{name} cannot be drawn ({error}).{hint}") from error
    array = _colours(np.asarray(None if drawn is None else drawn[0]), name)
    if world.is_fetch:
        top, left = size * 4 // 15, size // 4
        array = array[top : top + size, left : left + size]
    picture = Image.fromarray(array)
    height = max(round(picture.height * size / picture.width / 2) * 2, 2)
    return picture if picture.size == (size, height) else picture.resize((size, height), Image.Resampling.LANCZOS)


def _colours(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """What a world's render() gave, as red, green and blue from 0 to 255: [height, width, 3]."""
    given = array.item() if array.ndim == 0 else f"an array {list(array.shape)} of {array.dtype}"
    if array.ndim == 3 and array.shape[2] in (3, 4) and array.size and array.dtype.kind in "fiu":
        is_float, low, high = array.dtype.kind == "f", array.min(), array.max()
        if low >= 0 and high <= (1 if is_float else 255):
            return (array[..., :3] * 255 + 0.5 if is_float else array[..., :3]).astype(np.uint8)
        given = f"{given} from {low:g} to {high:g}"
    text = "whole numbers from 0 to 255 or of floats from 0 to 1"
    raise ValueError(
        f"{name} cannot be drawn: its render() gave {given}; expected an array [height, width, 3] of {text}."
    )


def play_scene(stage: Stage, number: int, drawn: bool = True) -> Scene:
    """Plays one episode with the trained policy, as in the run's evaluation."""
    pictures: list[Image.Image] = []

    def look() -> None:
        if drawn:
            pictures.append(_picture(stage.env, stage.world, stage.size))

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        look()
        return stage.policy(obs), np.zeros(1, dtype=bool)

    played = play([stage.env], act, [episode_seed(stage.policy.seed, 1, number)], stage.world.steps)
    look()  # play leaves a finished world as it is
    title = f"{stage.world.name}, seed {stage.policy.seed}, episode {number}"
    course = _course(played, stage.world, stage.influence, stage.combine, title)
    return Scene(pictures[: len(course.values)], course)


def _frames(scene: Scene, size: int) -> Iterator[Image.Image]:
    """A frame for each state of an episode: its picture, and the strip up to there."""
    for step, picture in enumerate(scene.pictures):
        frame = Image.new("RGB", (size, picture.height + strip_height(size)), PAPER)
        frame.paste(picture, (0, 0))
        frame.paste(draw_strip(scene.course, step, size), (0, picture.height))
        yield frame


def _course(played: Played, world: GoalEnv, influence: Influence | None, combine: str, title: str) -> Course:
    """CAI of each state, or its reward where there is no influence model; the goal is reached where the reward is 0.

    Of several entities, the CAI is what the agent was trained with: their sum or maximum, or that of one by name.
    """
    episodes, states = played.episodes, int(played.episodes.length[0]) + 1
    goals = (torch.from_numpy(goal[0, :states]) for goal in (episodes.achieved_goal, episodes.desired_goal))
    reward = world.reward(*goals).double().numpy()
    reached = reward >= 0
    reached[-1] |= played.success[0]
    if influence is None:
        return Course("reward", "", reward, reached, f"{title}; no influence model in this run")
    scores = influence.score(episodes.observation[0, :states])
    if combine in scores:
        scores = {combine: scores[combine]}
    values = combine_scores(torch.from_numpy(np.stack(list(scores.values()), -1)), combine)  # [T + 1, J] -> [T + 1]
    if len(influence.entities) > 1:
        title += f"; {combine if len(scores) == 1 else f'{combine} of ' + ' and '.join(scores)}"
    return Course("CAI", "nats", values.double().numpy(), reached, title)


def write_video(path: Path, scenes: Iterable[Scene], stage: Stage) -> None:
    """A video of scenes as they come: .gif by pillow, .mp4 by ffmpeg."""
    fps = float(stage.env.metadata.get("render_fps") or 30)
    frames = (frame for scene in scenes for frame in _frames(scene, stage.size))
    opening = next(frames)
    with written(path) as temporary:
        if path.suffix.lower() == ".gif":
            opening.save(temporary, "GIF", save_all=True, append_images=frames, duration=round(1000 / fps), loop=0)
            return
        from imageio_ffmpeg import write_frames

        # the format is named because the temporary name does not show it; faststart lets a browser play while it loads
        options = ["-f", "mp4", "-movflags", "+faststart"]
        with closing(
            write_frames(temporary, opening.size, fps=fps, codec="libx264", macro_block_size=2, output_params=options)
        ) as video:
            video.send(None)  # starts it
            for frame in chain([opening], frames):
                video.send(frame.tobytes())
