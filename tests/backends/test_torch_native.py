"""PyTorch's own operations as a backend: what it provides, declares and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.torch_native import backend
from attnspec.reference import choosing
from attnspec.spec import (
    LAWS,
    OPERATIONS,
    QUESTIONS,
    DecoderLayerParameters,
    EncoderLayerParameters,
    FeedForwardParameters,
    GRUParameters,
    LayerNormParameters,
    LSTMParameters,
    MultiHeadParameters,
    ShapeError,
)
from tests.budgets import assert_within_budgets

torch.set_num_threads(1)
attention = backend.scaled_dot_product_attention


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


RECURRENT = {
    name
    for kind in ("rnn", "gru", "lstm")
    for name in (f"{kind}_cell", kind, f"bidirectional_{kind}", f"stacked_{kind}")
}
ATTENTION = {"scaled_dot_product_attention", "multi_head_attention", "biased_multi_head_attention"}
TRANSFORMER = {"layer_norm", "rms_norm", "feed_forward", "encoder_layer", "decoder_layer"}


def test_the_backend_provides_these_operations() -> None:
    assert {name for name in OPERATIONS if hasattr(backend, name)} == {*ATTENTION, *TRANSFORMER, *RECURRENT}


UNDECLARED = """
from attnspec.backends.torch_native import TorchNative


class Undeclared(TorchNative):
    name = "undeclared"
    semantics = {"masked_nonfinite": "propagates"}


