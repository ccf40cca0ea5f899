"""Environments by name: registration with Gymnasium, and vector environments of any registered environment."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, VectorizeMode, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from butfor.envs.facts import BUILT_IN, facts_of
from butfor.runs.modules import may_import

ENVS = {name: facts.id for name, facts in BUILT_IN.items()}  # short name -> Gymnasium id


def register_built_in() -> None:
    """Register the built-in environments with Gymnasium, unless they already are."""
    for facts in BUILT_IN.values():
        if facts.id not in gymnasium.registry:
            gymnasium.register(
                facts.id,
                entry_point=f"{facts.entry_point}Env",
                vector_entry_point=f"{facts.entry_point}VectorEnv",
                max_episode_steps=facts.max_episode_steps,
                kwargs=dict(facts.arguments),
            )


def env_id(name: str) -> str:
    """Resolve the name of an environment to its Gymnasium id.

    Args:
        name: short name of a built-in environment, a registered Gymnasium id, or "module:id" to import the module
            that registers it first. Ids of gymnasium-robotics need no module.

    Raises:
        ValueError: no such environment; the message has the closest names.
    """
    if name in ENVS:
        return ENVS[name]
    if name in gymnasium.registry:
        return name
    module, _, id = name.rpartition(":")
    hint = ""
    if module:
        _import_module(name, module)
        hint = f" The module {module!r} was imported, but does not register it."
    else:
        _silence_gymnasium_robotics()
        try:
            gymnasium.register_envs(importlib.import_module("gymnasium_robotics"))
        except ImportError:
            hint = " If it is from gymnasium-robotics, install that with: pip install 'butfor[fetch]'."
    try:
        return gymnasium.spec(id).id
    except (gymnasium.error.Error, ImportError) as error:
        candidates = {known.lower(): known for known in [*gymnasium.registry, *ENVS]}
        close = difflib.get_close_matches(id.lower(), candidates, n=3)
        if close:
            hint += f" Did you mean {' or '.join(repr(candidates[match]) for match in close)}?"
        raise ValueError(
            f"There is no environment named {name!r}. Expected a built-in environment ({', '.join(ENVS)}), a "
            "registered Gymnasium id, or 'module:id' to import the module that registers it; in Python, train, resume, "
            f"evaluate_run and watch also accept a function make_env=....{hint}"
        ) from error


def _import_module(name: str, module: str) -> None:
    """Import the module that registers an environment."""
    if not may_import() and module not in sys.modules:
        raise ValueError(
            f"The environment {name!r} needs the module {module!r} of this folder or of an installed package; "
            "importing it runs its code. If you trust it, add --import-module."
        )
    try:
        with _without_output() if module == "panda_gym" else nullcontext():
            importlib.import_module(module)
    except Exception as error:  # a user's module can raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ValueError(
                f"The environment {name!r} needs the module {module!r}, but there is no {error.name!r} in this folder "
                "or among the installed packages; run in the folder that contains it, or add that to PYTHONPATH."
            ) from error
        raise ValueError(f"The module {module!r} of {name!r} cannot be imported: {_describe(error)}") from error


def short_name(env: str) -> str:
    """Return the short name of a built-in environment given by either name, and any other name unchanged."""
    facts = facts_of(env)
    return env if facts is None else facts.name


def make_vector_env(name: str, num_envs: int, labels: Sequence[str] = (), **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Make a vector environment that resets only on request, with `reset(options={"reset_mask": mask})`.

    Args:
        name: as in `env_id`.
        num_envs: number of environments.
        labels: influence labels that each step reports in `info`, "exact" as `label_exact` and "contact" as `contact`;
            for built-in environments.
        kwargs: further arguments of the environment.

    Raises:
        ValueError: no such environment, or it cannot be made.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; expected at least 1.")
    id = env_id(name)
    if labels:
        if facts_of(id) is None:
            raise ValueError(f"labels is {labels!r}, but {id} is not a built-in environment; only those have labels.")
        kwargs["labels"] = labels
    spec = gymnasium.spec(id)
    if str(spec.entry_point).startswith("gymnasium_robotics."):
        fix_gymnasium_robotics()
    chatty = str(spec.entry_point).startswith("panda_gym.")
    try:
        disabled: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}
        with _without_output() if chatty else nullcontext():
            if _can_disable_autoreset(spec):
                env = gymnasium.make_vec(id, num_envs, VectorizeMode.VECTOR_ENTRY_POINT, **disabled, **kwargs)
            else:
                env = gymnasium.make_vec(id, num_envs, VectorizeMode.SYNC, disabled, **kwargs)
    except Exception as error:  # a user's constructor can raise anything
        refused = bool(kwargs) and isinstance(error, TypeError | gymnasium.error.Error)  # such as a render_mode
        if refused or isinstance(error, MemoryError) or id in ENVS.values():
            raise
        entry = f" (entry point {spec.entry_point!r})" if isinstance(spec.entry_point, str) else ""
        advice = ". If it needs arguments, register it with kwargs={...}, or give make_env=... in Python."
        hint = advice if isinstance(error, TypeError) else ""
        raise ValueError(f"{id}{entry} cannot be made: {_describe(error)}{hint}") from error
    if (mode := env.metadata.get("autoreset_mode")) is not AutoresetMode.DISABLED:
        env.close()
        raise ValueError(f"{id} has the autoreset_mode {mode} in its metadata, although it was made with DISABLED.")
    return env


@contextmanager
def _without_output() -> Iterator[None]:
    """Hide what compiled code prints: PyBullet prints three lines for each environment, before any answer."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def fix_gymnasium_robotics() -> None:
    """Let gymnasium-robotics 1.4.2 work with mujoco 3.12 and later; call it before `gymnasium.make`.

    Since 3.12, `mjtJoint.X == np.int32(...)` is False, and gymnasium-robotics fails on it. `make_vector_env` calls
    this function itself, and `import butfor.envs` does if mujoco is loaded already.
    """
    import mujoco

    _silence_gymnasium_robotics()

    def equal(self: Any, other: Any) -> Any:
        if isinstance(other, int | np.integer | mujoco.mjtJoint):
            return int(self) == int(other)
        return NotImplemented

    def unequal(self: Any, other: Any) -> Any:
        result = equal(self, other)
        return result if result is NotImplemented else not result

    mujoco.mjtJoint.__eq__ = equal
    mujoco.mjtJoint.__ne__ = unequal


def _silence_gymnasium_robotics() -> None:
    """Drop the notice that gymnasium-robotics prints when it is imported: it is about environments of old versions."""
    with suppress(ImportError):
        importlib.import_module("farama_notifications").notifications.pop("gymnasium_robotics", None)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or '(no message)'}"


def _can_disable_autoreset(spec: EnvSpec) -> bool:
    """Whether the native vector environment, if there is one, has an autoreset_mode (CartPole's has none)."""
    entry_point: Any = spec.vector_entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return creator is not None and "autoreset_mode" in inspect.signature(creator).parameters
