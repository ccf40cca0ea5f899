"""The wrappers report what `Influence.score` gives for the right states, in every mode of resetting."""

import functools
import multiprocessing
import warnings
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import (
    Autoreset,
    ClipAction,
    FlattenObservation,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    RescaleAction,
    TimeLimit,
)
from gymnasium.wrappers.vector import DictInfoToList
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecordEpisodeStatistics
from sklearn.metrics import roc_auc_score

from butfor import FitConfig, Influence, ModelConfig, ScoreConfig
from butfor.envs import make_vector_env
from butfor.influence import GraphConfig
from butfor.influence.learner import InfluenceLearner
from butfor.integrations.wrappers import InfluenceWrapper, VectorInfluenceWrapper
from butfor.spaces.observations import flatten_parts

SMALL = ModelConfig(layers=2, width=32)
BRIEF = FitConfig(batch_size=100, max_epochs=10, validate_every=10, learning_rate=3e-3)
SOBOL = ScoreConfig(actions=16, sampling="sobol")
REACH, PUSH, NOISE = 0.3, 0.3, 0.01


class Touch(gymnasium.Env[Any, Any]):
    """[agent, cube, lamp] on a line: the action moves the cube where the agent is near it, and never the lamp."""

    def __init__(self, discrete: bool = False) -> None:
        self.observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space: Any = spaces.Discrete(3) if discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1, 1, 3)
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push = float(action) - 1 if isinstance(self.action_space, spaces.Discrete) else float(action[0])
        touching = bool(abs(self.state[0] - self.state[1]) < REACH)
        self.state = self.state + NOISE * self.np_random.standard_normal(3)
        self.state[0] += 0.1 * push
        self.state[1] += PUSH * push * touching
        self.state[2] *= 0.9
        return self.state.copy(), -1.0, False, False, {"touching": touching}


