"""Layers of Hugging Face transformers, converted: both compute the reference's formula within the derived budget."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnspec.backends.pytorch import nn
from tests.backends.test_nn import LLAMA
from tests.backends.test_nn import llama as formula
from tests.backends.test_nn_conversion import biased_layer, drawn, filled
from tests.budgets import assert_within_budgets

transformers = pytest.importorskip("transformers", reason="transformers is not installed; `nox -s transformers` has it")
models = transformers.models
D, HEADS, F, N, EPSILON = 6, 2, 8, 5, 1e-3
MASK = torch.tensor([[True, True, True, False, True], [True, False, True, True, True]])[:, None]
"""Keys that are no padding, (2, 1, N)."""
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
NETWORK = {"hidden_size": D, "num_attention_heads": HEADS, "intermediate_size": F, "layer_norm_eps": EPSILON}


def bert(**options: Any) -> Any:
    return models.bert.modeling_bert.BertLayer(models.bert.BertConfig(**{**NETWORK, **options}))


def vit(**options: Any) -> Any:
    return models.vit.modeling_vit.ViTLayer(models.vit.ViTConfig(**{**NETWORK, **options}))


def gpt2(**options: Any) -> Any:
    sizes = {"n_embd": D, "n_head": HEADS, "n_inner": F, "layer_norm_epsilon": EPSILON}
    return models.gpt2.modeling_gpt2.GPT2Block(models.gpt2.GPT2Config(**{**sizes, **options}), layer_idx=1)


def output_of(layer: Any, x: torch.Tensor, mask: torch.Tensor, how: str) -> Any:
    for part in layer.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = how  # transformers has no public setting for a single layer
    result = layer(x, attention_mask=torch.zeros(2, 1, N, N, dtype=x.dtype).masked_fill(~mask[:, None], -torch.inf))
    return result[0] if isinstance(result, tuple) else result


CASES: list[tuple[Callable[..., Any], bool, str, dict[str, Any]]] = [
    (bert, False, "erf", {}),
    (bert, False, "tanh", {"hidden_act": "gelu_new"}),
    (vit, True, "erf", {}),
    (vit, True, "tanh", {"hidden_act": "gelu_pytorch_tanh", "qkv_bias": False}),
    (gpt2, True, "tanh", {}),
    (gpt2, True, "erf", {"activation_function": "gelu"}),
]


# eager attention rounds its weights to float32
@pytest.mark.parametrize(("how", "dtype"), [("eager", torch.float32), ("sdpa", torch.float64)])
@pytest.mark.parametrize(("make", "norm_first", "form", "options"), CASES)
def test_converted_layers_are_those_of_transformers(
    make: Callable[..., Any], norm_first: bool, form: str, options: dict[str, Any], how: str, dtype: torch.dtype
) -> None:
    theirs = filled(make(**options).to(dtype)).eval()
    ours, x = nn.TransformerEncoderLayer.from_torch(theirs), drawn(2, N, D).to(dtype)
    mask = MASK & CAUSAL if make is gpt2 else MASK.expand(2, N, N)
    results = [ours(x, mask=mask), output_of(theirs, x, mask, how)]
    weights = dict(ours.to_torch().state_dict())
    assert_within_budgets(results, biased_layer, x, weights, norm_first, mask, form=form)
    assert not ours.training


def llama(**options: Any) -> Any:
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": F}
    config = models.llama.LlamaConfig(**{**sizes, "rms_norm_eps": EPSILON, **options})
    return models.llama.modeling_llama.LlamaDecoderLayer(config, layer_idx=0)


@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_converted_llama_layers_are_those_of_transformers(how: str) -> None:
    rope = {"rope_type": "default", "rope_theta": 500.0}
    theirs = filled(llama(rope_parameters=rope).float()).eval()
    ours, x = nn.LlamaLayer.from_torch(theirs), drawn(2, N, 16).float()
    positions = torch.tensor([[0, 1, 2, 3, 4], [2, 3, 5, 9, 10]])
    turn = models.llama.modeling_llama.LlamaRotaryEmbedding(theirs.self_attn.config)(x, positions)
    theirs.self_attn.config._attn_implementation = how
    mask = torch.zeros(2, 1, N, N).masked_fill(~(MASK & CAUSAL)[:, None], -torch.inf)
    results = [ours(x, mask=MASK, positions=positions), theirs(x, attention_mask=mask, position_embeddings=turn)]
    weights = [getattr(ours, name) for name in LLAMA]
    assert_within_budgets(results, formula, x, *weights, mask=MASK, positions=positions, epsilon=EPSILON, theta=500.0)
    assert not ours.training
    results[0].sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in ours.parameters())


LLAMA_REFUSED: list[tuple[Callable[[], Any], str]] = [
    (bert, "LlamaLayer.from_torch: module: expected a transformers.models.llama.modeling_llama.LlamaDecoderLayer; "),
    (lambda: llama(attention_dropout=0.1), "LlamaLayer.from_torch: dropout: expected 0, or a module in eval"),
    (lambda: llama(hidden_act="gelu"), "hidden_act: expected 'silu', since the network is SwiGLU; got 'gelu'"),
    (lambda: llama(attention_bias=True), "attention_bias: expected False, since the formula has no biases; got True"),
    (lambda: llama(mlp_bias=True), "mlp_bias: expected False, since the formula has no biases; got True"),
    (lambda: llama(head_dim=2), "head_dim: expected 4, since all heads together have d_model features; got 2"),
    (lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}),
     "rope_type: expected 'default', since frequencies are not scaled; got 'linear'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), LLAMA_REFUSED)
def test_layers_other_than_plain_llama_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        nn.LlamaLayer.from_torch(make())


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (bert, "TransformerEncoderLayer.from_torch: dropout: expected 0, or a module in eval"),
    (lambda: vit(attention_probs_dropout_prob=0.1), "TransformerEncoderLayer.from_torch: dropout: expected 0, or a"),
    (lambda: bert(hidden_act="silu").eval(), "hidden_act: expected one of relu, gelu, gelu_new, gelu_pytorch_tanh"),
    (lambda: bert(is_decoder=True).eval(), "is_decoder: expected False, since the layer encodes; got True"),
    (lambda: gpt2(add_cross_attention=True).eval(), "add_cross_attention: expected False, since the layer has no mem"),
    (lambda: gpt2(scale_attn_weights=False).eval(), "scaling: expected 0.57735"),
    (lambda: gpt2(scale_attn_by_inverse_layer_idx=True).eval(), "scaling: expected 0.57735"),
    (lambda: models.roberta.modeling_roberta.RobertaLayer(models.roberta.RobertaConfig(**NETWORK)),
     "TransformerEncoderLayer.from_torch: module: expected a torch.nn.TransformerEncoderLayer; got RobertaLayer"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_layers_with_other_formulas_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        nn.TransformerEncoderLayer.from_torch(make())
