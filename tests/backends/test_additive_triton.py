"""Additive attention in Triton against the formula in float64.

It runs on CUDA where there is a GPU, else in Triton's interpreter. Every comparison uses one bound, `Bound`, derived
from unit roundoffs and sizes. The kernels are also compiled for GPUs that need not be present, in another process,
because the interpreter must be off for that.
"""

import importlib
import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.slow

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-25}
DTYPES = tuple(UNIT)
Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


def load(name: str) -> ModuleType:
    """Import a module; without a GPU, Triton must see its variable while the module's functions are built."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        return importlib.import_module(f"attnspec.backends.pytorch.kernels.additive.triton.{name}")


if DEVICE == "cpu" and "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton was imported without its interpreter earlier in this process", allow_module_level=True)
operators, decoding, launch = load("operators"), load("decoding"), load("launch")


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """On for this file's tests alone; Triton loads parts of itself late."""
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@dataclass(frozen=True)
class Bound:
    """First-order error bounds of attention and its gradients, from the float64 intermediate results.

    A score sums h terms w r of relative error at most 24u each (exponentials, product, shared reciprocal), in any
    order: delta = (h/3 + 24) u |w|_1 in the worst case; rounding errors being independent, sqrt(h) |w|_2 takes the
    place of h |w|_1 with a factor of 8 for the largest of many. A weight then errs by expm1(2 delta), the sums over
    keys, queries and features by their lengths times u, and what is stored in 16 bits by that unit roundoff.
    """

    arguments: Arguments
    weights: Tensor
    dtype: torch.dtype

    def score(self) -> float:
        w_v = self.arguments[2]
        return 8 * UNIT[torch.float32] * (math.sqrt(len(w_v)) + 24) * float(w_v.norm())

    def relative(self) -> float:
        n, m = self.weights.shape[-2:]
        d_v = self.arguments[3].shape[-1]
        return math.expm1(2 * self.score()) + (n + m + d_v + 16) * UNIT[torch.float32] + self.stored()

    def stored(self) -> float:
        return 0.0 if self.dtype == torch.float32 else 3 * UNIT[self.dtype]

    def output(self) -> Tensor:
        value = self.arguments[3].abs()
        return self.relative() * (self.weights @ value) + SMALLEST[self.dtype] * value.sum(-2, keepdim=True)

    def gradients(self, grad: Tensor, output: Tensor) -> list[Tensor]:
        a, b, w_v, value = (x.abs() for x in self.arguments)
        slope = self.weights * (grad.abs() @ value.mT + (grad * output).abs().sum(-1, keepdim=True))
        slope = slope + SMALLEST[self.dtype]
        size = (a * 0 + w_v * slope.sum(-1, keepdim=True), b * 0 + w_v * slope.sum(-2)[..., None])
        everything = (*size, slope.sum() + w_v * 0, self.weights.mT @ grad.abs() + SMALLEST[self.dtype] * len(grad))
        return [self.relative() * x for x in everything]


