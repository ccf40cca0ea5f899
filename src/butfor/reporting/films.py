"""Films for a study's page: of each arm's best seed a strip of frames, and the video of `butfor watch`."""

from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np

from butfor.analysis.arms import ReadArm, read_study
from butfor.reporting.watch import (
    FAINT,
    GREEN,
    GREY,
    INK,
    OVERSIZE,
    PAPER,
    Scene,
    Stage,
    draw_course,
    open_stage,
    play_scene,
    write_video,
)
from butfor.rollouts.play import Progress
from butfor.runs.files import written
from butfor.runs.locks import locked

try:
    from PIL import Image, ImageDraw, ImageFont
    from PIL.PngImagePlugin import PngInfo
except ImportError as error:
    raise ImportError("Films need pillow; install it with: pip install 'butfor[video]'.") from error

STRIP, VIDEO = "strip.png", "watch.mp4"
NO_VIDEO = "; no video, which needs imageio-ffmpeg: pip install 'butfor[video]'"
TRIES = 10  # episodes among which a successful one is looked for
FRAMES = 8
WIDTH, GAP = 160, 6  # pixels of a frame, and between two
TALLEST = 200  # pixels of a frame
WIDE = 2  # a picture this many times as wide as high is drawn larger, in two rows
LABEL, PLOT, TITLE = 30, 120, 30  # pixels: heights of what is above, under and below the frames
POINTS = 20  # of text: half of it, on a phone, can still be read
MOST_BYTES = 150_000


@dataclass(frozen=True)
class Film:
    """What became of an arm: the files that are there now, and a sentence."""

    label: str
    files: tuple[Path, ...]
    words: str


def film_study(root: Path | str, name: str, progress: Progress = lambda stage, done, total, text: None) -> list[Film]:
    """strip.png, and watch.mp4 where ffmpeg is there, in every training arm's folder that holds a trained agent.

    What is newer than the agent is kept. An arm that cannot be filmed is told of and keeps no other from it.
    """
    films, arms = list[Film](), [arm for arm in read_study(Path(root), name).arms if arm.kind == "training"]
    for number, arm in enumerate(arms):
        progress("films", number, len(arms), arm.label)
        try:
            films.append(film_arm(arm))
        except (ImportError, ValueError, RuntimeError, OSError) as error:  # not there, not drawn, or in other hands
            films.append(Film(arm.label, (), f"skipped: {error}"))
    if arms:
        progress("films", len(arms), len(arms), "done")
    return films


def film_arm(arm: ReadArm) -> Film:
    """The films of one arm, those that are missing or older than its agent made anew."""
    folder, agent = arm.folder, arm.folder / "model.safetensors"
    if arm.state in ("not run", "broken"):
        return Film(arm.label, (), f"skipped: it {arm.words}")
    if not agent.is_file():
        return Film(arm.label, (), f"skipped: {folder} holds results, but no trained agent (model.safetensors)")
    has_video = find_spec("imageio_ffmpeg") is not None
    wanted, lack = (folder / STRIP, *[folder / VIDEO] * has_video), "" if has_video else NO_VIDEO
    if all(_is_newer(path, agent) for path in wanted):
        return Film(arm.label, wanted, f"kept: newer than the agent{lack}")
    with locked(folder), open_stage(folder, best_seed(arm)) as stage:
        scene = play_scene(stage, choose_episode(stage))
        for path in (path for path in wanted if not _is_newer(path, agent)):
            if path.name == STRIP:
                write_strip(path, scene)
            else:
                write_video(path, [scene], stage)
    return Film(arm.label, wanted, f"{scene.course.title}: {_end(scene)}{lack}")


def best_seed(arm: ReadArm) -> int | None:
    """The seed of the highest success at the last evaluation; of equal ones, the one that does most to the object.

    Where influence is the only reward, success is chance: then only what it does to the object counts.
    """
    if arm.curve is None:
        return None
    deeds = sum((curve.success[:, -1] for curve in arm.behaviour.values()), np.zeros(len(arm.seeds)))
    alone = "intrinsic" in ((arm.config.get("config") or {}).get("influence") or [])
    end = 0 * deeds if alone else arm.curve.success[:, -1]
    order = np.lexsort((-arm.curve.success.mean(1), -deeds, -end))
    return arm.seeds[int(order[0])]


def choose_episode(stage: Stage, tries: int = TRIES) -> int:
    """The first episode that ends at a goal which was not reached from the start; else any success, else the first."""
    lucky = None
    for number in range(tries):
        reached = play_scene(stage, number, drawn=False).course.reached  # pictures take most of the time
        if reached[-1] and not reached[0]:
            return number
        lucky = number if reached[-1] and lucky is None else lucky
    return lucky or 0