class Count(gymnasium.Env[Any, Any]):
    """Observations are [index of the environment, episode, time]; odd environments end earlier."""

    def __init__(self, index: int = 0, discrete: bool = False) -> None:
        self.observation_space: Any = spaces.Box(0, 1000, (3,), np.float32)
        self.action_space: Any = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (1,), np.float32)
        self.index, self.episode, self.time = index, -1, 0

    def _observe(self) -> Any:
        return np.array([self.index, self.episode, self.time], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._observe(), 1.0, self.time == 3 + self.index % 2, False, {}


def counters(discrete: bool = False) -> list[Any]:
    return [functools.partial(Count, index, discrete) for index in range(3)]


def seeded() -> torch.Generator:
    """Draws the actions that a wrapper tries after reset(seed=0)."""
    return torch.Generator().manual_seed(0)


@functools.cache
def fitted(
    discrete: bool = False,
    names: tuple[str, ...] = ("cube",),
    scoring: ScoreConfig | None = None,
    model: ModelConfig | GraphConfig = SMALL,
) -> Influence:
    """Of any three columns; what it learned does not matter, but that its scores differ from state to state."""
    random = np.random.default_rng(0)
    obs = random.uniform(0, 4, (400, 3))
    action = random.integers(0, 3, 400) if discrete else random.uniform(-1, 1, (400, 1))
    push = action - 1 if discrete else action[:, 0]
    next_obs = obs + 0.1 * random.standard_normal(obs.shape)
    next_obs[:, 1] += push * obs[:, 0]
    next_obs[:, 2] += push * obs[:, 2]
    entities = {name: [column] for name, column in zip(names, (1, 2), strict=False)}
    space: Any = spaces.Discrete(3) if discrete else spaces.Box(-1.0, 1.0, (1,))
    settings: Any = {"model": model, "fitting": BRIEF, "scoring": scoring or ScoreConfig()}
    return Influence.fit(obs, action, next_obs, entities, action_space=space, **settings)


def play(env: Any, steps: int) -> list[tuple[Any, Any, float, dict[str, Any]]]:
    """(state, action, reward, info) of each step, begun anew where an episode ends."""
    env.action_space.seed(0)
    obs, info = env.reset(seed=0)
    assert "cai" not in info
    found = []
    for _ in range(steps):
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, info = env.step(action)
        found.append((obs, action, reward, info))
        obs = env.reset()[0] if terminated or truncated else next_obs
    return found


@pytest.mark.parametrize("discrete", [False, True])
def test_info_holds_the_score_of_the_state_in_which_the_action_was_taken(discrete: bool, tmp_path: Path) -> None:
    influence, path = fitted(discrete), tmp_path / "cai.safetensors"
    influence.save(path)
    of_object = play(InfluenceWrapper(TimeLimit(Touch(discrete), 5), influence), 12)
    of_path = play(InfluenceWrapper(TimeLimit(Touch(discrete), 5), str(path)), 12)
    tried = seeded()
    for (obs, _, reward, info), (_, _, _, other) in zip(of_object, of_path, strict=True):
        assert isinstance(info["cai"], float)
        assert info["cai"] == other["cai"] == influence.score(obs[None], tried)["cube"][0]
        assert reward == -1
        assert "touching" in info
        assert "original_reward" not in info
    assert len({info["cai"] for *_, info in of_object}) == 12


def test_several_entities_have_a_number_each() -> None:
    influence = fitted(names=("cube", "lamp"))
    tried = seeded()
    for obs, _, _, info in play(InfluenceWrapper(Touch(), influence), 3):
        assert info["cai"] == {name: score[0] for name, score in influence.score(obs[None], tried).items()}


class Still(Touch):
    """Its state never changes."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.state.copy(), -1.0, False, False, {}


@pytest.mark.parametrize("vector", [False, True])
def test_every_step_tries_other_actions_and_a_seeded_reset_repeats_them(vector: bool) -> None:
    env: Any = InfluenceWrapper(Still(), fitted(), bonus=0.2)
    action = np.zeros(1, dtype=np.float32)
    if vector:
        env = VectorInfluenceWrapper(SyncVectorEnv([Still]), fitted())
        action = action[None]

    def numbers(seed: Any) -> list[float]:
        env.reset(seed=0)
        env.reset(seed=seed)
        return [float(np.squeeze(env.step(action)[-1]["cai"])) for _ in range(200)]

    first = numbers(0)
    assert len(set(first)) == 200
    assert numbers(0) == first
    assert numbers(None)[0] != first[0]  # another state
    # the mean over steps is what many actions in one state give: 200 draws with this spread
    states = np.tile(Touch().reset(seed=0)[0], (5000, 1))
    expected = fitted().score(states)["cube"]
    assert np.mean(first) == pytest.approx(expected.mean(), abs=4 * expected.std() / np.sqrt(200))
    best = []
    for _ in range(2):
        env.reset(seed=0)
        best.append([np.squeeze(env.best_action()[0]) for _ in range(2)])
    assert best[0] == best[1]
    assert best[0][0] != best[0][1]


def test_a_list_of_seeds_repeats_a_vector_too() -> None:
    env = VectorInfluenceWrapper(SyncVectorEnv([Still, Still]), fitted())
    found = []
    for seeds in ([3, None], [3, None], [4, None]):
        env.reset(seed=0)
        env.reset(seed=seeds, options={"reset_mask": np.array([True, False])})
        found.append(env.step(np.zeros((2, 1), dtype=np.float32))[-1]["cai"][1])
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("limit", ["cap", "ceiling"])
@pytest.mark.parametrize("bonus_from", ["cube", "lamp", "sum", "max"])
def test_the_bonus_follows_its_formula(bonus_from: str, limit: str) -> None:
    influence = fitted(names=("cube", "lamp"))

    def chosen(cai: dict[str, float]) -> float:
        return ({"sum": sum(cai.values()), "max": max(cai.values())} | cai)[bonus_from]

    middle = float(np.median([chosen(info["cai"]) for *_, info in play(InfluenceWrapper(Touch(), influence), 20)]))
    settings: Any = {"cap": middle} if limit == "cap" else {"ceiling": -1 + 0.2 * middle}
    env = InfluenceWrapper(Touch(), influence, bonus=0.2, bonus_from=bonus_from, **settings)
    totals = []
    for _, _, reward, info in play(env, 20):
        assert isinstance(reward, float)
        assert reward == pytest.approx(-1 + 0.2 * min(chosen(info["cai"]), middle), abs=1e-12)
        assert info["original_reward"] == -1
        totals.append(reward)
    assert len(set(np.round(totals, 12))) == 11  # ten below the limit, ten at it


def test_the_influence_of_an_entity_is_reported_and_rewarded() -> None:
    """Instead of the action's, as `Influence.score` gives it for the states in which the steps are taken."""
    influence = fitted(names=("cube", "lamp"), model=GraphConfig(width=8, updates=5, motion_updates=5))
    env = InfluenceWrapper(Touch(), influence, bonus=0.2, source="lamp")
    tried = torch.Generator().manual_seed(0)
    for before, _, reward, info in play(env, 5):
        expected = float(influence.score(before[None], tried, "lamp")["cube"][0])
        assert expected > 0
        assert info["cai"] == pytest.approx(expected)
        assert reward == pytest.approx(-1 + 0.2 * expected)
    with pytest.raises(ValueError, match="'moon'"):
        InfluenceWrapper(Touch(), influence, source="moon")
    with pytest.raises(ValueError, match="'cube'"):
        InfluenceWrapper(Touch(), entities=["cube=1", "lamp=2"], source="cube")
    with pytest.raises(ValueError, match=r"'lamp'.*pairs"):  # without other states there is nothing to compare with
        InfluenceWrapper(Touch(), fitted(names=("cube", "lamp")), source="lamp")


def test_a_goal_env_shows_its_observation_alone() -> None:
    """As `butfor train` saves it; one fitted on all parts flattened is recognised by its size."""
    random = np.random.default_rng(0)
    obs, action = random.uniform(-1, 1, (300, 6)), random.uniform(-1, 1, (300, 1))
    next_obs = obs + 0.1 * random.standard_normal(obs.shape)
    next_obs[:, 4] += action[:, 0] * obs[:, 2]  # by the order of names: achieved_goal, desired_goal, observation
    settings: Any = {"model": SMALL, "fitting": BRIEF}
    part = Influence.fit(obs[:, 2:], action, next_obs[:, 2:], {"object": [2]}, **settings)
    whole = Influence.fit(obs, action, next_obs, {"object": [4]}, **settings)
    make = functools.partial(gymnasium.make, "butfor/Slide-v0")
    tried = seeded()
    for state, _, _, info in play(InfluenceWrapper(make(), part), 3):
        assert info["cai"] == part.score(state["observation"][None], tried)["object"][0]
    in_parts = play(InfluenceWrapper(make(), whole), 5)
    flat = play(InfluenceWrapper(FlattenObservation(make()), whole), 5)
    around = play(FlattenObservation(InfluenceWrapper(make(), whole)), 5)
    tried = seeded()
    for (_, _, _, info), (state, _, _, other), (same, _, _, third) in zip(in_parts, flat, around, strict=True):
        assert info["cai"] == other["cai"] == third["cai"] == whole.score(state[None], tried)["object"][0]
        np.testing.assert_array_equal(state, same)


class Nested(gymnasium.Env[Any, Any]):
    """An observation in parts of parts, and an image."""

    observation_space: Any = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "robot": spaces.Dict(
                {"arm": spaces.Box(-9, 9, (2,), np.float64), "base": spaces.Box(-9, 9, (), np.float64)}
            ),
            "cube": spaces.Box(-9, 9, (3,)),
        }
    )
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        robot = {"arm": np.array([1.0, 2.0]), "base": np.array(3.0)}
        return {"camera": np.zeros((4, 4, 3), np.uint8), "robot": robot, "cube": np.array([4.0, 5.0, 6.0])}, {}


