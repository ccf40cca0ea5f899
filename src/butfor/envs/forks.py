"""Save the complete state of an environment and go back to it: `fork` and `restore`.

They work for every environment of Gymnasium that MuJoCo simulates, with its wrappers, and for the built-in ones. The
same actions then have the same outcomes, to the bit, so that other actions show what would have happened otherwise.
"""

import contextlib
import copy
import datetime
import enum
import functools
import inspect
import io
import pathlib
import types
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import PassiveEnvChecker

from butfor.envs.vector import GoalVectorEnv

SCALARS = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice, enum.Enum, pathlib.PurePath)
TIMES = (datetime.date, datetime.time, datetime.timedelta)
RANDOM = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
KEPT = (*SCALARS, *TIMES, *RANDOM, bytearray, np.generic, np.dtype)
# What steps of an environment do not change: references, functions, files that can only grow.
UNCHANGED = (gymnasium.Env, VectorEnv, gymnasium.Space, EnvSpec, functools.partial, weakref.ref, io.IOBase)
ARGUMENTS = ("_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs")  # of constructors, kept by Gymnasium
SHOWING = ("render", "viewer", "logger", "writer", "device", "dtype")  # in names of classes that outcomes do not need
DRAWING = ("pygame", "glfw", "OpenGL", "matplotlib", "mujoco")  # packages whose objects are no state of a wrapper
MOST_OBJECTS = 1000  # more in one attribute are a description, such as that of a model, and not a state
# What belongs to the files of a model and is too large to be saved at each fork.
FILES_OF_MODEL = ("mesh", "tex", "skin", "bvh", "oct", "text", "tuple", "paths", "plugin")
STRUCTURE_OF_MODEL = ("n", "B_", "D_", "M_", "map", "key", "tree")  # sizes, names, the order of joints, key frames
PLACES_IN_MODEL = ("adr", "num", "rownnz", "colind")  # ends of names of arrays that say where others are


@dataclass(frozen=True)
class Fork:
    """A saved state of an environment; see `fork`.

    Attributes:
        kinds: names of the classes of the environment, of its wrappers and of environments inside it, by their path.
        names: names of all their attributes, by path.
        values: their attributes that were saved, by path.
        simulations: copies of MuJoCo's data, by path and attribute.
        models: arrays and options of MuJoCo's models, by path and attribute of the data.
        rows: states of built-in environments, by path.
    """

    kinds: dict[str, str]
    names: dict[str, frozenset[str]]
    values: dict[str, dict[str, Any]]
    simulations: dict[tuple[str, str], Any]
    models: dict[tuple[str, str], dict[str, Any]]
    rows: dict[str, Any]


def fork(env: Any) -> Fork:
    """Save the complete state of an environment.

    MuJoCo's data are copied whole: positions, velocities, actuators, mocap bodies, warm start, time, and everything
    derived, because some environments start a step from positions that are one substep old. So are the numbers of the
    model (positions, sizes, masses, friction, options), which some environments change at a reset. Its meshes and
    textures are not.

    Of the environment and its wrappers, the attributes are saved that consist of numbers, texts, arrays, random
    generators, containers of them, and objects of them such as running means: goals, elapsed steps, stacked frames.
    Spaces are not part of the state, so `action_space.sample()` goes on to other actions after `restore`. What a
    function remembers by itself is not saved.

    Args:
        env: an environment with or without wrappers, or a `SyncVectorEnv` of them, after a reset.

    Returns:
        The state, which can be restored any number of times, also into another environment of the same kind.

    Raises:
        TypeError: no part of the environment is simulated by MuJoCo, and it is not a built-in one.
        ValueError: a wrapper has an attribute that may change and cannot be saved.
    """
    parts = dict(_parts(env))
    rows = {path: part.save_state() for path, part in parts.items() if _saves_itself(part)}
    others = {path: part for path, part in parts.items() if path not in rows}
    found = _simulations(others)
    if not (found or rows or any(isinstance(part, GoalVectorEnv) for part in parts.values())):
        raise TypeError(_why_not(env))
    memo: dict[int, Any] = {}  # shared, so that what two parts share is one object in the copy, too
    return Fork(
        kinds=_kinds(parts),
        names={path: frozenset(vars(part)) for path, part in others.items()},
        values={path: _save_values(part, memo) for path, part in others.items()},
        simulations={key: _copy_data(data) for key, data in found.items()},
        models={key: _save_model(data.model) for key, data in found.items()},
        rows=rows,
    )


def restore(env: Any, state: Fork) -> None:
    """Put an environment back into a saved state; the same actions then have the same outcomes.

    Args:
        env: the environment that was forked, or another one of the same kind.
        state: of `fork`.

    Raises:
        ValueError: the state is of another kind of environment.
    """
    parts = dict(_parts(env))
    found = _simulations({path: part for path, part in parts.items() if path in state.values})
    same = _kinds(parts) == state.kinds and found.keys() == state.simulations.keys()
    if not same or any(not _fits(found[key].model, state, key) for key in found):
        raise ValueError(f"The state was saved from an environment of another kind than {env}; fork this one.")
    for path, row in state.rows.items():
        parts[path].restore_state(None, row)
    _restore_values(parts, state)
    for key, data in state.simulations.items():
        _restore_model(found[key].model, state.models[key])
        _copy_data(data, found[key])


