"""N states of one MuJoCo model, stepped together by MuJoCo Warp on a GPU (or, slowly, on a CPU), in float32.

`WarpBatch` has the part of the interface of `mujoco.batch.Batch` that `FetchPhysics` uses, so that the environments,
their saved states and their forks are the same. A call copies the states to the device, steps them there, and copies
them back. What it computes differs from MuJoCo's own results by rounding, and more while things collide.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from butfor.envs.vector import Indices

try:
    import mujoco_warp
    import warp
except ImportError as error:
    raise ImportError(
        f"Stepping environments with warp_device needs MuJoCo Warp ({error}); install it with: pip install "
        "'butfor[warp]'."
    ) from error

Singles = npt.NDArray[np.float32]

INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)
STATE_PARTS = {  # the shape of one entry, for the parts that can be bound
    "time": (),
    "qpos": (-1,),
    "qvel": (-1,),
    "ctrl": (-1,),
    "mocap_pos": (-1, 3),
    "mocap_quat": (-1, 4),
}
# Room for each environment; a state that needs more is refused. The most that was seen in the six Fetch environments
# (random, held and expert actions) is 32 contacts and 151 constraints.
CONTACTS = 64
CONSTRAINTS = 256
_LOSSES = ("NEFC", "NJMAX_NNZ", "BROADPHASE", "NARROWPHASE", "CCD")
LOST_CONTACTS = sum(int(mujoco_warp.OverflowType[name]) for name in _LOSSES)  # flags of a step that had too little room


class WarpBatch:
    """States [N, S] of a model, as `mujoco.batch.Batch` lays them out, and the fields that were bound, in float32."""

    def __init__(self, model: Any, count: int, device: str) -> None:
        """Allocate `count` states of a `mujoco.MjModel` on a device of Warp, such as "cuda" or "cpu".

        Raises:
            ValueError: there is no such device.
        """
        try:
            self.device: Any = warp.get_device(device)
        except (RuntimeError, ValueError) as error:
            found = ", ".join(str(one) for one in warp.get_devices())
            raise ValueError(f"warp_device is {device!r}; the devices that Warp finds here are {found}.") from error
        self.count = count
        with warp.ScopedDevice(self.device):
            self._model = mujoco_warp.put_model(model)
            self._model.opt.warn_overflow = 0  # `_run` raises instead
            room = {"naconmax": count * CONTACTS, "njmax": CONSTRAINTS}
            self._data = mujoco_warp.make_data(model, nworld=count, **room)
            self._states = warp.zeros((count, mujoco.mj_stateSize(model, INTEGRATION)), dtype=float)
        self._copies: list[tuple[Any, Any]] = []  # (on the host, on the device), refreshed by every call
        self.state: Singles = self._copied(self._states)
        self._overflow: npt.NDArray[np.int32] = self._copied(self._data.overflow)
        self.warning = np.zeros((count, 1, 2), dtype=np.int32)  # Warp counts none; what blows up has wild values
        self._recordings: dict[tuple[str, int], Callable[[], None]] = {}
        self._columns = _columns(model)
        start = np.empty(self.state.shape[1])
        mujoco.mj_getState(model, mujoco.MjData(model), start, INTEGRATION)
        self.state[:] = start

    def bind(self, name: str) -> Singles:
        """Return a field [N, ...]: a view of the states, or a copy that every call refreshes."""
        if name in STATE_PARTS:
            return self.state[:, self._columns[name]].reshape(self.count, *STATE_PARTS[name])
        values = self._copied(getattr(self._data, name))
        return np.asarray(values.reshape(*values.shape[:2], -1))  # a matrix is one row

    def step(self, ids: Indices | None = None, nstep: int = 1) -> None:
        """Step some states (None: all)."""
        self._run(ids, _step, nstep)

    def forward(self, ids: Indices | None = None) -> None:
        """Compute the bound fields of some states (None: all) without a step."""
        self._run(ids, _forward, 1)

    def geom_poses(self, qpos: npt.NDArray[Any]) -> tuple[Singles, Singles, Singles]:
        """Positions [n, geoms, 3] and matrices [n, geoms, 9] of all geoms, and positions of all bodies [n, bodies, 3].

        The states are left alone.
        """
        data = self._data
        kinematics = self._recorded(mujoco_warp.kinematics)
        rows = data.qpos.numpy()
        parts = []
        for first in range(0, max(len(qpos), 1), self.count):
            chunk = qpos[first : first + self.count]
            rows[: len(chunk)] = chunk
            data.qpos.assign(rows)
            kinematics()
            parts.append([field.numpy()[: len(chunk)].copy() for field in (data.geom_xpos, data.geom_xmat, data.xpos)])
        place, matrix, body = (np.concatenate(part) for part in zip(*parts, strict=True))
        return place, matrix.reshape(*place.shape[:2], 9), body

    def _copied(self, field: Any) -> Any:
        """Return an array of the field's size that every call refreshes; pinned for a GPU, so that copies are fast."""
        host = warp.zeros(field.shape, dtype=field.dtype, device="cpu", pinned=self.device.is_cuda)
        self._copies.append((host, field))
        return host.numpy()

    def _load(self, model: Any, data: Any) -> None:
        mujoco_warp.set_state(model, data, self._states, INTEGRATION)

    def _save(self, model: Any, data: Any) -> None:
        mujoco_warp.get_state(model, data, self._states, INTEGRATION)

    def _recorded(self, function: Callable[[Any, Any], None], times: int = 1) -> Callable[[], None]:
        """Return what calls a function of the model and the data so many times; on a GPU it replays a recorded graph.

        Recording changes the data.
        """

        def call() -> None:
            with warp.ScopedDevice(self.device):
                for _ in range(times):
                    function(self._model, self._data)

        if not self.device.is_cuda:
            return call
        key = (function.__name__, times)
        if key not in self._recordings:
            call()  # kernels cannot be compiled while they are recorded
            with warp.ScopedCapture(self.device) as capture:
                call()
            self._recordings[key] = partial(warp.capture_launch, capture.graph)
        return self._recordings[key]

    def _run(self, ids: Indices | None, function: Callable[[Any, Any], None], times: int) -> None:
        """Copy the states to the device, call a function, and copy the fields of some environments back."""
        chosen = np.arange(self.count) if ids is None else ids
        others = np.setdiff1d(np.arange(self.count), chosen)
        kept = [(host.numpy(), host.numpy()[others]) for host, _ in self._copies]
        calls = [self._recorded(self._load), self._recorded(function, times), self._recorded(self._save)]
        warp.copy(self._states, self._copies[0][0])
        self._data.overflow.zero_()
        for call in calls:
            call()
        for host, field in self._copies:
            warp.copy(host, field)
        warp.synchronize_device(self.device)
        for values, before in kept:
            values[others] = before
        crowded = np.count_nonzero(self._overflow[chosen] & LOST_CONTACTS)
        if crowded:
            raise RuntimeError(
                f"{crowded} of {len(chosen)} environments need more than the {CONTACTS} contacts or {CONSTRAINTS} "
                "constraints that there is room for, so their step is wrong; step these states without warp_device."
            )


