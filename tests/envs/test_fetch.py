import re
import warnings
from typing import Any

import gymnasium
import gymnasium_robotics
import mujoco
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from butfor.envs import fix_gymnasium_robotics
from butfor.envs.experts import scripted_action
from butfor.envs.facts import BUILT_IN
from butfor.envs.fetch import FetchEnv, FetchVectorEnv, reward
from butfor.envs.fetch_physics import CONTACT_FORCE, SUBSTEPS, TASKS, SimulationError, build, finger_forces

PEERS = {"push": "FetchPush-v4", "pick-and-place": "FetchPickAndPlace-v4", "fetch-slide": "FetchSlide-v4"}
IDS = {
    "push": "butfor/FetchPush-v0",
    "pick-and-place": "butfor/FetchPickAndPlace-v0",
    "fetch-slide": "butfor/FetchSlide-v0",
}
all_tasks = pytest.mark.parametrize("task", list(PEERS))


def peer(task: str, count: int, mode: AutoresetMode, steps: int = 50) -> Any:
    """gymnasium-robotics' own environments."""
    gymnasium.register_envs(gymnasium_robotics)
    fix_gymnasium_robotics()
    options = {"autoreset_mode": mode}
    return gymnasium.make_vec(PEERS[task], count, "sync", vector_kwargs=options, max_episode_steps=steps)


def largest_difference(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in theirs)


def random_actions(steps: int, count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, count, 4)).astype(np.float32)


@all_tasks
@pytest.mark.parametrize("policy", ["random", "scripted"])
def test_equal_to_gymnasium_robotics_over_episodes(task: str, policy: str) -> None:
    """Two episodes and the resets between: observations, goals, rewards and successes to 1e-12."""
    ours, theirs = FetchVectorEnv(task, 3), peer(task, 3, AutoresetMode.NEXT_STEP)
    observation, _ = ours.reset(seed=11)
    expected, _ = theirs.reset(seed=11)
    generator = np.random.default_rng(0)
    worst = largest_difference(observation, expected)
    moved, successes = 0.0, 0
    for step in range(101):
        share = 1.0 if policy == "random" else 0.05
        action, _ = scripted_action(BUILT_IN[task].expert, observation, generator, 0.1, share)
        before = observation["achieved_goal"]
        observation, rewards, terminated, truncated, infos = ours.step(action)
        expected, expected_rewards, _, expected_truncated, expected_infos = theirs.step(action)
        worst = max(worst, largest_difference(observation, expected))
        assert np.array_equal(rewards, expected_rewards)
        assert np.array_equal(truncated, expected_truncated)
        assert not terminated.any()
        assert ("is_success" in infos) == ("is_success" in expected_infos) == (step != 50)
        if step != 50:
            assert np.array_equal(infos["is_success"], expected_infos["is_success"].astype(bool))
            successes += infos["is_success"].sum()
            moved = max(moved, np.abs(observation["achieved_goal"] - before).max())
    assert worst <= 1e-12
    if policy == "scripted":  # else the comparison would say little about contacts and grasps
        assert moved > 0.01
        assert successes > 10


