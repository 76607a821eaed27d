"""Weights to and from ``torch.nn``: what PyTorch computes with them, modules compute within the derived budget."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.pytorch import nn
from attnspec.reference import REFERENCE
from attnspec.reference.budget import judged
from attnspec.reference.defining.choices import choosing
from attnspec.spec import LayerNormParameters, MultiHeadParameters, precision
from attnspec.spec.contract.tree import flatten, map_tree
from tests.budgets import assert_within_budgets

torch.set_num_threads(1)
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
B, N, M = 2, 5, 7


def filled(module: Any, *zeros: str) -> Any:
    """A module with random weights and biases, but for those that are named."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
            if name.endswith(zeros):
                p.zero_()
    return module


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), **DOUBLE)


def within(budget: Any, *results: Any) -> None:
    expected = budget if isinstance(budget, tuple) else (budget,)
    for result in results:
        for got, verdict in zip(flatten(result).values(), expected, strict=True):
            error = np.abs(got.detach().numpy().astype(verdict.value.dtype) - verdict.value)
            assert (error <= verdict.budget).all(), float(np.nanmax(error / verdict.budget))


def oracle(operation: str, **arguments: Any) -> Any:
    plain = map_tree(arguments, lambda _, x: x.detach().numpy() if isinstance(x, Tensor) else x)
    return judged(REFERENCE[operation], plain, precision(pytorch.precision["float64"]))


ATTENTION_BIASES = ("in_proj_bias", "out_proj.bias")
MASK = torch.rand(N, N, generator=torch.Generator().manual_seed(2)) < 0.6
MASK[:, 0] = True


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kdim", "vdim"), [(None, None), (4, 3)])
def test_multi_head_attention_is_that_of_pytorch(kdim: int | None, vdim: int | None, bias: bool) -> None:
    theirs = torch.nn.MultiheadAttention(6, 2, bias=bias, kdim=kdim, vdim=vdim, batch_first=True, **DOUBLE)
    filled(theirs, *ATTENTION_BIASES)
    ours = nn.MultiHeadAttention.from_torch(theirs)
    query, key, value = drawn(B, N, 6), drawn(B, M, kdim or 6), drawn(B, M, vdim or 6)
    mask = torch.rand(N, M, generator=torch.Generator().manual_seed(2)) < 0.6
    mask[:, 0] = True
    weights = dict(ours.named_parameters())
    budget = oracle("multi_head_attention", query=query, key=key, value=value, mask=mask, **weights)
    within(budget, ours(query, key, value, mask=mask), theirs(query, key, value, attn_mask=~mask)[0])
    back = ours.to_torch(bias=bias)
    assert_same_state(back, theirs)


def assert_same_state(module: torch.nn.Module, reference: torch.nn.Module) -> None:
    state, expected = module.state_dict(), reference.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(x, expected[name]) for name, x in state.items())
    assert module.training == reference.training


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("layers", [None, 3])
def test_encoders_are_those_of_pytorch(layers: int | None, norm_first: bool, evaluated: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=norm_first, **DOUBLE)
    theirs = layer if layers is None else torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    filled(theirs, *ATTENTION_BIASES).train(not evaluated)
    kind: Any = nn.TransformerEncoderLayer if layers is None else nn.TransformerEncoder
    ours, x = kind.from_torch(theirs), drawn(B, N, 6)
    name, weights = ("encoder_layer", "parameters") if layers is None else ("encoder_stack", "layers")
    record = {weights: ours.record()}
    budget = oracle(name, x=x, mask=MASK, norm="pre" if norm_first else "post", **record)
    with torch.set_grad_enabled(not evaluated):
        within(budget, ours(x, mask=MASK), theirs(x, ~MASK))
    assert_same_state(ours.to_torch(), theirs)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("layers", [None, 2])
def test_decoders_are_those_of_pytorch(layers: int | None, norm_first: bool) -> None:
    layer = torch.nn.TransformerDecoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=norm_first, **DOUBLE)
    theirs = filled(layer if layers is None else torch.nn.TransformerDecoder(layer, layers), *ATTENTION_BIASES)
    kind: Any = nn.TransformerDecoderLayer if layers is None else nn.TransformerDecoder
    ours, x, memory = kind.from_torch(theirs), drawn(B, N, 6), drawn(B, M, 6)
    memory_mask = torch.rand(N, M, generator=torch.Generator().manual_seed(3)) < 0.6
    memory_mask[:, 0] = True
    name, weights = ("decoder_layer", "parameters") if layers is None else ("decoder_stack", "layers")
    masks = {"mask": MASK, "memory_mask": memory_mask}
    budget = oracle(name, x=x, memory=memory, norm="pre" if norm_first else "post", **{weights: ours.record()}, **masks)
    causal = MASK & torch.ones(N, N, dtype=torch.bool).tril()
    within(budget, ours(x, memory, **masks), theirs(x, memory, ~causal, ~memory_mask))
    assert_same_state(ours.to_torch(), theirs)


