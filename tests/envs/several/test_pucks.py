"""Pucks: collisions by hand, conservation of momentum, bits in any batch, Gymnasium's contract, forks."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from butfor.envs import make_vector_env
from butfor.envs.experts import scripted_action
from butfor.envs.several.pucks import (
    ACCELERATION,
    BOX,
    DRAG,
    FRICTION,
    MASS,
    PAIRS,
    RADIUS,
    RESTITUTION,
    SLOPE,
    SUBSTEPS,
    TIME_STEP,
    WALL_RESTITUTION,
    PucksEnv,
    PucksVectorEnv,
    PucksWorld,
    advance,
    cue,
    draw,
)

pytestmark = pytest.mark.filterwarnings("error")
STILL = np.zeros(2, np.float32)
CORNERS = np.array([[-1, -1, 0, 0], [-1, 1, 0, 0], [1, -1, 0, 0], [1, 1, 0, 0]], np.float32) * np.float32(0.25)


def state(**bodies: list[float]) -> Any:
    """The bodies at rest in the corners, except those given as [x, y, velocity x, velocity y]."""
    rows = CORNERS.copy()
    for name, row in bodies.items():
        rows[["agent", "first", "second", "third"].index(name)] = row
    return rows.ravel()


def played(count: int, steps: int) -> tuple[Any, Any]:
    """States and actions of a noisy script: [steps * count, 16], [steps * count, 2]."""
    env = make_vector_env("pucks", count)
    obs, _ = env.reset(seed=0)
    generator = np.random.default_rng(0)
    states, actions = [], []
    for _ in range(steps):
        action, _ = scripted_action(cue, obs, generator, 0.2, 0.2)
        states.append(obs["observation"])
        actions.append(action)
        obs = env.step(action)[0]
    return np.concatenate(states), np.concatenate(actions)


def test_a_puck_slides_and_stops() -> None:
    after, collided = advance(state(first=[0, 0, 0.5, 0]), STILL)
    place, speed = 0.0, 0.5
    for _ in range(SUBSTEPS):
        speed -= (SLOPE * place + FRICTION) * TIME_STEP / SUBSTEPS
        place += speed * TIME_STEP / SUBSTEPS
    np.testing.assert_allclose(after[4:8], [place, 0, speed, 0], atol=1e-6)
    assert not collided.any()
    resting, _ = advance(state(first=[0, 0, 1e-3, 0]), STILL)
    np.testing.assert_array_equal(resting[4:8], 0)
    steep, _ = advance(state(first=[1.1 * FRICTION / SLOPE, 0, 0, 0]), STILL)
    assert steep[6] < 0  # it slides down where the slope exceeds friction


def test_the_agent_approaches_its_final_speed() -> None:
    now = state(agent=[0, 0, 0, 0])
    first, _ = advance(now, np.array([1, 0], np.float32))
    place, speed = 0.0, 0.0
    for _ in range(SUBSTEPS):
        speed -= TIME_STEP / SUBSTEPS * SLOPE * place
        speed += TIME_STEP / SUBSTEPS * (ACCELERATION - DRAG * speed)
        place += TIME_STEP / SUBSTEPS * speed
    assert first[2] == pytest.approx(speed, abs=1e-6)
    np.testing.assert_array_equal(advance(now, np.array([9, 0], np.float32))[0], first)  # actions are clipped


def test_a_central_hit_exchanges_momentum() -> None:
    """Equal masses and restitution e: the hit puck leaves with (1 + e) / 2 of the speed, the other keeps the rest."""
    start = state(first=[-0.5 * RADIUS, 0, 1, 0], second=[1.4 * RADIUS, 0, 0, 0])
    after, collided = advance(start, STILL)
    assert collided.tolist() == [pair == (1, 2) for pair in PAIRS]
    slower = 1 - FRICTION * TIME_STEP / SUBSTEPS
    expected = np.array([1 - RESTITUTION, 1 + RESTITUTION]) / 2 * slower
    later = FRICTION * TIME_STEP * (SUBSTEPS - 1) / SUBSTEPS
    # the slope takes up to SLOPE x 1.5 RADIUS a second
    np.testing.assert_allclose(after[[6, 10]], np.maximum(expected - later, 0), atol=SLOPE * 1.5 * RADIUS * TIME_STEP)


def test_a_hit_conserves_momentum_and_nothing_else_moves() -> None:
    """Off centre, agent against puck, without a push: friction and drag are all that takes momentum away."""
    start = state(agent=[0, 0, 1.5, 0], third=[1.9 * RADIUS, 0.4 * RADIUS, 0, 0])
    with_hit, collided = advance(start, STILL)
    alone, _ = advance(start, STILL, absent=3)
    assert collided[PAIRS.index((0, 3))]
    rows = with_hit.reshape(4, 4)
    np.testing.assert_array_equal(rows[1:3], CORNERS[1:3])  # friction holds them on the slope
    lost = alone.reshape(4, 4)[0, 2:] - rows[0, 2:]  # of the agent's velocity; its drag is proportional to it
    gained = rows[3, 2:]
    assert gained @ lost > 0.99 * np.linalg.norm(gained) * np.linalg.norm(lost)  # along one line
    assert np.linalg.norm(gained) <= MASS[0] / MASS[3] * np.linalg.norm(lost) / (1 - DRAG * TIME_STEP)


def test_walls_reflect_and_hold() -> None:
    after, _ = advance(state(first=[BOX - RADIUS - 0.001, 0, 1, 0]), STILL)
    pull = SLOPE * (BOX - RADIUS)
    slower = 1 - (FRICTION + pull) * TIME_STEP / SUBSTEPS
    later = (pull - FRICTION) * TIME_STEP * (SUBSTEPS - 1) / SUBSTEPS
    assert after[6] == pytest.approx(-(WALL_RESTITUTION * slower + later), abs=1e-2)
    states, actions = played(20, 60)
    assert np.abs(states.reshape(-1, 4)[:, :2]).max() <= np.float32(BOX - RADIUS)
    assert len(actions) == len(states)


def test_a_step_gives_the_same_bits_in_any_batch_and_from_any_observation() -> None:
    states, actions = played(8, 40)
    whole, _ = advance(states, actions)
    for row in range(0, len(states), 7):
        np.testing.assert_array_equal(advance(states[row], actions[row])[0], whole[row])
    np.testing.assert_array_equal(whole[:-8], states[8:])  # the observation is the complete state


def test_the_script_makes_pucks_hit_pucks() -> None:
    states, actions = played(50, 60)
    collided = advance(states, actions)[1].mean(0)
    rates = dict(zip(PAIRS, collided, strict=True))
    assert rates[0, 1] > 0.01
    assert rates[1, 3] > 0.005


@pytest.mark.parametrize("labels", [(), ("exact",)])
def test_gymnasium_accepts_it(labels: tuple[str, ...]) -> None:
    check_env(PucksEnv(render_mode="rgb_array", labels=labels), skip_render_check=True)
    env = gymnasium.make("butfor/Pucks-v0", labels=labels)
    env.reset(seed=1)
    info = env.step(np.zeros(2, np.float32))[-1]
    assert ("label_exact" in info) == bool(labels)
    assert info["contact"] is False


def test_the_exact_label_is_whether_the_action_matters_for_the_third_puck() -> None:
    env = PucksVectorEnv(2, labels=("exact",))
    env.reset(seed=0)
    near = state(agent=[0, 0, 0.5, 0], third=[2.2 * RADIUS, 0, 0, 0])
    env.restore_state(None, np.array([[*near, 0, 0, 0], [*state(), 0, 0, 0]]))
    info = env.step(np.zeros((2, 2), np.float32))[-1]
    assert info["label_exact"].tolist() == [True, False]


def test_a_restored_environment_steps_as_the_saved_one() -> None:
    env = PucksVectorEnv(5, max_episode_steps=20, autoreset_mode="Disabled")
    env.reset(seed=3)
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 5, 2)).astype(np.float32)
    for action in actions[:4]:
        env.step(action)
    saved = env.save_state()
    first = [env.step(action)[0]["observation"] for action in actions[4:]]
    env.restore_state(None, saved)
    again = [env.step(action)[0]["observation"] for action in actions[4:]]
    np.testing.assert_array_equal(first, again)
    with pytest.raises(ValueError, match=r"\(5, 4\)"):
        env.restore_state(None, np.zeros((5, 4)))


def test_a_picture_shows_every_body_and_the_goal() -> None:
    picture = draw(state(), [0.0, 0.0])
    assert picture.shape == (240, 240, 3)
    assert picture[120, 120].tolist() == [178, 226, 213]
    half = round(240 * (0.25 + BOX) / (2 * BOX))
    assert picture[half, 240 - half].tolist() == [20, 20, 20]  # the agent, below on the left
    assert picture[240 - half, half].tolist() == [230, 159, 0]  # the third puck, above on the right


def test_contacts_are_those_of_touching_bodies() -> None:
    state = np.zeros((2, 16), dtype=np.float32)
    state[:, [4, 9, 12]] = [[2 * RADIUS, 0.5, -0.5], [2.1 * RADIUS, 0.5, -0.5]]
    found = PucksWorld().contacts(state)
    assert found[0, 0, 1]
    assert found[0, 1, 0]
    assert found.sum() == 2
