"""Where two labels of the same states agree, and pictures of states where they do not."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.detection.collect import LABELS
from butfor.envs import facts_of, make_vector_env
from butfor.envs.facts import named
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Stream, episode_seed, replay
from butfor.runs.files import atomic_write

PICTURES = 12


def labels_of(episodes: Episodes) -> dict[str, NDArray[np.bool_]]:
    """Every label of the real steps, contact among them: name -> [N]."""
    found = episodes.labels()
    return {name: found[name][episodes.valid] for name in LABELS if name in found}


def compare(episodes: Episodes) -> list[dict[str, Any]]:
    """One row a pair of labels: the share of states in each of the four cases."""
    labels = labels_of(episodes)
    if len(labels) < 2:
        raise ValueError(f"Comparing needs two labels; these episodes have {', '.join(labels) or 'none'}.")
    pairs = [(a, b) for a in labels for b in labels if LABELS.index(a) < LABELS.index(b)]
    rows = []
    for a, b in pairs:
        first, second = labels[a], labels[b]
        rows.append(
            {
                "first": a,
                "second": b,
                "states": len(first),
                "both": float((first & second).mean()),
                "only_first": float((first & ~second).mean()),
                "only_second": float((~first & second).mean()),
                "neither": float((~first & ~second).mean()),
            }
        )
    return rows


def disagreements(episodes: Episodes, first: str, second: str, count: int) -> list[tuple[int, int]]:
    """States (episode, time) where two labels differ, both ways alike as far as there are, spread over the episodes."""
    one, other = (episodes.labels()[name] for name in (first, second))
    sides = [np.argwhere(only & episodes.valid) for only in (one & ~other, ~one & other)]
    sides = [places[np.unique(places[:, 0], return_index=True)[1]] for places in sides]  # the first of each episode
    ours = min(len(sides[0]), max(count - count // 2, count - len(sides[1])))
    chosen: list[tuple[int, int]] = []
    for places, share in zip(sides, (ours, min(len(sides[1]), count - ours)), strict=True):
        spread = np.linspace(0, len(places) - 1, share).astype(int)
        chosen += [(int(episode), int(time)) for episode, time in places[spread]]
    return chosen


def undrawn(episodes: Episodes) -> str:
    """Why the states of these episodes cannot be drawn, in a sentence; empty where they can."""
    world = episodes.metadata.get("config", {}).get("env", "a world that the file does not name")
    facts = facts_of(world)
    if facts is not None and facts.drawing == "robot":
        return ""
    return f"States of {world} are not drawn, only those of {', '.join(named(drawing='robot'))}."


def pictures(episodes: Episodes, states: list[tuple[int, int]]) -> list[NDArray[np.uint8]]:
    """The worlds in these states: each episode is played again from its seed, with its stored actions."""
    config = episodes.metadata["config"]
    env: Any = make_vector_env(config["env"], 1, render_mode="rgb_array", width=720, height=720)
    frames = []
    for episode, time in states:
        resets = episodes.reset_seed  # files of earlier versions do not hold them
        seed = episode_seed(config["seed"], Stream.TRAINING, episode) if resets is None else int(resets[episode])
        replay(env, seed, episodes.action[episode, :time])
        frames.append(env.render()[0][240:600, 200:560])  # what is around the gripper
    env.close()
    return frames


def write_agreement(episodes: Episodes, file: Path | str, count: int = PICTURES) -> Path:
    """A page beside the episodes' file: the table, and pictures of states where the exact and another label differ.

    States that cannot be drawn (`undrawn`) are left out.
    """
    import jinja2

    if count < 0:
        raise ValueError(f"pictures must be at least 0; got {count}.")
    rows, lack = compare(episodes), undrawn(episodes)
    others = [row["second"] for row in rows if row["first"] == "exact"]
    states = {other: [] if lack else disagreements(episodes, "exact", other, count) for other in others}
    differing = [(other, *state) for other, those in states.items() for state in those]
    frames = pictures(episodes, [(episode, time) for _, episode, time in differing]) if differing else []
    shown = []
    for (other, episode, time), frame in zip(differing, frames, strict=True):
        shown.append(
            {
                "image": _png(frame),
                "episode": episode,
                "time": time,
                "other": other,
                "exact": bool(episodes.label["exact"][episode, time]),
                "distance": float(np.linalg.norm(episodes.observation[episode, time, 6:9])),
            }
        )
    loader = jinja2.PackageLoader("butfor.reporting")
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("agreement.html.j2")
    page = Path(file).with_suffix(".html")
    text = template.render(rows=rows, shown=shown, lack=lack, metadata=episodes.metadata, name=Path(file).name)
    with atomic_write(page) as temporary:
        temporary.write_text(text)
    return page


def _png(frame: NDArray[np.uint8]) -> str:
    """A picture as a page holds it: PNG in base64."""
    try:
        from imageio.v3 import imwrite
    except ImportError as error:
        raise ImportError("Pictures need imageio; install it with: pip install 'butfor[fetch]'.") from error
    buffer = io.BytesIO()
    imwrite(buffer, frame, extension=".png")
    return base64.b64encode(buffer.getvalue()).decode()
