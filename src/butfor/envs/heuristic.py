"""The paper's heuristic label of the Fetch worlds: can the gripper reach the object within one step?

An ellipsoid around the gripper, as large as one step's movement from there (looked up in `reach.npz`) and the sizes
of fingers and object together, either holds the object's centre or does not. `python -m butfor.envs.heuristic OUTPUT`
builds the table anew; labelling needs no mujoco.
"""

import argparse
import functools
import os
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import KDTree

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

GRIP, THING, FINGERS, FINGER_VELOCITIES = slice(0, 3), slice(3, 6), slice(9, 11), slice(23, 25)  # of an observation
FINGER_HALF_SIZE = (0.0135, 0.007, 0.0385)  # as the gripper holds them, pointing down
OBJECT_HALF_SIZE = 0.025
FINGER_OFFSET = 0.0407  # of a closed finger's reach along y
LARGEST_OPENING = 0.054
EXTRA_HEIGHT = 0.02

SPARSE_GRID = ((0.5, 1.55), (0.0, 1.4), (0.05, 1.0), 20)  # x, y, z: both ends; points per axis
DENSE_GRID = ((1.1, 1.5), (0.5, 1.0), (0.4, 0.9), 50)
SETTLING_STEPS = 15
CHUNK = 512  # targets simulated at once
UNITS = {"start": 5e-5, "movement": 2e-6}  # metres; what 16 bits count in the file


def heuristic_label(observation: npt.ArrayLike, contact: npt.ArrayLike | None = None) -> Flags:
    """Whether sum(((object - grip) / semi-axis)^2) <= 1 in the state before a step, or a finger touched in that step.

    Observations [..., 25 or more] of any Fetch world; contact, if there is any, bool [...] of the same states.
    """
    seen = _observations(observation)
    inside = (((seen[..., THING] - seen[..., GRIP]) / semi_axes(seen)) ** 2).sum(axis=-1) <= 1
    if contact is None:
        return np.asarray(inside)
    touched = np.asarray(contact)
    if touched.dtype != np.bool_ or touched.shape != inside.shape:
        raise ValueError(
            f"contact has dtype {touched.dtype} and shape {touched.shape}; expected bool of shape {inside.shape}, one "
            "for the step taken from each observation (the last observation of an episode has none: leave it out)."
        )
    return np.asarray(inside | touched)


def semi_axes(observation: npt.ArrayLike) -> Floats:
    """The ellipsoid's semi-axes [..., 3]: movement + fingers + object + (0, opening, 0.02) in metres."""
    seen = _observations(observation)
    tree, movement = _table()
    _, nearest = tree.query(seen[..., GRIP])
    # Velocities in an observation are already multiplied by the length of a step.
    finger = (seen[..., FINGERS] + seen[..., FINGER_VELOCITIES]).max(axis=-1)
    axes = movement[nearest] + FINGER_HALF_SIZE + OBJECT_HALF_SIZE
    axes[..., 1] += np.clip(finger + FINGER_OFFSET, 0.0, LARGEST_OPENING)
    axes[..., 2] += EXTRA_HEIGHT
    return np.asarray(axes)


def all_targets() -> Floats:
    """The table's 133,001 targets [n, 3]: the initial grip position, a sparse grid of 20^3 and a dense one of 50^3."""
    grids = [np.atleast_2d(_reach()[2])]
    for *ends, points in (SPARSE_GRID, DENSE_GRID):
        axes = [np.linspace(*end, points) for end in ends]
        grids.append(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3))
    return np.concatenate(grids)


