"""The ablation of the preset `record`: its arms follow the presets, part by part."""

from dataclasses import replace

import pytest

from butfor.runs.config import differences
from butfor.studies import record
from butfor.studies.record import BARE, ENVS, GOALS, PAPER, PARTS, WHOLE, record_arms, record_claims
from butfor.training.settings import Config, preset


def names(config: Config, other: Config) -> set[str]:
    """The settings that differ."""
    return {name for name, _ in differences(config, other)}


def belongs(name: str, part: str) -> bool:
    return any(name == field or name.startswith(f"{field}.") for field in PARTS[part])


@pytest.mark.parametrize("env", ENVS)
def test_every_difference_between_the_presets_is_a_part(env: str) -> None:
    """A setting that is new in the preset needs its part, or the table of parts would be silent about it."""
    arms = record_arms(env)
    for name in names(arms[WHOLE], arms[PAPER]) - {"use"}:
        assert sum(belongs(name, part) for part in PARTS) == 1, name


@pytest.mark.parametrize("env", ENVS)
def test_an_arm_differs_from_its_end_in_its_part_alone(env: str) -> None:
    arms = record_arms(env)
    whole, paper = arms[WHOLE], arms[PAPER]
    assert (whole.seeds, whole.first_seed) == (10, 100)
    for label, config in arms.items():
        for end, sign, other in ((WHOLE, " - ", paper), (PAPER, " + ", whole)):
            base, _, part = label.partition(sign)
            if base != end or not part:
                continue
            changed = differences(config, arms[end])
            assert changed, label
            if part in PARTS:
                assert all(belongs(name, part) for name, _ in changed), label
                assert not any(belongs(name, part) for name in names(config, other)), label
            else:
                assert {name for name, _ in changed} == {"use"}
                assert set(config.use) ^ set(arms[end].use) == {part}


@pytest.mark.parametrize("env", ENVS)
def test_every_part_of_the_whole_is_removed_once(env: str) -> None:
    arms = record_arms(env)
    whole = arms[WHOLE]
    removed = [differences(config, whole) for label, config in arms.items() if label.startswith(f"{WHOLE} - ")]
    taken = [name for found in removed for name, _ in found if name != "use"]
    assert sorted(taken) == sorted(names(whole, arms[PAPER]) - {"use"})
    assert sum(name == "use" for found in removed for name, _ in found) == len(whole.use)


@pytest.mark.parametrize("env", ENVS)
def test_without_influence_the_other_parts_stay(env: str) -> None:
    arms = record_arms(env)
    bare = arms[BARE]
    assert bare.use == ()
    assert not bare.needs_scores
    assert names(bare, arms[WHOLE]) <= {"use", "replay.influenced_goals"}


def test_the_arms_follow_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are those of the preset; a part that it no longer has leaves no arms, and a new one appears."""

    def other(env: str, name: str = "paper") -> Config:
        made = preset(env, name)
        if name != "record":
            return made
        return replace(
            made,
            agent=replace(made.agent, updates=77, critics=3),
            replay=replace(made.replay, relative_goals=False),
            use=("priority", "bonus", "relay"),
        )

    monkeypatch.setattr(record, "preset", other)
    arms = record_arms("push")
    assert arms[f"{PAPER} + more updates"].agent.updates == 77
    assert arms[f"{PAPER} + other critics"].agent.critics == 3
    assert arms[f"{WHOLE} - other critics"].agent.critics == preset("push").agent.critics
    assert not [label for label in arms if "relative" in label or label == f"{WHOLE} - active"]


@pytest.mark.parametrize("env", ENVS)
def test_claims_are_the_goal_and_one_for_each_comparison(env: str) -> None:
    arms = record_arms(env)
    claims = record_claims(env, arms)
    (goal,) = [claim for claim in claims if claim.kind == "reaches"]
    assert (goal.arm, goal.level, goal.within) == (WHOLE, *GOALS[env])
    compared = {(claim.arm, claim.than) for claim in claims if claim.kind == "better"}
    assert len(compared) == len(claims) - 1
    assert {label for label in arms if " - " in label} == {than for _, than in compared if " - " in than}
    assert {label for label in arms if " + " in label and label.startswith(PAPER)} == {
        arm for arm, than in compared if than == PAPER and arm != WHOLE
    }
