"""The effect of the action in the current state of a simulation of the benchmark."""

import numpy as np

from butfor.benchmarks.data import alternatives, fork
from butfor.benchmarks.environments import Simulation


def effect(simulation: Simulation) -> float:
    """Largest range of a coordinate of the object's next state over the actions that a label tries."""
    return float(np.ptp(fork(simulation, alternatives(simulation.action_space)), axis=0).max())
