"""Every experiment of the paper by name: its arms, each a label and a config, and what the paper claims of them."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from butfor.analysis.claims import Claim
from butfor.detection.settings import detection_preset
from butfor.runs.files import write_json
from butfor.runs.folder import invoked_command
from butfor.studies.claims import CLAIMS, HER
from butfor.studies.units import AnyConfig, UnitState, kind_of, unit_name, unit_state
from butfor.training.settings import Config, Overlap, Use, preset

Size = Literal["paper", "small"]
EPISODES = {"pick-and-place": 20_000, "push": 10_000, "rot-table": 30_000}  # of the paper's curves
USES: tuple[Use, ...] = ("priority", "bonus", "active")
SHORT = {"priority": "P", "bonus": "bonus", "active": "active"}


@dataclass(frozen=True)
class Arm:
    """One line of a figure, or one table."""

    label: str
    config: AnyConfig


@dataclass(frozen=True)
class Study:
    """One experiment: what it asks, what is run for it, and what the paper says came out."""

    name: str
    title: str
    about: str
    arms: tuple[Arm, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The paper's sentences about it."""
        return CLAIMS.get(self.name, ())


def _detection(name: str, title: str, about: str, *worlds: str) -> Study:
    """Studies of detection share one run a world, which answers all of them."""
    return Study(name, title, about, tuple(Arm(world, detection_preset(world)) for world in worlds))


def table1() -> Study:
    """Table 1."""
    about = "CAI, entropy, attention and contact as detectors of influence on 1DSlide and FetchPickAndPlace."
    return _detection("table1", "Detection: table 1", about, "slide", "pick-and-place")


def detection_curves() -> Study:
    """Figures 3 and S1."""
    about = "ROC and precision-recall curves, performance under observation noise, and by the number of actions K."
    return _detection("detection-curves", "Detection: curves, noise and K", about, "slide", "pick-and-place")


def random_test_set() -> Study:
    """Figure S2."""
    about = "Detection on the states of a random policy, where influence is rare."
    return _detection("random-test-set", "Detection on a random policy's states", about, "pick-and-place")


def random_training_data() -> Study:
    """The remark of appendix F that training on random data gives similar results."""
    about = "The influence model trained on episodes of a random policy instead of a learning agent's."
    return _detection("random-training-data", "Detection learned from random data", about, "pick-and-place")


def trajectories() -> Study:
    """Figures S3 and S4."""
    about = "CAI along chosen episodes: no contact, a brief touch, a successful manipulation."
    return _detection("trajectories", "CAI along episodes", about, "pick-and-place")


def _run(world: str = "pick-and-place", *uses: Use, **changes: Any) -> Config:
    """The paper's settings for a world with some uses of influence, at the paper's length, ten seeds."""
    return replace(preset(world), seeds=10, episodes=EPISODES[world], use=uses, **changes)


def intrinsic() -> Study:
    """Figure 4: influence as the only reward."""
    config = replace(preset("pick-and-place", "intrinsic"), seeds=10)
    about = "Influence on the object as the only reward: does the agent learn to grasp, lift and hold it?"
    return Study("intrinsic", "Influence as the only reward", about, (Arm("CAI alone", config),))


def bonus_sweep() -> Study:
    """Figure 5: the weight of the bonus."""
    base = _run("pick-and-place", "bonus")
    weights = (0.05, 0.1, 0.2, 0.5, 1.0)
    arms = [Arm(f"bonus {weight:g}", replace(base, bonus=replace(base.bonus, weight=weight))) for weight in weights]
    about = "The weight of influence as an exploration bonus; 0 is the agent without it. The grid is ours."
    return Study("bonus-sweep", "The weight of the bonus", about, (Arm(HER, _run()), *arms))


def active_sweep() -> Study:
    """Figure 6: the share of active exploration."""
    base = _run("pick-and-place", "active")
    shares = (0.25, 0.5, 0.75, 1.0)
    arms = [Arm(f"active {share:.0%}", replace(base, explore=replace(base.explore, active=share))) for share in shares]
    about = "The share of exploratory actions that are chosen for their influence. The grid is ours."
    return Study("active-sweep", "How much active exploration", about, (Arm(HER, _run()), *arms))


