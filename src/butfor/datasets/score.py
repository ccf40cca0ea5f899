"""Influence of every state of a data set: fit, score, judge, and write the scores back with a report."""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from butfor import __version__
from butfor.datasets.files import Recording, check_outputs, column_names, read_data, write_columns, write_minari
from butfor.datasets.recording import Table
from butfor.influence.diagnosis import FEWEST as FEWEST_JUDGED
from butfor.influence.diagnosis import GROUPS, Diagnosis
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import STEEP, ModelConfig
from butfor.models.fitting import FOR_ANY_DATA, Fitting
from butfor.models.networks import make_generators
from butfor.rollouts.episodes import Bool
from butfor.runs.files import atomic_write, explain_write_error
from butfor.spaces.entities import EXAMPLE

if TYPE_CHECKING:
    from butfor.rollouts.play import Progress

FEWEST = 1_000  # steps
FEWEST_RANDOM = 10 * GROUPS  # held-out steps with random actions: fewer are not judged by alone
MOST_JUDGED = 20_000  # held-out steps: more make the verdict no better
STRETCHES = 20  # into which all steps are cut where a few episodes hold most of them
UPDATES = 60_000  # of the model, at most, where no number of epochs is given
THRESHOLD = 0.1  # nats
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CHUNK = 20_000  # states scored between two signs of life


