"""Tasks simulated by MuJoCo: of gymnasium-robotics, gymnasium's Ant with a ball, and a puck moved with a stick."""

import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from butfor.benchmarks.environments import Observation
from butfor.benchmarks.scripts import push
from butfor.envs.registry import env_id, fix_gymnasium_robotics

Floats = NDArray[np.float64]


class MujocoSimulation:
    """What the MuJoCo tasks share: a state is a copy of everything in `MjData`.

    `mj_getState` would not do: gymnasium-robotics starts a step from positions of bodies that are one substep old.
    """

    horizon = 50
    object_joint: str
    env: Any  # of Gymnasium, unwrapped

    def __init__(self, model: Any, data: Any, robot: str, thing: str) -> None:
        """Keep a model and its data; `robot` and `thing` begin the names of the bodies whose contact is reported."""
        import mujoco

        self.mujoco = mujoco
        self.model = model
        self.data = data
        self.copy = mujoco.MjData(model)
        roots = [model.body(model.body_rootid[body]).name for body in model.geom_bodyid]
        names = [model.body(body).name for body in model.geom_bodyid]
        self.robot = [name.startswith(robot) or root.startswith(robot) for name, root in zip(names, roots, strict=True)]
        self.thing = [name.startswith(thing) for name in names]

    def step(self, action: Any) -> Observation:
        return np.asarray(self.env.step(action)[0]["observation"], dtype=np.float32)

    def save(self) -> Any:
        self.mujoco.mj_copyData(self.copy, self.model, self.data)
        return self.copy

    def restore(self, saved: Any) -> None:
        self.mujoco.mj_copyData(self.data, self.model, saved)

    def object_state(self) -> Floats:
        return np.array(self.data.joint(self.object_joint).qpos[:3])

    def contact(self) -> bool:
        pairs = self.data.contact.geom[: self.data.ncon]
        return any(
            (self.robot[one] and self.thing[other]) or (self.robot[other] and self.thing[one]) for one, other in pairs
        )


class FetchSlide(MujocoSimulation):
    """FetchSlide-v4: the gripper hits a puck that slides on, often out of reach.

    The fourth number of an action does nothing, because the fingers are blocked. Positions in an observation are one
    substep older than those that the label is computed from.
    """

    object_joint = "object0:joint"

    def __init__(self) -> None:
        self.env = make_robot("FetchSlide-v4")
        self.action_space: Any = self.env.action_space
        super().__init__(self.env.model, self.env.data, robot="robot0:", thing="object0")

    def reset(self, seed: int) -> Observation:
        obs, _ = self.env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        self.target = self._draw_target(rng)
        self.speed = rng.uniform(0.1, 1.0)
        return np.asarray(obs["observation"], dtype=np.float32)

    def _draw_target(self, rng: np.random.Generator) -> Floats:
        return np.asarray(self.env.initial_gripper_xpos[:2] + rng.uniform(-0.2, 0.2, 2))

    def scripted(self, rng: np.random.Generator) -> Any:
        thing = self.object_state()
        if np.linalg.norm(thing[:2] - self.target) < 0.04:
            self.target = self._draw_target(rng)
        hand = np.array(self.data.site("robot0:grip").xpos)
        move = push(hand, thing, self.target, behind=0.07, clear=0.06, speed=self.speed)
        return np.append(move, 0.0).astype(np.float32)


class Hand(MujocoSimulation):
    """HandManipulateBlock-v1 or -Egg-v1: a thing in the palm of a hand, until it falls out, out of reach.

    The script tilts the open hand until the thing slides out. It plays up to 80 steps before an episode starts, as the
    thing would otherwise lie in the palm, under influence, in nearly all states.
    """

    object_joint = "object:joint"

    def __init__(self, id: str) -> None:
        self.env = make_robot(id)
        self.action_space: Any = self.env.action_space
        super().__init__(self.env.model, self.env.data, robot="robot0:", thing="object")

    def reset(self, seed: int) -> Observation:
        obs = self.env.reset(seed=seed)[0]["observation"]
        rng = np.random.default_rng(seed)
        self.tilt = np.full(20, -1.0, np.float32)
        self.tilt[0] = rng.uniform(-1, 1)  # the wrist, sideways
        self.tilt[[2, 5, 8, 12]] = 0.0  # fingers are not spread
        for _ in range(rng.integers(80)):
            obs = self.step(self.tilt)
        return np.asarray(obs, dtype=np.float32)

    def object_state(self) -> Floats:
        """Position and rotation: a finger turns the thing without moving its centre."""
        return np.array(self.data.joint(self.object_joint).qpos)

    def scripted(self, rng: np.random.Generator) -> Any:
        return self.tilt


