"""Tasks of panda-gym, simulated by PyBullet."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from butfor.benchmarks.environments import Observation
from butfor.benchmarks.scripts import pick, push

Floats = NDArray[np.float64]
NORMAL_FORCE = 9  # index in a contact point of PyBullet
SETTLE = 100  # substeps


class Panda:
    """One Panda environment, with four changes that an exact label needs.

    - PyBullet's solver stops early when its residual over all bodies is small, so that an arm far away shifts a sliding
      cube by up to 0.3 mm. With `solverResidualThreshold=0` it always makes all of its iterations, and an arm that
      touches nothing has an effect of exactly 0.
    - The position of the hand is that of the last substep but one, and is brought up to date when a state is restored.
      Here it is brought up to date after each step, before the observation.
    - Without `deterministicOverlappingPairs`, a restored state steps differently (0.2 mm) where several bodies touch.
    - The reset of panda-gym keeps velocities and cached contacts, so that an episode depends on the one before. Here
      each reset starts from one saved state and is made twice, with steps between that let new contacts form.

    Observations have no joint angles: where the arm is, apart from the hand, is hidden, and it rarely matters.
    """

    def __init__(self, id: str, thing: str, horizon: int) -> None:
        """Make an environment by its Gymnasium id; `thing` is the body whose influence is detected."""
        import panda_gym  # noqa: F401  # registers the environments

        made: Any = gymnasium.make(id)
        self.env: Any = made.unwrapped
        self.action_space: Any = self.env.action_space
        self.id = id
        self.horizon = horizon
        self.thing = thing
        self.bullet = self.env.sim.physics_client
        self.bullet.setPhysicsEngineParameter(solverResidualThreshold=0, deterministicOverlappingPairs=1)
        self.bodies = self.env.sim._bodies_idx
        self.saved: int | None = None
        self._start(0)
        self.fresh = self.bullet.saveState()

    def reset(self, seed: int) -> Observation:
        self.bullet.restoreState(self.fresh)
        self._start(seed)
        self.touched = False
        rng = np.random.default_rng(seed)
        self.picks = len(self.action_space.low) == 4 and self.thing != "object2" and rng.random() < 0.5
        self.speed = rng.uniform(0.05, 0.3) if "Slide" in self.id else rng.uniform(0.15, 0.6)
        self._draw_target(rng)
        return self._observe()

    def _start(self, seed: int) -> None:
        self.env.reset(seed=seed)
        self.env.robot.control_joints(self.env.robot.neutral_joint_values)
        for _ in range(SETTLE):
            self.bullet.stepSimulation()
        self.env.reset(seed=seed)

    def _draw_target(self, rng: np.random.Generator) -> None:
        self.target = rng.uniform([-0.2, -0.2, 0.02], [0.2, 0.2, 0.2])

    def _observe(self) -> Observation:
        self.bullet.getLinkState(self.bodies["panda"], self.env.robot.ee_link, computeForwardKinematics=True)
        return np.asarray(self.env._get_obs()["observation"], dtype=np.float32)

    def step(self, action: Any) -> Observation:
        self.env.robot.set_action(action)
        self.touched = False
        for _ in range(self.env.sim.n_substeps):
            self.bullet.stepSimulation()
            points = self.bullet.getContactPoints(self.bodies["panda"], self.bodies[self.thing])
            self.touched |= any(point[NORMAL_FORCE] > 0 for point in points)
        return self._observe()

    def save(self) -> Any:
        if self.saved is not None:
            self.bullet.removeState(self.saved)
        self.saved = self.bullet.saveState()
        return self.saved, self.touched

    def restore(self, saved: Any) -> None:
        state, self.touched = saved
        self.bullet.restoreState(state)

    def position(self, body: str) -> Floats:
        """Position [3] of a body's centre."""
        return np.array(self.bullet.getBasePositionAndOrientation(self.bodies[body])[0])

    def object_state(self) -> Floats:
        return self.position(self.thing)

    def contact(self) -> bool:
        """Whether the robot pressed on the object in any substep of the last step."""
        return self.touched

    def scripted(self, rng: np.random.Generator) -> Any:
        """Push the object about, or carry it in half of the episodes with fingers; push cube 2 with cube 1."""
        hand = np.array(self.env.robot.get_ee_position())
        thing = self.object_state()
        if self.picks:
            if np.linalg.norm(thing - self.target) < 0.04:
                self._draw_target(rng)
            action = pick(hand, thing, self.target, self.env.robot.get_fingers_width(), size=0.04)
        else:
            if np.linalg.norm(thing[:2] - self.target[:2]) < 0.04:
                self._draw_target(rng)
            pushed, target = thing, self.target[:2]
            if self.thing == "object2":
                pushed, target = self.position("object1"), thing[:2]
            move = push(hand, pushed, target, behind=0.06, clear=0.08, speed=self.speed)
            action = np.append(move, -1.0)[: len(self.action_space.low)]
        return action.astype(np.float32)
