"""Influence in every state of a dataset: fit a model, score, diagnose, and write the scores with a report."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import numpy as np
import torch

from butfor import __version__
from butfor.datasets.files import (
    NAMES,
    check_new_files,
    check_outputs,
    column_names,
    is_npz_file,
    read_data,
    write_columns,
    write_minari,
)
from butfor.datasets.formats import Dataset, copy_path, default_copy, is_frame, open_dataset
from butfor.datasets.recording import Recording, Table
from butfor.datasets.view import scored_scene
from butfor.influence.diagnosis import FEWEST as FEWEST_JUDGED
from butfor.influence.diagnosis import GROUPS, Diagnosis
from butfor.influence.graph.pairs import GraphConfig
from butfor.influence.influence import Influence
from butfor.influence.outcomes import OutcomeConfig
from butfor.influence.scoring import ScoreConfig
from butfor.influence.views import Fan, fan_of
from butfor.models.dynamics import STEEP, ModelConfig
from butfor.models.fitting import FOR_ANY_DATA, FitProgress, Fitting
from butfor.models.networks import make_generators
from butfor.rollouts.episodes import Bool
from butfor.rollouts.play import Progress
from butfor.runs.config import check_least
from butfor.runs.files import atomic_write, check_writable, explain_write_error
from butfor.runs.memory import check_memory
from butfor.scenes.edges import entity_edges
from butfor.spaces.entities import Entities

FEWEST = 1_000  # steps needed to fit a model
FEWEST_RANDOM = 10 * GROUPS  # held-out steps with random actions, from which on only these are diagnosed
SIMILAR = 100  # steps of an episode that the diagnosis does not take for independent; an episode may be the only one
MOST_JUDGED = 20_000  # held-out steps; more do not improve the diagnosis
STRETCHES = 20  # parts into which all steps are cut if a few episodes hold most of them
UPDATES = 60_000  # most updates of the model if the number of epochs is not given
THRESHOLD = 0.1  # nats
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
ACTIONS = set(NAMES["action"])  # what arrays of actions are called where readers by themselves leave none out
FAN = 64  # actions whose outcomes the report shows
ARROW = " -> "  # between source and target in the name of an edge
CHUNK = 20_000  # states per progress update

Name = TypeVar("Name", str, tuple[str, str])


@dataclass(frozen=True)
class Options:
    """How a dataset is scored."""

    members: int | None = None
    """networks of the ensemble; None: 3 for a model of touches, 1 for the others"""
    epochs: int | None = None
    """most epochs of fitting a Gaussian network; None: 300, or fewer for more than 100,000 steps"""
    actions: int = 64
    """K, the number of actions tried in each state; of discrete actions all are tried"""
    extreme: float | None = None
    """share of their numbers that are at the lowest or highest bound; None: 0.75 for a model of touches or of
    pairs, 0 for one of outcomes or a Gaussian network, or that of a given model"""
    seed: int = 0
    ignore: tuple[str, ...] = ()
    """paths of parts of the observation to leave out"""
    observe: tuple[str, ...] = ()
    """columns that make up the observation; empty: those of the format"""
    network: ModelConfig | None = None
    """None: a model of outcomes or of touches, the paper's network, or a steeper one, by the data (see
    `Influence.fit`)"""
    graph: bool = False
    """also score the influence between entities, with the model of pairs"""
    horizon: int = 1
    """steps within which the action matters; more than 1 uses the model of pairs"""
    action: tuple[str, ...] = ()
    """columns that make up the action; empty: those of the format"""

    def __post_init__(self) -> None:
        check_least(self, 1, *(name for name in ("members", "epochs") if getattr(self, name) is not None))
        check_least(self, 2, "actions")
        check_least(self, 0, "seed")
        check_least(self, 1, "horizon")
        if self.network is not None and (self.graph or self.horizon > 1):
            raise ValueError("graph and horizon use the model of pairs; leave out the network.")


def score_file(
    data: Any,
    out: Path | str | None = None,
    entities: Entities = (),
    options: Options = Options(),
    *,
    model: Path | str | None = None,
    save_model: Path | str | None = None,
    report: Path | str | None = None,
    with_data: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress = lambda stage, done, total, text: None,
) -> dict[str, Any]:
    """Score every state of a dataset, and write the scores and a report.

    Args:
        data: a file or folder of any format that `butfor.datasets.open` reads, the id of a local Minari dataset, or a
            pandas DataFrame.
        out: FILE.npz for one row per state, or a copy of the data in its format with the scores added; for Minari its
            id. Default: beside the data, with `-cai` in the name; of a DataFrame, DataFrame-cai.parquet.
        entities: what may be influenced, such as ["cube=3:6"].
        options: how to fit and score.
        model: a saved Influence to use instead of fitting one; its entities are used.
        save_model: file to save the fitted Influence to.
        report: the HTML report, by default beside the scores.
        with_data: for .npz files, write a copy of the data with the scores added, instead of the scores alone.
        overwrite: replace existing files.
        device: where to compute.
        progress: called with the stage, how much of it is done, its size, and a text.

    Returns:
        The summary: numbers of each entity, diagnosis, notes, and the paths of what was written.
    """
    from butfor.reporting.file_pages import render_scores

    began = time.monotonic()
    pairs = 24.0 * options.actions**2  # bytes: every action is compared with every other
    check_memory(pairs, f"Comparing {options.actions:,} actions in one state", "Try fewer actions.")
    influence = None if model is None else Influence.load(model, device)
    dataset = _open_unless_plain(data, options, with_data)
    if dataset is None:
        recording = read_data(data, options.ignore)
    else:
        recording = dataset.recording(options.observe, options.ignore, options.action)
    if is_frame(data):
        data = "DataFrame"  # its name from here on, and no file
    alone = not with_data and (is_npz_file(data) if out is None else Path(out).suffix == ".npz")
    out = _default_out(data, dataset, recording, alone) if out is None else out
    columns = recording.entities(entities) if influence is None or entities else influence.entities
    copy = None if alone else dataset
    if copy is None:
        taken = () if dataset is None else dataset.files()
        target, page = check_outputs(data, out, columns, report, save_model, overwrite, taken)
    else:
        target, page = _check_copy(copy, out, columns, report, save_model, overwrite)
    if options.graph and (copy is not None or target.suffix != ".npz"):
        raise ValueError(f"--out is {str(out)!r}; with --graph the scores are written alone, to a file FILE.npz.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        if influence is None:
            influence, judged, notes = fit_recording(recording, columns, options, device, progress)
        else:
            judged, notes = use_model(influence, str(model), recording, columns, options, device)
        if save_model is not None:  # at once, because the fit took the time
            with explain_write_error(f"The model {save_model}", "free some space, or choose another place"):
                influence.save(save_model)
        if options.extreme and influence.law.count:
            notes.append("The actions are discrete, so all are tried; the share of extreme ones has no effect.")
        scores = score_recording(influence, recording, progress)
        edges = graph_recording(influence, recording, progress) if options.graph else {}
        found, more = diagnose_recording(influence, recording, judged)
    warned = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    summary = summarize_scores(recording, scores, influence) | {
        "edges": summarize_edges(edges),
        "diagnosis": {name: one.plain() for name, one in found.items()},
        "out": str(out),
        "report": str(page),
        "model": None if model is None else str(model),
        "saved_model": None if save_model is None else str(save_model),
        "settings": {
            "members": influence.model.replicas,
            "actions": influence.scoring.actions,
            "extreme": influence.scoring.extreme,
            "seed": influence.seed,
            "network": asdict(influence.model.config),
        },
        "notes": [*dict.fromkeys([*(dataset.notes if dataset else []), *notes, *more, *warned])],
        "seconds": round(time.monotonic() - began, 1),
        "butfor": __version__,
    }
    kept = model or save_model
    advice = f"score again with --model {kept}" if kept else "free some space, or choose another place"
    with explain_write_error(f"The scores {out}", advice):
        scene = scored_scene(influence, recording, scores, edges or None)
        fans = choose_fans(influence, recording, scores)
        text = render_scores(summary, scores, recording.length, fans, scene, edges)
        if page == target / "report.html":  # inside a new dataset
            write_minari(data, str(out), recording, scores, summary, overwrite, {"report.html": text})
            return summary
        with atomic_write(page) as temporary:  # renamed after the scores are written: both exist, or neither
            temporary.write_text(text, encoding="utf-8")
            if copy is not None:
                names = column_names(scores)
                rows = {names[name]: copy.by_row(recording, score) for name, score in scores.items()}
                copy.write(target, added=rows, overwrite=overwrite)
            elif target.suffix == ".npz":
                write_columns(
                    target, recording, scores, summary, {ARROW.join(edge): value for edge, value in edges.items()}
                )
            else:
                write_minari(data, str(out), recording, scores, summary, overwrite)
    return summary


def _open_unless_plain(data: Any, options: Options, with_data: bool) -> Dataset | None:
    """The dataset; None for an .npz file whose scores are written alone, and for Minari, which reads itself.

    With chosen columns, both are opened; so is a Minari dataset where the package is not installed.
    """
    if is_frame(data):
        return open_dataset(data)
    path = Path(data)
    is_minari = not path.exists() or (path / "data" / "metadata.json").is_file()
    reads_itself = is_minari and find_spec("minari") is not None
    is_plain = is_npz_file(data) and not with_data
    is_chosen = bool(options.observe or options.action or {name.split("/")[0] for name in options.ignore} & ACTIONS)
    return open_dataset(data) if is_chosen or not (reads_itself or is_plain) else None


def _default_out(data: Path | str, dataset: Dataset | None, recording: Recording, alone: bool) -> Path | str:
    """Where scores are written by default: beside the data, with `-cai` in the name."""
    if alone:
        return Path(data).with_name(f"{Path(data).stem}-cai.npz")
    if dataset is not None:
        return default_copy(dataset, "cai")
    stem, _, version = recording.source.removeprefix("Minari dataset ").rpartition("-v")
    return f"{stem}-cai-v{version}"


def _check_copy(
    dataset: Dataset,
    out: Path | str,
    entities: Mapping[str, Sequence[int]],
    report: Path | str | None,
    save_model: Path | str | None,
    overwrite: bool,
) -> tuple[Path, Path]:
    """Paths of the copy with scores and of the report; refuses before the work what could not be written after it."""
    target = dataset.check_copy(copy_path(dataset, out), column_names(entities).values(), overwrite)
    page = Path(report) if report else dataset.page_of(target)
    files = [page, *([Path(save_model)] if save_model is not None else [])]
    check_new_files(files, dataset.files(target), overwrite)
    for path in (page, target.parent, *files):
        check_writable(path)
    return target, page


def use_model(
    influence: Influence,
    name: str,
    recording: Recording,
    entities: Mapping[str, Sequence[int]],
    options: Options,
    device: str = "cpu",
) -> tuple[Bool, list[str]]:
    """Set the options of a given model; returns which steps [N] diagnose it, and notes. Refuses other data."""
    judged = np.arange(len(recording.action)) < MOST_JUDGED
    influence.units.checked_table(f"{name} does not fit the data", recording.transitions(judged), device)
    if entities != influence.entities:
        raise ValueError(f"{name} has the entities {influence.entities}, not {entities}; omit --entities.")
    extreme = influence.scoring.extreme if options.extreme is None else options.extreme
    influence.scoring = replace(influence.scoring, actions=options.actions, extreme=extreme)
    influence.seed = options.seed
    return judged, ["The model was given; it may have been fitted on these episodes."]


def fit_recording(
    recording: Recording,
    entities: Mapping[str, Sequence[int]],
    options: Options = Options(),
    device: str = "cpu",
    progress: Progress = lambda stage, done, total, text: None,
) -> tuple[Influence, Bool, list[str]]:
    """Fit a model; returns it, which steps [N] were held out to diagnose it, and notes."""
    steps = len(recording.action)
    if steps < FEWEST:
        raise ValueError(
            f"{recording.source} has {steps} steps in {len(recording)} episode(s); at least {FEWEST:,} are needed to "
            "fit and diagnose a model, and tens of thousands for good scores. Record more."
        )
    share = min(max(0.1, min(0.25, FEWEST_JUDGED / steps)), MOST_JUDGED / steps)
    groups, notes = _group_steps(recording)
    judged, stopping = split_steps(groups, (share, min(0.1, MOST_JUDGED / steps)), options.seed)
    train = recording.transitions(~judged & ~stopping)
    updates = UPDATES * FOR_ANY_DATA.batch_size // len(train[0])
    epochs = options.epochs or int(np.clip(updates, 20, FOR_ANY_DATA.max_epochs))

    def show(run: Fitting | FitProgress) -> None:
        steep = not isinstance(run, FitProgress) and options.network is None and run.model.config == STEEP
        error = f"error {float(run.best_error.mean()):.3g}"
        progress("a steeper network" if steep else "fitting", run.epoch, run.epochs, error)

    space = recording.action_space
    action = recording.action
    if space is None and action.ndim == 1:  # the smallest space that contains all actions, also the held-out ones
        space = gymnasium.spaces.Discrete(int(action.max()) + 1)
        notes.append(f"The number of actions is not known; {space.n}, up to the largest found, are tried.")
    elif space is None:
        space = gymnasium.spaces.Box(action.min(0).astype(float), action.max(0).astype(float), dtype=np.float64)
        notes.append("The bounds of the actions are not known; actions are tried within those of the data.")
    influence = Influence.fit(
        *train,
        entities,
        action_space=space,
        validation=recording.transitions(stopping),
        model=GraphConfig() if options.graph else options.network,
        horizon=options.horizon,
        fitting=replace(FOR_ANY_DATA, max_epochs=epochs, validate_every=int(np.clip(epochs // 10, 1, 5))),
        scoring=None if options.extreme is None else ScoreConfig(extreme=options.extreme),
        members=options.members,
        seed=options.seed,
        device=device,
        progress=show,
    )
    influence.scoring = replace(influence.scoring, actions=options.actions)
    if options.epochs is not None and not isinstance(influence.model.config, ModelConfig):
        kind = {GraphConfig: "pairs", OutcomeConfig: "outcomes"}.get(type(influence.model.config), "touches")
        notes.append(
            f"A model of {kind} was fitted with its own number of updates; the number of epochs has no effect."
        )
    if options.network is None and influence.model.config == STEEP:
        notes.append("The paper's network explains too little of the change; a steeper network is used instead.")
    return influence, judged, notes


def split_steps(groups: Table, shares: Sequence[float], seed: int) -> list[Bool]:
    """Disjoint sets of steps [N], each of whole groups with about its share of all steps; some steps remain."""
    names, sizes = np.unique(groups, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    taken = 0
    sets: list[Bool] = []
    for place, share in enumerate(shares):
        most = len(names) - taken - (len(shares) - place)  # leave a group for each further set and for training
        reached = int(np.searchsorted(np.cumsum(sizes[order[taken:]]), share * len(groups))) + 1
        count = max(1, min(reached, most))
        sets.append(np.isin(groups, names[order[taken : taken + count]]))
        taken += count
    return sets


def _group_steps(recording: Recording) -> tuple[Table, list[str]]:
    """Groups [N] of steps that are held out together, and notes: episodes, or parts of those that are very long."""
    begins = ~recording.last
    episode = recording.episode[begins]
    if recording.length.max() * 10 <= len(episode):
        return episode, []
    size = len(episode) // STRETCHES
    stretch = np.stack([episode, recording.time[begins] // size], 1)
    groups = np.unique(stretch, axis=0, return_inverse=True)[1].reshape(-1)
    note = f"Some episodes are long: stretches of {size} steps, not whole episodes, are held out. The diagnosis may be"
    return groups, [f"{note} slightly too good."]


def score_recording(
    influence: Influence, recording: Recording, progress: Progress = lambda stage, done, total, text: None
) -> dict[str, Table]:
    """CAI of every state [S] for each entity."""
    scores = _by_chunks(influence, recording, "scoring", influence.score, progress)
    lost = np.flatnonzero(~np.all([np.isfinite(score) for score in scores.values()], 0))
    if len(lost):
        raise FloatingPointError(
            f"{len(lost)} state(s) of {recording.source} have no finite score, first episode "
            f"{recording.episode[lost[0]]}, step {recording.time[lost[0]]}: they are too far from the other states. "
            "Remove such outliers."
        )
    return scores


def choose_fans(influence: Influence, recording: Recording, scores: Mapping[str, Table]) -> dict[str, list[Fan]]:
    """By entity, outcomes of other actions in a state with little and in the state with the most influence."""
    found = {}
    for name, score in scores.items():
        order = np.argsort(score, kind="stable")
        most = fan_of(influence, recording.observation[order[-1]], name, None, FAN)
        least = fan_of(influence, recording.observation[order[len(order) // 20]], name, most.columns, FAN)
        found[name] = [least, most]
    return found


def graph_recording(
    influence: Influence, recording: Recording, progress: Progress = lambda stage, done, total, text: None
) -> dict[tuple[str, str], Table]:
    """Influence between entities in every state [S], for each edge (source, target)."""

    def edges_of(states: Table, generator: torch.Generator) -> dict[tuple[str, str], Table]:
        return entity_edges(influence.graph(states, generator=generator))

    return _by_chunks(influence, recording, "edges", edges_of, progress)


def _by_chunks(
    influence: Influence,
    recording: Recording,
    stage: str,
    score: Callable[[Table, torch.Generator], Mapping[Name, Any]],
    progress: Progress,
) -> dict[Name, Table]:
    """Score the states of a recording part by part, with one stream of tried actions: by name, [S] each."""
    states = recording.observation
    parts: list[Mapping[Name, Any]] = []
    generator = make_generators([influence.seed], influence.device)[0]
    for start in range(0, len(states), CHUNK):
        parts.append(score(states[start : start + CHUNK], generator))
        progress(stage, min(start + CHUNK, len(states)), len(states), "states")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def summarize_edges(edges: Mapping[tuple[str, str], Table]) -> dict[str, Any]:
    """The numbers of each edge "source -> target", ready for JSON."""
    return {
        ARROW.join(edge): {
            "above": float((value > THRESHOLD).mean()),
            "mean": float(value.mean()),
            "highest": float(value.max()),
        }
        for edge, value in edges.items()
    }


def diagnose_recording(
    influence: Influence, recording: Recording, judged: Bool
) -> tuple[dict[str, Diagnosis], list[str]]:
    """Diagnose the model with the steps `judged` [N]; returns nothing for too few steps, and notes."""
    if judged.sum() < GROUPS:
        return {}, []
    notes: list[str] = []
    sampled = None if recording.sampled is None else recording.sampled[judged]
    if sampled is not None and sampled.sum() < min(FEWEST_RANDOM, len(sampled)):
        notes = [f"Only {sampled.sum()} of {len(sampled)} held-out actions are known to be random; all are diagnosed."]
        sampled = None
    steps = ~recording.last
    stretches = recording.episode[steps] * len(recording.observation) + recording.time[steps] // SIMILAR
    transitions = recording.transitions(judged, influence.predicted_steps)
    return influence.diagnose(*transitions, sampled=sampled, groups=stretches[judged]), notes


def summarize_scores(recording: Recording, scores: Mapping[str, Table], influence: Influence) -> dict[str, Any]:
    """The numbers of a summary, ready for JSON."""
    by_entity = {}
    for name, score in scores.items():
        quantiles = np.quantile(score, QUANTILES).tolist()
        by_entity[name] = {
            "columns": influence.entities[name],
            "above": float((score > THRESHOLD).mean()),
            "mean": float(score.mean()),
            "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
            "highest": float(score.max()),
        }
    return {
        "source": recording.source,
        "episodes": len(recording),
        "steps": len(recording.action),
        "states": len(recording.observation),
        "parts": recording.sizes,
        "threshold": THRESHOLD,
        "horizon": influence.horizon,
        "predicted_steps": influence.predicted_steps,
        "names": column_names(scores),
        "entities": by_entity,
    }
