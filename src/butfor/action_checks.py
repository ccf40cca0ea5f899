"""What may be wrong with actions: an `Influence` of other ones than the world's."""

from butfor.actions import ActionLaw


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
