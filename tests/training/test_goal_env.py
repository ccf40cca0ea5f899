"""Environments as training sees them: built-in ones, a small one with many faces, and those of gymnasium-robotics."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from butfor.envs import make_vector_env
from butfor.influence.partners import Pair
from butfor.rollouts.play import EnvError, play, random_policy
from butfor.spaces.actions import ActionLaw
from butfor.training.goal_env import GoalEnv, add_partners, open_goal_env

LIMIT, RADIUS = 40, 0.3
LOW, HIGH = np.array([-2.0, -1.0], np.float32), np.array([2.0, 3.0], np.float32)
Goal = NDArray[Any]


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float64)


class Unrewarded(gymnasium.Env[Any, Any]):
    """A point (x, y) pushed about; it observes (time, y, something constant, x, x + y) and achieves (x, y).

    It ends early now and then.
    """

    observation_space: spaces.Space[Any] = spaces.Dict(observation=box(5), achieved_goal=box(2), desired_goal=box(2))
    action_space: spaces.Space[Any] = spaces.Box(LOW, HIGH, dtype=np.float32)
    closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal, self.time = self.np_random.normal(size=2), self.np_random.normal(size=2), 0
        self.end = int(self.np_random.integers(LIMIT // 2, 2 * LIMIT))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.place = self.place + 0.1 * np.asarray(action, dtype=np.float64)
        self.time += 1
        return self._observe(), 0.0, self.time == self.end, False, {}

    def _observe(self) -> Any:
        x, y = self.place
        observation = np.array([self.time, y, 4.0, x, x + y])
        return {"observation": observation, "achieved_goal": self.place.copy(), "desired_goal": self.goal.copy()}

    def close(self) -> None:
        Unrewarded.closed += 1


class Point(Unrewarded):
    """1 within the radius of the goal, else 0."""

    def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
        return (np.linalg.norm(achieved_goal - desired_goal, axis=-1) < RADIUS).astype(np.float32)


class MinusOne(Point):
    """-1 away from the goal, 0 at it."""

    def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
        return super().compute_reward(achieved_goal, desired_goal, info) - 1


class Dense(Point):
    """Ten less the distance."""

    def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
        return 10 - np.linalg.norm(achieved_goal - desired_goal, axis=-1)


class OneAtATime(Point):
    """Written for single goals."""

    def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
        x, y = achieved_goal
        return float((x - desired_goal[0]) ** 2 + (y - desired_goal[1]) ** 2 < RADIUS**2)


class WholeSum(Point):
    """Written for single goals; of many it takes the sum over all, without complaint."""

    def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
        return float(((achieved_goal - desired_goal) ** 2).sum() < RADIUS**2)


class FirstAxis(Point):
    """Written for single goals; of many it takes numbers of the first two rows for x and y, without complaint."""

    def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
        x, y = achieved_goal[0] - desired_goal[0], achieved_goal[1] - desired_goal[1]
        return np.float32(x**2 + y**2 < RADIUS**2)


class Hidden(Point):
    """Its observation shows twice the achieved goal."""

    def _observe(self) -> Any:
        seen = super()._observe()
        return seen | {"achieved_goal": 2 * seen["achieved_goal"]}


class Flat(Point):
    """A plane environment in space: the third coordinate of its point, and of nothing else, is always zero."""

    observation_space = spaces.Dict(observation=box(4), achieved_goal=box(3), desired_goal=box(3))

    def _observe(self) -> Any:
        place, goal = (np.append(value[:1], [0.0, 0.0]) for value in (self.place, self.goal))
        return {"observation": np.append(place, self.time), "achieved_goal": place, "desired_goal": goal}


class Micro(Point):
    """A point and a hand that are apart by less than a micrometre, in metres; the hand comes first."""

    def _observe(self) -> Any:
        (x, y), goal = 1e-7 * self.place, 1e-7 * self.goal
        observation = np.array([x + 3e-7, y + 3e-7, x, y, 1e-9 * self.time])
        return {"observation": observation, "achieved_goal": np.array([x, y]), "desired_goal": goal}


class Twice(Point):
    """Its observation shows y twice."""

    def _observe(self) -> Any:
        seen = super()._observe()
        seen["observation"][2] = seen["observation"][1]
        return seen


class NoGoal(Point):
    observation_space = box(5)


class NoAchieved(Point):
    observation_space = spaces.Dict(observation=box(5), desired_goal=box(2))


class UnlikeGoals(Point):
    observation_space = spaces.Dict(observation=box(5), achieved_goal=box(2), desired_goal=box(3))


class Picture(Point):
    observation_space = spaces.Dict(observation=box(5, 5), achieved_goal=box(2), desired_goal=box(2))


class Nested(Point):
    observation_space = spaces.Dict(
        observation=box(5), achieved_goal=spaces.Dict(place=box(2)), desired_goal=spaces.Dict(place=box(2))
    )


class Switch(Point):
    action_space = spaces.Discrete(3)


class Unbounded(Point):
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Matrix(Point):
    action_space = spaces.Box(-1, 1, (2, 2), np.float32)


class Whole(Point):
    action_space = spaces.Box(0, 10, (2,), np.int64)


class Locked(Point):
    action_space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.0], np.float32))


CLASSES: tuple[type[Unrewarded], ...] = (
    Point, MinusOne, Dense, OneAtATime, WholeSum, FirstAxis, Hidden, Flat, Micro, Twice,
    NoGoal, NoAchieved, UnlikeGoals, Picture, Nested, Switch, Unbounded, Matrix, Whole, Locked, Unrewarded,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    """Registers the foreign environments for these tests alone."""
    for one in CLASSES:
        gymnasium.register(f"tests/{one.__name__}-v0", make(one), max_episode_steps=LIMIT, disable_env_checker=True)
    gymnasium.register("tests/Endless-v0", make(Point), disable_env_checker=True)
    yield
    for id in [*(f"tests/{one.__name__}-v0" for one in CLASSES), "tests/Endless-v0"]:
        del gymnasium.registry[id]


def make(kind: type[Unrewarded]) -> Any:
    return lambda **kwargs: kind()


def reached(achieved: Any, desired: Any) -> Any:
    """0 where the goal of Point is reached, else -1."""
    distance = ((np.asarray(achieved) - np.asarray(desired)) ** 2).sum(-1) ** 0.5
    return np.where(distance < RADIUS, 0.0, -1.0)


def goals(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Achieved and desired goals of which about half are close to each other."""
    generator = torch.Generator().manual_seed(0)
    desired = torch.randn(*shape, 2, generator=generator)
    return desired + 0.3 * torch.randn(*shape, 2, generator=generator), desired