def test_parts_stand_side_by_side_in_the_order_given() -> None:
    parts = ["cube", "robot/base", "robot/arm"]
    env = InfluenceWrapper(Nested(), entities=["hand=robot/arm:1", "cube=cube:0:3"], parts=parts)
    assert env.learner is not None
    assert env.learner.entities == {"hand": [5], "cube": [0, 1, 2]}
    obs, _ = env.reset()
    np.testing.assert_array_equal(flatten_parts(obs, env.sizes, 1), [[4, 5, 6, 3, 1, 2]])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_mode_of_resetting_scores_and_learns_from_real_steps_alone(mode: AutoresetMode) -> None:
    influence = fitted()
    told = VectorInfluenceWrapper(SyncVectorEnv(counters(), autoreset_mode=mode), influence, bonus=0.5, cap=0.1)
    learning = VectorInfluenceWrapper(
        SyncVectorEnv(counters(), autoreset_mode=mode), entities={"clock": [2]}, learn_every=10_000
    )
    obs, info = told.reset(seed=0)
    learning.reset(seed=0)
    assert "cai" not in info
    finished, steps, kinds = np.zeros(3, dtype=bool), 0, []
    tried = seeded()
    for time in range(20):
        actions = np.full((3, 1), time / 20, dtype=np.float32)
        if mode == AutoresetMode.DISABLED and finished.any():
            options = {"reset_mask": finished}
            obs, _ = told.reset(options=options)
            learning.reset(options={"reset_mask": finished})
            assert options == {"reset_mask": finished}  # Gymnasium itself takes it out
        taken = ~finished if mode == AutoresetMode.NEXT_STEP else np.ones(3, dtype=bool)
        expected = np.where(taken, influence.score(obs, tried)["cube"].astype(np.float64), 0.0)
        obs, reward, terminated, truncated, info = told.step(actions)
        learning.step(actions)
        np.testing.assert_array_equal(info["cai"], expected)
        np.testing.assert_array_equal(info["_cai"], taken)
        np.testing.assert_array_equal(info["original_reward"], taken)
        np.testing.assert_allclose(reward, taken * (1 + 0.5 * np.clip(expected, 0, 0.1)), rtol=1e-12)
        finished = terminated | truncated
        steps += taken.sum()
        kinds.append(bool(taken.all()))
    assert all(kinds) == (mode != AutoresetMode.NEXT_STEP)
    assert learning.learner is not None
    assert learning.learner.stored == steps
    before, action, after = (part.numpy() for part in learning.learner.transitions())
    np.testing.assert_array_equal(after[:, :2], before[:, :2])  # of one environment and one episode
    np.testing.assert_array_equal(after[:, 2], before[:, 2] + 1)
    assert len(np.unique(before, axis=0)) == steps
    assert after[:, 2].max() == 4  # the last steps are among them
    assert len(np.unique(action)) > 10


