"""Scripted experts solve their environments, and draw their noise as promised."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.vector import AutoresetMode
from support.slide import step

from butfor.envs import make_vector_env
from butfor.envs.experts import hit, impact_speed, push, scripted_action
from butfor.envs.facts import BUILT_IN
from butfor.envs.slide import SlideEnv, SlideVectorEnv


def test_impact_speed_slides_the_object_exactly_that_far() -> None:
    """The closed form inverts the simulated slide, friction in the impact step included."""
    distance = np.array([0.001, 0.02, 0.3, 1.0, 2.5, 6.0])
    state = np.tile(np.array([-2.3, 0, -2, 0], np.float32), (6, 1))
    state[:, 1] = impact_speed(distance)
    state[:, 0] = -2.2 - 0.05 * state[:, 1]  # halfway through the impact step's motion
    state, contact = step(state, np.zeros((6, 1)))
    assert contact.all()
    for _ in range(60):
        state, _ = step(state, -np.ones((6, 1)))
    assert (state[:, 3] == 0).all()
    np.testing.assert_allclose(state[:, 2], -2 + distance, atol=1e-5)


def run_scripted(seed: int, episodes: int = 500, **options: float) -> dict[str, npt.NDArray[Any]]:
    """Roll the scripted hitter out: arrays [episodes, 30]."""
    env = SlideVectorEnv(episodes, autoreset_mode=AutoresetMode.DISABLED)
    obs, _ = env.reset(seed=seed)
    generator = np.random.default_rng(seed)
    rows: dict[str, list[npt.NDArray[Any]]] = {
        "action": [],
        "sampled": [],
        "label_exact": [],
        "is_success": [],
    }
    for _ in range(30):
        action, sampled = scripted_action(hit, obs, generator, **options)
        obs, _, _, _, info = env.step(action)
        values = {**info, "action": action[:, 0], "sampled": sampled}
        for key, row in rows.items():
            row.append(values[key])
    return {key: np.stack(row, axis=1) for key, row in rows.items()}


def test_scripted_hitter_succeeds_and_is_random_after_the_hit() -> None:
    """It ends most episodes in the goal zone (random: 2.7 %) and influences more states (random: 1.8 %)."""
    result = run_scripted(seed=0)
    assert result["is_success"][:, -1].mean() > 0.9
    assert result["label_exact"].mean() > 0.03
    assert not result["sampled"][:, 0].any()  # at the start the object rests, in reach
    assert result["sampled"][:, -1].all()  # 30 steps suffice for a hit, and then it only acts at random
    assert (np.abs(result["action"]) <= 1).all()
    # Uniform on [-1, 1]: variance 1/3; squares of it have variance 4/45.
    drawn = result["action"][result["sampled"]]
    assert abs(drawn.mean()) < 4 * np.sqrt(1 / 3 / drawn.size)
    assert abs((drawn**2).mean() - 1 / 3) < 4 * np.sqrt(4 / 45 / drawn.size)


def test_scripted_noise_and_random_share() -> None:
    """random_share marks its share as sampled; noise moves steering actions, not sampled ones."""
    plain, noisy = run_scripted(0), run_scripted(0, noise=0.3)
    assert (plain["action"][:, 0] == 1).all()  # a speed far above 0.5 is wanted: full thrust
    lowered = noisy["action"][:, 0] < 1  # by negative noise, half of the time
    assert abs(lowered.mean() - 0.5) < 4 * np.sqrt(0.25 / 500)
    # What is missing to 1 is half a Gaussian, whose mean is standard deviation * sqrt(2 / pi).
    half = 1 - noisy["action"][lowered, 0]
    assert abs(half.mean() - 0.3 * np.sqrt(2 / np.pi)) < 4 * 0.3 * np.sqrt((1 - 2 / np.pi) / half.size)
    both = noisy["sampled"] & plain["sampled"]
    np.testing.assert_array_equal(noisy["action"][both], plain["action"][both])
    share = run_scripted(0, random_share=0.25)["sampled"][:, 0].mean()
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 500)
    assert run_scripted(0, random_share=1.0)["sampled"].all()


def test_one_observation_and_many_give_the_same_action() -> None:
    obs, _ = SlideVectorEnv(3).reset(seed=5)
    action, _ = scripted_action(hit, obs, np.random.default_rng(0))
    assert action.shape == (3, 1)
    alone, sampled = scripted_action(hit, {key: value[0] for key, value in obs.items()}, np.random.default_rng(0))
    assert alone.shape == (1,)
    assert alone == action[0]
    assert sampled.shape == ()
    assert SlideEnv().action_space.contains(alone)


@pytest.mark.parametrize(
    ("name", "count", "share"),
    [("push", 256, 0.98), ("pick-and-place", 256, 0.98), ("rot-table", 128, 0.98), ("fetch-slide", 128, 0.2)],
)
def test_the_robots_experts_succeed(name: str, count: int, share: float) -> None:
    """Without noise; a random policy almost never succeeds."""
    env = make_vector_env(name, count)
    generator = np.random.default_rng(0)
    obs, _ = env.reset(seed=20_000)
    for _ in range(50):
        action, sampled = scripted_action(BUILT_IN[name].expert, obs, generator)
        assert not sampled.any()
        obs, _, _, truncated, infos = env.step(action)
    assert truncated.all()
    assert infos["is_success"].mean() >= share


def test_the_expert_with_noise() -> None:
    """Shares, bounds and errors; and an environment's draws do not depend on the other env' states."""
    obs, _ = make_vector_env("push", 400).reset(seed=0)
    state = obs["observation"]

    def act(state: Any, **options: Any) -> Any:
        return scripted_action(push, obs | {"observation": state}, np.random.default_rng(5), **options)

    plain, _ = act(state)
    action, sampled = act(state, noise=0.2, random_share=0.3)
    assert abs(sampled.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 400)
    assert action.dtype == np.float32
    assert np.abs(action).max() <= 1
    inside = (np.abs(plain) < 0.1) & ~sampled[:, None]  # where clipping cannot matter at 4.5 deviations
    assert abs((action - plain)[inside].std() / 0.2 - 1) < 0.15
    everything, all_sampled = act(state, random_share=1.0)
    assert all_sampled.all()
    assert abs(everything.mean()) < 4 * np.sqrt(1 / 3 / everything.size)
    changed = state.copy()
    changed[0, 3:9] += 0.1
    assert np.array_equal(act(changed, noise=0.2, random_share=0.3)[0][1:], action[1:])
