"""Why it happened: an episode of Pucks whose reason is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from butfor.detection.collect import CollectConfig, collect_file
from butfor.detection.why import find_reasons, find_reasons_by_model, find_reasons_of_policy
from butfor.envs import facts_of
from butfor.envs.slide import outcome
from butfor.influence import GraphConfig, Influence
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


def test_slide_is_forked(tmp_path: Path) -> None:
    """Against single steps from the recorded states, with the same random actions."""
    episodes = collect_file(CollectConfig("slide", "expert", episodes=1), tmp_path / "slide.npz")
    found = find_reasons(episodes, 0, "object moved", alternatives=8, window=6, sufficient=True)
    obs, action = episodes.observation[0], episodes.action[0]
    generator = np.random.default_rng(0)
    assert found.happened == int((np.abs(obs[1:, 2] - obs[0, 2]) > 0.05).argmax())
    for time in range(found.happened + 1):
        state = np.repeat(obs[time : time + 1], 8, 0)
        moved = np.zeros(8, dtype=bool)
        for later in range(time, len(action)):
            taken = np.repeat(action[later : later + 1], 8, 0)
            if later < time + 6:
                taken = generator.uniform(-1, 1, taken.shape).astype(np.float32)
            state = outcome(state, taken)[0]
            moved |= np.abs(state[:, 2] - obs[0, 2]) > 0.05
        assert found.prevented[time] == 1 - moved.mean()
    assert found.prevented.max() > 0
    whole = find_reasons(episodes, 0, "object moved", alternatives=8, window=len(action), sufficient=True)
    assert whole.sufficient is not None  # with all actions kept, the history is the recorded one
    assert whole.sufficient[0] == 1
    assert whole.by_chance == found.by_chance
    assert whole.by_chance is not None
    assert whole.by_chance < 1


def test_an_environment_that_is_not_built_in_is_forked() -> None:
    """FetchPush of gymnasium-robotics has the same answers as the built-in one, which steps the same way."""
    pytest.importorskip("gymnasium_robotics")

    def reach(obs: Any) -> Any:
        way = 10 * (obs["achieved_goal"] - obs["observation"][:, :3])
        return np.clip(np.pad(way, ((0, 0), (0, 1))), -1, 1).astype(np.float32)

    own = find_reasons_of_policy("push", reach, 5, "object moved", alternatives=2, window=50)
    other = find_reasons_of_policy("FetchPush-v4", reach, 5, "object moved", alternatives=2, window=50)
    named = find_reasons_of_policy(
        "FetchPush-v4", reach, 5, "cube moved", alternatives=2, window=50, entities="cube=3:6"
    )  # fmt: skip
    assert own.happened is not None
    assert own.prevented.max() == 1
    for one in (other, named):
        assert one.happened == own.happened
        np.testing.assert_array_equal(one.prevented, own.prevented)
    with pytest.raises(ValueError, match="cube moved"):
        find_reasons_of_policy("FetchPush-v4", reach, 5, "box moved", entities="cube=3:6")


def test_what_cannot_be_forked_names_the_option(episodes: Episodes) -> None:
    with pytest.raises(ValueError, match=r"CartPole-v1.*--influence FILE"):
        find_reasons_of_policy("CartPole-v1", lambda obs: np.zeros((16, 1)), 0)
    unnamed = Episodes.from_arrays(episodes.arrays(), {})
    with pytest.raises(ValueError, match=r"env.*--influence FILE"):
        find_reasons(unnamed)
    arrays = {name: value for name, value in episodes.arrays().items() if name != "reset_seed"}
    unseeded = Episodes.from_arrays(arrays, episodes.metadata)
    with pytest.raises(ValueError, match=r"reset seeds.*--influence FILE"):
        find_reasons(unseeded)
    elsewhere = Episodes.from_arrays(episodes.arrays(), {"config": {"env": "pucks"}})
    elsewhere.observation = elsewhere.observation + 0.1
    with pytest.raises(ValueError, match=r"0\.1 off"):
        find_reasons(elsewhere)


def test_a_model_answers_where_nothing_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand that carries an object to the right if it is at it; after a short fit."""
    influence = carried()
    steps = 6
    obs = np.zeros((1, steps + 1, 2), dtype=np.float32)
    action = np.ones((1, steps, 1), dtype=np.float32)
    obs[0, :, 1] = 0.1 * np.arange(steps + 1)  # both move by 0.1 a step
    obs[0, :, 0] = obs[0, :, 1] + 0.01
    episodes = Episodes(
        observation=obs, action=action, achieved_goal=obs[..., 1:], desired_goal=obs[..., 1:],
        length=np.array([steps]), sampled=np.zeros((1, steps), dtype=bool), metadata={},
    )  # fmt: skip
    found = find_reasons_by_model(influence, episodes, 0, "object moved", alternatives=200, window=6, far=0.25)
    assert found.happened == 2
    assert found.entities == {"hand": True}
    assert found.prevented[0] > 0.5  # 0.1 times the sum of three uniform actions seldom exceeds 0.25
    assert (found.prevented[3:] == 0).all()
    assert found.sufficient is None
    whole = find_reasons_by_model(
        influence, episodes, 0, "object moved", alternatives=200, window=6, far=0.25, sufficient=True
    )  # fmt: skip
    assert whole.sufficient is not None
    assert whole.sufficient[0] == 1  # all actions are kept
    assert whole.by_chance is not None
    assert whole.by_chance < 0.5
    far = find_reasons_by_model(influence, episodes, 0, "object moved", alternatives=4, far=5.0)
    assert far.happened is None
    for distance in (0.0, float("nan")):
        with pytest.raises(ValueError, match=f"far is {distance:g}"):
            find_reasons_by_model(influence, episodes, 0, "object moved", far=distance)
    with pytest.raises(ValueError, match=r"near is -0\.1"):
        find_reasons_by_model(influence, episodes, 0, "success", near=-0.1)
    other = replace(episodes, action=np.ones((1, steps, 2), dtype=np.float32))
    with pytest.raises(ValueError, match=r"2 columns.* 1 columns"):
        find_reasons_by_model(influence, other, 0, "object moved")
    with pytest.raises(ValueError, match=r"nobody moved.*'success', 'hand moved'"):
        find_reasons_by_model(influence, episodes, 0, "nobody moved")
    # success: the object is within 0.05 of 0.3 for the first time after the third step, as far as 0.25 from its start
    goals = replace(episodes, desired_goal=np.full((1, steps + 1, 1), 0.3, dtype=np.float32))
    reached = find_reasons_by_model(influence, goals, 0, "success", alternatives=200, window=6)
    assert reached.happened == 2
    assert reached.entities == {"hand": True}
    assert reached.prevented[0] > 0.5
    assert (reached.prevented[3:] == 0).all()
    assert find_reasons_by_model(influence, goals, 0, "success", near=0.15).happened == 1  # it is at 0.2
    beyond = replace(goals, desired_goal=goals.desired_goal + 5)
    assert find_reasons_by_model(influence, beyond, 0, "success").happened is None
    with pytest.raises(ValueError, match=r"achieved goal.*'hand moved'"):
        find_reasons_by_model(influence, replace(goals, achieved_goal=goals.achieved_goal + 1), 0, "success")


