"""A user's own prediction of the next observation, to which a network adds what is missing.

    p(s'_j | s, a) = N(prior_j(s, a) + mean(s, a), variance(s, a))

The network learns the residual in units of its own size. Scores, decisions and diagnoses see the sum.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.models.tables import Table, Transitions, Units, target_columns
from butfor.spaces.arrays import change_rounding, check_table

PriorFunction = Callable[[NDArray[Any], NDArray[Any]], Any]
"""Observations [N, D] and actions [N, A] (or integers [N]) as numpy arrays -> predicted next observations [N, D]."""
PROBES = 3  # actions by which a prior is recognised when a model is loaded
SAME = 1e-4  # largest difference there, in units of the residual and of the predicted change
ROUNDING = 4 * float(np.finfo(np.float32).eps)  # and relative to the mean state, for priors in single precision


class Prior:
    """What a prior predicts, in the units of a network."""

    def __init__(self, function: PriorFunction, units: Units) -> None:
        self.function = function
        self.units = units

    def __call__(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The scaled change [N, K, d] for states [N, D] and actions [N or 1, K, A] as the network sees them."""
        center, spread = torch.tensor([self.units.obs_center, self.units.obs_spread], dtype=torch.float64)
        states = obs.double().cpu() * spread + center
        count = actions.shape[1]
        tried = self.units.law.decode(actions.expand(len(obs), -1, -1).flatten(0, 1)).cpu()
        change = predicted_change(self.function, states.repeat_interleave(count, 0), tried)
        scaled = change[:, target_columns(self.units.entities)] * torch.tensor(self.units.scale, dtype=torch.float64)
        by_action: Tensor = scaled.unflatten(0, (-1, count)).float()
        return by_action.to(obs.device)

    def residual(self, table: Table) -> Table:
        """A table whose targets are what the prior does not explain."""
        inputs, target = table
        obs, action = inputs.tensor_split([len(self.units.obs_center)], 1)
        return inputs, target - self(obs, action[:, None])[:, 0]

    def fingerprint(self) -> list[float]:
        """What it predicts for a few actions in the mean state, by which it is recognised."""
        size = self.units.law.size
        actions = torch.eye(size)[:PROBES] if self.units.law.count else torch.linspace(-1, 1, PROBES)[:, None]
        states = torch.zeros(1, len(self.units.obs_center))
        return [float(value) for value in self(states, actions.expand(-1, size)[None]).flatten()]

    def check(self, fingerprint: Sequence[float]) -> None:
        """Refuse a prior that is not the one of a saved model."""
        here = self.fingerprint()
        center = np.abs(self.units.obs_center)[target_columns(self.units.entities)]
        rounding = np.tile(ROUNDING * center * np.asarray(self.units.scale), len(here) // len(center))
        if len(here) != len(fingerprint) or not np.allclose(here, fingerprint, rtol=SAME, atol=SAME + rounding):
            raise ValueError(
                f"prior predicts the scaled changes {_shortened(here)} in the mean state; the one that the model was "
                f"fitted with predicted {_shortened(fingerprint)}. Give the same function as to fit."
            )


def predicted_change(function: PriorFunction, obs: Tensor, action: Tensor) -> Tensor:
    """The change [N, D] that a user's function predicts, checked."""
    if not callable(function):
        raise TypeError(
            f"prior is {function!r}; expected a function of observations [N, D] and actions [N, A] that returns the "
            "next observations [N, D]."
        )
    states = obs.double().cpu().numpy()
    answer = check_table("The result of prior", function(states.copy(), action.cpu().numpy()), obs.shape[1])
    if len(answer) != len(states):
        raise ValueError(f"prior returned {len(answer)} rows for {len(states)} states; expected as many.")
    return answer.double().cpu() - torch.from_numpy(states)


def fit_units(function: PriorFunction, transitions: Transitions, units: Units, fixed: float | None) -> Units:
    """Units whose changes are scaled by the size of what the prior does not explain, which is at least rounding."""
    obs, action, next_obs = transitions
    predicted = predicted_change(function, obs, action)
    if fixed is not None:
        return units
    columns = target_columns(units.entities)
    before, after = obs.cpu()[:, columns], next_obs.cpu()[:, columns]
    change = after.double() - before.double()
    deviation = (change - predicted[:, columns]).std(0)
    stored = change_rounding(before, after)
    seen = change_rounding(change.float(), change.float())  # the network's targets are in single precision
    # An exact prior leaves only rounding. Units much larger than that would hide what it says of the action: the
    # network's variance is 1 at first, and the predicted change would be small beside it.
    size = deviation.maximum(stored).maximum(seen)
    constant = change.std(0).maximum(deviation) <= stored  # as in `target_scale`
    return replace(units, scale=torch.where(constant, 1.0, 1 / size).tolist())


def load_prior(function: PriorFunction | None, header: Mapping[str, Any], units: Units) -> Prior | None:
    """The prior of a saved model, compared with what its header says of it."""
    fingerprint = header.get("prior")
    if fingerprint is None and function is not None:
        raise ValueError("prior was given, but the model was fitted without one; leave it out.")
    if fingerprint is None:
        return None
    if function is None:
        raise ValueError("it was fitted with a prior, which a file cannot hold; give the same function as prior=.")
    prior = Prior(function, units)
    prior.check(fingerprint)
    return prior


def _shortened(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values[:4]]