# ------------------------------------------------------------------------------------------- built-in environments


@pytest.mark.parametrize(
    ("name", "steps", "sizes"),
    [("slide", 30, (4, 1, 1)), ("butfor/Slide-v0", 30, (4, 1, 1)), ("push", 50, (25, 4, 3)),
     ("pick-and-place", 50, (25, 4, 3)), ("rot-table", 50, (29, 4, 3))],
)  # fmt: skip
def test_a_built_in_environment_shows_its_achieved_goal_in_the_columns_of_its_entity(
    name: str, steps: int, sizes: tuple[int, int, int]
) -> None:
    if sizes[2] == 3:
        pytest.importorskip("mujoco")
    goal_env = open_goal_env(name, target_scale=50.0)
    assert (goal_env.name, goal_env.steps, goal_env.sizes) == (name, steps, sizes)
    assert goal_env.law == ActionLaw((-1.0,) * sizes[1], (1.0,) * sizes[1])
    assert goal_env.scale == (50.0,) * sizes[2]
    env = goal_env.make(2)
    assert env.num_envs == 2
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    policy, generator = random_policy(env), np.random.default_rng(0)
    episodes = play([env], lambda group, time, obs: policy(obs, generator), [1, 2], steps).episodes
    env.close()
    np.testing.assert_array_equal(episodes.observation[..., list(goal_env.entities["object"])], episodes.achieved_goal)


@pytest.mark.parametrize(("name", "size", "radius"), [("slide", 1, 0.5), ("push", 3, 0.05)])
def test_a_built_in_reward_takes_tensors_of_any_shape(name: str, size: int, radius: float) -> None:
    if name == "push":
        pytest.importorskip("mujoco")
    goal_env = open_goal_env(name, target_scale=1.0)
    desired = torch.randn(2, 7, size, generator=torch.Generator().manual_seed(0))
    offset = radius * torch.linspace(0.1, 1.9, 14).view(2, 7, 1) / size**0.5
    reward = goal_env.reward(desired + offset, desired)
    assert isinstance(reward, torch.Tensor)
    assert reward.dtype == torch.float32
    expected = torch.where(torch.linspace(0.1, 1.9, 14).view(2, 7) < 1, 0.0, -1.0)
    assert torch.equal(reward, expected)


