"""Environments with exact labels, most of them of other packages, on which the default settings are measured.

`environments.py` lists the tasks and says what a simulation must be able to do; read it first. `data.py` collects
training transitions and labels test states by forking the simulator. The simulations are in `panda.py` (PyBullet),
`mujoco_tasks.py`, `grid.py` (MiniGrid) and `built_in.py`; `scripts.py` has the scripts that move their hands. `run.py`
is the loop of `butfor benchmark defaults`, `measure.py` one unit of it.

Half of the tasks are held out: the default settings are developed on the others, and these are looked at once. Install
the packages with `pip install 'butfor[benchmark]'`. Not among the tasks, because they cannot be installed beside
mujoco 4 and numpy 2: metaworld 3.1 (needs mujoco 3.3.0) and robosuite 1.5 (needs mink 0.0.5, and that numpy 1).

Developed on:

- `panda-push` (panda-gym, PyBullet): a cube.
- `fetch-slide` (gymnasium-robotics, MuJoCo): a puck, often out of reach.
- `fetch-pick-and-place` (built-in, MuJoCo): a cube.
- `minigrid` (MiniGrid, discrete actions): a key.
- `slide` (built-in): an object on a line.
- `stick` (ours, MuJoCo): a puck that is moved with a stick; the distance to the hand fails.

Held out:

- `panda-slide`, `panda-pick-and-place`, `panda-stack` (panda-gym): a puck, a cube, cube 1.
- `panda-stack-second` (panda-gym): cube 2, pushed with cube 1; the distance to the hand fails.
- `hand-block` (gymnasium-robotics, MuJoCo): a block in the palm, until it falls out.
- `kitchen` (gymnasium-robotics, MuJoCo): the kettle.
- `ant-ball` (Gymnasium's Ant, MuJoCo): a ball of ours, kicked by any leg.
"""

from butfor.benchmarks.data import Data, Labelled, collect, label
from butfor.benchmarks.environments import TASKS, Simulation, Task

__all__ = ["TASKS", "Data", "Labelled", "Simulation", "Task", "collect", "label"]
