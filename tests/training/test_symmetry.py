"""Mirrored and shifted samples: by value, against the simulators, and as options of a run."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from support.small_training import small

from butfor.envs import make_vector_env
from butfor.envs.facts import BUILT_IN
from butfor.spaces.mirrors import Mirror
from butfor.training.goal_env import open_goal_env
from butfor.training.replay import Batch, ReplayConfig
from butfor.training.run import train
from butfor.training.symmetry import Symmetry

CPU = torch.device("cpu")
ALL = torch.tensor(0.0)  # a uniform number by which a mirror reflects
NONE = torch.tensor(0.9)


def batch(inputs: torch.Tensor, action: torch.Tensor) -> Batch:
    zero = torch.zeros(inputs.shape[:2])
    index = zero.long()
    return Batch(inputs, action, inputs + 1, zero, zero, zero, index, index)


def reflected(mirror: Mirror, sizes: tuple[int, int, int], values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Observations [N, D] in a mirror, by the code that training uses."""
    inputs = torch.from_numpy(values).double()[None]
    inputs = torch.cat([inputs, torch.zeros(1, len(values), sizes[2])], -1)
    symmetry = Symmetry([mirror], ReplayConfig(mirror=True), sizes, CPU)
    result = symmetry(batch(inputs, torch.zeros(1, len(values), sizes[1])), torch.zeros(1, len(values), 1))
    return result.inputs[0, :, : sizes[0]].numpy()


def test_a_reflection_by_value() -> None:
    mirror = Mirror(places=(0,), goal_places=(1,), action_signs=(1,), signs=(2,), swapped=((3, 4),), middle=10.0)
    # observation (5 columns), goal (2), what is left to it (2)
    inputs = torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]]])
    expected = torch.tensor([[[19.0, 2.0, -3.0, 5.0, 4.0, 6.0, 13.0, 8.0, -9.0]]])
    symmetry = Symmetry([mirror], ReplayConfig(mirror=True, relative_goals=True), (5, 2, 2), CPU)
    assert symmetry.noise_size == 1
    changed = symmetry(batch(inputs, torch.tensor([[[0.5, 0.25]]])), ALL.expand(1, 1, 1))
    assert changed.inputs.equal(expected)
    assert changed.action.equal(torch.tensor([[[0.5, -0.25]]]))
    assert changed.next_inputs[..., 0].item() == 18.0  # of 2
    again = symmetry(changed, ALL.expand(1, 1, 1))
    assert again.inputs.equal(inputs)
    same = symmetry(batch(inputs, changed.action), NONE.expand(1, 1, 1))
    assert same.inputs.equal(inputs)
    assert same.action.equal(changed.action)


def test_a_shift_moves_positions_and_goals_alike() -> None:
    mirrors = [Mirror((axis,), (axis,), (axis,), (2 + axis,)) for axis in (0, 1)]
    inputs = torch.zeros(1, 3, 8)  # position (2), velocity (2), goal (2), what is left to it (2)
    symmetry = Symmetry(mirrors, ReplayConfig(shift=0.1, relative_goals=True), (4, 2, 2), CPU)
    assert symmetry.noise_size == 2
    noise = torch.tensor([[[0.0, 0.5], [1.0, 0.75], [0.5, 0.5]]])
    changed = symmetry(batch(inputs, torch.ones(1, 3, 2)), noise)
    expected = torch.tensor([[-0.1, 0.0], [0.1, 0.05], [0.0, 0.0]])
    for columns in (slice(0, 2), slice(4, 6)):
        torch.testing.assert_close(changed.inputs[0, :, columns], expected)
        torch.testing.assert_close(changed.next_inputs[0, :, columns], expected + 1)
    assert not changed.inputs[..., [2, 3, 6, 7]].any()
    assert changed.action.equal(torch.ones(1, 3, 2))


def test_a_mirror_can_forbid_to_move_along_it() -> None:
    mirrors = [Mirror((axis,), (axis,), (axis,), shift=axis == 1) for axis in (0, 1)]
    symmetry = Symmetry(mirrors, ReplayConfig(mirror=True, shift=0.1), (2, 2, 2), CPU)
    assert symmetry.noise_size == 3  # two reflections and one shift
    changed = symmetry(batch(torch.ones(1, 1, 4), torch.ones(1, 1, 2)), torch.tensor([[[0.9, 0.9, 1.0]]]))
    torch.testing.assert_close(changed.inputs, torch.tensor([[[1.0, 1.1, 1.0, 1.1]]]))


