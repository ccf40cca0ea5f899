"""Videos of trained agents, and what the page of a study shows of them.

`watch` writes a video of one run: the environment, and below it a panel with the influence of the actions up to now.
`film_study` writes the scene of the player and such a video for every trained arm of a study.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from butfor.analysis.arms import ReadArm, read_study
from butfor.envs import make_vector_env
from butfor.influence.influence import Influence
from butfor.influence.scoring import combine_scores
from butfor.rollouts.play import EnvError, Observation, Progress, Stream, episode_seed, play
from butfor.runs.config import config_from
from butfor.runs.files import atomic_write, check_writable
from butfor.runs.locks import locked
from butfor.runs.reading import read_run
from butfor.scenes.evaluation import write_evaluation_scene
from butfor.scenes.scene import SCENE_FILE
from butfor.training.agents.policy import load_policy
from butfor.training.goal_env import MakeEnv, open_goal_env
from butfor.training.settings import Config

INSTALL = "install it with: pip install 'butfor[video]'"
try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError as error:
    raise ImportError(f"Videos need pillow; {INSTALL}.") from error

MIN_WIDTH = 240  # pixels of a video; the text of a narrower one could not be read
OVERSAMPLING = 3  # plots are drawn this many times as large and reduced, which makes their lines smooth
MIN_SCALE = 0.01  # nats; smaller values are not stretched to the height of the plot
WHITE = (255, 255, 255)
BLACK = (30, 30, 30)
GREY = (110, 110, 110)
LIGHT_GREY = (214, 214, 214)
BLUE = (28, 92, 171)
LIGHT_BLUE = (170, 200, 235)
GREEN = (20, 125, 60)
LIGHT_GREEN = (212, 240, 218)

VIDEO_FILE = "watch.mp4"
TRIED_EPISODES = 10  # among which a successful one is chosen for the video


@dataclass(frozen=True)
class RecordedEpisode:
    """Images of an episode, a value in each of its T + 1 states, and whether the goal is reached there."""

    images: list[Image.Image]  # T + 1, or none
    quantity: str
    unit: str
    values: NDArray[np.float64]  # [T + 1]
    reached: NDArray[np.bool_]  # [T + 1]
    title: str

    def texts(self, step: int) -> tuple[str, str, str]:
        """The texts above the plot at a step: ("step 17", "CAI 0.83 nats", "goal reached")."""
        value = f"{self.quantity} {self.format(self.values[step])} {self.unit}".rstrip()
        return f"step {step}", value, "goal reached" if self.reached[step] else ""

    def format(self, value: float) -> str:
        """A number with two decimals, or three where the whole scale is below 0.1."""
        low, high = self.scale()
        return f"{value:.{2 if high - low >= 0.1 else 3}f}"

    def scale(self) -> tuple[float, float]:
        """The ends of the value axis, the same for all steps of the episode."""
        low = min(0.0, float(self.values.min()))
        high = max(0.0, float(self.values.max()))
        return low, max(high, low + MIN_SCALE)

    def outcome(self) -> str:
        """How the episode ends, in words."""
        if not self.reached[-1]:
            return "the goal is not reached at the end"
        return f"the goal is reached from step {max(np.flatnonzero(~self.reached), default=-1) + 1} on"


class Recorder:
    """Plays and renders evaluation episodes of one seed of a run; close it at the end."""

    def __init__(
        self, run: Path | str, seed: int | None = None, width: int = 480, make_env: MakeEnv | None = None
    ) -> None:
        """Open the environment, the trained policy and the influence model; images are `width` pixels wide."""
        self.width = width
        self.policy = policy = load_policy(run, seed)
        folder = _run_folder(run)
        weights = folder / "influence.safetensors"
        self.influence = Influence.load(weights, replica=policy.seeds.index(policy.seed)) if weights.is_file() else None
        several = self.influence is not None and len(self.influence.entities) > 1
        # how CAI of several entities is combined: their sum or maximum, or one of them by name
        self.combine = config_from(Config, read_run(folder)["config"]).combine if several else "sum"
        # the entity and its scale, which open_goal_env finds by playing otherwise, are not used here
        self.goal_env = open_goal_env(policy.env, entities=["any=0"], target_scale=1.0, make_env=make_env)
        self.goal_env.check_sizes(run, policy.sizes)
        self.crop = self.goal_env.facts is not None and self.goal_env.facts.drawing == "robot"  # to its table
        options: dict[str, Any] = {"width": width * 3 // 2, "height": width * 3 // 2} if self.crop else {}
        lack = f"{policy.env} cannot be rendered with render_mode='rgb_array'"
        try:
            if make_env is None:
                self.env = make_vector_env(policy.env, 1, render_mode="rgb_array", **options)
            else:
                self.env = self.goal_env.make(1)
        except (TypeError, gymnasium.error.Error) as error:
            raise ValueError(f"{lack} ({error}).") from error
        modes = list(self.env.metadata.get("render_modes") or [])
        if self.env.render_mode != "rgb_array" or "rgb_array" not in modes:
            self.close()
            mode = self.env.render_mode
            raise ValueError(f"{lack}: it was made with render_mode={mode!r} and has the modes {modes}.")

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def record(self, number: int, render: bool = True) -> RecordedEpisode:
        """Play the episode with this number as in the run's evaluation."""
        images: list[Image.Image] = []

        def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
            if render:
                images.append(self._render())
            return self.policy(obs), np.zeros(1, dtype=bool)

        played = play([self.env], act, [episode_seed(self.policy.seed, Stream.EVALUATION, number)], self.goal_env.steps)
        if render:
            images.append(self._render())  # play does not reset a finished environment
        episodes = played.episodes
        states = int(episodes.length[0]) + 1
        goals = (torch.from_numpy(goal[0, :states]) for goal in (episodes.achieved_goal, episodes.desired_goal))
        reward = self.goal_env.reward(*goals).double().numpy()
        reached = reward >= 0
        reached[-1] |= played.success[0]
        title = f"{self.goal_env.name}, seed {self.policy.seed}, episode {number}"
        if self.influence is None:
            title += "; no influence model in this run"
            return RecordedEpisode(images[:states], "reward", "", reward, reached, title)
        scores = self.influence.score(episodes.observation[0, :states])
        if self.combine in scores:
            scores = {self.combine: scores[self.combine]}
        stacked = torch.from_numpy(np.stack(list(scores.values()), -1))  # [T + 1, J]
        values = combine_scores(stacked, self.combine).double().numpy()  # [T + 1]
        if len(self.influence.entities) > 1:
            title += f"; {self.combine}" + (f" of {' and '.join(scores)}" if len(scores) > 1 else "")
        return RecordedEpisode(images[:states], "CAI", "nats", values, reached, title)

    def _render(self) -> Image.Image:
        """The current state, `width` pixels wide and an even number high."""
        name = self.goal_env.name
        try:
            rendered: Any = self.env.render()
        except Exception as error:  # each environment fails in its own way
            hint = "" if self.crop else " Without a screen, MuJoCo environments need MUJOCO_GL=egl."
            raise EnvError(f"{name} cannot be rendered ({error}).{hint}") from error
        array = _to_rgb(np.asarray(None if rendered is None else rendered[0]), name)
        if self.crop:
            top = self.width * 4 // 15
            left = self.width // 4
            array = array[top : top + self.width, left : left + self.width]
        image = Image.fromarray(array)
        size = (self.width, max(round(image.height * self.width / image.width / 2) * 2, 2))
        return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


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
    """Write a video of a run's trained policy, playing the episodes of its evaluation.

    Args:
        run: Run folder, or the model.safetensors in it.
        out: Path of the video, .mp4 or .gif; by default watch.mp4 in the run folder.
        seed: One of the run's seeds; by default its first.
        episodes: Number of episodes, one after the other.
        first: Number of the first episode.
        size: Width of the video in pixels.
        make_env: Makes one environment with render_mode="rgb_array"; by default it is made by its name.

    Returns:
        The path of the video.
    """
    if episodes < 1 or first < 0:
        raise ValueError(f"episodes must be at least 1 and first at least 0; got {episodes} and {first}.")
    if size < MIN_WIDTH or size % 2:
        raise ValueError(f"size must be an even number of pixels, at least {MIN_WIDTH}; got {size}.")
    path = _video_path(_run_folder(run), out)
    with closing(Recorder(run, seed, size, make_env)) as recorder:
        write_video(path, (recorder.record(number) for number in range(first, first + episodes)), recorder)
    return path


