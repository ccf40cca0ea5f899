"""What the built-in vector environments share: misuse, time limits, threads, labels on request."""

import os
import re
from typing import Any

import mujoco
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode

from butfor.envs import fetch_physics, make_vector_env, processors, vector
from butfor.envs.facts import BUILT_IN
from butfor.envs.fetch import FetchEnv, FetchVectorEnv
from butfor.envs.slide import SlideEnv, SlideVectorEnv
from butfor.envs.truth import Forker, exact_label

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(("env", "size"), [(SlideEnv(), 1), (FetchEnv(task="push"), 4)], ids=["slide", "push"])
def test_a_single_environment_refuses_misuse(env: Any, size: int) -> None:
    """Out of order, wrong shape, NaN, after close."""
    with pytest.raises(ResetNeeded, match="step"):
        env.step(np.zeros(size))
    env.reset(seed=0)
    for shape in ((1, size), (size + 1,)):
        with pytest.raises(ValueError, match=re.escape(f"{shape}; expected ({size},)")):
            env.step(np.zeros(shape))
    with pytest.raises(ValueError, match="NaN"):
        env.step(np.full(size, np.nan))
    env.close()
    env.close()
    with pytest.raises(ClosedEnvironmentError, match="step"):
        env.step(np.zeros(size))
    with pytest.raises(ClosedEnvironmentError, match="reset"):
        env.reset()


@pytest.mark.parametrize("name", ["slide", "push", "pick-and-place"])
def test_vector_environments_refuse_misuse(name: str) -> None:
    """A refused call changes nothing: a twin that never sees one gives the same observations."""
    env, twin = (make_vector_env(name, 3, max_episode_steps=2) for _ in range(2))
    size = env.single_action_space.shape[0]  # type: ignore[index]
    actions = np.random.default_rng(0).uniform(-1, 1, (2, 3, size)).astype(np.float32)
    with pytest.raises(ResetNeeded, match="step"):
        env.step(actions[0])
    with pytest.raises(ResetNeeded, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(ValueError, match=r"2 seeds for 3\b"):
        env.reset(seed=[0, 1])  # type: ignore[arg-type]
    env.reset(seed=0)
    twin.reset(seed=0)
    for mask in (np.zeros(3, bool), np.ones(2, bool), np.ones(3), np.array([1, 0, 1])):
        with pytest.raises(ValueError, match="reset_mask"):
            env.reset(options={"reset_mask": mask})
    bad = actions[0].copy()
    bad[1, -1] = np.nan
    with pytest.raises(ValueError, match=r"\[1\] contain NaN"):
        env.step(bad)
    for shape in ((3, size + 1), (2, size), (size,), (3 * size,)):
        with pytest.raises(ValueError, match=re.escape(f"{shape}; expected {(3, size)}")):
            env.step(np.zeros(shape))
    for action in actions:
        obs, _, _, truncated, _ = env.step(action)
        expected = twin.step(action)[0]
        assert np.array_equal(obs["observation"], expected["observation"])
    assert truncated.all()  # the refused steps did not count
    env.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        env.step(actions[0])
    kept, _ = env.reset(seed=1, options={"reset_mask": np.array([False, True, False])})
    env.step(actions[0])
    assert not np.array_equal(kept["observation"][1], obs["observation"][1])
    env.close()
    env.close()
    for use in (lambda: env.step(actions[0]), env.reset):
        with pytest.raises(ClosedEnvironmentError, match="close"):
            use()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"max_episode_steps": 0}, "max_episode_steps 0"),
        ({"max_episode_steps": -2}, "max_episode_steps -2"),
        ({"render_mode": "human"}, "'human'"),
        ({"labels": ("heuristic",)}, "heuristic"),
    ],
)
@pytest.mark.parametrize("kind", [SlideVectorEnv, FetchVectorEnv])
def test_wrong_arguments_are_named(kind: Any, arguments: dict[str, Any], value: str) -> None:
    with pytest.raises(ValueError, match=value):
        kind(**arguments)


