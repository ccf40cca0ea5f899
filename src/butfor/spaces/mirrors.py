"""Mirrors: planes in which an environment may be reflected, and along whose normal it may often be moved."""

from collections.abc import Iterable
from dataclasses import dataclass

from butfor.runs.config import check_finite

Columns = tuple[int, ...]


@dataclass(frozen=True)
class Mirror:
    """How a reflection changes observation, goal and action; what is not named stays as it is.

    A mirror claims that a reflected transition obeys the same laws. Training trusts this.
    """

    places: Columns
    """columns of the observation that become 2 x middle - value: positions along the mirror's normal"""
    goal_places: Columns
    """the same of the goal"""
    action_signs: Columns
    """columns of the action that change their sign"""
    signs: Columns = ()
    """columns of the observation that change their sign: velocities and differences along the normal, and rotations
    about the two axes within the plane"""
    swapped: tuple[tuple[int, int], ...] = ()
    """pairs of columns of the observation that change places, such as a left and a right finger"""
    middle: float = 0.0
    """where the mirror stands"""
    shift: bool = True
    """whether the laws also stay the same if everything is moved along the normal; not between walls or on a slope"""
    reflect: bool = True
    """whether samples are seen in it; if not, they are only moved along its normal"""

    def __post_init__(self) -> None:
        check_finite(self)
        if not (self.shift or self.reflect):
            raise ValueError("Mirror.shift and reflect are both False; such a mirror has no effect. Leave it out.")


def check_mirrors(mirrors: Iterable[Mirror], sizes: tuple[int, int, int], name: str) -> tuple[Mirror, ...]:
    """Refuse mirrors with columns that observations, actions and goals of these sizes do not have."""
    checked = tuple(mirrors)
    obs, action, goal = sizes
    for mirror in checked:
        pairs = tuple(column for pair in mirror.swapped for column in pair)
        limits = {"places": obs, "signs": obs, "goal_places": goal, "action_signs": action}
        named = [(field, getattr(mirror, field), size) for field, size in limits.items()]
        for field, columns, size in [*named, ("swapped", pairs, obs)]:
            wrong = [column for column in columns if not 0 <= column < size]
            if wrong or len(set(columns)) < len(columns):
                raise ValueError(
                    f"{field} of a mirror of {name} is {columns}; expected different columns from 0 to {size - 1}."
                )
        if both := set(mirror.places) & set(mirror.signs):
            raise ValueError(f"A mirror of {name} has the columns {sorted(both)} in places and in signs; give one.")
        for pair in mirror.swapped:  # else a reflection seen in the mirror again is not what it was
            if any(len(set(pair) & set(columns)) == 1 for columns in (mirror.places, mirror.signs)):
                raise ValueError(
                    f"A mirror of {name} swaps the columns {pair}; both or neither must be in places and signs."
                )
    return checked
