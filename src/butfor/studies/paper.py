"""The paper's experiments by name: the arms of each, what the paper claims about them, and how to record a study.

A number that is not from the paper is marked as ours in the claim or the description.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from butfor.analysis.claims import Claim
from butfor.detection.settings import detection_preset
from butfor.runs.files import write_json
from butfor.runs.folder import invoked_command
from butfor.studies.record import ENVS, record_arms, record_claims
from butfor.studies.units import AnyConfig, UnitState, kind_of, unit_name, unit_state
from butfor.training.settings import Config, Use, preset

Size = Literal["paper", "small"]
PICK = "pick-and-place"
EPISODES = {PICK: 20_000, "push": 10_000, "rot-table": 30_000}  # of the paper's curves
SHORT: dict[Use, str] = {"priority": "P", "bonus": "bonus", "active": "active"}
HER = "DDPG + HER"
ALONE = "CAI alone"
OURS = "(the number is ours)"


@dataclass(frozen=True)
class Study:
    """One experiment: what it is about, what is run for it, and what the paper claims about the results."""

    name: str
    title: str
    about: str
    arms: Mapping[str, AnyConfig]
    """by label: the lines of a figure, or the environments of a table"""
    claims: list[Claim] = field(default_factory=list)


def _detect(*envs: str) -> dict[str, AnyConfig]:
    """Return the arms of a study of detection; these studies share one run for each environment."""
    return {env: detection_preset(env) for env in envs}


def _run(env: str = PICK, *uses: Use) -> Config:
    """Return the paper's settings for an environment with some uses of influence, at the paper's length, ten seeds."""
    return replace(preset(env), seeds=10, episodes=EPISODES[env], use=uses)


def _rival(name: str) -> Config:
    """Return a preset of another signal on pick-and-place, at the paper's length, ten seeds."""
    return replace(preset(PICK, name), seeds=10, episodes=EPISODES[PICK])


def _vime() -> dict[str, Config]:
    """Return the variants of VIME: what its information gain is about."""
    presets = {"VIME object + agent": "vime", "VIME object": "vime-object", "VIME full": "vime-full"}
    return {label: _rival(name) for label, name in presets.items()}


def _disagreement() -> dict[str, Config]:
    """Return the variants of disagreement: what the ensemble predicts, and the weight of the bonus, which is ours."""
    variants = {
        "object": ("disagreement", (50.0, 10.0, 100.0)),
        "object + agent": ("disagreement-position", (50.0,)),
        "full state": ("disagreement-full", (0.25, 0.1, 1.0)),
    }
    return {
        f"{label}, {weight:g}": _with(_rival(name), "bonus", weight=weight)
        for label, (name, weights) in variants.items()
        for weight in weights
    }


def _with(config: Config, part: str, **changes: Any) -> Config:
    """Return a config with changes in one of its nested configs."""
    changed: Any = {part: replace(getattr(config, part), **changes)}
    return replace(config, **changed)


def _detection_studies() -> Iterator[Study]:
    """Table 1, figures 3 and S1 to S4, and a remark of appendix F."""
    both = _detect("slide", PICK)
    yield Study(
        "table1", "Detection: table 1",
        "CAI, entropy, attention and contact as detectors of influence on 1DSlide and FetchPickAndPlace.", both,
        [*(Claim("CAI detects influence almost without mistakes.", "detects", env) for env in both),
         *(Claim("No other detector does so reliably.", "alone", env) for env in both)],
    )  # fmt: skip
    yield Study(
        "detection-curves", "Detection: curves, noise and K",
        "ROC and precision-recall curves, performance under observation noise, and by the number of actions K.", both,
        [Claim(f"Performance drops gracefully with noise: at 10 % noise, two thirds of it remain {OURS}.", "times",
               PICK, factor=2 / 3, measure="noise", row="10 %, also in testing", reference="0 %, also in testing")],
    )  # fmt: skip
    yield Study(
        "random-test-set", "Detection on a random policy's states",
        "Detection on the states of a random policy, where influence is rare.", _detect(PICK),
        [Claim(f"Performance is lower where influence is rare, and still quite good: half of it remains {OURS}.",
               "times", PICK, factor=0.5, measure="sets", row="random set", reference="test set"),
         Claim(f"CAI is robust to the number of actions: with 8 instead of 64, four fifths remain {OURS}.", "times",
               PICK, factor=0.8, measure="actions", row="8, independent, mean", reference="64, independent, mean")],
    )  # fmt: skip
    yield Study(
        "random-training-data", "Detection learned from random data",
        "The influence model trained on episodes of a random policy instead of a learning agent's.", _detect(PICK),
        [Claim(f"A model of random episodes gives similar results: 95 % remain {OURS}.", "times", PICK, factor=0.95,
               measure="helps", row="Trained on random episodes", reference="As in the table")],
    )  # fmt: skip
    yield Study(
        "trajectories", "CAI along episodes",
        "CAI along chosen episodes: no contact, a brief touch, a successful manipulation.", _detect(PICK),
        [Claim(f"CAI is high in manipulations and low without contact: five times as high {OURS}.", "times", PICK,
               factor=5, measure="episodes", row="manipulation", reference="no contact"),
         Claim(f"It spikes around a brief touch: five times as high as in the other steps {OURS}.", "times", PICK,
               factor=5, measure="episodes", row="around a brief touch", reference="the rest of these episodes"),
         Claim(f"It misses hovering: in influenced states it is twice as high in contact as without {OURS}.", "times",
               PICK, factor=2, measure="episodes", row="influenced, in contact", reference="influenced, no contact")],
    )  # fmt: skip


