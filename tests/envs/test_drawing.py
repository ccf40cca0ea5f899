"""Pictures of the robot environments without a screen."""

import re
import subprocess
import sys
import types
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

from butfor.envs import drawing
from butfor.envs.fetch import FetchVectorEnv

IDS = {"push": "butfor/FetchPush-v0", "pick-and-place": "butfor/FetchPickAndPlace-v0"}
both_tasks = pytest.mark.parametrize("task", list(IDS))


def red_ring(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """The centre of the ring around the goal: row and column."""
    return np.asarray(np.argwhere((frame == drawing.RING_COLOUR).all(axis=-1)).mean(axis=0))


@both_tasks
def test_pictures_show_the_goal_and_change_nothing(task: str) -> None:
    """Chosen environments of a batch, and a single environment; drawing leaves the states alone."""
    try:
        drawing.open_context(8, 8).free()
    except RuntimeError as error:
        pytest.skip(str(error))
    envs = FetchVectorEnv(task, 3, render_mode="rgb_array", width=240, height=200)
    envs.reset(seed=0)
    states = envs.save_state()
    states[0, envs.layout.desired_goal] = [1.3, 0.75, 0.55]  # what the camera looks at
    states[2, envs.layout.desired_goal] = [1.3, 0.75, 0.85]  # and above it
    envs.restore_state(None, states)
    frames = envs.render([0, 2])
    assert frames is not None
    assert len(frames) == 2
    assert frames[0].shape == (200, 240, 3)
    assert frames[0].dtype == np.uint8
    assert frames[0].std() > 20
    assert np.abs(red_ring(frames[0]) - [99.5, 119.5]).max() < 1
    assert np.abs(red_ring(frames[1]) - [99.5, 119.5])[1] < 1
    # 0.3 m upwards, seen from 2.5 m under 14 degrees, with MuJoCo's vertical field of view of 45 degrees
    upwards = 0.3 * np.cos(np.radians(14)) / (2.5 - 0.3 * np.sin(np.radians(14))) / np.tan(np.radians(22.5)) * 100
    assert abs(99.5 - red_ring(frames[1])[0] - upwards) < 1
    assert np.array_equal(envs.save_state(), states)
    all_frames = envs.render()
    assert all_frames is not None
    assert np.array_equal(all_frames[2], frames[1])
    envs.close()
    single = gymnasium.make(IDS[task], render_mode="rgb_array", width=64, height=48)
    single.reset(seed=0)
    assert np.asarray(single.render()).shape == (48, 64, 3)
    single.close()


def test_drawing_falls_back_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """EGL, then OSMesa, then a sentence."""

    def failing(width: int, height: int) -> None:
        raise ImportError("no display")

    def backend(name: str, context: Any) -> None:
        module = types.ModuleType(f"mujoco.{name}")
        module.GLContext = context  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"mujoco.{name}", module)

    monkeypatch.setattr(drawing, "_forget_opengl", lambda backend, platform_before: None)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    backend("egl", failing)
    backend("osmesa", lambda width, height: ("osmesa", width, height))
    assert drawing.open_context(3, 4) == ("osmesa", 3, 4)
    backend("osmesa", failing)
    with pytest.raises(RuntimeError, match=r"egl: no display; osmesa: no display.*libegl1"):
        drawing.open_context(3, 4)


def test_graphics_that_mujoco_cannot_load_are_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "paper")  # as "osmesa" where OSMesa is not installed
    begin = "from butfor.cli import main; import sys; sys.argv = ['butfor', 'collect', 'push', '--episodes', '1']; "
    done = subprocess.run([sys.executable, "-c", f"{begin}main()"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert re.fullmatch(
        r"Error: mujoco cannot be imported with MUJOCO_GL=paper \(.*\); unset MUJOCO_GL, .*\n", done.stderr
    )
