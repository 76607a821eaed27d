"""Paths of attention in groups of heads on CUDA, tested without a GPU.

``flex`` runs on the CPU as it is written. Flash kernels are replaced by functions that compute their definition.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flexible
from torch.nn.attention import varlen

from attnspec.backends import pytorch as backend
from attnspec.backends.pytorch.kernels import formula
from attnspec.backends.pytorch.kernels.dot import cuda_groups, flex, groups, packed
from attnspec.backends.pytorch.kernels.dot.cuda_groups import Call
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible, visible
from attnspec.backends.pytorch.runtime.forcing import forcing
from tests.budgets import assert_within_budgets

from .concurrency import run_on_threads
from .test_grouped_kernels import OPTIONS, assert_results_and_gradients, normal, on_one_thread, with_gradients

__all__ = ["on_one_thread"]

DTYPES = torch.float32, torch.bfloat16, torch.float16
SMALL = 21, 37
"""Queries and keys."""

IGNORED_WARNINGS = pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning", "ignore:The .grad attribute:UserWarning"
)
"""Warnings of PyTorch while it compiles flex_attention, which are errors in these tests."""

MASK, LENGTHS, BIAS = torch.ones(1, 1, dtype=torch.bool), torch.tensor([3]), torch.ones(1, 1, 1)
FLASH = Call("cuda", torch.bfloat16, heads=8, n=128, d=64, heads_k=2, m=128, d_v=64)
"""A call that PyTorch's flash kernel serves; the cases below change one property each."""