def _exploration_studies() -> Iterator[Study]:
    """Figures 4 to 7: influence as the only reward, as a bonus, and for choosing actions."""
    words = "The agent learns to lift and hold the object within 2,000 episodes:"
    yield Study(
        "intrinsic", "Influence as the only reward",
        "Influence on the object as the only reward: does the agent learn to grasp, lift and hold it?",
        {ALONE: replace(preset(PICK, "intrinsic"), seeds=10)},
        [Claim(f"{words} held in the air in a tenth of the steps {OURS}.", "reaches", ALONE, level=0.1, within=2_000,
               measure="held"),
         Claim(f"{words} lifted in more of the steps than at the first evaluation.", "grows", ALONE, within=2_000,
               measure="lifted")],
    )  # fmt: skip
    bonus = _run(PICK, "bonus")
    weights = (0.05, 0.1, 0.2, 0.5, 1.0)
    yield Study(
        "bonus-sweep", "The weight of the bonus",
        "The weight of influence as an exploration bonus; 0 is the agent without it. The grid is ours.",
        {HER: _run()} | {f"bonus {weight:g}": _with(bonus, "bonus", weight=weight) for weight in weights},
        [Claim("With the right weight, 60 % is reached four times faster than without a bonus.", "faster", "bonus 0.2",
               HER, factor=4),
         Claim("Too large a weight lets the bonus dominate the task's reward.", "better", "bonus 0.2", "bonus 1")],
    )  # fmt: skip
    active = _run(PICK, "active")
    shares = {f"active {share:.0%}": _with(active, "explore", active=share) for share in (0.25, 0.5, 0.75, 1.0)}
    words = "Any amount of active exploration improves over random exploration."
    yield Study(
        "active-sweep", "How much active exploration",
        "The share of exploratory actions that are chosen for their influence. The grid is ours.",
        {HER: _run(), **shares},
        [Claim("Active exploration is roughly twice as sample-efficient.", "faster", "active 100%", HER, factor=2,
               roughly=True),
         *(Claim(words, "better", label, HER) for label in shares)],
    )  # fmt: skip
    both = "CAI bonus + active"
    ours = {"CAI bonus": bonus, "CAI active": active, both: _run(PICK, "bonus", "active")}
    vime, disagreement = _vime(), {f"Disagreement {label}": config for label, config in _disagreement().items()}
    rivals = {"VIME": tuple(vime), "disagreement, a viable alternative": tuple(disagreement)}
    singles = {"CAI bonus": "the bonus", "CAI active": "active choice"}
    yield Study(
        "exploration", "Ways to explore",
        "Exploration by influence against the best variants of information gain (VIME) and an ensemble's disagreement.",
        {HER: _run(), **ours, **vime, **disagreement},
        [*(Claim(f"All uses of CAI for exploration are better than {words}.", "better", label, variants[0],
                 than_variants=variants[1:])
           for words, variants in rivals.items() for label in ours),
         *(Claim(f"Bonus and active choice together improve over {words}.", "better", both, label)
           for label, words in singles.items())],
    )  # fmt: skip


def _replay_study(env: str) -> Study:
    """Return figure 8 on one environment: CAI-P against EBP, PER and HER."""
    base = _run(env)
    rivals = {label: _with(base, "priority", kind=label.lower()) for label in ("EBP", "PER")}
    return Study(
        f"replay-{env}", f"Replay by influence: {env}",
        f"Replaying influential episodes more often, on {env}, against energy, TD error and no priorities.",
        {HER: base, "CAI-P": _run(env, "priority"), **rivals},
        [Claim("CAI-P reaches 60 % 1.5 to 2.5 times faster than PER (judged by the 1.5).", "faster", "CAI-P", "PER",
               factor=1.5),
         Claim("CAI-P is on par with EBP, which knows the physics, or better.", "on par", "CAI-P", "EBP"),
         Claim("CAI-P is faster than replay without priorities.", "faster", "CAI-P", HER)],
    )  # fmt: skip