def test_an_environment_that_resets_itself_is_no_different() -> None:
    env = InfluenceWrapper(Autoreset(Count()), entities={"clock": [2]}, bonus=0.2)
    env.reset()
    infos = [env.step(np.zeros(1, dtype=np.float32))[-1] for _ in range(9)]
    assert ["cai" in info for info in infos] == [True, True, True, False, True, True, True, False, True]
    assert env.learner is not None
    before, _, after = (part.numpy() for part in env.learner.transitions())
    assert before[:, 1:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]
    np.testing.assert_array_equal(after, before + np.array([0, 0, 1]))


def test_a_vector_of_wrapped_environments_reports_the_same_as_a_wrapped_vector() -> None:
    influence = fitted(discrete=True, names=("cube", "lamp"))  # all actions are tried, whatever the seed
    wrapped = VectorInfluenceWrapper(SyncVectorEnv(counters(discrete=True)), influence, bonus=0.2)
    makers = [functools.partial(InfluenceWrapper, make(), influence, bonus=0.2) for make in counters(discrete=True)]
    separate = SyncVectorEnv(makers)
    listed = DictInfoToList(VectorInfluenceWrapper(SyncVectorEnv(counters(discrete=True)), influence))
    for env in (wrapped, separate, listed):
        env.reset(seed=0)
    resets = 0
    for _ in range(10):
        actions = np.zeros(3, dtype=np.int64)
        _, reward, _, _, info = wrapped.step(actions)
        _, other_reward, _, _, other = separate.step(actions)
        one_by_one: Any = listed.step(actions)[-1]
        np.testing.assert_allclose(reward, other_reward, rtol=1e-5)
        assert info.keys() == other.keys()
        for name in ("cube", "lamp"):
            np.testing.assert_allclose(info["cai"][name], other["cai"][name], rtol=1e-5)
            np.testing.assert_array_equal(info["cai"]["_" + name], other["cai"]["_" + name])
        for name in ("_cai", "_original_reward", "original_reward"):
            np.testing.assert_array_equal(info[name], other[name])
        assert [one["cai"]["cube"] for one in one_by_one if "cai" in one] == info["cai"]["cube"][info["_cai"]].tolist()
        resets += (~info["_cai"]).sum()
    assert resets == 6  # two in each environment: 3 + 1 + 3 + 1 steps, or 4 + 1 + 4 + 1


