"""The Fetch environments stepped by MuJoCo Warp: on its CPU backend, and on a GPU where there is one."""

import functools
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from butfor.envs.experts import scripted_action
from butfor.envs.facts import BUILT_IN
from butfor.envs.fetch import FetchVectorEnv, make_physics
from butfor.envs.fetch_physics import FetchPhysics
from butfor.envs.several.edges import action_effects
from butfor.envs.several.fetch_world import FetchWorld
from butfor.envs.truth import WARP_TOLERANCE, Forker, exact_label
from butfor.envs.vector import Flags

Floats = npt.NDArray[np.float64]

TASKS = ("pick-and-place", "push")
FREE = 2e-6  # metres; float32 has steps of 1.2e-7 at these positions
TOUCHED = 0.02  # metres; between two boxes MuJoCo Warp often finds more contact points than MuJoCo
ENVS = 8

needs_warp = pytest.mark.skipif(find_spec("mujoco_warp") is None, reason="MuJoCo Warp is not installed (extra 'warp')")
both_tasks = pytest.mark.parametrize("task", TASKS)


def devices() -> list[Any]:
    """Warp's devices, as parameters of a test; a GPU is skipped where there is none."""
    found = []
    if find_spec("mujoco_warp") is not None:
        import warp

        warp.config.quiet = True
        found = warp.get_cuda_devices()
    gpu = pytest.param("cuda", marks=pytest.mark.skipif(not found, reason="Warp finds no CUDA device"))
    return ["cpu", gpu]


each_device = pytest.mark.parametrize("device", devices())


@dataclass(frozen=True)
class Sample:
    """States, the actions taken there, the next states, and whether a finger touched the object on the way."""

    state: Floats
    action: npt.NDArray[np.float32]
    following: Floats
    contact: Flags


@functools.cache
def sample(task: str, policy: str) -> Sample:
    """Every tenth step of some episodes."""
    envs = FetchVectorEnv(task, ENVS, max_episode_steps=None, labels=("contact",))
    noise, share = {"random": (0.0, 1.0), "expert": (0.0, 0.0), "noisy expert": (0.3, 0.3)}[policy]
    generator = np.random.default_rng(3)
    obs, _ = envs.reset(seed=40)
    kept = []
    for step in range(50):
        action, _ = scripted_action(BUILT_IN[task].expert, obs, generator, noise, share)
        before = envs.save_state()
        obs, _, _, _, info = envs.step(action)
        if step % 10 == 9:
            kept.append((before, action, envs.save_state(), info["contact"]))
    return Sample(*(np.concatenate(part) for part in zip(*kept, strict=True)))


@functools.cache
def physics_of(task: str, device: str) -> FetchPhysics:
    """As many environments as a sample has states; all tests use them, so that they have a history."""
    return make_physics(task, len(sample(task, "random").state), warp_device=device)


def step(physics: FetchPhysics, states: Floats, actions: npt.NDArray[np.float32]) -> Floats:
    slots = np.arange(len(states))
    physics.restore(slots, states)
    physics.advance(actions, slots)
    return physics.save(slots)


@needs_warp
@each_device
@both_tasks
@pytest.mark.parametrize("policy", ["random", "expert", "noisy expert"])
def test_a_step_agrees_with_mujoco(task: str, policy: str, device: str) -> None:
    given = sample(task, policy)
    physics = physics_of(task, device)
    found = step(physics, given.state, given.action)
    layout = physics.layout
    difference = np.abs(found - given.following[:, : found.shape[1]])
    gripper = difference[:, layout.gripper][:, :3].max(axis=1)
    thing = difference[:, layout.object_pose][:, :3].max(axis=1)
    untouched = ~Forker(task, 1).within_reach(given.state)
    assert gripper[untouched].max(initial=0) < FREE
    assert thing[untouched].max(initial=0) < FREE
    assert np.quantile(gripper, 0.5) < FREE
    assert thing.max() < TOUCHED
    assert (given.contact.any() and not untouched.all()) or policy == "random"  # the sample has what it is about
    observed = difference[untouched][:, layout.observation]
    assert observed.max(initial=0) < 1e-5


