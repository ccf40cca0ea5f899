"""The slide environment: physics by hand, the exact label, Gymnasium's contracts, pictures and errors."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from support.slide import influence, step

from butfor.envs.experts import hit, scripted_action
from butfor.envs.slide import SlideEnv, SlideVectorEnv, draw, reward

pytestmark = pytest.mark.filterwarnings("error")

# --- physics --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "action", "expected", "contact"),
    [
        # Free motion: v = 1 + 0.5 * 0.5, x = -4 + 0.1 * 1.25.
        ([-4, 1, -1, 0], 0.5, [-3.875, 1.25, -1, 0], False),
        # Actions are clipped: 3 acts like 1.
        ([-4, 1, -1, 0], 3.0, [-3.85, 1.5, -1, 0], False),
        # Speed is capped at 5 before the agent moves.
        ([-4, 4.9, -1, 0], 1.0, [-3.5, 5, -1, 0], False),
        # A free object loses friction first, then moves with what is left; a slow one stops where it is.
        ([-4, 0, 1, 1.0], 0.0, [-4, 0, 1.085285, 0.85285], False),
        ([-4, 0, 1, 0.1], 0.0, [-4, 0, 1, 0], False),
        # Leftward motion has no friction, and there is no object wall on the left.
        ([-4, 0, -5, -1.0], 0.0, [-4, 0, -5.1, -1], False),
        # Impact: v_a = 1.25 reaches -2.125 > -2.2; v_o = 2 * 1.25 - friction; the agent stops touching.
        ([-2.25, 1, -2, 0], 0.5, [-2.2, 0, -2 + 0.235285, 2.35285], True),
        # A moving object keeps its velocity, and the test is against its place before it moves on.
        ([-2.24, 0, -2, 3.0], 1.0, [-2.2, 0, -2 + 0.385285, 3.85285], True),
        # A touch with 0.05 gives 0.1 < friction: contact, but the object stays.
        ([-2.2, -0.45, -2, 0], 1.0, [-2.2, 0, -2, 0], True),
        # The mirror image: an object on the left is hit from the right, without friction.
        ([-2, -1, -2.3, 0], -0.5, [-2.1, 0, -2.55, -2.5], True),
        ([-2, 1, -2.3, 0], 0.5, [-1.875, 1.25, -2.3, 0], False),
        # The agent's walls at -0.5 and -5 stop its centre.
        ([-0.6, 2, 3, 0], 0.0, [-0.5, 0, 3, 0], False),
        ([-4.9, -2, 3, 0], 0.0, [-5, 0, 3, 0], False),
        # The agent's wall comes after contact: a fast agent at -0.6 still hits an object at 0.05.
        ([-0.6, 4.5, 0.05, 0], 1.0, [-0.5, 0, 0.05 + 0.985285, 9.85285], True),
        # The object's wall at +5.
        ([-4, 0, 4.95, 3.0], 0.0, [-4, 0, 5, 0], False),
    ],
)
def test_step_by_hand(state: list[float], action: float, expected: list[float], contact: bool) -> None:
    """Every rule of the step order, with numbers worked out by hand."""
    next_state, touched = step(np.array(state, np.float32), np.array([action], np.float32))
    np.testing.assert_allclose(next_state, expected, rtol=0, atol=1e-6)
    assert bool(touched) is contact
    assert next_state.dtype == np.float32


def test_step_in_any_batch_gives_the_same_bits() -> None:
    """Leading dimensions are arbitrary and broadcast; no batch shape changes a bit."""
    generator = np.random.default_rng(0)
    states = generator.uniform([-5, -5, -3, -1], [-0.5, 5, 5, 9], (4, 6, 4)).astype(np.float32)
    actions = generator.uniform(-1, 1, (4, 6, 1)).astype(np.float32)
    batched, contact = step(states, actions)
    assert batched.shape == (4, 6, 4)
    assert contact.shape == influence(states).shape == (4, 6)
    for index in np.ndindex(4, 6):
        alone, touched = step(states[index], actions[index])
        np.testing.assert_array_equal(alone, batched[index])
        assert touched == contact[index]
    broadcast, _ = step(states, actions[0, 0])
    np.testing.assert_array_equal(broadcast[2, 3], step(states[2, 3], actions[0, 0])[0])


# --- the label ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "label"),
    [
        ([-4, 0, -1, 0], False),  # far away
        ([-2.24, 0, -2, 0], True),  # gap 0.04: +1 covers 0.05, -1 does not
        ([-2.26, 0, -2, 0], False),  # gap 0.06
        ([-2.2, 0, -2, 0], True),  # touching
        ([-2.2, -0.45, -2, 0], False),  # +1 touches with 0.05, too slow against friction
        ([-2.2, -0.40, -2, 0], True),  # +1 touches with 0.10: 0.2 > friction
        ([-2.2, -0.60, -2, 0], False),  # moving away too fast for any contact
        ([-2.4, 4, -2, 0], True),  # both actions hit
        ([-1.5, 2, -2, 0], False),  # past the object and moving on
        ([-1.76, 0, -2, 0], True),  # the object on the left, within reach of -1
        ([-0.5, 0, 0.5, 1.0], False),  # the object moves, but not because of the agent
    ],
)
def test_label_at_constructed_states(state: list[float], label: bool) -> None:
    """Positive iff +1 or -1 makes contact that changes the object's velocity."""
    assert bool(influence(np.array(state, np.float32))) is label