def test_what_makes_a_wrapped_environment_can_be_pickled(tmp_path: Path) -> None:
    """As AsyncVectorEnv does where processes are spawned; with the Influence in it, or its path."""
    fitted().save(tmp_path / "cai.safetensors")
    for influence in (fitted(), tmp_path / "cai.safetensors"):
        make = functools.partial(InfluenceWrapper, Touch(), influence)
        again = cloudpickle.loads(cloudpickle.dumps(make))
        assert play(again(), 3)[-1][-1] == play(make(), 3)[-1][-1]


def test_environments_in_their_own_processes() -> None:
    """Observations lie in memory that the next step overwrites."""
    influence = fitted(discrete=True)  # all actions are tried, whatever the seed
    makers = [functools.partial(InfluenceWrapper, make(), influence) for make in counters(discrete=True)]
    apart = AsyncVectorEnv(makers, copy=False)
    around = VectorInfluenceWrapper(AsyncVectorEnv(counters(discrete=True), copy=False), influence)
    try:
        obs = apart.reset(seed=0)[0].copy()
        around.reset(seed=0)
        for _ in range(3):
            actions = np.zeros(3, dtype=np.int64)
            expected = influence.score(obs)["cube"]
            next_obs, *_, info = apart.step(actions)
            np.testing.assert_allclose(info["cai"], expected, rtol=1e-5)
            np.testing.assert_array_equal(around.step(actions)[-1]["cai"], expected)
            obs = next_obs.copy()
    finally:
        apart.close()
        around.close()


def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have() -> None:
    """The parent has computed on two threads; networks of the default size are large enough to be computed so, too."""
    threads, wide = torch.get_num_threads(), InfluenceLearner(3, spaces.Box(-1, 1, (1,)), {"cube": [1]})
    random = np.random.default_rng(0)
    obs, action = random.normal(size=(200, 3)), random.uniform(-1, 1, (200, 1))
    wide.add(obs, action, obs + 0.1 * action)
    torch.set_num_threads(2)
    try:
        wide.fit(1)
        torch.ones(400, 400).exp()
        make = functools.partial(InfluenceWrapper, Touch(), wide.influence)
        process = multiprocessing.get_context("fork").Process(target=lambda: play(make(), 3), daemon=True)
        process.start()
        process.join(20)
        assert process.exitcode == 0
    finally:
        torch.set_num_threads(threads)
        process.kill()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_environment_that_is_itself_a_vector(mode: AutoresetMode) -> None:
    """Dictionaries, final_obs in a dictionary, and statistics around it that count the bonus."""
    envs = gymnasium.make_vec(
        "butfor/Slide-v0", 2, gymnasium.VectorizeMode.VECTOR_ENTRY_POINT, autoreset_mode=mode, max_episode_steps=4
    )
    space: Any = envs.single_action_space
    wrapped = VectorInfluenceWrapper(envs, entities=["object=observation:2"], bonus=0.2, learn_every=10_000)
    env = VectorRecordEpisodeStatistics(wrapped)
    env.reset(seed=0)
    for time in range(4):
        *_, truncated, info = env.step(np.stack([space.sample(), space.sample()]))
        assert truncated.all() == (time == 3)
    np.testing.assert_allclose(info["episode"]["r"], -4 * np.ones(2))  # nothing learned yet, so no bonus
    if mode == AutoresetMode.DISABLED:
        env.reset(options={"reset_mask": np.array([True, False])})
        assert env.episode_lengths.tolist() == [0, 4]  # the mask reaches the wrappers around
    assert wrapped.learner is not None
    assert wrapped.learner.stored == 8
    assert wrapped.learner.obs_size == 4


def test_make_vec_takes_the_wrapper() -> None:
    slide = make_vector_env("slide", 1)
    obs, _ = slide.reset(seed=0)
    settings: dict[str, Any] = {"entities": ("object=observation:2",), "seed": 1}
    makers = [functools.partial(InfluenceWrapper, **settings)]
    envs = gymnasium.make_vec("butfor/Slide-v0", 2, gymnasium.VectorizeMode.SYNC, wrappers=makers)
    first, _ = envs.reset(seed=0)
    np.testing.assert_array_equal(first["observation"][0], obs["observation"][0])
    *_, info = envs.step(np.zeros((2, 1), dtype=np.float32))
    assert info["_cai"].all()