@needs_warp
@each_device
@both_tasks
def test_a_restored_state_has_no_history(task: str, device: str) -> None:
    one, other = sample(task, "noisy expert"), sample(task, "expert")
    physics = physics_of(task, device)
    first = step(physics, one.state, one.action)
    step(physics, other.state, other.action)
    again = step(physics, one.state, one.action)
    if device == "cpu":
        np.testing.assert_array_equal(again, first)
    else:  # the order of sums may change
        np.testing.assert_allclose(again[:, physics.layout.qpos], first[:, physics.layout.qpos], atol=1e-4)


@needs_warp
@each_device
def test_environments_that_are_not_stepped_stay_as_they_are(device: str) -> None:
    given = sample("push", "expert")
    physics = physics_of("push", device)
    slots = np.arange(len(given.state))
    physics.restore(slots, given.state)
    before = physics.save(slots)
    some = slots[::3]
    physics.advance(given.action[some], some)
    after = physics.save(slots)
    others = np.setdiff1d(slots, some)
    np.testing.assert_array_equal(after[others], before[others])
    assert (after[some] != before[some]).any(axis=1).all()


@needs_warp
@each_device
@both_tasks
def test_exact_labels_agree_with_mujoco(task: str, device: str) -> None:
    plain, ours = Forker(task, 64), Forker(task, 680, warp_device=device)
    assert ours.tolerance == WARP_TOLERANCE > plain.tolerance
    for policy in ("random", "noisy expert"):
        given = sample(task, policy)
        np.testing.assert_array_equal(ours.within_reach(given.state), plain.within_reach(given.state))
        right, effect = exact_label(plain, given.state, given.action, shortcut=False)
        label, found = exact_label(ours, given.state, given.action, shortcut=False)
        np.testing.assert_array_equal(label, right)
        np.testing.assert_array_equal(exact_label(ours, given.state, given.action)[0], right)
        assert found[~right].max(initial=0) < WARP_TOLERANCE / 3
        assert found[right].min(initial=1) > 3 * WARP_TOLERANCE
        assert effect[right].min(initial=1) > 3 * WARP_TOLERANCE
    assert exact_label(ours, given.state[:0])[0].shape == (0,)


@needs_warp
def test_horizons_agree_with_mujoco() -> None:
    states = sample("pick-and-place", "noisy expert").state[::6]
    following = np.random.default_rng(0).uniform(-1, 1, (len(states), 1, 4, 4))
    plain = action_effects(FetchWorld("pick-and-place", 64), states, (1, 5), following)
    slots = 17 * len(states)
    ours = action_effects(FetchWorld("pick-and-place", slots, warp_device="cpu"), states, (1, 5), following)
    np.testing.assert_array_equal(ours[1], plain[1])
    np.testing.assert_allclose(ours[0][:, :, 0], plain[0][:, :, 0], atol=0.01)


@needs_warp
def test_an_environment_plays_and_its_forker_uses_the_same_device() -> None:
    envs = FetchVectorEnv("rot-table", 2, warp_device="cpu", timing="release")
    reference = FetchVectorEnv("rot-table", 2, timing="release")
    obs, _ = envs.reset(seed=5)
    other, _ = reference.reset(seed=5)
    for number in range(3):
        np.testing.assert_allclose(obs["observation"], other["observation"], atol=2e-5)
        action = np.full((2, 4), 0.3 * number, dtype=np.float32)
        obs, *_ = envs.step(action)
        other, *_ = reference.step(action)
    assert Forker(envs, 1).physics.warp_device == "cpu"


@needs_warp
def test_too_many_contacts_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from butfor.envs import warp_batch

    monkeypatch.setattr(warp_batch, "CONTACTS", 2)  # the robot alone makes four with the floor
    physics = make_physics("push", 2, warp_device="cpu")
    with pytest.raises(RuntimeError, match="2 contacts"):
        physics.batch.step(nstep=2)


@needs_warp
def test_an_unknown_device_and_contacts_are_refused() -> None:
    with pytest.raises(ValueError, match="toaster"):
        make_physics("push", 1, warp_device="toaster")
    with pytest.raises(ValueError, match="cpu"):
        make_physics("push", 1, contacts=True, warp_device="cpu")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    monkeypatch.delitem(sys.modules, "butfor.envs.warp_batch", raising=False)
    with pytest.raises(ImportError, match=r"butfor\[warp\]"):
        make_physics("push", 1, warp_device="cpu")
