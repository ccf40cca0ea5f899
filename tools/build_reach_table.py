"""Build the look-up table of `butfor.envs.heuristic`: how far one step moves the gripper, from 133,001 positions.

python tools/build_reach_table.py src/butfor/envs/reach.npz
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor.envs.fetch_physics import ACTION_SCALE, SUBSTEPS, Batch, assets, mujoco, settle
from butfor.runs.files import atomic_write

Floats = npt.NDArray[np.float64]

SPARSE_GRID = ((0.5, 1.55), (0.0, 1.4), (0.05, 1.0), 20)  # x, y, z: both ends; points per axis
DENSE_GRID = ((1.1, 1.5), (0.5, 1.0), (0.4, 0.9), 50)
SETTLING_STEPS = 15
CHUNK = 512  # targets simulated at once
UNITS = {"start": 5e-5, "movement": 2e-6}  # metres; the unit of the 16-bit numbers in the file


@functools.cache
def reach_model() -> tuple[Any, Floats, Floats]:
    """Build FetchReach of gymnasium-robotics v4: the mujoco.MjModel, its state after a reset, the initial grip."""
    mj = mujoco.MjSpec.from_file(str(assets() / "fetch/reach.xml")).compile()
    state, sites = settle(mj, {"robot0:slide0": 0.4049, "robot0:slide1": 0.48, "robot0:slide2": 0.0}, 0.2)
    return mj, state, sites[mj.site("robot0:grip").id]


def all_targets() -> Floats:
    """Return the table's targets [n, 3]: the initial grip position, a sparse grid of 20^3 and a dense one of 50^3."""
    grids = [np.atleast_2d(reach_model()[2])]
    for *ends, points in (SPARSE_GRID, DENSE_GRID):
        axes = [np.linspace(*end, points) for end in ends]
        grids.append(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3))
    return np.concatenate(grids)


def build_table(targets: Floats, threads: int = 0, progress: Callable[[int, int], None] | None = None) -> Any:
    """Simulate one step from each target [n, 3].

    Each target is settled once in FetchReach, and the six actions of +1 or -1 along one axis fork from that state.

    Returns:
        Where the grip settles [n, 3], and the largest distance along x, y, z of one step from there [n, 3].
    """
    starts = np.empty_like(targets)
    movements = np.empty_like(targets)
    for first in range(0, len(targets), CHUNK):
        rows = slice(first, first + CHUNK)
        starts[rows], movements[rows] = _settle_and_move(targets[rows], threads)
        if progress is not None:
            progress(min(first + CHUNK, len(targets)), len(targets))
    return starts, movements


def _settle_and_move(targets: Floats, threads: int) -> tuple[Floats, Floats]:
    """Compute the rows of the table for some targets [n, 3], all simulated at once."""
    mj, reset, _ = reach_model()
    batch = Batch(mj, len(targets), threads)
    field: dict[str, Floats] = {name: batch.bind(name) for name in ("mocap_pos", "mocap_quat", "xpos", "xquat")}
    grip = batch.bind("site_xpos")[:, mj.site("robot0:grip").id]
    body = mj.body("robot0:gripper_link").id
    batch.state[:] = reset
    field["mocap_pos"][:, 0] = targets
    field["mocap_quat"][:, 0] = [1, 0, 1, 0]
    batch.step(nstep=SETTLING_STEPS * SUBSTEPS)
    settled = batch.state.copy()
    start = grip.copy()
    position = field["xpos"][:, body].copy()
    rotation = field["xquat"][:, body] + [1.0, 0.0, 1.0, 0.0]
    movement = np.zeros_like(start)
    for action in np.concatenate([np.eye(3), -np.eye(3)]).astype(np.float32):
        batch.state[:] = settled
        field["mocap_pos"][:, 0] = position + action * ACTION_SCALE
        field["mocap_quat"][:, 0] = rotation
        batch.step(nstep=SUBSTEPS, stage=mujoco.mjtStage.mjSTAGE_POS)  # FetchReach brings positions up to date, too
        movement = np.maximum(movement, np.abs(grip - start))
    lost = batch.warning[:, :, 1].any(axis=1) | ~np.isfinite(movement).all(axis=1)
    if lost.any():
        raise RuntimeError(f"The simulation of the targets {targets[lost].tolist()} blew up; leave them out.")
    return start, movement


def save_table(path: Path | str, starts: Floats, movements: Floats) -> None:
    """Write a table in 16 bits a number, as differences from row to row."""
    arrays: dict[str, Any] = {"mujoco": np.array(mujoco.__version__)}
    for name, values in (("start", starts), ("movement", movements)):
        counts = np.rint(values.T / UNITS[name])  # [3, n]: what changes slowly stands together
        if not (np.abs(counts) <= np.iinfo(np.int16).max).all():
            limit = 32767 * UNITS[name]
            raise ValueError(f"The {name}s reach {np.abs(values).max():.3g} m; expected at most {limit:.3g} m.")
        arrays[name] = np.diff(counts.astype(np.int16), axis=1, prepend=np.int16(0))  # wraps, and so does the sum
        arrays[f"{name}_unit"] = np.array(UNITS[name])
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the whole table and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="file to write")
    parser.add_argument("--threads", type=int, default=0, help="default: all processors")
    options = parser.parse_args(arguments)
    if not options.output.parent.is_dir() or options.output.is_dir():
        parser.error(f"{options.output} cannot be written: expected a file in an existing folder.")
    began = time.monotonic()

    def progress(done: int, total: int) -> None:
        left = (time.monotonic() - began) * (total - done) / done
        print(f"\r{done} of {total} targets, {left / 60:.1f} minutes left ", end="", file=sys.stderr, flush=True)

    save_table(options.output, *build_table(all_targets(), options.threads, progress))
    print(f"\n{options.output}: built in {(time.monotonic() - began) / 60:.1f} minutes.", file=sys.stderr)


if __name__ == "__main__":
    main()
