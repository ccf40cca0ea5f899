"""What users' data mean: arrays, observations in parts, entities in an observation, and the law of random actions.

Start with `entities.py` (`cube=3:6`) and `actions.py` (`ActionLaw`, how networks see an action). `arrays.py` checks
arrays where they enter the library, `observations.py` concatenates dictionaries.
"""

from butfor.spaces.actions import ActionLaw
from butfor.spaces.entities import Entities, entity_columns
from butfor.spaces.observations import choose_parts, flatten_parts

__all__ = ["ActionLaw", "Entities", "choose_parts", "entity_columns", "flatten_parts"]