@all_tasks
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_autoreset_modes_equal_gymnasiums(task: str, mode: AutoresetMode) -> None:
    """Also final_obs, final_info and masked resets."""
    ours = FetchVectorEnv(task, 3, max_episode_steps=4, autoreset_mode=mode)
    theirs = peer(task, 3, mode, steps=4)
    assert ours.metadata["autoreset_mode"] is mode
    assert largest_difference(ours.reset(seed=5)[0], theirs.reset(seed=5)[0]) <= 1e-12
    if mode is AutoresetMode.DISABLED:  # the environments finish at different times from here on
        mask = np.array([False, True, False])
        first = [envs.step(random_actions(1, 3)[0])[0] for envs in (ours, theirs)]
        masked = [envs.reset(seed=[1, 2, 3], options={"reset_mask": mask})[0] for envs in (ours, theirs)]
        assert largest_difference(*masked) <= 1e-12
        assert np.array_equal(masked[0]["observation"][[0, 2]], first[0]["observation"][[0, 2]])
        assert not np.array_equal(masked[0]["observation"][1], first[0]["observation"][1])
    for action in random_actions(10, 3, seed=2):
        observation, rewards, _, truncated, infos = ours.step(action)
        expected, expected_rewards, _, expected_truncated, expected_infos = theirs.step(action)
        assert largest_difference(observation, expected) <= 1e-12
        assert np.array_equal(rewards, expected_rewards)
        assert np.array_equal(truncated, expected_truncated)
        assert np.array_equal(infos.get("_is_success", []), expected_infos.get("_is_success", []))
        if mode is AutoresetMode.SAME_STEP and truncated.any():
            assert np.array_equal(infos["_final_obs"], expected_infos["_final_obs"])
            for index in np.flatnonzero(truncated):
                final = infos["final_obs"][index], expected_infos["final_obs"][index]
                assert largest_difference(*final) <= 1e-12
            assert np.array_equal(infos["final_info"]["is_success"], expected_infos["final_info"]["is_success"] > 0)
        if mode is AutoresetMode.DISABLED and truncated.any():
            with pytest.raises(ResetNeeded, match=re.escape(str(np.flatnonzero(truncated).tolist()))):
                ours.step(action)
            resets = [envs.reset(options={"reset_mask": truncated.copy()})[0] for envs in (ours, theirs)]
            assert largest_difference(*resets) <= 1e-12


@pytest.mark.parametrize(
    ("task", "pose"),
    [
        ("push", [1.3627, 0.7491, 0.4160]),
        ("pick-and-place", [1.3419, 0.7491, 0.5347]),
        ("fetch-slide", [1.0127, 0.7490, 0.4160]),
    ],
)
def test_initial_gripper_pose(task: str, pose: list[float]) -> None:
    """Where gymnasium-robotics v4 puts the robot; v3 put it elsewhere."""
    theirs = peer(task, 1, AutoresetMode.DISABLED).envs[0].unwrapped
    model = build(TASKS[task], contacts=False)
    assert np.array_equal(model.gripper, theirs.initial_gripper_xpos)
    assert model.height == theirs.height_offset
    observation, _ = FetchVectorEnv(task, 4).reset(seed=0)
    assert np.abs(observation["observation"][:, :3] - pose).max() < 1e-3
    place = observation["achieved_goal"] - model.gripper
    assert (np.abs(place[:, :2]) <= TASKS[task].object_range).all()
    assert (np.linalg.norm(place[:, :2], axis=1) >= 0.1).all()
    table = BUILT_IN[task].table
    assert table is not None
    assert np.abs(observation["achieved_goal"][:, 2] - table.resting_height).max() < 1e-3


def test_reward_on_numpy_and_torch() -> None:
    """Zero up to a distance of 0.05, in both libraries; a swap of achieved and desired changes nothing."""
    achieved = np.array([[1.0, 2.0, 3.0]] * 3)
    desired = achieved + np.array([[0.03, 0.0, 0.0399], [0.03, 0.0, 0.0401], [0.0, 0.0, 0.0]])
    assert reward(achieved, desired).tolist() == [0.0, -1.0, 0.0]
    tensors = torch.from_numpy(achieved), torch.from_numpy(desired)
    assert reward(*tensors).tolist() == [0.0, -1.0, 0.0]
    assert reward(*tensors).dtype == torch.float32
    assert reward(achieved, desired).dtype == np.float32
    assert reward(achieved[None, :, :], desired[:, None, :]).shape == (3, 3)
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        reward(achieved, desired[:, :2])


