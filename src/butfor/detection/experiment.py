"""The detection experiment: how reliably each detector tells the states in which the action matters.

`run_detection` is the whole sequence: collect, label, fit, score, diagnose, side studies, results.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from butfor.detection import detectors
from butfor.detection.data import ExperimentData, agents_config
from butfor.detection.detectors import DETECTORS, Models, Scores
from butfor.detection.episode_kinds import cai_by_kind
from butfor.detection.settings import HALF_RANDOM, PAPER, PAPER_LABEL, PAPER_SHARES, TOKENS, DetectionConfig
from butfor.detection.side_studies import STUDIES, Experiment
from butfor.detection.thresholds import Rows, evaluate_seeds, summarize
from butfor.envs.facts import BUILT_IN
from butfor.influence.gaussian import KL_FORMS
from butfor.influence.influence import Influence
from butfor.models.attention import AttentionModel
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig, Fitting
from butfor.models.networks import make_generators
from butfor.models.tables import Table, Units, target_scale
from butfor.models.torch_state import pinned
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Progress
from butfor.runs.config import differences
from butfor.runs.files import atomic_write, check_writable, load_checkpoint, read_json, save_checkpoint, write_json
from butfor.runs.folder import open_run, versions_resumed, write_metrics
from butfor.runs.locks import working_on
from butfor.runs.memory import LAYER_BYTES, check_memory, network_bytes
from butfor.spaces.actions import ActionLaw
from butfor.spaces.arrays import check_transitions

NOTE_EVERY = 30.0  # seconds between two updates of the time in versions.json
CHECKPOINT_EVERY = 30.0  # seconds between two checkpoints of a fit
EPISODE_BYTES = 800  # of the shortest episodes, those of slide
DIAGNOSED = 20_000  # test states to diagnose the model with
FEWEST_DRAWN = 500  # random actions among these: fewer are not diagnosed apart from the others
SET_TITLES = {"test": "the test set", "random": "states of a random policy"}
LABEL_TITLES = {"exact": "the exact label", "heuristic": "the paper's heuristic label"}


@pinned()
def run_detection(
    config: DetectionConfig,
    folder: Path | str,
    device: torch.device | str = "cpu",
    overwrite: bool = False,
    progress: Progress = lambda stage, done, total, text: None,
) -> Path:
    """Run the detection experiment, or resume it where it was interrupted.

    Args:
        config: the settings.
        folder: the run folder; data and checkpoints of an interrupted run with the same settings are used.
        device: where models are fitted and evaluated.
        overwrite: replace a run that the folder contains.
        progress: called with the stage, how much of it is done, its size, and a text.

    Returns:
        The run folder.
    """
    if config.data == "agents":
        agents_config(config)  # raises before anything is written
    folder = Path(folder)
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file; give another name for the run folder.")
    check_writable(folder)
    _check_memory(config, device)
    with working_on(folder):
        return _run(config, open_run(folder, "detection", config, overwrite), device, progress)


def _check_memory(config: DetectionConfig, device: torch.device | str) -> None:
    """Refuse settings whose arrays alone do not fit into memory, before the first of them is made."""
    if torch.device(device).type != "cpu":
        return  # torch says what a GPU lacks
    sets = [config.train_episodes, config.validation_episodes, config.test_episodes, config.random_episodes]
    sets += [config.extra_episodes] if "decisions" in config.studies else []
    model = config.model
    attention = config.attention
    actions = config.scoring.actions
    width = max(attention.embedding, attention.feedforward)
    parts = {
        f"{sum(sets):,} episodes": sum(sets) * EPISODE_BYTES,
        f"{config.seeds:,} models with {model.layers:,} layers of {model.width:,} units": config.seeds
        * network_bytes(1, model.width, model.layers),
        f"{config.seeds:,} Transformers with {attention.layers:,} layers of {width:,} units": config.seeds
        * (20.0 * attention.layers * attention.embedding * width + LAYER_BYTES * attention.layers),
        f"Comparing {actions:,} actions in one state": config.seeds * actions * (3 * model.width + 6 * actions) * 4.0,
    }
    for what, needed in parts.items():
        check_memory(needed, what, "Use fewer episodes, seeds or actions, or smaller networks.")


def _run(config: DetectionConfig, folder: Path, device: torch.device | str, progress: Progress) -> Path:
    """Run the experiment in its folder, which no other process uses."""
    if (folder / "summary.json").is_file():
        return folder
    show, note_time = _keep_time(folder, device, progress)

    # Collect labelled episodes to evaluate on, then those to fit to.
    data = ExperimentData(config, folder / "data", show, device)
    sets = {"test": data.episodes("test", config.test_episodes)}
    if config.random_episodes:
        sets["random"] = data.episodes("random", config.random_episodes)
    _check_both_kinds(sets)
    train = data.episodes("train", config.train_episodes)
    validation = data.episodes("validation", config.validation_episodes)

    # Fit the models, all seeds at once.
    fits = Fits(config, folder, train, validation, device, show)
    models = Models(fits.influence("CAI"), fits.attention("Attention"), config.env)
    models.influence.save(folder / "model.safetensors")

    # Score every set with every detector, and check whether the model can be trusted.
    scores = _score(config, models, sets, show)
    write_json(folder / "diagnosis.json", _diagnose(models.influence, sets["test"]))
    note_time()

    # Side studies: comparisons and decisions beyond the main table.
    known = {name: found["cai"] for name, found in scores.items()}
    experiment = Experiment(config, data, train, validation, sets, models.influence, fits.influence, show, known)
    path = folder / "studies.json"
    for study in config.studies:
        finished = read_json(path) if path.is_file() else {"schema": 1}
        if study not in finished:
            write_json(path, finished | {study: STUDIES[study](experiment)})
        note_time()

    # Write the results; the summary comes last and marks the run as finished.
    rows: Rows = []
    tables: Rows = []
    for name, episodes in sets.items():
        _write_scores(folder, name, episodes, scores[name])
        for label in _judged_labels(episodes):
            found = {kind: evaluate_seeds(score, episodes, label) for kind, score in scores[name].items()}
            tables.append(_table(config, name, label, episodes.label[label][episodes.valid], found))
            for kind, seeds in found.items():
                place = {"set": name, "label": label, "detector": kind}
                rows += [place | {"seed": seed} | values for seed, values in enumerate(seeds)]
    write_metrics(folder, rows)
    kinds = cai_by_kind(sets["test"], known["test"], config.env)
    write_json(folder / "summary.json", _summary(config, tables, kinds))
    return folder


def _keep_time(folder: Path, device: torch.device | str, progress: Progress) -> tuple[Progress, Callable[[], None]]:
    """A progress callback that now and then writes the time spent to versions.json, and a function that does it."""
    began = noted = time.perf_counter()
    record = versions_resumed(folder, device)
    earlier = record.get("seconds", 0.0)

    def note_time() -> None:
        nonlocal noted
        noted = time.perf_counter()
        write_json(folder / "versions.json", record | {"seconds": round(earlier + noted - began, 1)})

    def show(stage: str, done: int, total: int, text: str) -> None:
        progress(stage, done, total, text)
        if time.perf_counter() - noted > NOTE_EVERY:
            note_time()

    return show, note_time


def _check_both_kinds(sets: dict[str, Episodes]) -> None:
    """Refuse sets that cannot be evaluated, before hours of fitting."""
    for name, episodes in sets.items():
        for kind in _judged_labels(episodes):
            label = episodes.label[kind][episodes.valid]
            if label.all() or not label.any():
                raise ValueError(
                    f"All {len(label)} {name} states have the same {kind} label; increase {name}_episodes."
                )


def _judged_labels(episodes: Episodes) -> list[str]:
    return [kind for kind in LABEL_TITLES if kind in episodes.label]


@dataclass(frozen=True)
class Fits:
    """Fits models of the experiment, with checkpoints in the run folder."""

    config: DetectionConfig
    folder: Path
    train: Episodes
    validation: Episodes
    device: torch.device | str
    progress: Progress

    def influence(
        self,
        name: str,
        model: ModelConfig | None = None,
        train: Episodes | None = None,
        validation: Episodes | None = None,
        target_noise: float = 0.0,
        members: int = 1,
    ) -> Influence:
        """Fit an influence model; `name` names its checkpoint, and `target_noise` is in the units of the state."""
        model = model or self.config.model
        tables, units = self._tables(train or self.train, validation or self.validation, model, target_noise)
        generators = make_generators(range(self.config.seeds * members))
        sizes = (len(units.obs_center), units.law.size, len(units.scale))
        network = GaussianDynamics(*sizes, model, generators).to(self.device)
        self._fit(name, network, tables, self.config.fitting, generators)
        return Influence(network, units, self.config.scoring)

    def attention(self, name: str) -> AttentionModel:
        """Fit the Transformer whose attention to the action is a detector."""
        config = self.config
        tables, units = self._tables(self.train, self.validation, config.model, 0.0)
        tables = [(detectors.with_absolute_velocity(inputs, config.env), target) for inputs, target in tables]
        tokens = TOKENS[f"{config.env}, four tokens" if config.split_agent else config.env]
        generators = make_generators(range(config.seeds))
        transformer = AttentionModel(tokens, len(units.scale), config.attention, generators).to(self.device)
        self._fit(name, transformer, tables, config.attention_fitting, generators)
        return transformer

    def _tables(
        self, train: Episodes, validation: Episodes, model: ModelConfig, target_noise: float
    ) -> tuple[list[Table], Units]:
        """Inputs and targets of training and validation, and their units."""
        transitions = [check_transitions(*part.transitions()) for part in (train, validation)]
        entities = {detectors.OBJECT: list(BUILT_IN[self.config.env].object_position)}
        scale = target_scale(transitions[0], entities, model.target_scale)
        action_size = train.action.shape[2]
        law = ActionLaw((-1.0,) * action_size, (1.0,) * action_size)
        units = Units.raw(law, entities, scale.tolist(), train.observation.shape[2])
        tables = [units.table(part, self.device) for part in transitions]
        if target_noise:
            generator = torch.Generator().manual_seed(0)
            factor = (target_noise * scale).float().to(self.device)
            for place, (inputs, target) in enumerate(tables):
                noise = torch.randn(target.shape, generator=generator).to(self.device)
                tables[place] = (inputs, target + factor * noise)
        return tables, units

    def _fit(
        self, name: str, model: Any, tables: list[Table], config: FitConfig, generators: list[torch.Generator]
    ) -> None:
        """Fit to the end from the last checkpoint, if there is one."""
        fitting = Fitting(model, tables[0], tables[1], config, generators)
        path = self.folder / "checkpoint" / f"{name.lower()}.pt"
        if path.is_file():
            try:
                fitting.restore(load_checkpoint(path))
            except (ValueError, KeyError, RuntimeError, OSError) as error:
                raise ValueError(f"{path} cannot be resumed ({error}); delete it to fit {name} again.") from error
        saved = time.monotonic()
        for state in fitting.run():
            running = int((~state.stopped).sum())
            text = f"error {state.error.mean():.2e}, {running} seeds still learning"
            self.progress(f"fit {name}", state.epoch, config.max_epochs, text)
            if time.monotonic() - saved > CHECKPOINT_EVERY:
                save_checkpoint(path, fitting.state())
                saved = time.monotonic()
        best = f"best epochs {fitting.best_epoch.tolist()}"
        self.progress(f"fit {name}", config.max_epochs, config.max_epochs, best)
        save_checkpoint(path, fitting.state())


def _score(
    config: DetectionConfig, models: Models, sets: dict[str, Episodes], progress: Progress
) -> dict[str, dict[str, Scores]]:
    """Scores [S, N] of every set by every detector, and by CAI with every form of the KL if asked for."""
    scorers: dict[str, Callable[[Episodes], Scores]]
    scorers = {name: partial(detector, models) for name, (_, detector) in DETECTORS.items()}
    for form in KL_FORMS if config.compare_forms else ():
        other = detectors.with_scoring(models.influence, replace(config.scoring, form=form))
        scorers[f"cai_{form}"] = partial(detectors.score_cai, other)
    scores: dict[str, dict[str, Scores]] = {name: {} for name in sets}
    pairs = list(product(sets, scorers))
    for place, (name, kind) in enumerate(pairs):
        progress("scoring", place, len(pairs), kind)
        scores[name][kind] = scorers[kind](sets[name])
    progress("scoring", len(pairs), len(pairs), "done")
    return scores


def _diagnose(influence: Influence, test: Episodes) -> dict[str, Any]:
    """Diagnosis of the first seed's model on test episodes, which neither training nor early stopping used."""
    chosen = np.random.default_rng(0).permutation(int(test.length.sum()))[:DIAGNOSED]
    obs, action, next_obs = (part[chosen] for part in test.transitions())
    sampled = test.sampled[test.valid][chosen]
    drawn = sampled if sampled.sum() >= FEWEST_DRAWN else None
    episode = np.nonzero(test.valid)[0][chosen]
    found = detectors.only_seed(influence, 0).diagnose(obs, action, next_obs, drawn, episode)
    return {name: one.plain() for name, one in found.items()}


