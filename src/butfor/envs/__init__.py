"""Simulated environments and the ground truth about influence in them.

`import butfor.envs` registers the built-in environments with Gymnasium: a line (`slide`), a plane with pucks (`pucks`)
and five tasks of the Fetch robot, which load mujoco when the first one is made. Read `facts.py` first: one record per
environment with what the rest of the library knows about it. `truth.py` forks saved states to find out whether the
action matters, `several/` who moves whom. `forks.py` saves and restores any environment that MuJoCo simulates.
"""

import sys

from butfor.envs.facts import EnvFacts, facts_of
from butfor.envs.forks import Fork, fork, restore
from butfor.envs.registry import ENVS, env_id, fix_gymnasium_robotics, make_vector_env, register_built_in, short_name
from butfor.envs.vector import processors

register_built_in()
if sys.modules.get("mujoco"):  # loading it for the other environments would cost them half a second
    fix_gymnasium_robotics()

__all__ = [
    "ENVS",
    "EnvFacts",
    "Fork",
    "env_id",
    "facts_of",
    "fix_gymnasium_robotics",
    "fork",
    "make_vector_env",
    "processors",
    "restore",
    "short_name",
]