def _step(model: Any, data: Any) -> None:
    _refresh_velocities(model, data)
    mujoco_warp.step(model, data)


def _forward(model: Any, data: Any) -> None:
    _refresh_velocities(model, data)
    mujoco_warp.forward(model, data)


def _refresh_velocities(model: Any, data: Any) -> None:
    """Compute the velocities of the bodies from qpos and qvel.

    MuJoCo Warp builds the weld of the gripper from those of the step before. It would differ from MuJoCo by a hundred
    times more, and a restored state would not step as the saved one did.
    """
    mujoco_warp.kinematics(model, data)
    mujoco_warp.com_pos(model, data)
    mujoco_warp.com_vel(model, data)


def _columns(model: Any) -> dict[str, slice]:
    """The columns of each part of a state; the parts follow each other in the order of their bits."""
    bits = sorted(
        (int(getattr(mujoco.mjtState, name)), name)
        for name in dir(mujoco.mjtState)
        if name.startswith("mjSTATE_") and int(getattr(mujoco.mjtState, name)).bit_count() == 1
    )
    ends = np.cumsum([0, *(mujoco.mj_stateSize(model, bit) for bit, _ in bits)]).tolist()
    names = [name.removeprefix("mjSTATE_").lower() for _, name in bits]
    return {name: slice(*pair) for name, pair in zip(names, pairwise(ends), strict=True)}