class Kitchen(MujocoSimulation):
    """FrankaKitchen-v1 and a thing in it, without noise on the observations, because the robot's control reads them.

    Observations have joint angles, not the position of the hand. The script drives the joints along the Jacobian.
    """

    def __init__(self, joint: str = "kettle", body: str = "kettle", site: str | None = None) -> None:
        """Choose the joint of the label, the beginning of the names of its bodies, and the site where the hand goes.

        Without a site the hand goes to the position of the joint.
        """
        quiet = {"robot_noise_ratio": 0.0, "object_noise_ratio": 0.0}
        self.env = make_robot("FrankaKitchen-v1", tasks_to_complete=["kettle"], **quiet)
        self.action_space: Any = spaces.Box(-1, 1, (9,), np.float32)
        self.object_joint = joint
        self.site = site
        super().__init__(self.env.model, self.env.data, robot="panda0", thing=body)

    def reset(self, seed: int) -> Observation:
        obs, _ = self.env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        self.offset = rng.uniform([-0.15, -0.15, 0.0], [0.15, 0.15, 0.15])
        return np.asarray(obs["observation"], dtype=np.float32)

    def save(self) -> Any:
        return super().save(), self.env.robot_env._last_robot_qpos.copy()

    def restore(self, saved: Any) -> None:
        data, last = saved
        super().restore(data)
        self.env.robot_env._last_robot_qpos = last.copy()

    def scripted(self, rng: np.random.Generator) -> Any:
        hand = self.data.site("end_effector")
        if rng.random() < 0.1:
            self.offset = rng.uniform([-0.15, -0.15, 0.0], [0.15, 0.15, 0.15])
        place = self.object_state() if self.site is None else self.data.site(self.site).xpos
        way = place + self.offset - hand.xpos
        jacobian = np.zeros((3, self.model.nv))
        self.mujoco.mj_jacSite(self.model, self.data, jacobian, None, hand.id)
        arm = jacobian[:, :7]
        turn = arm.T @ np.linalg.solve(arm @ arm.T + 0.01 * np.eye(3), way)
        return np.append(np.clip(3 * turn, -1, 1), [0.0, 0.0]).astype(np.float32)


class AntBall(MujocoSimulation):
    """Gymnasium's Ant-v5 and a ball between four walls. Ant is Gymnasium's, ball and walls are ours.

    Any leg may kick the ball, which then rolls. There is no script; a "scripted" action is a random one that is held.
    """

    object_joint = "ball"

    def __init__(self) -> None:
        import gymnasium.envs.mujoco

        assets = Path(gymnasium.envs.mujoco.__file__).parent / "assets"
        tree = ElementTree.parse(assets / "ant.xml")
        floor = tree.find("worldbody")
        assert floor is not None
        ball = ElementTree.SubElement(floor, "body", name="ball", pos="1 0 0.2")
        ElementTree.SubElement(ball, "joint", name="ball", type="free", damping="0.02", armature="0", limited="false")
        ElementTree.SubElement(ball, "geom", type="sphere", size="0.2", density="20", conaffinity="1")
        for place, size in (("1.5 0 0.5", "0.1 1.5 0.5"), ("-1.5 0 0.5", "0.1 1.5 0.5")):
            ElementTree.SubElement(floor, "geom", type="box", pos=place, size=size, conaffinity="1")
        for place, size in (("0 1.5 0.5", "1.5 0.1 0.5"), ("0 -1.5 0.5", "1.5 0.1 0.5")):
            ElementTree.SubElement(floor, "geom", type="box", pos=place, size=size, conaffinity="1")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ant_ball.xml"
            tree.write(file)
            options = {"include_cfrc_ext_in_observation": False, "exclude_current_positions_from_observation": False}
            made: Any = gymnasium.make("Ant-v5", xml_file=str(file), **options)
            self.env = made.unwrapped
        self.action_space: Any = self.env.action_space
        super().__init__(self.env.model, self.env.data, robot="torso", thing="ball")

    def reset(self, seed: int) -> Observation:
        self.env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        angle, distance = rng.uniform(-np.pi, np.pi), rng.uniform(0.6, 1.1)
        joint = self.data.joint("ball")
        joint.qpos[:] = [distance * np.cos(angle), distance * np.sin(angle), 0.21, 1, 0, 0, 0]
        joint.qvel[:] = 0
        self.mujoco.mj_forward(self.model, self.data)
        self.held = np.zeros(8, np.float32)
        return self._observe()

    def _observe(self) -> Observation:
        return np.concatenate([self.data.qpos, self.data.qvel]).astype(np.float32)

    def step(self, action: Any) -> Observation:
        self.env.step(action)
        return self._observe()

    def scripted(self, rng: np.random.Generator) -> Any:
        if rng.random() < 0.2:
            self.held = rng.choice([-1.0, 1.0], 8).astype(np.float32)
        return self.held