BIASED = {"activation": "gelu", "layer_norm_eps": 1e-3, "batch_first": True, **DOUBLE}


def attended(x: Any, memory: Any, a: Any, mask: Any) -> Any:
    """Multi-head attention with biases, from PyTorch's parameters in NumPy."""
    w, b = a["in_proj_weight"], a["in_proj_bias"]
    q, k, v = (y @ w[i : i + 6].T + b[i : i + 6] for i, y in ((0, x), (6, memory), (12, memory)))
    heads = [REFERENCE["scaled_dot_product_attention"](
        q[..., h : h + 3], k[..., h : h + 3], v[..., h : h + 3], mask=mask) for h in (0, 3)]  # fmt: skip
    return np.concatenate(heads, axis=-1) @ a["out_proj.weight"].T + a["out_proj.bias"]


def network(x: Any, layer: Any, form: str) -> Any:
    with choosing(gelu_form=form):
        hidden = REFERENCE["gelu"](x @ layer["linear1.weight"].T + layer["linear1.bias"])
    return hidden @ layer["linear2.weight"].T + layer["linear2.bias"]


def part(layer: dict[str, Any], name: str) -> dict[str, Any]:
    return {key.removeprefix(f"{name}."): x for key, x in layer.items() if key.startswith(f"{name}.")}


def biased_layer(x: Any, layer: dict[str, Any], norm_first: bool, mask: Any, memory: Any = None,
                 form: str = "erf") -> Any:  # fmt: skip
    """PyTorch's layer with GELU, biases and ε of 10⁻³, by formulas of the reference."""
    sublayers: list[Callable[[Any], Any]] = [lambda y: attended(y, y, part(layer, "self_attn"), mask)]
    if memory is not None:
        sublayers.append(lambda y: attended(y, memory, part(layer, "multihead_attn"), None))
    sublayers.append(lambda y: network(y, layer, form))
    for i, sublayer in enumerate(sublayers, 1):
        parameters = LayerNormParameters(layer[f"norm{i}.weight"], layer[f"norm{i}.bias"])

        def norm(y: Any, p: Any = parameters) -> Any:
            return REFERENCE["layer_norm"](y, p, epsilon=1e-3)

        x = x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))
    return x


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers_with_gelu_biases_and_another_epsilon_are_those_of_pytorch(norm_first: bool) -> None:
    theirs = filled(torch.nn.TransformerEncoderLayer(6, 2, 8, 0.0, norm_first=norm_first, **BIASED))
    ours, x = nn.TransformerEncoderLayer.from_torch(theirs), drawn(B, N, 6)
    back = ours.to_torch()
    results = [ours(x, mask=MASK), theirs(x, ~MASK), back(x, ~MASK)]
    assert_within_budgets(results, biased_layer, x, dict(theirs.state_dict()), norm_first, MASK)
    assert_same_state(back, theirs)
    results[0].sum().backward()
    assert all(p.grad is not None and p.grad.any() for name, p in ours.named_parameters() if name != "attention.b_k")


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layers_with_gelu_biases_and_another_epsilon_are_those_of_pytorch(norm_first: bool) -> None:
    theirs = filled(torch.nn.TransformerDecoderLayer(6, 2, 8, 0.0, norm_first=norm_first, **BIASED))
    ours, x, memory = nn.TransformerDecoderLayer.from_torch(theirs), drawn(B, N, 6), drawn(B, M, 6)
    causal = torch.ones(N, N, dtype=torch.bool).tril()
    results = [ours(x, memory), theirs(x, memory, ~causal)]
    assert_within_budgets(results, biased_layer, x, dict(theirs.state_dict()), norm_first, causal, memory)
    assert_same_state(ours.to_torch(), theirs)