def test_samples_may_be_moved_along_a_mirror_that_they_are_not_seen_in() -> None:
    mirrors = [Mirror((axis,), (axis,), (axis,), reflect=axis == 1) for axis in (0, 1)]
    symmetry = Symmetry(mirrors, ReplayConfig(mirror=True, shift=0.1), (2, 2, 2), CPU)
    assert symmetry.noise_size == 3  # one reflection and two shifts
    changed = symmetry(batch(torch.ones(1, 1, 4), torch.ones(1, 1, 2)), torch.tensor([[[0.0, 1.0, 0.5]]]))
    torch.testing.assert_close(changed.inputs, torch.tensor([[[1.1, -1.0, 1.1, -1.0]]]))
    assert changed.action.equal(torch.tensor([[[1.0, -1.0]]]))


def test_a_puck_slides_alike_elsewhere() -> None:
    """FetchSlide is moved along both axes: a puck that slides freely takes the same way 10 cm further."""
    facts = BUILT_IN["fetch-slide"]
    assert [mirror.goal_places for mirror in facts.mirrors if mirror.shift] == [(0,), (1,)]
    env: Any = make_vector_env("fetch-slide", 8)
    env.reset(seed=0)
    start = env.save_state()
    place, speed = (np.arange(start.shape[1])[part] for part in (env.layout.object_pose, env.layout.object_velocity))
    start[:, place[0]] = 1.3
    start[:, speed[0]] = np.linspace(0.1, 0.8, 8)
    ways = []
    for moved in (0.0, 0.1):
        there = start.copy()
        there[:, place[0]] += moved
        env.restore_state(None, there)
        for _ in range(10):
            obs = env.step(np.zeros((8, 4), np.float32))[0]
        ways.append(obs["achieved_goal"] - [moved, 0, 0])
    env.close()
    assert (ways[0][:, 0] - 1.3).max() > 0.1
    np.testing.assert_allclose(ways[0], ways[1], atol=1e-3)


def test_a_shift_is_refused_where_walls_or_a_slope_stand(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"shift.*0\.1.*pucks"):
        train(small(env="pucks", replay={"shift": 0.1}), tmp_path / "run")
    open_goal_env("pucks").check_mirrors(shift=0)
    open_goal_env("push-two").check_mirrors(shift=0.1)


def test_half_of_the_samples_in_each_mirror() -> None:
    mirrors = [Mirror((axis,), (axis,), (axis,)) for axis in (0, 1)]
    symmetry = Symmetry(mirrors, ReplayConfig(mirror=True, shift=0.1), (2, 2, 2), CPU)
    assert symmetry.noise_size == 4
    noise = torch.rand(1, 10_000, 4, generator=torch.Generator().manual_seed(0))
    signs = symmetry(batch(torch.ones(1, 10_000, 4), torch.ones(1, 10_000, 2)), noise).action[0]
    kinds = torch.stack([(signs == torch.tensor([x, y])).all(-1).float().mean() for x in (-1, 1) for y in (-1, 1)])
    assert (kinds - 0.25).abs().max() < 5 * (0.25 * 0.75 / 10_000) ** 0.5


# metres that the gripper's reflected place may be off after three steps: the arm is not quite symmetric, least in x
@pytest.mark.parametrize(
    ("name", "within"),
    [("push", (3e-3, 2e-3)), ("pick-and-place", (2e-3, 2e-4)), ("fetch-slide", (2e-3,)), ("push-two", (3e-3, 2e-3))],
)
def test_the_robot_moves_alike_in_its_mirrors(name: str, within: tuple[float, ...]) -> None:
    facts = BUILT_IN[name]
    env: Any = make_vector_env(name, 8)
    obs, _ = env.reset(seed=0)
    for mirror, limit in zip((one for one in facts.mirrors if one.reflect), within, strict=True):
        (axis,) = mirror.goal_places
        if name != "fetch-slide":  # the mirrors stand where the gripper starts
            assert abs(obs["observation"][:, axis] - mirror.middle).max() < 1e-3
        start = env.save_state()
        actions = np.random.default_rng(axis).uniform(-1, 1, (3, 8, 4)).astype(np.float32)
        paths = []
        for reflects in (False, True):
            env.restore_state(None, start)
            for action in actions:
                sign = np.ones(4, np.float32)
                sign[axis] = -1 if reflects else 1
                paths.append(env.step(action * sign)[0]["observation"])
        sizes = (paths[0].shape[1], 4, 3)
        straight, seen = paths[2], reflected(mirror, sizes, paths[5])
        before = list(facts.agent_position)
        assert np.abs(straight[:, before] - obs["observation"][:, before]).max() > 0.03
        assert np.abs(straight - seen)[:, before].max() < limit
        env.restore_state(None, start)
    env.close()