def write_video(path: Path, recorded: Iterable[RecordedEpisode], recorder: Recorder) -> None:
    """Write a video of episodes as they are recorded."""
    frames = chain.from_iterable(_video_frames(episode, recorder.width) for episode in recorded)
    write_frames(path, frames, float(recorder.env.metadata.get("render_fps") or 30))


def write_frames(path: Path, frames: Iterator[Image.Image], fps: float) -> None:
    """Write frames as they are drawn: .gif by pillow, .mp4 by ffmpeg."""
    opening = next(frames)
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".gif":
            opening.save(temporary, "GIF", save_all=True, append_images=frames, duration=round(1000 / fps), loop=0)
            return
        import imageio_ffmpeg

        # the temporary name does not show the format; faststart lets a browser play while it loads
        options = ["-f", "mp4", "-movflags", "+faststart"]
        settings = {"fps": fps, "codec": "libx264", "macro_block_size": 2, "output_params": options}
        with closing(imageio_ffmpeg.write_frames(temporary, opening.size, **settings)) as video:
            video.send(None)  # starts ffmpeg
            for frame in chain([opening], frames):
                video.send(frame.tobytes())


def draw_panel(episode: RecordedEpisode, step: int, width: int) -> Image.Image:
    """The panel below the image of a step: texts, and the plot up to this step."""
    pixel = width * OVERSAMPLING / 480  # all lengths are those of a panel 480 pixels wide
    panel = Image.new("RGB", (width * OVERSAMPLING, panel_height(width) * OVERSAMPLING), WHITE)
    draw = ImageDraw.Draw(panel)
    large, small = (ImageFont.load_default(points * pixel) for points in (15, 11))
    for text, left, colour in zip(episode.texts(step), (12, 92, 236), (BLACK, BLUE, GREEN), strict=True):
        draw.text((left * pixel, 6 * pixel), text, colour, large)
    draw.text((12 * pixel, 27 * pixel), episode.title, GREY, small)
    draw_plot(draw, episode, step, (44 * pixel, 50 * pixel, 468 * pixel, 108 * pixel), pixel)
    return panel.reduce(OVERSAMPLING)


