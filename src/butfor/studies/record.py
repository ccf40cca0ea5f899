"""What each part of the preset `record` brings: the arms of an ablation, derived from the presets as they are.

Nothing here repeats a number of a preset: a part is a set of fields, removed by taking their values from the paper's
agent, and added by taking them from the record's. A part whose fields have the same values in both has no arms.
"""

from dataclasses import replace
from typing import Any

from butfor.analysis.claims import Claim
from butfor.training.settings import Config, Use, preset

WHOLE = "record"
PAPER = "paper"
BARE = "record without influence"
OURS = "(our question)"
USES: tuple[Use, ...] = ("priority", "bonus", "active")  # of influence, in the paper's agent
ENVS = ("pick-and-place", "push", "fetch-slide")
GOALS = {"pick-and-place": (0.95, 1_000), "push": (0.95, 600), "fetch-slide": (0.80, 6_000)}  # success, episodes
SHOWN = (200, 400, 500, 600, 800, 1_000, 1_500, 2_000, 3_000, 6_000)  # episodes at which success is listed
PARTS: dict[str, tuple[str, ...]] = {
    "goals of other episodes": ("replay.other_goals", "replay.other_goals_by"),
    "influenced goals": ("replay.influenced_goals",),
    "relative goals": ("replay.relative_goals",),
    "mirrors": ("replay.mirror", "replay.shift"),
    "layer normalisation": ("agent.critic_layer_norm", "agent.actor_layer_norm"),
    "more updates": ("agent.updates", "agent.batch_size", "agent.learning_rate", "agent.polyak"),
    "other critics": ("algorithm", "td3", "sac", "agent.critics", "agent.critics_in_target", "agent.caution_rate"),
    "other networks": ("agent.layers", "agent.width", "agent.discount", "agent.action_penalty", "agent.target_range"),
    "shorter warm-up": ("warmup",),
    "earlier model": ("fit_every", "fit_schedule", "cai"),
    "hindsight": ("replay.hindsight",),
    "other exploration": ("explore",),
    "other weights": ("priority", "bonus"),
}
"""fields of the settings, by the name of the part"""


def record_arms(env: str) -> dict[str, Config]:
    """Return the arms by label: the whole, each part removed from it and added to the paper's agent, and both ends."""
    run: dict[str, Any] = {
        "seeds": 10, "first_seed": 100, "episodes": 3_000, "evaluate_every": 200, "evaluation_episodes": 100,
    }  # fmt: skip
    whole = replace(preset(env, "record"), **run)
    paper = replace(preset(env), use=USES, **run)
    arms = {WHOLE: whole}
    for use in whole.use:
        arms[f"{WHOLE} - {use}"] = _with_use(whole, tuple(one for one in whole.use if one != use))
    arms |= {f"{WHOLE} - {part}": _copied(whole, paper, fields) for part, fields in PARTS.items()}
    arms |= {BARE: _with_use(whole, ()), PAPER: paper}
    for use in whole.use:
        arms[f"{PAPER} + {use}"] = replace(paper, use=tuple(dict.fromkeys((*paper.use, use))))
    arms |= {f"{PAPER} + {part}": _copied(paper, whole, fields) for part, fields in PARTS.items()}
    arms["DDPG + HER"] = replace(paper, use=())
    same = {WHOLE: whole, PAPER: paper}
    return {label: config for label, config in arms.items() if label in same or config not in same.values()}


def record_claims(env: str, arms: dict[str, Config]) -> list[Claim]:
    """Return what the study asks about the arms: the goal, and whether each part helps."""
    level, within = GOALS[env]
    removed = [label for label in arms if label.startswith(f"{WHOLE} - ")]
    added = [label for label in arms if label.startswith(f"{PAPER} + ")]
    return [
        Claim(f"The record reaches {level:g} within {within:,} episodes {OURS}.", "reaches", WHOLE, level=level,
              within=within),
        Claim(f"The record is better than the paper's agent {OURS}.", "better", WHOLE, PAPER),
        Claim(f"The record needs influence: without any use of it, it is worse {OURS}.", "better", WHOLE, BARE),
        *(Claim(f"Each part of the record helps: without it, it is worse {OURS}.", "better", WHOLE, label)
          for label in removed),
        *(Claim(f"Each part also helps the paper's agent {OURS}.", "better", label, PAPER) for label in added),
    ]  # fmt: skip


def _with_use(config: Config, use: tuple[Use, ...]) -> Config:
    """Return a config with other uses of influence; without any, nothing else may use its scores."""
    if use:
        return replace(config, use=use)
    return replace(config, use=(), replay=replace(config.replay, influenced_goals=None))


def _copied(config: Config, source: Config, fields: tuple[str, ...]) -> Config:
    """Return a config with the values that `source` has of these fields, such as `agent.updates`."""
    changes: dict[str, Any] = {}
    for field in fields:
        part, _, inner = field.partition(".")
        value = getattr(source, part)
        if inner:
            value = replace(changes.get(part, getattr(config, part)), **{inner: getattr(value, inner)})
        changes[part] = value
    return replace(config, **changes)
