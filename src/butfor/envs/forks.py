"""Save the complete state of an environment and go back to it: `fork` and `restore`.

They work for every environment of Gymnasium that MuJoCo simulates, with its wrappers, and for the built-in ones. The
same actions then have the same outcomes, to the bit, so that other actions show what would have happened otherwise.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from butfor.envs.vector import GoalVectorEnv

KEPT = (bool, int, float, complex, str, bytes, type(None), np.generic, np.random.Generator)


@dataclass(frozen=True)
class Fork:
    """A saved state of an environment; see `fork`.

    Attributes:
        values: plain attributes of the environment, of its wrappers and of environments inside it, by their path.
        simulations: copies of MuJoCo's data, by path and attribute.
        rows: states of built-in environments, by path.
    """

    values: dict[str, dict[str, Any]]
    simulations: dict[tuple[str, str], Any]
    rows: dict[str, Any]


def fork(env: Any) -> Fork:
    """Save the complete state of an environment.

    MuJoCo's data are copied whole: positions, velocities, actuators, mocap bodies, warm start, time, and everything
    derived, because some environments start a step from positions that are one substep old. The plain attributes
    (numbers, texts, arrays, random generators, and containers of them) of the environment and its wrappers are kept,
    too: goals, elapsed steps, open tasks. The model is not: what an environment changes in it stays changed.

    Args:
        env: an environment with or without wrappers, after a reset.

    Returns:
        The state, which can be restored any number of times, also into another environment of the same kind.

    Raises:
        TypeError: no part of the environment is simulated by MuJoCo, and it is not a built-in one.
    """
    values = {}
    simulations = {}
    rows = {}
    built_in = False
    for path, part in _parts(env):
        built_in |= isinstance(part, GoalVectorEnv)
        if _saves_itself(part):
            rows[path] = part.save_state()
            continue
        values[path] = copy.deepcopy({name: value for name, value in vars(part).items() if _is_plain(value)})
        for name, data in _simulations(part):
            simulations[path, name] = _copy_data(data)
    if not (simulations or built_in):
        raise TypeError(f"{env} is neither simulated by MuJoCo nor built-in, so its state cannot be saved.")
    return Fork(values, simulations, rows)


def restore(env: Any, state: Fork) -> None:
    """Put an environment back into a saved state; the same actions then have the same outcomes.

    Args:
        env: the environment that was forked, or another one of the same kind.
        state: of `fork`.

    Raises:
        ValueError: the state is of another kind of environment.
    """
    parts = dict(_parts(env))
    found = {(path, name): data for path, part in parts.items() for name, data in _simulations(part)}
    inside = {path for path, part in parts.items() if _saves_itself(part)}
    same = all(path in parts for path in state.values) and found.keys() == state.simulations.keys()
    same = same and inside == state.rows.keys()
    if not same or any(_size(found[key]) != _size(saved) for key, saved in state.simulations.items()):
        raise ValueError(f"The state was saved from an environment of another kind than {env}; fork this one.")
    for path, row in state.rows.items():
        parts[path].restore_state(None, row)
    for path, saved in state.values.items():
        for name, value in copy.deepcopy(saved).items():
            setattr(parts[path], name, value)
    for key, saved in state.simulations.items():
        _copy_data(saved, found[key])


def _saves_itself(part: Any) -> bool:
    """Whether it is a built-in environment that saves its states; a method of this name may be of another package."""
    return isinstance(part, GoalVectorEnv) and hasattr(part, "save_state")


def _parts(env: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The environment and every environment that is one of its attributes, with their paths."""
    yield path, env
    if _saves_itself(env):
        return
    for name, value in vars(env).items():
        if isinstance(value, gymnasium.Env | VectorEnv):
            yield from _parts(value, f"{path}.{name}")


def _simulations(env: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that are MuJoCo's data, or contain them as dm_control's do."""
    if _saves_itself(env):
        return
    for name, value in vars(env).items():
        if type(value).__name__ == "MjData" and type(value).__module__.startswith("mujoco"):
            yield name, value


def _copy_data(source: Any, target: Any = None) -> Any:
    """Copy MuJoCo's data, into a new object unless one is given."""
    import mujoco

    if target is None:
        target = mujoco.MjData(source.model)
    if hasattr(mujoco, "mj_copyData"):
        mujoco.mj_copyData(target, source.model, source)
    else:
        _copy_arrays(source, target)
    return target


def _copy_arrays(source: Any, target: Any) -> None:
    """Copy what steps depend on, and what is derived from it, with versions of MuJoCo that cannot copy data whole.

    Contacts and constraints are left out: a step begins by finding them.
    """
    import mujoco

    everything = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(source.model, everything))
    mujoco.mj_getState(source.model, source, state, everything)
    mujoco.mj_setState(source.model, target, state, everything)
    for name in dir(source):
        value = getattr(source, name)
        if isinstance(value, np.ndarray) and value.shape == getattr(target, name).shape:
            np.copyto(getattr(target, name), value)


def _size(data: Any) -> tuple[int, int, int, bytes]:
    """What two models must share for their data to be exchangeable."""
    return data.model.nq, data.model.nv, data.model.nbody, data.model.names


def _is_plain(value: Any) -> bool:
    """Whether an attribute is data of its own: not a view of MuJoCo's memory, not an object with a life."""
    if isinstance(value, np.ndarray):
        return value.dtype != object and (value.base is None or isinstance(value.base, np.ndarray))
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return type(value).__module__ == "builtins" and all(map(_is_plain, value))
    return isinstance(value, KEPT)