@all_tasks
def test_contacts_change_nothing_and_equal_the_contact_forces(task: str) -> None:
    """The flag against a loop that adds up |force| of every finger-object contact point over the 20 substeps."""
    with_contacts, without = FetchVectorEnv(task, 4, labels=("contact",)), FetchVectorEnv(task, 4)
    observation, _ = with_contacts.reset(seed=3)
    without.reset(seed=3)
    model = build(TASKS[task], contacts=False).mj
    data, force = mujoco.MjData(model), np.zeros(6)
    sides = [model.geom(f"robot0:{side}_gripper_finger_link").id for side in "rl"]
    thing, spec, generator = model.geom("object0").id, mujoco.mjtState.mjSTATE_INTEGRATION, np.random.default_rng(0)
    flags, expected = [], []
    for _ in range(40):
        action, _ = scripted_action(BUILT_IN[task].expert, observation, generator, 0.1)
        before = with_contacts.physics.batch.state.copy()
        observation, _, _, _, infos = with_contacts.step(action)
        twin, _, _, _, plain_infos = without.step(action)
        assert "contact" not in plain_infos
        assert np.array_equal(observation["observation"], twin["observation"])
        flags.append(infos["contact"])
        for index, row in enumerate(before):
            mujoco.mj_setState(model, data, row, spec)
            for name in ("ctrl", "mocap_pos", "mocap_quat"):
                getattr(data, name)[:] = with_contacts.physics.field[name][index]
            sums = np.zeros(2)
            for _ in range(SUBSTEPS):
                mujoco.mj_step(model, data)
                for number, contact in enumerate(data.contact[: data.ncon]):
                    for side, geom in enumerate(sides):
                        if {contact.geom1, contact.geom2} == {geom, thing}:
                            mujoco.mj_contactForce(model, data, number, force)
                            sums[side] += np.linalg.norm(force[:3])
            assert finger_forces(with_contacts.physics.forces)[index] == pytest.approx(sums, rel=1e-9)
            expected.append((sums >= 30).any())
    assert np.concatenate(flags).tolist() == expected
    assert 0 < np.mean(expected) < 1


def test_contact_needs_30_newtons_on_one_finger() -> None:
    """Norms of force vectors, summed over substeps and points, but not over the two fingers."""
    record = np.zeros((4, SUBSTEPS, 2, 8, 3))
    record[0, :, 0, 3] = [0.0, 0.9, 1.2]  # 20 x 1.5 N
    record[1, :, 0, 3] = [0.0, 0.89, 1.2]
    record[2, 4, 1, :6] = [3.0, 0.0, -4.0]  # six points of 5 N
    record[3, 4, :, :5] = [3.0, 0.0, 4.0]  # 25 N on each finger
    forces = finger_forces(record.reshape(4, SUBSTEPS, -1))
    assert (forces >= CONTACT_FORCE).any(1).tolist() == [True, False, True, False]


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), task=st.sampled_from(list(PEERS)))
def test_a_restored_state_steps_identically_anywhere(seed: int, task: str) -> None:
    """Any state, in any environment, after any history, with or without contacts and with any number of threads."""
    generator = np.random.default_rng(seed)
    source = FetchVectorEnv(task, 3, max_episode_steps=None)
    target = FetchVectorEnv(task, 5, max_episode_steps=None, labels=("contact",) * (seed % 2), threads=1)
    for envs in (source, target):
        observation, _ = envs.reset(seed=int(generator.integers(1000)))
        for _ in range(generator.integers(1, 30)):
            action, _ = scripted_action(BUILT_IN[task].expert, observation, generator, 0.3, 0.2)
            observation, *_ = envs.step(action)
    saved, places = source.save_state(), generator.permutation(5)[:3]
    target.restore_state(places, saved)
    assert np.array_equal(target.save_state(places), saved)
    for _ in range(3):
        action = generator.uniform(-1, 1, (3, 4)).astype(np.float32)
        everyone = generator.uniform(-1, 1, (5, 4)).astype(np.float32)
        everyone[places] = action
        expected, observed = source.step(action)[0], target.step(everyone)[0]
        assert np.array_equal(target.save_state(places), source.save_state())
        assert all(np.array_equal(observed[name][places], expected[name]) for name in expected)


