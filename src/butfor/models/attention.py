"""The attention baseline: a Transformer over agent, object and action tokens; attention is read as influence."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from butfor.models.fitting import Fittable
from butfor.models.networks import Generators, InputNorm, LayerNorm, Linear
from butfor.runs.config import check_least


@dataclass(frozen=True)
class AttentionConfig:
    """The Transformer. Defaults are the paper's for 1DSlide."""

    embedding: int = 16
    """size of a token"""
    feedforward: int = 32
    """units of each layer's feed-forward part"""
    heads: int = 1
    layers: int = 2
    normalize_input: bool = False
    """batch normalisation of the inputs, without learnable parameters"""

    def __post_init__(self) -> None:
        check_least(self, 1, "embedding", "feedforward", "heads", "layers")
        if self.embedding % self.heads:
            raise ValueError(
                f"AttentionConfig.embedding ({self.embedding}) must be a multiple of heads ({self.heads})."
            )


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward part, each added and layer-normalised (post-norm, ReLU, no dropout)."""

    def __init__(self, config: AttentionConfig, generators: Generators) -> None:
        super().__init__()
        size = config.embedding
        self.heads = config.heads
        self.query_key_value = Linear(size, 3 * size, generators)
        self.output = Linear(size, size, generators)
        self.widen = Linear(size, config.feedforward, generators)
        self.narrow = Linear(config.feedforward, size, generators)
        self.norm_attention = LayerNorm(size, len(generators))
        self.norm_feedforward = LayerNorm(size, len(generators))

    def forward(self, x: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """[R, B * tokens, size] -> the same, and the head-averaged attention [R, B, tokens, tokens] (row: output)."""
        replicas, rows, size = x.shape
        parts = self.query_key_value(x).view(replicas, rows // tokens, tokens, 3, self.heads, size // self.heads)
        query, key, value = parts.permute(3, 0, 1, 4, 2, 5)  # each [R, B, heads, tokens, size / heads]
        attention = torch.softmax(query @ key.mT / math.sqrt(size // self.heads), -1)
        mixed = (attention @ value).transpose(2, 3).reshape(x.shape)
        x = self.norm_attention(x + self.output(mixed))
        x = self.norm_feedforward(x + self.narrow(torch.relu(self.widen(x))))
        return x, attention.mean(2)


class AttentionModel(Fittable):
    """Predict the object's change; `tokens` are named groups of input columns, among them `object` and `action`."""

    order: Tensor

    def __init__(
        self, tokens: dict[str, list[int]], target_size: int, config: AttentionConfig, generators: Generators
    ) -> None:
        super().__init__()
        self.replicas = len(generators)
        self.object = list(tokens).index("object")
        self.action = list(tokens).index("action")
        self.sizes = [len(columns) for columns in tokens.values()]
        order = torch.tensor([column for columns in tokens.values() for column in columns])
        self.register_buffer("order", order, persistent=False)  # of the input columns, token by token
        self.norm = InputNorm(sum(self.sizes), self.replicas) if config.normalize_input else None
        self.embed = nn.ModuleList(Linear(size, config.embedding, generators) for size in self.sizes)
        self.layers = nn.ModuleList(EncoderLayer(config, generators) for _ in range(config.layers))
        self.head = Linear(config.embedding, target_size, generators)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """[R, B, D + A] -> the object's predicted change [R, B, d], and the action's total attention [R, B]."""
        predicted, shares = self.attend(inputs)
        return predicted, shares[..., self.action]

    def attend(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The object's predicted change [R, B, d], and its total attention to each token [R, B, tokens]."""
        inputs = inputs[..., self.order]
        if self.norm is not None:
            inputs = self.norm(inputs)
        embedded = [layer(part) for layer, part in zip(self.embed, inputs.split(self.sizes, -1), strict=True)]
        count = len(embedded)
        x = torch.stack(embedded, 2).flatten(1, 2)  # [R, B * tokens, size]
        total = torch.eye(count, device=inputs.device)
        for layer in self.layers:
            x, attention = layer(x, count)
            total = attention @ total  # the last layer's rows are the outputs, the first one's columns the inputs
        output = x.view(*inputs.shape[:2], count, x.shape[-1])[:, :, self.object]
        return self.head(output), total[..., self.object, :]

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Squared error, summed over dimensions, averaged over the batch: [R]."""
        return (self.predict_mean(inputs) - target).square().sum(-1).mean(-1)

    @torch.no_grad()
    def score(self, inputs: Tensor) -> Tensor:
        """The action's share in the object's output, through all layers: [N, D + A] -> [R, N]."""
        self.eval()
        chunks = inputs.split(65536)
        return torch.cat([self(chunk.expand(self.replicas, -1, -1))[1] for chunk in chunks], 1)
