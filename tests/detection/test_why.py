"""Why it happened: an episode of Pucks whose reason is known."""

from typing import Any

import numpy as np
import pytest

from butfor.detection import why
from butfor.detection.collect import CollectConfig, collect_file
from butfor.detection.why import find_reasons, find_reasons_by_model, find_reasons_of_policy
from butfor.envs import facts_of
from butfor.influence import GraphConfig, Influence
from butfor.influence.graph.horizon import roll_out
from butfor.rollouts.episodes import Episodes


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    path = tmp_path_factory.mktemp("why") / "pucks.npz"
    return collect_file(CollectConfig("pucks", "noisy-expert", episodes=12), path)


def carried() -> Influence:
    """A short fit: the hand moves by 0.1 times the action, and an object at it moves along."""
    random = np.random.default_rng(0)
    hand, thing = random.uniform(-1, 1, (2, 6000))
    thing = np.where(random.random(6000) < 0.25, hand + random.uniform(-0.05, 0.05, 6000), thing)
    action = random.uniform(-1, 1, 6000)
    step = 0.1 * action
    obs = np.stack([hand, thing], 1)
    after = np.stack([hand + step, thing + step * (np.abs(hand - thing) < 0.15)], 1)
    before, taken, later = (part.astype(np.float32) for part in (obs, action[:, None], after))
    settings = GraphConfig(updates=300, motion_updates=200, width=32)
    return Influence.fit(before, taken, later, ["hand=0", "object=1"], model=settings, progress=False)


def moved(episodes: Episodes, columns: slice) -> Any:
    """How far each episode's entity gets from its start [E]."""
    way = episodes.observation[:, :, columns] - episodes.observation[:, :1, columns]
    return np.linalg.norm(way, axis=-1).max(1)


def test_the_third_puck_needs_the_agent(episodes: Episodes) -> None:
    number = int(moved(episodes, slice(12, 14)).argmax())
    found = find_reasons(episodes, number, "third moved", alternatives=8)
    assert found.happened is not None
    assert found.entities["agent"]
    assert set(found.entities) == {"agent", "first", "second"}
    assert found.prevented.shape == episodes.action.shape[1:2]
    assert ((found.prevented >= 0) & (found.prevented <= 1)).all()
    assert (found.prevented[found.happened + 1 :] == 0).all()  # what comes later does not matter
    whole = find_reasons(episodes, number, "third moved", alternatives=8, window=60)
    assert whole.prevented[0] >= found.prevented[0]


def test_an_event_that_did_not_happen_has_no_reasons(episodes: Episodes) -> None:
    best = np.linalg.norm(episodes.achieved_goal - episodes.desired_goal, axis=-1).min(1)
    found = find_reasons(episodes, int(best.argmax()), alternatives=2)  # never near the goal
    assert found.happened is None
    assert not found.prevented.any()
    assert found.entities == {}


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"event": "fourth moved"}, "fourth"),
        ({"number": 12}, "12"),
        ({"alternatives": 0}, "0"),
        ({"window": 0}, "0"),
    ],
)
def test_mistakes_are_named(episodes: Episodes, options: dict[str, Any], value: str) -> None:
    with pytest.raises(ValueError, match=value):
        find_reasons(episodes, **options)


def test_a_policy_goes_on_after_a_replaced_action(episodes: Episodes) -> None:
    """The script as policy reacts: no single action is necessary for the agent to get away from its start."""
    facts: Any = facts_of("pucks")

    def script(obs: Any) -> Any:
        return facts.expert(obs["observation"], obs["desired_goal"])[0].astype(np.float32)

    found = find_reasons_of_policy("pucks", script, 3, "agent moved", alternatives=8)
    assert found.happened is not None
    assert (found.prevented < 0.5).all()
    assert set(found.entities) == {"first", "second", "third"}
    assert not any(found.entities.values())  # the agent moves by itself
    with pytest.raises(ValueError, match="0"):
        find_reasons_of_policy("pucks", script, 3, window=0)
    with pytest.raises(ValueError, match="slide"):
        find_reasons_of_policy("slide", script, 3)


def test_a_model_answers_where_nothing_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand that carries an object to the right if it is at it; after a short fit."""
    influence = carried()
    chances = []  # that decide about touches, by who is absent

    def noted(model: Any, obs: Any, actions: Any, chance: Any, absent: int | None = None) -> Any:
        chances.append((absent, chance[..., 0]))
        return roll_out(model, obs, actions, chance, absent)

    monkeypatch.setattr(why, "roll_out", noted)
    steps = 6
    obs = np.zeros((1, steps + 1, 2), dtype=np.float32)
    action = np.ones((1, steps, 1), dtype=np.float32)
    obs[0, :, 0] = obs[0, :, 1] = 0.1 * np.arange(steps + 1)  # both move by 0.1 a step
    episodes = Episodes(
        observation=obs, action=action, achieved_goal=obs[..., 1:], desired_goal=obs[..., 1:],
        length=np.array([steps]), sampled=np.zeros((1, steps), dtype=bool), metadata={},
    )  # fmt: skip
    found = find_reasons_by_model(influence, episodes, 0, "object moved", alternatives=200, window=6, far=0.25)
    assert found.happened == 2
    assert found.entities == {"hand": True}
    assert found.prevented[0] > 0.5  # 0.1 times the sum of three uniform actions seldom exceeds 0.25
    assert (found.prevented[3:] == 0).all()
    whole = chances[0][1]
    assert all(chance.equal(whole[-len(chance) :]) for _, chance in chances)  # only the change makes a difference
    assert {absent for absent, _ in chances} == {None, 0}
    far = find_reasons_by_model(influence, episodes, 0, "object moved", alternatives=4, far=5.0)
    assert far.happened is None
    with pytest.raises(ValueError, match="success"):
        find_reasons_by_model(influence, episodes, 0, "success")