def random_policy(episodes: int, seed: int) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
    """States before each step [episodes, 30, 4] and infos [episodes, 30] under uniform actions."""
    envs = SlideVectorEnv(episodes, autoreset_mode=AutoresetMode.DISABLED)
    obs, _ = envs.reset(seed=seed)
    generator = np.random.default_rng(seed + 1)
    states, infos = [], []
    for _ in range(30):
        states.append(obs["observation"])
        obs, _, _, truncated, info = envs.step(generator.uniform(-1, 1, (episodes, 1)))
        infos.append(info)
    assert truncated.all()
    keys = ("contact", "label_exact", "is_success")
    return np.stack(states, axis=1), {key: np.stack([info[key] for info in infos], axis=1) for key in keys}


def test_label_means_that_the_action_matters_to_the_object() -> None:
    """On random-policy states the label equals "the object's outcome differs between actions"."""
    states, infos = random_policy(episodes=400, seed=3)
    candidates = np.linspace(-1, 1, 5, dtype=np.float32)[:, None, None, None]  # [5, 1, 1, 1]
    outcomes, _ = step(states, candidates)  # [5, episode, time, 4]
    differs = (outcomes[..., 2:] != outcomes[:1, ..., 2:]).any(axis=(0, -1))
    assert differs.sum() > 50
    np.testing.assert_array_equal(infos["label_exact"], differs)
    np.testing.assert_array_equal(infos["label_exact"], influence(states))


def test_random_policy_rates() -> None:
    """About 1.8 % influenced states, 1.2 % contacts and 2.7 % successes, known from 60,000 states."""
    episodes, known_episodes = 4000, 2000
    _, infos = random_policy(episodes, seed=7)
    rates = {  # one number per episode, because steps of one episode are not independent
        "label": (infos["label_exact"].mean(axis=1), 0.018),
        "contact": (infos["contact"].mean(axis=1), 0.012),
        "success": (infos["is_success"][:, -1].astype(float), 0.027),
    }
    for name, (per_episode, known) in rates.items():
        spread = per_episode.std() * np.sqrt(1 / episodes + 1 / known_episodes)
        assert abs(per_episode.mean() - known) < 4 * spread + 0.0005, name  # 0.0005: known to one decimal
        assert 4 * spread < known, f"{name}: the tolerance is too wide to mean anything"


# --- reset and the scripted hitter ----------------------------------------------------------------


def test_reset_distribution() -> None:
    """agent -3.9 + U(-1, 1), object agent + 1.5 + U(-0.5, 0.5), goal 2.5 + U(-2, 2), all at rest."""
    count = 4000
    obs, _ = SlideVectorEnv(count).reset(seed=0)
    state, goal = obs["observation"].astype(np.float64), obs["desired_goal"][:, 0]
    draws = np.stack([state[:, 0] + 3.9, (state[:, 2] - state[:, 0] - 1.5) / 0.5, (goal - 2.5) / 2])
    assert (np.abs(draws) <= 1 + 1e-6).all()
    assert (np.abs(draws.mean(axis=1)) < 4 * np.sqrt(1 / 3 / count)).all()  # variance of U(-1, 1) is 1/3
    np.testing.assert_allclose(draws.std(axis=1), np.sqrt(1 / 3), rtol=0.05)
    correlation = np.asarray(np.corrcoef(draws))[np.triu_indices(3, 1)]
    assert (np.abs(correlation) < 4 / np.sqrt(count)).all()
    assert (state[:, [1, 3]] == 0).all()
    np.testing.assert_array_equal(obs["achieved_goal"], obs["observation"][:, 2:3])