@pytest.mark.parametrize("kind", ["TransformerEncoderLayer", "TransformerDecoderLayer"])
def test_a_converted_layer_is_restored_from_its_state_dict(kind: str) -> None:
    theirs = filled(getattr(torch.nn, kind)(6, 2, 8, 0.0, norm_first=True, **BIASED))
    converted = getattr(nn, kind).from_torch(theirs)
    settings: dict[str, Any] = {"activation": "gelu", "epsilon": theirs.norm1.eps, "attention_bias": True}
    restored = getattr(nn, kind)(6, 2, 8, norm_first=True, **settings, **DOUBLE)
    assert restored.beyond_record == converted.beyond_record
    restored.load_state_dict(converted.state_dict())
    inputs = [drawn(B, N, 6)] + ([drawn(B, M, 6)] if kind == "TransformerDecoderLayer" else [])
    assert torch.equal(restored(*inputs), converted(*inputs))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_networks_in_half_dtypes_round_only_their_results(activation: Any, autocast: bool) -> None:
    half = nn.FeedForward(6, 8, activation=activation, dtype=torch.bfloat16)
    wide = nn.FeedForward(6, 8, activation=activation)
    wide.load_state_dict(half.state_dict())
    x = drawn(B, N, 6).bfloat16()
    expected = wide(x.float()).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert torch.equal((wide if autocast else half)(x.float() if autocast else x), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.FeedForward(4, 8, activation="silu"), "FeedForward: activation: expected one of relu, gelu, "),  # type: ignore[arg-type]
        (lambda: nn.LayerNorm(4, epsilon=0.0), "LayerNorm: epsilon: expected a positive number; got 0.0"),
    ],
)
def test_unknown_settings_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def test_stacks_with_a_last_normalization_are_those_of_pytorch() -> None:
    layer = torch.nn.TransformerEncoderLayer(6, 2, 8, 0.0, norm_first=True, **BIASED)
    last = torch.nn.LayerNorm(6, eps=1e-3, **DOUBLE)
    theirs = filled(torch.nn.TransformerEncoder(layer, 2, last, enable_nested_tensor=False))
    ours, x = nn.TransformerEncoder.from_torch(theirs), drawn(B, N, 6)

    def formula(x: Any, stack: dict[str, Any], mask: Any) -> Any:
        for i in range(2):
            x = biased_layer(x, part(stack, f"layers.{i}"), True, mask)
        return REFERENCE["layer_norm"](x, LayerNormParameters(stack["norm.weight"], stack["norm.bias"]), epsilon=1e-3)

    results = [ours(x, mask=MASK), theirs(x, ~MASK)]
    assert_within_budgets(results, formula, x, dict(theirs.state_dict()), MASK)
    assert_same_state(ours.to_torch(), theirs)


@pytest.mark.parametrize("bias", [False, True])
def test_recurrent_cells_are_those_of_pytorch(bias: bool) -> None:
    x, h, c = drawn(B, 6), drawn(B, 4) / 2, drawn(B, 4)
    rnn = filled(torch.nn.RNNCell(6, 4, bias=bias, **DOUBLE))
    ours = nn.RNNCell.from_torch(rnn)
    within(oracle("rnn_cell", x=x, state=h, parameters=ours.record()), ours(x, h), rnn(x, h), ours.to_torch()(x, h))
    lstm = filled(torch.nn.LSTMCell(6, 4, bias=bias, **DOUBLE))
    cell = nn.LSTMCell.from_torch(lstm)
    budget = oracle("lstm_cell", x=x, state=(h, c), parameters=cell.record())
    within(budget, cell(x, (h, c)), lstm(x, (h, c)), cell.to_torch()(x, (h, c)))


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["rnn", "lstm"])
def test_recurrent_networks_are_those_of_pytorch(name: str, bias: bool, evaluated: bool) -> None:
    kinds: dict[str, Any] = {"rnn": (nn.RNN, torch.nn.RNN), "lstm": (nn.LSTM, torch.nn.LSTM)}
    kind, original = kinds[name]
    x, h, c = drawn(B, N, 6), drawn(B, 2, 4) / 2, drawn(B, 2, 4)
    state: Any = h if name == "rnn" else (h, c)
    transposed = map_tree(state, lambda _, s: s.transpose(0, 1).contiguous())
    theirs = filled(original(6, 4, 2, bias=bias, batch_first=True, **DOUBLE)).train(not evaluated)
    ours = kind.from_torch(theirs)
    assert ours.training == theirs.training
    states, final = oracle(f"stacked_{name}", x=x, state=state, layers=ours.record())
    within(states, ours(x, state)[0])
    within(final, ours(x, state)[1])
    for other in (theirs, ours.to_torch()):
        their_states, last = other(x, transposed)
        within(states, their_states)
        within(final, map_tree(last, lambda _, s: s.transpose(0, 1)))