def _controls_study() -> Study:
    """Return our question about the priority and the bonus: does it need influence, or any sign of contact?"""
    names: tuple[Literal["oracle", "contact", "moved", "nearness", "shuffled"], ...] = (
        "oracle", "contact", "moved", "nearness", "shuffled",
    )  # fmt: skip
    controls = {f"{name}-P": replace(_run(PICK, "priority"), signal=name) for name in names}
    nearness = replace(_run(PICK, "bonus"), signal="nearness")
    return Study(
        "controls", "What the priority has to know",
        "Priorities by influence against priorities by simpler signs of contact, by the exact label, and by the same "
        "scores given to other episodes; and nearness as the bonus. The question is ours, not the paper's.",
        {HER: _run(), "CAI-P": _run(PICK, "priority"), **controls,
         "CAI bonus": _run(PICK, "bonus"), "nearness bonus": nearness},
        [*(Claim("Priority by influence is better than by a simpler sign of contact (our question).", "better", "CAI-P",
                 f"{name}-P") for name in ("contact", "moved", "nearness")),
         Claim("Priorities need their meaning: the same scores given to other episodes are worse (our question).",
               "better", "CAI-P", "shuffled-P"),
         Claim("The bonus by influence is better than by nearness (our question).", "better", "CAI bonus",
               "nearness bonus")],
    )  # fmt: skip


def _touch_study(env: str) -> Study:
    """Return our comparison of the two models that learn along, on one environment."""
    arms = {}
    for use, label in SHORT.items():
        arms[label] = _run(env, use)
        arms[f"{label}, touches"] = _with(arms[label], "cai", model="touch")
    return Study(
        "touch-model" if env == PICK else f"touch-model-{env}", f"A model of touches in training: {env}",
        f"CAI by the paper's network against CAI by a model of touches, on {env}. The question is ours, not the "
        "paper's.",
        arms,
        [Claim("The model of touches is as good as the paper's network or better (our question).", "on par",
               f"{label}, touches", label) for label in SHORT.values()],
    )  # fmt: skip


def _record_study(env: str) -> Study:
    """Return our question about the preset `record`: what each of its parts brings."""
    arms = record_arms(env)
    return Study(
        "record" if env == PICK else f"record-{env}", f"What the parts of the record bring: {env}",
        f"The preset record on {env}, each of its parts removed once from the whole and added once to the paper's "
        "agent, and the whole without any use of influence. On seeds that no setting was chosen on. The question is "
        "ours, not the paper's.",
        dict(arms), record_claims(env, arms),
    )  # fmt: skip


def _combined_study() -> Study:
    """Return figure S6: all eight subsets of the three uses."""
    subsets = [subset for size in range(4) for subset in combinations(SHORT, size)]
    labels = {subset: " + ".join(SHORT[use] for use in subset) or HER for subset in subsets}
    pairs = {labels[subset]: [SHORT[use] for use in subset] for subset in subsets if len(subset) == 2}
    everything = "P + bonus + active"
    words = "Two or three need 4 to 10 times fewer episodes than none (judged by the 4)."
    return Study(
        "combined", "The three uses together",
        "Priority (P), bonus and active choice, alone and together.",
        {label: _run(PICK, *subset) for subset, label in labels.items()},
        [Claim("All three together reach 95 % within 3,000 episodes.", "reaches", everything, level=0.95, within=3_000),
         *(Claim(words, "faster", label, HER, factor=4) for label in (everything, *pairs)),
         *(Claim("On its own, priority brings the most.", "better", "P", other) for other in ("bonus", "active")),
         Claim("Bonus and active choice bring similar gains beside priority.", "similar", "P + bonus", "P + active"),
         *(Claim("The uses are complementary: two are better than one.", "better", pair, single)
           for pair, singles in pairs.items() for single in singles),
         *(Claim("All three together are best.", "better", everything, pair) for pair in pairs)],
    )  # fmt: skip