# --- reward ---------------------------------------------------------------------------------------


def test_reward_is_the_same_on_numpy_and_torch() -> None:
    """0 within 0.5 inclusive, else -1, float32, one number per goal pair."""
    achieved = np.array([[[0.0], [1.0], [2.0]], [[0.25], [-3.0], [5.0]]], np.float32)  # [2, 3, 1]
    desired = np.array([[[0.5], [1.75], [1.5]], [[0.25], [-2.25], [4.75]]], np.float32)
    expected = [[0, -1, 0], [0, -1, 0]]
    on_numpy = reward(achieved, desired)
    on_torch = reward(torch.from_numpy(achieved), torch.from_numpy(desired))
    np.testing.assert_array_equal(on_numpy, expected)
    assert on_numpy.dtype == np.float32
    assert on_torch.dtype == torch.float32
    np.testing.assert_array_equal(on_torch.numpy(), on_numpy)
    np.testing.assert_array_equal(SlideVectorEnv(2).compute_reward(achieved, desired, {}), expected)
    assert SlideEnv().compute_reward(achieved[0, 1], desired[0, 1], {}) == -1
    many = np.random.default_rng(0).uniform(-5, 5, (2, 10_000, 1)).astype(np.float32)
    np.testing.assert_array_equal(reward(many[0], many[1]), reward(*map(torch.from_numpy, many)).numpy())


@pytest.mark.parametrize("goal", [np.zeros(3), np.zeros((3, 2)), [0.0], 0.0])
def test_reward_refuses_wrong_shapes(goal: Any) -> None:
    """Goals without a last dimension of 1 would broadcast into nonsense."""
    with pytest.raises(ValueError, match=r"\[\.\.\., 1\]"):
        reward(np.zeros((3, 1)), goal)


# --- Gymnasium ------------------------------------------------------------------------------------


def assert_same(ours: Any, theirs: Any) -> None:
    """Deep equality of observations and infos, types of arrays included."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert ours.dtype == object
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_environments_do_exactly_what_single_environments_do(mode: AutoresetMode) -> None:
    """Against Gymnasium's SyncVectorEnv of single environments: every bit of every return in every mode."""
    ours = gymnasium.make_vec("butfor/Slide-v0", 5, max_episode_steps=12, autoreset_mode=mode)
    theirs = gymnasium.make_vec("butfor/Slide-v0", 5, "sync", {"autoreset_mode": mode}, max_episode_steps=12)
    assert isinstance(ours, SlideVectorEnv)
    assert isinstance(theirs, SyncVectorEnv)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    for (obs, info), (other_obs, other_info) in [
        (ours.reset(seed=9), theirs.reset(seed=9)),
        (ours.reset(seed=[4, None, 2, None, 9]), theirs.reset(seed=[4, None, 2, None, 9])),
    ]:
        assert_same(obs, other_obs)
        assert_same(info, other_info)
    generator, seen = np.random.default_rng(0), {"contact": 0, "truncated": 0}
    for time in range(60):
        if time in (5, 17):  # brings the environments out of step
            mask = np.array([True, False, time == 5, False, False])
            obs, info = ours.reset(seed=time, options={"reset_mask": mask})
            other_obs, other_info = theirs.reset(seed=time, options={"reset_mask": mask})
            assert_same(obs, other_obs)
            assert_same(info, other_info)
        action, _ = scripted_action(hit, obs, generator, noise=0.5)
        step_ours, step_theirs = ours.step(action), theirs.step(action)
        for part in (0, 2, 3, 4):
            assert_same(step_ours[part], step_theirs[part])
        np.testing.assert_array_equal(step_ours[1], step_theirs[1])  # Gymnasium's rewards are float64
        obs, _, _, truncated, info = step_ours
        seen["contact"] += int(info.get("contact", np.zeros(1)).sum())
        seen["truncated"] += int(truncated.sum())
        if mode is AutoresetMode.DISABLED and truncated.any():
            obs, _ = ours.reset(options={"reset_mask": truncated})
            other_obs, _ = theirs.reset(options={"reset_mask": truncated.copy()})
            assert_same(obs, other_obs)
    assert seen["contact"] > 5
    assert seen["truncated"] > 15


