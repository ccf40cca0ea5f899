"""Who moves whom in the steps of an episode: by removal in the simulator, and by the model of pairs."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.envs import EnvFacts
from butfor.envs.several import make_world, removal_effects
from butfor.influence.graph.edges import Graph
from butfor.influence.graph.pairs import GraphDynamics
from butfor.influence.influence import Influence
from butfor.scenes.scene import Body, Flags, Floats, SceneEpisode


def simulated_moves(
    facts: EnvFacts, bodies: Sequence[Body], states: Floats, actions: Floats
) -> dict[tuple[int, int], Flags] | None:
    """Who moves whom in each step [T], by removal in the simulator: edges that occur, of entities that are drawn.

    None if the environment has not several objects, so that the simulator is not asked.
    """
    if not facts.several:
        return None
    world = make_world(facts.name)
    found = removal_effects(world, states, actions) > world.tolerance  # NaN is not
    drawn = {entity: find_body(bodies, entity) for entity in world.entities}
    edges = {}
    for (i, source), (j, target) in permutations(enumerate(world.entities), 2):
        ends = drawn[source], drawn[target]
        if ends[0] is not None and ends[1] is not None and found[:, i, j].any():
            edges[ends[0], ends[1]] = found[:, i, j]
    return edges


def predicted_edges(influence: Influence | None, obs: Floats, action: NDArray[Any]) -> dict[tuple[str, str], Floats]:
    """Influence between the entities of a model of pairs [T], in nats, for the actions taken; {} of other models."""
    if influence is None or not isinstance(influence.model, GraphDynamics):
        return {}
    return entity_edges(influence.graph(obs, action))


def entity_edges(graph: Graph) -> dict[tuple[str, str], Floats]:
    """The edges [N] of a graph whose source is an entity, not the action."""
    return {edge: np.asarray(graph[edge]) for edge in graph.edges() if edge[0] in graph.targets}


def find_body(bodies: Sequence[Body], entity: str) -> int | None:
    """The place of the first body that is named after an entity."""
    return next((place for place, body in enumerate(bodies) if entity in body.name), None)


def places_of_entities(influence: Influence | None, facts: EnvFacts, bodies: Sequence[Body]) -> dict[str, int]:
    """The place of the body that is drawn for each entity of a model: its first column is a column of that body."""
    found = {}
    for name, columns in ({} if influence is None else influence.entities).items():
        for own, known in facts.entities.items():
            robot = facts.drawing == "robot" and own == "agent"
            place = find_body(bodies, "gripper" if robot else own)
            if columns[0] in known and place is not None:
                found[name] = place
    return found


def edges_notes(
    influence: Influence | None, episodes: Sequence[SceneEpisode], action: str = "for the actions taken"
) -> tuple[str, ...]:
    """What the edges of the model are, as a sentence below the player; none without edges."""
    if influence is None or not any(one.edges for one in episodes):
        return ()
    when = "in the step" if influence.horizon == 1 else f"within {influence.horizon} steps"
    return (f"By the model: the influence of one entity on another {when}, in nats, {action}.",)
