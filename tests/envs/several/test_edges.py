"""Exact labels between entities, in states of Pucks whose answer is known."""

from typing import Any

import numpy as np
import pytest

from butfor.envs import make_vector_env
from butfor.envs.several.edges import action_effects, moved_effects, removal_effects, try_actions
from butfor.envs.several.pucks import RADIUS, PucksWorld

WORLD = PucksWorld()
CORNERS = np.array([[-1, -1, 0, 0], [-1, 1, 0, 0], [1, -1, 0, 0], [1, 1, 0, 0]], np.float32) * np.float32(0.25)
AGENT, FIRST, SECOND, THIRD = range(4)


def states(**bodies: list[float]) -> Any:
    """One state [1, 16]: the bodies at rest in the corners, except those given as [x, y, velocity x, velocity y]."""
    rows = CORNERS.copy()
    for name, row in bodies.items():
        rows[WORLD.entities.index(name)] = row
    return rows.reshape(1, 16)


APART = states()
HIT = states(first=[0, 0, 1, 0], second=[1.9 * RADIUS, 0, 0, 0])
STILL = np.zeros((1, 2), np.float32)


def test_without_a_source_only_what_it_hits_moves_differently() -> None:
    effects = removal_effects(WORLD, HIT, STILL)[0]
    moved = np.argwhere(effects > WORLD.tolerance).tolist()
    assert moved == [[FIRST, SECOND], [SECOND, FIRST]]
    assert effects[FIRST, SECOND] == pytest.approx(0.95, abs=0.08)  # (1 + restitution) / 2 of the speed 1, less slope
    assert np.isnan(np.diag(effects)).all()
    nothing = removal_effects(WORLD, APART, STILL)[0]
    assert np.nanmax(nothing) == 0


def test_saved_states_of_pucks_have_the_effects_of_their_observations() -> None:
    env: Any = make_vector_env("pucks", 40)
    env.reset(seed=list(range(40)))
    action = np.random.default_rng(0).uniform(-1, 1, (8, 40, 2)).astype(np.float32)
    rows = []
    for now in action:
        env.step(now)
        rows.append(env.save_state())
    saved = np.concatenate(rows)
    observed = saved[:, :16].astype(np.float32)
    taken = action.reshape(-1, 2)
    following = np.zeros((len(saved), 1, 4, 2))
    for effects in (
        lambda states: removal_effects(WORLD, states, taken),
        lambda states: moved_effects(WORLD, states, taken, states, draws=2),
        lambda states: action_effects(WORLD, states, (1, 5), following),
        WORLD.contacts,
    ):
        np.testing.assert_array_equal(effects(saved), effects(observed))
    stepped = WORLD.step(saved, taken)
    np.testing.assert_array_equal(stepped[:, 16:], saved[:, 16:])
    env.restore_state(None, saved[-40:])
    np.testing.assert_array_equal(env.step(action[-1])[0]["observation"], stepped[-40:, :16])
    with pytest.raises(ValueError, match="17"):
        removal_effects(WORLD, saved[:, :17], taken)


def test_a_hit_does_not_happen_with_the_source_elsewhere() -> None:
    """Most other places of the first puck would have spared the second one, and few would have hit it otherwise."""
    generator = np.random.default_rng(0)
    reference = np.zeros((500, 4, 4), np.float32)
    reference[..., :2] = generator.uniform(-0.6, 0.6, (500, 4, 2))
    share = moved_effects(WORLD, HIT, STILL, reference.reshape(500, 16), draws=64)[0]
    assert share[FIRST, SECOND] > 0.9
    assert share[THIRD, SECOND] == 0  # a puck at rest does not hit
    assert np.isnan(share[FIRST, FIRST])
    assert np.isnan(moved_effects(WORLD, HIT, STILL, HIT, draws=4)[0, FIRST, SECOND])  # overlapping: not possible


def test_the_action_matters_when_the_agent_can_get_there() -> None:
    """With a full push to the right, the agent needs about 8 steps for the 0.6 to the first puck."""
    start = states(agent=[-0.4, 0, 0, 0], first=[0.35, 0, 0, 0])
    forward = np.tile(np.array([1, 0], np.float32), (1, 1, 19, 1))
    size, share = action_effects(WORLD, start, (1, 3, 20), forward)
    assert share[0, :, AGENT].tolist() == [1, 1, 1]
    assert share[0, :, FIRST].tolist() == [0, 0, 1]
    assert (share[0, :2, SECOND:] == 0).all()
    assert size[0, 2, FIRST] > 0.1
    away = -forward
    assert action_effects(WORLD, start, (20,), away)[1][0, 0, FIRST] == 0


def test_the_share_is_over_the_continuations() -> None:
    start = states(agent=[-0.4, 0, 0, 0], first=[0.35, 0, 0, 0])
    forward = np.tile(np.array([1, 0], np.float32), (1, 1, 19, 1))
    both = np.concatenate([forward, -forward], axis=1)
    assert action_effects(WORLD, start, (20,), both)[1][0, 0, FIRST] == 0.5


def test_an_effect_is_passed_on_by_a_puck_that_was_hit() -> None:
    start = states(agent=[-0.4, 0, 0, 0], first=[-0.1, 0, 0, 0], third=[0.35, 0, 0, 0])
    forward = np.tile(np.array([1, 0], np.float32), (1, 1, 19, 1))
    share = action_effects(WORLD, start, (3, 20), forward)[1][0]
    assert share[:, THIRD].tolist() == [0, 1]


def test_too_short_a_continuation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(1, 1, 2, 2\).*\[1, C, 4, 2\]"):
        action_effects(WORLD, APART, (5,), np.zeros((1, 1, 2, 2)))


def test_corners_and_nothing_are_tried() -> None:
    tried = try_actions(3)
    assert tried.shape == (9, 3)
    assert len(np.unique(tried, axis=0)) == 9
    assert np.abs(tried[:-1]).min() == 1
