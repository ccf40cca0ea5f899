"""Every task of the benchmark does what an exact label needs: it restores exactly and starts afresh."""

import functools
import os
import re
from collections.abc import Iterator

import numpy as np
import pytest
from support.project import ROOT

from butfor.benchmarks.data import alternatives, uniform_action
from butfor.benchmarks.environments import TASKS, Simulation, _silenced

MODULES = {"panda-gym": "panda_gym", "gymnasium-robotics": "gymnasium_robotics"}
every_task = pytest.mark.parametrize("name", TASKS)


@functools.cache
def opened(name: str) -> Simulation:
    """One simulation for all tests, so that it has a history."""
    package = TASKS[name].package
    pytest.importorskip(MODULES.get(package, package))
    return TASKS[name].open()


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    """Simulations end before the interpreter does, in which PyBullet could not close them."""
    yield
    opened.cache_clear()


def test_a_third_of_the_tasks_are_held_out() -> None:
    held_out = sum(task.held_out for task in TASKS.values())
    assert held_out >= len(TASKS) / 3


def test_the_docs_list_the_tasks() -> None:
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    table = page.partition("## Tasks")[2].partition("## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    listed = {name: "held out" in row for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert listed == {name: task.held_out for name, task in TASKS.items()}


def test_notices_of_packages_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Compiled code writes to the file descriptors; what comes before and after is printed."""
    print("before")
    with _silenced():
        for number in (1, 2):
            os.write(number, b"a notice")
    print("after")
    assert capfd.readouterr() == ("before\nafter\n", "")


@every_task
def test_restored_states_step_identically(name: str) -> None:
    """The state itself, one that was restored, and one restored after another action all give the same bits."""
    simulation = opened(name)
    rng = np.random.default_rng(0)
    simulation.reset(1)
    other = alternatives(simulation.action_space)[0]
    for _ in range(20):
        action = simulation.scripted(rng) if rng.random() < 0.7 else uniform_action(simulation.action_space, rng)
        saved = simulation.save()
        outcomes = []
        for before in (None, None, other):
            if before is not None:
                simulation.step(before)
                simulation.restore(saved)
            outcomes.append((simulation.step(action), simulation.object_state(), simulation.contact()))
            simulation.restore(saved)
        for obs, thing, contact in outcomes[1:]:
            np.testing.assert_array_equal(obs, outcomes[0][0])
            np.testing.assert_array_equal(thing, outcomes[0][1])
            assert contact == outcomes[0][2]
        simulation.step(action)


@every_task
def test_an_episode_depends_on_its_seed_alone(name: str) -> None:
    simulation = opened(name)

    def play(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        states = [simulation.reset(seed)]
        for _ in range(15):
            states.append(simulation.step(simulation.scripted(rng)))
            states.append(simulation.step(uniform_action(simulation.action_space, rng)))
        return states

    first = play(3)
    other = play(4)
    np.testing.assert_array_equal(play(3), first)
    assert np.any(np.array(first) != np.array(other))


@every_task
def test_the_columns_are_those_of_the_object(name: str) -> None:
    """The object's columns follow its true position to within a step of lag, and those of the hand do not."""
    task = TASKS[name]
    simulation = opened(name)
    obs = simulation.reset(5)
    rng = np.random.default_rng(5)
    for _ in range(10):
        obs = simulation.step(simulation.scripted(rng))
        assert obs.dtype == np.float32
        assert np.isfinite(obs).all()
        np.testing.assert_allclose(obs[task.object], simulation.object_state()[: len(task.object)], atol=0.03)
    if task.hand_position is not None:
        assert not set(task.hand_position) & set(task.object)


@every_task
def test_scripted_actions_are_valid(name: str) -> None:
    simulation = opened(name)
    rng = np.random.default_rng(0)
    simulation.reset(0)
    for _ in range(simulation.horizon):
        action = simulation.scripted(rng)
        assert simulation.action_space.contains(action)
        simulation.step(action)
