"""The modules of the PyTorch backend: the conventions of ``torch.nn``, and the operations that they call."""

import copy
import doctest
import io
import math
import pickle
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.pytorch import nn
from attnspec.reference import REFERENCE
from attnspec.spec import CHAPTERS, OPERATIONS, GatedFeedForwardParameters, ShapeError
from attnspec.spec.contract.tree import flatten
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

torch.set_num_threads(1)

B, N, M = 2, 5, 7


@dataclass(frozen=True)
class Case:
    """A module, its inputs, and the call of the backend that it stands for."""

    make: Callable[..., torch.nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    call: Callable[..., Any]
    shown: str
    """The sizes that ``repr`` shows."""
    masked: tuple[int, ...] = ()
    """The shape of the mask, if the module takes one."""
    causal: bool = False
    keeps: bool = False
    """True if the result keeps its dtype under autocast."""
    several: bool = False
    """True if the module calls several operations; then residual sums keep their dtype under autocast."""
    tokens: tuple[int, ...] = ()
    """The shape of the first input, if it is tokens; there are 9 tokens."""
    targets: tuple[int, ...] = ()
    """The shape of the second input, if it is tokens."""

    def inputs(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        numbers = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in self.shapes]
        tokens = [torch.randint(9, shape, generator=generator) for shape in (self.tokens, self.targets) if shape]
        return (*tokens, *numbers)

    def options(self) -> dict[str, Any]:
        """A mask that excludes half of the pairs, and the causal flag, if applicable."""
        options: dict[str, Any] = {}
        if self.masked:
            options["mask"] = torch.rand(self.masked, generator=torch.Generator().manual_seed(2)) < 0.5
        return options | ({"causal": True} if self.causal else {})


def apply(operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The operation's result; tests may pass a judge in place of this function."""
    return operation(*arguments, **options)


def by_weights(operation: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """The operation with weights of a module by name."""
    return lambda module, *inputs, by=apply, **how: by(
        operation, *inputs, **{x: getattr(module, x) for x in names}, **how
    )


def by_record(operation: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """The operation with the record of a module."""
    return lambda module, *inputs, by=apply, **how: by(operation, *inputs, module.record(), **fixed, **how)


LLAMA = ("attention_gain", "w_q", "w_k", "w_v", "w_o", "w_gate", "w_up", "w_down", "feed_forward_gain")


def llama(
    x: Any, attention_gain: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, w_gate: Any, w_up: Any, w_down: Any,
    feed_forward_gain: Any, *, mask: Any = None, positions: Any = None, epsilon: float = 1e-6, theta: float = 10000.0,
) -> Any:  # fmt: skip
    """Llama's layer: operations for tensors, the reference for arrays, where each head attends by itself."""
    if not isinstance(x, Tensor):
        y, heads, group = REFERENCE["rms_norm"](x, attention_gain, epsilon=epsilon), [], len(w_q) // len(w_k)
        for h, w in enumerate(w_q):
            query, key, value = (y @ matrix.T for matrix in (w, w_k[h // group], w_v[h // group]))
            query, key = (REFERENCE["rotary_embedding"](z, positions, theta=theta) for z in (query, key))
            heads.append(REFERENCE["scaled_dot_product_attention"](query, key, value, mask=mask, causal=True))
        x = x + np.concatenate(heads, axis=-1) @ w_o.T
        normalized = REFERENCE["rms_norm"](x, feed_forward_gain, epsilon=epsilon)
        return x + REFERENCE["gated_feed_forward"](normalized, GatedFeedForwardParameters(w_gate, w_up, w_down))
    y = pytorch.rms_norm(x, attention_gain, epsilon=epsilon)
    query, key, value = (
        torch.nn.functional.linear(y, w.flatten(0, 1)).reshape(*y.shape[:-1], *w.shape[:2]).transpose(-3, -2)
        for w in (w_q, w_k, w_v)
    )
    query, key = (pytorch.rotary_embedding(z, theta=theta) for z in (query, key))
    attended, _ = pytorch.grouped_query_attention(query, key, value, mask=mask, causal=True)
    x = x + torch.nn.functional.linear(attended.transpose(-3, -2).flatten(-2), w_o)
    normalized = pytorch.rms_norm(x, feed_forward_gain, epsilon=epsilon)
    return x + pytorch.gated_feed_forward(normalized, GatedFeedForwardParameters(w_gate, w_up, w_down))


def sums(x: Any, table: Any) -> Any:
    return x + table


def both_ways(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Stacked layers in both directions: the operation for tensors, the reference for arrays."""

    def network(x: Any, state: Any, record: Any) -> Any:
        run, stack = (operation, torch.stack) if isinstance(x, Tensor) else (REFERENCE[operation.__name__], np.stack)
        pair, finals = isinstance(state, tuple), []
        for i in range(0, len(record), 2):
            first = [tuple(s[..., j, :] for s in state) if pair else state[..., j, :] for j in (i, i + 1)]
            x, last = run(x, tuple(first), record[i : i + 2])
            finals += last
        return x, tuple(stack(parts, -2) for parts in zip(*finals, strict=True)) if pair else stack(finals, -2)

    return network


ATTENDED = ((B, N, 6), (B, M, 4), (B, M, 3))
CASES = {
    "DotProductAttention": Case(
        lambda **how: nn.DotProductAttention(), ((B, N, 6), (B, M, 6), (B, M, 3)),
        by_weights(pytorch.scaled_dot_product_attention), "scaled=True", (N, M), True,
    ),
    "DotProductAttention, not scaled": Case(
        lambda **how: nn.DotProductAttention(scaled=False), ((B, N, 6), (B, M, 6), (B, M, 3)),
        by_weights(pytorch.dot_product_attention), "scaled=False", (N, M), True,
    ),
    "AdditiveAttention": Case(
        lambda **how: nn.AdditiveAttention(6, 8, kdim=4, **how), ATTENDED,
        by_weights(pytorch.additive_attention, "w_q", "w_k", "w_v"), "embed_dim=6, hidden_dim=8, kdim=4", (N, M), True,
    ),
    "GeneralAttention": Case(
        lambda **how: nn.GeneralAttention(6, kdim=4, **how), ATTENDED,
        by_weights(pytorch.general_attention, "w"), "embed_dim=6, kdim=4", (N, M), True,
    ),
    "MultiHeadAttention": Case(
        lambda **how: nn.MultiHeadAttention(6, 2, kdim=4, vdim=3, **how), ATTENDED,
        by_weights(pytorch.multi_head_attention, "w_q", "w_k", "w_v", "w_o"),
        "embed_dim=6, num_heads=2, kdim=4, vdim=3", (N, M), True,
    ),
    "MultiHeadAdditiveAttention": Case(
        lambda **how: nn.MultiHeadAdditiveAttention(6, 2, 8, kdim=4, vdim=3, **how), ATTENDED,
        by_weights(pytorch.multi_head_additive_attention, "w_q", "w_k", "w_v", "w_o", "a_q", "a_k", "a_v"),
        "embed_dim=6, num_heads=2, hidden_dim=8, kdim=4, vdim=3", (N, M), True,
    ),
    "SinusoidalPositionalEncoding": Case(
        lambda **how: nn.SinusoidalPositionalEncoding(6, 9, **how), ((B, N, 6),),
        lambda module, x, by=apply: by(sums, x, module.table[:N]), "d_model=6, max_len=9, concat=False", keeps=True,
    ),
    "SinusoidalPositionalEncoding, concatenated": Case(
        lambda **how: nn.SinusoidalPositionalEncoding(4, 9, concat=True, **how), ((B, N, 6),),
        lambda module, x, by=apply: by(pytorch.concat_positions, x, module.table[:N]),
        "d_model=4, max_len=9, concat=True", keeps=True,
    ),
    "LearnedPositions": Case(
        lambda **how: nn.LearnedPositions(6, 9, **how), ((B, N, 6),),
        lambda module, x, by=apply: by(pytorch.add_positions, x, pytorch.learned_positions(module.table, N)),
        "d_model=6, max_len=9", keeps=True,
    ),
    "RNNCell": Case(lambda **how: nn.RNNCell(6, 4, **how), ((B, 6), (B, 4)), by_record(pytorch.rnn_cell), "6, 4"),
    "GRUCell": Case(lambda **how: nn.GRUCell(6, 4, **how), ((B, 6), (B, 4)), by_record(pytorch.gru_cell), "6, 4"),
    "LSTMCell": Case(
        lambda **how: nn.LSTMCell(6, 4, **how), ((B, 6),),
        lambda module, x, by=apply: by(pytorch.lstm_cell, x, (x.new_zeros(B, 4),) * 2, module.record()), "6, 4",
    ),
    "RNN": Case(
        lambda **how: nn.RNN(6, 4, **how), ((B, N, 6), (B, 1, 4)), by_record(pytorch.stacked_rnn),
        "6, 4, num_layers=1, bidirectional=False",
    ),
    "RNN, stacked both ways": Case(
        lambda **how: nn.RNN(6, 4, 2, bidirectional=True, **how), ((B, N, 6), (B, 4, 4)),
        by_record(both_ways(pytorch.bidirectional_rnn)), "6, 4, num_layers=2, bidirectional=True",
    ),
    "GRU": Case(
        lambda **how: nn.GRU(6, 4, 2, **how), ((B, N, 6), (B, 2, 4)), by_record(pytorch.stacked_gru),
        "6, 4, num_layers=2, bidirectional=False",
    ),
    "GRU, both ways": Case(
        lambda **how: nn.GRU(6, 4, 2, bidirectional=True, **how), ((B, N, 6), (B, 4, 4)),
        by_record(both_ways(pytorch.bidirectional_gru)), "6, 4, num_layers=2, bidirectional=True",
    ),
    "LSTM": Case(
        lambda **how: nn.LSTM(6, 4, 2, **how), ((B, N, 6),),
        lambda module, x, by=apply: by(pytorch.stacked_lstm, x, (x.new_zeros(B, 2, 4),) * 2, module.record()),
        "6, 4, num_layers=2, bidirectional=False",
    ),
    "LSTM, both ways": Case(
        lambda **how: nn.LSTM(6, 4, bidirectional=True, **how), ((B, N, 6),),
        lambda module, x, by=apply: by(
            both_ways(pytorch.bidirectional_lstm), x, (x.new_zeros(B, 2, 4),) * 2, module.record()
        ), "6, 4, num_layers=1, bidirectional=True",
    ),
    "BahdanauAttention": Case(
        lambda **how: nn.BahdanauAttention(6, 4, 8, **how), ((B, 6), (B, M, 4)),
        by_weights(pytorch.bahdanau_context, "w_q", "w_k", "w_v"), "state_dim=6, annotation_dim=4, hidden_dim=8", (M,),
    ),
    "LuongAttention, dot": Case(
        lambda **how: nn.LuongAttention(6, score="dot", **how), ((B, 6), (B, M, 6)),
        by_weights(pytorch.luong_context_dot), "score='dot'", (M,),
    ),
    "LuongAttention, general": Case(
        lambda **how: nn.LuongAttention(6, 4, **how), ((B, 6), (B, M, 4)),
        by_weights(pytorch.luong_context_general, "w"), "score='general', w=(6, 4)", (M,),
    ),
    "LuongAttention, location": Case(
        lambda **how: nn.LuongAttention(6, score="location", num_positions=M, **how), ((B, 6), (B, M, 4)),
        by_weights(pytorch.luong_context_location, "w"), "score='location', w=(7, 6)", (M,),
    ),
    "BahdanauDecoder": Case(
        lambda **how: nn.BahdanauDecoder(9, 3, 6, 4, 8, **how), ((B, 6), (B, M, 4)),
        by_record(pytorch.teacher_forced_decode),
        "num_embeddings=9, embedding_dim=3, hidden_size=6, annotation_dim=4, attention_dim=8", (M,), tokens=(B, N),
    ),
    "LayerNorm": Case(
        lambda **how: nn.LayerNorm(6, **how), ((B, N, 6),), by_record(pytorch.layer_norm), "6", keeps=True
    ),
    "FeedForward": Case(
        lambda **how: nn.FeedForward(6, 8, **how), ((B, N, 6),), by_record(pytorch.feed_forward),
        "d_model=6, dim_feedforward=8",
    ),
    "TransformerEncoderLayer": Case(
        lambda **how: nn.TransformerEncoderLayer(6, 2, 8, **how), ((B, N, 6),),
        by_record(pytorch.encoder_layer), "norm_first=False", (N, N),
    ),
    "TransformerEncoderLayer, norm first": Case(
        lambda **how: nn.TransformerEncoderLayer(6, 2, 8, norm_first=True, **how), ((B, N, 6),),
        by_record(pytorch.encoder_layer, norm="pre"), "norm_first=True", (N, N),
    ),
    "TransformerEncoder": Case(
        lambda **how: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, norm_first=True, **how), 2),
        ((B, N, 6),), by_record(pytorch.encoder_stack, norm="pre"), "norm_first=True", (N, N),
    ),
    "TransformerDecoderLayer": Case(
        lambda **how: nn.TransformerDecoderLayer(6, 2, 8, memory_dim=4, **how), ((B, N, 6), (B, M, 4)),
        by_record(pytorch.decoder_layer), "norm_first=False", (N, N),
    ),
    "TransformerDecoderLayer, norm first": Case(
        lambda **how: nn.TransformerDecoderLayer(6, 2, 8, norm_first=True, **how), ((B, N, 6), (B, M, 6)),
        by_record(pytorch.decoder_layer, norm="pre"), "norm_first=True", (N, N),
    ),
    "TransformerDecoder": Case(
        lambda **how: nn.TransformerDecoder(nn.TransformerDecoderLayer(6, 2, 8, **how), 2),
        ((B, N, 6), (B, M, 6)), by_record(pytorch.decoder_stack), "norm_first=False", (N, N),
    ),
    "LlamaLayer": Case(
        lambda **how: nn.LlamaLayer(16, 4, 6, nhead_k=2, **how), ((B, N, 16),), by_weights(llama, *LLAMA),
        "d_model=16, nhead=4, dim_feedforward=6, nhead_k=2, epsilon=1e-06, theta=10000", (N, N), several=True,
    ),
    "Transformer": Case(
        lambda **how: nn.Transformer(12, 9, 6, 2, 2, 2, 8, **how), (), by_record(pytorch.encoder_decoder),
        "num_source_embeddings=12, num_embeddings=9, d_model=6", (N, N), tokens=(B, M), targets=(B, N),
    ),
    "DecoderOnly": Case(
        lambda **how: nn.DecoderOnly(9, 11, 6, 2, 2, 8, **how), (), by_record(pytorch.decoder_only),
        "num_embeddings=9, max_len=11, d_model=6", (N, N), tokens=(B, N),
    ),
    "EncoderOnly": Case(
        lambda **how: nn.EncoderOnly(9, 11, 6, 2, 2, 8, **how), (), by_record(pytorch.encoder_only),
        "num_embeddings=9, max_len=11, d_model=6", (N, N), tokens=(B, N),
    ),
    "PatchEmbedding": Case(
        lambda **how: nn.PatchEmbedding((4, 6), 2, 8, 3, **how), ((B, 4, 6, 3),), by_record(pytorch.patch_embedding),
        "patches=6, patch_size=2, embed_dim=8, in_channels=3",
    ),
    "VisionTransformer": Case(
        lambda **how: nn.VisionTransformer(4, 2, 8, 2, 2, 16, 3, **how), ((B, 4, 4, 3),),
        lambda module, image, by=apply: by(
            pytorch.vit_encoder, image, module.embedding.record(),
            tuple(x.record() for x in module.layers), module.final_norm.record()
        ), "",
    ),
    "AttentionGate": Case(
        lambda **how: nn.AttentionGate(6, 4, 8, **how), ((B, 1, 4, 6, 6), (B, 1, 2, 3, 4)),
        by_record(pytorch.attention_gate), "in_channels=6, gating_channels=4, hidden_dim=8",
    ),
    "AttentionSkip": Case(
        lambda **how: nn.AttentionSkip(6, 4, 8, **how), ((B, 1, 4, 6, 6), (B, 1, 2, 3, 4)),
        by_record(pytorch.attention_skip), "in_channels=6, gating_channels=4, hidden_dim=8",
    ),
    "SpatialAttention": Case(
        lambda **how: nn.SpatialAttention(6, 4, 8, **how), ((B, 6), (B, 2, 3, 4)),
        by_weights(pytorch.spatial_attention, "w_q", "w_k", "w_v"), "state_dim=6, in_channels=4, hidden_dim=8",
    ),
}  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
CHAPTER_MODULES = [import_module(f"attnspec.backends.pytorch.nn.{c}") for c in CHAPTERS if hasattr(nn, c)]
PUBLIC = [getattr(module, name) for module in CHAPTER_MODULES for name in module.__all__]


def tensors(result: Any) -> tuple[Tensor, ...]:
    return tuple(flatten(result).values())


def equal(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(second), strict=True))


def test_every_module_is_tried() -> None:
    assert {type(case.make()) for case in CASES.values()} == set(PUBLIC)


def test_modules_stand_in_the_package() -> None:
    assert all(getattr(nn, c.__name__) is c for c in PUBLIC)
    assert pytorch.nn is nn


def test_the_documentation_lists_every_module_with_its_operations() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")
    section = page.partition("\n## Modules\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE)
    rows = {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in table}
    assert rows == {c.__name__: sources(c) for c in PUBLIC}
    assert set().union(*rows.values()) <= set(OPERATIONS)


def sources(kind: type) -> set[str]:
    """The operations that a docstring cites."""
    (cited,) = re.findall(r"Source: (.*?)\.\s", kind.__doc__ or "", re.DOTALL)
    return set(re.findall(r"``(\w+)``", cited))


FILES = [import_module(info.name) for info in pkgutil.walk_packages(nn.__path__, f"{nn.__name__}.")]


@pytest.mark.parametrize("module", FILES, ids=lambda m: m.__name__)
def test_examples_in_docstrings_run(module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.failed == 0
    public = [c for c in PUBLIC if c.__module__ == module.__name__]
    assert result.attempted >= len(public)


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda c: c.__name__)
def test_a_docstring_says_shapes_beginnings_errors_source_and_gives_an_example(kind: type) -> None:
    doc = kind.__doc__ or ""
    assert [part for part in ("Args:", "Shape:", "Source: ", ">>> ") if part not in doc] == []
    has_weights = any(
        p.requires_grad for case in CASES.values() if type(case.make()) is kind for p in case.make().parameters()
    )
    assert ("Initialisation:" in doc) == has_weights


@each_case
def test_a_module_computes_its_operation(case: Case) -> None:
    module, inputs, options = case.make(), case.inputs(), case.options()
    assert equal(module(*inputs, **options), case.call(module, *inputs, **options))
    assert equal(module(*inputs), case.call(module, *inputs))


@each_case
def test_gradients_reach_every_parameter(case: Case) -> None:
    module, inputs = case.make(dtype=torch.float64), case.inputs(torch.float64)
    total = sum((x.square().sum() for x in tensors(module(*inputs))), torch.zeros((), dtype=torch.float64))
    if not list(module.parameters()):
        assert not total.requires_grad
        return
    torch.autograd.backward(total)
    without = [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    # the state is zeros, and so is whatever is multiplied by it
    first_step = {"w_hi", "w_hf", "w_ho", "w_hc", "w_xf", "b_f"} if isinstance(module, nn.LSTMCell) else set()
    assert set(without) == first_step


@each_case
def test_a_module_with_a_loaded_state_dict_is_equal(case: Case) -> None:
    original, loaded = case.make(), case.make()
    file = io.BytesIO()
    torch.save(original.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file))
    assert equal(original(*case.inputs()), loaded(*case.inputs()))


@each_case
def test_modules_are_copied_and_pickled(case: Case) -> None:
    module, inputs, options = case.make(), case.inputs(), case.options()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert equal(module(*inputs, **options), twin(*inputs, **options))
        assert repr(twin) == repr(module)
        assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in module.parameters()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@each_case
def test_a_module_has_the_dtype_it_is_made_or_moved_to(case: Case, dtype: torch.dtype) -> None:
    created, moved = case.make(dtype=dtype), case.make().to(dtype)
    moved.load_state_dict(created.state_dict())
    inputs, options = case.inputs(dtype), case.options()
    assert equal(created(*inputs, **options), moved(*inputs, **options))
    assert {x.dtype for x in tensors(moved(*inputs, **options))} == {dtype}


@each_case
def test_a_module_made_on_meta_gets_weights_on_the_cpu(case: Case) -> None:
    module = case.make(device="meta")
    inputs = [x.to("meta") for x in case.inputs()]
    assert {x.device.type for x in tensors(module(*inputs))} == {"meta"}
    real = module.to_empty(device="cpu")
    parts: list[Any] = [part for part in real.modules() if hasattr(part, "reset_parameters")]
    for part in parts:
        part.reset_parameters()
    assert all(bool(x.isfinite().all()) for x in tensors(real(*case.inputs())))


@pytest.mark.slow
@each_case
def test_a_module_compiles_as_one_graph(case: Case) -> None:
    module, inputs, options = case.make(), case.inputs(), case.options()
    torch.compiler.reset()
    # the operations go through aot_eager in test_pytorch; a module adds only what is traced
    compiled: Any = torch.compile(module, fullgraph=True, backend="eager")
    results = [run(*inputs, **options) for run in (compiled, module)]

    def judge(operation: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        assert_within_budgets(results, REFERENCE.get(operation.__name__, operation), *arguments, **named)

    case.call(module, *inputs, by=judge, **options)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_model_has_gradients(dynamic: bool) -> None:
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8), 2)
    torch.compiler.reset()
    compiled: Any = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n in (5, 7):
        x = torch.randn(B, n, 6)
        cotangent = torch.randn(B, n, 6)
        leaves = tensors(module.record())
        gradients = [(None, *torch.autograd.grad(run(x), leaves, cotangent)) for run in (compiled, module)]
        assert_gradients_within_budgets(gradients, cotangent, "encoder_stack", x, module.record())


def test_weights_may_be_parametrized() -> None:
    module: Any = nn.RNNCell(6, 4)
    torch.nn.utils.parametrizations.orthogonal(module, "w_hh")
    x, state = torch.randn(B, 6), torch.randn(B, 4)
    w_hh = module.record().w_hh
    assert torch.equal(w_hh, module.w_hh)
    assert not w_hh.is_leaf  # it is computed from the original
    assert equal(module(x, state), pytorch.rnn_cell(x, state, module.record()))


@each_case
def test_autocast_decides_the_dtype_of_a_module(case: Case) -> None:
    module, inputs = case.make(), case.inputs()
    with torch.autocast("cpu", torch.bfloat16):
        result = module(*inputs)
        if case.several:
            assert result.dtype == torch.float32
            assert equal(result, case.call(module, *inputs))
            return
    low = torch.float32 if case.keeps else torch.bfloat16
    assert equal(result, module.to(low)(*[x.to(low) if x.is_floating_point() else x for x in inputs]))


@each_case
def test_sizes_are_shown(case: Case) -> None:
    module = case.make()
    assert module.extra_repr() == case.shown


@each_case
def test_drawing_anew_draws_what_the_constructor_does(case: Case) -> None:
    torch.manual_seed(3)
    module: Any = case.make()
    if not list(module.parameters()):
        return
    before = copy.deepcopy(module.state_dict())
    if isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder):
        # Its layers begin as copies of one.
        module.reset_parameters()
        first, second = module.record()
        assert not torch.equal(first.attention.w_q, second.attention.w_q)
        return
    torch.manual_seed(3)
    module.reset_parameters()
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())


XAVIER_3 = math.sqrt(6 / (96 + 3 * 96))
"""Xavier's bound for the joint weights of query, key and value, (3 · 96, 96)."""
BOUNDS: Mapping[str, tuple[Callable[[], torch.nn.Module], Mapping[str, float]]] = {
    "AdditiveAttention": (lambda: nn.AdditiveAttention(64, 100, kdim=81), {"w_q": 1 / 8, "w_k": 1 / 9, "w_v": 1 / 10}),
    "GeneralAttention": (lambda: nn.GeneralAttention(64, kdim=81), {"w": 1 / 8}),
    "MultiHeadAttention": (
        lambda: nn.MultiHeadAttention(96, 4),
        {"w_q": XAVIER_3, "w_k": XAVIER_3, "w_v": XAVIER_3, "w_o": 96**-0.5},
    ),
    "MultiHeadAttention of several widths": (
        lambda: nn.MultiHeadAttention(96, 4, kdim=54, vdim=120),
        {"w_q": math.sqrt(6 / 192), "w_k": math.sqrt(6 / 150), "w_v": math.sqrt(6 / 216), "w_o": 96**-0.5},
    ),
    "MultiHeadAdditiveAttention": (
        lambda: nn.MultiHeadAdditiveAttention(96, 4, 49),
        {"w_q": XAVIER_3, "w_o": 96**-0.5, "a_q": 24**-0.5, "a_k": 24**-0.5, "a_v": 1 / 7},
    ),
    "RNNCell": (lambda: nn.RNNCell(100, 64), {"w_xh": 1 / 8, "w_hh": 1 / 8, "b_h": 1 / 8}),
    "GRUCell": (lambda: nn.GRUCell(100, 64), {"w_xr": 1 / 8, "w_hh": 1 / 8, "b_z": 1 / 8}),
    "LSTMCell": (lambda: nn.LSTMCell(100, 64), {"w_xi": 1 / 8, "w_ho": 1 / 8, "b_c": 1 / 8}),
    "BahdanauAttention": (lambda: nn.BahdanauAttention(64, 81, 100), {"w_q": 1 / 8, "w_k": 1 / 9, "w_v": 1 / 10}),
    "LuongAttention, general": (lambda: nn.LuongAttention(64, 81), {"w": 1 / 8}),
    "LuongAttention, location": (lambda: nn.LuongAttention(64, score="location", num_positions=50), {"w": 1 / 8}),
    "BahdanauDecoder": (
        lambda: nn.BahdanauDecoder(30, 36, 64, 64, 49),
        {"w_q": 1 / 8, "w_v": 1 / 7, "w_o": 1 / 8, "b_o": 1 / 8, "cell.w_xh": 1 / 8},
    ),
    "DecoderOnly": (lambda: nn.DecoderOnly(30, 40, 64, 4, 1, 49), {"w": 1 / 8, "b": 1 / 8}),
    "Transformer": (lambda: nn.Transformer(30, 40, 64, 4, 1, 1, 49), {"w": 1 / 8, "decoder.0.feed_forward.w_2": 1 / 7}),
    "LlamaLayer": (lambda: nn.LlamaLayer(64, 4, 100), {"w_q": 1 / 8, "w_o": 1 / 8, "w_up": 1 / 8, "w_down": 1 / 10}),
    "PatchEmbedding": (lambda: nn.PatchEmbedding(16, 4, 64, 4), {"w": 1 / 8}),
    "AttentionGate": (lambda: nn.AttentionGate(64, 81, 100), {"w_x": 1 / 8, "w_g": 1 / 9, "b_g": 1 / 9, "psi": 1 / 10}),
    "SpatialAttention": (lambda: nn.SpatialAttention(64, 81, 100), {"w_q": 1 / 8, "w_k": 1 / 9, "w_v": 1 / 10}),
    "FeedForward": (lambda: nn.FeedForward(64, 100), {"w_1": 1 / 8, "b_1": 1 / 8, "w_2": 1 / 10, "b_2": 1 / 10}),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_weights_begin_uniform_within_their_bounds(name: str) -> None:
    torch.manual_seed(4)
    make, bounds = BOUNDS[name]
    state = make().state_dict()
    for path, bound in bounds.items():
        w = state[path]
        assert float(w.abs().max()) <= bound
        # The largest of k uniform numbers is below (1 − 14/k) with probability e⁻¹⁴.
        assert float(w.abs().max()) >= bound * (1 - 14 / w.numel())
        assert abs(float(w.mean())) <= 6 * bound / math.sqrt(3 * w.numel())


PAIRS: list[tuple[Callable[[], torch.nn.Module], Callable[[], torch.nn.Module], Mapping[str, str]]] = [
    (
        lambda: nn.MultiHeadAttention(96, 4),
        lambda: torch.nn.MultiheadAttention(96, 4),
        {"w_q": "in_proj_weight", "w_o": "out_proj.weight"},
    ),
    (
        lambda: nn.MultiHeadAttention(96, 4, kdim=54, vdim=120),
        lambda: torch.nn.MultiheadAttention(96, 4, kdim=54, vdim=120),
        {"w_q": "q_proj_weight", "w_k": "k_proj_weight", "w_v": "v_proj_weight"},
    ),
    (lambda: nn.LSTMCell(50, 60), lambda: torch.nn.LSTMCell(50, 60), {"w_xi": "weight_ih", "b_f": "bias_ih"}),
    (
        lambda: nn.FeedForward(64, 100),
        lambda: torch.nn.TransformerEncoderLayer(64, 4, 100),
        {"w_1": "linear1.weight", "b_2": "linear2.bias"},
    ),
]


@pytest.mark.parametrize(("ours", "theirs", "names"), PAIRS)
def test_weights_begin_as_those_of_pytorch_do(
    ours: Callable[[], torch.nn.Module], theirs: Callable[[], torch.nn.Module], names: Mapping[str, str]
) -> None:
    """Of many modules, the largest weights of both lie just below one bound."""
    torch.manual_seed(5)

    def largest(make: Callable[[], torch.nn.Module], name: str) -> float:
        return max(float(make().state_dict()[name].abs().max()) for _ in range(20))

    for mine, other in names.items():
        assert abs(largest(ours, mine) / largest(theirs, other) - 1) < 0.02


def test_positions_begin_normal() -> None:
    torch.manual_seed(6)
    table = nn.LearnedPositions(100, 100).table.detach()
    assert abs(float(table.mean())) < 6e-2
    assert abs(float(table.std()) - 1) < 6 / math.sqrt(2e4)


def test_embeddings_begin_normal() -> None:
    torch.manual_seed(8)
    model, text = nn.Transformer(200, 300, 100, 4, 1, 1, 8), nn.EncoderOnly(200, 300, 100, 4, 1, 8)
    deviations = {model.source_embedding: 0.1, model.target_embedding: 0.1, text.embedding: 1.0, text.positions: 1.0}
    for table, expected in deviations.items():
        assert abs(float(table.detach().std()) / expected - 1) < 6 / math.sqrt(2 * table.numel())


@pytest.mark.parametrize("norm_first", [False, True])
def test_steps_of_a_decoder_layer_are_its_rows(norm_first: bool) -> None:
    layer = nn.TransformerDecoderLayer(6, 2, 8, memory_dim=4, norm_first=norm_first)
    x, memory, seen = torch.randn(B, N, 6), torch.randn(B, M, 4), torch.arange(M) < 4
    cache, rows = layer.empty_cache(B), []
    for row in x.unbind(1):
        y, cache = layer.step(row, cache, memory, memory_mask=seen)
        rows.append(y)
    options: dict[str, Any] = {"memory_mask": seen.expand(N, M), "norm": "pre" if norm_first else "post"}
    every = layer(x, memory, memory_mask=seen.expand(N, M))
    assert_within_budgets([torch.stack(rows, 1), every], "decoder_layer", x, memory, layer.record(), **options)


def test_positions_of_patches_begin_small() -> None:
    torch.manual_seed(7)
    embedding = nn.PatchEmbedding(80, 8, 100)
    assert not embedding.class_token.any()
    assert abs(float(embedding.positions.detach().std()) / 0.02 - 1) < 6 / math.sqrt(2e4)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_lengths_cut_sequences_short(name: str, bidirectional: bool) -> None:
    network, x = getattr(nn, name.upper())(6, 4, 2, bidirectional=bidirectional), torch.randn(3, N, 6)
    states, final = network(x, lengths=torch.tensor([N, 2, 0]))
    alone, last = network(x[1, :2])
    assert not states[1, 2:].any()
    assert not any(part[2].any() for part in tensors((states, final)))
    cut = states[1, :2], tuple(h[1] for h in final) if name == "lstm" else final[1]
    before = torch.zeros(4 if bidirectional else 2, 4)
    inputs = x[1, :2], (before, before) if name == "lstm" else before, network.record()
    formula = both_ways(getattr(pytorch, f"bidirectional_{name}")) if bidirectional else f"stacked_{name}"
    assert_within_budgets([cut, (alone, last)], formula, *inputs)


def test_a_decoder_takes_one_step() -> None:
    case = CASES["BahdanauDecoder"]
    decoder: Any = case.make()
    tokens, state, annotations = case.inputs()
    mask = case.options()["mask"]
    expected = pytorch.decoder_step(tokens[:, 0], state, annotations, decoder.record(), mask=mask)
    assert equal(decoder.step(tokens[:, 0], state, annotations, mask=mask), expected)


def test_a_decoder_decodes() -> None:
    case = CASES["BahdanauDecoder"]
    decoder: Any = case.make()
    tokens, state, annotations = case.inputs()
    inputs, mask = (tokens[:, 0], state, annotations), case.options()["mask"]
    greedy = decoder.greedy_decode(*inputs, 4, 1, mask=mask)
    assert equal(greedy, pytorch.greedy_decode(*inputs, decoder.record(), 4, 1, mask=mask))
    assert equal(decoder.beam_decode(*inputs, 4, 1, 3), pytorch.beam_decode(*inputs, decoder.record(), 4, 1, 3))
    assert torch.equal(decoder.beam_decode(*inputs, 4, 1, 1, mask=mask)[0], greedy[0])


def test_norms_begin_as_the_identity_map() -> None:
    norm = nn.LayerNorm(6)
    assert norm.gain.tolist() == [1.0] * 6
    assert norm.bias.tolist() == [0.0] * 6


def test_a_table_of_sines_is_exact_in_every_dtype() -> None:
    wide = pytorch.nn.SinusoidalPositionalEncoding(6, 5000, dtype=torch.float64).table
    module = nn.SinusoidalPositionalEncoding(6, 5000).to(torch.bfloat16).to(torch.float64)
    assert torch.equal(module.table, wide)
    assert torch.equal(nn.SinusoidalPositionalEncoding(6, 5000).table, pytorch.sinusoidal_positional_encoding(5000, 6))
    assert module.state_dict() == {}


@each_case
def test_a_module_made_of_its_record_is_equal(case: Case) -> None:
    module: Any = case.make()
    stack = isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder | nn.RNN | nn.GRU | nn.LSTM)
    if not stack and not isinstance(module, nn.records.Recorded):
        return
    options = {name: getattr(module, name) for name in ("norm_first", "bidirectional") if hasattr(module, name)}
    twin = type(module).from_record(module.record(), **options)
    assert equal(module(*case.inputs()), twin(*case.inputs()))
    root = "layers" if stack else ""
    paths = [f"{root}{path}".replace("[", ".").replace("]", "") for path in flatten(module.record())]
    weight_by_name = dict(zip(paths, tensors(module.record()), strict=True))
    assert sorted(weight_by_name) == sorted(module.state_dict())
    assert all(weight_by_name[name] is p for name, p in module.named_parameters())


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.AdditiveAttention(0, 4), "AdditiveAttention: embed_dim: expected at least 1; got 0"),
    (lambda: nn.GeneralAttention(4, kdim=-1), "GeneralAttention: kdim: expected at least 1; got -1"),
    (
        lambda: nn.MultiHeadAttention(16, 3),
        "MultiHeadAttention: embed_dim: expected a multiple of num_heads = 3; got 16",
    ),
    (
        lambda: nn.MultiHeadAdditiveAttention(16, 0, 4),
        "MultiHeadAdditiveAttention: num_heads: expected at least 1; got 0",
    ),
    (lambda: nn.LlamaLayer(8, 4, 6, nhead_k=3), "LlamaLayer: nhead: expected a multiple of nhead_k = 3; got 4"),
    (
        lambda: nn.LlamaLayer(12, 4, 6),
        "LlamaLayer: d_model: expected an even number of features for each of 4 heads; got 12",
    ),
    (lambda: nn.LSTMCell(0, 4), "LSTMCell: input_size: expected at least 1; got 0"),
    (lambda: nn.GRU(3, 4, 0), "GRU: num_layers: expected at least 1; got 0"),
    (
        lambda: nn.RNN(3, 4, 2, bidirectional=True)(torch.zeros(5, 3), torch.zeros(2, 4)),
        "RNN: state: expected a state for each of the 4 cells, (*batch, 4, h); got (2, 4)",
    ),
    (lambda: nn.LearnedPositions(4, 0), "LearnedPositions: max_len: expected at least 1; got 0"),
    (
        lambda: nn.SinusoidalPositionalEncoding(4, 3)(torch.zeros(5, 4)),
        "SinusoidalPositionalEncoding: x: expected at most max_len = 3 positions; got 5",
    ),
    (
        lambda: nn.LuongAttention(4, score="concat"),  # type: ignore[arg-type]
        "LuongAttention: score: expected 'dot', 'general' or 'location'; got 'concat'",
    ),
    (
        lambda: nn.LuongAttention(4, score="location"),
        "LuongAttention: num_positions: expected a number of annotations for 'location'; got None",
    ),
    (
        lambda: nn.LuongAttention(4, num_positions=3),
        "LuongAttention: num_positions: expected None for 'general'; got 3",
    ),
    (lambda: nn.LuongAttention(4, 5, score="dot"), "LuongAttention: annotation_dim: expected state_dim = 4; got 5"),
    (lambda: nn.LayerNorm(0), "LayerNorm: normalized_shape: expected at least 1; got 0"),
    (lambda: nn.DecoderOnly(9, 0), "DecoderOnly: max_len: expected at least 1; got 0"),
    (lambda: nn.Transformer(9, 9, num_decoder_layers=0), "Transformer: num_decoder_layers: expected at least 1; got 0"),
    (lambda: nn.PatchEmbedding((4, 5), 2, 8), "PatchEmbedding: width: expected a multiple of patch_size = 2; got 5"),
    (lambda: nn.AttentionGate(4, 0, 2), "AttentionGate: gating_channels: expected at least 1; got 0"),
    (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), -1),
        "TransformerEncoder: num_layers: expected at least 0; got -1",
    ),
    (lambda: nn.RNN.from_record(()), "RNN: layers: expected at least one cell; got 0"),
    (
        lambda: nn.RNN.from_record((nn.RNNCell(3, 4).record(),), bidirectional=True),
        "RNN: layers: expected cells in pairs, the forward one first; got 1",
    ),
]

UNFIT: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.LSTM(3, 4, 1.0), "LSTM: num_layers: expected an integer; got 1.0"),  # type: ignore[arg-type]
    (lambda: nn.LSTMCell(3, True), "LSTMCell: hidden_size: expected an integer; got True"),
    (lambda: nn.MultiHeadAttention(8, "2"), "MultiHeadAttention: num_heads: expected an integer; got '2'"),  # type: ignore[arg-type]
    (lambda: nn.RNN(3, 4)(None), "RNN: x: expected a torch.Tensor; got NoneType"),  # type: ignore[arg-type]
    (lambda: nn.LSTMCell(3, 4)(None), "LSTMCell: x: expected a torch.Tensor; got NoneType"),  # type: ignore[arg-type]
    (
        # one array for a batch of two, which could be taken for the pair
        lambda: nn.LSTM(3, 4, bidirectional=True)(torch.zeros(2, 5, 3), torch.zeros(2, 2, 4)),  # type: ignore[arg-type]
        "LSTM: state: expected a tuple of 2, (h, c); got Tensor",
    ),
    (
        lambda: nn.LSTM(3, 4, bidirectional=True)(torch.zeros(5, 3), (torch.zeros(2, 4),)),  # type: ignore[arg-type]
        "LSTM: state: expected a tuple of 2, (h, c); got a tuple of 1",
    ),
    (
        lambda: nn.GRU(3, 4, bidirectional=True)(torch.zeros(5, 3), (torch.zeros(2, 4),)),  # type: ignore[arg-type]
        "GRU: state: expected a torch.Tensor; got tuple",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_sizes_are_named(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        wrong()
    assert str(caught.value) == message


@pytest.mark.parametrize(("wrong", "message"), UNFIT, ids=[message for _, message in UNFIT])
def test_an_argument_of_the_wrong_kind_is_named(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        wrong()
    assert str(caught.value) == message


def test_layers_that_normalize_elsewhere_are_refused_by_a_stack() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1)
    encoder.layers.append(nn.TransformerEncoderLayer(4, 2, 8, norm_first=True))
    expected = r"^TransformerEncoder: layers\[1\].norm_first: expected False like norm_first of the stack; got True$"
    with pytest.raises(ValueError, match=expected):
        encoder(torch.zeros(3, 4))


def test_wrong_inputs_are_named_by_the_operation() -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8)
    with pytest.raises(ShapeError, match=r"^encoder_layer: \S+: expected .*; got "):
        layer(torch.zeros(5, 7))
    with pytest.raises(ShapeError, match=r"^learned_positions: table: expected .*; got "):
        nn.LearnedPositions(4, 3)(torch.zeros(5, 4))
    with pytest.raises(TypeError, match=r"^encoder_layer: mask: expected torch.bool, True = may attend"):
        layer(torch.zeros(5, 6), mask=torch.zeros(5, 5))


def test_a_decoder_looks_only_at_the_memory_that_it_may() -> None:
    layer = nn.TransformerDecoderLayer(6, 2, 8)
    x, memory = torch.randn(N, 6), torch.randn(M, 6)
    seen = torch.arange(M) < 3
    stack, mask = nn.TransformerDecoder(layer, 1), seen.expand(N, M)
    results = [layer(x, memory[:3]), *(run(x, memory, memory_mask=mask) for run in (layer, stack))]
    assert_within_budgets(results, "decoder_layer", x, memory, layer.record(), memory_mask=mask)


def test_an_encoder_without_layers_is_the_identity_map() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 0)(x), x)