def draw_plot(
    draw: ImageDraw.ImageDraw,
    episode: RecordedEpisode,
    step: int,
    box: tuple[float, float, float, float],
    pixel: float,
) -> None:
    """Draw the values up to a step into a box as wide as the whole episode, with a dot at the step."""
    left, top, right, bottom = box
    font = ImageFont.load_default(11 * pixel)
    last = len(episode.values) - 1
    low, high = episode.scale()
    x = left + (right - left) * np.arange(last + 1) / max(last, 1)
    y = bottom - (bottom - top) * (np.clip(episode.values, low, high) - low) / (high - low)
    half = (right - left) / max(last, 1) / 2
    for t in np.flatnonzero(episode.reached[: step + 1]):
        draw.rectangle((max(x[t] - half, left), top, min(x[t] + half, right), bottom), LIGHT_GREEN)
    zero = bottom + (bottom - top) * low / (high - low)
    line = [(float(x[t]), float(y[t])) for t in range(step + 1)]
    if step:
        draw.polygon([(line[0][0], zero), *line, (line[-1][0], zero)], LIGHT_BLUE)
    for edge in (top, bottom):
        draw.line((left, edge, right, edge), LIGHT_GREY, round(pixel))
    draw.line(line, BLUE, round(2 * pixel), joint="curve")
    radius = 3.5 * pixel
    across, down = line[step]
    draw.ellipse((across - radius, down - radius, across + radius, down + radius), BLUE)
    for number, height in ((high, top), (low, bottom)):
        label = episode.format(number).rstrip("0").rstrip(".")
        draw.text((left - 5 * pixel, height), label, GREY, font, anchor="rm")
    draw.text((left - 5 * pixel, (top + bottom) / 2), episode.unit, GREY, font, anchor="rm")


def _video_frames(episode: RecordedEpisode, width: int) -> Iterator[Image.Image]:
    """A frame for each state of an episode: its image, and the panel below."""
    for step, image in enumerate(episode.images):
        frame = Image.new("RGB", (width, image.height + panel_height(width)), WHITE)
        frame.paste(image, (0, 0))
        frame.paste(draw_panel(episode, step, width), (0, image.height))
        yield frame


def panel_height(width: int) -> int:
    """A quarter of the width, even."""
    return width // 8 * 2


def _run_folder(run: Path | str) -> Path:
    return Path(run) if Path(run).is_dir() else Path(run).parent


def _video_path(folder: Path, out: Path | str | None) -> Path:
    """The path of the video; paths that cannot be written are refused before anything is played."""
    has_ffmpeg = find_spec("imageio_ffmpeg") is not None
    if out is None and not has_ffmpeg:
        warnings.warn(f"Writing a .gif, because .mp4 needs imageio-ffmpeg; {INSTALL}.", stacklevel=3)
    return film_path(out or folder / (VIDEO_FILE if has_ffmpeg else "watch.gif"))


