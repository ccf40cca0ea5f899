"""Environments by name: registration with Gymnasium, and vector environments of any registered environment."""

import difflib
import importlib
import inspect
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorizeMode, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from butfor.envs.facts import BUILT_IN, facts_of

ENVS = {name: facts.id for name, facts in BUILT_IN.items()}  # short name -> Gymnasium id

# Short name -> module, prefix of its two classes, time limit, arguments.
_ENTRY_POINTS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "slide": ("slide", "Slide", 30, {}),
    "push": ("fetch", "Fetch", 50, {"task": "push"}),
    "pick-and-place": ("fetch", "Fetch", 50, {"task": "pick_and_place"}),
    "rot-table": ("rot_table", "RotTable", 50, {}),
}


def register_built_in() -> None:
    """Register the built-in environments with Gymnasium, unless they already are."""
    for name, (module, prefix, steps, kwargs) in _ENTRY_POINTS.items():
        if ENVS[name] not in gymnasium.registry:
            gymnasium.register(
                ENVS[name],
                entry_point=f"butfor.envs.{module}:{prefix}Env",
                vector_entry_point=f"butfor.envs.{module}:{prefix}VectorEnv",
                max_episode_steps=steps,
                kwargs=kwargs,
            )


def env_id(name: str) -> str:
    """Resolve a short name of a built-in world, or any registered Gymnasium id, to the Gymnasium id."""
    if name in ENVS:
        return ENVS[name]
    if name in gymnasium.registry:
        return name
    (module, _, id), lacking = str(name).rpartition(":"), ""
    if module:
        _import_worlds(name, module)
    else:  # the worlds that robotics people know by name
        try:
            gymnasium.register_envs(importlib.import_module("gymnasium_robotics"))
        except ImportError:
            lacking = "If it is one of gymnasium-robotics, install that: pip install 'butfor[fetch]'. "
    try:
        return gymnasium.spec(id).id
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        candidates = {known.lower(): known for known in [*gymnasium.registry, *ENVS]}
        close = difflib.get_close_matches(id.lower(), candidates, n=3)
        hint = f" Did you mean {' or '.join(repr(candidates[match]) for match in close)}?" if close else ""
        found = f"The module {module!r} was imported, but does not register it. " if module else ""
        raise ValueError(
            f"There is no world named {name!r}; the built-in worlds are {', '.join(ENVS)}, and any "
            f"registered Gymnasium id works too ('module:Name-v0' imports the module that registers it; "
            f"in Python, make_env=... gives train, resume, evaluate_run and watch one without an id). "
            f"{lacking}{found}{hint.lstrip()}".rstrip()
        ) from error


def _import_worlds(name: str, module: str) -> None:
    """Imports the module that registers a world; where that fails, the sentence says why."""
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a user's module raises
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ValueError(
                f"The world {name!r} needs the module {module!r}, but there is no {error.name!r} in this folder or "
                "among the installed packages; go to the folder that holds it, or add that to PYTHONPATH."
            ) from error
        text = " ".join(str(error).split()) or "no more is said."
        raise ValueError(
            f"The module {module!r} of the world {name!r} cannot be imported; it raised {type(error).__name__}: {text}"
        ) from error


def short_name(env: str) -> str:
    """Return the short name of a built-in environment given by either name, and any other name unchanged."""
    facts = facts_of(env)
    return env if facts is None else facts.name


def is_fetch_world(world: str) -> bool:
    """Use `facts_of` instead: this function goes."""
    facts = facts_of(world)
    return facts is not None and facts.drawing == "robot"


def make_vector_env(name: str, num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Make worlds that reset only when told to, by reset(options={"reset_mask": mask})."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ValueError(f"num_envs is {num_envs!r}; expected a whole number of worlds, 1 or more.")
    id = env_id(name)
    try:
        if _can_disable_autoreset(gymnasium.spec(id)):
            mode = VectorizeMode.VECTOR_ENTRY_POINT
            worlds = gymnasium.make_vec(id, num_envs, mode, autoreset_mode=AutoresetMode.DISABLED, **kwargs)
        else:
            vector_kwargs = {"autoreset_mode": AutoresetMode.DISABLED}
            worlds = gymnasium.make_vec(id, num_envs, VectorizeMode.SYNC, vector_kwargs, **kwargs)
    except MemoryError:
        raise
    except Exception as error:  # whatever a user's constructor raises
        refused = bool(kwargs) and isinstance(error, TypeError | gymnasium.error.Error)  # as of a render_mode
        if refused or id in ENVS.values():
            raise
        raise _not_made(id, error) from error
    if worlds.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED:
        worlds.close()
        raise ValueError(
            f"The vector environment of {id} did not disable its automatic reset (its mode is "
            f"{worlds.metadata.get('autoreset_mode')}); its metadata must show AutoresetMode.DISABLED."
        )
    return worlds


def _not_made(id: str, error: Exception) -> ValueError:
    """An error of a world's constructor, or of its entry point, as a sentence that says what to do."""
    text = " ".join(str(error).split()) or "no more is said."
    hint = (
        ". Where its constructor needs arguments, register it with kwargs={...}, or give make_env=... in Python."
        if isinstance(error, TypeError)
        else ""
    )
    entry = gymnasium.spec(id).entry_point
    made = f" (entry point {entry!r})" if isinstance(entry, str) else ""
    return ValueError(f"{id}{made} raised {type(error).__name__} when it was made: {text}{hint}")


def _can_disable_autoreset(spec: EnvSpec) -> bool:
    """Whether the world has a native vector environment with an autoreset_mode (CartPole's has none)."""
    if spec.vector_entry_point is None:
        return False
    entry_point = spec.vector_entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return "autoreset_mode" in inspect.signature(creator).parameters