def draw_frames(scene: Scene, count: int = FRAMES) -> Image.Image:
    """Frames of an episode at even steps, side by side, and under them the influence of every step, where known."""
    last = len(scene.pictures) - 1
    steps = np.unique(np.linspace(0, last, count).round().astype(int)).tolist()
    wide, high = scene.pictures[0].size
    columns = count // 2 if wide >= WIDE * high else count
    width = (WIDTH + GAP) * count // columns - GAP
    height = min(round(high * width / wide), TALLEST)
    drawn = (min(width, round(wide * height / high)), height)
    rows, has_plot = -(-len(steps) // columns), scene.course.quantity == "CAI"
    row = LABEL + height + GAP
    size = (columns * (width + GAP) - GAP, rows * row + has_plot * PLOT + TITLE)
    strip, font = Image.new("RGB", size, PAPER), ImageFont.load_default(POINTS)
    draw = ImageDraw.Draw(strip)
    for place, step in enumerate(steps):
        left, top = place % columns * (width + GAP), place // columns * row
        colour = GREEN if scene.course.reached[step] else INK
        draw.text((left + width / 2, top + LABEL / 2), f"step {step}", colour, font, anchor="mm")
        picture = scene.pictures[step].resize(drawn, Image.Resampling.LANCZOS)
        strip.paste(picture, (left + (width - picture.width) // 2, top + LABEL))
        if scene.course.reached[step]:
            draw.rectangle((left, top + LABEL + height, left + width - 1, top + LABEL + height + 3), GREEN)
    if has_plot:
        strip.paste(_draw_influence(scene, steps, (size[0], PLOT), WIDTH / 2), (0, rows * row))
    text = f"{scene.course.title}{'; the curve is CAI' if has_plot else ''}"
    text += "; green: the goal is reached" if scene.course.reached.any() else ""
    draw.text((GAP, size[1] - TITLE / 2), text, GREY, font, anchor="lm")
    return strip


def describe(scene: Scene) -> str:
    """What a strip shows, for those who do not see it."""
    course, text = scene.course, f"Frames of an episode of {scene.course.title}. {_end(scene).capitalize()}."
    if course.quantity != "CAI":
        return text
    top = int(course.values.argmax())
    return f"{text} The influence of its actions is largest at step {top}: {course.words(top)[1]}."


def write_strip(path: Path, scene: Scene) -> None:
    """The strip as a PNG with few enough colours to be small, whole or absent; its description travels in it."""
    strip, text = draw_frames(scene), PngInfo()
    text.add_text("Description", describe(scene))
    for colours in (256, 128, 64, 32, 16, 8):
        content = BytesIO()
        few = strip.quantize(colours, Image.Quantize.FASTOCTREE)  # which keeps rare colours, such as the goal's
        few.save(content, "PNG", optimize=True, pnginfo=text)
        if len(content.getvalue()) <= MOST_BYTES:
            break
    with written(path) as temporary:
        temporary.write_bytes(content.getvalue())


def _draw_influence(scene: Scene, steps: list[int], size: tuple[int, int], margin: float) -> Image.Image:
    """The influence over the whole episode; of one row of frames, each step lies under the middle of its frame."""
    plot = Image.new("RGB", (size[0] * OVERSIZE, size[1] * OVERSIZE), PAPER)
    draw, last = ImageDraw.Draw(plot), len(scene.course.values) - 1
    left, right = margin * OVERSIZE, (size[0] - margin) * OVERSIZE
    top, bottom = 14 * OVERSIZE, (size[1] - 14) * OVERSIZE
    for step in steps:
        x = left + (right - left) * step / max(last, 1)
        draw.line((x, 0, x, bottom), FAINT, 2 * OVERSIZE)
    draw_course(draw, scene.course, last, (left, top, right, bottom), POINTS * OVERSIZE / 11, steps)
    return plot.reduce(OVERSIZE)


def _end(scene: Scene) -> str:
    """How the episode ends, in words."""
    reached = scene.course.reached
    if not reached[-1]:
        return "the goal is not reached at the end"
    return f"the goal is reached from step {max(np.flatnonzero(~reached), default=-1) + 1} on"


def _is_newer(path: Path, agent: Path) -> bool:
    """Whether a file is there and not older than the agent."""
    return path.is_file() and path.stat().st_mtime_ns >= agent.stat().st_mtime_ns
