"""The bodies of a MuJoCo model for the player: its visible geoms, with meshes reduced to what is seen."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.envs.fetch_physics import mujoco
from butfor.scenes.scene import Body, Floats, Form, Role

CELL = 0.004  # metres: vertices of a mesh that share a cube of this size become one
JOINT_OF_TENDON = int(mujoco.mjtWrap.mjWRAP_JOINT)
FAINT = 0.3  # geoms that are more transparent only help a developer
FORMS: dict[int, Form] = {
    int(mujoco.mjtGeom.mjGEOM_MESH): "mesh",
    int(mujoco.mjtGeom.mjGEOM_BOX): "box",
    int(mujoco.mjtGeom.mjGEOM_SPHERE): "sphere",
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): "cylinder",
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): "capsule",
    int(mujoco.mjtGeom.mjGEOM_ELLIPSOID): "ellipsoid",
}
SHOWN_GROUPS = 2  # MuJoCo's viewers hide geoms of higher groups, such as shapes for contacts
HIDDEN = ("mocap",)  # parts of the names of bodies that no one is meant to see


def visible_geoms(model: Any) -> list[int]:
    """Return the geoms of a model that the player draws: no planes, no helpers, nothing almost transparent."""
    return [
        geom
        for geom in range(model.ngeom)
        if int(model.geom_type[geom]) in FORMS
        and int(model.geom_group[geom]) <= SHOWN_GROUPS
        and colour_of(model, geom)[3] > FAINT
        and not any(word in model.body(model.geom_bodyid[geom]).name for word in HIDDEN)
    ]


def geoms_of_trees(model: Any, geoms: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the geoms of what has joints: of what motors drive, and of what moves only when it is moved."""
    joint = model.actuator_trnid[model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT), 0]
    tendons = model.actuator_trnid[model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_TENDON), 0]
    for tendon in tendons:
        path = range(model.tendon_adr[tendon], model.tendon_adr[tendon] + model.tendon_num[tendon])
        joint = np.append(joint, [model.wrap_objid[at] for at in path if model.wrap_type[at] == JOINT_OF_TENDON])
    roots = {int(root) for root in model.body_rootid[model.jnt_bodyid[joint]]}
    welds = np.flatnonzero(model.eq_type == int(mujoco.mjtEq.mjEQ_WELD))
    for pair in zip(model.eq_obj1id[welds], model.eq_obj2id[welds], strict=True):  # an arm that hangs on a mocap body
        ends = [int(model.body_rootid[body]) for body in pair]
        if any(model.body_mocapid[root] >= 0 for root in ends):
            roots.update(ends)
    moving = [geom for geom in geoms if model.body_weldid[model.geom_bodyid[geom]]]
    moving = [geom for geom in moving if model.body_mocapid[model.body_rootid[model.geom_bodyid[geom]]] < 0]
    driven = [geom for geom in moving if int(model.body_rootid[model.geom_bodyid[geom]]) in roots]
    return driven, [geom for geom in moving if geom not in driven]


def bodies_of(model: Any, geoms: Sequence[int], objects: Collection[int]) -> tuple[Body, ...]:
    """Return a body for each geom; those in `objects` have the role of an object."""
    found = []
    for geom in geoms:
        owner = int(model.geom_bodyid[geom])
        name = model.body(owner).name
        form = FORMS[int(model.geom_type[geom])]
        moves = bool(model.body_weldid[owner])
        role: Role = "object" if geom in objects else "robot" if moves or name.startswith("robot") else "scenery"
        vertices, faces = _mesh(model, int(model.geom_dataid[geom])) if form == "mesh" else (None, None)
        colour = None if role == "object" else _hex(colour_of(model, geom))
        size = tuple(float(value) for value in model.geom_size[geom])
        found.append(Body(name, role, form, (size[0], size[1], size[2]), colour, vertices, faces))
    return tuple(found)


def poses_of(model: Any, qpos: Floats, geoms: Sequence[int]) -> Floats:
    """Return the poses [n, B, 7] of geoms for joint positions [n, nq]."""
    data = mujoco.MjData(model)
    poses = np.empty((len(qpos), len(geoms), 7))
    for row, joints in enumerate(qpos):
        data.qpos[:] = joints
        poses[row] = geom_poses(model, data, geoms)
    return poses


def geom_poses(model: Any, data: Any, geoms: Sequence[int]) -> Floats:
    """Return the poses [B, 7] of geoms after computing the kinematics of MuJoCo's data."""
    mujoco.mj_kinematics(model, data)
    poses = np.empty((len(geoms), 7))
    poses[:, :3] = data.geom_xpos[geoms]
    for row, geom in enumerate(geoms):
        mujoco.mju_mat2Quat(poses[row, 3:], data.geom_xmat[geom])
    return poses


def colour_of(model: Any, geom: int) -> NDArray[Any]:
    """Return the red, green, blue and opacity of a geom: those of its material, unless it has its own."""
    material = int(model.geom_matid[geom])
    own = model.geom_rgba[geom]
    default = material >= 0 and np.allclose(own, [0.5, 0.5, 0.5, 1.0])
    return np.asarray(model.mat_rgba[material] if default else own)


def merge_vertices(vertices: Floats, faces: NDArray[Any], cell: float = CELL) -> tuple[Floats, NDArray[Any]]:
    """Merge the vertices [V, 3] that lie in one cube of a grid; drop faces [F, 3] that then have two equal corners."""
    cells = np.floor((vertices - vertices.min(axis=0)) / cell).astype(np.int64)
    _, index, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    index = index.reshape(-1)
    merged = np.zeros((len(counts), 3))
    np.add.at(merged, index, vertices)
    corners = index[faces]
    a, b, c = corners.T
    kept = corners[(a != b) & (b != c) & (a != c)]
    return merged / counts[:, None], kept


def _mesh(model: Any, mesh: int) -> tuple[Floats, NDArray[Any]]:
    vertex = slice(model.mesh_vertadr[mesh], model.mesh_vertadr[mesh] + model.mesh_vertnum[mesh])
    face = slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])
    return merge_vertices(np.asarray(model.mesh_vert[vertex], dtype=np.float64), np.asarray(model.mesh_face[face]))


def _hex(colour: NDArray[Any]) -> str:
    red, green, blue = (round(255 * float(part)) for part in colour[:3])
    return f"#{red:02x}{green:02x}{blue:02x}"
