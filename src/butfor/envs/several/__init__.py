"""Environments with several objects that move each other, and exact labels of who moves whom.

`pucks.py` is the fast one: an agent and three pucks in a plane. `fetch_two.py` has two tasks of the Fetch robot with
two cubes. `edges.py` forks saved states of any of them: without an entity, with it elsewhere, after other actions.
"""

from butfor.envs.several.edges import World, action_effects, moved_effects, removal_effects

__all__ = ["World", "action_effects", "moved_effects", "removal_effects"]
