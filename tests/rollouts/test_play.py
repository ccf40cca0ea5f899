"""Played episodes agree with the environment's own physics, and start and end where they should."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from support import slide

from butfor.envs import make_vector_env
from butfor.envs.experts import hit, scripted_action
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import EnvError, Observation, Played, Policy, collect, episode_seed, random_policy
from butfor.rollouts.play import play as play_together

LOW, HIGH = np.array([-1.0, 2.0], np.float32), np.array([0.5, 7.0], np.float32)
LIMIT = 6


class Countdown(gymnasium.Env[dict[str, NDArray[Any]], NDArray[Any]]):
    """A goal environment that terminates after a random number of steps; its state is (key, time, sum of actions).

    The key tells which reset an observation belongs to. Some episodes would last longer than the time limit.
    """

    observation_space: spaces.Space[Any] = spaces.Dict(
        observation=spaces.Box(-np.inf, np.inf, (3,), np.float64),
        achieved_goal=spaces.Box(-np.inf, np.inf, (2,), np.float64),
        desired_goal=spaces.Box(-np.inf, np.inf, (2,), np.float64),
    )
    action_space: spaces.Space[Any] = spaces.Box(LOW, HIGH, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        super().reset(seed=seed)
        self.key, self.time, self.total = self.np_random.random(), 0, 0.0
        self.end = int(self.np_random.integers(1, LIMIT + 4))
        return self._observe(), {}

    def step(self, action: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        assert self.time < self.end, "stepped after the end"
        assert self.action_space.contains(action)
        info = {"contact": self.time % 2 == 1, "label_late": self.time >= 2, "other": 1.0}
        if self.time == 3:
            info["label_rare"] = True  # an environment may report something only now and then
        self.time += 1
        self.total += float(action.sum())
        return self._observe(), 0.0, self.time == self.end, False, info

    def _observe(self) -> dict[str, NDArray[Any]]:
        goal = np.array([self.key, -1.0])
        return {
            "observation": np.array([self.key, self.time, self.total]),
            "achieved_goal": np.array([self.time, self.time + 0.5]),
            "desired_goal": goal,
        }


@pytest.fixture(autouse=True, scope="module")
def countdown() -> Iterator[None]:
    """Registers the foreign environments for these tests alone."""
    gymnasium.register("tests/Countdown-v0", lambda **kwargs: Countdown(), max_episode_steps=LIMIT)
    gymnasium.register("tests/Endless-v0", lambda **kwargs: Countdown())
    yield
    del gymnasium.registry["tests/Countdown-v0"], gymnasium.registry["tests/Endless-v0"]


def play(env_name: str, num_envs: int, episodes: int, seed: int = 0, policy: Policy | None = None) -> Episodes:
    env = make_vector_env(env_name, num_envs)
    try:
        return collect(env, policy or random_policy(env), episodes, seed)
    finally:
        env.close()


def expected_start(env_name: str, seed: int, episode: int) -> dict[str, NDArray[Any]]:
    """The first observation of a single environment after the reset that the episode's seed says."""
    obs, _ = gymnasium.make(env_name).reset(seed=episode_seed(seed, 0, episode))
    return {name: value.astype(np.float32) for name, value in obs.items()}