def exploration() -> Study:
    """Figure 7: CAI against VIME and disagreement."""
    both = _run("pick-and-place", "bonus", "active")
    arms = (
        Arm(HER, _run()),
        Arm("CAI bonus", _run("pick-and-place", "bonus")),
        Arm("CAI active", _run("pick-and-place", "active")),
        Arm("CAI bonus + active", both),
        *(Arm(label, _rival(name)) for label, name in (("VIME", "vime"), ("Disagreement", "disagreement"))),
    )
    about = "Exploration by influence against information gain (VIME) and an ensemble's disagreement."
    return Study("exploration", "Ways to explore", about, arms)


def _rival(name: str) -> Config:
    return replace(preset("pick-and-place", name), seeds=10, episodes=EPISODES["pick-and-place"])


def _replay(world: str) -> Study:
    """Figure 8, one world: CAI-P against EBP, PER and HER."""
    base = _run(world)
    kinds: tuple[tuple[str, Any], ...] = (("EBP", "ebp"), ("PER", "per"))
    arms = (
        Arm(HER, base),
        Arm("CAI-P", replace(base, use=("priority",))),
        *(Arm(label, replace(base, priority=replace(base.priority, kind=kind))) for label, kind in kinds),
    )
    about = f"Replaying influential episodes more often, on {world}, against energy, TD error and no priorities."
    return Study(f"replay-{world}", f"Replay by influence: {world}", about, arms)


def combined() -> Study:
    """Figure S6: all eight subsets of the three uses."""
    subsets = [subset for size in range(4) for subset in combinations(USES, size)]
    labels = {subset: " + ".join(SHORT[use] for use in subset) or HER for subset in subsets}
    arms = tuple(Arm(labels[subset], _run("pick-and-place", *subset)) for subset in subsets)
    about = "Priority (P), bonus and active choice, alone and together."
    return Study("combined", "The three uses together", about, arms)


def vime_variants() -> Study:
    """Figure S7."""
    names = {"VIME object + agent": "vime", "VIME object": "vime-object", "VIME full": "vime-full"}
    arms = tuple(Arm(label, _rival(name)) for label, name in names.items())
    return Study("vime-variants", "Variants of VIME", "What the information gain is about.", arms)


def disagreement_variants() -> Study:
    """Figure S8, with weights of a grid that is ours."""
    arms: list[Arm] = []
    for label, name, weights in (
        ("object", "disagreement", (50.0, 10.0, 100.0)),
        ("object + agent", "disagreement-position", (50.0,)),
        ("full state", "disagreement-full", (0.25, 0.1, 1.0)),
    ):
        base = _rival(name)
        arms += [Arm(f"{label}, {w:g}", replace(base, bonus=replace(base.bonus, weight=w))) for w in weights]
    about = "What the ensemble predicts, and the weight of its bonus."
    return Study("disagreement-variants", "Variants of disagreement", about, tuple(arms))


def partial_rescoring() -> Study:
    """The remark of appendix G that rescoring only the newest episodes is enough."""
    base = _run("pick-and-place", "priority")
    partly = replace(base, cai=replace(base.cai, rescore="newest"))
    about = (
        "Scores of old episodes go out of date as the model learns: all anew after each round, or mostly the newest."
    )
    return Study("partial-rescoring", "Rescoring in part", about, (Arm("all", base), Arm("newest", partly)))


def heatmaps() -> Study:
    """Figure S5: scores and labels over a run of the intrinsic experiment."""
    config = replace(preset("pick-and-place", "intrinsic"), seeds=1)
    about = "CAI and the exact label of each step over training, and what the agent does with the object."
    return Study("heatmaps", "Influence over a training run", about, (Arm("CAI alone", config),))


def negative_results() -> Study:
    """The variants that the paper tried and dropped."""
    base, bonus, active = (_run("pick-and-place", use) for use in USES)
    priority = {
        "P, proportional": {"distribution": "proportional"},
        "P, power 2": {"power": 2.0},
        "P, importance weights": {"importance": 1.0},
        "P, within episodes": {"within_episode": True},
    }
    arms = [Arm("P", base)]
    arms += [Arm(label, replace(base, priority=replace(base.priority, **c))) for label, c in priority.items()]  # type: ignore[arg-type]
    arms.append(Arm("P, goals by score", replace(base, replay=replace(base.replay, goals_by_score=True))))
    arms.append(Arm("bonus", bonus))
    kinds: tuple[Any, ...] = ("flat", "multiplicative")
    arms += [Arm(f"bonus, {kind}", replace(bonus, bonus=replace(bonus.bonus, kind=kind))) for kind in kinds]
    arms.append(Arm("bonus, annealed", replace(bonus, bonus=replace(bonus.bonus, anneal_episodes=bonus.episodes))))
    arms.append(Arm("active", active))
    choices: tuple[Any, ...] = ("ranked", "proportional")
    arms += [Arm(f"active, {one}", replace(active, explore=replace(active.explore, choice=one))) for one in choices]
    about = "What the paper tried and dropped, beside what it kept."
    return Study("negative-results", "What did not help", about, tuple(arms))