def test_state_columns_and_edited_states() -> None:
    """The layout names what it says, and an edited state shows in the refreshed observation."""
    envs = FetchVectorEnv("pick-and-place", 2)
    envs.reset(seed=0)
    envs.step(random_actions(1, 2)[0])
    states, layout = envs.save_state(), envs.layout
    assert states.shape == (2, layout.size)
    assert states.dtype == np.float64
    observation = states[:, layout.observation]
    assert np.abs(states[:, layout.object_pose][:, :3] - observation[:, 3:6]).max() < 1e-4  # one substep apart
    assert states[:, layout.elapsed].tolist() == [[1.0], [1.0]]
    assert np.allclose(states[:, layout.time], build(TASKS["pick-and-place"], False).start[0] + 0.04)
    assert layout.qpos.stop - layout.qpos.start == 22
    assert layout.qvel.stop - layout.qvel.start == 21
    states[1, layout.object_pose] = [1.5, 0.6, 0.9, 1, 0, 0, 0]
    states[1, layout.object_velocity] = [0, 0, -1, 0, 0, 0]
    envs.restore_state([1], states[1:])
    envs.physics.batch.forward(np.array([1]))
    envs.physics._read(np.array([1]))
    edited = envs.save_state([1])[0, layout.observation]
    assert np.allclose(edited[3:6], [1.5, 0.6, 0.9], atol=1e-12)
    assert np.allclose(edited[14:17] + edited[20:23], [0, 0, -0.04], atol=1e-12)


def test_saved_states_need_no_reset() -> None:
    """Environments that were never reset can be filled with saved states and stepped."""
    source, target = (FetchVectorEnv("push", 2, max_episode_steps=None) for _ in range(2))
    source.reset(seed=0)
    target.restore_state(None, source.save_state())
    action = random_actions(1, 2)[0]
    assert np.array_equal(target.step(action)[0]["observation"], source.step(action)[0]["observation"])


def test_bad_states_and_indices_are_refused() -> None:
    envs = FetchVectorEnv("push", 2)
    envs.reset(seed=0)
    states = envs.save_state()
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        envs.restore_state(None, states[:, :3])
    states[0, 4] = np.nan
    with pytest.raises(ValueError, match=r"\b1 values"):
        envs.restore_state(None, states)
    for indices in ([2], [0.5]):
        with pytest.raises(IndexError):
            envs.save_state(indices)
    with pytest.raises(ValueError, match=r"\(2,"):
        envs.restore_state([1], envs.save_state())


def test_actions_beyond_the_limits_are_clipped() -> None:
    envs, twin = FetchVectorEnv("pick-and-place", 2), FetchVectorEnv("pick-and-place", 2)
    envs.reset(seed=1)
    twin.reset(seed=1)
    wild = np.array([[7, -np.inf, 0.5, 2], [-3, 1, np.inf, -9]])
    tame = np.array([[1, -1, 0.5, 1], [-1, 1, 1, -1]])
    assert np.array_equal(envs.step(wild)[0]["observation"], twin.step(tame)[0]["observation"])