backend = Undeclared()
"""


def test_it_declares_its_deviations() -> None:
    deviations = {q: getattr(backend.semantics, q) for q in QUESTIONS}
    expected = {"masked_nonfinite": "propagates", "nan_queries": "hidden", "gru_reset": "after"}
    assert {q: c for q, c in deviations.items() if c != QUESTIONS[q].normative} == expected


def test_a_gru_that_declares_the_normative_reset_is_convicted(tmp_path: Path) -> None:
    (tmp_path / "undeclared.py").write_text(UNDECLARED, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "undeclared.py", "--profile", "quick"]
    chosen = ["--operation", "gru_cell", "--dtype", "float64", "--workers", "1"]
    chosen += ["--law", "operation.oracle", "--law", "semantics.gru_reset"]
    done = subprocess.run([*command, *chosen], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("undeclared conforms as declared below\n")
    assert "gru_reset = after, not before: " in done.stdout
    assert '"gru_reset": "after"' in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("lengths", [None, [4, 0, 2]])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_gru_is_that_of_torch_nn(layers: int, lengths: list[int] | None) -> None:
    d, h, t = 5, 3, 4
    theirs = torch.nn.GRU(d, h, layers, batch_first=True)
    for name, p in theirs.named_parameters():
        if name.startswith("bias_hh"):
            torch.nn.init.zeros_(p)
    x, state = draw(3, t, d), draw(3, layers, h)
    each = []
    for i in range(layers):
        of_input, of_state, bias = (
            getattr(theirs, f"{name}_l{i}").chunk(3) for name in ("weight_ih", "weight_hh", "bias_ih")
        )
        letters = enumerate("rzh")  # gates: reset, update, candidate, in the order in which torch.nn stacks them
        fields = {f"{n}{g}": w[k] for k, g in letters for n, w in (("w_x", of_input), ("w_h", of_state), ("b_", bias))}
        each.append(GRUParameters(**{n: w.detach().transpose(-1, 0) for n, w in fields.items()}))
    length_tensor = None if lengths is None else torch.tensor(lengths)
    states, final = backend.stacked_gru(x, state, tuple(each), lengths=length_tensor)
    for k in range(3):
        length = t if lengths is None else lengths[k]
        if length:
            their_states, their_final = theirs(x[k : k + 1, :length], state[k : k + 1].transpose(0, 1).contiguous())
            ours, cut = (states[k, :length], final[k]), (x[k, :length], state[k])
            # this backend resets the state after its product, which is another formula than the reference's default
            with choosing(gru_reset="after"):
                assert_within_budgets([ours, (their_states[0], their_final[:, 0])], "stacked_gru", *cut, tuple(each))
        else:
            assert torch.equal(final[k], state[k])
        assert not states[k, length:].any()


def test_an_lstm_without_steps_ends_where_it_starts() -> None:
    p = LSTMParameters(*(draw(*shape) for _ in range(4) for shape in ((5, 3), (3, 3), (3,))))
    h, c = draw(2, 3), draw(2, 3) + 1
    states, (last_h, last_c) = backend.lstm(draw(2, 0, 5), (h, c), p)
    assert states.shape == (2, 0, 3)
    assert torch.equal(last_h, h)
    assert torch.equal(last_c, c)
    assert last_c.data_ptr() != c.data_ptr()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 3, 2)])
def test_the_numbers_are_those_of_pytorch(batch: tuple[int, ...], causal: bool) -> None:
    query, key, value = draw(*batch, 4, 8), draw(*batch, 6, 8), draw(*batch, 6, 5)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    assert torch.equal(attention(query, key, value, causal=causal), expected)


def test_mask_and_causal_both_hold() -> None:
    query, key, value = draw(2, 4, 8), draw(2, 6, 8), draw(2, 6, 5)
    mask = draw(4, 6) > 0
    expected = attention(query, key, value, mask=mask & torch.ones(4, 6, dtype=torch.bool).tril())
    assert torch.equal(attention(query, key, value, mask=mask, causal=True), expected)


def test_the_batch_of_the_mask_joins_the_broadcast() -> None:
    query, key, value, mask = draw(4, 8), draw(6, 8), draw(6, 5), draw(3, 2, 4, 6) > 0
    alone = torch.stack([torch.stack([attention(query, key, value, mask=m) for m in rows]) for rows in mask])
    results = [attention(query, key, value, mask=mask), alone]
    assert_within_budgets(results, "scaled_dot_product_attention", query, key, value, mask=mask)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_fully_masked_rows_and_no_keys_give_zero(batch: tuple[int, ...]) -> None:
    query, key, value = (draw(*batch, 3, 4) for _ in range(3))
    mask = torch.tensor([[True] * 3, [False] * 3, [True] * 3])
    gradients = backend.vjp(
        "scaled_dot_product_attention",
        {"query": query, "key": key, "value": value, "mask": mask},
        torch.ones(*batch, 3, 4),
    )
    assert not attention(query, key, value, mask=mask)[..., 1, :].any()
    assert not gradients["query"][..., 1, :].any()
    assert all(bool(g.isfinite().all()) for g in gradients.values())
    assert attention(query, key[..., :0, :], value[..., :0, :]).eq(0).all()


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_nan_at_a_masked_value_reaches_the_result(batch: tuple[int, ...]) -> None:
    query, key, value = (draw(*batch, 3, 4) for _ in range(3))
    value[..., 1, :] = torch.nan
    assert attention(query, key, value, mask=torch.tensor([[True, False, True]])).isnan().any()


@pytest.mark.parametrize(
    ("key", "value", "mask"),
    [
        ((2, 2, 5, 4), (2, 2, 6, 4), None),
        ((2, 2, 5, 3), (2, 2, 5, 4), None),
        ((3, 2, 5, 4), (3, 2, 5, 4), None),
        ((2, 2, 5, 4), (2, 2, 5, 4), (5,)),
        ((2, 2, 5, 4), (2, 2, 5, 4), (2, 5)),
    ],
)
def test_shapes_that_violate_the_protocol_raise(
    key: tuple[int, ...], value: tuple[int, ...], mask: tuple[int, ...] | None
) -> None:
    mask_tensor = None if mask is None else torch.ones(mask, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"^scaled_dot_product_attention: (key|value|mask): expected .*; got "):
        attention(draw(2, 2, 3, 4), draw(*key), draw(*value), mask=mask_tensor)


def of_heads(heads: int, p: int) -> list[Tensor]:
    return [*(draw(heads, p, heads * p) + i for i in range(3)), draw(heads * p, heads * p)]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_heads_are_those_of_torch_nn(masked: bool, causal: bool, biased: bool) -> None:
    heads, p, n, m = 3, 4, 5, 6
    query, key, value = draw(2, n, heads * p), draw(2, m, heads * p), draw(2, m, heads * p) + 1
    w_q, w_k, w_v, w_o = of_heads(heads, p)
    theirs = torch.nn.MultiheadAttention(heads * p, heads, bias=biased, batch_first=True)
    biases = [*(draw(heads, p) + i for i in range(3)), draw(heads * p)] if biased else []
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([w.flatten(0, 1) for w in (w_q, w_k, w_v)]))
        theirs.out_proj.weight.copy_(w_o)
        if biased:
            theirs.in_proj_bias.copy_(torch.cat([b.flatten() for b in biases[:3]]))
            theirs.out_proj.bias.copy_(biases[3])
    mask = draw(2, n, m) > -1
    triangle = torch.ones(n, m, dtype=torch.bool).tril()
    allowed = mask & triangle if causal else mask
    hidden = (~allowed).repeat_interleave(heads, 0) if masked else ~triangle if causal else None
    expected, _ = theirs(query, key, value, attn_mask=hidden, need_weights=False)
    used_mask = mask if masked else None
    inputs = query, key, value, w_q, w_k, w_v, w_o, *biases
    name = "biased_multi_head_attention" if biased else "multi_head_attention"
    result = getattr(backend, name)(*inputs, mask=used_mask, causal=causal)
    assert_within_budgets([result, expected], name, *inputs, mask=used_mask, causal=causal)


def test_heads_that_do_not_divide_the_width_raise() -> None:
    x = draw(4, 6)
    w_q, w_k, w_v, w_o = draw(2, 3, 6), draw(2, 3, 6), draw(2, 2, 6), draw(6, 4)
    with pytest.raises(ValueError, match=r"^multi_head_attention: w_v: expected heads × .* to be 6; got 2 × 2 and 6$"):
        backend.multi_head_attention(x, x, x, w_q, w_k, w_v, w_o)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention_of_empty_inputs_is_zero(shape: tuple[int, int, int], causal: bool) -> None:
    batch, n, m = shape
    weights = of_heads(2, 3)
    mask = torch.ones(batch, n, m, dtype=torch.bool)
    memory = draw(batch, m, 6)
    result = backend.multi_head_attention(draw(batch, n, 6), memory, memory, *weights, mask=mask, causal=causal)
    assert torch.equal(result, torch.zeros(batch, n, 6))


def attention_of(module: torch.nn.MultiheadAttention) -> MultiHeadParameters[Tensor]:
    torch.nn.init.zeros_(module.in_proj_bias)
    torch.nn.init.zeros_(module.out_proj.bias)
    heads = module.num_heads
    w_q, w_k, w_v = module.in_proj_weight.detach().reshape(3, heads, -1, module.embed_dim).unbind(0)
    return MultiHeadParameters(w_q, w_k, w_v, module.out_proj.weight.detach())


def norm_of(module: torch.nn.LayerNorm) -> LayerNormParameters[Tensor]:
    torch.nn.init.normal_(module.weight)
    torch.nn.init.normal_(module.bias)
    return LayerNormParameters(module.weight.detach(), module.bias.detach())


def network_of(
    layer: torch.nn.TransformerEncoderLayer | torch.nn.TransformerDecoderLayer,
) -> FeedForwardParameters[Tensor]:
    first, second = layer.linear1, layer.linear2
    return FeedForwardParameters(
        first.weight.detach(), first.bias.detach(), second.weight.detach(), second.bias.detach()
    )


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_an_encoder_layer_is_that_of_torch_nn(norm: str, evaluated: bool) -> None:
    d, heads, n = 8, 2, 5
    theirs = torch.nn.TransformerEncoderLayer(d, heads, 7, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    parameters = EncoderLayerParameters(
        attention_of(theirs.self_attn), norm_of(theirs.norm1), network_of(theirs), norm_of(theirs.norm2)
    )
    theirs.train(not evaluated)
    x, mask = draw(3, n, d), draw(3, n, n) > -1
    with torch.no_grad():
        expected = theirs(x, src_mask=(~mask).repeat_interleave(heads, 0))
    result = backend.encoder_layer(x, parameters, mask=mask, norm=norm)  # type: ignore[arg-type]  # one of the two
    assert_within_budgets([result, expected], "encoder_layer", x, parameters, mask=mask, norm=norm)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_decoder_layer_is_that_of_torch_nn(norm: str) -> None:
    d, heads, n, m = 8, 2, 5, 4
    theirs = torch.nn.TransformerDecoderLayer(d, heads, 7, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    parameters = DecoderLayerParameters(
        attention_of(theirs.self_attn),
        norm_of(theirs.norm1),
        attention_of(theirs.multihead_attn),
        norm_of(theirs.norm2),
        network_of(theirs),
        norm_of(theirs.norm3),
    )
    x, memory, memory_mask = draw(3, n, d), draw(3, m, d), draw(3, n, m) > -1
    later = torch.nn.Transformer.generate_square_subsequent_mask(n)
    with torch.no_grad():
        expected = theirs(x, memory, later, (~memory_mask).repeat_interleave(heads, 0))
    result = backend.decoder_layer(x, memory, parameters, memory_mask=memory_mask, norm=norm)  # type: ignore[arg-type]
    inputs = x, memory, parameters
    assert_within_budgets([result, expected], "decoder_layer", *inputs, memory_mask=memory_mask, norm=norm)


def test_both_attentions_of_a_decoder_have_the_same_number_of_heads() -> None:
    first, second = (attention_of(torch.nn.MultiheadAttention(8, heads)) for heads in (2, 4))
    norm, layer = norm_of(torch.nn.LayerNorm(8)), torch.nn.TransformerEncoderLayer(8, 2, 7)
    parameters = DecoderLayerParameters(first, norm, second, norm, network_of(layer), norm)
    with pytest.raises(ValueError, match=r"^decoder_layer: parameters.cross_attention.w_q: expected 2 heads, .*got 4$"):
        backend.decoder_layer(draw(3, 8), draw(4, 8), parameters)


@pytest.mark.parametrize("operation", ["encoder_layer", "decoder_layer"])
def test_an_unknown_norm_is_refused(operation: str) -> None:
    with pytest.raises(TypeError, match=rf"^{operation}: norm: expected 'post' or 'pre'; got 'none'$"):
        getattr(backend, operation)(*[None] * (3 if operation == "decoder_layer" else 2), norm="none")


def test_the_fast_path_of_an_encoder_layer_gives_nan_where_nothing_is_attendable() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 7, dropout=0.0, batch_first=True)
    hidden = torch.tensor([[False] * 3, [True] * 3, [False] * 3])
    rows = {}
    with torch.no_grad():
        for mode in (True, False):
            rows[mode] = layer.train(mode)(draw(1, 3, 8), src_mask=hidden).isnan().any(-1).tolist()
    assert rows == {True: [[False] * 3], False: [[False, True, False]]}


EVALUATED = """
from attnspec.backends.torch_native import TorchNative, transformer

