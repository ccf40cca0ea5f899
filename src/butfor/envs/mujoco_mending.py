"""From mujoco 3.12 on, `mjtJoint.X == np.int32(...)` is False, and gymnasium-robotics 1.4.2 stumbles over it."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np


def mend(mujoco: ModuleType) -> None:
    """Let a joint type equal any whole number with its value; what is foreign is left to the other side."""

    def equal(self: Any, other: Any) -> Any:
        if isinstance(other, int | np.integer | mujoco.mjtJoint):
            return int(self) == int(other)
        return NotImplemented

    def unequal(self: Any, other: Any) -> Any:
        result = equal(self, other)
        return result if result is NotImplemented else not result

    mujoco.mjtJoint.__eq__, mujoco.mjtJoint.__ne__ = equal, unequal


def mend_when_imported() -> None:
    """Mend mujoco now if it is loaded, else when somebody imports it: a world without mujoco never pays for it."""
    if loaded := sys.modules.get("mujoco"):
        mend(loaded)
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


class _Watcher(MetaPathFinder):
    """Finds mujoco as the other finders do, and adds the mending to its execution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "mujoco":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = next((spec for finder in others if (spec := finder.find_spec(fullname, path, target))), None)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                mend(module)

            found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found