@pytest.mark.parametrize("name", ["push", "push-two"])
def test_a_cube_that_falls_and_turns_does_so_in_the_mirrors(name: str) -> None:
    """All of its columns, angles and angular velocities included; those of a reflection are pseudovectors."""
    facts = BUILT_IN[name]
    env: Any = make_vector_env(name, 8)
    env.reset(seed=0)
    state = env.save_state()
    columns = list(facts.bodies["object1" if facts.several else "object"])
    random = np.random.default_rng(0)
    place = random.normal([1.34, 0.75, 2.0], 0.2, (8, 3))  # far above the robot
    turned = random.normal(size=(8, 4))
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    velocity, turning = random.normal(size=(2, 8, 3))
    pose, speed = (np.arange(state.shape[1])[part] for part in (env.layout.object_pose, env.layout.object_velocity))
    if facts.several:  # the layout is that of the first cube; the goal is about the second
        pose, speed = pose + 7, speed + 6
    for mirror in facts.mirrors:
        (axis,) = mirror.goal_places
        sign = np.where(np.arange(3) == axis, -1, 1)
        seen = []
        for reflects in (False, True):
            start = state.copy()
            there = place + reflects * (np.arange(3) == axis) * 2 * (mirror.middle - place)
            quaternion = turned * ([1, *-sign] if reflects else 1)
            start[:, pose] = np.concatenate([there, quaternion], 1)
            start[:, speed] = np.concatenate(
                [velocity * (sign if reflects else 1), turning * (-sign if reflects else 1)], 1
            )
            env.restore_state(None, start)
            for _ in range(2):
                obs = env.step(np.zeros((8, 4), np.float32))[0]["observation"]
            seen.append(obs)
        back = reflected(mirror, (obs.shape[1], 4, 3), seen[1])
        assert np.abs(seen[0][:, columns]).max(0).min() > 0.01  # each one says something
        np.testing.assert_allclose(seen[0][:, columns], back[:, columns], atol=2e-3)
    env.close()


def test_pucks_hit_each_other_alike_in_their_mirrors() -> None:
    env: Any = make_vector_env("pucks", 64)
    obs, _ = env.reset(seed=0)
    place = obs["observation"]
    for mirror in BUILT_IN["pucks"].mirrors:
        states = env.save_state()
        other = states.copy()
        assert np.allclose(states[:, :16], place)  # the state begins with the observation
        other[:, :16] = reflected(mirror, (16, 2, 2), states[:, :16])
        paths = []
        for start, sign in ((states, 1.0), (other, -1.0)):
            env.restore_state(None, start)
            signs = np.ones(2, np.float32)
            signs[list(mirror.action_signs)] = sign
            generator = np.random.default_rng(0)
            for _ in range(20):
                seen = env.step(generator.uniform(-1, 1, (64, 2)).astype(np.float32) * signs)[0]["observation"]
            paths.append(seen)
        assert np.abs(paths[0] - place).max() > 0.1
        assert np.quantile(np.abs(paths[0] - reflected(mirror, (16, 2, 2), paths[1])).max(1), 0.9) < 1e-3
        env.restore_state(None, states)
    env.close()


class Mirrored(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that declares a mirror."""

    mirrors = (Mirror(places=(0, 2), goal_places=(0,), action_signs=(0,), signs=(1, 3)),)


def test_an_environment_of_ones_own_declares_its_mirrors(tmp_path: Path) -> None:
    def make_env() -> gymnasium.Env[Any, Any]:
        return Mirrored(gymnasium.make("butfor/Slide-v0"))

    assert open_goal_env("mine", make_env=make_env).mirrors == Mirrored.mirrors
    config = small(env="mine", replay={"mirror": True, "shift": 0.1})
    folder = train(config, tmp_path / "run", make_env=make_env)
    assert (folder / "summary.json").exists()


def test_without_mirrors_the_options_are_refused(tmp_path: Path) -> None:
    for replay in ({"mirror": True}, {"shift": 0.1}):
        with pytest.raises(ValueError, match="slide declares none"):
            train(small(replay=replay), tmp_path / "run")
