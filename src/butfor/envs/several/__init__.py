"""Environments with several objects that move each other, and exact labels of who moves whom.

`pucks.py` is the fast one: an agent and three pucks in a plane. `fetch_two.py` has two tasks of the Fetch robot with
two cubes. `edges.py` forks saved states of any of them: without an entity, with it elsewhere, after other actions.
`fetch_world.py` steps such states of the robot, also in the tasks with one object.
"""

from butfor.envs.several.edges import World, action_effects, moved_effects, removal_effects

__all__ = ["World", "action_effects", "make_world", "moved_effects", "removal_effects"]


def make_world(env: str) -> World:
    """Make the simulator of a built-in environment with its entities.

    Args:
        env: pucks, push-two or stack-two; or push, pick-and-place or fetch-slide, with gripper and object.

    Raises:
        ValueError: it is another environment.
    """
    if env == "pucks":
        from butfor.envs.several.pucks import PucksWorld

        return PucksWorld()
    from butfor.envs.several.fetch_world import FetchWorld

    return FetchWorld(env)