@pytest.mark.parametrize("name", ["rnn", "lstm"])
def test_recurrent_networks_in_both_directions(name: str) -> None:
    kinds: dict[str, Any] = {"rnn": (nn.RNN, torch.nn.RNN), "lstm": (nn.LSTM, torch.nn.LSTM)}
    kind, original = kinds[name]
    theirs = filled(original(6, 4, bidirectional=True, batch_first=True, **DOUBLE))
    ours, x = kind.from_torch(theirs), drawn(B, N, 6)
    zeros = torch.zeros(B, 4, **DOUBLE)
    state: Any = (zeros, zeros) if name == "rnn" else ((zeros, zeros), (zeros, zeros))
    states, _ = oracle(f"bidirectional_{name}", x=x, state=state, parameters=ours.record())
    within(states, ours(x)[0], theirs(x)[0], ours.to_torch()(x)[0])


def test_stacked_networks_in_both_directions_are_those_of_pytorch() -> None:
    theirs = filled(torch.nn.LSTM(6, 4, 3, bidirectional=True, batch_first=True, **DOUBLE))
    ours, x = nn.LSTM.from_torch(theirs), drawn(B, N, 6)
    (states, (h, c)), (expected, finals) = ours(x), theirs(x)
    # no operation is this network: budgets follow from its layers, of which each reads both directions of the last
    layers, zeros = ours.record(), torch.zeros(B, 4, **DOUBLE)

    def stacked(x: Any, layers: Any, zeros: Any) -> Any:
        final = []
        for pair in zip(layers[::2], layers[1::2], strict=True):
            x, last = REFERENCE["bidirectional_lstm"](x, ((zeros, zeros), (zeros, zeros)), pair)
            final += last
        return x, *(tuple(part) for part in final)

    def parts(h: Tensor, c: Tensor) -> Any:
        return tuple((h[:, i], c[:, i]) for i in range(6))

    theirs_last = parts(*(x.transpose(0, 1) for x in finals))
    assert_within_budgets([(states, *parts(h, c)), (expected, *theirs_last)], stacked, x, layers, zeros)
    assert_same_state(nn.LSTM.from_torch(ours.to_torch()).to_torch(), ours.to_torch())


def test_two_biases_become_their_sum() -> None:
    theirs = filled(torch.nn.LSTMCell(6, 4, **DOUBLE))
    back = nn.LSTMCell.from_torch(theirs).to_torch()
    assert torch.equal(back.bias_ih, theirs.bias_ih + theirs.bias_hh)
    assert not back.bias_hh.any()
    assert torch.equal(back.weight_ih, theirs.weight_ih)
    assert_same_state(nn.LSTMCell.from_torch(back).to_torch(), back)


@pytest.mark.parametrize("how", [{}, {"bias": False}])
def test_layer_norms_are_those_of_pytorch(how: dict[str, bool]) -> None:
    theirs = filled(torch.nn.LayerNorm(6, **how, **DOUBLE))
    ours, x = nn.LayerNorm.from_torch(theirs), drawn(B, 6)
    within(oracle("layer_norm", x=x, parameters=ours.record()), ours(x), theirs(x), ours.to_torch()(x))


def test_converted_weights_are_copies() -> None:
    theirs = torch.nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)
    ours = nn.TransformerEncoderLayer.from_torch(theirs)
    back = ours.to_torch()
    places = [{p.untyped_storage().data_ptr() for p in module.parameters()} for module in (theirs, ours, back)]
    assert not places[0] & places[1]
    assert not places[1] & places[2]