def _variant_studies() -> Iterator[Study]:
    """Figures S5, S7 and S8, and rescoring in part: variants of the rivals and of CAI."""
    vime, disagreement = _vime(), _disagreement()
    best, *others = vime
    words = "The variant on the positions of agent and object is the best."
    yield Study(
        "vime-variants", "Variants of VIME", "What the information gain is about.", vime,
        [Claim(words, "better", best, label) for label in others],
    )  # fmt: skip
    first, *alike = (label for label in disagreement if label.startswith("object, "))
    full, *weights = (label for label in disagreement if label.startswith("full state"))
    words = "The variant on the object is the best."
    yield Study(
        "disagreement-variants", "Variants of disagreement",
        "What the ensemble predicts, and the weight of its bonus.", disagreement,
        [Claim(words, "better", first, "object + agent, 50", variants=tuple(alike)),
         Claim(words, "better", first, full, variants=tuple(alike), than_variants=tuple(weights))],
    )  # fmt: skip
    priority = _run(PICK, "priority")
    words = "Rescoring the newest 1,000 episodes, and all every 1,000, loses little."
    yield Study(
        "partial-rescoring", "Rescoring in part",
        "Scores of old episodes go out of date as the model learns: rescore all after each fit, or mostly the newest.",
        {"all": priority, "newest": _with(priority, "cai", rescore="newest")},
        [Claim(words, "on par", "newest", "all")],
    )  # fmt: skip
    yield Study(
        "heatmaps", "Influence over a training run",
        "CAI and the exact label of each step over training, and what the agent does with the object.",
        {ALONE: replace(preset(PICK, "intrinsic"), seeds=10)},
        [Claim("CAI approximates the label over training well.", "follows", ALONE, measure="label"),
         Claim("It is highest once the agent lifts the object.", "follows", ALONE, measure="lifted"),
         Claim("The label spreads more evenly than CAI.", "uneven", ALONE)],
    )  # fmt: skip


_studies = [
    *_detection_studies(),
    *_exploration_studies(),
    *(_replay_study(env) for env in ("push", PICK, "rot-table")),
    _controls_study(),
    *(_touch_study(env) for env in (PICK, "push")),
    *(_record_study(env) for env in ENVS),
    _combined_study(),
    *_variant_studies(),
]
STUDIES = {study.name: study for study in _studies}


def make_study(name: str, size: Size = "paper", **changes: Any) -> Study:
    """Return a study by name.

    Args:
        name: a key of `STUDIES`.
        size: "paper", or "small" for runs of minutes that only show that everything works.
        **changes: settings to replace in all training runs, such as `episodes` and `num_envs`; `seeds` in all runs.
    """
    if name not in STUDIES:
        raise ValueError(f"There is no study {name!r}; the studies are {', '.join(STUDIES)}.")
    if size not in ("paper", "small"):
        raise ValueError(f"size is {size!r}; expected 'paper' or 'small'.")
    study = STUDIES[name]
    arms: dict[str, AnyConfig] = {}
    for label, config in study.arms.items():
        if size == "small":
            config = _small(config, name)
        wanted = {key: value for key, value in changes.items() if isinstance(config, Config) or key == "seeds"}
        arms[label] = replace(config, **wanted)
    return replace(study, arms=arms)


def _small(config: AnyConfig, name: str) -> AnyConfig:
    """Return the same experiment in minutes on two cores: too short to learn anything."""
    if not isinstance(config, Config):
        asked: dict[str, Any] = {"detection-curves": ("actions", "noise"), "random-training-data": ("helps",)}
        demo = detection_preset(config.env, "demo")
        return replace(demo, studies=asked.get(name, demo.studies), noise_levels=(0.0, 0.2))
    schedule = ((60, 200), (10**9, 50))
    return replace(
        config, seeds=2, episodes=120, warmup=max(config.warmup * 3 // 10, 1), evaluate_every=20,
        evaluation_episodes=10, fit_schedule=schedule, fit_every=max(config.fit_every // 5, 1),
    )  # fmt: skip


def record_path(name: str, root: Path | str, size: str) -> Path:
    """Return where a study is recorded; one of the small size has a name of its own."""
    return Path(root) / "studies" / f"{name if size == 'paper' else f'{name}-{size}'}.json"


def write_study(study: Study, root: Path | str, size: Size) -> Path:
    """Record a study for its reports: arms, what the size asks of them, claims."""
    path = record_path(study.name, root, size)
    full = make_study(study.name, size).arms if study.name in STUDIES else study.arms
    arms = [
        {"label": label, "folder": unit_name(config), "kind": kind_of(config)}
        | {key: getattr(full[label], key) for key in ("seeds", "episodes") if hasattr(full.get(label), key)}
        for label, config in study.arms.items()
    ]
    record = {
        "schema": 1,
        "name": path.stem,
        "title": study.title,
        "about": study.about,
        "size": size,
        "command": invoked_command(),
        "arms": arms,
        "claims": [dataclasses.asdict(claim) for claim in study.claims],
    }
    write_json(path, record)
    return path


def study_states(study: Study, root: Path | str) -> dict[str, UnitState]:
    """Return how far each arm is, by label."""
    return {label: unit_state(config, root) for label, config in study.arms.items()}