def film_path(out: Path | str) -> Path:
    """The path of a video; one that cannot be written is refused."""
    path = Path(out)
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise ValueError(f"A video must end in .mp4 or .gif; got {path}.")
    if path.suffix.lower() == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise ImportError(f"{path} needs imageio-ffmpeg; {INSTALL}, or write a .gif.")
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder; expected the path of a video.")
    check_writable(path)
    return path


def _to_rgb(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """What render() returned as red, green and blue from 0 to 255: [height, width, 3]."""
    brightest = {"f": 1, "i": 255, "u": 255}.get(array.dtype.kind, 0)
    is_image = brightest and array.ndim == 3 and array.shape[2] in (3, 4) and array.size
    if is_image and 0 <= array.min() <= array.max() <= brightest:
        return (array[..., :3] * 255 + 0.5 if brightest == 1 else array[..., :3]).astype(np.uint8)
    given = array.item() if array.ndim == 0 else f"an array {list(array.shape)} of {array.dtype}"
    if brightest and array.size:
        given = f"{given} from {array.min():g} to {array.max():g}"
    raise ValueError(
        f"{name} cannot be rendered: render() returned {given}; expected an array [height, width, 3] of integers from "
        "0 to 255 or floats from 0 to 1."
    )


# The agents of a study


@dataclass(frozen=True)
class Film:
    """The films of one arm of a study: the files that exist now, and a note on how they came about."""

    label: str
    files: tuple[Path, ...]
    note: str


def film_study(root: Path | str, name: str, progress: Progress = lambda stage, done, total, text: None) -> list[Film]:
    """Write player.json, and watch.mp4 where ffmpeg is installed, for every training arm with a trained agent.

    Files newer than the agent are kept. An arm that cannot be filmed gets a note, and the others are filmed.
    """
    films = []
    arms = [arm for arm in read_study(Path(root), name).arms if arm.kind == "training"]
    for number, arm in enumerate(arms):
        progress("films", number, len(arms), arm.label)
        try:
            films.append(film_arm(arm))
        except (ImportError, ValueError, RuntimeError, OSError) as error:  # also: another process has the lock
            films.append(Film(arm.label, (), f"skipped: {error}"))
    if arms:
        progress("films", len(arms), len(arms), "done")
    return films


def film_arm(arm: ReadArm) -> Film:
    """Write the films of one arm that are missing or older than its agent."""
    agent = arm.folder / "model.safetensors"
    if arm.state in ("not run", "broken"):
        return Film(arm.label, (), f"skipped: it {arm.words}")
    if not agent.is_file():
        return Film(arm.label, (), f"skipped: {arm.folder} contains results, but no trained agent ({agent.name})")
    files: tuple[Path, ...] = (arm.folder / SCENE_FILE,)
    missing = f"; no video: it needs imageio-ffmpeg, {INSTALL}"
    if find_spec("imageio_ffmpeg") is not None:
        files += (arm.folder / VIDEO_FILE,)
        missing = ""
    due = [path for path in files if not path.is_file() or path.stat().st_mtime_ns < agent.stat().st_mtime_ns]
    if not due:
        return Film(arm.label, files, f"kept: newer than the agent{missing}")
    note = "the best, a typical and the worst episode"
    with locked(arm.folder):
        write_evaluation_scene(arm.folder)  # unless it is newer than the agent
        if arm.folder / VIDEO_FILE in due:
            with closing(Recorder(arm.folder, best_seed(arm))) as recorder:
                episode = recorder.record(choose_episode(recorder))
                write_video(arm.folder / VIDEO_FILE, [episode], recorder)
                note = f"{episode.title}: {episode.outcome()}"
    return Film(arm.label, files, f"{note}{missing}")


def best_seed(arm: ReadArm) -> int | None:
    """The seed with the highest success at the last evaluation; of equal ones, that which does most to the object.

    Where influence is the only reward, success is chance, and only what is done to the object counts.
    """
    if arm.curve is None:
        return None
    behaviour = sum((curve.success[:, -1] for curve in arm.behaviour.values()), np.zeros(len(arm.seeds)))
    intrinsic = "intrinsic" in ((arm.config.get("config") or {}).get("use") or [])
    success = 0 * behaviour if intrinsic else arm.curve.success[:, -1]
    order = np.lexsort((-arm.curve.success.mean(1), -behaviour, -success))
    return arm.seeds[int(order[0])]


def choose_episode(recorder: Recorder) -> int:
    """The first episode that ends at a goal not reached from the start; else any success, else the first."""
    success = None
    for number in range(TRIED_EPISODES):
        reached = recorder.record(number, render=False).reached  # rendering takes most of the time
        if reached[-1] and not reached[0]:
            return number
        if reached[-1] and success is None:
            success = number
    return success or 0