def _write_scores(folder: Path, name: str, episodes: Episodes, scores: dict[str, Scores]) -> None:
    """Write the scores of a set with the labels, episode and time of each real step."""
    episode, step = episodes.valid.nonzero()
    columns: dict[str, Any] = {kind: scores[kind] for kind in DETECTORS}
    for kind in _judged_labels(episodes):
        columns["label" if kind == "exact" else f"label_{kind}"] = episodes.label[kind][episodes.valid]
    columns |= {"episode": episode.astype(np.int32), "time": step.astype(np.int32)}
    path = folder / ("scores.npz" if name == "test" else f"scores-{name}.npz")
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def _summary(config: DetectionConfig, tables: Rows, kinds: Rows) -> dict[str, Any]:
    """What the command line and the report show: the main table, the others, and notes."""
    changed = ", ".join(f"{name} {value}" for name, value in differences(config) if name != "compare_forms")
    if config.data == "agents":
        source = (
            "The training, validation and test episodes come from three agents that learned with DDPG and HER for "
            f"{config.agent_episodes:,} episodes; every thousand episodes contribute an equal share."
            f"{' Half of the test episodes are random.' if config.env in HALF_RANDOM else ''}"
        )
    else:
        source = (
            "Half of the episodes are random and half come from a scripted policy. The paper collected its data with "
            "learned agents, so compare methods with it, not numbers."
        )
    forms = [row for row in tables[0]["detectors"] if row["name"] not in DETECTORS]
    for table in tables:
        table["detectors"] = [row for row in table["detectors"] if row["name"] in DETECTORS]
    return {
        "schema": 1,
        "env": config.env,
        **{name: tables[0][name] for name in ("label", "states", "positive_share", "detectors")},
        "forms": forms,
        "others": tables[1:],
        "episodes": kinds,
        "notes": [source, *([f"Settings that differ from the defaults: {changed}."] if changed else [])],
    }


def _table(config: DetectionConfig, name: str, label: str, truth: Any, found: dict[str, Rows]) -> dict[str, Any]:
    """All detectors on one set against one label, with the paper's numbers where it has any."""
    paper = PAPER[config.env] if name == "test" and label == PAPER_LABEL[config.env] else {}
    shares = PAPER_SHARES.get(config.env, {}) if label == "heuristic" else {}
    rows = []
    for kind, seeds in found.items():
        title = DETECTORS[kind][0] if kind in DETECTORS else kind.removeprefix("cai_")
        row = {"name": kind, "title": title, "seeds": len(seeds)}
        rows.append(row | summarize(seeds) | {"paper": paper.get(kind)})
    return {
        "set": name,
        "label": label,
        "title": f"Against {LABEL_TITLES[label]}, on {SET_TITLES[name]}",
        "states": len(truth),
        "positive_share": float(truth.mean()),
        "paper_share": shares.get(name),
        "detectors": rows,
    }
