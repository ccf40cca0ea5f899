"""The attention rival against torch's own Transformer layer and against products by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from butfor.models.attention import AttentionConfig, AttentionModel, EncoderLayer
from butfor.models.fitting import FitConfig, Fitting, make_optimizer, train_step
from butfor.models.networks import make_generators

TOKENS = {"agent": [0, 1], "object": [2, 3], "action": [4]}
SEEDS = (3, 1, 4)
CONFIGS = {
    "defaults": AttentionConfig(),
    "several heads": AttentionConfig(heads=4, layers=3),
    "input norm": AttentionConfig(normalize_input=True),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def transformer(config: AttentionConfig, seeds: tuple[int, ...] = SEEDS) -> AttentionModel:
    """Weights larger than the initial ones, so that attention is far from even."""
    model = AttentionModel(TOKENS, 2, config, make_generators(seeds))
    for layer in model.layers:
        layer.query_key_value.weight.data *= 2  # type: ignore[union-attr, operator]
    return model.eval()


def attentions(model: AttentionModel, inputs: Tensor) -> list[Tensor]:
    """The attention of each layer [R, B, tokens, tokens], as the layers give it during a forward pass."""
    found: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda _, __, out: found.append(out[1])) for layer in model.layers]
    with torch.no_grad():
        model(inputs)
    for hook in hooks:
        hook.remove()
    return found


# --- one layer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_a_layer_is_torchs_post_norm_encoder_layer(heads: int) -> None:
    config = AttentionConfig(embedding=8, feedforward=12, heads=heads)
    layer = EncoderLayer(config, make_generators(SEEDS))
    for parameter in layer.parameters():
        parameter.data = 0.5 * normal(*parameter.shape, seed=parameter.numel()) + (parameter.dim() == 1)
    x = normal(3, 5 * 4, 8)  # five samples of four tokens
    result, attention = layer(x, 4)
    for replica in range(3):
        other = nn.TransformerEncoderLayer(8, heads, 12, dropout=0.0, batch_first=True).train()
        # ours packs [query | key | value], each split into heads in order, exactly as torch's in_proj
        pairs = {
            "self_attn.in_proj_weight": layer.query_key_value.weight[replica].T,
            "self_attn.in_proj_bias": layer.query_key_value.bias[replica, 0],
            "self_attn.out_proj.weight": layer.output.weight[replica].T,
            "self_attn.out_proj.bias": layer.output.bias[replica, 0],
            "linear1.weight": layer.widen.weight[replica].T,
            "linear1.bias": layer.widen.bias[replica, 0],
            "linear2.weight": layer.narrow.weight[replica].T,
            "linear2.bias": layer.narrow.bias[replica, 0],
            "norm1.weight": layer.norm_attention.gain[replica, 0],
            "norm1.bias": layer.norm_attention.offset[replica, 0],
            "norm2.weight": layer.norm_feedforward.gain[replica, 0],
            "norm2.bias": layer.norm_feedforward.offset[replica, 0],
        }
        other.load_state_dict({name: value.detach() for name, value in pairs.items()})
        tokens = x[replica].view(5, 4, 8)
        torch.testing.assert_close(result[replica].view(5, 4, 8), other(tokens), rtol=1e-4, atol=1e-5)
        _, expected = other.self_attn(tokens, tokens, tokens, average_attn_weights=True)
        torch.testing.assert_close(attention[replica], expected, rtol=1e-4, atol=1e-6)


# --- the model ------------------------------------------------------------------------------------


@each_config
def test_attention_rows_sum_to_one_and_so_does_their_product(config: AttentionConfig) -> None:
    model, inputs = transformer(config), normal(3, 6, 5)
    found = attentions(model, inputs)
    assert len(found) == config.layers
    total = torch.eye(3)
    for attention in found:
        assert attention.shape == (3, 6, 3, 3)
        assert (attention >= 0).all()
        torch.testing.assert_close(attention.sum(-1), torch.ones(3, 6, 3))
        total = attention @ total
    torch.testing.assert_close(total.sum(-1), torch.ones(3, 6, 3))
    score = model(inputs)[1]
    assert score.shape == (3, 6)
    assert (score > 0).all()
    assert (score < 1).all()


@each_config
def test_the_score_is_the_last_layers_attention_times_the_first_ones(config: AttentionConfig) -> None:
    model, inputs = transformer(config), normal(3, 6, 5)
    found = [attention.double() for attention in attentions(model, inputs)]
    score, other_order = model(inputs)[1], torch.zeros(3, 6)
    for replica in range(3):
        for sample in range(6):
            matrices = [attention[replica, sample] for attention in found]
            total = matrices[-1]  # A_L ... A_1: rows are outputs of the last layer, columns inputs of the first
            for matrix in reversed(matrices[:-1]):
                total = total @ matrix
            assert score[replica, sample].item() == pytest.approx(total[1, 2].item(), rel=1e-4)
            other_order[replica, sample] = torch.linalg.multi_dot(matrices)[1, 2]
    assert (score - other_order).abs().max() > 1e-3, "the order must matter for this to mean something"


def test_the_tokens_may_come_in_any_order_and_leave_columns_out() -> None:
    for normalize_input in (False, True):
        config = AttentionConfig(normalize_input=normalize_input)
        model = AttentionModel({"action": [5], "object": [4, 1]}, 2, config, make_generators(SEEDS)).eval()
        inputs = normal(7, 6)
        score = model.score(inputs)
        assert score.shape == (3, 7)
        for column in range(6):
            changed = inputs.clone()
            changed[:, column] += 1
            assert torch.equal(model.score(changed), score) == (column not in (1, 4, 5))


def test_the_score_is_that_of_the_action_for_the_object() -> None:
    # named tokens, wherever they stand: the same weights under another order of tokens give another entry
    model, inputs = transformer(AttentionConfig(layers=1)), normal(3, 6, 5)
    (attention,) = attentions(model, inputs)
    assert torch.equal(model(inputs)[1], attention[:, :, 1, 2])
    reordered = AttentionModel({"action": [4], "agent": [0, 1], "object": [2, 3]}, 2, AttentionConfig(layers=1),
                               make_generators(SEEDS)).eval()  # fmt: skip
    (attention,) = attentions(reordered, inputs)
    assert torch.equal(reordered(inputs)[1], attention[:, :, 2, 0])


@each_config
def test_replicas_in_a_batch_learn_what_each_learns_alone(config: AttentionConfig) -> None:
    together, alone = transformer(config).train(), [transformer(config, (seed,)).train() for seed in SEEDS]
    optimizer = make_optimizer(together, FitConfig(learning_rate=1e-3))
    optimizers = [make_optimizer(model, FitConfig(learning_rate=1e-3)) for model in alone]
    for step in range(4):
        inputs, target = normal(3, 12, 5, seed=step), normal(3, 12, 2, seed=50 + step)
        losses = train_step(together.loss, optimizer, inputs, target)
        for replica, (model, single) in enumerate(zip(alone, optimizers, strict=True)):
            part = slice(replica, replica + 1)
            loss = train_step(model.loss, single, inputs[part], target[part])
            torch.testing.assert_close(losses[part], loss, rtol=1e-4, atol=1e-5)
            if step == 0:
                for (name, value), other in zip(together.named_parameters(), model.parameters(), strict=True):
                    torch.testing.assert_close(value.grad[part], other.grad, rtol=1e-3, atol=1e-5, msg=name)  # type: ignore[index]
    inputs = normal(9, 5)
    scores = together.score(inputs)
    for replica, model in enumerate(alone):
        torch.testing.assert_close(scores[replica : replica + 1], model.score(inputs), rtol=1e-2, atol=1e-3)


@each_config
def test_the_gradient_reaches_every_parameter_of_every_replica(config: AttentionConfig) -> None:
    model = transformer(config).train()
    model.loss(normal(3, 20, 5), normal(3, 20, 2, seed=1)).sum().backward()
    size = config.embedding
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        reached = parameter.grad.flatten(1).abs().sum(1)
        if name.endswith("query_key_value.bias"):
            # a key's bias adds the same number to a whole row before its softmax: that part has no gradient
            assert (parameter.grad[..., :size].abs().sum((1, 2)) > 0).all()
            assert (parameter.grad[..., size : 2 * size].abs() < 1e-4).all()
        assert (reached > 0).all(), name


def test_gradients_of_one_replica_do_not_reach_another() -> None:
    model = transformer(AttentionConfig(normalize_input=True)).train()
    model.loss(normal(3, 20, 5), normal(3, 20, 2, seed=1))[1].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad[[0, 2]].any(), name


def test_the_loss_is_the_squared_error_summed_over_dimensions() -> None:
    model, inputs, target = transformer(AttentionConfig()), normal(3, 6, 5), normal(3, 6, 2, seed=1)
    expected = torch.nn.functional.mse_loss(model.predict_mean(inputs), target, reduction="none").mean((1, 2)) * 2
    torch.testing.assert_close(model.loss(inputs, target), expected)


@each_config
def test_scoring_is_forward_in_evaluation_and_changes_nothing(config: AttentionConfig) -> None:
    model, inputs = transformer(config).train(), normal(9, 5)
    model.loss(normal(3, 20, 5), normal(3, 20, 2))  # so that running statistics are not the initial ones
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scores = model.score(inputs)
    assert scores.shape == (3, 9)
    assert not scores.requires_grad
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    torch.testing.assert_close(scores, model.eval()(inputs.expand(3, -1, -1))[1].detach())


def test_many_states_are_scored_as_few_are() -> None:
    model, inputs = transformer(AttentionConfig(embedding=4, feedforward=4, layers=1), (0,)), normal(65_540, 5)
    scores = model.score(inputs)
    assert scores.shape == (1, 65_540)
    torch.testing.assert_close(scores[:, -6:], model.score(inputs[-6:]), rtol=1e-5, atol=1e-6)


def test_no_states_have_no_scores() -> None:
    assert transformer(AttentionConfig()).score(normal(0, 5)).shape == (3, 0)


def test_attention_is_fitted_as_any_model_is() -> None:
    inputs = normal(200, 5)
    table = (inputs, inputs[:, 4:] * torch.tensor([1.0, -1.0]))
    model = AttentionModel(TOKENS, 2, AttentionConfig(), make_generators([0, 1]))
    config = FitConfig(batch_size=50, learning_rate=3e-3, max_epochs=30, validate_every=5)
    fitting = Fitting(model, table, table, config, make_generators([2, 3]))
    list(fitting.run())
    # predicting zero has an error of one
    assert (fitting.best_error < 0.1).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embedding": 6, "heads": 4}, "embedding.*6.*heads.*4"),
        ({"heads": 0}, "heads"),
        ({"layers": 0}, "layers"),
        ({"embedding": 0}, "embedding"),
        ({"feedforward": 0}, "feedforward"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionConfig(**settings)