def assert_identical(one: Episodes, other: Episodes) -> None:
    for name in ("observation", "action", "achieved_goal", "desired_goal", "length", "sampled", "contact"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert one.label.keys() == other.label.keys()
    for name, label in one.label.items():
        assert label.tobytes() == other.label[name].tobytes(), name


# ------------------------------------------------------------------------------------------------- seeds


def test_episode_seeds_depend_on_all_three_numbers() -> None:
    seeds = {episode_seed(*numbers) for numbers in np.ndindex(4, 4, 100)}
    assert len(seeds) == 4 * 4 * 100  # a clash among 1600 of 2^32 has a chance of 3e-4, and the seeds are fixed
    assert all(0 <= seed < 2**32 for seed in seeds)


@pytest.mark.parametrize("num_envs", [1, 3, 7])
@pytest.mark.parametrize("env_name", ["slide", "tests/Countdown-v0"])
def test_an_episodes_start_depends_only_on_seed_and_episode(env_name: str, num_envs: int) -> None:
    id = "butfor/Slide-v0" if env_name == "slide" else env_name
    for count in (1, 5, 8):
        episodes = play(env_name, num_envs, count, seed=3)
        assert len(episodes) == count
        for episode in range(count):
            start = expected_start(id, 3, episode)
            np.testing.assert_array_equal(episodes.observation[episode, 0], start["observation"])
            np.testing.assert_array_equal(episodes.achieved_goal[episode, 0], start["achieved_goal"])
            np.testing.assert_array_equal(episodes.desired_goal[episode, 0], start["desired_goal"])


@pytest.mark.parametrize("env_name", ["slide", "tests/Countdown-v0"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(env_name: str) -> None:
    first, again, other = (play(env_name, 3, 8, seed) for seed in (5, 5, 6))
    assert_identical(first, again)
    assert not np.array_equal(first.observation[:, 0], other.observation[:, 0])
    assert not np.array_equal(first.action[:, 0], other.action[:, 0])


def test_environments_that_were_used_before_start_anew() -> None:
    env = make_vector_env("tests/Countdown-v0", 3)
    first = collect(env, random_policy(env), 7, 0)
    collect(env, random_policy(env), 4, 9)
    assert_identical(collect(env, random_policy(env), 7, 0), first)
    env.close()


def test_numpys_global_generator_is_left_alone() -> None:
    before = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    play("slide", 2, 2)
    after = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    assert before["pos"] == after["pos"]
    assert before["key"].tobytes() == after["key"].tobytes()


# ------------------------------------------------------------------------------------------------- slide


@pytest.mark.parametrize("num_envs", [1, 4, 11])
def test_slide_episodes_agree_with_the_physics_bit_for_bit(num_envs: int) -> None:
    def policy(obs: Observation, generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        return scripted_action(hit, obs, generator, noise=0.2, random_share=0.2)

    episodes = play("slide", num_envs, 10, 1, policy)
    assert episodes.observation.shape == (10, 31, 4)
    assert episodes.action.shape == (10, 30, 1)
    assert episodes.length.tolist() == [30] * 10
    assert episodes.observation.dtype == episodes.action.dtype == np.float32
    state = episodes.observation[:, 0]
    for time in range(30):
        contact, label = slide.step(state, episodes.action[:, time])[1], slide.influence(state)
        state = slide.step(state, episodes.action[:, time])[0]
        np.testing.assert_array_equal(state, episodes.observation[:, time + 1])
        assert episodes.contact is not None
        np.testing.assert_array_equal(contact, episodes.contact[:, time])
        np.testing.assert_array_equal(label, episodes.label["exact"][:, time])
    assert list(episodes.label) == ["exact"]
    assert episodes.contact is not None
    assert episodes.contact.any()  # the scripted policy hits the object, so the comparison was not of nothing
    assert episodes.label["exact"].any()
    np.testing.assert_array_equal(episodes.achieved_goal, episodes.observation[..., 2:3])
    assert (episodes.desired_goal == episodes.desired_goal[:, :1]).all()


def test_stored_actions_and_flags_are_what_the_policy_said_in_the_stored_states() -> None:
    """A stale observation after a reset, or flags of another environment, would show."""

    def policy(obs: Observation, generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        key, time = obs["observation"][:, 0], obs["observation"][:, 1]
        action = np.stack([key - 1, 2 + time / LIMIT], 1).astype(np.float32)
        return action, (key > 0.5) ^ (time % 2 == 0)

    episodes = play("tests/Countdown-v0", 4, 13, 2, policy)
    key, time = episodes.observation[:, :-1, 0], episodes.observation[:, :-1, 1]
    valid = episodes.valid
    np.testing.assert_allclose(episodes.action[..., 0][valid], (key - 1)[valid], atol=1e-7)
    np.testing.assert_allclose(episodes.action[..., 1][valid], (2 + time / LIMIT)[valid], rtol=1e-6)
    np.testing.assert_array_equal(episodes.sampled[valid], ((key > 0.5) ^ (time % 2 == 0))[valid])
    assert 0 < episodes.sampled[valid].mean() < 1


def test_random_actions_are_marked_as_sampled() -> None:
    episodes = play("slide", 2, 2)
    assert episodes.sampled.dtype == np.bool_
    assert episodes.sampled.all()


# --------------------------------------------------------------------------------------- a foreign environment


@pytest.mark.parametrize("num_envs", [1, 4, 30])
def test_early_termination_ends_an_episode_with_its_true_last_observation(num_envs: int) -> None:
    episodes = play("tests/Countdown-v0", num_envs, 25, 4)
    for episode in range(25):
        generator = gymnasium.utils.seeding.np_random(episode_seed(4, 0, episode))[0]
        key = np.float32(generator.random())
        end = min(int(generator.integers(1, LIMIT + 4)), LIMIT)
        assert episodes.length[episode] == end
        kept = episodes.observation[episode, : end + 1]
        assert (kept[:, 0] == key).all()  # all of the same reset, the last one too
        assert kept[:, 1].tolist() == list(range(end + 1))
        sums = np.cumsum(episodes.action[episode, :end].sum(-1))
        np.testing.assert_allclose(kept[1:, 2], sums, rtol=1e-4)
        np.testing.assert_array_equal(episodes.achieved_goal[episode, : end + 1, 0], np.arange(end + 1))
        assert (episodes.desired_goal[episode, : end + 1, 0] == key).all()
        assert not episodes.observation[episode, end + 1 :].any()  # padding
        assert not episodes.action[episode, end:].any()
        assert not episodes.sampled[episode, end:].any()
    assert set(episodes.length) == set(range(1, LIMIT + 1))  # both kinds of ending occurred


def test_flags_of_a_foreign_environment_are_stored_where_it_reports_them() -> None:
    episodes = play("tests/Countdown-v0", 4, 25, 4)
    assert set(episodes.label) == {"late", "rare"}
    time = np.broadcast_to(np.arange(LIMIT), (25, LIMIT))
    assert episodes.contact is not None
    np.testing.assert_array_equal(episodes.contact, (time % 2 == 1) & episodes.valid)
    np.testing.assert_array_equal(episodes.label["late"], (time >= 2) & episodes.valid)
    np.testing.assert_array_equal(episodes.label["rare"], (time == 3) & episodes.valid)
    assert all(label.dtype == np.bool_ for label in episodes.label.values())


def test_progress() -> None:
    env = make_vector_env("tests/Countdown-v0", 4)
    calls: list[int] = []
    collect(env, random_policy(env), 9, 0, calls.append)
    env.close()
    assert calls == sorted(calls)
    assert calls[-1] == 9


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_environments_that_reset_themselves_are_refused(mode: AutoresetMode) -> None:
    num_envs = [
        gymnasium.make_vec("butfor/Slide-v0", 2, "vector_entry_point", autoreset_mode=mode),
        gymnasium.make_vec("tests/Countdown-v0", 2, "sync", {"autoreset_mode": mode}),
    ]
    for env in num_envs:
        with pytest.raises(ValueError, match="DISABLED"):
            collect(env, random_policy(env), 1, 0)
        env.close()


def test_environments_without_a_time_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="max_episode_steps"):
        play("tests/Endless-v0", 1, 1)


@pytest.mark.parametrize("episodes", [0, -1])
def test_no_episodes_are_refused(episodes: int) -> None:
    with pytest.raises(ValueError, match=f"episodes.* {episodes}"):
        play("slide", 2, episodes)


def test_an_environment_without_goals_is_refused_with_a_sentence() -> None:
    def policy(obs: Observation, generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        return np.zeros((1, 1), np.float32), np.ones(1, bool)

    with pytest.raises((ValueError, TypeError), match=r"achieved_goal|goal environment"):
        play("Pendulum-v1", 1, 1, policy=policy)


@pytest.mark.parametrize("steps", [7, 50])
def test_a_time_limit_given_when_making_the_environments_counts(steps: int) -> None:
    env = make_vector_env("slide", 2, max_episode_steps=steps)
    episodes = collect(env, random_policy(env), 3, 0)
    env.close()
    assert episodes.length.tolist() == [steps] * 3


# ------------------------------------------------------------------------------ environments that give no numbers


class Faulty(Countdown):
    """Gives a number that is none in one place after two steps, from its second reset on; or raises after that."""

    resets, place, raises = 0, ("observation", 1), False

    def reset(self, **options: Any) -> Any:
        Faulty.resets += 1
        obs, info = super().reset(**options)
        self.end, self.faulty = LIMIT, Faulty.resets > 1
        return self._spoiled(obs) if self.place[1] < 0 and self.faulty else obs, info

    def step(self, action: NDArray[Any]) -> Any:
        if self.raises and self.time == 3:
            raise ZeroDivisionError("of no interest")
        obs, reward, *rest = super().step(np.nan_to_num(action, nan=3.0).clip(LOW, HIGH))
        spoiled = self.faulty and self.time == 2
        if spoiled and self.place[0] == "reward":
            reward = np.nan
        elif spoiled or np.isnan(action).any():
            obs = self._spoiled(obs)
        return obs, reward, *rest

    def _spoiled(self, obs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        obs[self.place[0]][self.place[1]] = np.inf if self.place[0] == "desired_goal" else np.nan
        return obs


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Registers the environment, which has not been reset yet."""
    monkeypatch.setattr(Faulty, "resets", 0)
    gymnasium.register("tests/Faulty-v0", lambda **kwargs: Faulty(), max_episode_steps=LIMIT, disable_env_checker=True)
    yield monkeypatch
    del gymnasium.registry["tests/Faulty-v0"]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (("observation", 1), "gave nan in column 1 of observation after step 2 of"),
        (("achieved_goal", 0), "gave nan in column 0 of achieved_goal after step 2 of"),
        (("desired_goal", 1), "gave inf in column 1 of desired_goal after step 2 of"),
        (("observation", -1), "gave nan in column 2 of observation at the start of"),
        (("reward", 0), "gave nan as its reward after step 2 of"),
    ],
)
def test_numbers_that_are_none_end_with_their_place(
    place: tuple[str, int], expected: str, faulty: pytest.MonkeyPatch
) -> None:
    faulty.setattr(Faulty, "place", place)
    start = "tests/Faulty-v0 " + expected
    with pytest.raises(EnvError, match=f"^{start} episode 1.* seed {episode_seed(5, 0, 1)}\\b"):
        play("tests/Faulty-v0", 1, 9, seed=5)  # the second episode
    faulty.setattr(Faulty, "resets", 0)
    env = make_vector_env("tests/Faulty-v0", 3)
    policy, generator = random_policy(env), np.random.default_rng(0)
    with pytest.raises(EnvError, match=f"^{start} episode 7 .*environment 2.* seed 22\\b"):
        play_together([env], lambda group, time, obs: policy(obs, generator), [11, 22, 33], what="episode 7")


def test_an_environment_that_gave_nan_before_it_raised_is_told_of_the_nan(faulty: pytest.MonkeyPatch) -> None:
    faulty.setattr(Faulty, "raises", True)
    env = make_vector_env("tests/Faulty-v0", 3)
    policy, generator = random_policy(env), np.random.default_rng(0)
    with pytest.raises(EnvError, match="gave nan in column 1 of observation after step 2"):
        play_together([env], lambda group, time, obs: policy(obs, generator), [1, 2, 3])
    faulty.setattr(Faulty, "resets", 0)
    with pytest.raises(EnvError, match=r"gave nan in column 1 of observation after step 2 of episode 1\b"):
        play("tests/Faulty-v0", 3, 9)


@pytest.mark.parametrize(("num_envs", "what"), [(1, "episode 0"), (3, "one of the episodes 0 to 2")])
def test_an_error_of_an_environment_while_collecting_is_told_with_its_episodes(
    num_envs: int, what: str, faulty: pytest.MonkeyPatch
) -> None:
    faulty.setattr(Faulty, "resets", -100)  # gives no NaN
    faulty.setattr(Faulty, "raises", True)
    with pytest.raises(EnvError, match=f"^tests/Faulty-v0 .*ZeroDivisionError.* {what}: of no int") as caught:
        play("tests/Faulty-v0", num_envs, 9)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("resets", [0, 4])
def test_an_error_at_the_start_of_an_episode_is_told(resets: int, faulty: pytest.MonkeyPatch) -> None:
    def reset(self: Faulty, **options: Any) -> Any:
        Faulty.resets += 1
        if Faulty.resets > resets:
            raise OSError()
        return Countdown.reset(self, **options)

    faulty.setattr(Faulty, "reset", reset)
    faulty.setattr(Faulty, "faulty", False, raising=False)
    with pytest.raises(EnvError, match=r"^tests/Faulty-v0 .*OSError.* episode \d"):
        play("tests/Faulty-v0", 1, 9)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_of_the_environment_passes_through_collecting(
    kind: type[BaseException], faulty: pytest.MonkeyPatch
) -> None:
    def step(self: Faulty, action: NDArray[Any]) -> Any:
        raise kind

    faulty.setattr(Faulty, "step", step)
    with pytest.raises(kind):
        play("tests/Faulty-v0", 2, 9)


def test_nan_that_follows_from_an_action_is_not_the_fault_of_the_environment(faulty: pytest.MonkeyPatch) -> None:
    """The agent has diverged, which training tells by its loss."""
    faulty.setattr(Faulty, "resets", -100)
    env = make_vector_env("tests/Faulty-v0", 2)

    def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        return np.full((2, 2), np.nan if time == 1 else 3.0, np.float32).clip(LOW, HIGH), np.zeros(2, bool)

    played = play_together([env], act, [1, 2])
    assert np.isnan(played.episodes.observation[:, 2, 1]).all()


# ----------------------------------------------------------------------------------------- random policy


def drawn(space: spaces.Space[Any], num_envs: int) -> NDArray[Any]:
    """Actions of the random policy in an environment with this action space."""

    class Env:
        single_action_space = space

    policy = random_policy(Env())  # type: ignore[arg-type]
    action, sampled = policy({"observation": np.zeros((num_envs, 1))}, np.random.default_rng(0))
    assert sampled.shape == (num_envs,)
    assert sampled.dtype == np.bool_
    assert sampled.all()
    return action


def test_random_actions_fill_asymmetric_bounds_and_stay_inside() -> None:
    actions = drawn(spaces.Box(LOW, HIGH, dtype=np.float32), 20_000)
    assert actions.shape == (20_000, 2)
    assert actions.dtype == np.float32
    assert (actions >= LOW).all()
    assert (actions <= HIGH).all()
    # uniform: mean (low + high) / 2 with standard error (high - low) / sqrt(12 n); five of them are allowed
    error = 5 * (HIGH - LOW) / np.sqrt(12 * 20_000)
    assert (np.abs(actions.mean(0) - (LOW + HIGH) / 2) < error).all()
    assert (actions.min(0) < LOW + 0.01 * (HIGH - LOW)).all()
    assert (actions.max(0) > HIGH - 0.01 * (HIGH - LOW)).all()
    assert abs(np.corrcoef(actions.T)[0, 1]) < 5 / np.sqrt(20_000)


def test_random_actions_stay_inside_bounds_that_are_close() -> None:
    """Rounding to float32 must not step over a bound."""
    low = np.array([1.0], np.float32)
    high = np.nextafter(low, np.float32(2))
    space = spaces.Box(low, high, dtype=np.float32)
    assert all(space.contains(action) for action in drawn(space, 1000))


def test_random_actions_of_an_unbounded_space_are_refused() -> None:
    with pytest.raises(ValueError, match="bounds"):
        drawn(spaces.Box(-np.inf, np.inf, (1,), np.float32), 2)


def test_random_actions_of_a_discrete_space_are_refused() -> None:
    """Episodes hold actions [E, T, A]."""
    with pytest.raises((ValueError, TypeError), match="Discrete"):
        drawn(spaces.Discrete(3), 2)


def test_a_step_in_which_the_physics_blew_up_does_not_count() -> None:
    pytest.importorskip("mujoco")
    env: Any = make_vector_env("push", 2)
    calls = 0

    def policy(obs: Any, generator: np.random.Generator) -> tuple[Any, Any]:
        nonlocal calls
        calls += 1
        if calls == 8:  # an object that flies off faster than any number allows
            states = env.unwrapped.save_state([1])
            states[:, env.unwrapped.layout.object_velocity] = 1e12
            env.unwrapped.restore_state([1], states)
        return np.zeros((2, 4), np.float32), np.zeros(2, bool)

    episodes = collect(env, policy, 2, 0)
    assert episodes.length.tolist() == [50, 7]
    env.close()


# ------------------------------------------------------------------------------------- one episode an environment

SEEDS = [episode_seed(3, 0, episode) for episode in range(7)]


class Judged(Countdown):
    """Countdown that says whether it succeeded: in every third state."""

    def step(self, action: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | {"is_success": np.float32(self.time % 3 == 0)}


class Exploding(Countdown):
    """Countdown whose physics blows up in step `at` of every episode: that step repeats the last true state."""

    at = 3
    count = 0

    def step(self, action: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        before = self._observe()
        obs, reward, terminated, truncated, info = super().step(action)
        blown = self.time == self.at and not terminated
        self.count += blown
        info |= {"blow_ups": self.count, "is_success": blown}  # what it says of a lost step must not count
        return (before if blown else obs), reward, terminated, truncated or blown, info


def vector(make: Any, count: int, limit: int = LIMIT) -> gymnasium.vector.SyncVectorEnv:
    def one() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(make(), limit)

    return gymnasium.vector.SyncVectorEnv([one] * count, autoreset_mode=AutoresetMode.DISABLED)


def action_for(obs: Observation) -> NDArray[np.float32]:
    """Actions that depend on nothing but the environment's own state."""
    key, time = obs["observation"][..., 0], obs["observation"][..., 1]
    return np.stack([LOW[0] + (HIGH - LOW)[0] * key, LOW[1] + (HIGH - LOW)[1] * (time % 5) / 5], -1).astype(np.float32)


def act(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    return action_for(obs), obs["observation"][:, 0] + obs["observation"][:, 1] % 2 > 1


def played(groups: list[int], make: Any = Judged, steps: int = LIMIT, limit: int = LIMIT, seeds: Any = SEEDS) -> Played:
    envs = [vector(make, count, limit) for count in groups]
    try:
        return play_together(envs, act, seeds, steps)
    finally:
        for env in envs:
            env.close()


@pytest.mark.parametrize("groups", [[7], [4, 3], [1, 5, 1]])
@pytest.mark.parametrize(("steps", "limit"), [(LIMIT, LIMIT), (LIMIT + 4, LIMIT), (4, LIMIT), (20, 20)])
def test_each_environment_plays_as_it_does_alone(groups: list[int], steps: int, limit: int) -> None:
    result = played(groups, steps=steps, limit=limit)
    episodes = result.episodes
    assert len(episodes) == 7
    assert episodes.observation.shape == (7, steps + 1, 3)
    assert episodes.action.shape == (7, steps, 2)
    assert episodes.observation.dtype == episodes.action.dtype == np.float32
    assert episodes.contact is not None
    lengths = set()
    for index, seed in enumerate(SEEDS):
        env = Judged()
        obs, _ = env.reset(seed=seed)
        for time in range(min(steps, limit)):
            for name in ("observation", "achieved_goal", "desired_goal"):
                np.testing.assert_array_equal(getattr(episodes, name)[index, time], obs[name].astype(np.float32))
            action = action_for(obs)
            np.testing.assert_array_equal(episodes.action[index, time], action)
            assert episodes.sampled[index, time] == (obs["observation"][0] + obs["observation"][1] % 2 > 1)
            obs, _, terminated, _, info = env.step(action)
            assert episodes.contact[index, time] == info["contact"]
            assert episodes.label["late"][index, time] == info["label_late"]
            if terminated:
                break
        length = time + 1
        lengths.add(length)
        assert episodes.length[index] == length
        np.testing.assert_array_equal(episodes.observation[index, length], obs["observation"].astype(np.float32))
        np.testing.assert_array_equal(episodes.achieved_goal[index, length], obs["achieved_goal"].astype(np.float32))
        assert result.terminated[index] == terminated
        assert result.success[index] == (length % 3 == 0)
        # nothing of the environment's life after its end
        assert not episodes.observation[index, length + 1 :].any()
        assert not episodes.achieved_goal[index, length + 1 :].any()
        assert not episodes.desired_goal[index, length + 1 :].any()
        assert not episodes.action[index, length:].any()
        assert not episodes.sampled[index, length:].any()
        assert not episodes.contact[index, length:].any()
        assert not episodes.label["late"][index, length:].any()
    assert len(lengths) > 1
    assert result.success.any()
    assert not result.success.all()
    assert result.terminated.any()


def test_groups_act_one_after_the_other_on_their_own_environments() -> None:
    envs = [vector(Judged, count) for count in (2, 3)]
    calls: list[tuple[int, int, int]] = []

    def noting(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        calls.append((group, time, len(obs["observation"])))
        return act(group, time, obs)

    result = play_together(envs, noting, SEEDS[:5], LIMIT)
    longest = [int(result.episodes.length[:2].max()), int(result.episodes.length[2:].max())]
    expected = [(g, time, (2, 3)[g]) for time in range(LIMIT) for g in (0, 1) if time < longest[g]]
    assert calls == expected  # and no call once all environments of a group have ended
    for env in envs:
        env.close()


def test_an_environment_starts_from_its_seed_however_it_was_used_before() -> None:
    env = vector(Judged, 3)
    first = play_together([env], act, SEEDS[:3], LIMIT)
    play_together([env], act, SEEDS[4:7], LIMIT)
    again = play_together([env], act, SEEDS[:3], LIMIT)
    other = play_together([env], act, [SEEDS[0], SEEDS[2], SEEDS[1]], LIMIT)
    env.close()
    assert_identical(first.episodes, again.episodes)
    np.testing.assert_array_equal(other.episodes.observation[[0, 2, 1]], first.episodes.observation)


@pytest.mark.parametrize("env_name", ["slide", "tests/Countdown-v0"])
def test_without_a_given_number_of_steps_the_time_limit_counts(env_name: str) -> None:
    env = make_vector_env(env_name, 30)
    policy, generator = random_policy(env), np.random.default_rng(0)
    result = play_together([env], lambda group, time, obs: policy(obs, generator), list(range(30)))
    env.close()
    limit = 30 if env_name == "slide" else LIMIT
    assert result.episodes.action.shape[1] == limit
    assert result.episodes.length.max() == limit


def test_an_environment_that_does_not_speak_of_success_has_none() -> None:
    result = played([3, 4], Countdown)
    assert result.success.dtype == np.bool_
    assert not result.success.any()


def test_success_is_that_of_slides_last_state() -> None:
    def policy(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        generator = np.random.default_rng(time)
        return scripted_action(hit, obs, generator, noise=0.2, random_share=0.2)

    env = make_vector_env("slide", 40)
    result = play_together([env], policy, list(range(40)), 30)
    env.close()
    distance = np.abs(result.episodes.achieved_goal[:, -1, 0] - result.episodes.desired_goal[:, -1, 0])
    np.testing.assert_array_equal(result.success, distance <= 0.5)
    assert 0 < result.success.mean() < 1
    assert not result.terminated.any()


def end(seed: int) -> int:
    """The step in which a Countdown of this seed terminates."""
    generator = gymnasium.utils.seeding.np_random(seed)[0]
    generator.random()
    return int(generator.integers(1, LIMIT + 4))


@pytest.mark.parametrize("groups", [[7], [3, 4]])
def test_a_step_that_blew_up_is_left_out_and_says_nothing_of_success(groups: list[int]) -> None:
    result = played(groups, Exploding)
    ends = [end(seed) for seed in SEEDS]
    assert min(ends) <= 3 < max(ends)
    expected = [length if length <= 3 else 2 for length in ends]  # the third step is lost, unless it ended the episode
    assert result.episodes.length.tolist() == expected
    assert not result.success.any()
    assert result.terminated.tolist() == [length <= 3 for length in ends]


def test_what_an_environment_does_after_its_end_is_not_taken_for_its_end() -> None:
    """Those that end early are played on from a reset: their second life ends, too, while others still play."""

    class BlowsUpOnce(Exploding):
        at = 2

        def reset(self, **kwargs: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
            self.at = 2 if self.count == 0 else -1
            return super().reset(**kwargs)

        def step(self, action: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
            self.at = self.at if self.end == 3 else -1
            result = super().step(action)
            return *result[:4], result[4] | {"is_success": result[2]}

    short = [seed for seed in range(100) if end(seed) == 3][:2]
    long = [seed for seed in range(100) if end(seed) > LIMIT][:1]
    result = played([3], BlowsUpOnce, seeds=short + long)
    assert result.episodes.length.tolist() == [1, 1, LIMIT]  # blown up in the second step, then terminated in the fifth
    assert not result.terminated.any()
    assert not result.success.any()


def test_blow_ups_of_an_earlier_episode_do_not_count_again() -> None:
    """The environments count theirs over their whole life."""

    class Recovered(Judged):
        """It blew up once, long ago, and succeeds in its only step."""

        def step(self, action: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, info | {"blow_ups": 1, "is_success": True}

    env = vector(Recovered, 3, limit=1)
    play_together([env], act, SEEDS[:3], 1)
    again = play_together([env], act, SEEDS[:3], 1)
    env.close()
    assert again.success.all()


class WithPicture(Judged):
    """Its observations have a part that training has no use for."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        {**Countdown.observation_space.spaces, "picture": spaces.Box(0, 255, (2, 2), np.uint8)}  # type: ignore[attr-defined]
    )

    def _observe(self) -> dict[str, NDArray[Any]]:
        return super()._observe() | {"picture": np.full((2, 2), 7, np.uint8)}


def test_other_parts_of_an_observation_are_left_out() -> None:
    result = played([7], WithPicture)
    assert_identical(result.episodes, played([7]).episodes)


class RarelyLabelled(Judged):
    """Reports a label only in its fifth step, which few episodes reach."""

    def step(self, action: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | ({"label_fifth": True} if self.time == 5 else {})


def test_a_label_that_only_one_group_reports_is_kept() -> None:
    short = [seed for seed in range(50) if end(seed) < 4][:3]
    long = [seed for seed in range(50) if end(seed) > 5][:3]
    one = played([6], RarelyLabelled, seeds=short + long)
    two = played([3, 3], RarelyLabelled, seeds=short + long)
    assert_identical(one.episodes, two.episodes)


# -------------------------------------------------------------------------------------------- reset seeds


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(("first", "stream"), [(0, 0), (5, 4)])
def test_collected_episodes_hold_the_seeds_of_their_resets(num_envs: int, first: int, stream: int) -> None:
    env = make_vector_env("slide", num_envs)
    episodes = collect(env, random_policy(env), 4, 3, first=first, stream=stream)
    env.close()
    assert episodes.reset_seed is not None
    assert episodes.reset_seed.dtype == np.int64
    assert episodes.reset_seed.tolist() == [episode_seed(3, stream, first + episode) for episode in range(4)]
    for episode, seed in enumerate(episodes.reset_seed.tolist()):
        obs, _ = gymnasium.make("butfor/Slide-v0").reset(seed=seed)
        np.testing.assert_array_equal(episodes.observation[episode, 0], obs["observation"])
        np.testing.assert_array_equal(episodes.desired_goal[episode, 0], obs["desired_goal"])


@pytest.mark.parametrize("groups", [[7], [4, 3]])
def test_played_episodes_hold_the_seeds_that_they_were_given(groups: list[int]) -> None:
    seeds = played(groups).episodes.reset_seed
    assert seeds is not None
    assert seeds.dtype == np.int64
    assert seeds.tolist() == list(SEEDS)


def test_seeds_and_actions_give_the_same_episodes_again() -> None:
    """That is what the seeds are for."""
    env = make_vector_env("slide", 3)
    episodes = collect(env, random_policy(env), 3, 11)

    def repeat(group: int, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        return episodes.action[:, time], episodes.sampled[:, time]

    assert episodes.reset_seed is not None
    again = play_together([env], repeat, episodes.reset_seed.tolist()).episodes
    env.close()
    assert_identical(again, episodes)
    np.testing.assert_array_equal(again.reset_seed, episodes.reset_seed)