def test_gymnasium_finds_nothing_to_complain_of() -> None:
    gymnasium.register("butfor-tests/Touch-v0", lambda **given: Touch(**given), max_episode_steps=5)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            env = InfluenceWrapper(gymnasium.make("butfor-tests/Touch-v0"), fitted(), bonus=0.2)
            check_env(env, skip_render_check=True)
            found = play(RecordEpisodeStatistics(PassiveEnvChecker(env)), 5)
            assert env.spec is not None
            again = gymnasium.make(env.spec)
        assert isinstance(again, InfluenceWrapper)
        assert play(again, 5)[-1][-1]["cai"] == found[-1][-1]["cai"]
        assert found[-1][-1]["episode"]["r"] == pytest.approx(sum(reward for _, _, reward, _ in found))
        # Gymnasium advises to check the innermost environment, and does not know that any number may be an observation
        allowed = ("different from the unwrapped version", "infinity", "recommend", "render")
        assert not [str(one.message) for one in caught if not any(word in str(one.message) for word in allowed)]
    finally:
        gymnasium.registry.pop("butfor-tests/Touch-v0")


LEARNING: dict[str, Any] = {
    "entities": ["cube=1", "lamp=2"],
    "learn_every": 1000,
    "batches": 300,
    "memory": 3000,
    "model": ModelConfig(layers=2, width=64),
    "fitting": FitConfig(batch_size=200, learning_rate=3e-3),
}


def learned(steps: int, seed: int = 0, **settings: Any) -> tuple[VectorInfluenceWrapper, list[Any]]:
    """A wrapper that learned as it went with random actions, and the infos of its steps."""
    makers = [lambda: TimeLimit(Touch(), 10)] * 20
    settings = LEARNING | {"seed": seed} | settings
    env = VectorInfluenceWrapper(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP), **settings)
    env.reset(seed=seed)
    random = np.random.default_rng(seed)
    return env, [env.step(random.uniform(-1, 1, (20, 1)).astype(np.float32)) for _ in range(steps)]


def test_learning_as_it_goes_finds_where_the_action_matters(tmp_path: Path) -> None:
    env, steps = learned(200, bonus=0.2, bonus_from="cube")
    for _, reward, _, _, info in steps[:50]:  # 1,000 steps before the first round
        assert not info["cai"]["cube"].any()
        assert info["_cai"].all()
        assert (reward == -1).all()
    late = [info for *_, info in steps[150:]]
    # all environments end at once, and with SAME_STEP Gymnasium has an episode's last info in final_info
    touching = np.stack([(info if "touching" in info else info["final_info"])["touching"] for info in late])
    cube, lamp = (np.stack([info["cai"][name] for info in late]) for name in ("cube", "lamp"))
    assert roc_auc_score(touching.flatten(), cube.flatten()) > 0.95
    # uniform pushes up to 0.3 against noise of 0.01 tell 2.7 nats where they touch, 0 elsewhere; much is learned by now
    assert cube[touching].mean() > 0.5
    assert cube[~touching].mean() < cube[touching].mean() / 3
    assert lamp.mean() < 0.05
    assert env.influence is not None
    env.save_influence(tmp_path / "learned.safetensors")
    states = np.random.default_rng(1).uniform(-1, 1, (50, 3))
    saved = Influence.load(tmp_path / "learned.safetensors")
    np.testing.assert_array_equal(saved.score(states)["cube"], env.influence.score(states)["cube"])
    action, score = env.best_action("cube")
    assert action.shape == (20, 1)
    assert score.shape == (20,)


def test_the_same_seed_gives_the_same_numbers() -> None:
    settings: dict[str, Any] = {"batches": 20}
    (_, one), (_, same), (_, other) = (learned(60, seed, **settings) for seed in (0, 0, 1))
    cai = [np.stack([info["cai"]["cube"] for *_, info in steps[50:]]) for steps in (one, same, other)]
    assert cai[0].any()
    np.testing.assert_array_equal(cai[0], cai[1])
    assert not np.array_equal(cai[0], cai[2])