def cut(options: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The options cut to fewer queries and keys."""
    n, m = SMALL
    shortened = dict(options)
    for name in {"mask", "bias"} & set(shortened):
        shortened[name] = shortened[name][..., :n, :m]
    if "key_lengths" in shortened:
        shortened["key_lengths"] = shortened["key_lengths"] * m // 130
    return {k: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for k, x in shortened.items()}


def operands(dtype: torch.dtype, d: int = 24, d_v: int = 40) -> list[Tensor]:
    n, m = SMALL
    return [normal(2, 4, n, d, dtype=dtype), normal(2, 2, m, d, dtype=dtype), normal(2, 2, m, d_v, dtype=dtype)]


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """flex_attention refuses gradients on the CPU; what it would compute there is right all the same."""
    monkeypatch.setattr(flexible, "_validate_device", lambda *_: None)
    path_of = cuda_groups.path_of
    monkeypatch.setattr(cuda_groups, "path_of", lambda call, *others: path_of(call._replace(tracked=False), *others))


# Which path -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "seen", "scoring", "path"),
    [
        (FLASH, Visible(), Scoring(), "enable_gqa"),
        (FLASH._replace(dtype=torch.float16), Visible(), Scoring(0.3), "enable_gqa"),
        (FLASH, visible(None, True, None), Scoring(), "enable_gqa"),
        (FLASH._replace(n=1), Visible(), Scoring(), "enable_gqa"),
        (FLASH._replace(n=64), visible(None, True, None), Scoring(), "enable_gqa"),
        (FLASH._replace(n=256), visible(None, True, None), Scoring(), "flex"),
        (FLASH, visible(None, True, None, None, LENGTHS), Scoring(), "flex"),
        (FLASH, visible(None, False, None, None, LENGTHS), Scoring(), "enable_gqa"),
        (FLASH, visible(None, False, (3, None)), Scoring(), "flex"),
        (FLASH, visible(None, False, (None, 3)), Scoring(), "flex"),
        (FLASH, Visible(mask=MASK), Scoring(), "flex"),
        (FLASH, Visible(lengths=LENGTHS), Scoring(), "flex"),
        (FLASH, Visible(), Scoring(softcap=2.0), "flex"),
        (FLASH, Visible(), Scoring(bias=BIAS), "flex"),
        (FLASH, Visible(), Scoring(slopes=torch.ones(8)), "flex"),
        (FLASH, Visible(), Scoring(scale=-1.0), "flex"),
        (FLASH._replace(tracked=True), Visible(), Scoring(), "flex"),
        (FLASH._replace(dtype=torch.float32), Visible(), Scoring(), "flex"),
        (FLASH._replace(dtype=torch.float32, d=136), Visible(), Scoring(), "plain"),
        (FLASH._replace(dtype=torch.float64), Visible(), Scoring(), "plain"),
        (FLASH._replace(d_v=264), Visible(), Scoring(), "plain"),
        (FLASH._replace(m=0), Visible(), Scoring(), "plain"),
        (FLASH._replace(n=0), Visible(), Scoring(), "plain"),
        (FLASH._replace(entries=0), Visible(), Scoring(), "plain"),
        (FLASH._replace(entries=8191), Visible(), Scoring(), "enable_gqa"),
        (FLASH._replace(entries=8192), Visible(), Scoring(), "plain"),  # 65,536 exceeds a grid
        (FLASH._replace(learned=True), Visible(), Scoring(bias=BIAS), "plain"),
        (FLASH, Visible(), Scoring(scale=0.0), "plain"),
        (FLASH, Visible(), Scoring(softcap=1e-20), "plain"),
        (FLASH._replace(device="cpu"), Visible(), Scoring(), "plain"),
        (FLASH._replace(device="meta"), Visible(), Scoring(), "plain"),
    ],
)
def test_a_call_on_cuda_has_one_path(call: Call, seen: Visible, scoring: Scoring, path: str) -> None:
    assert cuda_groups.path_of(call, seen, scoring) == path
    without_flash = {"enable_gqa": "flex"}.get(path, path)
    assert cuda_groups.path_of(call, seen, scoring, flash=False) == without_flash
    assert cuda_groups.path_of(call, seen, scoring, forced_path="plain") == "plain"
    if call.device == "cuda":
        assert cuda_groups.path_of(call, seen, scoring, forced_path="flex") == without_flash
        assert cuda_groups.path_of(call, seen, scoring, forced_path="llvm") == path


SAME_ENDS = [0, 5, 5, 128], [0, 5, 5, 128]
OTHER_ENDS = [0, 5, 128], [0, 7, 128]
MANY_ENDS = [0] * 40_000 + [128], [0] * 40_000 + [128]
"""40,000 sequences, of which one is not empty; twice as many exceed a grid."""


@pytest.mark.parametrize(
    ("call", "ends", "seen", "scoring", "path"),
    [
        (FLASH, SAME_ENDS, Visible(), Scoring(), "varlen"),
        (FLASH, OTHER_ENDS, Visible(), Scoring(), "varlen"),
        (FLASH, SAME_ENDS, visible(None, True, (4, None)), Scoring(0.5), "varlen"),
        (FLASH, OTHER_ENDS, visible(None, True, None), Scoring(), "flex"),
        (FLASH, OTHER_ENDS, visible(None, False, (3, 3)), Scoring(), "flex"),
        (FLASH, MANY_ENDS, Visible(), Scoring(), "varlen"),
        (FLASH._replace(entries=2), MANY_ENDS, Visible(), Scoring(), "flex"),
        (FLASH, ([0, 5, 128], [0, 0, 128]), Visible(), Scoring(), "flex"),
        (FLASH, ([0, 0, 128], [0, 5, 128]), Visible(), Scoring(), "varlen"),
        (FLASH, SAME_ENDS, Visible(), Scoring(softcap=2.0), "flex"),
        (FLASH, SAME_ENDS, Visible(), Scoring(scale=-1.0), "flex"),
        (FLASH._replace(tracked=True), SAME_ENDS, Visible(), Scoring(), "flex"),
        (FLASH._replace(dtype=torch.float32), SAME_ENDS, Visible(), Scoring(), "flex"),
        (FLASH._replace(dtype=torch.float64), SAME_ENDS, Visible(), Scoring(), "plain"),
        (FLASH._replace(m=0), ([0, 128], [0, 0]), Visible(), Scoring(), "plain"),
    ],
)
def test_packed_sequences_on_cuda_have_one_path(
    call: Call, ends: packed.Ends, seen: Visible, scoring: Scoring, path: str
) -> None:
    assert packed.path_of(call, ends, seen, scoring) == path
    other = {"varlen": "flex"}.get(path, path)
    assert packed.path_of(call, ends, seen, scoring, varlen=False) == other
    assert packed.path_of(call, ends, seen, scoring, forced_path="flex") == other
    assert packed.path_of(call, ends, seen, scoring, forced_path="plain") == "plain"


def test_a_call_is_read_from_its_tensors() -> None:
    query, key, value = operands(torch.bfloat16)
    call = cuda_groups.call_of(query, key, value, Visible(), Scoring())
    assert call == Call("cpu", torch.bfloat16, 4, SMALL[0], 24, 2, SMALL[1], 40, 2)
    assert cuda_groups.call_of(query[:0], key[:0], value[:0], Visible(), Scoring()).entries == 0
    assert cuda_groups.call_of(query, key, value.requires_grad_(), Visible(), Scoring()).tracked
    bias = BIAS.clone().requires_grad_()
    assert cuda_groups.call_of(query, key, value.detach(), Visible(), Scoring(bias=bias)).learned
    assert cuda_groups.call_of(query, key, value.double(), Visible(), Scoring()).device == "none"
    assert packed.has_varlen()


def test_flex_on_the_cpu_is_named_where_it_is_asked_for() -> None:
    query, key, value = operands(torch.float32)
    ends, of_keys = torch.tensor([0, 5, 21]), torch.tensor([0, 30, 37])
    with forcing("flex"):
        assert groups.path_for(query, key, value) == "flex"
        assert packed.path_for(query, key, value, ends, of_keys) == "flex"
        unseen = key.clone()
        unseen[..., -1, :] = torch.nan
        assert groups.path_for(query, unseen, value, Visible(right=0)) == "plain"
        assert packed.path_for(query, unseen, value, ends, of_keys) == "plain"
        assert groups.path_for(query.double(), key.double(), value.double()) == "plain"
        assert groups.path_for(query.clone().requires_grad_(), key, value) == "plain"
    assert packed.path_for(query, key, value, ends, of_keys) == groups.path_for(query, key, value)


# flex -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_flex_gives_the_formula_and_its_gradients(name: str, dtype: torch.dtype, learning: None) -> None:
    inputs, options = operands(dtype), cut(OPTIONS[name], dtype)
    result = with_gradients("flex", [x.clone() for x in inputs], options)
    assert all(x.dtype == dtype for x in result)
    assert_results_and_gradients([result], inputs, options)


@pytest.mark.parametrize("shapes", [((3, 1), (2,)), ((), ()), ((2,), (1,))], ids=str)
@pytest.mark.parametrize(("d", "d_v"), [(1, 3), (20, 8)])
def test_flex_takes_batches_that_broadcast_and_any_features(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], d: int, d_v: int
) -> None:
    ours, theirs = shapes
    query, key, value = normal(*ours, 4, 5, d), normal(*theirs, 2, 7, d), normal(*theirs, 2, 7, d_v)
    options: dict[str, Any] = {"mask": normal(*ours, 5, 7) > 0, "bias": normal(*theirs, 1, 5, 1), "softcap": 3.0}
    with forcing("flex"):
        result = backend.grouped_query_attention(query, key, value, **options)
    with forcing("plain"):
        expected = backend.grouped_query_attention(query, key, value, **options)
    assert_within_budgets([result, expected], "grouped_query_attention", query, key, value, **options)


@pytest.mark.parametrize("causal", [False, True])
def test_flex_computes_packed_sequences_pages_and_latent_keys(causal: bool) -> None:
    query, key, value = operands(torch.float32)
    ends, of_keys = torch.tensor([0, 0, 7, 15, 21]), torch.tensor([0, 5, 5, 30, 37])
    pages, table, lengths = normal(5, 2, 6, 24), torch.tensor([[4, 0, 1], [2, 2, 3]]), torch.tensor([13, 0])
    latent = [normal(*s) for s in ((2, 4, 3, 8), (2, 4, 3, 2), (2, 5, 6), (2, 5, 2), (4, 8, 6), (4, 7, 6))]
    packed, paged = (query, key, value, ends, of_keys), (query[..., :4, :], pages, pages, table, lengths)
    further: dict[str, Any] = {"window": (3, 1), "softcap": 2.0, "slopes": torch.ones(4), "sinks": torch.ones(4)}
    calls: list[tuple[str, Any, dict[str, Any]]] = [("latent_attention", latent, {})]
    calls += [("variable_length_attention", packed, options) for options in ({}, further)]
    calls += [("paged_attention", paged, options) for options in ({}, further)]
    for name, inputs, options in calls:
        results = []
        for path in ("flex", "plain"):
            with forcing(path):
                results.append(getattr(backend, name)(*inputs, causal=causal, **options))
        assert_within_budgets(results, name, *inputs, causal=causal, **options)


def test_flex_does_not_read_what_lies_beyond_the_lengths(learning: None) -> None:
    inputs, lengths = operands(torch.float32), torch.tensor([5, 0])
    clean = [x.clone() for x in inputs]
    for b, length in enumerate(lengths.tolist()):
        inputs[1][b, :, length:], inputs[2][b, :, length:] = torch.nan, torch.inf
    result = with_gradients("flex", inputs, {"key_lengths": lengths})
    assert_results_and_gradients([result], clean, {"key_lengths": lengths})


def test_without_keys_flex_has_gradients_of_zero(learning: None) -> None:
    query, key, value = (x.requires_grad_() for x in operands(torch.float32))
    nobody = torch.zeros(1, 1, dtype=torch.bool)
    with forcing("flex"):
        output, logarithms = backend.grouped_query_attention(query, key, value, mask=nobody)
    assert logarithms is not None
    assert logarithms.eq(-torch.inf).all()
    for x in torch.autograd.grad(output.sum() + logarithms.sum(), (query, key, value)):
        assert x.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_the_cpu_flex_does_not_round_products_before_they_are_scaled(dtype: torch.dtype) -> None:
    query, key, value = (20 * x for x in operands(dtype, d=64))
    with forcing("flex"):
        result, _ = backend.grouped_query_attention(query, key, value, scale=2**-7)
    assert_within_budgets((result, None), "grouped_query_attention", query, key, value, scale=2**-7)


def test_on_the_cpu_flex_leaves_its_switch_as_it_was() -> None:
    query, key, value = operands(torch.float32)

    def repeat() -> None:
        for _ in range(20):
            backend.grouped_query_attention(query, key, value, causal=True)

    with forcing("flex"):
        run_on_threads(repeat)
    assert flexible._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is False


def test_on_the_cpu_flex_takes_parameters_where_none_learns() -> None:
    query, key, value = operands(torch.float32)
    with forcing("flex"), torch.no_grad():
        result, _ = backend.grouped_query_attention(query.requires_grad_(), key, value)
        expected, _ = backend.grouped_query_attention(query.detach(), key, value)
    assert torch.equal(result, expected)


def test_on_the_cpu_flex_takes_lazy_signs_and_zeros() -> None:
    query, key, value = operands(torch.float32, 16, 8)
    zero = torch._efficientzerotensor(value.shape)
    with forcing("flex"):
        negated = backend.grouped_query_attention(torch._neg_view(query), key, value)
        nothing, _ = backend.grouped_query_attention(query, key, zero)
    assert_within_budgets(negated, "grouped_query_attention", -query, key, value)
    assert nothing.eq(0).all()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """flex_attention as it is compiled on CUDA, up to the compiler of kernels."""
    torch._dynamo.reset()
    options: Any = {"dynamic": True, "fullgraph": True, "backend": "aot_eager"}
    both = tuple(torch.compile(x, **options) for x in (flexible.flex_attention, flexible.create_block_mask))
    monkeypatch.setattr(flex, "_is_for_a_compiler", lambda x: True)
    monkeypatch.setattr(flex, "_compiled", lambda: both)
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@IGNORED_WARNINGS
@pytest.mark.parametrize("name", ["nothing", "lengths in a window", "everything"])
def test_flex_compiles_as_one_graph_forward_and_backward(name: str, traced: None, learning: None) -> None:
    inputs, options = operands(torch.float32), cut(OPTIONS[name], torch.float32)
    results = [with_gradients(path, [x.clone() for x in inputs], options) for path in ("flex", "plain")]
    assert_results_and_gradients(results, inputs, options)


@IGNORED_WARNINGS
def test_other_numbers_need_no_new_kernel(traced: None) -> None:
    inputs = operands(torch.float32)
    with forcing("flex"):
        backend.grouped_query_attention(*inputs, window=(3, 2), softcap=2.0, key_lengths=torch.tensor([5, 9]))
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for left, cap in ((4, 3.0), (5, 0.5)):
            backend.grouped_query_attention(*inputs, window=(left, 1), softcap=cap, key_lengths=torch.tensor([7, 0]))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
        backend.grouped_query_attention(*inputs, window=(3, 2), slopes=torch.ones(4), key_lengths=torch.tensor([5, 9]))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before


# Flash kernels, by their definition -----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d", "d_v"), [(24, 40), (3, 1), (64, 64)])
def test_the_flash_kernel_gets_equal_widths_divisible_by_8(
    d: int, d_v: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flash(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        assert query.shape[-1] == key.shape[-1] == value.shape[-1]
        assert query.shape[-1] % 8 == 0
        assert not causal or query.shape[-2] == key.shape[-2]
        allowed = visible(None, causal, None).allowed(query.shape[-2], key.shape[-2], query.device)
        return formula.attention(query, key, value, allowed, Scoring(scale))

    monkeypatch.setattr(cuda_groups, "flash", flash)
    query, key, value = (x[None] for x in operands(torch.bfloat16, d, d_v))
    result = cuda_groups.attend("enable_gqa", query, key, value, visible(None, causal, None), Scoring())
    assert_within_budgets(result, "grouped_query_attention", query, key, value, causal=causal)


def test_the_operators_of_pytorch_are_those_that_are_called() -> None:
    """On tensors without numbers: shapes, and the dtype of the logarithms."""
    query, key = (torch.empty(2, h, m, 16, device="meta", dtype=torch.bfloat16) for h, m in ((4, 5), (2, 7)))
    output, logarithms = cuda_groups.flash(query, key, key, False, 0.3)
    assert (output.shape, logarithms.shape, logarithms.dtype) == (query.shape, query.shape[:-1], torch.float32)
    ends = torch.empty(2, device="meta", dtype=torch.int32)
    queries, keys = (x.transpose(1, 2).flatten(0, 1) for x in (query, key))
    result = varlen.varlen_attn(
        queries, keys, keys, ends, ends, 5, 7, return_aux=varlen.AuxRequest(lse=True), scale=0.3,
        window_size=(-1, 0), enable_gqa=True,
    )  # fmt: skip
    assert [x.shape for x in result] == [queries.shape, (4, 10)]


def packed_by_definition(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, most: int, most_keys: int, *,
    return_aux: varlen.AuxRequest, scale: float, window_size: tuple[int, int], enable_gqa: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """varlen_attn by its documentation: (positions, heads, features); windows count from the last key."""
    assert return_aux.lse
    assert enable_gqa
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert query.shape[-1] == value.shape[-1]
    assert (most, most_keys) == (int(query_ends.diff().max()), int(key_ends.diff().max()))
    outputs, logarithms = [], []
    spans = (zip(e[:-1].tolist(), e[1:].tolist(), strict=True) for e in (query_ends, key_ends))
    for (a, b), (c, d) in zip(*spans, strict=True):
        q, k, v = (x.transpose(0, 1) for x in (query[a:b], key[c:d], value[c:d]))
        left, right = (None if x < 0 else x for x in window_size)
        seen = Visible(None, left, right, offsets=torch.tensor((d - c) - (b - a)))
        output, logarithm = formula.attention(q, k, v, seen.allowed(b - a, d - c, q.device), Scoring(scale))
        outputs.append(output.transpose(0, 1))
        logarithms.append(logarithm)
    return torch.cat(outputs), torch.cat(logarithms, -1)


@pytest.mark.parametrize(
    ("ends", "of_keys", "options"),
    [
        ([0, 3, 3, 21], [0, 5, 6, 37], {}),
        ([0, 21], [0, 37], {"scale": 0.5}),
        ([0, 3, 3, 21], [0, 3, 3, 21], {"causal": True}),
        ([0, 9, 21], [0, 9, 21], {"causal": True, "window": (4, 7)}),
        ([0, 9, 21], [0, 9, 21], {"window": (None, 2)}),
        ([0, 9, 21], [0, 9, 21], {"window": (10**12, 0)}),
    ],
)
def test_the_varlen_path_passes_the_right_arguments_to_its_kernel(
    ends: list[int], of_keys: list[int], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", packed_by_definition)
    query, key, value = (x.bfloat16() for x in operands(torch.float32))
    key, value = key[..., : of_keys[-1], :], value[..., : of_keys[-1], :]
    seen, scoring = visible(None, options.get("causal", False), options.get("window")), Scoring(options.get("scale"))
    call = cuda_groups.call_of(query, key, value, seen, scoring)._replace(device="cuda")
    assert packed.path_of(call, (ends, of_keys), seen, scoring) == "varlen"
    numbers = torch.tensor(ends), torch.tensor(of_keys)
    result = packed.attend("varlen", query, key, value, *numbers, seen, scoring)
    assert_within_budgets(result, "variable_length_attention", query, key, value, *numbers, **options)
