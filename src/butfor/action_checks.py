"""What may be wrong with actions: too many, never tried, or an `Influence` of other ones than the world's."""

import warnings

import torch
from torch import Tensor

from butfor.actions import ActionLaw

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
    """Warns, at the line of the caller's caller, if actions of the law were never tried in the data; whether it did.

    `unknown` is what became of what these actions would do.
    """
    if law.count:
        never = (torch.bincount(action.long(), minlength=law.count) == 0).nonzero().flatten().tolist()
        more = f" and {len(never) - 10} more" if len(never) > 10 else ""
        what = f"Discrete action(s) {never[:10]}{more} never occur"
    else:
        never = (action == action[0]).all(0).nonzero().flatten().tolist()
        what = f"Action column(s) {never} never vary"
    if law.count == 1:
        never, what = [0], "The action never varies"
    if never:
        warnings.warn(f"{what} in the data: what these would do {unknown}; collect varied ones.", stacklevel=3)
    return bool(never)


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