STICK = """
<mujoco>
  <option timestep="0.005" gravity="0 0 0" integrator="implicitfast"/>
  <default><geom friction="0.3" condim="3"/></default>
  <worldbody>
    <body name="hand">
      <joint name="hand_x" type="slide" axis="1 0 0" range="-0.6 0.6" limited="true"/>
      <joint name="hand_y" type="slide" axis="0 1 0" range="-0.6 0.6" limited="true"/>
      <geom type="cylinder" size="0.03 0.03" mass="1"/>
    </body>
    <body name="stick">
      <joint name="stick_x" type="slide" axis="1 0 0" frictionloss="0.5" damping="0.2"/>
      <joint name="stick_y" type="slide" axis="0 1 0" frictionloss="0.5" damping="0.2"/>
      <joint name="stick_turn" type="hinge" axis="0 0 1" frictionloss="0.05" damping="0.02"/>
      <geom type="box" size="0.25 0.02 0.03" mass="0.2"/>
    </body>
    <body name="puck">
      <joint name="puck_x" type="slide" axis="1 0 0" frictionloss="0.3" damping="0.1"/>
      <joint name="puck_y" type="slide" axis="0 1 0" frictionloss="0.3" damping="0.1"/>
      <geom type="cylinder" size="0.04 0.03" mass="0.2"/>
    </body>
  </worldbody>
  <actuator>
    <velocity joint="hand_x" kv="40" ctrlrange="-1 1" ctrllimited="true"/>
    <velocity joint="hand_y" kv="40" ctrlrange="-1 1" ctrllimited="true"/>
  </actuator>
</mujoco>
"""


class Stick(MujocoSimulation):
    """A hand in a plane, a stick of half a metre, and a puck that the hand moves mostly with the stick; ours.

    Contact means that of hand and puck. The puck is moved at a distance, so that neither that nor the distance between
    hand and puck indicates influence. An observation is hand x, y; stick x, y; its direction; puck x, y; and the
    velocities of these seven coordinates.
    """

    substeps = 10

    def __init__(self) -> None:
        import mujoco

        model = mujoco.MjModel.from_xml_string(STICK)
        super().__init__(model, mujoco.MjData(model), robot="hand", thing="puck")
        self.action_space: Any = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, seed: int) -> Observation:
        rng = np.random.default_rng(seed)
        self.mujoco.mj_resetData(self.model, self.data)
        angle = rng.uniform(-np.pi, np.pi)
        stick = rng.uniform(-0.15, 0.15, 2)
        along = np.array([np.cos(angle), np.sin(angle)])
        across = np.array([-along[1], along[0]])
        puck = stick + rng.uniform(0.05, 0.25) * along + rng.uniform(0.08, 0.2) * across
        hand = stick - rng.uniform(-0.1, 0.25) * along - rng.uniform(0.1, 0.3) * across
        self.data.qpos[:] = [*np.clip(hand, -0.6, 0.6), *stick, angle, *puck]
        self.mujoco.mj_forward(self.model, self.data)
        self.reach = rng.uniform(-0.2, 0.1)  # where along the stick the script pushes
        self.speed = rng.uniform(0.3, 1.0)
        return self._observe()

    def _observe(self) -> Observation:
        place = self.data.qpos
        direction = [np.cos(place[4]), np.sin(place[4])]
        return np.array([*place[:4], *direction, *place[5:7], *self.data.qvel], dtype=np.float32)

    def step(self, action: Any) -> Observation:
        self.data.ctrl[:] = np.clip(action, -1, 1)
        for _ in range(self.substeps):
            self.mujoco.mj_step(self.model, self.data)
        return self._observe()

    def object_state(self) -> Floats:
        return np.array(self.data.qpos[5:7])

    def scripted(self, rng: np.random.Generator) -> Any:
        hand, stick, puck = (np.array(self.data.qpos[columns]) for columns in (slice(0, 2), slice(2, 4), slice(5, 7)))
        along = np.array([np.cos(self.data.qpos[4]), np.sin(self.data.qpos[4])])
        across = np.array([-along[1], along[0]])
        side = np.sign((puck - stick) @ across) or 1.0
        if rng.random() < 0.05:
            self.reach = rng.uniform(-0.2, 0.2)
        offset = hand - stick
        depth = side * float(offset @ across)  # negative on the side away from the puck
        slip = float(offset @ along) - self.reach
        if depth < 0:
            move = self.speed * side * across - 5 * slip * along
        elif abs(offset @ along) < 0.32:  # on the puck's side: leave along the stick, at its nearer end
            move = np.sign(offset @ along) * along
        else:
            move = -side * across
        return np.clip(move, -1, 1).astype(np.float32)


def make_robot(id: str, **options: Any) -> Any:
    """Make an environment of gymnasium-robotics, without wrappers."""
    fix_gymnasium_robotics()
    return gymnasium.make(env_id(id), **options).unwrapped