@dataclass(frozen=True)
class Options:
    """How a data set is scored."""

    members: int = 1
    """networks that predict as one"""
    epochs: int | None = None
    """at most; None: 300, or fewer for more than 100,000 steps"""
    actions: int = 64
    """K, the actions tried in each state (discrete action spaces: all of them)"""
    extreme: float | None = None
    """share of their numbers that are the lowest or highest possible; None: 0, or what a given model has"""
    seed: int = 0
    ignore: tuple[str, ...] = ()
    """parts of the observation to leave out, by their paths"""
    network: ModelConfig | None = None
    """None: the paper's, or a steeper one where that misses much (`Influence.fit`)"""

    def __post_init__(self) -> None:
        for name, fewest in (("members", 1), ("epochs", 1), ("actions", 2), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < fewest:
                raise ValueError(f"{name} must be at least {fewest}; got {value}.")


DEFAULTS = Options()


def _silent(stage: str, done: int, total: int, text: str) -> None:
    """No sign of progress."""


def score_file(
    data: Path | str,
    out: Path | str,
    entities: Sequence[str] = (),
    options: Options = DEFAULTS,
    *,
    model: Path | str | None = None,
    save_model: Path | str | None = None,
    report: Path | str | None = None,
    overwrite: bool = False,
    device: str = "cpu",
    progress: "Progress | None" = None,
) -> dict[str, Any]:
    """Scores every state of a data set and writes a column file (`out` ends in .npz) or a new Minari data set.

    `entities` are named in words, such as "cube=3:6". `model` is a saved Influence to use instead of fitting one, whose
    entities are used then. Returns the summary, with the paths of what was written.
    """
    show = progress or _silent
    began, known = time.monotonic(), None if model is None else Influence.load(model, device)
    recording = read_data(data, options.ignore)
    columns = known.entities if known else named_entities(recording, entities)
    if known:
        _check_model(known, str(model), recording, entities)
    target, page = check_outputs(data, out, columns, report, save_model, overwrite)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        if known:
            influence, judged = _retuned(known, options), first_judged(recording)
            notes = ["The model was given; whether it has seen these episodes before is not known."]
        else:
            influence, judged, notes = fit_recording(recording, columns, options, device, show)
        if save_model is not None:  # at once: the fit is what took time
            with explain_write_error(f"The model {save_model}", "make room, or give another place"):
                influence.save(save_model)
        if options.extreme and influence.law.count:
            notes.append("The actions are discrete: all are tried, and a share of extreme ones means nothing.")
        scores = score_recording(influence, recording, show)
        found, more = diagnose_recording(influence, recording, judged)
    told = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    summary = summarise(recording, scores, influence.entities, found) | {
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
        "notes": [*dict.fromkeys([*notes, *more, *told])],
        "seconds": round(time.monotonic() - began, 1),
        "butfor": __version__,
    }
    kept = model or save_model
    with explain_write_error(
        f"The scores {out}", f"score with --model {kept}" if kept else "make room, or give another place"
    ):
        _write(summary, data, out, target, page, recording, scores, overwrite)
    return summary


def named_entities(recording: Recording, texts: Sequence[str]) -> dict[str, list[int]]:
    """The columns of the entities that the texts name; at least one is needed."""
    if not texts:
        parts = ", ".join(f"{path or 'the observation'} ({size} columns)" for path, size in recording.sizes.items())
        raise ValueError(f"No entity is named; say by --entities which columns it has: {EXAMPLE}. There are: {parts}.")
    return recording.entities(texts)


def fit_recording(
    recording: Recording,
    entities: Mapping[str, Sequence[int]],
    options: Options = DEFAULTS,
    device: str = "cpu",
    show: "Progress" = _silent,
) -> tuple[Influence, Bool, list[str]]:
    """The model, which steps [N] were held out from it to judge it, and notes; whole episodes are held out."""
    steps = len(recording.action)
    if steps < FEWEST:
        raise ValueError(
            f"{recording.source} has {steps} steps in {len(recording)} episode(s); at least {FEWEST:,} are needed: a "
            f"tenth tells when to stop learning, and a quarter, in {GROUPS} groups, whether to trust the scores; "
            "tens of thousands make good scores. Record more."
        )
    share = min(max(0.1, min(0.25, FEWEST_JUDGED / steps)), MOST_JUDGED / steps)
    groups, notes = _groups(recording)
    judged, stopping = split_steps(groups, (share, min(0.1, MOST_JUDGED / steps)), options.seed)
    train = recording.transitions(~judged & ~stopping)
    most, batch = FOR_ANY_DATA.max_epochs, FOR_ANY_DATA.batch_size
    epochs = options.epochs or int(np.clip(UPDATES * batch // len(train[0]), 20, most))
    fitting = replace(FOR_ANY_DATA, max_epochs=epochs, validate_every=int(np.clip(epochs // 10, 1, 5)))

    def told(run: Fitting) -> None:
        stage = "a steeper network" if options.network is None and run.module.config == STEEP else "fitting"
        show(stage, run.epoch, epochs, f"validation error {float(run.best_error.mean()):.3g}")

    influence = Influence.fit(
        *train,
        entities,
        action_space=recording.action_space or smallest_space(recording.action),
        validation=recording.transitions(stopping),
        model=options.network,
        fitting=fitting,
        scoring=ScoreConfig(options.actions, extreme=options.extreme or 0.0),
        members=options.members,
        seed=options.seed,
        device=device,
        progress=told,
    )
    if options.network is None and influence.model.config == STEEP:
        notes.append("The paper's network explains too little of the change; a steeper one, which tells more, is used.")
    if recording.action_space is None and influence.law.count:
        count = f"{influence.law.count} are tried, up to the data's last"
        notes.append(f"How many actions there are is not known: {count}.")
    elif recording.action_space is None:
        notes.append("No bounds of the actions are known: actions are tried within those of the data.")
    return influence, judged, notes


def smallest_space(action: Table) -> gymnasium.Space[Any]:
    """The smallest space that holds all actions [N, A] or [N], also those that are held out."""
    if action.ndim == 1:
        return gymnasium.spaces.Discrete(int(action.max()) + 1)
    return gymnasium.spaces.Box(action.min(0).astype(float), action.max(0).astype(float), dtype=np.float64)


def split_steps(groups: Table, shares: Sequence[float], seed: int) -> list[Bool]:
    """Disjoint sets of steps [N], each of whole groups with about its share of all steps; something is left over."""
    names, sizes = np.unique(groups, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    taken, sets = 0, list[Bool]()
    for place, share in enumerate(shares):
        most = len(names) - taken - (len(shares) - place)  # one group for each set that is still to come
        reached = int(np.searchsorted(np.cumsum(sizes[order[taken:]]), share * len(groups))) + 1
        count = max(1, min(reached, most))
        sets.append(np.isin(groups, names[order[taken : taken + count]]))
        taken += count
    return sets


def _groups(recording: Recording) -> tuple[Table, list[str]]:
    """The episode of each step [N]; episodes with more than a tenth of all steps are cut, which a note says."""
    begins = ~recording.last
    episode, step = recording.episode[begins], recording.time[begins]
    if recording.length.max() * 10 <= len(episode):
        return episode, []
    size = len(episode) // STRETCHES
    groups = np.unique(np.stack([episode, step // size], 1), axis=0, return_inverse=True)[1]
    text = (
        f"Some of the {len(recording)} episode(s) are long: stretches of {size} steps are held out, not whole episodes"
    )
    return groups.reshape(-1), [f"{text}, which flatters the model a little."]


def first_judged(recording: Recording) -> Bool:
    """The steps [N] by which a model that was given is judged: from the start, as many as are of use."""
    return np.arange(len(recording.action)) < MOST_JUDGED


def score_recording(influence: Influence, recording: Recording, show: "Progress" = _silent) -> dict[str, Table]:
    """CAI of every state, the last ones included: [S] for each entity."""
    states, parts = recording.observation, list[dict[str, Any]]()
    generator = make_generators([influence.seed], influence.model.mean_head.weight.device)[0]
    for start in range(0, len(states), CHUNK):
        parts.append(influence.score(states[start : start + CHUNK], generator))
        show("scoring", min(start + CHUNK, len(states)), len(states), "states")
    scores = {name: np.concatenate([part[name] for part in parts]) for name in influence.entities}
    lost = np.flatnonzero(~np.all([np.isfinite(score) for score in scores.values()], 0))
    if len(lost):
        place = f"episode {recording.episode[lost[0]]}, step {recording.time[lost[0]]}"
        text = f"{len(lost)} state(s) of {recording.source} have no finite score, first {place}"
        raise FloatingPointError(f"{text}: they are too far from the others for the model; leave such outliers out.")
    return scores


def diagnose_recording(
    influence: Influence, recording: Recording, judged: Bool
) -> tuple[dict[str, Diagnosis], list[str]]:
    """Whether the scores can be trusted, by the steps `judged` [N], and notes; nothing where these are too few."""
    if judged.sum() < GROUPS:
        return {}, []
    sampled, notes = None if recording.sampled is None else recording.sampled[judged], list[str]()
    if sampled is not None and sampled.sum() < min(FEWEST_RANDOM, len(sampled)):
        notes = [f"Only {sampled.sum()} of {len(sampled)} held-out actions are known to be random: all are judged by."]
        sampled = None
    return influence.diagnose(*recording.transitions(judged), sampled=sampled), notes


def summarise(
    recording: Recording,
    scores: Mapping[str, Table],
    entities: Mapping[str, Sequence[int]],
    found: Mapping[str, Diagnosis],
) -> dict[str, Any]:
    """The numbers and words of a summary, ready for JSON."""
    by_entity = {}
    for name, score in scores.items():
        levels = np.quantile(score, QUANTILES)
        by_entity[name] = {
            "columns": [int(column) for column in entities[name]],
            "above": float((score > THRESHOLD).mean()),
            "mean": float(score.mean()),
            "quantiles": {str(level): float(value) for level, value in zip(QUANTILES, levels, strict=True)},
            "highest": float(score.max()),
        }
    return {
        "source": recording.source,
        "episodes": len(recording),
        "steps": len(recording.action),
        "states": len(recording.observation),
        "parts": recording.sizes,
        "threshold": THRESHOLD,
        "names": column_names(scores),
        "entities": by_entity,
        "diagnosis": {name: one.plain() for name, one in found.items()},
    }


def _write(
    summary: dict[str, Any],
    data: Path | str,
    out: Path | str,
    target: Path,
    page: Path,
    recording: Recording,
    scores: Mapping[str, Table],
    overwrite: bool,
) -> None:
    """The scores and the report: both, or neither."""
    from butfor.reporting.scores_page import render_scores

    text = render_scores(summary, scores, recording.length)
    if page == target / "report.html":
        write_minari(data, str(out), recording, scores, summary, overwrite, {"report.html": text})
        return
    with atomic_write(page) as temporary:  # it gets its name once the scores are there
        temporary.write_text(text, encoding="utf-8")
        if Path(out).suffix == ".npz":
            write_columns(target, recording, scores, summary)
        else:
            write_minari(data, str(out), recording, scores, summary, overwrite)


def _check_model(influence: Influence, path: str, recording: Recording, texts: Sequence[str]) -> None:
    """Refuses a saved model that is of other observations, actions or entities than the data."""
    size, law = recording.observation.shape[1], influence.law
    if influence.model.obs_size != size:
        raise ValueError(f"{path} is of observations of {influence.model.obs_size} columns; the data have {size}.")
    law_is = f"{law.count} discrete actions" if law.count else f"actions of {law.size} dimension(s)"
    discrete = recording.action.ndim == 1
    if discrete != bool(law.count) or (not discrete and recording.action.shape[1] != law.size):
        has = "discrete actions" if discrete else f"actions of {recording.action.shape[1]} dimension(s)"
        raise ValueError(f"{path} is of {law_is}; the data have {has}.")
    if discrete and recording.action.max() >= law.count:
        raise ValueError(f"{path} is of {law_is}; the data have an action {recording.action.max()}.")
    given = recording.entities(texts) if texts else influence.entities
    if given != influence.entities:
        raise ValueError(
            f"{path} has the entities {influence.entities}, not {given}; leave --entities out, or --model."
        )


def _retuned(influence: Influence, options: Options) -> Influence:
    """A saved model with the number of tried actions and the seed that were asked for."""
    extreme = influence.scoring.extreme if options.extreme is None else options.extreme
    influence.scoring = replace(influence.scoring, actions=options.actions, extreme=extreme)
    influence.seed = options.seed
    return influence