def test_rounds_come_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 40 steps, but not before there are 100 transitions."""
    env = InfluenceWrapper(TimeLimit(Touch(), 10), entities=["cube=1"], learn_every=40, batches=7)
    learner, rounds = env.learner, []
    assert learner is not None
    monkeypatch.setattr(learner, "fit", lambda batches: rounds.append((learner.added, batches)))
    play(env, 210)
    assert rounds == [(100, 7), (140, 7), (180, 7)]


def test_no_bonus_may_be_given_as_none() -> None:
    settings: Any = {"entities": {"cube": [1]}, "bonus": None}
    assert InfluenceWrapper(Touch(), **settings).bonus is None


def test_one_environment_learns_with_discrete_actions() -> None:
    settings = LEARNING | {"entities": {"cube": [1]}, "learn_every": 150, "batches": 5}
    env = InfluenceWrapper(TimeLimit(Touch(discrete=True), 10), **settings)
    with pytest.raises(ValueError, match="150"):
        env.best_action()
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)
    numbers = [info["cai"] for *_, info in play(env, 152)]
    assert numbers[:150] == [0.0] * 150
    assert all(numbers[150:])
    action, score = env.best_action()
    assert action in (0, 1, 2)
    assert isinstance(score, float)


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({}, ValueError, "entities"),
        ({"influence": True, "entities": ["cube=1"]}, ValueError, "influence"),
        ({"entities": ["cube=3"]}, ValueError, "columns 0 to 2"),
        ({"entities": {"cube": [3]}}, ValueError, "columns 0 to 2"),
        ({"entities": ["cube=1"], "learn_every": 0}, ValueError, "learn_every"),
        ({"entities": ["cube=1"], "buffer_size": 99}, ValueError, "buffer_size.* 99"),
        ({"entities": ["cube=1"], "bonus": -1.0}, ValueError, r"weight.*-1\.0"),
        ({"entities": ["cube=1"], "bonus": 0.2, "bonus_from": "lamp"}, ValueError, "'lamp'"),
        ({"entities": ["cube=1"], "parts": ["robot"]}, ValueError, "robot"),
        ({"influence": True, "env": "discrete"}, ValueError, "3 discrete"),
        ({"influence": True, "env": "rescaled"}, ValueError, r"\[-1\].* \[0\] to \[1\]"),
        ({"influence": True, "env": "slide"}, ValueError, "3 columns.*achieved_goal"),
        ({"entities": ["goal=desired_goal:0"], "env": "slide"}, ValueError, "desired_goal"),
        ({"entities": ["cube=cube:0"], "env": "nested"}, TypeError, "'camera'"),
        ({"entities": ["cube=0"], "env": "tuple"}, TypeError, "FlattenObservation"),
        ({"entities": ["sum=1"], "bonus": 0.2}, ValueError, "ntities.*'sum'"),
        ({"entities": ["cube=1"], "env": "clipped"}, ValueError, "ClipAction"),
        ({"influence": 3}, TypeError, "influence.* 3"),
        ({"influence": True, "scoring": SOBOL, "seed": 1}, ValueError, "scoring, seed"),
        ({"influence": "nowhere.safetensors"}, FileNotFoundError, "nowhere"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], error: type[Exception], sentence: str) -> None:
    settings = dict(given)
    name = settings.pop("env", "touch")
    pairs = Touch()
    pairs.observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])
    envs: dict[str, Any] = {"touch": Touch(), "discrete": Touch(discrete=True), "nested": Nested(), "tuple": pairs}
    envs["clipped"] = ClipAction(Touch())
    envs["rescaled"] = RescaleAction(Touch(), np.float32(0), np.float32(1))
    env = envs[name] if name in envs else gymnasium.make("butfor/Slide-v0")
    if settings.get("influence") is True:
        settings["influence"] = fitted()
    with pytest.raises(error, match=sentence):
        InfluenceWrapper(env, **settings)


def test_bounds_within_the_environments_are_accepted() -> None:
    """The bounds of the data, if fitted without an action space, or the environment's after rounding."""
    InfluenceWrapper(RescaleAction(Touch(), np.float32(-1.2), np.float32(1.1)), fitted())
    InfluenceWrapper(RescaleAction(Touch(), np.float32(-1 + 1e-7), np.float32(1)), fitted())
