"""Influence over several steps: the model of pairs is rolled out with and without the source, all else being equal.

    within k steps = mean over continuations of the largest, over steps h = 1 .. k, of
                     KL( outcome of each alternative after h steps || mixture over the alternatives )

The alternatives are K actions now, or the entity present and absent. From the second step on all alternatives continue
with the same actions (or each as a given policy reacts) and with the same random numbers, which decide whether a touch
of a given probability happens. So they differ only by what the source brings about, at once or through other entities.
An outcome is a Gaussian around the rolled out state whose variance grows with every step. The KL is the variational
one, as within one step: it is log 2 for two outcomes that are far apart. Columns that belong to no entity keep their
values.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from butfor.influence.gaussian import kl_to_mixture
from butfor.influence.graph.pairs import GraphDynamics

CHUNK = 2**16  # rows that are rolled out at once
Policy = Callable[[Tensor], Tensor]
"""Encoded actions [B, A] in states [B, D] in standard units."""


def draw_seed(generator: torch.Generator) -> int:
    """Draw the seed of `score_horizon`."""
    return int(torch.randint(2**62, (1,), generator=generator, device=generator.device))


@torch.no_grad()
def score_horizon(
    model: GraphDynamics,
    obs: Tensor,
    first: Tensor,
    following: Tensor | Policy,
    horizon: int,
    seed: int,
    source: int | None = None,
    continuations: int = 1,
) -> Tensor:
    """Influence within `horizon` steps on every entity: [N, E].

    Args:
        model: the model of pairs.
        obs: states [R, N, D] in standard units.
        first: the first actions [N, K, A]; all alternatives if the source is the action, else K draws to average over.
        following: how the agent goes on, encoded actions [N, C, horizon - 1, A] or a policy.
        horizon: number of steps.
        seed: of the numbers that decide whether touches happen; those of a step are the same with any horizon.
        source: the place of an entity; None for the action.
        continuations: how often a policy is followed, with other touches.
    """
    count, sequences = first.shape[1], continuations if callable(following) else following.shape[1]
    size = max(1, CHUNK // (model.replicas * count * sequences))
    parts = []
    for start in range(0, max(1, obs.shape[1]), size):
        part = slice(start, start + size)
        states = obs[:, part]
        rows = states.shape[1]
        now = first[part].unsqueeze(1).expand(-1, sequences, -1, -1).flatten(0, 2)
        if callable(following):
            later: Sequence[Tensor | Policy] = [following] * (horizon - 1)
        else:
            by_row = following[part].unsqueeze(2).expand(-1, -1, count, -1, -1).flatten(0, 2)  # [n C K, k - 1, A]
            later = by_row.unbind(1)[: horizon - 1]
        random = torch.Generator(obs.device).manual_seed(seed + start)
        shape = (len(model.names), rows, sequences, 1)
        chance = torch.stack([torch.rand(shape, generator=random, device=obs.device) for _ in range(horizon)])
        chance = chance.expand(-1, -1, -1, -1, count).flatten(2)  # the same for all alternatives
        begin = states[:, :, None, None].expand(-1, -1, sequences, count, -1).flatten(1, 3)
        groups = [None] if source is None else [None, source]
        outcomes = [roll_out(model, begin, [now, *later], chance, absent) for absent in groups]
        largest = obs.new_zeros(model.replicas, rows, sequences, len(model.names))
        for steps in zip(*outcomes, strict=True):
            found = [(mean.unflatten(1, (rows, sequences, count)), variance.unflatten(1, (rows, sequences, count)))
                     for mean, variance in steps]  # fmt: skip
            mean, variance = (
                found[0] if source is None else [torch.stack(pair, -2) for pair in zip(*found, strict=True)]
            )
            by_entity = [kl_to_mixture(mean[..., dims], variance[..., dims], form="variational") for dims in model.dims]
            score = torch.stack(by_entity, -1)  # [R, n, C, K, E], or [R, n, C, K, 2, E]
            score = score.mean(3) if source is None else score[..., 0, :].mean(3)
            largest = torch.maximum(largest, score)
        parts.append(largest.mean((0, 2)))
    return torch.cat(parts).clamp_min(0)


def roll_out(
    model: GraphDynamics,
    obs: Tensor,
    actions: Sequence[Tensor | Policy],
    chance: Tensor,
    absent: int | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance [R, B, d] of the scaled change since the beginning, after each of the actions [B, A].

    A policy in the place of actions chooses them. `chance` [steps, E, B] are uniform numbers; an entity is touched
    where its probability exceeds them.
    """
    state = obs
    variance = obs.new_zeros(*obs.shape[:2], model.target_size)
    change = torch.zeros_like(variance)
    found = []
    for step, action in enumerate(actions):
        chosen = action(state.flatten(0, 1)).unflatten(0, state.shape[:2]) if callable(action) else action
        taken = chosen.expand(model.replicas, -1, -1)
        moved = torch.zeros_like(change)
        # an absent entity is not taken out of what it is touched by: what becomes of it does not matter
        for target, pairs in enumerate(model.pair_touches(state, taken, absent)):
            dims = model.dims[target]
            touch = pairs.combine()
            hit = (touch.log_odds.sigmoid() > chance[step, target]).unsqueeze(-1)
            moved[..., dims] = torch.where(hit, touch.mean, touch.free_mean)
            variance[..., dims] += torch.where(hit, touch.variance, touch.free_variance)
        change = change + moved
        state = _moved(model, obs, change)
        found.append((change, variance.clone()))
    return found


def _moved(model: GraphDynamics, obs: Tensor, change: Tensor) -> Tensor:
    """States in standard units after a scaled change of the entities."""
    spread = model.units[1]
    state = obs.clone()
    for dims, columns in zip(model.dims, model.columns, strict=True):
        state[..., columns] += change[..., dims] / model.change_scale[dims] / spread[columns]
    return state
