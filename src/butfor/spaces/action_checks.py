"""What may be wrong with actions: too many, never tried, or an `Influence` of other ones than the world's."""

import warnings

import torch
from torch import Tensor

from butfor.spaces.actions import ActionLaw

FEW = 20  # rows of a discrete action, if that is less than a fifth of its share: hardly known
MOST_ACTIONS = 1_000  # discrete ones: each is tried in each state
GUESSED = "was never seen, so that their scores are a guess"  # by a model of what is new, not of influence


def check_count(law: ActionLaw) -> ActionLaw:
    """The same law, unless it has more discrete actions than can be compared."""
    if law.count > MOST_ACTIONS:
        raise ValueError(
            f"There are {law.count:,} discrete actions, 0 to {law.count - 1:,}; at most {MOST_ACTIONS:,} can be "
            "compared, since each is tried in each state. Give continuous actions as floats [N, A], or number the "
            "discrete ones without gaps from 0 on."
        )
    return law


def warn_untried(law: ActionLaw, action: Tensor, unknown: str = "was never seen and counts for nothing") -> bool:
    """Warns, at the line of the caller's caller, of actions of the law that the data never, or hardly, try; whether so.

    `unknown` is what became of what these actions would do.
    """
    rare: list[int] = []
    if law.count:
        counts = torch.bincount(action.long(), minlength=law.count)
        never, rare = _numbers(counts == 0), _numbers((counts > 0) & (counts < min(FEW, len(action) / law.count / 5)))
        what = f"Discrete action(s) {_first_of(never)} never occur"
        if rare:
            words = f"Discrete action(s) {_first_of(rare)} occur in fewer than {FEW} of {len(action):,} rows each"
            warnings.warn(f"{words}: what these do is hardly known, and may look like influence.", stacklevel=3)
    else:
        never = _numbers((action == action[0]).all(0))
        what = f"Action column(s) {never} never vary"
    if law.count == 1:
        never, what = [0], "The action never varies"
    if never:
        warnings.warn(f"{what} in the data: what these would do {unknown}; collect varied ones.", stacklevel=3)
    return bool(never or rare)


def _numbers(chosen: Tensor) -> list[int]:
    return [int(number) for number in chosen.nonzero().flatten()]


def _first_of(numbers: list[int]) -> str:
    return f"{numbers[:10]}{f' and {len(numbers) - 10} more' if len(numbers) > 10 else ''}"


def other_actions(law: ActionLaw, world: ActionLaw) -> str | None:
    """A sentence if an `Influence` with this law is not for the world's actions; a box within the world's is.

    Without an action space the law is the smallest box around the data, which is a little smaller than the world's.
    """
    if (law.count, law.size) == (world.count, world.size):
        sides = zip(law.low, law.high, world.low, world.high, strict=True)
        if all(max(c - a, b - d) <= 1e-6 * max(abs(c), abs(d)) for a, b, c, d in sides):  # but for rounding
            return None
    return f"The Influence is for other actions, {_in_words(law)}, than the world's, {_in_words(world)}."


def _in_words(law: ActionLaw) -> str:
    if law.count:
        return f"{law.count} discrete ones"
    low, high = (", ".join(f"{bound:g}" for bound in side) for side in (law.low, law.high))
    return f"from [{low}] to [{high}]"