layer = transformer.layer_of
transformer.layer_of = lambda *sizes: layer(*sizes).eval()


class Evaluated(TorchNative):
    name = "evaluated"
    semantics = {"masked_nonfinite": "propagates", "fully_masked": "nan"}
"""


JUDGED = ("operation.", "masking.", "semantics.")
"""Prefixes of laws that see a difference of the fast path."""

ODD_HEADS = "masking.rows-without-keys-as-declared"
"""A law not judged: with an odd number of heads PyTorch leaves the fast path and its NaN."""


def test_an_encoder_layer_on_the_fast_path_conforms_as_it_declares(tmp_path: Path) -> None:
    (tmp_path / "evaluated.py").write_text(EVALUATED, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "evaluated.py:Evaluated", "--profile"]
    chosen = ["quick", "--operation", "encoder_layer", "--dtype", "float64", "--workers", "1"]
    chosen += [part for law in LAWS if law.startswith(JUDGED) and law != ODD_HEADS for part in ("--law", law)]
    done = subprocess.run([*command, *chosen], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_biases_of_norms_are_summed_in_half_precision(dtype: torch.dtype) -> None:
    x, cotangent = draw(64, 8, dtype=dtype), draw(64, 8, dtype=dtype) + 1
    parameters = LayerNormParameters(torch.ones(8, dtype=dtype), torch.zeros(8, dtype=dtype))
    gradient = backend.vjp("layer_norm", {"x": x, "parameters": parameters}, cotangent)["parameters.bias"]
    running = torch.zeros(8, dtype=dtype)
    for row in cotangent:
        running = running + row
    assert torch.equal(gradient, running)
    assert not torch.equal(gradient, cotangent.double().sum(0).to(dtype))
