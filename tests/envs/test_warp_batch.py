"""The Fetch environments stepped by MuJoCo Warp, on its CPU backend and, where there is one, on a GPU."""

import functools
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from butfor.envs.experts import scripted_action
from butfor.envs.facts import BUILT_IN
from butfor.envs.fetch import FetchVectorEnv, make_physics
from butfor.envs.several.edges import action_effects
from butfor.envs.several.fetch_world import FetchWorld
from butfor.envs.truth import Forker, exact_label
from butfor.envs.vector import Flags

Floats = npt.NDArray[np.float64]

TASKS = ("pick-and-place", "push")
FREE = 3e-6  # metres: gripper and object when nothing touches them; float32 has steps of 1.2e-7 here
TOUCHED = 0.02  # metres: the object, while fingers press on it; a step moves it by up to 0.06
COUNT = 32


def without_warp(name: str) -> bool:
    """Whether a package is not installed."""
    return not pytest.importorskip.__module__ or importlib_missing(name)


def importlib_missing(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is None


needs_warp = pytest.mark.skipif(importlib_missing("mujoco_warp"), reason="MuJoCo Warp is not installed")
