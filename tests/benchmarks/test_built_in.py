"""The labels of the built-in tasks are those that the environments themselves report."""

import numpy as np

from butfor.benchmarks.built_in import PickAndPlace, Slide
from butfor.benchmarks.data import alternatives, fork, label
from butfor.benchmarks.environments import TASKS, TOLERANCE
from butfor.envs.slide import outcome
from butfor.envs.truth import Forker, exact_label


def test_slide_has_its_own_exact_labels() -> None:
    labelled = label(TASKS["slide"], 500, seed=0)
    _, _, exact = outcome(labelled.obs, labelled.action)
    np.testing.assert_array_equal(labelled.label, exact)
    assert exact.any()


def test_pick_and_place_has_its_own_exact_labels() -> None:
    simulation = PickAndPlace()
    rng = np.random.default_rng(0)
    simulation.reset(0)
    actions = alternatives(simulation.action_space)
    states, found = [], []
    for _ in range(30):
        states.append(simulation.env.save_state()[0])
        found.append(np.ptp(fork(simulation, actions), axis=0).max() > TOLERANCE)
        simulation.step(simulation.scripted(rng))
    exact, _ = exact_label(Forker("pick-and-place", slots=64), np.array(states))
    np.testing.assert_array_equal(found, exact)
    assert 0 < exact.mean() < 1


def test_the_script_of_slide_hits_the_object() -> None:
    simulation = Slide()
    rng = np.random.default_rng(0)
    simulation.reset(0)
    touched = False
    for _ in range(simulation.horizon):
        simulation.step(simulation.scripted(rng))
        touched |= simulation.contact()
    assert touched