Torch = torch.nn
DROPS = {"dropout": 0.1, "batch_first": True}
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.MultiHeadAttention.from_torch(Torch.MultiheadAttention(6, 2)),
     "MultiHeadAttention.from_torch: batch_first: expected True, since the batch comes first here; got False"),
    (lambda: nn.MultiHeadAttention.from_torch(Torch.MultiheadAttention(6, 2, add_bias_kv=True, batch_first=True)),
     "MultiHeadAttention.from_torch: bias_k: expected None, since the formula adds no key; got a tensor"),
    (lambda: nn.MultiHeadAttention.from_torch(Torch.MultiheadAttention(6, 2, add_zero_attn=True, batch_first=True)),
     "MultiHeadAttention.from_torch: add_zero_attn: expected False, since the formula has no key of zeros; got True"),
    (lambda: nn.MultiHeadAttention.from_torch(Torch.MultiheadAttention(6, 2, **DROPS)),
     "MultiHeadAttention.from_torch: dropout: expected 0, or a module in eval(), since the formula has none; "),
    (lambda: nn.TransformerEncoderLayer.from_torch(Torch.TransformerEncoderLayer(6, 2, 8, batch_first=True)),
     "TransformerEncoderLayer.from_torch: dropout: expected 0, or a module in eval(), since the formula has none; "),
    (lambda: nn.TransformerEncoderLayer.from_torch(
         Torch.TransformerEncoderLayer(6, 2, 8, 0.0, torch.tanh, batch_first=True)),
     "TransformerEncoderLayer.from_torch: activation: expected ReLU or GELU; got tanh"),
    (lambda: nn.TransformerDecoderLayer.from_torch(
         Torch.TransformerDecoderLayer(6, 2, 8, 0.0, Torch.SiLU(), batch_first=True)),
     "TransformerDecoderLayer.from_torch: activation: expected ReLU or GELU; got SiLU()"),
    (lambda: nn.LayerNorm.from_torch(Torch.LayerNorm(6, eps=0.0)),
     "LayerNorm.from_torch: eps: expected a positive number; got 0.0"),
    (lambda: nn.TransformerEncoder.from_torch(
         Torch.TransformerEncoder(Torch.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 2,
             Torch.RMSNorm(6))),
     "LayerNorm.from_torch: module: expected a torch.nn.LayerNorm; got RMSNorm"),
    (lambda: nn.MultiHeadAttention.from_torch(filled(Torch.MultiheadAttention(6, 2, batch_first=True))).record(),
     "MultiHeadAttention.record: expected the settings of MultiHeadParameters; got biases of attention: call the"),
    (lambda: nn.TransformerEncoderLayer.from_torch(
         Torch.TransformerEncoderLayer(6, 2, 8, 0.0, "gelu", layer_norm_eps=1e-6, batch_first=True)).record(),
     "TransformerEncoderLayer.record: expected the settings of EncoderLayerParameters; got attention_norm: "
     "epsilon=1e-06, feed_forward: activation='gelu', feed_forward_norm: epsilon=1e-06: call the module"),
    (lambda: nn.TransformerEncoder.from_torch(
         Torch.TransformerEncoder(Torch.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 2,
             Torch.LayerNorm(6))).record(),
     "TransformerEncoder.record: expected no normalization after the last layer; got LayerNorm(6): call the module"),
    (lambda: (layer := nn.TransformerDecoderLayer.from_torch(
         Torch.TransformerDecoderLayer(6, 2, 8, 0.0, "gelu", batch_first=True))).step(
             torch.zeros(6), layer.empty_cache(), torch.zeros(3, 6)),
     "TransformerDecoderLayer.record: expected the settings of DecoderLayerParameters; got feed_forward: "),
    (lambda: nn.TransformerDecoderLayer.from_torch(Torch.TransformerDecoderLayer(6, 2, 8, batch_first=True)),
     "TransformerDecoderLayer.from_torch: dropout: expected 0, or a module in eval(), since the formula has none; "),
    (lambda: nn.TransformerDecoderLayer(6, 2, 8, memory_dim=4).to_torch(),
     "TransformerDecoderLayer.to_torch: d_m: expected 6, since torch.nn has one d_model for inputs and memory; got 4"),
    (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8), 0).to_torch(),
     "TransformerEncoder.to_torch: num_layers: expected at least 1, since torch.nn makes a stack from a layer; got 0"),
    (lambda: nn.RNNCell.from_torch(Torch.RNNCell(6, 4, nonlinearity="relu")),
     "RNNCell.from_torch: nonlinearity: expected 'tanh', since φ of the formula is tanh; got 'relu'"),
    (lambda: nn.GRUCell.from_torch(Torch.GRUCell(6, 4)),
     "GRUCell.from_torch: reset gate: expected a product with the state, tanh(x w_xh + (r ⊙ h) w_hh + b_h); got "),
    (lambda: nn.GRU.from_torch(Torch.GRU(6, 4)),
     "GRU.from_torch: reset gate: expected a product with the state, tanh(x w_xh + (r ⊙ h) w_hh + b_h); got "),
    (lambda: nn.RNN.from_torch(Torch.RNN(6, 4, nonlinearity="relu", batch_first=True)),
     "RNN.from_torch: nonlinearity: expected 'tanh', since φ of the formula is tanh; got 'relu'"),
    (lambda: nn.LSTM.from_torch(Torch.LSTM(6, 4)),
     "LSTM.from_torch: batch_first: expected True, since the batch comes first here; got False"),
    (lambda: nn.LSTM.from_torch(Torch.LSTM(6, 4, proj_size=2, batch_first=True)),
     "LSTM.from_torch: proj_size: expected 0, since the formula does not project states; got 2"),
    (lambda: nn.LSTM.from_torch(Torch.LSTM(6, 4, 2, dropout=0.1, batch_first=True)),
     "LSTM.from_torch: dropout: expected 0, or a module in eval(), since the formula has none; got 0.1"),
    (lambda: nn.LayerNorm.from_torch(Torch.LayerNorm(6, elementwise_affine=False)),
     "LayerNorm.from_torch: elementwise_affine: expected True, since the formula has a gain; got False"),
    (lambda: nn.LayerNorm.from_torch(Torch.LayerNorm((6, 4))),
     "LayerNorm.from_torch: normalized_shape: expected one dimension; got (6, 4)"),
]  # fmt: skip