def shoved(state: Any, action: Any) -> Any:
    """A hand moves by 0.1 times the action; it gives a disc that it comes near a speed, which friction takes away."""
    hand, disc, speed = state.T
    hand = hand + 0.1 * action
    near = np.abs(hand - disc) < 0.15
    speed = np.where(near, 0.12, np.maximum(speed - 0.02, 0))
    return np.stack([hand, disc + speed, speed], 1)


def test_a_disc_at_rest_stays_at_rest_in_the_model() -> None:
    """Forks of the function above say what is needed; the model, which lets the disc drift, must say the same."""
    random = np.random.default_rng(0)
    count = 6000
    hand = random.uniform(-2, 2, count)
    disc = np.where(random.random(count) < 0.4, hand + random.uniform(-0.4, 0.4, count), random.uniform(-2, 2, count))
    states = np.stack([hand, disc, np.where(random.random(count) < 0.5, 0, random.uniform(0, 0.12, count))], 1)
    actions = random.uniform(-1, 1, count)
    parts = (states, actions[:, None], shoved(states, actions))
    before, acted, later_on = (part.astype(np.float32) for part in parts)
    settings = GraphConfig(updates=400, motion_updates=300, width=32, position_size=1)
    influence = Influence.fit(before, acted, later_on, ["hand=0", "disc=1:3"], model=settings, progress=False)
    model = influence.model
    with torch.no_grad():  # 0.004 in each step, 0.16 in the episode
        model.free[1].layers[-1].bias[..., 0] += 0.004 * model.change_scale[model.dims[1][0]]
    steps = 40
    way = np.zeros((steps + 1, 1, 3))
    way[0, 0] = (-1.4, 0.3, 0)
    taken = np.where(np.arange(steps) < 30, 0.52, -1.0)  # the hand arrives, and goes away
    for time in range(steps):
        way[time + 1] = shoved(way[time], taken[time])
    obs = way[None, :, 0].astype(np.float32)
    episodes = Episodes(
        observation=obs, action=taken[None, :, None].astype(np.float32), achieved_goal=obs[..., 1:2],
        desired_goal=obs[..., 1:2], length=np.array([steps]), sampled=np.zeros((1, steps), dtype=bool), metadata={},
    )  # fmt: skip
    forked = []
    for time in range(steps):
        now = np.repeat(way[time], 400, 0)
        moved = np.zeros(400, dtype=bool)
        for later in range(time, steps):
            action = random.uniform(-1, 1, 400) if later < time + 10 else taken[later]
            now = shoved(now, action)
            moved |= np.abs(now[:, 1] - way[0, 0, 1]) > 0.05
        forked.append(1 - moved.mean())
    found = find_reasons_by_model(influence, episodes, 0, "disc moved", alternatives=50, window=10)
    assert found.happened == int((np.abs(way[1:, 0, 1] - way[0, 0, 1]) > 0.05).argmax())
    assert found.entities == {"hand": True}
    shares = np.array(forked)[: found.happened + 1]
    assert shares[0] > 0.9
    assert np.nanmean(np.abs(found.prevented[: found.happened + 1] - shares)) < 0.15
