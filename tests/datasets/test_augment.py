"""Swapped transitions: built as described, impossible ones are left out, and the simulator tells which these are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_info, threadpool_limits

from butfor.datasets import audit as audit_library
from butfor.datasets.audit import (
    FAULTS,
    audit_swaps,
    find_faults,
    highest_attention,
    recorded_states,
    swapped_states,
    world_of,
)
from butfor.datasets.augment import augment_file
from butfor.datasets.formats import open_dataset
from butfor.datasets.recording import Recording, read_arrays
from butfor.datasets.swap_columns import find_columns
from butfor.detection.collect import CollectConfig, collect_file
from butfor.envs import facts_of
from butfor.envs.several.pucks import PucksWorld
from butfor.models.interactions import learn_interactions
from butfor.rollouts.swaps import (
    CLOSE,
    AugmentOptions,
    Swaps,
    augment_recording,
    augment_recordings,
    find_close,
    propose_swaps,
)

ENTITIES = {"agent": [0, 1], "ball": [2, 3], "box": [4, 5]}
REACH = 0.3


def advance(obs: Any, action: Any) -> Any:
    """The agent moves by a tenth of the action, and pushes what is within reach away by 0.1; the rest stays."""
    after = obs.copy()
    after[..., :2] += 0.1 * action
    for columns in (slice(2, 4), slice(4, 6)):
        way = obs[..., columns] - obs[..., :2]
        distance = np.linalg.norm(way, axis=-1, keepdims=True)
        after[..., columns] += np.where(distance < REACH, 0.1 * way / np.maximum(distance, 1e-9), 0)
    return after


def episodes(count: int, steps: int = 20, seed: int = 0) -> Recording:
    """Random starts and actions."""
    random = np.random.default_rng(seed)
    states = [random.uniform(-0.6, 0.6, (count, 6))]
    action = random.uniform(-1, 1, (count, steps, 2))
    for step in range(steps):
        states.append(advance(states[-1], action[:, step]))
    return read_arrays(list(np.stack(states, 1)), list(action))


@pytest.fixture(scope="module")
def augmented() -> tuple[Recording, Swaps, Swaps, dict[str, int]]:
    recording = episodes(200)
    return recording, *augment_recording(recording, ENTITIES, AugmentOptions(4000, steps=2, updates=600))


def impossible(swaps: Swaps) -> Any:
    """Which stretches the true dynamics do not lead through."""
    reached = advance(swaps.observation[:, :-1], swaps.action)
    return np.abs(reached - swaps.observation[:, 1:]).max((1, 2)) > 1e-9


def test_a_swap_changes_one_entity_only(augmented: tuple[Recording, Swaps, Swaps, dict[str, int]]) -> None:
    recording, _, every, _ = augmented
    first = np.flatnonzero(~recording.last)
    names = list(ENTITIES)
    for place in (0, 17, len(every) - 1):
        own = ENTITIES[names[every.entity[place]]]
        rest = [column for column in range(6) if column not in own]
        for columns, source in ((own, every.donor), (rest, every.base)):
            rows = first[source[place]] + np.arange(3)
            np.testing.assert_array_equal(every.observation[place][:, columns], recording.observation[rows][:, columns])
        np.testing.assert_array_equal(every.action[place], recording.action[every.base[place] + np.arange(2)])
    episode = recording.episode[first]
    assert (episode[every.base] != episode[every.donor]).all()
    assert (every.entity != names.index("agent")).all()


def test_fewer_are_impossible_than_promised(augmented: tuple[Recording, Swaps, Swaps, dict[str, int]]) -> None:
    _, kept, every, counts = augmented
    assert impossible(every).mean() > 0.1  # what swapping without a decision gives
    assert impossible(kept).mean() <= 0.05
    assert len(kept) > 0.4 * (~impossible(every)).sum()  # ball and box may not touch, though they could
    assert min(counts["ball"], counts["box"]) > 50


def test_interactions_are_found_without_labels() -> None:
    parts = episodes(150).transitions()
    (found,) = learn_interactions([parts], ENTITIES, updates=600)
    obs, action, next_obs = episodes(50, seed=1).transitions()
    near = np.linalg.norm(obs[:, 2:4] - obs[:, :2], axis=1) < REACH
    assert (found.surprised(obs, action, next_obs)["ball"] == near).mean() > 0.98
    score = found.score(obs, action, "ball")
    assert np.median(score[near]) > 0 > np.median(score[~near])
    with pytest.raises(ValueError, match="ball"):
        learn_interactions([parts], {"ball": [2, 3]})


def test_what_is_carried_in_most_steps_is_not_free() -> None:
    """A hand goes to a ball and carries it to the end: in the farther half of the steps it is held, too."""

    def carry(obs: Any, action: Any) -> Any:
        held = np.linalg.norm(obs[..., 2:] - obs[..., :2], axis=-1, keepdims=True) < 0.1
        return obs + 0.1 * np.concatenate([action, action * held], -1)

    random = np.random.default_rng(0)
    states = [random.uniform(-1, 1, (300, 4))]
    actions = []
    for _ in range(60):
        way = states[-1][:, 2:] - states[-1][:, :2]
        far = np.linalg.norm(way, axis=1, keepdims=True) > 0.05
        noise = random.uniform(-1, 1, way.shape)
        actions.append(np.where(far, np.clip(10 * way, -1, 1), 0) * 0.7 + 0.3 * noise)
        states.append(carry(states[-1], actions[-1]))
    recording = read_arrays(list(np.stack(states, 1)), list(np.stack(actions, 1)))
    entities = {"hand": [0, 1], "ball": [2, 3]}
    obs, action, next_obs = recording.transitions()
    held = np.linalg.norm(obs[:, 2:] - obs[:, :2], axis=1) < 0.1
    assert held.mean() > 0.7
    (found,) = learn_interactions([(obs, action, next_obs)], entities, updates=600)
    shown = found.surprised(obs, action, next_obs)["ball"]
    assert shown[held].mean() > 0.9
    assert shown[~held].mean() < 0.05
    kept, every, _ = augment_recording(recording, entities, AugmentOptions(4000, agent="hand", updates=600))
    wrong = [
        np.abs(carry(one.observation[:, :-1], one.action) - one.observation[:, 1:]).max((1, 2)) > 1e-9
        for one in (kept, every)
    ]
    assert wrong[1].mean() > 0.5
    assert wrong[0].mean() <= 0.05 if len(kept) else True


def test_recordings_are_learned_from_together_as_one_at_a_time() -> None:
    recordings = [episodes(40, seed=3), episodes(60, 10, seed=4)]  # of different sizes
    options = AugmentOptions(500, 0.3, updates=40)
    together = augment_recordings(recordings, ENTITIES, options, [5, 6])
    for recording, seed, (kept, every, counts) in zip(recordings, (5, 6), together, strict=True):
        alone = augment_recording(recording, ENTITIES, replace(options, seed=seed))
        assert counts == alone[2]
        np.testing.assert_array_equal(every.base, alone[1].base)
        np.testing.assert_array_equal(kept.base, alone[0].base)


def test_trees_are_fitted_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine with many processors, threads of such small trees take minutes in place of seconds."""
    seen = []
    fit = HistGradientBoostingRegressor.fit

    def watched(self: Any, *given: Any) -> Any:
        seen.append(max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"))
        return fit(self, *given)

    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", watched)
    with threadpool_limits(2, "openmp"):
        augment_recording(episodes(40), ENTITIES, AugmentOptions(100, updates=40))
    assert seen == [1, 1, 1]  # one for each entity


def test_swaps_into_overlap_are_refused_and_far_ones_kept() -> None:
    """A box lies at least 1 from a ball, in any direction; nothing moves. A swap puts it elsewhere."""
    random = np.random.default_rng(0)
    entities = {"ball": [0, 1], "box": [2, 3]}
    count = 8000

    def states(distance: Any) -> Any:
        """The ball in the middle and the box at these distances: [n, 2, 4], the same state twice."""
        angle = random.uniform(0, 2 * np.pi, len(distance))
        box = np.asarray(distance)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
        return np.repeat(np.concatenate([np.zeros_like(box), box], 1)[:, None], 2, 1)

    def refused(distance: Any, base: int, donor: int, recorded: Any = 1.0, free: Any = True) -> Any:
        """Which swaps are refused; recorded episode 0 has the distance 1, episode 1 has 2."""
        every = np.concatenate([[1, 2], np.tile([1.0, recorded, 2.0, 3.0], count // 4)])
        given = read_arrays(list(states(every)), list(np.zeros((len(every), 1, 1))))
        alone = dict.fromkeys(entities, np.concatenate([[True] * 2, np.tile([True, free, True, True], count // 4)]))
        one = np.ones(len(distance), int)
        swaps = Swaps(states(distance), np.zeros((len(distance), 1, 1)), one, base * one, donor * one)
        return find_close(swaps, given, alone, entities, 2)

    apart = np.repeat([0.1, 0.9, 1.05, 1.5, 2.5], 50)
    np.testing.assert_array_equal(refused(apart, 1, 1), apart < CLOSE)
    # where the box is as close as ever in the base, or where it comes from, the two may touch
    assert refused(apart, 0, 1).all()
    assert refused(apart, 1, 0).all()
    # closer states show that it may be closer, unless something acts on it there
    np.testing.assert_array_equal(refused(apart, 1, 1, recorded=0.5), apart < 0.5 * CLOSE)
    np.testing.assert_array_equal(refused(apart, 1, 1, recorded=0.5, free=False), apart < CLOSE)


def test_the_simulator_tells_faults_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = collect_file(CollectConfig("pucks", "noisy-expert", 20), tmp_path / "pucks.npz")
    recording = open_dataset(tmp_path / "pucks.npz").recording()
    world = PucksWorld()
    entities = {"agent": range(4), "first": range(4, 8), "second": range(8, 12), "third": range(12, 16)}
    swaps = propose_swaps(recording, entities, AugmentOptions(300))
    same = replace(swaps, observation=swaps.observation.copy(), donor=swaps.base)
    rows = np.flatnonzero(~recording.last)[swaps.base][:, None] + np.arange(2)
    same.observation[:] = recording.observation[rows]  # nothing swapped: all is possible
    assert not np.any(list(find_faults(world, same.observation, same).values()))
    moved = replace(same, observation=same.observation.copy())
    moved.observation[:, 1, 4:6] += 0.01  # the first puck ends elsewhere
    moved = replace(moved, entity=np.full(len(swaps), 1))
    for entity, fault in ((1, "swapped entity"), (2, "another entity")):
        faults = find_faults(world, moved.observation, replace(moved, entity=np.full(len(swaps), entity)))
        assert (faults[fault] | faults["overlap"]).all()  # recorded bodies that touch overlap a little
        assert faults[fault].mean() > 0.8
    inside = replace(moved, observation=same.observation.copy())
    inside.observation[:, 0, 4:6] = inside.observation[:, 0, :2]  # the first puck is inside the agent
    assert find_faults(world, inside.observation, inside)["overlap"].all()
    monkeypatch.setattr(audit_library, "UPDATES", 20)
    audit = audit_swaps(world, recording.observation, same, swaps, recording, entities, 100)
    assert audit["kept"]["impossible"] == 0
    assert audit["unfiltered"]["impossible"] > 0
    assert set(audit["contact"]["faults"]) == set(FAULTS)
    assert audit["attention"]["stretches"] == audit["kept"]["stretches"]
    assert len(data) == 20


def test_cubes_are_swapped_in_the_saved_states_of_the_simulator(tmp_path: Path) -> None:
    """Episodes are played again; a swap with a cube that is far away is possible, one into the gripper is not."""
    pytest.importorskip("mujoco")
    collect_file(CollectConfig("push-two", "random", 3), tmp_path / "two.npz")
    dataset = open_dataset(tmp_path / "two.npz")
    recording = dataset.recording()
    world: Any = world_of("push-two")
    saved = recorded_states(dataset.path, recording)
    assert saved.shape[0] == len(recording.observation)
    np.testing.assert_array_equal(saved[:, world.layout.observation].astype(np.float32), recording.observation)
    facts: Any = facts_of("push-two")
    swaps = propose_swaps(recording, facts.bodies, AugmentOptions(40, agent="gripper"))
    states = swapped_states(world, saved, recording, swaps)
    first = np.flatnonzero(~recording.last)
    for place, entity in enumerate(swaps.entity):
        placed = world.outcome(states[place])
        for body in range(3):
            source = swaps.donor if body == entity else swaps.base
            rows = first[source[place]] + np.arange(2)
            np.testing.assert_array_equal(placed[:, body], world.outcome(saved[rows])[:, body])
    before = recording.observation[first[swaps.base][:, None] + np.arange(2)]
    same = replace(swaps, donor=swaps.base, observation=before)  # nothing swapped: all is possible
    assert not np.any(list(find_faults(world, swapped_states(world, saved, recording, same), same).values()))
    inside = states.copy()
    for place, entity in enumerate(swaps.entity):
        pose = world._poses[entity - 1]
        inside[place, 0, pose : pose + 3] = world.outcome(states[place, :1])[0, 0]
    assert find_faults(world, inside, swaps)["overlap"].all()
    with np.load(tmp_path / "two.npz") as file:
        arrays = dict(file)
    arrays["action"] = np.zeros_like(arrays["action"])
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(ValueError, match=r"other\.npz"):
        recorded_states(tmp_path / "other.npz", open_dataset(tmp_path / "other.npz").recording())


def test_attention_is_the_highest_of_old_and_new_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-in attention: the first column of what is attended to, so that the right rows can be told."""
    monkeypatch.setattr(audit_library, "UPDATES", 1)
    monkeypatch.setattr(audit_library, "_attention", lambda model, inputs, own: inputs[:, 2 * own].numpy())
    recording = episodes(6, 5)
    swaps = propose_swaps(recording, ENTITIES, AugmentOptions(50, steps=2))
    found = highest_attention(swaps, recording, ENTITIES)
    columns = recording.transitions()[0]
    scaled = (columns - columns.mean(0)) / columns.std(0, ddof=1)
    for place, entity in enumerate(swaps.entity):
        rows = [swaps.base[place], swaps.base[place] + 1, swaps.donor[place], swaps.donor[place] + 1]
        np.testing.assert_allclose(
            found[place], scaled[rows, 2 * entity].max(), atol=1e-5
        )  # the new ones are among them


def test_a_file_is_written_that_can_be_read_again(tmp_path: Path) -> None:
    recording = episodes(200)
    observations = np.split(recording.observation, len(recording))
    np.savez(
        tmp_path / "data.npz",
        observations=np.concatenate([one[:-1] for one in observations]),
        next_observations=np.concatenate([one[1:] for one in observations]),
        actions=recording.action,
        timeouts=np.tile(np.arange(20) == 19, 200),
    )
    entities = ["agent=0:2", "ball=2:4", "box=4:6"]
    options = AugmentOptions(1000, 0.2, steps=3, updates=300)
    summary = augment_file(tmp_path / "data.npz", entities=entities, options=options)
    found = open_dataset(tmp_path / "data-augmented.npz").recording()
    assert found.length.tolist() == [3] * summary["kept"]
    assert summary["promised"] == 0.2
    with pytest.raises(FileExistsError, match="data-augmented"):
        augment_file(tmp_path / "data.npz", entities=entities, options=options)
    for audit, words in ((5, "episode file"), (-1, "audit is -1")):
        with pytest.raises(ValueError, match=words):
            augment_file(tmp_path / "data.npz", tmp_path / "b.npz", entities, options, audit=audit)
    with pytest.raises(ValueError, match="built-in"):
        augment_file(tmp_path / "data.npz", tmp_path / "b.npz")
    with pytest.raises(ValueError, match="'hand'"):
        augment_file(tmp_path / "data.npz", tmp_path / "b.npz", entities, replace(options, agent="hand"))


def data_columns(entity: str) -> list[int]:
    """Columns of an entity of push that are its own alone."""
    facts: Any = facts_of("push")
    return [column for column in facts.bodies[entity] if column not in facts.object_velocity]


def test_differences_of_positions_are_those_of_the_new_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns 6:9 of push are object - gripper, and 14:17 the object's velocity less the gripper's; so are new ones."""
    pytest.importorskip("mujoco")
    monkeypatch.setattr(audit_library, "UPDATES", 20)
    path = tmp_path / "push.npz"
    data = collect_file(CollectConfig("push", "noisy-expert", 120), path)
    summary = augment_file(path, options=AugmentOptions(1500, 0.5, updates=300), audit=200)
    with np.load(tmp_path / "push-augmented.npz") as file:
        new = dict(file)
    for name in ("observations", "next_observations"):
        np.testing.assert_allclose(new[name][:, 6:9], new[name][:, 3:6] - new[name][:, :3], atol=1e-6)
    recorded = data.observation[:, :-1].reshape(-1, 25)  # by step
    for columns, source in ((data_columns("agent"), "base"), (data_columns("object"), "donor")):
        np.testing.assert_array_equal(new["observations"][:, columns], recorded[new[source]][:, columns])
    velocity = recorded[new["donor"], 14:17] + recorded[new["donor"], 20:23] - recorded[new["base"], 20:23]
    np.testing.assert_allclose(new["observations"][:, 14:17], velocity, atol=1e-6)
    # goals are those of the episode that the object is from
    np.testing.assert_allclose(new["achieved_goals"], new["observations"][:, 3:6], atol=1e-6)
    np.testing.assert_allclose(new["next_achieved_goals"], new["next_observations"][:, 3:6], atol=1e-6)
    np.testing.assert_array_equal(new["desired_goals"], data.desired_goal[:, :-1].reshape(-1, 3)[new["donor"]])
    assert summary["audit"]["kept"]["faults"]["columns"] < 0.05
    with pytest.raises(ValueError, match="9:25"):  # positions alone
        augment_file(path, tmp_path / "a.npz", ["agent=0:3", "object=3:6"])
    own = {name: ",".join(map(str, data_columns(name))) for name in ("object", "agent")}
    given = [f"object={own['object']},14:17", f"agent={own['agent']}"]  # another order than the simulator's
    with pytest.raises(ValueError, match="audited"):
        augment_file(path, tmp_path / "a.npz", given, audit=5)


def test_the_audit_finds_columns_of_the_old_state(tmp_path: Path) -> None:
    """Swaps of positions alone leave the difference, the velocity and the rotation of the old object."""
    pytest.importorskip("mujoco")
    collect_file(CollectConfig("push", "noisy-expert", 8), tmp_path / "push.npz")
    recording = open_dataset(tmp_path / "push.npz").recording()
    facts: Any = facts_of("push")
    world: Any = world_of("push")
    saved = recorded_states(tmp_path / "push.npz", recording)
    np.testing.assert_array_equal(saved[:, world.layout.observation].astype(np.float32), recording.observation)
    old = propose_swaps(recording, {"agent": (0, 1, 2), "object": (3, 4, 5)}, AugmentOptions(150))
    wrong = find_faults(world, swapped_states(world, saved, recording, old), old)
    possible = ~np.any([wrong[name] for name in FAULTS[:-1]], 0)
    assert possible.sum() > 50
    assert wrong["columns"][possible].all()
    columns = find_columns(recording, facts.bodies, facts)
    new = columns.finish_swaps(propose_swaps(columns.hide(recording), facts.bodies, AugmentOptions(150)), recording)
    found = find_faults(world, swapped_states(world, saved, recording, new), new)
    assert found["columns"].mean() < 0.05  # what moves by less than the tolerance may still turn
    np.testing.assert_array_equal(found["overlap"], wrong["overlap"])  # the same states of the simulator


def test_wrong_options_are_told() -> None:
    wrong: list[dict[str, Any]] = [{"count": 0}, {"steps": 0}, {"false_discovery_rate": 1.5}, {"seed": -1}]
    for given in wrong:
        with pytest.raises(ValueError, match=str(next(iter(given.values())))):
            AugmentOptions(**given)
    assert world_of("slide") is None
    assert world_of("rot-table") is None
    assert isinstance(world_of("pucks"), PucksWorld)