@pytest.mark.parametrize(("convert", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_module_that_differs_from_the_formula_is_refused(convert: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the beginning of the message is compared
        convert()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("sizes", [(8, 2, 3, 3), (6, 2, 4, 3), (6, 2, 3, 4)])
def test_sizes_that_pytorch_does_not_have_are_refused(sizes: tuple[int, ...]) -> None:
    d, heads, p_q, p_v = sizes
    w_q, w_k, w_v = (torch.zeros(heads, p, d) for p in (p_q, p_q, p_v))
    record = MultiHeadParameters(w_q, w_k, w_v, torch.zeros(d, heads * p_v))
    with pytest.raises(ValueError, match=r"^MultiHeadAttention.to_torch: heads·p_\w: expected \d, since torch.nn has"):
        nn.MultiHeadAttention.from_record(record).to_torch()


def test_dropout_has_no_effect_in_evaluation() -> None:
    theirs = torch.nn.TransformerEncoderLayer(6, 2, 8, 0.5, batch_first=True, **DOUBLE).eval()
    filled(theirs, *ATTENTION_BIASES)
    ours, x = nn.TransformerEncoderLayer.from_torch(theirs), drawn(B, N, 6)
    assert not ours.training
    within(oracle("encoder_layer", x=x, parameters=ours.record()), ours(x), theirs(x))


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        (nn.LSTM, torch.nn.RNN(4, 4, batch_first=True), "LSTM.from_torch: module: expected a torch.nn.LSTM; got RNN"),
        (nn.GRU, torch.nn.LSTM(4, 4), "GRU.from_torch: module: expected a torch.nn.GRU; got LSTM"),
        (nn.LSTMCell, torch.nn.GRUCell(4, 4), "LSTMCell.from_torch: module: expected a torch.nn.LSTMCell; got GRUCell"),
        (
            nn.TransformerEncoderLayer,
            torch.nn.TransformerDecoderLayer(8, 2, 16),
            "TransformerEncoderLayer.from_torch: module: expected a torch.nn.TransformerEncoderLayer; "
            "got TransformerDecoderLayer",
        ),
        (
            nn.TransformerEncoder,
            torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2, 16), 1),
            "TransformerEncoder.from_torch: module: expected a torch.nn.TransformerEncoder; got TransformerDecoder",
        ),
        (
            nn.MultiHeadAttention,
            torch.nn.Linear(4, 4),
            "MultiHeadAttention.from_torch: module: expected a torch.nn.MultiheadAttention; got Linear",
        ),
        (nn.LayerNorm, torch.nn.RMSNorm(8), "LayerNorm.from_torch: module: expected a torch.nn.LayerNorm; got RMSNorm"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_a_module_of_another_class_is_refused(kind: Any, source: torch.nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match="expected a torch") as raised:
        kind.from_torch(source)
    assert str(raised.value) == message


def test_layers_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^FeedForward\.from_torch: second\.in_features: expected 16, .*; got 15$"):
        nn.FeedForward.from_torch(torch.nn.Linear(8, 16), torch.nn.Linear(15, 8))
