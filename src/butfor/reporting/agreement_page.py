"""The page of `butfor labels`: where two labels of the same states agree, with pictures of states where they differ."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.detection.labels import compare_labels, find_disagreements
from butfor.envs import facts_of, make_vector_env
from butfor.envs.facts import named
from butfor.reporting.page import data_address, render_page, write_page
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Stream, episode_seed, play_again

PICTURES = 12
PIXELS = 720  # size of the rendering
AROUND_GRIPPER = (slice(240, 600), slice(200, 560))  # the part of it that is shown


def missing_pictures(episodes: Episodes) -> str:
    """Why the states of these episodes cannot be drawn, as a sentence; empty if they can."""
    env_name = episodes.metadata.get("config", {}).get("env", "an environment that the file does not name")
    facts = facts_of(env_name)
    if facts is not None and facts.drawing == "robot":
        return ""
    return f"States of {env_name} are not drawn, only those of {', '.join(named(drawing='robot'))}."


def draw_states(episodes: Episodes, states: list[tuple[int, int]]) -> list[NDArray[np.uint8]]:
    """Render states (episode, time) by replaying their episodes."""
    config = episodes.metadata["config"]
    if episodes.reset_seed is None:  # files of earlier versions have none
        seeds = [episode_seed(config["seed"], Stream.TRAINING, number) for number in range(len(episodes))]
        episodes = replace(episodes, reset_seed=np.array(seeds))
    env: Any = make_vector_env(config["env"], len(states), render_mode="rgb_array", width=PIXELS, height=PIXELS)
    frames: dict[int, NDArray[np.uint8]] = {}

    def look(now: int) -> None:
        here = [place for place, (_, time) in enumerate(states) if time == now]
        frames.update(zip(here, env.render(here), strict=True) if here else {})

    play_again(env, episodes, [episode for episode, _ in states], look)
    env.close()
    return [frames[place][AROUND_GRIPPER] for place in range(len(states))]


def write_agreement(episodes: Episodes, file: Path | str, count: int = PICTURES) -> Path:
    """Write a page beside an episode file, with at most `count` pictures for each label besides the exact one."""
    if count < 0:
        raise ValueError(f"pictures must be at least 0; got {count}.")
    rows = compare_labels(episodes)
    lack = missing_pictures(episodes)
    others = [row["second"] for row in rows if row["first"] == "exact" and not lack]
    differing = [(other, *state) for other in others for state in find_disagreements(episodes, "exact", other, count)]
    frames = draw_states(episodes, [(episode, time) for _, episode, time in differing]) if differing else []
    shown = [
        {
            "image": _png(frame),
            "episode": episode,
            "time": time,
            "other": other,
            "exact": bool(episodes.label["exact"][episode, time]),
            "distance": float(np.linalg.norm(episodes.observation[episode, time, 6:9])),
        }
        for (other, episode, time), frame in zip(differing, frames, strict=True)
    ]
    values = {"rows": rows, "shown": shown, "lack": lack, "metadata": episodes.metadata, "name": Path(file).name}
    return write_page(Path(file).with_suffix(".html"), render_page("agreement.html.j2", {"figures": {}}, **values))


def _png(frame: NDArray[np.uint8]) -> str:
    """The data: address of a picture."""
    try:
        from imageio.v3 import imwrite
    except ImportError as error:
        raise ImportError("Pictures need imageio; install it with: pip install 'butfor[fetch]'.") from error
    return data_address("image/png", imwrite("<bytes>", frame, extension=".png"))