STUDIES: dict[str, Callable[[], Study]] = {
    "table1": table1,
    "detection-curves": detection_curves,
    "random-test-set": random_test_set,
    "random-training-data": random_training_data,
    "trajectories": trajectories,
    "intrinsic": intrinsic,
    "bonus-sweep": bonus_sweep,
    "active-sweep": active_sweep,
    "exploration": exploration,
    "replay-push": lambda: _replay("push"),
    "replay-pick-and-place": lambda: _replay("pick-and-place"),
    "replay-rot-table": lambda: _replay("rot-table"),
    "combined": combined,
    "vime-variants": vime_variants,
    "disagreement-variants": disagreement_variants,
    "partial-rescoring": partial_rescoring,
    "heatmaps": heatmaps,
    "negative-results": negative_results,
}


def make_study(
    name: str,
    size: Size = "paper",
    *,
    seeds: int | None = None,
    episodes: int | None = None,
    num_envs: int | None = None,
    overlap: Sequence[Overlap] | None = None,
    evaluate_every: int | None = None,
) -> Study:
    """A study by name, at the paper's size or so small that it shows only that it runs; options change every arm."""
    if name not in STUDIES:
        raise ValueError(f"There is no study {name!r}; the studies are {', '.join(STUDIES)}.")
    if size not in ("paper", "small"):
        raise ValueError(f"size is {size!r}; it must be paper or small.")
    study = STUDIES[name]()
    training = {"episodes": episodes, "num_envs": num_envs, "evaluate_every": evaluate_every}
    training["overlap"] = None if overlap is None else tuple(overlap)  # type: ignore[assignment]
    arms = []
    for arm in study.arms:
        config = _small(arm.config, name) if size == "small" else arm.config
        wanted: dict[str, Any] = {"seeds": seeds} | (training if isinstance(config, Config) else {})
        changes = {key: value for key, value in wanted.items() if value is not None}
        config = dataclasses.replace(config, **changes)
        if isinstance(config, Config) and config.bonus.anneal_episodes is not None:  # over the whole run, however long
            config = replace(config, bonus=replace(config.bonus, anneal_episodes=config.episodes))
        arms.append(Arm(arm.label, config))
    return replace(study, arms=tuple(arms))


def _small(config: AnyConfig, name: str) -> AnyConfig:
    """The same experiment in minutes on two cores: too short to learn anything."""
    if not isinstance(config, Config):
        asked: dict[str, Any] = {"detection-curves": ("actions", "noise"), "random-training-data": ("helps",)}
        demo = detection_preset(config.env, "demo")
        return replace(demo, studies=asked.get(name, demo.studies), noise_levels=(0.0, 0.2))
    schedule = ((60, 200), (10**9, 50))
    return replace(
        config, seeds=2, episodes=120, warmup=60, evaluate_every=20, evaluation_episodes=10,
        fit_schedule=schedule, fit_every=max(config.fit_every // 5, 1),
    )  # fmt: skip


def record_path(name: str, root: Path | str, size: str) -> Path:
    """Where a study is recorded; a small one has a name of its own."""
    return Path(root) / "studies" / f"{name if size == 'paper' else f'{name}-{size}'}.json"


def write_study(study: Study, root: Path | str, size: Size) -> Path:
    """Records a study for its reports: arms, what the size asks of them, claims."""
    path = record_path(study.name, root, size)
    own = {arm.label: arm.config for arm in (make_study(study.name, size) if study.name in STUDIES else study).arms}
    arms = [
        {"label": arm.label, "folder": unit_name(arm.config), "kind": kind_of(arm.config)}
        | {key: getattr(own[arm.label], key) for key in ("seeds", "episodes") if hasattr(own.get(arm.label), key)}
        for arm in study.arms
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
    """How far each arm is, by label."""
    return {arm.label: unit_state(arm.config, root) for arm in study.arms}
