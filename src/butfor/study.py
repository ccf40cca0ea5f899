"""The paper's experiments: each a config, and a function that fills a run folder and goes on where it was cut off."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from butfor import detect
from butfor.actions import ActionLaw
from butfor.arrays import check_transitions
from butfor.attention import AttentionConfig, AttentionModel
from butfor.collect import make_policy
from butfor.dynamics import GaussianDynamics, ModelConfig, target_scale, training_table
from butfor.envs import make_worlds
from butfor.episodes import Episodes, concatenate
from butfor.files import load_checkpoint, save_checkpoint, write_json, written
from butfor.fitting import FitConfig, Fitting
from butfor.gaussian import KL_FORMS
from butfor.influence import Influence
from butfor.networks import make_generators
from butfor.record import differences, open_run, versions, write_metrics
from butfor.rollout import Policy, Progress, collect
from butfor.scoring import ScoreConfig

# mean and standard deviation over seeds of AUC, average precision and F1, from the paper's table 1
PAPER = {
    "slide": {
        "cai": {"auc": [1.00, 0.00], "ap": [0.98, 0.00], "f1": [0.95, 0.01]},
        "entropy": {"auc": [0.96, 0.00], "ap": [0.47, 0.01], "f1": [0.50, 0.01]},
        "attention": {"auc": [0.42, 0.31], "ap": [0.13, 0.14], "f1": [0.18, 0.17]},
        "contact": {"auc": [0.89], "ap": [0.78], "f1": [0.88]},
    }
}
OBJECT = {"slide": [2]}  # the columns of the observation whose next value is predicted
TOKENS = {"slide": {"agent": [0, 1], "object": [2, 3], "action": [4]}}  # columns of observation and action together


@dataclass(frozen=True)
class DetectionConfig:
    """Influence detection on one world (the paper's section 5). Defaults are the paper's settings for 1DSlide."""

    world: str = "slide"
    seeds: int = 5
    train_episodes: int = 1000
    validation_episodes: int = 1000
    test_episodes: int = 4000
    model: ModelConfig = ModelConfig(layers=4, width=128, normalize_input=False, target_scale=1.0)
    fitting: FitConfig = FitConfig()
    scoring: ScoreConfig = ScoreConfig()
    attention: AttentionConfig = AttentionConfig()
    compare_forms: bool = True
    """evaluate every form of the KL to the mixture, not only the one in `scoring`"""

    def __post_init__(self) -> None:
        if self.world not in PAPER:
            worlds = ", ".join(PAPER)
            raise ValueError(f"Detection needs a world with influence labels; {self.world!r} is not one of: {worlds}.")
        for name in ("seeds", "train_episodes", "validation_episodes", "test_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")


DETECTION_PRESETS = {
    "paper": DetectionConfig(),
    "demo": DetectionConfig(
        seeds=2,
        test_episodes=1000,
        fitting=FitConfig(batch_size=250, learning_rate=5e-4, max_epochs=60, validate_every=10),
        compare_forms=False,
    ),
}


def run_detection(
    config: DetectionConfig,
    folder: Path | str,
    device: torch.device | str = "cpu",
    overwrite: bool = False,
    progress: Progress = lambda stage, done, total, text: None,
) -> Path:
    """Collects data, trains all seeds as replicas, evaluates every detector against the exact label: a run folder.

    A folder of the same config goes on where it was cut off: data, and training up to its last checkpoint, are kept.
    """
    folder = open_run(folder, "detection", config, overwrite)
    if (folder / "summary.json").is_file():
        return folder
    began, record = time.perf_counter(), versions(device)
    test = _episodes(config, folder, "test", config.test_episodes, 2, progress)
    label = test.label["exact"][test.valid]
    if label.all() or not label.any():
        raise ValueError(f"All {len(label)} test states have the same label; use more test episodes.")
    train = _episodes(config, folder, "train", config.train_episodes, 0, progress)
    validation = _episodes(config, folder, "validation", config.validation_episodes, 1, progress)

    law = ActionLaw.of(make_worlds(config.world, 1).single_action_space)
    entities = {"object": OBJECT[config.world]}
    transitions = [check_transitions(*part.transitions()) for part in (train, validation)]
    scale = target_scale(transitions[0], entities, config.model)
    tables = [training_table(part, law, entities, scale, device) for part in transitions]

    generators = make_generators(range(config.seeds))
    network = GaussianDynamics(train.observation.shape[2], law.size, len(scale), config.model, generators)
    _fit("CAI", network.to(device), tables, config.fitting, generators, folder, progress)
    influence = Influence(network, law, entities, scale.tolist(), config.scoring)
    influence.save(folder / "model.safetensors")
    generators = make_generators(range(config.seeds))
    transformer = AttentionModel(TOKENS[config.world], len(scale), config.attention, generators)
    _fit("Attention", transformer.to(device), tables, config.fitting, generators, folder, progress)

    detectors: dict[str, detect.Detector] = {
        "cai": detect.cai(influence, "object"),
        "entropy": detect.conditional_entropy(influence, "object"),
        "attention": detect.attention(transformer, device),
        "contact": detect.contact,
        "moved": detect.moved,
    }
    for form in KL_FORMS if config.compare_forms else ():
        other = Influence(network, law, entities, scale.tolist(), replace(config.scoring, form=form))
        detectors[f"cai_{form}"] = detect.cai(other, "object")
    scores: dict[str, detect.Scores] = {}
    for name, detector in detectors.items():
        progress("scoring", len(scores), len(detectors), name)
        scores[name] = detector(test)
    progress("scoring", len(detectors), len(detectors), "done")
    write_json(folder / "versions.json", record | {"seconds": round(time.perf_counter() - began, 1)})
    _write_results(folder, config, test, scores)  # the summary, written last, marks the run as finished
    return folder


def _episodes(config: DetectionConfig, folder: Path, name: str, count: int, seed: int, progress: Progress) -> Episodes:
    """Episodes of the run's data folder, played if not there yet: half by a random policy, half by the noisy expert."""
    path = folder / "data" / f"{name}.npz"
    if path.is_file():
        episodes = Episodes.load(path)
        if len(episodes) != count:
            raise ValueError(
                f"{path} holds {len(episodes)} episodes, not {count}; delete it or use another run folder."
            )
        return episodes
    env = make_worlds(config.world, min(100, count))
    policies: dict[str, tuple[Policy, int]] = {
        "random": (make_policy(config.world, env, "random"), count - count // 2),
        "noisy-expert": (make_policy(config.world, env, "noisy-expert"), count // 2),
    }
    parts: list[Episodes] = []
    for index, (policy_name, (policy, share)) in enumerate(policies.items()):
        if share:
            metadata = {"world": config.world, "policy": policy_name, "seed": seed, "episodes": share}

            def show(done: int, before: int = sum(map(len, parts))) -> None:
                progress(f"{name} data", before + done, count, "episodes")

            parts.append(collect(env, policy, share, 2 * seed + index, metadata, show))
    env.close()
    episodes = concatenate(parts)
    episodes.save(path)
    return episodes


def _fit(
    name: str,
    model: Any,
    tables: list[tuple[Tensor, Tensor]],
    config: FitConfig,
    generators: list[torch.Generator],
    folder: Path,
    progress: Progress,
) -> None:
    """Fits to the end, with a checkpoint every half minute to go on from."""
    fitting = Fitting(model, tables[0], tables[1], config, generators)
    path = folder / "checkpoint" / f"{name.lower()}.pt"
    if path.is_file():
        try:
            fitting.restore(load_checkpoint(path))
        except (ValueError, KeyError, RuntimeError, OSError) as error:
            raise ValueError(f"{path} cannot be continued ({error}); delete it to fit {name} anew.") from error
    saved = time.monotonic()
    for state in fitting.run():
        running = int((~state.stopped).sum())
        progress(
            f"fit {name}", state.epoch, config.max_epochs, f"error {state.error.mean():.2e}, {running} still learning"
        )
        if time.monotonic() - saved > 30:
            save_checkpoint(path, fitting.state())
            saved = time.monotonic()
    progress(f"fit {name}", config.max_epochs, config.max_epochs, f"best epochs {fitting.best_epoch.tolist()}")
    save_checkpoint(path, fitting.state())


def _write_results(folder: Path, config: DetectionConfig, test: Episodes, scores: dict[str, detect.Scores]) -> None:
    """Scores, one metrics row a detector and seed, and the summary that table and report show."""
    label = test.label["exact"][test.valid]
    episode, step = test.valid.nonzero()
    with written(folder / "scores.npz") as temporary, temporary.open("wb") as file:
        shown: dict[str, Any] = {name: value for name, value in scores.items() if name in detect.TITLES}
        np.savez_compressed(
            file, allow_pickle=False, **shown, label=label, episode=episode.astype(np.int32), time=step.astype(np.int32)
        )
    rows = [
        {"detector": name, "seed": seed, **detect.evaluate(score, label)}
        for name, seeds in scores.items()
        for seed, score in enumerate(seeds)
    ]
    write_metrics(folder, rows)
    table = [
        {
            "name": name,
            "title": detect.TITLES.get(name, name.removeprefix("cai_")),
            "seeds": len(seeds),
            **detect.summarize([row for row in rows if row["detector"] == name]),
            "paper": PAPER[config.world].get(name),
        }
        for name, seeds in scores.items()
    ]
    changed = ", ".join(f"{name} {value}" for name, value in differences(config) if name != "compare_forms")
    summary = {
        "schema": 1,
        "world": config.world,
        "label": "exact",
        "states": len(label),
        "positive_share": float(label.mean()),
        "detectors": [row for row in table if row["name"] in detect.TITLES],
        "forms": [row for row in table if row["name"] not in detect.TITLES],
        "notes": [
            "The paper collected its data with learned agents; here half of the episodes are random and half are by a "
            "scripted policy that hits the object, so the rows compare methods, not data sets.",
            *([f"Settings that differ from the paper's: {changed}."] if changed else []),
        ],
    }
    write_json(folder / "summary.json", summary)
