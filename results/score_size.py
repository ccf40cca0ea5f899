"""How large are the scores beside the true CAI? python results/score_size.py (half an hour on two cores)

Collects 15,000 transitions of FetchPickAndPlace, fits models to targets with noise, and compares their scores in 400
states with the true CAI for that noise, by forking each state over 256 random actions. Writes score-size.json, and
score-size.svg. With --data the transitions and forks of a folder are used again.
"""

import argparse
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import torch
from gymnasium.spaces import Box
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import spearmanr

from butfor import Influence, ModelConfig, ScoreConfig
from butfor.benchmarks.data import Behaviour, collect, uniform_action
from butfor.benchmarks.environments import TASKS
from butfor.detection.side_studies import reference_cai
from butfor.influence.gaussian import KLForm
from butfor.influence.scoring import hide_among_redrawn, predict_moments, promised_gain
from butfor.models.dynamics import STEEP
from butfor.models.networks import make_generators
from butfor.reporting.charts import BLUE, GREEN, GREY, VERMILLION
from butfor.reporting.matplotlib_renderer import PAGE, STYLE

HERE = Path(__file__).parent
TASK = TASKS["fetch-pick-and-place"]
# Name, noise in metres (without any, the true CAI is infinite), and what `Influence.fit` gets.
MODELS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("the paper's network, 5 mm", 0.005, {"model": ModelConfig()}),
    ("steep network, 5 mm", 0.005, {"model": STEEP}),
    ("the paper's network, 0.5 mm", 0.0005, {"model": ModelConfig()}),
    ("touches, 0.5 mm", 0.0005, {"agent": TASK.hand_position}),
)
TRANSITIONS, STATES, FORKS = 15_000, 400, 256
EDGES = (0, 0.01, 0.1, 0.5, 1, 2, 6)  # nats
TRIED = 16  # actions taken in each state, for the numbers that are computed from outcomes
Floats = NDArray[np.float64]


def fork_states(seed: int = 77) -> dict[str, Any]:
    """Fork a tenth of the states of new episodes over random actions: obs [n, D], outcome [n, FORKS, 3]."""
    simulation = TASK.open()
    rng = np.random.default_rng([seed, 3])
    rows: list[tuple[Any, Any]] = []
    number = 0
    while len(rows) < STATES:
        behaviour = Behaviour(simulation, number, rng)
        obs = simulation.reset(int(rng.integers(2**31)))
        for _ in range(simulation.horizon):
            action, _ = behaviour.act()
            if rng.random() < 0.1:
                saved = simulation.save()
                outcomes = []
                for _ in range(FORKS):
                    simulation.step(uniform_action(simulation.action_space, rng))
                    outcomes.append(simulation.object_state().copy())
                    simulation.restore(saved)
                rows.append((obs.copy(), np.array(outcomes)))
            obs = simulation.step(action)
        number += 1
    return {"obs": np.array([row[0] for row in rows[:STATES]]), "outcome": np.array([row[1] for row in rows[:STATES]])}


def model_information(influence: Influence, obs: NDArray[Any]) -> Floats:
    """The CAI of each state in the model itself, without a bound on the KL: by drawing outcomes from it."""
    repeated = influence.model_obs(np.repeat(obs, TRIED, 0))
    taken, redrawn, outcomes = make_generators([1, 2, 3])
    actions = influence.law.draw(repeated.shape[1], 1, [taken])[0, :, 0]
    tried, is_taken = hide_among_redrawn(influence.law, actions, FORKS - 1, redrawn)
    gain = promised_gain(influence.model, repeated, tried[None], is_taken, influence.dims("object"), outcomes)
    information: Floats = gain.double().numpy().reshape(len(obs), TRIED).mean(1)
    return information


def spread_and_deviation(influence: Influence, obs: NDArray[Any]) -> tuple[Floats, Floats]:
    """How far the predicted means of actions lie apart, and the predicted standard deviation: [n] each, metres."""
    repeated = influence.model_obs(np.repeat(obs, TRIED, 0))
    actions = influence.law.draw(repeated.shape[1], 1, make_generators([1]))[0, :, 0]
    mean, variance = (part.double().numpy() for part in predict_moments(influence.model, repeated, actions))
    scale = np.asarray(influence.units.scale)
    means = (mean / scale).reshape(len(obs), TRIED, -1)
    variances = (variance / scale**2).reshape(len(obs), TRIED, -1)
    return np.sqrt(means.var(1).sum(1)), np.sqrt(variances.mean((1, 2)))