@pytest.mark.parametrize("name", ["push", "pick-and-place", "fetch-slide", "rot-table"])
def test_an_object_at_rest_is_neither_moved_nor_lifted_and_one_in_the_air_is(name: str) -> None:
    env = open_goal_env(name, target_scale=1.0).make_evaluation_env(8)
    away = np.tile(np.array([0, 0, 1, 0], np.float32), (8, 1))  # the gripper goes up and leaves the object alone
    played = play([env], lambda group, time, obs: (away, np.ones(8, dtype=bool)), range(8), 20)
    env.close()
    goal_env, episodes = open_goal_env(name, target_scale=1.0), played.episodes
    assert goal_env.facts is not None
    assert episodes.contact is not None
    still = goal_env.facts.behaviour(played.episodes)
    assert still["lifted"].tolist() == still["held"].tolist() == [0.0] * 8
    assert name == "rot-table" or still["moved"].max() <= 0.1  # it settles; that table turns
    episodes.achieved_goal[:, 11:, 2] += 0.02  # half of the time in the air, a quarter of it in the hand
    episodes.contact[:, 15:] = True
    found = goal_env.facts.behaviour(played.episodes)
    assert found["lifted"].tolist() == [0.5] * 8
    assert found["held"].tolist() == [0.25] * 8


def test_the_scale_of_a_column_that_only_trembles_is_one() -> None:
    pytest.importorskip("mujoco")
    scale = open_goal_env("rot-table").scale
    assert max(scale) < 1e6


# ------------------------------------------------------------------------------------------- a foreign environment


@pytest.mark.parametrize("by", ["name", "function"])
def test_a_foreign_environment_is_looked_at(by: str) -> None:
    def make_env() -> Any:
        return gymnasium.make("tests/Point-v0")

    goal_env = open_goal_env("tests/Point-v0") if by == "name" else open_goal_env("my point", make_env=make_env)
    assert goal_env.name == ("tests/Point-v0" if by == "name" else "my point")
    assert (goal_env.steps, goal_env.sizes) == (LIMIT, (5, 2, 2))
    assert goal_env.entities == {"object": (1, 3)}  # y and x, in rising order
    assert goal_env.law == ActionLaw((-2.0, -1.0), (2.0, 3.0))
    # the change is 0.1 times a uniform number of range 4: its deviation is 0.4 / sqrt(12); n is 4 x 20 at least
    for value in goal_env.scale:
        assert value == pytest.approx(12**0.5 / 0.4, rel=0.2)
    env = goal_env.make(3)
    assert env.num_envs == 3
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    policy, generator = random_policy(env), np.random.default_rng(0)
    played = play([env], lambda group, time, obs: policy(obs, generator), [1, 2, 3], goal_env.steps)
    env.close()
    assert played.episodes.length.max() <= LIMIT


def test_the_same_environment_is_seen_the_same_again() -> None:
    first, again = open_goal_env("tests/Point-v0"), open_goal_env("tests/Point-v0")
    assert (first.entities, first.scale) == (again.entities, again.scale)


def test_columns_and_scale_may_be_given() -> None:
    goal_env = open_goal_env("tests/Hidden-v0", entities=["object=4,0"], target_scale=7.0)
    assert goal_env.entities == {"object": (0, 4)}
    assert goal_env.scale == (7.0, 7.0)
    constant = open_goal_env("tests/Point-v0", entities=["object=2,3"])
    assert constant.scale[0] == 1.0  # that column never changes
    assert constant.scale[1] == pytest.approx(12**0.5 / 0.4, rel=0.2)


@pytest.mark.parametrize("name", ["Point", "MinusOne", "OneAtATime", "WholeSum", "FirstAxis"])
@pytest.mark.parametrize("shape", [(500,), (3, 40), (1,), (1, 1), (2, 1, 6)])
def test_a_reached_goal_gives_zero_and_any_other_less(name: str, shape: tuple[int, ...]) -> None:
    goal_env = open_goal_env(f"tests/{name}-v0", target_scale=1.0)
    achieved, desired = goals(*shape)
    reward = goal_env.reward(achieved, desired)
    assert reward.shape == shape
    assert reward.dtype == torch.float32
    expected = reached(achieved, desired)
    np.testing.assert_array_equal(reward, expected)
    assert shape != (500,) or 0.2 < -expected.mean() < 0.8
    assert torch.equal(goal_env.reward(desired, desired), torch.zeros(shape))


