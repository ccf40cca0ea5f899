"""Pictures of MuJoCo states without a screen."""

import importlib
import os
import platform
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.fetch_physics import mujoco
from butfor.envs.vector import Frame

RING_COLOUR = (0, 158, 115)  # of goals, as in the pages
CAMERA = {"distance": 2.5, "azimuth": 132.0, "elevation": -14.0, "lookat": np.array([1.3, 0.75, 0.55])}


class Painter:
    """Draws states of one model, in a graphics context and an MjData of its own."""

    def __init__(self, model: Any, width: int, height: int) -> None:
        """Open a graphics context for pictures of this size."""
        self.model = model
        self.data = mujoco.MjData(model)
        self._view = mujoco.MjrRect(0, 0, width, height)
        self._context = open_context(width, height)
        self._context.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        for name, value in CAMERA.items():
            setattr(self._camera, name, value)
        self._graphics = mujoco.MjrContext(model, int(mujoco.mjtFontScale.mjFONTSCALE_100))
        mujoco.mjr_resizeOffscreen(width, height, self._graphics)
        mujoco.mjr_setBuffer(int(mujoco.mjtFramebuffer.mjFB_OFFSCREEN), self._graphics)

    def paint(self, physics: npt.NDArray[np.float64], site: int, goal: npt.NDArray[np.float64]) -> Frame:
        """Draw an mjSTATE_INTEGRATION row as a picture [height, width, 3], with a site moved to the goal."""
        mujoco.mj_setState(self.model, self.data, physics, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(self.model, self.data)
        self.data.site_xpos[site] = goal
        self._context.make_current()
        everything = int(mujoco.mjtCatBit.mjCAT_ALL)
        mujoco.mjv_updateScene(self.model, self.data, self._option, None, self._camera, everything, self._scene)
        mujoco.mjr_render(self._view, self._scene, self._graphics)
        frame = np.empty((self._view.height, self._view.width, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(frame, None, self._view, self._graphics)
        frame = frame[::-1].copy()  # OpenGL's rows go upwards
        self._ring(frame, goal)
        return frame

    def _ring(self, frame: Frame, goal: npt.NDArray[np.float64]) -> None:
        """Draw a ring around the goal, because the robot may hide it."""
        camera = mujoco.mjv_averageCamera(*self._scene.camera)  # of the left and the right eye
        seen = goal - camera.pos
        right = np.cross(camera.forward, camera.up)
        # Rows and columns are square: one unit of the frustum's height is `scale` pixels either way.
        height, width, _ = frame.shape
        scale = height / (camera.frustum_top - camera.frustum_bottom) * camera.frustum_near
        across, upwards = scale * np.array([seen @ right, seen @ camera.up]) / (seen @ camera.forward)
        row, column = np.ogrid[:height, :width]
        radius = np.hypot(row + 0.5 - height / 2 + upwards, column + 0.5 - width / 2 - across)
        frame[np.abs(radius - height / 50) < 0.7] = RING_COLOUR

    def close(self) -> None:
        """Release the graphics context."""
        self._context.make_current()
        self._graphics.free()
        self._context.free()


def open_context(width: int, height: int) -> Any:
    """Open an OpenGL context without a screen: EGL, else OSMesa (the other way round if MUJOCO_GL=osmesa)."""
    backends = ["egl", "osmesa"] if platform.system() == "Linux" else ["cgl", "glfw"]
    if os.environ.get("MUJOCO_GL", "").lower().strip() == backends[1]:
        backends.reverse()
    reasons: list[str] = []
    for backend in backends:
        platform_before = os.environ.get("PYOPENGL_PLATFORM")
        try:
            return importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
        except Exception as error:  # each backend and driver fails in its own way
            reasons.append(f"{backend}: {str(error).strip() or type(error).__name__}")
            _forget_opengl(backend, platform_before)
    raise RuntimeError(
        f"Cannot draw without a screen ({'; '.join(reasons)}). Install EGL (on Debian and Ubuntu: apt install "
        "libegl1) or OSMesa (apt install libosmesa6), or make the environment without render_mode."
    )


def _forget_opengl(backend: str, platform_before: str | None) -> None:
    """Undo a failed import: PyOpenGL binds itself to one platform when it is first loaded."""
    for name in list(sys.modules):
        if name.split(".")[0] == "OpenGL" or name.startswith(f"mujoco.{backend}"):
            del sys.modules[name]
    if platform_before is None:
        os.environ.pop("PYOPENGL_PLATFORM", None)
    else:
        os.environ["PYOPENGL_PLATFORM"] = platform_before
