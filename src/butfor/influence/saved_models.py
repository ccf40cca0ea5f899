"""The weight file of an `Influence`: what its header says about the model, and the model that a header describes.

The tensors of the file are compared with that model before it is built, see `butfor.models.weights.build_network`.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from butfor.influence.contact import ContactConfig, ContactDynamics
from butfor.influence.decisions import Calibration
from butfor.influence.graph.pairs import GraphConfig, GraphDynamics, check_graph_entities
from butfor.influence.outcomes import OutcomeConfig, OutcomeDynamics
from butfor.influence.partners import Pair
from butfor.influence.scoring import Dynamics, ScoreConfig
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import Generators, make_generators
from butfor.models.prior import PriorFunction, load_prior
from butfor.models.tables import Units
from butfor.models.weights import (
    build_network,
    choose_replica,
    reading_weights,
    save_weights,
    units_of_header,
    whole_number,
)
from butfor.runs.config import config_from
from butfor.spaces.entities import entity_columns

FORMAT_VERSION = 3
WITH_PRIOR = 4  # the format of a model with a prior, which earlier versions would load without it
WITH_REACH = 5  # that of a model of touches with a reach, likewise
WITH_UNEVEN = 6  # that of one with columns that free motion also sees on a finer scale
WITH_OUTCOMES = 7  # that of a model of outcomes
WITH_DIRECTIONS = 8  # that of a model of touches that sees positions along and across directions


@dataclass(frozen=True)
class SavedInfluence:
    """What a weight file of an `Influence` contains."""

    model: Dynamics
    units: Units
    scoring: ScoreConfig
    seed: int
    horizon: int
    calibration: dict[str, Calibration]


def save_influence(
    path: Path | str,
    model: Dynamics,
    units: Units,
    scoring: ScoreConfig,
    seed: int,
    horizon: int,
    calibration: Mapping[str, Calibration],
) -> None:
    """Write the weight file of an `Influence`."""
    header = describe_model(model, units)
    header |= {"scoring": dataclasses.asdict(scoring), "seed": seed, "horizon": horizon}
    prior = getattr(model, "prior", None)
    if prior is not None:
        header["prior"] = prior.fingerprint()
    tensors = dict(model.state_dict())
    for name, known in calibration.items():
        for part, values in dataclasses.asdict(known).items():
            if values is not None:
                tensors[f"calibration.{part}.{name}"] = torch.from_numpy(values)
    save_weights(path, "influence", _format_version(model, prior is not None), tensors, header)


def _format_version(model: Dynamics, has_prior: bool) -> int:
    """The oldest format that says everything about a model."""
    if isinstance(model, OutcomeDynamics):
        return WITH_OUTCOMES
    if isinstance(model, ContactDynamics):
        if model.directions:
            return WITH_DIRECTIONS
        if model.uneven:
            return WITH_UNEVEN
        reaches = [pair.reach for pairs in model.pairs.values() for pair in pairs]
        return FORMAT_VERSION if set(reaches) == {None} else WITH_REACH
    return WITH_PRIOR if has_prior else FORMAT_VERSION


def load_influence(path: Path | str, replica: int | None = None, prior: PriorFunction | None = None) -> SavedInfluence:
    """Read what `save_influence` wrote; one replica has no calibration.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not a complete `Influence`, or the prior is missing or another one.
    """
    with reading_weights(path, "influence", WITH_DIRECTIONS) as (tensors, header):
        parts = {name: tensors.pop(name).numpy() for name in list(tensors) if name.startswith("calibration.")}
        units = units_of_header(header)
        seed = whole_number(header, "seed", least=-(2**63))
        scoring = config_from(ScoreConfig, header["scoring"])
        tensors = choose_replica(tensors, count_replicas(tensors), replica)
        generators = make_generators([0] * count_replicas(tensors))
        model = build_network(lambda: untrained_model(header, units, generators), header["model"]["layers"], tensors)
        horizon = whole_number({"horizon": 1} | header, "horizon")
        known = load_prior(prior, header, units)
        if isinstance(model, GaussianDynamics):
            model.prior = known
        calibration = {}
        if parts and replica is None:
            for name in units.entities:
                rest = [parts.get(f"calibration.{part}.{name}") for part in ("p_values", "groups")]
                calibration[name] = Calibration(parts[f"calibration.scores.{name}"], *rest)
        return SavedInfluence(model, units, scoring, seed, horizon, calibration)


def describe_model(model: Dynamics, units: Units) -> dict[str, Any]:
    """Units, sizes and settings of a model, for the header."""
    partners = None
    if isinstance(model, ContactDynamics):
        partners = {name: [dataclasses.asdict(pair) for pair in pairs] for name, pairs in model.pairs.items()}
    shape = {"obs_size": model.obs_size, "model": dataclasses.asdict(model.config), "partners": partners}
    if isinstance(model, ContactDynamics):
        shape["uneven"] = model.uneven
        shape["directions"] = model.directions
    if isinstance(model, GraphDynamics):
        shape["driven"] = model.driven
    if isinstance(model, OutcomeDynamics):
        shape["outcomes"] = model.counts
    return dataclasses.asdict(units) | shape


def count_replicas(tensors: Mapping[str, Tensor]) -> int:
    """The length of the first axis, which all weights of a file have in common."""
    counts = {len(value) if value.dim() else 0 for value in tensors.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"its tensors have {sorted(counts)} replicas; expected one number of at least 1.")
    return counts.pop()


def saved_pair(saved: Mapping[str, Any], size: int) -> Pair:
    """A pair of a header, of observations with `size` columns; older files have no reach."""
    reach = saved.get("reach")
    if reach is not None and not (isinstance(reach, float) and 0 < reach < math.inf):
        raise ValueError(f"a partner has the reach {reach!r}; expected a distance above 0, or none.")
    columns = entity_columns({part: saved[part] for part in ("entity", "partner")}, size)
    return Pair(**columns, reach=reach)


def saved_uneven(saved: Any, size: int) -> list[int]:
    """The columns of a header that free motion also sees on a finer scale; older files have none."""
    return entity_columns({"uneven": saved}, size)["uneven"] if saved else []


def saved_directions(saved: Any, size: int) -> list[list[int]]:
    """The directions of a header, two columns each; older files have none."""
    found = [entity_columns({"directions": columns}, size)["directions"] for columns in saved]
    if wrong := [columns for columns in found if len(columns) != 2]:
        raise ValueError(f"a direction has the columns {wrong[0]}; expected two.")
    return found


def untrained_model(header: Mapping[str, Any], units: Units, generators: Generators) -> Dynamics:
    """The model that the header of a weight file describes."""
    if header.get("driven") is not None:
        if unknown := [name for name in header["driven"] if name not in units.entities]:
            raise ValueError(f"the action drives {unknown}, which are not among its entities.")
        config = config_from(GraphConfig, header["model"])
        check_graph_entities(units.entities, config)
        return GraphDynamics(units, header["driven"], config, generators)
    if header.get("outcomes") is not None:
        found = header["outcomes"]
        if not isinstance(found, list) or len(found) != len(units.entities):
            expected = f"a number for each of {len(units.entities)} entities"
            raise ValueError(f"outcomes is {found!r:.100}; expected {expected}.")
        counts = [whole_number({"outcomes": count}, "outcomes") for count in found]
        return OutcomeDynamics(units, counts, config_from(OutcomeConfig, header["model"]), generators)
    if header.get("partners") is None:
        network = config_from(ModelConfig, header["model"])
        return GaussianDynamics(len(units.obs_center), units.law.size, len(units.scale), network, generators)
    size = len(units.obs_center)
    pairs = {}
    for name, columns in units.entities.items():
        pairs[name] = [saved_pair(pair, size) for pair in header["partners"][name]]
        if wrong := [pair for pair in pairs[name] if not set(pair.entity) <= set(columns)]:
            raise ValueError(f"the partners of {name!r} have {wrong[0]}; the entity has the columns {columns}.")
    uneven = saved_uneven(header.get("uneven", []), size)
    directions = saved_directions(header.get("directions", []), size)
    return ContactDynamics(units, pairs, config_from(ContactConfig, header["model"]), generators, uneven, directions)
