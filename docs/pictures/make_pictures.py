"""Draw the pictures of what-is-cai.md: python docs/pictures/make_pictures.py (half a minute)."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import torch
from gymnasium.spaces import Box
from matplotlib.figure import Figure

from butfor import FitConfig, Influence, ModelConfig
from butfor.detection.collect import CollectConfig, collect_file
from butfor.influence.scoring import predict_moments
from butfor.reporting.charts import BLUE, GREEN, GREY, INK, ORANGE, VERMILLION
from butfor.reporting.matplotlib_renderer import PAGE, STYLE
from butfor.rollouts.episodes import concatenate
from butfor.runs.files import atomic_write

# The example of the page: a hand and a cube on a line.
PUSH = 0.1  # distance that a full action pushes the cube
NOISE = 0.02
REACH = 0.5  # the hand touches the cube below this distance
TRUE = 1.064  # CAI in nats where they touch: a uniform push of ±0.1 plus that noise
MODEL = ModelConfig(width=64)


def fit_example(seed: int = 0) -> Influence:
    """Fit the influence model of the example."""
    random = np.random.default_rng(seed)
    hand, cube, action = random.uniform(-1, 1, (3, 4000, 1))
    touching = np.abs(hand - cube) < REACH
    moved = cube + PUSH * action * touching + random.normal(0, NOISE, cube.shape)
    obs, next_obs = np.hstack([hand, cube]), np.hstack([hand + PUSH * action, moved])
    fitting = FitConfig(batch_size=200, learning_rate=1e-3, max_epochs=60)
    return Influence.fit(obs, action, next_obs, entities={"cube": [1]}, model=MODEL, fitting=fitting)


def outcomes(influence: Influence) -> Figure:
    """Draw the predictions for five actions in two states: alike when apart, different when touching."""
    figure = Figure(figsize=(PAGE, 2.3), layout="constrained")
    actions = torch.linspace(-1, 1, 5)[:, None]
    grid = np.linspace(-0.17, 0.17, 400)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    colours = ("#08306B", "#2B6CB0", GREY, "#F0935A", VERMILLION)
    for axis, (title, state) in zip(axes, (("apart", [-0.6, 0.6]), ("touching", [-0.1, 0.1])), strict=True):
        obs = np.array([state])
        score = float(influence.score(obs)["cube"][0])
        states = influence.model_obs(np.repeat(obs, 5, 0))
        mean, variance = (part[:, 0].numpy() for part in predict_moments(influence.model, states, actions))
        mean, deviation = mean / influence.units.scale[0], np.sqrt(variance) / influence.units.scale[0]
        density = np.exp(-0.5 * ((grid[:, None] - mean) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
        for column, colour in enumerate(colours):
            name = f"action {float(actions[column, 0]):+g}"
            axis.plot(grid, density[:, column], color=colour, label=name)
        axis.fill_between(grid, density.mean(1), color=INK, alpha=0.13, linewidth=0, label="all together")
        axis.set_title(f"{title}: CAI {score:.2f} nats")
        axis.set_xlabel("where the cube goes")
    axes[0].set_ylabel("density")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def by_distance(influence: Influence) -> Figure:
    """Draw CAI of the fitted model and the true CAI over the distance from hand to cube."""
    figure = Figure(figsize=(PAGE * 0.75, 2.4), layout="constrained")
    axis = figure.subplots()
    random = np.random.default_rng(1)
    obs = random.uniform(-1, 1, (600, 2))
    distance = obs[:, 1] - obs[:, 0]
    axis.plot(distance, influence.score(obs)["cube"], ".", color=BLUE, markersize=2.5, label="learned, 600 states")
    steps = np.array([-2, -REACH, -REACH, REACH, REACH, 2])
    axis.plot(steps, [0, 0, TRUE, TRUE, 0, 0], color=ORANGE, linewidth=1.6, label="true")
    axis.set(xlabel="cube − hand", ylabel="CAI (nats)", xlim=(-2, 2), ylim=(-0.05, 1.35))
    axis.legend(loc="upper left")
    return figure


def slide_episode() -> Figure:
    """Draw one episode of 1DSlide: positions of agent and object, CAI below, and the exact label as shade."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [
            collect_file(CollectConfig("slide", policy, 400, (), seed), Path(folder) / f"{seed}.npz")
            for seed, policy in enumerate(("random", "noisy-expert"))
        ]
        new = collect_file(
            CollectConfig("slide", "noisy-expert", 40, ("exact", "contact"), 7), Path(folder) / "new.npz"
        )
    fitting = FitConfig(batch_size=250, learning_rate=1e-3, max_epochs=60)
    space = Box(-1.0, 1.0, (1,))
    transitions = concatenate(parts).transitions()
    influence = Influence.fit(
        *transitions,
        entities={"object": [2, 3]},
        action_space=space,
        model=ModelConfig(layers=4, width=64),
        fitting=fitting,
    )
    label, goal = new.label["exact"], new.desired_goal[:, 0, 0]
    moved = new.observation[:, -1, 2] - new.observation[:, 0, 2]
    chosen = int(np.flatnonzero((label.sum(1) >= 2) & (moved > 1))[0])
    steps = int(new.length[chosen])
    obs = new.observation[chosen, : steps + 1]
    figure = Figure(figsize=(PAGE * 0.85, 3.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for axis in (above, below):
        for step in np.flatnonzero(label[chosen, :steps]):
            axis.axvspan(step - 0.5, step + 0.5, color=ORANGE, alpha=0.25, linewidth=0)
    above.axhspan(goal[chosen] - 0.5, goal[chosen] + 0.5, color=GREEN, alpha=0.18, linewidth=0)
    lines: dict[str, tuple[int, str, Any]] = {"agent": (0, INK, "-"), "object": (2, VERMILLION, "--")}
    for name, (column, colour, dash) in lines.items():
        above.plot(range(steps + 1), obs[:, column], color=colour, linestyle=dash, label=name)
    above.set(ylabel="position", ylim=(-5.2, 5.2))
    above.fill_between([], [], color=GREEN, alpha=0.18, linewidth=0, label="goal zone")
    above.fill_between([], [], color=ORANGE, alpha=0.25, linewidth=0, label="the action matters")
    above.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    below.plot(range(steps), influence.score(obs[:-1])["object"], ".-", color=BLUE)
    below.set(xlabel="step", ylabel="CAI (nats)", ylim=(-0.04, None))
    return figure


def make_pictures(folder: Path) -> list[Path]:
    """Write every picture as SVG; return the paths."""
    paths = []
    with matplotlib.style.context(["default", STYLE]):
        influence = fit_example()
        drawn = {
            "outcomes": outcomes(influence),
            "cai-by-distance": by_distance(influence),
            "slide-episode": slide_episode(),
        }
        for name, figure in drawn.items():
            paths.append(folder / f"{name}.svg")
            with atomic_write(paths[-1]) as temporary:
                figure.savefig(temporary, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return paths


if __name__ == "__main__":
    print(*make_pictures(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent), sep="\n")
