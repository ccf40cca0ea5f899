"""`butfor demo`: how much a robot's actions matter for a cube, from the episodes that ship with the package.

Fits the default model to some episodes of pick-and-place, and compares its scores of other episodes with the exact
answer that is in the file. `tools/build_demo_data.py` collects the episodes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from butfor import __version__
from butfor.detection.thresholds import evaluate
from butfor.envs.facts import EnvFacts, facts_of
from butfor.influence.display import problems
from butfor.influence.influence import Influence
from butfor.influence.views import fan_of, vary_state
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Progress
from butfor.runs.files import write_json

if TYPE_CHECKING:
    from butfor.scenes import Scene

Array = NDArray[Any]
FILE = Path(__file__).with_name("pick-and-place.npz")
CUBE = "cube"
SHARES = (0.7, 0.15)  # of the episodes to fit on, and to calibrate and diagnose with; the rest is the test
RATE = 0.05  # false discoveries that decisions may contain
AROUND = 0.12  # metres to either side of the cube that the map shows
CELLS = 41
OTHERS = {"distance": "Distance of gripper and cube", "moved": "The cube moved", "contact": "Contact"}
TITLES = {"noisy-expert": "A clumsy script", "learned": "A policy learned from it", "random": "Random actions"}


@dataclass(frozen=True)
class Split:
    """The episodes of the demo by their use."""

    fit: Episodes
    held_out: Episodes
    test: Episodes
    policies: Sequence[str]  # of the test episodes


def run_demo(
    folder: Path | str,
    film: bool = True,
    device: str = "cpu",
    progress: Progress = lambda stage, done, total, text: None,
) -> dict[str, Any]:
    """Run the demo, and write its page, its model and its numbers into a folder.

    Args:
        folder: gets report.html, influence.safetensors and summary.json; files of an earlier demo are replaced.
        film: show episodes in the player, which plays them again and needs the extra `fetch`.
        device: where to fit.
        progress: called with the stage, how much of it is done, its size, and a text.

    Returns:
        The numbers of summary.json.
    """
    from butfor.reporting.demo_page import render_demo
    from butfor.reporting.page import write_page

    began = time.monotonic()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    split = split_episodes(Episodes.load(FILE))
    facts = facts_of(split.fit.metadata["config"]["env"])
    assert facts is not None
    influence = fit_cube(split.fit, facts, device, progress)
    progress("comparing", 0, 1, "with the exact answer")
    summary = measure(influence, split, facts)
    obs = split.test.transitions()[0]
    figures = {"fans": show_fans(influence, obs), "map": map_around(influence, obs, facts)}
    progress("comparing", 1, 1, "with the exact answer")
    scene = None
    if film and find_spec("mujoco") and find_spec("gymnasium_robotics"):
        scene = film_episodes(influence, split, progress)
    summary |= {"seconds": round(time.monotonic() - began, 1), "butfor": __version__, "film": scene is not None}
    influence.save(folder / "influence.safetensors")
    write_json(folder / "summary.json", summary)
    write_page(folder / "report.html", render_demo(summary, figures, scene))
    return summary


def split_episodes(episodes: Episodes, seed: int = 0) -> Split:
    """Split whole episodes at random."""
    names = [policy for policy, count in episodes.metadata["parts"].items() for _ in range(count)]
    order = np.random.default_rng(seed).permutation(len(episodes))
    first, second = (round(share * len(order)) for share in np.cumsum(SHARES))
    fit, held_out, test = (episodes.take(np.sort(part)) for part in np.split(order, [first, second]))
    return Split(fit, held_out, test, [names[place] for place in np.sort(order[second:])])


def fit_cube(episodes: Episodes, facts: EnvFacts, device: str, progress: Progress) -> Influence:
    """Fit the default model of `Influence.fit` to the cube's position."""

    def show(run: Any) -> None:
        progress("fitting", run.epoch, run.epochs, f"{int(episodes.length.sum()):,} transitions")

    low, high = (np.array(episodes.metadata[key]) for key in ("action_low", "action_high"))
    entities = {CUBE: list(facts.object_position)}
    space = Box(low, high, dtype=np.float64)
    return Influence.fit(*episodes.transitions(), entities, action_space=space, device=device, progress=show)