def exact(arguments: Arguments, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention and its weights in float64, straight from the formula; rows without keys are 0."""
    a, b, w_v, value = arguments
    scores = torch.tanh(a[..., :, None, :] + b[..., None, :, :]) @ w_v
    allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    if causal:
        allowed = allowed & torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    some = allowed.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~allowed & some, -math.inf), -1) * allowed
    return weights @ value, weights


def draw(batch: tuple[int, ...], n: int, m: int, h: int, d_v: int, dtype: torch.dtype, seed: int = 0) -> Arguments:
    generator = torch.Generator().manual_seed(seed)
    shapes: tuple[tuple[int, ...], ...] = ((*batch, n, h), (*batch, m, h), (h,), (*batch, m, d_v))
    a, b, w_v, value = (torch.randn(shape, generator=generator).to(dtype).to(DEVICE) for shape in shapes)
    return a, b, w_v, value


def check(
    arguments: Arguments, mask: Tensor | None = None, causal: bool = False, gradients: bool = True, runs: int = 1
) -> None:
    """Output and gradients are within the bound, and all runs give the same bits."""
    dtype = arguments[0].dtype
    results = []
    for _ in range(runs):
        leaves = [x.detach().clone().requires_grad_(gradients) for x in arguments]
        output = operators.attention(*leaves, mask=mask, causal=causal)
        grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(dtype).to(DEVICE)
        if gradients:
            output.backward(grad)
        results.append([output.detach(), *(x.grad for x in leaves if x.grad is not None)])
    assert all(torch.equal(x, y) for later in results[1:] for x, y in zip(results[0], later, strict=True))
    a, b, w_v, value = (x.double().requires_grad_(gradients) for x in arguments)
    wanted, weights = exact((a, b, w_v, value), mask, causal)
    bound = Bound((a.detach(), b.detach(), w_v.detach(), value.detach()), weights.detach(), dtype)
    compare(results[0][0], wanted.detach(), bound.output(), dtype)
    if gradients:
        torch.autograd.backward(wanted, grad.double())
        bounds = bound.gradients(grad.double(), wanted.detach())
        for got, leaf, limit in zip(results[0][1:], (a, b, w_v, value), bounds, strict=True):
            assert leaf.grad is not None
            compare(got, leaf.grad.nan_to_num(0.0), limit, dtype)


def compare(got: Tensor, wanted: Tensor, bound: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    assert got.shape == wanted.shape
    assert bool(got.isfinite().all())
    excess = (got.double() - wanted).abs() - bound - UNIT[dtype] * wanted.abs() - SMALLEST[dtype]
    assert excess.numel() == 0 or float(excess.max()) <= 0, f"{float(excess.max())} above the bound"


SIZES = [(1, 1), (2, 17), (15, 16), (16, 15), (17, 33), (33, 2), (3, 65), (65, 4), (17, 257)]
"""Queries go by 16; keys by 64 to 256."""


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_any_sizes_are_within_the_bound(n: int, m: int) -> None:
    check(draw((), n, m, 1 + n % 7, 1 + m % 5, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_every_dtype_is_within_the_bound(dtype: torch.dtype, causal: bool) -> None:
    check(draw((2,), 7, 21, 8, 16, dtype), causal=causal)


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (0, 0)])
def test_empty_sizes_give_zeros(n: int, m: int) -> None:
    arguments = [x.requires_grad_() for x in draw((2,), n, m, 3, 4, torch.float32)]
    output = operators.attention(*arguments)
    output.sum().backward()
    assert output.shape == (2, n, 4)
    assert not output.any()
    assert all(x.grad is not None and not x.grad.any() for x in arguments)
    assert operators.scores(*arguments[:3]).shape == (2, n, m)
    step = decoding.step(decoding.cache(*(x.detach() for x in arguments[1:])), torch.ones(2, 3, device=DEVICE))
    assert m > 0 or not step.any()


@pytest.mark.parametrize(("h", "d_v"), [(1, 300), (2, 128), (3, 1), (4, 2), (65, 17), (7, 257)])
def test_unusual_numbers_of_hidden_units_and_value_features(h: int, d_v: int) -> None:
    check(draw((), 5, 19, h, d_v, torch.float32))


@pytest.mark.parametrize(("n", "m"), [(40, 23), (23, 40)])
def test_causal_is_top_left(n: int, m: int) -> None:
    check(draw((), n, m, 4, 8, torch.float32), causal=True)


def masks(batch: tuple[int, ...], n: int, m: int) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    full = torch.rand((*batch, n, m), generator=generator) > 0.4
    lengths = torch.randint(1, m + 1, batch, generator=generator)
    padding = (torch.arange(m) < lengths[..., None])[..., None, :]
    empty_rows = full.clone()
    empty_rows[..., ::3, :] = False
    yield "random", full
    yield "rows without keys", empty_rows
    yield "nothing", torch.zeros(1, 1, dtype=torch.bool)
    yield "everything", torch.ones(n, m, dtype=torch.bool)
    yield "padding", padding
    yield "expanded padding", padding.expand(*batch, n, m)
    yield "transposed storage", full.mT.contiguous().mT
    yield "per query", full[..., :1]
    yield "first batch dimension", full[:, :1]
    yield "last batch dimension", full[0]
    yield "one key", torch.arange(m)[None, :] == m // 2


@pytest.mark.parametrize("index", range(11))
def test_every_kind_of_mask_is_within_the_bound(index: int) -> None:
    """The first mask has more queries than a tile. The others fit one tile, with a batch where they have one."""
    n, m = (18 if index == 0 else 7), 35
    _, mask = list(masks((2, 2), n, m))[index]
    batch = (2, 2) if mask.dim() > 2 else ()
    check(draw(batch, n, m, 2, 4, torch.float32), mask=mask.to(DEVICE), causal=index % 2 == 1)


def test_repeatable_bit_for_bit() -> None:
    """Several tiles of keys, and of queries on a GPU; the interpreter runs tiles one after the other."""
    n = 20 if DEVICE == "cuda" else 4
    mask = torch.rand((n, 300), generator=torch.Generator().manual_seed(4)).to(DEVICE) > 0.5
    check(draw((), n, 300, 3, 4, torch.float32), mask=mask, runs=2)


@pytest.mark.parametrize(
    ("kind", "splits"), [("plain", (1, 1, 1)), ("causal", (2, 1, 1)), ("mask", (2, 2, 3)), ("large", (3, 2, 2))]
)
def test_gradients_of_any_splits_are_within_the_bound(
    kind: str, splits: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three blocks of queries, two tiles of keys, three hidden units."""
    monkeypatch.setattr(operators, "gradient_splits", lambda *_: launch.Splits(*splits))
    n, m = 35, 140
    mask = torch.rand((n, m), generator=torch.Generator().manual_seed(6)).to(DEVICE) > 0.5 if kind == "mask" else None
    a, b, w_v, value = draw((), n, m, 3, 7, torch.float32)
    check((a, b * (1e6 if kind == "large" else 1), w_v, value), mask=mask, causal=kind == "causal")


def test_gradients_are_split_to_occupy_every_scheduler_within_a_bound_of_memory() -> None:
    for processors, batch, n, m, hidden in itertools.product(
        (1, 82, 132), (1, 3, 8, 200), (1, 17, 512, 4096), (1, 40, 512, 9000), (1, 64, 1000)
    ):
        blocks, tiles = -(-n // 16), -(-m // 128)
        splits = launch.gradient_splits(batch, blocks, tiles, hidden, processors)
        programs = batch * splits.queries * splits.keys * splits.hidden
        assert splits.queries <= blocks
        assert splits.keys <= tiles
        assert programs <= max(batch, 8 * processors)
        assert programs >= min(4 * processors, batch * blocks * tiles * hidden)
        if blocks >= 8 * processors and tiles >= 8 * processors:
            assert max(splits.queries, splits.keys) ** 2 <= 2 * max(1, 8 * processors // batch)


@pytest.mark.parametrize(
    ("kind", "processors", "splits"),
    [
        *((kind, 64, 5) for kind in ("plain", "causal", "mask", "large", "one query")),
        *(("mask", 3, 2), ("one query", 3, 3)),
    ],
)
def test_keys_that_are_split_over_programs_are_within_the_bound(
    kind: str, processors: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some splits have no attendable keys for a row, or for a whole block; one has fewer tiles than the other."""
    monkeypatch.setattr(operators, "multiprocessors", lambda _: processors)
    n, m = 1 if kind == "one query" else 20, 270
    mask = None
    if kind == "mask":
        mask = torch.rand((n, m), generator=torch.Generator().manual_seed(6)).to(DEVICE) > 0.5
        mask[:, 60:130] = False
        mask[3, 70:] = False
        mask[5] = False
    a, b, w_v, value = draw((), n, m, 3, 7, torch.float32)
    arguments = a, b * (1e6 if kind == "large" else 1), w_v, value
    grids = []

    def record(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        grids.append(grid)
        launch.launch(kernel, grid, *arguments, **options)

    monkeypatch.setattr(operators, "launch", record)
    check(arguments, mask=mask, causal=kind == "causal", runs=2, gradients=processors == 64)
    assert max(grid[2] for grid in grids if len(grid) == 3) == splits


@pytest.mark.parametrize("magnitude", [1.0, 25.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_summed_over_parts_of_the_hidden_units_are_within_the_bound(
    magnitude: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tiles in three parts of 24, 24 and 16 units."""
    a, b, w_v, _ = draw((2,), 1, 30, 64, 1, dtype)
    a, b = a * magnitude, b * magnitude
    whole = operators.scores(a, b, w_v)
    monkeypatch.setattr(operators, "multiprocessors", lambda _: 6)
    parts, again = operators.scores(a, b, w_v), operators.scores(a, b, w_v)
    assert torch.equal(parts, again)
    assert dtype is not torch.float32 or not torch.equal(parts, whole)
    x, y, w = a.double(), b.double(), w_v.double()
    wanted = torch.tanh(x[..., :, None, :] + y[..., None, :, :]) @ w
    limit = 8 * UNIT[torch.float32] * (math.sqrt(64) + 24) * w.norm()
    compare(parts, wanted, limit + 0 * wanted, dtype)


def test_nonfinite_values_in_splits_of_the_keys_reach_only_queries_that_may_attend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b, w_v, value = draw((), 20, 140, 4, 5, torch.float32)
    mask = torch.ones(20, 140, dtype=torch.bool, device=DEVICE)
    mask[:12, 70:73] = False
    mask[7, 64:128] = False
    bad_b, bad_value = b.clone(), value.clone()
    bad_b[70], bad_value[71], bad_value[72, 2] = math.nan, math.nan, -math.inf
    monkeypatch.setattr(operators, "multiprocessors", lambda _: 64)
    clean, got = (operators.attention(a, x, w_v, y, mask=mask) for x, y in ((b, value), (bad_b, bad_value)))
    assert torch.equal(got[:12], clean[:12])
    assert bool(got[12:].isnan().all())


def test_every_multiprocessor_gets_keys_if_there_are_enough_tiles() -> None:
    for processors, blocks, m in itertools.product(
        (1, 82, 132, 170), (1, 7, 64, 131, 132, 999), (1, 64, 129, 512, 9000)
    ):
        possible = blocks * -(-m // launch.NARROWEST)
        wide = launch.tile_width(m, blocks, processors)
        tiles = -(-m // wide)
        splits = -(-tiles // launch.tiles_per_program(tiles, blocks, processors))
        assert blocks * splits >= min(processors, possible)
        assert blocks < processors or splits == 1
        for programs in (blocks * splits, blocks * tiles):
            assert programs * launch.tile_warps(wide, 1, programs, processors) >= 4 * min(processors, possible)


def test_mask_that_alternates_over_batch_dimensions_and_broadcast_batches() -> None:
    a, b, w_v, value = draw((2, 2, 2), 4, 5, 3, 2, torch.float32)
    mask = torch.rand((2, 1, 2, 1, 5), generator=torch.Generator().manual_seed(3)).to(DEVICE) > 0.4
    check((a, b, w_v, value), mask=mask)
    leaves = [x.requires_grad_() for x in (a[:, :1], b[0], w_v, value[:1, :, :1])]
    output = operators.attention(*leaves, mask=mask)
    wanted, weights = exact(tuple(x.detach().double() for x in leaves), mask, False)  # type: ignore[arg-type]
    limit = Bound(tuple(x.detach().double() for x in leaves), weights, torch.float32).output()  # type: ignore[arg-type]
    compare(output.detach(), wanted, limit, torch.float32)
    output.sum().backward()
    assert [x.grad is not None and x.grad.shape == x.shape for x in leaves] == [True] * 4


def test_numbers_under_a_mask_change_no_bit() -> None:
    """Large excluded keys do not change the path of their tile either."""
    a, b, w_v, value = draw((), 9, 40, 3, 4, torch.float32)
    mask = torch.rand((1, 40), generator=torch.Generator().manual_seed(5)).to(DEVICE) > 0.5
    future = torch.arange(40, device=b.device)[:, None] >= 9
    for excluded, options in ((~mask.mT, {"mask": mask}), (future, {"causal": True})):
        expected = operators.attention(a, b, w_v, value, **options)
        for size in (3.0, 20.0, 60.0, 1e6):
            garbage = torch.where(excluded, size * b, b)
            assert torch.equal(operators.attention(a, garbage, w_v, value, **options), expected), size


def test_wholly_masked_key_tiles_are_skipped_without_effect() -> None:
    arguments = draw((), 8, 600, 3, 4, torch.float32)
    mask = torch.zeros(8, 600, dtype=torch.bool, device=DEVICE)
    mask[:, 290:310] = True
    mask[7] = False
    check(arguments, mask=mask)


@pytest.mark.parametrize(
    ("kind", "magnitude"),
    [
        *(("mixed", magnitude) for magnitude in (1e-3, 9.0, 20.0, 43.0, 60.0, 1e6)),
        *(("cancelling", magnitude) for magnitude in (20.0, 60.0, 1e6)),
        *(("positive", magnitude) for magnitude in (20.0, 60.0, 1e6)),
    ],
)
def test_any_magnitude_is_within_the_bound(kind: str, magnitude: float) -> None:
    """All three paths: shared reciprocals, one reciprocal a term, and the direct form where the factors overflow."""
    a, b, w_v, value = draw((), 15, 40, 5, 4, torch.float32)
    a, b = a * magnitude, b * magnitude
    if kind == "cancelling":
        b = -a[torch.arange(40, device=DEVICE) % 15] + b / (2 * magnitude)
    if kind == "positive":
        a, b = a.abs(), b.abs()
    check((a, b, w_v, value))


@pytest.mark.parametrize("h", [64, 257])
@pytest.mark.parametrize("equal", [False, True])
def test_the_error_of_scores_is_near_its_deviation(h: int, equal: bool) -> None:
    """Equal weights are the hard case: all terms have one sign, unless the kernel flips every second."""
    a, b, w_v, _ = draw((), 16, 64, h, 1, torch.float32)
    w_v = torch.ones_like(w_v) if equal else w_v
    wanted = torch.tanh(a.double()[:, None] + b.double()) @ w_v.double()
    deviation = 0.5 * UNIT[torch.float32] * math.sqrt(h) * float(w_v.norm())
    assert float((operators.scores(a, b, w_v) - wanted).square().mean().sqrt()) <= 2 * deviation


def test_small_and_zero_weights() -> None:
    a, b, _, value = draw((), 7, 20, 6, 3, torch.float32)
    for w_v in ([1.0, 1e-9, 0.0, 1e-20, -1e-5, 3.0], [0.0] * 6, [1e-30] * 6, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]):
        check((8 * a, 8 * b, torch.tensor(w_v, device=DEVICE), value))


def test_one_key_returns_its_value_bit_for_bit() -> None:
    a, b, w_v, value = draw((), 9, 33, 4, 8, torch.float32)
    mask = torch.zeros(9, 33, dtype=torch.bool, device=DEVICE)
    mask[:, 20] = True
    assert torch.equal(operators.attention(a, b, w_v, value, mask=mask), value[20].expand(9, 8))


def test_nonfinite_values_and_keys_reach_only_queries_that_may_attend() -> None:
    a, b, w_v, value = draw((), 20, 40, 4, 5, torch.float32)
    mask = torch.ones(20, 40, dtype=torch.bool, device=DEVICE)
    mask[:12, 5:8] = False
    bad_b, bad_value = b.clone(), value.clone()
    bad_b[5], bad_value[6], bad_value[7, 2] = math.nan, math.nan, -math.inf
    got = operators.attention(a, bad_b, w_v, bad_value, mask=mask)
    wanted, weights = exact(tuple(x.double() for x in (a, b, w_v, value)), mask, False)  # type: ignore[arg-type]
    bound = Bound(tuple(x.double() for x in (a, b, w_v, value)), weights, torch.float32)  # type: ignore[arg-type]
    compare(got[:12], wanted[:12], bound.output()[:12], torch.float32)
    assert bool(got[12:].isnan().all())
    step = decoding.step(decoding.cache(bad_b, w_v, bad_value), a[0], mask[0])
    compare(step[None], wanted[:1], bound.output()[:1], torch.float32)


def test_nonfinite_keys_that_nobody_attends_to_leave_gradients_alone() -> None:
    clean = draw((), 13, 40, 4, 5, torch.float32)
    mask = torch.ones(13, 40, dtype=torch.bool, device=DEVICE)
    mask[:, 5:8] = False
    mask[:10, 9] = False
    bad = [x.clone() for x in clean]
    bad[1][5], bad[1][6], bad[1][9], bad[3][7] = math.nan, math.inf, -1e6, math.nan
    clean[1][9] = -1e6
    results = []
    for arguments in (clean, bad):
        leaves = [x.clone().requires_grad_() for x in arguments]
        operators.attention(*leaves, mask=mask).square().sum().backward()
        results.append([x.grad for x in leaves])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_scores_and_their_gradients() -> None:
    a, b, w_v, _ = (x.requires_grad_() for x in draw((2,), 18, 23, 5, 1, torch.float32))
    got = operators.scores(a, b, w_v)
    grad = torch.rand(got.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    got.backward(grad)
    x, y, w = (t.detach().double().requires_grad_() for t in (a, b, w_v))
    wanted = torch.tanh(x[..., :, None, :] + y[..., None, :, :]) @ w
    torch.autograd.backward(wanted, grad.double())
    limit = 8 * UNIT[torch.float32] * (math.sqrt(5) + 24)
    compare(got.detach(), wanted.detach(), limit * w.detach().norm() + 0 * wanted.detach(), torch.float32)
    total = grad.double()
    sizes = (total.sum(-1)[..., None] * w.abs(), total.sum(-2)[..., None] * w.abs(), total.sum() + 0 * w)
    for leaf, oracle, size in zip((a, b, w_v), (x, y, w), sizes, strict=True):
        assert leaf.grad is not None
        assert oracle.grad is not None
        compare(leaf.grad, oracle.grad, limit * size.detach(), torch.float32)


def test_second_derivatives_raise() -> None:
    leaves = [x.requires_grad_() for x in draw((), 5, 6, 3, 4, torch.float32)]
    a, b, w_v, _ = leaves
    for result in (operators.attention(*leaves), operators.scores(a, b, w_v)):
        total = result.square().sum() + a.pow(3).sum()
        (gradient,) = torch.autograd.grad(total, a, create_graph=True)
        with pytest.raises(NotImplementedError, match="second derivatives"):
            torch.autograd.grad(gradient.square().sum(), a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [False, True])
def test_a_decoding_step_is_within_the_bound(dtype: torch.dtype, masked: bool) -> None:
    a, b, w_v, value = draw((3,), 1, 150, 37, 20, dtype)
    mask = torch.arange(150, device=DEVICE) < torch.tensor([[150], [40], [0]], device=DEVICE) if masked else None
    got = decoding.step(decoding.cache(b, w_v, value), a[:, 0], mask)
    double: Any = tuple(x.double() for x in (a, b, w_v, value))
    wanted, weights = exact(double, None if mask is None else mask[:, None], False)
    limit = Bound(double, weights, dtype).output()
    compare(got, wanted[:, 0], limit[:, 0], dtype)


def test_step_at_large_magnitudes_and_with_gradients() -> None:
    a, b, w_v, value = draw((2,), 1, 50, 6, 4, torch.float32)
    for magnitude in (1e-3, 44.0, 1e6):
        double: Any = tuple(x.double() for x in (a * magnitude, b * magnitude, w_v, value))
        wanted, weights = exact(double, None, False)
        got = decoding.step(decoding.cache(b * magnitude, w_v, value), a[:, 0] * magnitude)
        compare(got, wanted[:, 0], Bound(double, weights, torch.float32).output()[:, 0], torch.float32)
    leaf = a[:, 0].clone().requires_grad_()
    decoding.step(decoding.cache(b, w_v, value), leaf).sum().backward()
    assert leaf.grad is not None
    assert bool(leaf.grad.any())


def test_custom_operations_pass_opcheck() -> None:
    a, b, w_v, value = (x.requires_grad_() for x in draw((2,), 3, 5, 4, 6, torch.float32))
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool, device=DEVICE)
    torch.library.opcheck(torch.ops.attnspec.additive_attention_triton, (a, b, w_v, value, mask, 1, True))
    # its gradients without a mask are those of the next test
    utilities = ("test_schema", "test_faketensor")
    unmasked = a, b, w_v, value, None, 1, False
    torch.library.opcheck(torch.ops.attnspec.additive_attention_triton, unmasked, test_utils=utilities)
    torch.library.opcheck(torch.ops.attnspec.additive_scores_triton, (a, b, w_v))
    plain = [x.detach() for x in (a, b, w_v, value)]
    torch.library.opcheck(torch.ops.attnspec.additive_step_triton, (plain[0][:, 0], *plain[1:], mask, 1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("masked", [False, True])
def test_compiles_with_torch_compile(masked: bool) -> None:
    arguments = draw((2,), 5, 7, 4, 6, torch.float32)
    mask = torch.ones(2, 5, 7, dtype=torch.bool, device=DEVICE).triu() if masked else None

    def attention(*x: Tensor) -> Tensor:
        result: Tensor = operators.attention(*x, mask=mask, causal=True)
        return result

    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    leaves = [x.requires_grad_() for x in arguments]
    outputs = compiled(*leaves), attention(*leaves)
    assert torch.equal(*outputs)
    got, wanted = (torch.autograd.grad(output.square().sum(), leaves) for output in outputs)
    assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))
    torch._dynamo.reset()


def test_autocast_computes_in_its_dtype() -> None:
    a, b, w_v, value = draw((), 5, 7, 4, 6, torch.float32)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        got = operators.attention(a.bfloat16(), b, w_v, value)
    low = [x.bfloat16() for x in (a, b, w_v, value)]
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, operators.attention(*low))


def test_inputs_are_not_written_to_and_may_be_strided() -> None:
    a, b, w_v, value = draw((2,), 9, 11, 6, 4, torch.float32)
    strided = [a.mT.contiguous().mT, b.flip(0).flip(0), torch.stack((w_v, w_v), 1)[:, 0], value[:, ::1]]
    copies = [x.clone() for x in strided]
    assert torch.equal(operators.attention(*strided), operators.attention(a, b, w_v, value))
    assert all(torch.equal(x, y) for x, y in zip(strided, copies, strict=True))


def test_wrong_arguments_are_refused() -> None:
    a, b, w_v, value = draw((), 3, 4, 2, 5, torch.float32)
    for wrong in ((a[:, :1], b, w_v, value), (a, b, w_v, value[:3]), (a, b, w_v[:1], value), (a[0], b, w_v, value)):
        with pytest.raises(ValueError, match="expected"):
            operators.attention(*wrong)
    with pytest.raises(ValueError, match="mask"):
        operators.attention(a, b, w_v, value, mask=torch.ones(3, 3, dtype=torch.bool, device=DEVICE))
    with pytest.raises(TypeError, match="dtypes"):
        operators.attention(a.double(), b.double(), w_v.double(), value.double())
    assert operators.supports(a, b, w_v, value)
    assert not operators.supports(a.double())
    assert not operators.supports(a, b.half())


def test_without_triton_the_error_is_one_clear_line() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "try:\n    import attnspec.backends.pytorch.kernels.additive.triton.operators\n"
        "except ImportError as error:\n    print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=True
    )
    assert result.stdout.count("\n") == 1
    assert "needs Triton" in result.stdout


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


COMPILED = "80-fp32-usual", "86-fp32-odd", "90-bf16-single-masked", "100-fp16-least-masked", "120-fp32-translation"
"""Compute capability, dtype, sizes and masks of what is compiled: every choice of each at least once."""


def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    """Kernels fit each GPU; its schedulers have gradients to compute; loops hold the predicted instructions."""
    settings = environment() | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "benchmarks.resources", *COMPILED]
    done = subprocess.run(command, env=settings, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for configuration, rows in json.loads(done.stdout).items():
        for row in rows:
            where = f"{configuration}: {row['kernel']}"
            assert row["shared"] <= row["most_shared"], where
            assert 32 * row["warps"] * row["registers"] <= 65_536, where
            assert row["narrow_strides"] == [], where
            assert row["stack"] == 0 or row["kernel"] != "step", where
            assert row["stack"] <= 1200, where
            # spills between the loops over the hidden units are few: there, two totals or products are held at a time
            assert all(loop["spills"] <= 0.1 * loop["terms"] for loop in row["loops"].values()), where
            assert row["spills"] == 0 or row["kernel"].startswith(("forward", "gradient", "scores")), where
            assert row["warps_per_scheduler"] >= min(1, row["most_warps_per_scheduler"]), where
        if "usual" not in configuration:
            continue
        loops = {row["kernel"]: row["loops"] for row in rows}
        for name in ("forward", "gradient", "scores"):
            # Three terms to a reciprocal: 8 operations and one reciprocal for three, and few instructions besides. With
            # 64 reciprocals Triton 3.6 emits 528 operations, 3.7 at most 520; a ninth operation would make 576.
            triple = loops[name]["shared"]
            assert triple["arithmetic"] <= 8.5 * triple["reciprocals"]
            assert triple["instructions"] <= 3.8 * triple["terms"]
            # 12 of the 16 queries' factors, 3 ratios, and those of the keys
            assert triple["loads"] <= 21
        for name in ("gradient", "gradient of scores"):
            gradient = loops[name]["gradient"]
            assert gradient["arithmetic"] <= 8.5 * gradient["terms"]
            assert gradient["instructions"] <= 12 * gradient["terms"]