def build_table(
    targets: npt.ArrayLike | None = None, threads: int = 0, progress: Callable[[int, int], None] | None = None
) -> tuple[Floats, Floats]:
    """Where the grip settles for each target [n, 3], and the largest way along x, y, z of one step from there [n, 3].

    Each target (default: all) is settled once in FetchReach, and the six actions of +1 or -1 along one axis fork from
    that state. `progress` is told how many targets of how many are done; `threads` 0 takes all processors.
    """
    goals = all_targets() if targets is None else np.asarray(targets, dtype=np.float64)
    if goals.ndim != 2 or goals.shape[1] != 3 or not np.isfinite(goals).all():
        raise ValueError(f"targets has shape {goals.shape}; expected finite numbers [n, 3], positions of the gripper.")
    starts, movements = np.empty_like(goals), np.empty_like(goals)
    for first in range(0, len(goals), CHUNK):
        rows = slice(first, first + CHUNK)
        starts[rows], movements[rows] = _settle_and_move(goals[rows], threads)
        if progress is not None:
            progress(min(first + CHUNK, len(goals)), len(goals))
    return starts, movements


def save_table(path: Path | str, starts: Floats, movements: Floats) -> None:
    """Write a table in 16 bits a number, as differences from row to row; the file is whole or absent."""
    from butfor.envs.fetch_model import mujoco

    arrays: dict[str, Any] = {"mujoco": np.array(mujoco.__version__)}
    for name, values in (("start", starts), ("movement", movements)):
        counts = np.rint(values.T / UNITS[name])  # [3, n]: what changes slowly stands together
        if not (np.abs(counts) <= np.iinfo(np.int16).max).all():
            raise ValueError(
                f"The {name}s reach {np.abs(values).max():.3g} m; expected at most {32767 * UNITS[name]:.3g} m."
            )
        arrays[name] = np.diff(counts.astype(np.int16), axis=1, prepend=np.int16(0))  # wraps, and so does the sum
        arrays[f"{name}_unit"] = np.array(UNITS[name])
    temporary = Path(path).with_name(f".{Path(path).name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_table(path: Path | str | None = None) -> tuple[Floats, Floats]:
    """The starts [n, 3] and movements [n, 3] of a table that `save_table` wrote; by default the one of the package."""
    source: Any = resources.files("butfor.envs").joinpath("reach.npz") if path is None else Path(path)
    try:
        with source.open("rb") as file, np.load(file, allow_pickle=False) as table:
            starts, movements = (
                np.cumsum(table[name], axis=1, dtype=np.int16).T * float(table[f"{name}_unit"]) for name in UNITS
            )
    except (EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{source} is not a complete look-up table ({error}); build it with: python -m butfor.envs.heuristic OUTPUT"
        ) from error
    return np.ascontiguousarray(starts), np.ascontiguousarray(movements)


@functools.cache
def _table() -> tuple[Any, Floats]:
    """The starts as a KD-tree, and the movements [n, 3]."""
    starts, movements = load_table()
    return KDTree(starts), movements


def _observations(values: npt.ArrayLike) -> Floats:
    """Observations as float64 [..., 25 or more], or an error that says what was given."""
    array = np.asarray(values, dtype=np.float64)
    bad = np.count_nonzero(~np.isfinite(array))
    if array.ndim < 1 or array.shape[-1] < FINGER_VELOCITIES.stop or bad:
        raise ValueError(
            f"observation has shape {array.shape} and {bad} numbers that are not finite; expected finite observations "
            f"of a Fetch world [..., {FINGER_VELOCITIES.stop} or more] (not their dictionary)."
        )
    return array


@functools.cache
def _reach() -> tuple[Any, Floats, Floats]:
    """FetchReach of gymnasium-robotics v4: (the mujoco.MjModel, its state after a reset, the initial grip position)."""
    from butfor.envs.fetch_model import INTEGRATION, SUBSTEPS, assets, mujoco

    mj = mujoco.MjSpec.from_file(str(assets() / "fetch/reach.xml")).compile()
    mj.eq_data[mj.eq_type == int(mujoco.mjtEq.mjEQ_WELD), :7] = [0, 0, 0, 0, 0, 0, 1]
    data, grip = mujoco.MjData(mj), mj.site("robot0:grip").id
    for name, value in {"robot0:slide0": 0.4049, "robot0:slide1": 0.48, "robot0:slide2": 0.0}.items():
        data.joint(name).qpos = value
    mujoco.mj_forward(mj, data)
    data.mocap_pos[0] = np.array([-0.498, 0.005, -0.431 + 0.2]) + data.site_xpos[grip]
    data.mocap_quat[0] = [1, 0, 1, 0]
    mujoco.mj_step(mj, data, nstep=10 * SUBSTEPS)
    position, qpos, qvel, clock = data.site_xpos[grip].copy(), data.qpos.copy(), data.qvel.copy(), data.time
    mujoco.mj_resetData(mj, data)
    data.qpos, data.qvel, data.time = qpos, qvel, clock
    state = np.empty(mujoco.mj_stateSize(mj, INTEGRATION))
    mujoco.mj_getState(mj, data, state, INTEGRATION)
    return mj, state, position


def _settle_and_move(targets: Floats, threads: int) -> tuple[Floats, Floats]:
    """The rows of the table for some targets [n, 3], all of them simulated at once."""
    from butfor.envs.fetch_model import SUBSTEPS, Batch, mujoco
    from butfor.envs.fetch_physics import ACTION_SCALE

    mj, reset, _ = _reach()
    batch = Batch(mj, len(targets), threads)
    field: dict[str, Floats] = {name: batch.bind(name) for name in ("mocap_pos", "mocap_quat", "xpos", "xquat")}
    grip, body = batch.bind("site_xpos")[:, mj.site("robot0:grip").id], mj.body("robot0:gripper_link").id
    batch.state[:] = reset
    field["mocap_pos"][:, 0], field["mocap_quat"][:, 0] = targets, [1, 0, 1, 0]
    batch.step(nstep=SETTLING_STEPS * SUBSTEPS)
    settled, start = batch.state.copy(), grip.copy()
    position, rotation = field["xpos"][:, body].copy(), field["xquat"][:, body] + [1.0, 0.0, 1.0, 0.0]
    movement = np.zeros_like(start)
    for action in np.concatenate([np.eye(3), -np.eye(3)]).astype(np.float32):
        batch.state[:] = settled
        field["mocap_pos"][:, 0], field["mocap_quat"][:, 0] = position + action * ACTION_SCALE, rotation
        batch.step(nstep=SUBSTEPS, stage=mujoco.mjtStage.mjSTAGE_POS)  # FetchReach brings positions up to date, too
        movement = np.maximum(movement, np.abs(grip - start))
    if batch.warning[:, :, 1].any() or not np.isfinite(movement).all():
        lost = np.flatnonzero(batch.warning[:, :, 1].any(axis=1) | ~np.isfinite(movement).all(axis=1))
        raise RuntimeError(f"The simulation of the targets {targets[lost].tolist()} blew up; leave them out.")
    return start, movement


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the whole table and write it."""
    parser = argparse.ArgumentParser("python -m butfor.envs.heuristic", description="Build the look-up table anew.")
    parser.add_argument("output", type=Path, help="the file to write")
    parser.add_argument("--threads", type=int, default=0, help="0 takes all processors")
    options = parser.parse_args(arguments)
    if not options.output.parent.is_dir() or options.output.is_dir():
        parser.error(f"{options.output} cannot be written: name a file in a folder that exists.")
    began = time.monotonic()

    def progress(done: int, total: int) -> None:
        left = (time.monotonic() - began) * (total - done) / done
        print(f"\r{done} of {total} targets, {left / 60:.1f} minutes left ", end="", file=sys.stderr, flush=True)

    save_table(options.output, *build_table(threads=options.threads, progress=progress))
    minutes, size = (time.monotonic() - began) / 60, options.output.stat().st_size / 1e6
    print(f"\n{options.output}: {size:.2f} MB, built in {minutes:.1f} minutes.", file=sys.stderr)


if __name__ == "__main__":
    main()