def summarize(truth: Floats, score: Floats) -> list[dict[str, float]]:
    """Mean truth and score of the states in each range of the truth."""
    rows = []
    for low, high in pairwise(EDGES):
        chosen = (truth >= low) & (truth < high)
        if chosen.any():
            means = {"truth": float(truth[chosen].mean()), "score": float(score[chosen].mean())}
            rows.append({"from": low, "to": high, "states": int(chosen.sum())} | means)
    return rows


def draw(found: dict[str, Any]) -> Figure:
    """The calibration curves: mean score over mean truth."""
    matplotlib.style.use(STYLE)
    figure = Figure(figsize=(PAGE, 3.4), layout="constrained")
    axis = figure.subplots()
    for (name, model), colour in zip(found["models"].items(), (BLUE, GREEN, BLUE, VERMILLION), strict=True):
        curve = model["curve"]["mean_clip_product"]
        style = ".--" if model["noise"] < 0.005 else ".-"
        axis.plot([row["truth"] for row in curve], [row["score"] for row in curve], style, color=colour, label=name)
    axis.plot([0, 5], [0, 5], ":", color=GREY, label="the truth")
    axis.set_xlabel("true CAI by forks (nats), mean of a range")
    axis.set_ylabel("score (nats)")
    axis.legend()
    return figure


def main(data: Path) -> None:
    """Collect, fork, fit, compare, write."""
    torch.set_num_threads(1)
    data.mkdir(parents=True, exist_ok=True)
    if not (data / "train.npz").is_file():
        train = collect(TASK, TRANSITIONS, 0)
        np.savez(data / "train.npz", obs=train.obs, action=train.action, next_obs=train.next_obs)
    if not (data / "forks.npz").is_file():
        np.savez(data / "forks.npz", **fork_states())
    rows = np.load(data / "train.npz", allow_pickle=False)
    forks = np.load(data / "forks.npz", allow_pickle=False)
    obs, outcome = forks["obs"], forks["outcome"]
    true_spread = np.sqrt(outcome.var(1).sum(1))
    found: dict[str, Any] = {"states": len(obs), "forks": FORKS, "models": {}}
    for name, noise, settings in MODELS:
        rng = np.random.default_rng(0)
        blocks = np.array_split(np.arange(len(obs)), len(obs) // 20)
        truth = np.concatenate([reference_cai(outcome[block], noise, 4, rng) for block in blocks])
        high = truth > 0.5
        next_obs = rows["next_obs"].astype(np.float64)
        next_obs[:, TASK.object] += noise * rng.standard_normal((len(next_obs), 3))
        space = Box(-1, 1, (rows["action"].shape[1],), np.float32)
        influence = Influence.fit(
            rows["obs"], rows["action"], next_obs, {"object": TASK.object}, action_space=space, **settings
        )
        scores = {"in the model": model_information(influence, obs)}
        forms: tuple[KLForm, ...] = (
            ("variational", "mean_clip_product") if "model" in settings else ("mean_clip_product",)
        )
        for form in forms:
            uniform = Influence(influence.model, influence.units, ScoreConfig(form=form))
            scores[form] = np.asarray(uniform.score(obs)["object"], np.float64)
        spread, deviation = spread_and_deviation(influence, obs)
        ratio = float(np.median(deviation[high])) / noise
        one = {
            "noise": noise,
            "states_above_half": int(high.sum()),
            "mean_error_above_half": {kind: float((score - truth)[high].mean()) for kind, score in scores.items()},
            "rank_correlation": float(spearmanr(truth, scores["mean_clip_product"]).statistic),
            "spread_ratio": float(np.median(spread[high] / true_spread[high])),
            "deviation_ratio": ratio,
            "nats_by_deviation": 3 * math.log(ratio),  # three columns
        }
        found["models"][name] = one | {"curve": {kind: summarize(truth, score) for kind, score in scores.items()}}
        print(name, json.dumps(one), flush=True)
    (HERE / "score-size.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    draw(found).savefig(HERE / "score-size.svg", metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=Path("score-size-data"), help="transitions and forks (default: %(default)s)"
    )
    main(parser.parse_args().data)