@pytest.mark.parametrize("contacts", [False, True])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_blow_up_is_noticed_counted_and_repaired(
    mode: AutoresetMode, contacts: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice in the same environment, because MuJoCo restarts its counters when it resets itself."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder
    envs, twin = (
        FetchVectorEnv("pick-and-place", 3, labels=("contact",) * contacts, autoreset_mode=mode) for _ in range(2)
    )
    envs.reset(seed=1)
    twin.reset(seed=1)
    others = [0, 2]
    for count in (1, 2):
        state = envs.save_state([1])
        before = state[0, envs.layout.observation].copy()
        state[0, envs.layout.qvel] = 1e11
        envs.restore_state([1], state)
        action = random_actions(1, 3, seed=count)[0]
        observation, _, terminated, truncated, infos = envs.step(action)
        expected, *_ = twin.step(action)
        assert truncated.tolist() == [False, True, False]
        assert not terminated.any()
        shown = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
        assert shown["blow_ups"][1] == count
        assert infos["blow_ups"][others].tolist() == [0, 0]
        if contacts:
            assert not shown["contact"][1]
        assert np.array_equal(observation["observation"][others], expected["observation"][others])
        last = (
            infos["final_obs"][1]["observation"] if mode is AutoresetMode.SAME_STEP else observation["observation"][1]
        )
        assert np.array_equal(last, before)
        assert np.abs(envs.save_state([1])[0, envs.layout.qvel]).max() < 1
        if mode is AutoresetMode.DISABLED:
            with pytest.raises(ResetNeeded, match=r"\[1\]"):
                envs.step(action)
            observation, _ = envs.reset(options={"reset_mask": truncated})
        elif mode is AutoresetMode.NEXT_STEP:
            observation, rewards, *_ = envs.step(action)
            expected, *_ = twin.step(action)
            assert rewards[1] == 0
            assert np.array_equal(observation["observation"][others], expected["observation"][others])
        assert np.abs(observation["observation"][1, :2] - [1.342, 0.749]).max() < 0.001  # a new episode
        assert not np.array_equal(observation["desired_goal"][1], state[0, envs.layout.desired_goal])
    observation, _, _, truncated, infos = envs.step(random_actions(1, 3)[0])
    assert np.isfinite(observation["observation"]).all()
    assert not truncated.any()
    assert infos["blow_ups"].tolist() == [0, 2, 0]


def test_an_error_of_mujoco_in_one_environment_is_a_blow_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch reports it after the other environments have gone on."""
    envs, twin = FetchVectorEnv("push", 3), FetchVectorEnv("push", 3)
    envs.reset(seed=1)
    twin.reset(seed=1)
    step = envs.physics.batch.step

    def failing(*arguments: Any, **options: Any) -> None:
        step(*arguments, **options)
        raise SimulationError(np.array([2]), "out of memory", 3)

    monkeypatch.setattr(envs.physics.batch, "step", failing)
    action = random_actions(1, 3)[0]
    observation, _, _, truncated, infos = envs.step(action)
    assert truncated.tolist() == [False, False, True]
    assert infos["blow_ups"].tolist() == [0, 0, 1]
    assert np.array_equal(observation["observation"][:2], twin.step(action)[0]["observation"][:2])


def test_an_environment_does_not_depend_on_the_size_of_its_batch() -> None:
    """The same bits alone, among others, and with any number of threads."""
    actions, seen = random_actions(20, 1), []
    for count, threads in ((1, 1), (5, 1), (9, 2)):
        envs = FetchVectorEnv("pick-and-place", count, threads=threads)
        envs.reset(seed=[3] * count)
        for action in actions:
            observation = envs.step(np.repeat(action, count, axis=0))[0]["observation"]
        seen.append(observation)
    assert len(np.unique(np.concatenate(seen), axis=0)) == 1


@all_tasks
def test_goals_and_seeds(task: str) -> None:
    """Environment i with seed s + i is the single environment with that seed; each episode has a goal of its own."""
    envs = FetchVectorEnv(task, 3, max_episode_steps=2, threads=2)
    observation, _ = envs.reset(seed=8)
    single = FetchEnv(task=task)
    for index in range(3):
        alone, _ = single.reset(seed=8 + index)
        assert all(np.array_equal(alone[name], observation[name][index]) for name in alone)
    goals = [observation["desired_goal"]]
    for _ in range(6):
        observation, *_ = envs.step(np.zeros((3, 4)))
        goals.append(observation["desired_goal"])
    assert len(np.unique(np.concatenate(goals), axis=0)) == 3 * 3  # episodes of two steps and one reset
    again, _ = envs.reset(seed=8)
    assert np.array_equal(again["desired_goal"], goals[0])
    height = build(TASKS[task], False).height
    starts, _ = FetchVectorEnv(task, 400).reset(seed=0)
    lifted = (starts["desired_goal"][:, 2] > height).mean()
    share = TASKS[task].air_share
    assert abs(lifted - share) <= 4 * np.sqrt(share * (1 - share) / 400)


@all_tasks
def test_single_environments_are_registered_and_pass_the_checker(task: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(IDS[task], labels=("contact",))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Box (low|high|observation space).*infinity.*")
            check_env(env.unwrapped, skip_render_check=True)
    wrapped = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.wrappers.FlattenObservation(env))
    observation, _ = wrapped.reset(seed=0)
    assert observation.shape == (31,)
    for _ in range(50):
        observation, _, terminated, truncated, info = wrapped.step(wrapped.action_space.sample())
    assert truncated
    assert not terminated
    assert info["episode"]["l"] == 50
    assert {type(info[name]) for name in ("is_success", "contact")} == {bool}
    envs = gymnasium.make_vec(IDS[task], 2)
    assert isinstance(envs.unwrapped, FetchVectorEnv)
    assert envs.unwrapped.max_episode_steps == 50
    assert envs.unwrapped.physics.model.task is TASKS[task]
