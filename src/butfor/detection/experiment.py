"""The paper's experiments: each a config, and a function that fills a run folder and goes on where it was cut off."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from butfor.detection import detectors as detect
from butfor.detection.data import Data, agents_config
from butfor.detection.decisions import study_decisions
from butfor.detection.questions import (
    Case,
    evaluate,
    kinds_of_episodes,
    member,
    study_actions,
    study_ensembles,
    study_helps,
    study_noise,
    study_reference,
    world_frame,
)
from butfor.detection.settings import PAPER, PAPER_LABEL, PAPER_SHARE, TOKENS, DetectionConfig
from butfor.influence.gaussian import KL_FORMS
from butfor.influence.influence import Influence
from butfor.models.attention import AttentionModel
from butfor.models.dynamics import GaussianDynamics, ModelConfig, Table, target_scale, training_table
from butfor.models.fitting import FitConfig, Fitting
from butfor.models.networks import make_generators
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Progress
from butfor.runs.config import differences
from butfor.runs.files import atomic_write, load_checkpoint, read_json, save_checkpoint, write_json
from butfor.runs.folder import open_run, versions_resumed, write_metrics
from butfor.spaces.actions import ActionLaw
from butfor.spaces.arrays import check_transitions
from butfor.training.goal_env import ENTITY, FETCH_ENTITY

STUDIES: dict[str, Callable[[Case], Any]] = {
    "actions": study_actions,
    "decisions": study_decisions,
    "ensembles": study_ensembles,
    "helps": study_helps,
    "noise": study_noise,
    "reference": study_reference,
}

NOTE_EVERY = 30.0  # seconds, after which the time spent so far is written down


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
    if config.data == "agents":
        agents_config(config.env, config.agent_episodes, config.agent_envs)  # refused before anything is written
    folder = open_run(folder, "detection", config, overwrite)
    if (folder / "summary.json").is_file():
        return folder
    began = noted = time.perf_counter()
    record = versions_resumed(folder, device)
    earlier = record.get("seconds", 0.0)

    def note_time() -> None:
        """What this and earlier processes have spent on the run."""
        write_json(folder / "versions.json", record | {"seconds": round(earlier + time.perf_counter() - began, 1)})

    def show(stage: str, done: int, total: int, text: str) -> None:
        """Passes progress on, and notes the time for a process that is killed."""
        nonlocal noted
        progress(stage, done, total, text)
        if time.perf_counter() - noted > NOTE_EVERY:
            note_time()
            noted = time.perf_counter()

    data = Data(config.env, folder / "data", config.data, config.agent_episodes, show, device, config.agent_envs)
    sets = {"test": data.episodes("test", config.test_episodes)}
    if config.random_episodes:
        sets["random"] = data.episodes("random", config.random_episodes)
    for name, episodes in sets.items():
        for kind in sorted({"exact", "heuristic"} & set(episodes.label)):
            label = episodes.label[kind][episodes.valid]
            if label.all() or not label.any():
                raise ValueError(
                    f"All {len(label)} {name} states have the same label ({kind}); use more {name} episodes."
                )
    train = data.episodes("train", config.train_episodes)
    validation = data.episodes("validation", config.validation_episodes)

    law = ActionLaw((-1.0,) * train.action.shape[2], (1.0,) * train.action.shape[2])  # that of every built-in world
    entities = {"object": list(ENTITY.get(config.env, FETCH_ENTITY))}

    def fit(
        name: str,
        model: ModelConfig = config.model,
        train: Episodes = train,
        validation: Episodes = validation,
        target_noise: float = 0.0,
        members: int = 1,
    ) -> Influence:
        """An influence model of all seeds, `members` networks each, trained to the end."""
        tables, scale = _tables((train, validation), law, entities, model, target_noise, device)
        generators = make_generators(range(config.seeds * members))
        network = GaussianDynamics(train.observation.shape[2], law.size, len(scale), model, generators).to(device)
        _fit(name, network, tables, config.fitting, generators, folder, show)
        return Influence(network, law, entities, scale, config.scoring)

    influence = fit("CAI")
    influence.save(folder / "model.safetensors")
    tables, scale = _tables((train, validation), law, entities, config.model, 0.0, device)
    tables = [(world_frame(inputs), target) for inputs, target in tables]
    tokens = TOKENS[f"{config.env}, four tokens" if config.split_agent else config.env]
    generators = make_generators(range(config.seeds))
    transformer = AttentionModel(tokens, len(scale), config.attention, generators).to(device)
    _fit("Attention", transformer, tables, config.attention_fitting, generators, folder, show)

    detectors: dict[str, detect.Detector] = {
        "cai": detect.cai(influence, "object"),
        "entropy": detect.conditional_entropy(influence, "object"),
        "attention": detect.attention(transformer, device, world_frame),
        "contact": detect.contact,
        "moved": detect.moved,
    }
    for form in KL_FORMS if config.compare_forms else ():
        other = Influence(influence.model, law, entities, scale, replace(config.scoring, form=form))
        detectors[f"cai_{form}"] = detect.cai(other, "object")
    scores: dict[str, dict[str, detect.Scores]] = {name: {} for name in sets}
    done = 0
    for name, episodes in sets.items():
        for kind, detector in detectors.items():
            show("scoring", done, len(detectors) * len(sets), kind)
            scores[name][kind] = detector(episodes)
            done += 1
    show("scoring", done, done, "done")

    chosen = np.random.default_rng(0).permutation(int(sets["test"].length.sum()))[:20_000]
    obs, action, next_obs = (part[chosen] for part in sets["test"].transitions())
    sampled = sets["test"].sampled[sets["test"].valid][chosen]
    drawn = sampled if sampled.sum() >= 500 else None
    found = member(influence, 0).diagnose(obs, action, next_obs, drawn)
    write_json(folder / "diagnosis.json", {name: one.plain() for name, one in found.items()})
    case = Case(
        data, train, validation, sets, influence, fit, config.model, config.noise_levels, config.target_noise,
        config.extra_episodes, show, {name: found["cai"] for name, found in scores.items()},
    )  # fmt: skip
    note_time()
    for name in config.studies:
        _keep_study(folder, name, lambda name=name: STUDIES[name](case))  # type: ignore[misc]
        note_time()
    _write_results(folder, config, sets, scores)  # the summary, written last, marks the run as finished
    return folder


def _tables(
    parts: tuple[Episodes, Episodes],
    law: ActionLaw,
    entities: dict[str, list[int]],
    model: ModelConfig,
    target_noise: float,
    device: torch.device | str,
) -> tuple[list[Table], list[float]]:
    """What a model learns from and is validated on, and the factor on its targets."""
    transitions = [check_transitions(*part.transitions()) for part in parts]
    scale = target_scale(transitions[0], entities, model)
    tables = [training_table(part, law, entities, scale, device) for part in transitions]
    if target_noise:
        generator = torch.Generator().manual_seed(0)
        noise = [torch.randn(target.shape, generator=generator).to(device) for _, target in tables]
        factor = (target_noise * scale).float().to(device)
        tables = [(inputs, target + factor * one) for (inputs, target), one in zip(tables, noise, strict=True)]
    return tables, scale.tolist()


def _keep_study(folder: Path, name: str, run: Callable[[], Any]) -> None:
    """Runs a study whose result `studies.json` does not hold yet, and adds it."""
    path = folder / "studies.json"
    found = read_json(path) if path.is_file() else {"schema": 1}
    if name not in found:
        write_json(path, found | {name: run()})


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


def _write_results(
    folder: Path, config: DetectionConfig, sets: dict[str, Episodes], scores: dict[str, dict[str, detect.Scores]]
) -> None:
    """Scores, one metrics row a set, label, detector and seed, and the summary that table and report show."""
    rows: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    for name, episodes in sets.items():
        episode, step = episodes.valid.nonzero()
        shown: dict[str, Any] = {kind: value for kind, value in scores[name].items() if kind in detect.TITLES}
        labels = {kind: episodes.label[kind] for kind in ("exact", "heuristic") if kind in episodes.label}
        shown |= {"label" if kind == "exact" else f"label_{kind}": v[episodes.valid] for kind, v in labels.items()}
        shown |= {"episode": episode.astype(np.int32), "time": step.astype(np.int32)}
        path = folder / ("scores.npz" if name == "test" else f"scores-{name}.npz")
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **shown)
        for label, truth in labels.items():
            part = [
                {"set": name, "label": label, "detector": kind, "seed": seed, **values}
                for kind, seeds in scores[name].items()
                for seed, values in enumerate(evaluate(seeds, episodes, label))
            ]
            rows += part
            tables.append(_table(config, name, label, float(truth[episodes.valid].mean()), len(step), part))
    write_metrics(folder, rows)
    changed = ", ".join(f"{name} {value}" for name, value in differences(config) if name != "compare_forms")
    main, *others = tables
    who = (
        f"Training, validation and test episodes are of three agents that learned by DDPG with HER for "
        f"{config.agent_episodes:,} episodes, an equal share of every thousand"
        f"{'; half of the test episodes are random' if config.env == 'slide' else ''}."
        if config.data == "agents"
        else "The paper collected its data with learned agents; here half of the episodes are random and half are by a "
        "scripted policy, so the rows compare methods, not data sets."
    )
    summary = {
        "schema": 1,
        "env": config.env,
        **{name: main[name] for name in ("label", "states", "positive_share")},
        "detectors": [row for row in main["detectors"] if row["name"] in detect.TITLES],
        "forms": [row for row in main["detectors"] if row["name"] not in detect.TITLES],
        "others": [
            other | {"detectors": [row for row in other["detectors"] if row["name"] in detect.TITLES]}
            for other in others
        ],
        "episodes": kinds_of_episodes(sets["test"], scores["test"]["cai"]),
        "notes": [who, *([f"Settings that differ from the defaults: {changed}."] if changed else [])],
    }
    write_json(folder / "summary.json", summary)


def _table(
    config: DetectionConfig, name: str, label: str, share: float, states: int, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """One table of all detectors on one set against one label, beside the paper's numbers where it has any."""
    paper = PAPER[config.env] if name == "test" and label == PAPER_LABEL[config.env] else {}
    kinds = list(dict.fromkeys(row["detector"] for row in rows))
    parts = {kind: [row for row in rows if row["detector"] == kind] for kind in kinds}
    where = {"test": "the test set", "random": "states of a random policy"}[name]
    which = "the exact" if label == "exact" else "the paper's heuristic"
    return {
        "set": name,
        "label": label,
        "title": f"Against {which} label, on {where}",
        "states": states,
        "positive_share": share,
        "paper_share": PAPER_SHARE.get(name) if label == "heuristic" else None,
        "detectors": [
            {
                "name": kind,
                "title": detect.TITLES.get(kind, kind.removeprefix("cai_")),
                "seeds": len(part),
                **detect.summarize(part),
                "paper": paper.get(kind),
            }
            for kind, part in parts.items()
        ],
    }
