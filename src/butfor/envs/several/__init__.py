"""Environments with several objects that move each other, and exact labels of who moves whom.

`pucks.py` is the fast one: an agent and three pucks in a plane. `fetch_two.py` has two tasks of the Fetch robot with
two cubes. `edges.py` forks saved states of any of them: without an entity, with it elsewhere, after other actions.
"""

from butfor.envs.several.edges import World, action_effects, moved_effects, removal_effects

__all__ = ["World", "action_effects", "make_world", "moved_effects", "removal_effects"]


def make_world(env: str) -> World:
    """Make the simulator of a built-in environment with several objects: pucks, push-two or stack-two.

    Raises:
        ValueError: the environment has only one object.
    """
    if env == "pucks":
        from butfor.envs.several.pucks import PucksWorld

        return PucksWorld()
    if env in ("push-two", "stack-two"):
        from butfor.envs.several.fetch_two import FetchTwoWorld

        return FetchTwoWorld(env)
    raise ValueError(f"{env} does not have several objects; expected pucks, push-two or stack-two.")
