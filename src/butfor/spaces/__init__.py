"""What users' data mean: arrays, observations in parts, entities in an observation, and the law of random actions.

Start with `entities.py` (`cube=3:6`) and `actions.py` (`ActionLaw`, how networks see an action). `arrays.py` checks
arrays where they enter the library, `observations.py` concatenates dictionaries, `mirrors.py` describes symmetries.
"""

from typing import TYPE_CHECKING, Any

from butfor.spaces.entities import Entities, entity_columns
from butfor.spaces.mirrors import Mirror
from butfor.spaces.observations import choose_parts, flatten_parts

if TYPE_CHECKING:
    from butfor.spaces.actions import ActionLaw

__all__ = ["ActionLaw", "Entities", "Mirror", "choose_parts", "entity_columns", "flatten_parts"]


def __getattr__(name: str) -> Any:
    """Load `ActionLaw` on first use: it imports torch, which reports must not; they read facts of environments."""
    if name != "ActionLaw":
        raise AttributeError(f"module 'butfor.spaces' has no attribute {name!r}")
    from butfor.spaces.actions import ActionLaw

    return ActionLaw
