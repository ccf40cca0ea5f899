"""Environments with exact labels, most of them of other packages, on which the default settings are measured.

`environments.py` lists the tasks and defines what a simulation must be able to do; read it first. `data.py` collects
training transitions and labels test states by forking the simulator. The simulations are in `panda.py` (PyBullet),
`mujoco_tasks.py`, `grid.py` (MiniGrid) and `built_in.py`; `scripts.py` has the scripts that move their hands. `run.py`
is the loop of `butfor benchmark defaults`, `measure.py` one unit of it.

Some of the tasks are held out: the default settings are developed on the others, and these are looked at once. The
table of all tasks is in docs/benchmark.md. Install the packages with `pip install 'butfor[benchmark]'`. Not among the
tasks, because they cannot be installed beside mujoco 4 and numpy 2: metaworld 3.1 (needs mujoco 3.3.0) and robosuite
1.5 (needs mink 0.0.5, and that numpy 1).
"""

from butfor.benchmarks.data import Data, Labelled, collect, label
from butfor.benchmarks.environments import TASKS, Simulation, Task

__all__ = ["TASKS", "Data", "Labelled", "Simulation", "Task", "collect", "label"]
