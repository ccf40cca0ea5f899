"""What the weight file of an `Influence` says about its model, and the model that such a header describes.

The tensors of the file are compared with that model before it is built, see `butfor.models.weights.build_network`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from butfor.influence.contact import ContactConfig, ContactDynamics
from butfor.influence.graph.pairs import GraphConfig, GraphDynamics, check_graph_entities
from butfor.influence.partners import Pair
from butfor.influence.scoring import Dynamics
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import Generators
from butfor.models.tables import Units
from butfor.runs.config import config_from
from butfor.spaces.entities import entity_columns


def describe_model(model: Dynamics, units: Units) -> dict[str, Any]:
    """Units, sizes and settings of a model, for the header."""
    partners = None
    if isinstance(model, ContactDynamics):
        partners = {name: [dataclasses.asdict(pair) for pair in pairs] for name, pairs in model.pairs.items()}
    shape = {"obs_size": model.obs_size, "model": dataclasses.asdict(model.config), "partners": partners}
    if isinstance(model, GraphDynamics):
        shape["driven"] = model.driven
    return dataclasses.asdict(units) | shape


def count_replicas(tensors: Mapping[str, Tensor]) -> int:
    """The length of the first axis, which all weights of a file have in common."""
    counts = {len(value) if value.dim() else 0 for value in tensors.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"its tensors have {sorted(counts)} replicas; expected one number of at least 1.")
    return counts.pop()


def untrained_model(header: Mapping[str, Any], units: Units, generators: Generators) -> Dynamics:
    """The model that the header of a weight file describes."""
    if header.get("driven") is not None:
        if unknown := [name for name in header["driven"] if name not in units.entities]:
            raise ValueError(f"the action drives {unknown}, which are not among its entities.")
        config = config_from(GraphConfig, header["model"])
        check_graph_entities(units.entities, config)
        return GraphDynamics(units, header["driven"], config, generators)
    if header.get("partners") is None:
        network = config_from(ModelConfig, header["model"])
        return GaussianDynamics(len(units.obs_center), units.law.size, len(units.scale), network, generators)
    size = len(units.obs_center)
    pairs = {}
    for name, columns in units.entities.items():
        pairs[name] = [Pair(**entity_columns(pair, size)) for pair in header["partners"][name]]
        if wrong := [pair for pair in pairs[name] if not set(pair.entity) <= set(columns)]:
            raise ValueError(f"the partners of {name!r} have {wrong[0]}; the entity has the columns {columns}.")
    return ContactDynamics(units, pairs, config_from(ContactConfig, header["model"]), generators)