def test_a_dense_reward_is_shifted_only() -> None:
    achieved, desired = goals(50)
    reward = open_goal_env("tests/Dense-v0", target_scale=1.0).reward(achieved, desired)
    np.testing.assert_allclose(reward, -np.linalg.norm(achieved - desired, axis=-1), rtol=1e-5, atol=1e-6)


def test_the_reward_is_asked_with_the_achieved_goal_first() -> None:
    class Asymmetric(Point):
        def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
            return achieved_goal[..., 0] - 3 * desired_goal[..., 1]

    def make_env() -> Any:
        env = gymnasium.make("tests/Point-v0")
        env.unwrapped.compute_reward = Asymmetric().compute_reward  # type: ignore[attr-defined]
        return env

    achieved, desired = goals(20)
    reward = open_goal_env("asymmetric", target_scale=1.0, make_env=make_env).reward(achieved, desired)
    expected = achieved[:, 0] - 3 * desired[:, 1]  # up to the shift by the reward of a goal that is reached
    np.testing.assert_allclose(reward - reward[0], expected - expected[0], rtol=1e-5, atol=1e-5)


def test_the_shift_is_found_from_goals_that_exist() -> None:
    """A direction of length 1: zeros are none, and would never count as reached."""

    def compute_reward(achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
        return ((achieved_goal * desired_goal).sum(-1) > 0.99 * (achieved_goal**2).sum(-1).clip(1e-9)).astype(float)

    def make_env() -> Any:
        env = gymnasium.make("tests/Point-v0")
        env.unwrapped.compute_reward = compute_reward  # type: ignore[attr-defined]
        return env

    assert compute_reward(np.zeros(2), np.zeros(2), {}) == 0
    goal_env = open_goal_env("direction", target_scale=1.0, make_env=make_env)
    goal = torch.tensor([[0.6, 0.8]])
    assert goal_env.reward(goal, goal).tolist() == [0]
    assert goal_env.reward(-goal, goal).tolist() == [-1]


def test_a_reward_for_single_goals_is_not_asked_for_as_many_as_a_goal_has_numbers() -> None:
    achieved, desired = torch.tensor([[0.0, 9.0], [0.0, 0.0]]), torch.zeros(2, 2)
    reward = open_goal_env("tests/FirstAxis-v0", target_scale=1.0).reward(achieved, desired)
    assert reward.tolist() == [-1.0, 0.0]


def test_coordinates_that_never_change_are_each_found_in_a_column_of_their_own() -> None:
    assert open_goal_env("tests/Flat-v0").entities == {"object": (0, 1, 2)}


def test_the_entity_is_found_in_small_units() -> None:
    assert open_goal_env("tests/Micro-v0").entities == {"object": (2, 3)}


def test_several_entities_have_names_and_columns_in_rising_order() -> None:
    goal_env = open_goal_env("tests/Point-v0", entities=("both=3,1", "sum=4", "clock=observation:0:1"))
    assert goal_env.entities == {"both": (1, 3), "sum": (4,), "clock": (0,)}
    assert len(goal_env.scale) == 4  # of columns 0, 1, 3 and 4
    assert goal_env.scale[0] == 1  # the clock's change is always the same
    assert goal_env.scale[1:3] == open_goal_env("tests/Point-v0").scale
    given = open_goal_env("slide", entities=("agent=0", "object=2"), target_scale=3.0)
    assert (given.entities, given.scale) == ({"agent": (0,), "object": (2,)}, (3.0, 3.0))


def test_entities_that_random_actions_do_not_move_are_named() -> None:
    goal_env = open_goal_env("tests/Point-v0", entities=("still=2", "half=2:4", "clock=0", "place=1,3"))
    assert goal_env.unmoved() == ["still", "clock"]


def test_the_reward_of_a_wrapper_counts() -> None:
    """Flat goals around nested ones need a reward of their own."""

    class Farther(gymnasium.Wrapper[Any, Any, Any, Any]):
        def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
            return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) >= 2 * RADIUS).astype(np.float32)

    goal_env = open_goal_env("farther", target_scale=1.0, make_env=lambda: Farther(gymnasium.make("tests/Point-v0")))
    achieved = torch.tensor([[RADIUS * 1.5, 0.0], [RADIUS * 2.5, 0.0]])
    assert goal_env.reward(achieved, torch.zeros(2, 2)).tolist() == [0.0, -1.0]


