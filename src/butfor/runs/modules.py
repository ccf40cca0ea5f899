"""Whether the module that an environment "module:id" names may be imported, which runs its code."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed: ContextVar[bool] = ContextVar("module_imports", default=True)


@contextmanager
def module_imports(allowed: bool) -> Iterator[None]:
    """While active, allow or refuse such imports.

    The command line refuses them where the name comes from a run or a file, which somebody else may have made.
    """
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def may_import() -> bool:
    """Whether modules may be imported now."""
    return _allowed.get()