def test_a_stored_episode_can_be_replayed_bit_for_bit() -> None:
    """An observation is the complete state."""
    env = gymnasium.make("butfor/Slide-v0")
    obs, _ = env.reset(seed=1)
    generator, truncated, steps = np.random.default_rng(1), False, 0
    while not truncated:
        action, _ = scripted_action(hit, obs, generator)
        label = influence(obs["observation"])
        expected, contact = step(obs["observation"], action)
        obs, value, terminated, truncated, info = env.step(action)
        steps += 1
        np.testing.assert_array_equal(obs["observation"], expected)
        assert info == {"contact": contact, "label_exact": label, "is_success": value == 0}
        assert value == reward(obs["achieved_goal"], obs["desired_goal"])
        assert not terminated
    assert steps == 30
    assert info["is_success"]


def test_check_env_finds_nothing() -> None:
    """Gymnasium's checker, warnings being errors."""
    env = gymnasium.make("butfor/Slide-v0", render_mode="rgb_array").unwrapped
    check_env(env)


def test_environments_clip_actions() -> None:
    """Actions beyond the bounds act like the bounds, alone and in a batch."""
    for wild, tame in ((7.0, 1.0), (-np.inf, -1.0)):
        results = []
        for action in (wild, tame):
            env, envs = SlideEnv(), SlideVectorEnv(2)
            env.reset(seed=0)
            envs.reset(seed=0)
            results.append((env.step(np.array([action]))[0], envs.step(np.full((2, 1), action))[0]))
        assert_same(results[0][0], results[1][0])
        assert_same(results[0][1], results[1][1])


def test_returned_arrays_are_never_changed_later() -> None:
    """Stored observations survive later steps and resets."""
    envs = SlideVectorEnv(2, max_episode_steps=2)
    kept = [envs.reset(seed=0)[0]]
    copies = [{key: value.copy() for key, value in kept[0].items()}]
    for _ in range(6):
        obs, *_ = envs.step(np.ones((2, 1)))
        kept.append(obs)
        copies.append({key: value.copy() for key, value in obs.items()})
    for obs, copied in zip(kept, copies, strict=True):
        assert_same(obs, copied)


# --- pictures -------------------------------------------------------------------------------------


def test_picture_shows_everything_at_its_place() -> None:
    """40 pixels a unit with x = 0 at column 240; the ground at row 90."""
    frame = draw([-2.0, 0, 1.0, 0], [3.0]).astype(int)
    assert frame.shape == (120, 480, 3)
    agent, body = frame[80, 160], frame[80, 280]
    assert agent.max() < 60  # black
    assert body[0] > 2 * max(body[1], body[2])  # orange
    for centre, colour in ((160, agent), (280, body)):  # 0.2 wide: 8 pixels
        columns = np.flatnonzero((frame[80] == colour).all(axis=-1))
        assert (columns.min(), columns.max()) == (centre - 4, centre + 3)
    zone = np.flatnonzero(frame[40, :, 1] - frame[40, :, 0] > 30)  # green, 2.5 to 3.5
    assert (zone.min(), zone.max()) == (340, 379)
    assert (frame[14:90, 219:221] < 200).any()  # the agent's limit at -0.5: column 220
    assert (frame[91, 40:440] < 100).all()  # the ground from -5 to 5
    assert (frame[50, [*range(30, 36), *range(444, 450)]] < 200).all()  # walls, half a width further out
    assert (frame[110] == 255).all()


def test_render_modes() -> None:
    """rgb_array draws the current state, no mode draws nothing, others are refused."""
    env = SlideEnv(render_mode="rgb_array")
    with pytest.raises(ResetNeeded, match="reset"):
        env.render()
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), draw(obs["observation"], obs["desired_goal"]))
    envs = SlideVectorEnv(2, render_mode="rgb_array")
    obs, _ = envs.reset(seed=[5, 0])
    frames = envs.render()
    assert frames is not None
    np.testing.assert_array_equal(frames[1], env.render())
    silent = SlideEnv()
    silent.reset(seed=0)
    assert silent.render() is None
    with pytest.raises(ValueError, match="rgb_array"):
        SlideEnv(render_mode="human")