@pytest.mark.parametrize("name", ["FetchReach-v4", "FetchPush-v4"])
def test_an_environment_of_gymnasium_robotics_is_taken_as_it_is(name: str) -> None:
    robotics = pytest.importorskip("gymnasium_robotics")
    gymnasium.register_envs(robotics)
    goal_env = open_goal_env(name, target_scale=50.0)
    entity, size = ((0, 1, 2), 10) if name == "FetchReach-v4" else ((3, 4, 5), 25)
    assert (goal_env.entities, goal_env.steps, goal_env.sizes) == ({"object": entity}, 50, (size, 4, 3))
    assert goal_env.law == ActionLaw((-1.0,) * 4, (1.0,) * 4)
    desired = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    distance = 0.05 * torch.linspace(0.1, 1.9, 12).view(2, 6)
    reward = goal_env.reward(desired + distance[..., None] / 3**0.5, desired)
    assert torch.equal(reward, torch.where(distance < 0.05, 0.0, -1.0))


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Pendulum-v1", r"Pendulum\-v1.*achieved_goal.*desired_goal"),
        ("NoGoal", "NoGoal.*desired_goal"),
        ("NoAchieved", "NoAchieved.*achieved_goal"),
        ("UnlikeGoals", r"\(5,\).*\(2,\).*\(3,\)"),
        ("Picture", r"\(5,\ 5\)"),
        ("Nested", "Nested.*Wrap"),
        ("Switch", r"flat Box with finite bounds.*Discrete\(3\)"),
        ("Unbounded", "flat Box with finite bounds"),
        ("Matrix", r"flat Box with finite bounds.*\(2, 2\)"),
        ("Whole", "Box.*0.*10.*64"),
        ("Locked", r"\[1\].*TransformAction"),
        ("Endless", "no time limit; .*max_episode_steps"),
        ("Unrewarded", "compute_reward.*achieved_goal.*desired_goal"),
        ("Hidden", r"tests/Hidden-v0.* 0: 3; .* 1: 1\..* never changed: 2\..*object=3,1\."),
        ("Twice", r"\[1,\ 2,\ 3\].*3"),
        ("nowhere/Lost-v0", "'nowhere/Lost-v0'"),
    ],
)
def test_an_environment_that_cannot_be_trained_in_is_refused_with_a_sentence(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_goal_env(name if "-v" in name else f"tests/{name}-v0")


def test_a_reward_that_is_no_number_is_told_with_its_goals() -> None:
    class Rooted(Point):
        def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
            far = np.abs(desired_goal[..., 0]) > 9
            return np.where(far, np.nan, super().compute_reward(achieved_goal, desired_goal, info))

    goal_env = open_goal_env("rooted", make_env=lambda: gymnasium.wrappers.TimeLimit(Rooted(), 5))
    goals = torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    with pytest.raises(EnvError, match=r"nan.*compute_reward"):
        goal_env.reward(*goals)


def test_a_reward_that_needs_an_info_is_told_in_a_sentence() -> None:
    class Weighted(Point):
        def compute_reward(self, achieved_goal: Goal, desired_goal: Goal, info: Any) -> Any:
            return info["weight"] * super().compute_reward(achieved_goal, desired_goal, info)

    with pytest.raises(EnvError, match=r"weighted raised KeyError in compute_reward: 'weight' .*with an empty info"):
        open_goal_env("weighted", make_env=lambda: gymnasium.wrappers.TimeLimit(Weighted(), 5))


def test_what_was_found_out_names_every_entity_and_the_reward() -> None:
    goal_env = open_goal_env("tests/Point-v0", target_scale=2.0, entities=("cube=3:5", "hand=4,0"))
    assert goal_env.describe() == {
        "entities": {
            "cube": {"columns": [3, 4], "scale": [2.0, 2.0]},
            "hand": {"columns": [0, 4], "scale": [2.0, 2.0]},
        },
        "reward_of_a_reached_goal": 1.0,
        "longest_episode": LIMIT,
    }
    assert "reward of a reached goal: 1, subtracted from all" in goal_env.describe_in_words()


def test_entities_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'cube=3:9'.*3 to 8.*0 to 4"):
        open_goal_env("tests/Point-v0", entities=("cube=3:9",))


@pytest.mark.parametrize("name", ["Point", "Hidden", "Endless"])
def test_environments_made_to_look_at_are_closed_also_after_an_error(name: str) -> None:
    before = Unrewarded.closed
    try:
        open_goal_env(f"tests/{name}-v0")
    except ValueError:
        assert name != "Point"
    assert Unrewarded.closed == before + 4  # as many as were made


def test_the_time_limit_of_an_environment_that_was_never_registered_is_found() -> None:
    goal_env = open_goal_env("my point", make_env=lambda: gymnasium.wrappers.TimeLimit(Point(), 11))
    assert goal_env.steps == 11


def test_environments_by_name_and_by_function_are_the_same() -> None:
    named = make_vector_env("tests/Point-v0", 2)
    made = open_goal_env("point", target_scale=1.0, make_env=lambda: gymnasium.make("tests/Point-v0")).make(2)
    for env in (named, made):
        env.reset(seed=[3, 4])  # type: ignore[arg-type]
    action = np.array([[1.0, 1.0], [-1.0, 2.0]], np.float32)
    for _ in range(3):
        one, other = named.step(action), made.step(action)
        for part in one[0]:
            np.testing.assert_array_equal(one[0][part], other[0][part])
    named.close()
    made.close()


def test_an_environment_that_a_function_makes_is_not_built_in_despite_its_name() -> None:
    made = open_goal_env("push", target_scale=1.0, make_env=lambda: gymnasium.make("butfor/Slide-v0"))
    assert made.facts is None


def test_positions_of_hand_and_object_are_known_for_built_in_environments_only() -> None:
    assert open_goal_env("slide", target_scale=1.0).built_in.positions == (0, 2)
    with pytest.raises(ValueError, match="tests/Point-v0"):
        _ = open_goal_env("tests/Point-v0").built_in


def test_labels_that_an_environment_does_not_report_are_refused() -> None:
    assert open_goal_env("slide", target_scale=1.0, labels=("exact",)).labels == ("exact",)
    with pytest.raises(ValueError, match=r"tests/Point-v0.*exact"):
        open_goal_env("tests/Point-v0", labels=("exact",))


# --- what touches the entities --------------------------------------------------------------------


def slide_of_a_user() -> GoalEnv:
    """1DSlide as if nobody knew its columns: the agent is column 0, the object column 2."""
    return open_goal_env("my-slide", make_env=lambda: gymnasium.make("butfor/Slide-v0"))


def test_built_in_environments_know_what_touches_the_object() -> None:
    for name, scale, pair in (("slide", 1.0, Pair([2], [0])), ("push", 50.0, Pair([3, 4, 5], [0, 1, 2]))):
        found = add_partners(open_goal_env(name, target_scale=scale), (), required=True, measure=False)
        assert found.partners == {"object": [pair]}
        assert set(found.scale) == {scale}


def test_random_episodes_show_what_touches_the_object_and_how_far_it_moves() -> None:
    before = slide_of_a_user()
    found = add_partners(before, (), required=True, measure=True)
    assert found.partners == {"object": [Pair([2], [0])]}
    assert found.describe()["entities"]["object"]["touched_by"] == [[0]]
    assert "touched by columns 0" in found.describe_in_words()
    with_few = add_partners(before, (0,), required=True, measure=False)
    assert (with_few.partners, with_few.scale) == (found.partners, before.scale)
    assert before.with_touching(found.touching()) == found
    assert before.with_touching(before.touching()) == before


def test_without_anything_that_touches_the_model_is_refused_or_another_one() -> None:
    """Where the agent is the only entity, nothing comes near it."""
    alone = open_goal_env("my-slide", ("agent=0",), make_env=lambda: gymnasium.make("butfor/Slide-v0"))
    assert add_partners(alone, (), required=False, measure=True) is alone
    with pytest.raises(ValueError, match="touches agent"):
        add_partners(alone, (), required=True, measure=True)
    with pytest.raises(ValueError, match="column 4"):
        add_partners(slide_of_a_user(), (4,), required=True, measure=False)