def measure(influence: Influence, split: Split, facts: EnvFacts) -> dict[str, Any]:
    """Compare scores and decisions with the exact answer on the test episodes, and diagnose the model."""
    test = split.test
    obs = test.transitions()[0]
    truth = test.label["exact"][test.valid]
    score = influence.score(obs)[CUBE]
    moved = np.linalg.norm(np.diff(test.achieved_goal, axis=1), axis=-1)[test.valid]
    contact = np.zeros_like(test.valid) if test.contact is None else test.contact
    compared = {"distance": -facts.distance(obs), "moved": moved, "contact": contact[test.valid].astype(float)}
    rows = [{"name": "cai", "title": "CAI, learned from the data"} | evaluate(score, truth)]
    rows += [{"name": name, "title": title} | evaluate(compared[name], truth) for name, title in OTHERS.items()]
    held_out = split.held_out
    drawn = held_out.sampled[held_out.valid]
    transitions = held_out.transitions()
    episode = np.repeat(np.arange(len(held_out)), held_out.length)
    found = influence.diagnose(*transitions, sampled=drawn, groups=episode)[CUBE]
    influence.calibrate(free_obs=transitions[0][~held_out.label["exact"][held_out.valid]])
    called = influence.decide(obs, RATE)[CUBE]
    policy = np.repeat(split.policies, test.length)
    return {
        "env": facts.name,
        "episodes": {"fit": len(split.fit), "held_out": len(held_out), "test": len(test)},
        "transitions": int(split.fit.length.sum()),
        "states": len(truth),
        "influenced": float(truth.mean()),
        "detectors": rows,
        "decisions": {
            "rate": RATE,
            "called": int(called.sum()),
            "false": float((called & ~truth).sum() / max(called.sum(), 1)),
            "found": float(called[truth].mean()),
        },
        "policies": [
            {
                "name": name,
                "title": TITLES[name],
                "episodes": split.policies.count(name),
                "cai": float(score[policy == name].mean()),
                "influenced": float(truth[policy == name].mean()),
            }
            for name in TITLES
            if name in split.policies
        ],
        "diagnosis": {CUBE: found.plain()},
        "problems": problems(found),
        "notes": found.notes,
    }


def show_fans(influence: Influence, obs: Array) -> list[dict[str, Any]]:
    """Where the cube goes under other actions, in a state without influence and in one with much, in cm."""
    score = influence.score(obs)[CUBE]
    order = np.argsort(score, kind="stable")
    columns = influence.entities[CUBE][:2]
    found: list[dict[str, Any]] = []
    for title, place in (
        ("The gripper is far away", order[len(order) // 10]),
        ("The gripper is at the cube", order[-1]),
    ):
        fan = fan_of(influence, obs[place].astype(np.float64), CUBE, columns, 64)
        found.append({
            "title": title, "score": fan.score, "now": np.zeros(2), "outcomes": 100 * (fan.outcomes - fan.now),
            "deviation": 100 * fan.deviation, "actions": fan.actions,
        })  # fmt: skip
    reach = 1.1 * max(float(np.abs(one["outcomes"]).max()) for one in found)  # the same for both
    return [one | {"ends": np.full(2, reach)} for one in found]


def map_around(influence: Influence, obs: Array, facts: EnvFacts) -> dict[str, Array]:
    """CAI over the place of the resting gripper around the cube, at the height of the highest influence; in cm."""
    score = influence.score(obs)[CUBE]
    state = obs[np.argmax(np.where(obs[:, facts.object_position[2]] < 0.44, score, -np.inf))].astype(np.float64)
    pairs = [(facts.agent_position[axis], facts.object_position[axis]) for axis in (0, 1)]
    state[[*facts.agent_velocity, *facts.object_velocity]] = 0
    axes, grid = vary_state(state, pairs, (AROUND, AROUND), CELLS)
    place, hand = list(facts.object_position), list(facts.agent_position)
    grid[:, list(facts.object_offset)] = grid[:, place] - grid[:, hand]
    values = influence.score(grid)[CUBE].reshape(CELLS, CELLS)
    return {"x": 100 * axes[0], "y": 100 * axes[1], "cai": values, "half": np.array([2.5, 2.5])}


def film_episodes(influence: Influence, split: Split, progress: Progress) -> "Scene":
    """A test episode of each policy for the player, the most telling first: the script reaches its goal."""
    from butfor.scenes.view import view_episodes

    test = split.test
    end = np.linalg.norm(test.achieved_goal[:, -1] - test.desired_goal[:, -1], axis=-1)
    lifted = test.achieved_goal[..., 2].max(1)
    share = test.label["exact"].mean(1)
    scenes = []
    for name, title in TITLES.items():
        own = np.flatnonzero([policy == name for policy in split.policies])
        if not len(own):
            continue
        telling = share * (1 - share) + (end < 0.05) + lifted  # a goal reached, in the air, with free steps before
        chosen = own[np.argmax(telling[own])]
        part = test.take(np.array([chosen]))
        part.metadata = {"config": {"env": test.metadata["config"]["env"], "policy": name}}
        scene = view_episodes(part, (0,), influence, progress=progress)
        scenes.append(replace(scene, episodes=tuple(replace(one, title=title) for one in scene.episodes)))
    return replace(scenes[0], title="pick-and-place", episodes=tuple(one for scene in scenes for one in scene.episodes))