def _why_not(env: Any) -> str:
    """Why the state of an environment cannot be saved, and what to do."""
    if isinstance(getattr(env, "unwrapped", env), AsyncVectorEnv):
        return f"{env} has its environments in other processes, where they cannot be saved; use a SyncVectorEnv."
    return f"{env} is neither simulated by MuJoCo nor built-in, so its state cannot be saved."


def _kinds(parts: dict[str, Any]) -> dict[str, str]:
    return {path: type(part).__qualname__ for path, part in parts.items()}


def _save_values(part: Any, memo: dict[int, Any]) -> dict[str, Any]:
    """Copy the attributes of an environment or wrapper that make its state."""
    if isinstance(part, gymnasium.Env | VectorEnv) and getattr(part, "_np_random", part) is None:
        _ = part.np_random  # Gymnasium makes it when it is first used, which would be after the fork
    values = {}
    for name, value in vars(part).items():
        if _is_plain(value):
            with contextlib.suppress(Exception):  # objects refuse to be copied in many ways
                values[name] = copy.deepcopy(value, memo)
                continue
        if _is_wrapper(part) and name not in ARGUMENTS and not _is_harmless(value):
            raise ValueError(
                f"{type(part).__name__}.{name} is a {type(value).__module__}.{type(value).__qualname__}, which may "
                "change and cannot be saved. Keep it as numbers, arrays or containers of them, or fork the environment "
                "without this wrapper."
            )
    return values


def _restore_values(parts: dict[str, Any], state: Fork) -> None:
    """Set attributes to copies of their saved values, and remove those that were made later.

    Objects stay the same objects, because functions and other objects may hold them, too.
    """
    matches: dict[int, tuple[Any, Any]] = {}  # from the id of a saved object: itself, and the one that becomes it
    used: set[int] = set()  # ids of those
    for path, saved in state.values.items():
        _match(saved, vars(parts[path]), matches, used)
    memo = {key: current for key, (_, current) in matches.items()}
    values = copy.deepcopy(state.values, memo)
    attributes = [(current, copy.deepcopy(vars(saved), memo)) for saved, current in matches.values()]
    for current, given in attributes:
        vars(current).clear()
        vars(current).update(given)
    for path, given in values.items():
        part = parts[path]
        for name in vars(part).keys() - state.names[path]:
            if _is_plain(vars(part)[name]):
                delattr(part, name)
        for name, value in given.items():
            setattr(part, name, value)


def _match(saved: Any, current: Any, matches: dict[int, tuple[Any, Any]], used: set[int]) -> None:
    """Find the present object in the place of each saved one; no two saved ones get the same."""
    if isinstance(saved, KEPT) or type(saved) is not type(current) or id(saved) in matches:
        return
    if isinstance(saved, dict):
        pairs = [(value, current[key]) for key, value in saved.items() if key in current]
    elif isinstance(saved, list | tuple | deque):
        pairs = list(zip(saved, current, strict=False))
    elif _is_simple_object(saved) and id(current) not in used:
        matches[id(saved)] = saved, current
        used.add(id(current))
        pairs = [(value, vars(current).get(name)) for name, value in vars(saved).items()]
    else:
        return
    for one, other in pairs:
        _match(one, other, matches, used)


