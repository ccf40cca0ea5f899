"""The records of facts agree with the environments that they describe."""

import subprocess
import sys

import numpy as np
import pytest

from butfor.envs import ENVS, EnvFacts, facts_of, make_vector_env, short_name
from butfor.envs.experts import scripted_action
from butfor.envs.facts import BUILT_IN, named

FACTS = pytest.mark.parametrize("facts", BUILT_IN.values(), ids=list(BUILT_IN))


@FACTS
def test_an_environment_is_found_by_both_names(facts: EnvFacts) -> None:
    for name in (facts.name, facts.id, f"butfor.envs:{facts.id}"):
        assert facts_of(name) is facts
        assert short_name(name) == facts.name
    assert ENVS[facts.name] == facts.id


@pytest.mark.parametrize("name", ["FetchPush-v4", "nowhere:Push-v0", "CartPole-v1", ""])
def test_other_environments_have_no_facts(name: str) -> None:
    assert facts_of(name) is None
    assert short_name(name) == name


@FACTS
def test_columns_are_those_of_the_observation(facts: EnvFacts) -> None:
    """The object's position is the achieved goal; positions change by velocities; the offset is a difference."""
    env = make_vector_env(facts.name, 3)
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        action, sampled = scripted_action(facts.expert, obs, np.random.default_rng(0))
        assert env.action_space.contains(action)
        assert sampled.shape == (3,)
        before = obs["achieved_goal"]
        obs = env.step(action)[0]
    seen = obs["observation"]
    agent = seen[:, facts.agent_position]
    thing = seen[:, facts.object_position]
    np.testing.assert_array_equal(thing, obs["achieved_goal"])
    if facts.object_offset:
        np.testing.assert_allclose(seen[:, facts.object_offset], thing - agent)
    np.testing.assert_allclose(facts.distance(seen), np.linalg.norm(thing - agent, axis=1))
    if facts.relative_velocity:
        velocity = seen[:, facts.object_velocity] + seen[:, facts.agent_velocity]
        np.testing.assert_allclose(velocity, thing - before, atol=1e-3)  # per step; only a table moves the object yet
    assert facts.positions == facts.agent_position + facts.object_position
    assert set(facts.positions) <= set(facts.full_state) <= set(range(seen.shape[1]))
    assert not set(facts.object_offset) & set(facts.full_state)
    env.close()


def test_facts_by_value() -> None:
    assert named(forks=True) == ["push", "pick-and-place", "fetch-slide", "rot-table"]
    assert named(drawing="robot") == [*named(forks=True), "push-two", "stack-two"]
    assert named(drawing="line") == ["slide"]


@FACTS
def test_entities_have_columns_of_their_own(facts: EnvFacts) -> None:
    """The agent comes first; a position of facts is that of an entity; nothing is in two entities."""
    columns = list(facts.entities.values())
    assert set(facts.agent_position) <= set(columns[0])
    assert any(set(facts.object_position) <= set(entity) for entity in columns[1:])
    assert len({column for entity in columns for column in entity}) == sum(map(len, columns))


def test_facts_need_no_mujoco() -> None:
    code = "import sys, butfor.envs; butfor.envs.facts_of('push'); assert 'mujoco' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
