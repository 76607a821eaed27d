"""The kernels of attention in groups of heads, within the budgets of the formula; which path a call takes."""

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from attnspec.backends import pytorch as backend
from attnspec.backends.pytorch.kernels.dot import groups
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, register_bytes
from attnspec.backends.pytorch.kernels.llvm.threads import run
from attnspec.backends.pytorch.kernels.llvm.vector_functions import log, tanh
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.forcing import forcing
from attnspec.conformance import replay
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets, assert_within_roundings, mp

DTYPES = torch.float64, torch.float32, torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def on_one_thread() -> Iterator[None]:
    """One thread; and all of them again afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"window": (5, 3)},
    "window to the left": {"window": (40, 0)},
    "window to the right": {"window": (0, None), "scale": 0.3},
    "mask": {"mask": normal(2, 70, 130) > -0.5},
    "mask of keys": {"mask": normal(2, 1, 130) > 0.5, "causal": True},
    "lengths": {"key_lengths": torch.tensor([0, 101])},
    "lengths in a window": {"key_lengths": torch.tensor([60, 130]), "window": (30, 2)},
    "cap": {"softcap": 0.5},
    "bias": {"bias": normal(1, 4, 70, 130)},
    "bias of keys": {"bias": normal(2, 1, 1, 130), "causal": True},
    "slopes": {"slopes": torch.tensor([0.5, 0.25, 0.1, 0.0])},
    "sinks": {"sinks": torch.tensor([0.5, -2.0, 3.0, 0.0]), "window": (2, 0)},
    "everything": {
        "mask": normal(70, 130) > -1, "causal": True, "scale": 0.7, "window": (60, 9), "softcap": 2.0,
        "bias": normal(4, 70, 1), "slopes": torch.rand(4), "sinks": torch.rand(4),
        "key_lengths": torch.tensor([64, 129]),
    },
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_kernels_give_the_formula_and_its_gradients(name: str, dtype: torch.dtype) -> None:
    inputs = normal(2, 4, 70, 24, dtype=dtype), normal(2, 2, 130, 24, dtype=dtype), normal(2, 2, 130, 40, dtype=dtype)
    options = {k: x.to(dtype) if _is_real(x) else x for k, x in OPTIONS[name].items()}
    scoring = Scoring(options.get("scale"), options.get("softcap"), options.get("bias"), options.get("slopes"))
    with forcing("llvm"):
        assert groups.path_for(*inputs, Visible(), scoring) == "llvm"
    result = with_gradients("llvm", [x.clone() for x in inputs], options)
    assert all(x.dtype == dtype for x in result)
    assert_results_and_gradients([result], inputs, options)


def _is_real(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def with_gradients(path: str, operands: list[Tensor], options: Mapping[str, Any]) -> list[Tensor]:
    """Output and logarithms, and the gradients of a sum over both; rows without keys have no part in it."""
    for x in operands:
        x.requires_grad_()
    with forcing(path):
        output, logarithms = backend.grouped_query_attention(*operands, **options)
        assert logarithms is not None
        some = logarithms.masked_fill(logarithms == -torch.inf, 0)
        weights = [cotangent(x) for x in (output, some)]
        total = (output * weights[0]).double().sum() + (some * weights[1]).double().sum()
        return [output.detach(), logarithms.detach(), *torch.autograd.grad(total, operands)]


def cotangent(result: Tensor) -> Tensor:
    """Integers, which every dtype holds; 0 for rows without keys."""
    integers = torch.arange(result.numel()).view(result.shape).remainder(7).to(result.dtype) - 3
    return integers.masked_fill(result == -torch.inf, 0)


def assert_results_and_gradients(
    results: list[list[Tensor]], operands: Sequence[Tensor], options: Mapping[str, Any]
) -> None:
    """Results of :func:`with_gradients` are within their budgets."""
    attention = "grouped_query_attention"
    assert_within_budgets([tuple(x[:2]) for x in results], attention, *operands, **options)
    along = cotangent(results[0][0]), cotangent(results[0][1])
    # no gradients of options are compared
    gradients = [(*x[2:], *(None for option in options.values() if _is_real(option))) for x in results]
    assert_gradients_within_budgets(gradients, along, attention, *operands, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5])
def test_a_step_reads_only_what_it_attends_to(group: int, dtype: torch.dtype) -> None:
    query = normal(3, 2 * group, 1, 64, dtype=dtype)
    key, value = normal(3, 2, 100, 64, dtype=dtype), normal(3, 2, 100, 80, dtype=dtype, seed=1)
    lengths = torch.tensor([100, 17, 0])
    assert groups.path_for(query, key, value, Visible(lengths=lengths)) == "decode"
    clean = query, key.clone(), value.clone()
    for b, length in enumerate(lengths.tolist()):
        key[b, :, length:], value[b, :, length:] = nan, nan
    result = backend.grouped_query_attention(query, key, value, key_lengths=lengths)
    assert_within_budgets(result, "grouped_query_attention", *clean, key_lengths=lengths)


SLOPES_AND_SINKS = {"slopes": torch.tensor([0.5, 0.25, 0.1, 0.0]), "sinks": torch.tensor([0.5, -2.0, 3.0, 0.0])}


@pytest.mark.parametrize("names", [("slopes",), ("sinks",), ("slopes", "sinks")], ids="-".join)
@pytest.mark.parametrize("n", [1, 3, 20])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pages_and_packed_sequences_have_slopes_and_sinks(dtype: torch.dtype, n: int, names: tuple[str, ...]) -> None:
    options: dict[str, Any] = {name: SLOPES_AND_SINKS[name].to(dtype) for name in names}
    query, pages, table = (
        normal(2, 4, n, 32, dtype=dtype),
        normal(9, 2, 16, 32, dtype=dtype),
        torch.tensor([[3, 0, 7], [8, 8, 1]]),
    )
    for lengths in (torch.tensor([33, 16]), torch.tensor([48, 0])):
        inputs = query, pages, pages, table, lengths
        result = backend.paged_attention(*inputs, **options)
        assert_within_budgets(result, "paged_attention", *inputs, **options)
    row, key = normal(4, 2 * n, 32, dtype=dtype), normal(2, 50, 32, dtype=dtype)
    packed = row, key, key, torch.tensor([0, n, n, 2 * n]), torch.tensor([0, 0, 31, 50])
    result = backend.variable_length_attention(*packed, **options)
    assert_within_budgets(result, "variable_length_attention", *packed, **options)


@pytest.mark.parametrize("window", [None, (5, None), (40, 3)])
@pytest.mark.parametrize("page", [1, 4, 16, 100])
@pytest.mark.parametrize("n", [1, 3])
def test_pages_are_read_where_they_lie(n: int, page: int, window: tuple[int | None, int | None] | None) -> None:
    pages = 9
    query, key = normal(2, 4, n, 32), normal(pages, 2, page, 32)
    value, table = normal(pages, 2, page, 32, seed=1), torch.tensor([[3, 0, 7], [8, 8, 1]])
    lengths = torch.tensor([2 * page + 1, page])
    inputs = query, key, value, table, lengths
    for causal in (False, True):
        result = backend.paged_attention(*inputs, causal=causal, window=window)
        assert_within_budgets(result, "paged_attention", *inputs, causal=causal, window=window)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_gradients_of_pages_of_many_sequences_are_sums_in_float32(n: int, dtype: torch.dtype) -> None:
    entries = 600
    query, table = torch.zeros(entries, 1, n, 8, dtype=dtype), torch.zeros(entries, 1, dtype=torch.int64)
    pages = [normal(1, 1, 2, 8, dtype=dtype, seed=seed).requires_grad_() for seed in range(2)]
    output, _ = backend.paged_attention(query, pages[0], pages[1], table, torch.full((entries,), 2))
    gradient = torch.autograd.grad(output, pages[1], torch.ones_like(output))[0]
    assert gradient.eq(entries * n / 2).all()


def test_packed_sequences_are_calls_of_their_own() -> None:
    inputs = normal(2, 4, 40, 16), normal(2, 2, 50, 16), normal(2, 2, 50, 8)
    ends, of_keys = torch.tensor([0, 0, 13, 13, 40]), torch.tensor([0, 5, 5, 30, 50])
    options: dict[str, Any] = {"causal": True, "window": (6, None)}
    result = backend.variable_length_attention(*inputs, ends, of_keys, **options)
    assert_within_budgets(result, "variable_length_attention", *inputs, ends, of_keys, **options)


def test_second_derivatives_are_those_of_the_formula() -> None:
    operands = [normal(1, 4, 5, 8), normal(1, 2, 6, 8), normal(1, 2, 6, 8)]
    wide = tuple(x.double().requires_grad_() for x in operands)

    def call(*operands: Tensor) -> tuple[Tensor, ...]:
        with forcing("llvm"):
            output, logarithms = backend.grouped_query_attention(*operands, causal=True, softcap=2.0, window=(2, None))
        assert logarithms is not None
        return output, logarithms

    assert torch.autograd.gradcheck(call, wide)
    assert torch.autograd.gradgradcheck(call, wide)


@pytest.mark.parametrize("options", [{"window": (2, 2)}, {"mask": torch.eye(10, 20) == 1}], ids=["window", "mask"])
def test_excluded_keys_and_values_reach_no_result(options: Mapping[str, Any]) -> None:
    query, key, value = normal(1, 4, 10, 16), normal(1, 2, 20, 16), normal(1, 2, 20, 16)
    key[..., 15:, :], value[..., 15:, :] = nan, torch.inf
    with forcing("llvm"):
        for x in (query, key, value):
            x.requires_grad_()
        output, logarithms = backend.grouped_query_attention(query, key, value, **options)
        assert logarithms is not None
        assert output.isfinite().all()
        assert all(
            x.isfinite().all() for x in torch.autograd.grad(output.sum() + logarithms.sum(), (query, key, value))
        )


NO_KEYS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "sinks": {"sinks": torch.zeros(4)},
    "all options": {"causal": True, "softcap": 2.0, "slopes": torch.ones(4), "bias": torch.ones(4, 1, 1),
                    "window": (1, 0), "key_lengths": torch.tensor([0, 0])},
}  # fmt: skip


@pytest.mark.parametrize("path", [None, "llvm", "decode", "plain"])
@pytest.mark.parametrize("options", NO_KEYS.values(), ids=NO_KEYS)
@pytest.mark.parametrize("m", [0, 6])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_without_keys_all_gradients_are_zeros(n: int, m: int, options: Mapping[str, Any], path: str | None) -> None:
    operands = [normal(2, 4, n, 8).requires_grad_(), *(normal(2, 2, m, 8).requires_grad_() for _ in range(2))]
    nobody = torch.zeros(n, m, dtype=torch.bool)
    with forcing(path):
        output, logarithms = backend.grouped_query_attention(*operands, mask=nobody, **options)
    assert logarithms is not None
    for results in ([output], [logarithms], [output, logarithms]):
        cotangents = [torch.ones_like(x) for x in results]
        gradients = torch.autograd.grad(results, operands[:2], cotangents, retain_graph=True, materialize_grads=True)
        assert all(x.eq(0).all() for x in gradients)


@pytest.mark.parametrize("path", [None, "plain"])
def test_logarithms_of_packed_sequences_and_parts_without_keys_have_gradients(path: str | None) -> None:
    query, key = normal(4, 3, 8).requires_grad_(), normal(2, 0, 8).requires_grad_()
    with forcing(path):
        _, packed = backend.variable_length_attention(query, key, key, torch.tensor([0, 3]), torch.tensor([0, 0]))
        outputs, parts = normal(3, 0, 8).requires_grad_(), normal(3, 0).requires_grad_()
        _, merged = backend.merge_attention(outputs, parts)
    assert packed is not None
    assert torch.autograd.grad(packed.sum(), query)[0].eq(0).all()
    assert torch.autograd.grad(merged.sum(), parts)[0].shape == (3, 0)


def test_a_call_names_its_path() -> None:
    query, key, value = normal(1, 8, 64, 64), normal(1, 2, 64, 64), normal(1, 2, 64, 64)
    single_query = query[..., :1, :]
    assert groups.path_for(query, key, value) == "llvm"
    assert groups.path_for(single_query, key, value) in ("decode", "small", "pytorch")
    assert groups.path_for(single_query, key, value, Visible(lengths=torch.tensor([60]))) == "decode"
    assert groups.path_for(single_query, key, value, Visible(mask=torch.ones(1, 64, dtype=torch.bool))) in (
        "small",
        "llvm",
    )
    assert groups.path_for(single_query, key, value, scoring=Scoring(softcap=2.0)) in ("llvm", "plain")
    assert groups.path_for(single_query.clone().requires_grad_(), key, value) in ("small", "llvm", "pytorch", "plain")
    assert groups.path_for(single_query, key[..., :63], value) != "decode"
    bias = torch.zeros(1, 1, 1, requires_grad=True)
    assert groups.path_for(query, key, value, scoring=Scoring(bias=bias)) == "plain"
    assert groups.path_for(query, key, value, scoring=Scoring(bias=bias.detach())) == "llvm"
    assert groups.path_for(query, key, value, scoring=Scoring(scale=-1.0)) == "plain"
    assert groups.path_for(query, key[..., :0, :], value[..., :0, :]) == "plain"
    with FakeTensorMode():
        fake = torch.empty(1, 2, 64, 64)
        assert groups.path_for(torch.empty(1, 8, 64, 64), fake, fake) == "plain"
    for path in ("plain", "pytorch", "llvm"):
        with forcing(path):
            assert groups.path_for(query, key, value) == path
    with forcing("pytorch"):
        assert groups.path_for(query, key, value, scoring=Scoring(softcap=2.0)) == "plain"


def test_an_option_whose_effect_is_below_roundings_is_no_violation() -> None:
    """Scores far below a cap, in bfloat16: the formula does not change by more than roundings either."""
    numbers = np.zeros((1, 1, 1, 1), ml_dtypes.bfloat16)
    inputs = {
        "query": numbers[0], "key_pages": numbers, "value_pages": numbers, "block_table": np.array([0]),
        "key_lengths": np.array(0),
    }  # fmt: skip
    law, seed = "operation.options-have-effect", 3210697351
    assert replay("pytorch", law, "paged_attention", "bfloat16", inputs, seed=seed, device="cpu") == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sink_is_added_before_anything_is_rounded(dtype: torch.dtype) -> None:
    """Rounding logarithms before and after adding a sink costs a unit in the last place."""
    query, key, value = (
        normal(2, 4, 4, 4, dtype=dtype),
        normal(2, 2, 6, 4, dtype=dtype),
        normal(2, 2, 6, 5, dtype=dtype),
    )
    sinks = normal(4, dtype=dtype)
    _, logarithms = backend.grouped_query_attention(query, key, value[..., :4], sinks=sinks)
    _, exact = backend.grouped_query_attention(
        query.double(), key.double(), value[..., :4].double(), sinks=sinks.double()
    )
    assert logarithms is not None
    assert exact is not None
    unit = torch.finfo(dtype).eps * 2.0 ** exact.abs().log2().floor()
    assert ((logarithms.double() - exact).abs() <= 0.51 * unit).all()


class Curve(Arguments):
    """Numbers, as many as a register has, and their tanh."""

    x: Reals
    y: Reals


@pytest.mark.parametrize("bits", [32, 64])
def test_log_is_right_for_all_normal_numbers(bits: int) -> None:
    """log x = 2 artanh r + k log 2: 2 roundings of r, one of the sum, one of the result, less than one of all else."""
    k = Kernel("logarithms", Curve, bits)
    k.store(log(k, k.load(k.argument.x, 0)), k.argument.y, 0)
    kernel: Compiled[Curve] = Compiled(*k.code())
    dtype = torch.float32 if bits == 32 else torch.float64
    lanes, limits = register_bytes() * 8 // bits, torch.finfo(dtype)
    drawn = torch.Generator().manual_seed(bits)
    for low, high in ((0.5, 1.5), (0.99, 1.01), (1.0, 1e6), (limits.tiny, 1e-20), (1e20, limits.max)):
        for _ in range(200):
            x = torch.empty(lanes, dtype=dtype)
            x.copy_(torch.linspace(0, 1, lanes).mul(torch.rand(lanes, generator=drawn)).double() * (high - low) + low)
            x[:2] = torch.tensor([1.0, nan])
            y = torch.empty_like(x)
            run(kernel, 1, Curve(x=x, y=y))
            assert_within_roundings(y, mp.log, x, 5)


@pytest.mark.parametrize("bits", [32, 64])
def test_tanh_is_right_for_small_and_large_numbers(bits: int) -> None:
    """tanh x = −e/(2 + e) with e = exp(−2|x|) − 1: 2 roundings of the exponent, 4 of the series, 2 of the quotient."""
    k = Kernel("curve", Curve, bits)
    k.store(tanh(k, k.load(k.argument.x, 0)), k.argument.y, 0)
    kernel: Compiled[Curve] = Compiled(*k.code())
    dtype = torch.float32 if bits == 32 else torch.float64
    lanes = register_bytes() * 8 // bits
    for size in (1e-30, 1e-6, 0.01, 0.3, 1.0, 10.0, 1e4):
        x = (torch.linspace(-1, 1, lanes, dtype=torch.float64) * size).to(dtype)
        x[0] = nan
        y = torch.empty_like(x)
        run(kernel, 1, Curve(x=x, y=y))
        assert_within_roundings(y, mp.tanh, x, 8)