def _is_simple_object(value: Any) -> bool:
    """Whether its attributes are all that an object consists of, and setting them has no other effects."""
    kind = type(value)
    containers = (dict, list, tuple, set, frozenset, deque, np.ndarray)
    if isinstance(value, (*KEPT, *containers)) or not hasattr(value, "__dict__"):
        return False
    usual = all(getattr(kind, name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__", "__setattr__"))
    return usual and not any(hasattr(kind, name) for name in ("__slots__", "__deepcopy__", "__setstate__"))


def _is_wrapper(part: Any) -> bool:
    """Whether it only wraps an environment, so that everything it remembers is known; the checker changes nothing."""
    return isinstance(part, gymnasium.Wrapper | VectorWrapper) and not isinstance(part, PassiveEnvChecker)


def _saves_itself(part: Any) -> bool:
    """Whether it is a built-in environment that saves its states; a method of this name may be of another package."""
    return isinstance(part, GoalVectorEnv) and hasattr(part, "save_state")


def _parts(env: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """The environment and every environment in its attributes, alone or in a list, with their paths."""
    seen = set() if seen is None else seen
    if id(env) in seen:
        return
    seen.add(id(env))
    yield path, env
    if _saves_itself(env):
        return
    for name, value in vars(env).items():
        several = isinstance(value, list | tuple)
        for place, one in enumerate(value if several else [value]):
            if isinstance(one, gymnasium.Env | VectorEnv):
                yield from _parts(one, f"{path}.{name}[{place}]" if several else f"{path}.{name}", seen)


def _simulations(parts: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """MuJoCo's data among the attributes of environments, by path and attribute."""
    attributes = {(path, name): value for path, part in parts.items() for name, value in vars(part).items()}
    kinds = {key: type(value) for key, value in attributes.items()}
    found = [key for key, kind in kinds.items() if kind.__name__ == "MjData" and kind.__module__.startswith("mujoco")]
    return {key: attributes[key] for key in found}


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


@functools.cache
def _model_names(kind: Any) -> tuple[str, ...]:
    """The attributes of MuJoCo's class of models that may be numbers which an environment changes."""
    names = [name for name in dir(kind) if not name.startswith(("_", *FILES_OF_MODEL, *STRUCTURE_OF_MODEL))]
    return tuple(name for name in names if not name.endswith(PLACES_IN_MODEL) and not callable(getattr(kind, name)))


def _save_model(model: Any) -> dict[str, Any]:
    """Copy the arrays of a model, without its files, and its options such as gravity."""
    arrays = {name: getattr(model, name) for name in _model_names(model.__class__)}
    saved = {name: value.copy() for name, value in arrays.items() if _is_written(value)}
    options = {name: getattr(model.opt, name) for name in dir(model.opt) if not name.startswith("_")}
    saved["opt"] = {
        name: np.array(value) for name, value in options.items() if isinstance(value, int | float | np.ndarray)
    }
    return saved


def _is_written(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.size > 0 and value.flags.writeable


def _restore_model(model: Any, saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        if name != "opt":
            np.copyto(getattr(model, name), value)
    for name, value in saved["opt"].items():
        setattr(model.opt, name, value if value.ndim else value.item())


def _fits(model: Any, state: Fork, key: tuple[str, str]) -> bool:
    """Whether a model has the names and sizes of a saved one."""
    saved = state.models[key]
    same = model.names == state.simulations[key].model.names and model.nv == state.simulations[key].model.nv
    return same and all(getattr(model, name).shape == value.shape for name, value in saved.items() if name != "opt")


def _is_plain(value: Any) -> bool:
    """Whether an attribute is data of its own: not a view of MuJoCo's memory, not an object with a life."""
    open_values = [value]
    seen = set()
    objects = 0
    while open_values:
        one = open_values.pop()
        if isinstance(one, KEPT) or id(one) in seen:
            continue
        seen.add(id(one))
        contents = _contents(one)
        objects += not isinstance(one, dict | list | tuple | set | frozenset | deque | np.ndarray)
        if contents is None or objects > MOST_OBJECTS:
            return False
        open_values.extend(contents)
    return True


def _contents(value: Any) -> list[Any] | None:
    """What a container or object consists of; None if a copy would not be complete or have a life of its own."""
    if isinstance(value, np.ndarray):
        owner = _owner(value)
        if not (owner is None or isinstance(owner, bytes) or _is_tensor(owner)):
            return None
        return list(value.flat) if value.dtype == object else []
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value)
    if _is_tensor(value):
        return None if value.requires_grad else []
    kind = type(value)
    lives = any(hasattr(kind, name) for name in ("__del__", "close", "__next__"))
    outside = _shows(kind) or isinstance(value, (type, types.ModuleType, *UNCHANGED)) or inspect.isroutine(value)
    if lives or outside or kind.__name__ == "MujocoModelNames" or not hasattr(value, "__dict__"):
        return None
    state = object.__getstate__(value)  # attributes, in a tuple with the slots if the class has any
    return [part for part in (state if isinstance(state, tuple) else (state,)) if part is not None]


def _is_harmless(value: Any) -> bool:
    """Whether the outcomes of steps cannot change by it, so that it need not be saved."""
    if isinstance(value, np.ndarray):  # a view of MuJoCo's memory, which is restored there
        owner = _owner(value)
        return type(owner).__name__ == "PyCapsule" or type(owner).__module__.startswith("mujoco")
    if isinstance(value, dict):
        return all(map(_is_harmless, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_harmless, value))
    if inspect.isroutine(value):
        owner = getattr(value, "__self__", None)
        return owner is None or _is_harmless(owner)
    return _shows(type(value)) or isinstance(value, (type, types.ModuleType, np.ufunc, *UNCHANGED))


def _shows(kind: type) -> bool:
    """Whether objects of a class draw, write a log, or name a device, which outcomes do not depend on."""
    return any(word in kind.__name__.lower() for word in SHOWING) or kind.__module__.split(".")[0] in DRAWING


def _owner(array: Any) -> Any:
    """What owns the memory of an array, if not NumPy."""
    owner = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor of PyTorch, which need not be imported for that."""
    return any(kind.__name__ == "Tensor" and kind.__module__ == "torch" for kind in type(value).__mro__)
