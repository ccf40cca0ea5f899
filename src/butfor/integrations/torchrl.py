"""Influence for TorchRL: a sampler that draws episodes by influence, for any replay buffer, with hindsight or without.

>>> sampler = InfluenceSampler(influence)
>>> buffer = HERReplayBuffer(reward_fn, storage=LazyTensorStorage(100_000), sampler=sampler, batch_size=256)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from butfor.influence.influence import Influence
from butfor.influence.scoring import combine_scores
from butfor.runs.files import load_tensors, save_tensors
from butfor.spaces.arrays import warn_shared
from butfor.training.priorities import PriorityConfig, by_score

try:
    from torchrl.data.replay_buffers.samplers import Sampler
    from torchrl.data.replay_buffers.storages import Storage
except ImportError as error:
    raise ImportError(
        "butfor.integrations.torchrl needs TorchRL. Install it with: pip install 'butfor[torchrl]'"
    ) from error

__all__ = ["InfluenceSampler"]

Key = str | tuple[str, ...]


class InfluenceSampler(Sampler):
    """Draws episodes by the influence in them (CAI-P): 1 / rank of their summed score, and their steps uniformly.

    Steps are scored before the first batch after they were stored. Without a model all steps have the same chance. The
    storage must have one dimension, with the steps of an episode one after the other, as for `HERReplayBuffer`.

    Attributes:
        influence: the model that scores; see `use_model`.
        scores: the influence of each stored step, NaN where it is not scored yet.
    """

    def __init__(
        self,
        influence: Influence | None = None,
        *,
        entity: str | None = None,
        observation_key: Key = "observation",
        end_key: Key = ("next", "done"),
        rank_exponent: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Prepare a sampler.

        Args:
            influence: the model; None: all steps have the same chance until `use_model` gives one.
            entity: the entity whose influence counts; None: the sum over all.
            observation_key: where the storage has the observations that the model was fitted on.
            end_key: where it says that an episode has ended.
            rank_exponent: draw episodes by 1 / rank^this; smaller values draw more different episodes.
            seed: of the drawing, unless the replay buffer has a generator of its own.
        """
        self.entity = entity
        self.observation_key = observation_key
        self.end_key = end_key
        self.rank_exponent = PriorityConfig(rank_exponent=rank_exponent).rank_exponent
        self.scores = torch.zeros(0)
        self.influence: Influence | None = None
        self.seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self._tried = torch.Generator().manual_seed(seed)  # draws other actions whenever steps are scored
        self._next = 0  # the index that follows the newest step
        self._chances: Tensor | None = None  # running sum over the stored steps; None: out of date
        if influence is not None:
            self.use_model(influence)

    def use_model(self, influence: Influence) -> None:
        """Set the model that scores, after it was trained further or for the first time; all steps are scored again."""
        if self.entity is None:
            warn_shared(influence.entities)
        else:
            influence.dims(self.entity)
        self.influence = influence
        self._tried = torch.Generator(influence.device).manual_seed(self.seed)
        self._empty()

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw indices [batch_size] of the storage."""
        if len(storage) == 0:
            raise RuntimeError("The storage is empty; add steps before sampling.")
        if getattr(storage, "ndim", 1) != 1:
            raise ValueError(f"The storage has {storage.ndim} dimensions; InfluenceSampler needs 1.")
        if self._chances is None or len(self._chances) != len(storage):
            self._chances = self._chances_of(storage).double().cumsum(0)
        generator = self._generator if self._rng is None else self._rng
        lots = torch.rand(batch_size, generator=generator, device=generator.device, dtype=torch.float64).cpu()
        index = torch.searchsorted(self._chances, lots * self._chances[-1], right=True)
        return index.clamp(max=len(storage) - 1), {}

    def add(self, index: int) -> None:
        """A step was stored."""
        self.extend(torch.tensor([index]))

    def extend(self, index: Tensor | Sequence[int]) -> None:
        """Steps were stored, the newest last: they are scored before the next sample."""
        places = torch.as_tensor(index).reshape(-1).cpu()
        self._grow(int(places.max()) + 1)
        self.scores[places] = torch.nan
        self._next = int(places[-1]) + 1
        self._chances = None

    def _grow(self, size: int) -> None:
        missing = max(0, size - len(self.scores))
        self.scores = torch.cat([self.scores, torch.full((missing,), torch.nan)])

    def _chances_of(self, storage: Storage) -> Tensor:
        """The weight of each stored step, [N]."""
        count = len(storage)
        if self.influence is None:
            return torch.ones(count)
        self._grow(count)
        stored = storage[:]
        new = self.scores[:count].isnan().nonzero()[:, 0]
        if len(new):
            obs = _column(stored, "observation_key", self.observation_key)[:count].reshape(count, -1)
            obs = obs[new.to(obs.device)]
            found = self.influence.score(obs.cpu(), self._tried)
            scores = torch.stack(list(found.values()), -1) if self.entity is None else found[self.entity][:, None]
            self.scores[new] = combine_scores(scores, "sum").float()
        ended = _column(stored, "end_key", self.end_key)[:count].reshape(count).bool().cpu()
        order = torch.arange(count).roll(-(self._next % count))  # oldest first: in a full ring it follows the newest
        before = torch.cat([torch.zeros(1, dtype=torch.long), ended[order].long().cumsum(0)[:-1]])
        episode = torch.empty(count, dtype=torch.long).scatter_(0, order, before)  # of each step
        length = torch.bincount(episode)
        time = torch.empty(count, dtype=torch.long)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), length.cumsum(0)[:-1]])
        time[order] = torch.arange(count) - starts[episode[order]]
        table = torch.zeros(1, len(length), int(length.max()))
        table[0, episode, time] = self.scores[:count]
        return by_score(table, length[None], self.rank_exponent)[0, episode, time]

    def _empty(self) -> None:
        """The storage was emptied, or all steps must be scored again."""
        self.scores = torch.zeros(0)
        self._chances = None

    def state_dict(self) -> dict[str, Any]:
        """Scores, where the next step is stored, and the state of the random numbers; not the model."""
        streams = {"random": self._generator.get_state(), "tried": self._tried.get_state()}
        return {"scores": self.scores.clone(), "next": self._next, **streams}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        self.scores = torch.as_tensor(state_dict["scores"]).clone()
        self._next = int(state_dict["next"])
        self._generator.set_state(state_dict["random"])
        if "tried" in state_dict:  # states of before do not have it
            self._tried.set_state(state_dict["tried"])
        self._chances = None

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder."""
        Path(path).mkdir(parents=True, exist_ok=True)
        state = self.state_dict()
        tensors = {name: state[name] for name in ("scores", "random", "tried")}
        save_tensors(Path(path) / "influence.safetensors", tensors, {"next": state["next"]})

    def loads(self, path: Path | str) -> None:
        """Read what `dumps` wrote."""
        tensors, header = load_tensors(Path(path) / "influence.safetensors")
        self.load_state_dict({**tensors, "next": header["next"]})

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: neither the model nor the random numbers' object."""
        state: dict[str, Any] = super().__getstate__()
        return state | {"_generator": self._generator.get_state(), "_tried": None, "influence": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._generator = torch.Generator().set_state(state["_generator"])
        self._tried = torch.Generator().manual_seed(self.seed)  # until `use_model`


def _column(stored: Any, option: str, key: Key) -> Tensor:
    """What the storage has at a key, or an error that names the keys there are."""
    found = stored.get(key, None)
    if isinstance(found, Tensor):
        return found
    keys = sorted(map(str, stored.keys(include_nested=True, leaves_only=True)))
    raise ValueError(f"{option} is {key!r}, which is not a tensor in the storage; expected one of {', '.join(keys)}.")