@pytest.mark.parametrize(("limit", "expected"), [(3, 3), (30, 30), (None, None), (-1, None)])
def test_time_limit(limit: int | None, expected: int | None) -> None:
    """Truncation after max_episode_steps; None and Gymnasium's -1 mean never."""
    env = SlideVectorEnv(2, max_episode_steps=limit, autoreset_mode="Disabled")
    env.reset(seed=0)
    finished = next((time for time in range(1, 41) if env.step(np.zeros((2, 1)))[3].all()), None)
    assert finished == expected


@pytest.mark.parametrize("name", ["push", "pick-and-place", "fetch-slide", "rot-table"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_exact_labels_are_those_of_forks_before_the_step(name: str, mode: AutoresetMode) -> None:
    """In every autoreset mode, also while some environments are being reset; the episodes stay the same."""
    arguments: dict[str, Any] = {"max_episode_steps": 12, "autoreset_mode": mode}
    env = FetchVectorEnv(name, 4, labels=("exact", "contact"), **arguments)
    twin = FetchVectorEnv(name, 4, **arguments)
    forker = Forker(twin)
    obs, _ = env.reset(seed=2)
    twin.reset(seed=2)
    mask = np.array([True, False, False, True])
    seen = []
    for time in range(24):
        if time == 4:  # the episodes end at different times from here on
            obs, _ = env.reset(seed=5, options={"reset_mask": mask})
            twin.reset(seed=5, options={"reset_mask": mask})
        action = BUILT_IN[name].expert(obs["observation"], obs["desired_goal"])[0]
        expected = exact_label(forker, twin.save_state(), action, shortcut=False)[0]
        obs, _, _, truncated, infos = env.step(action)
        others = twin.step(action)
        assert np.array_equal(obs["observation"], others[0]["observation"])
        assert "label_exact" not in others[4]
        shown = infos["label_exact"]
        stepped = infos["_label_exact"].copy()
        if "final_info" in infos:
            final = infos["final_info"]
            shown = np.where(final["_label_exact"], final["label_exact"], shown)
            stepped |= final["_label_exact"]
        assert np.array_equal(shown[stepped], expected[stepped])
        assert not shown[~stepped].any()
        seen.append(shown)
        if mode is AutoresetMode.DISABLED and truncated.any():
            obs, _ = env.reset(options={"reset_mask": truncated})
            twin.reset(options={"reset_mask": truncated})
    if name == "push":
        assert np.any(seen)  # else the comparison would show little


def test_labels_need_a_built_in_environment() -> None:
    env = make_vector_env("slide", 1, ("exact",))
    env.reset(seed=0)
    assert {"label_exact", "contact"} <= set(env.step(np.zeros((1, 1)))[4])
    with pytest.raises(ValueError, match="CartPole-v1"):
        make_vector_env("CartPole-v1", 1, ("exact",))


@pytest.mark.parametrize(
    ("variable", "threads", "count", "used"),
    [("", 0, 9, 6), ("4", 0, 9, 4), ("4", 2, 9, 2), ("4", 0, 3, 3)],
)
def test_threads_are_the_argument_else_the_variable_else_all_processors(
    monkeypatch: pytest.MonkeyPatch, variable: str, threads: int, count: int, used: int
) -> None:
    """But never more than there are environments."""
    asked: list[int] = []

    def batch(model: Any, num_envs: int, threads: int) -> Any:
        asked.append(threads)
        return mujoco.batch.Batch(model, num_envs, 1)

    monkeypatch.setattr(fetch_physics, "Batch", batch)
    monkeypatch.setattr(vector, "processors", lambda: 6)
    monkeypatch.setenv("BUTFOR_THREADS", variable)
    FetchVectorEnv("push", count, threads=threads)
    assert asked == [used]


def test_processors_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems that cannot tell, all of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 8}, raising=False)
    assert processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert processors() == 12


@pytest.mark.parametrize("variable", ["0", "-1", "two", "1.5"])
def test_a_wrong_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("BUTFOR_THREADS", variable)
    with pytest.raises(ValueError, match=f"BUTFOR_THREADS is '{variable}'"):
        FetchVectorEnv("push", 2)
