"""The formula of bfloat16 by products in pairs, within the budgets of the formula."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends import pytorch
from attnspec.backends.pytorch import sdpa
from attnspec.backends.pytorch.kernels.dot import paired_formula, paired_rows
from attnspec.backends.pytorch.kernels.llvm import pairs as products
from attnspec.backends.pytorch.kernels.llvm.machine_code import multiplies_bfloat16
from attnspec.backends.pytorch.runtime.forcing import forcing
from attnspec.backends.pytorch.runtime.plans import Plans
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

SHAPES = [
    ((3,), 5, 32, 8, 8), ((2, 2), 70, 48, 16, 24), ((1,), 1, 16, 2, 2), ((3,), 20, 67, 8, 4), ((2,), 9, 1, 8, 8),
    ((1,), 101, 149, 18, 34),
]  # fmt: skip
"""Batch, queries, keys, features of keys and of values."""

pairs = pytest.mark.skipif(not multiplies_bfloat16(), reason="the processor does not multiply pairs of bfloat16")


@pytest.fixture(autouse=True)
def _every_size(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Odd sizes too, where no operand is NaN."""
    if "nan" not in request.node.name:
        monkeypatch.setattr(products, "stay_in_rows", lambda depth: True)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def in_rows_or_products(monkeypatch: pytest.MonkeyPatch, in_rows: bool) -> None:
    """By kernels that keep rows in the cache, or one product after another, as where tiles are multiplied."""
    monkeypatch.setattr(paired_rows, "serves", lambda m: in_rows and m > 1)


@pairs
@pytest.mark.parametrize(("batch", "n", "m", "d", "d_v"), SHAPES)
@pytest.mark.parametrize("wanted", [(0, 1, 2), (0,), (1, 2), (2,)])
@pytest.mark.parametrize("chunk", [None, 1, 1500, 6000])
@pytest.mark.parametrize("in_rows", [False, True])
def test_output_and_gradients_are_the_formula(
    monkeypatch: pytest.MonkeyPatch, batch: tuple[int, ...], n: int, m: int, d: int, d_v: int,
    wanted: tuple[int, ...], chunk: int | None, in_rows: bool,
) -> None:  # fmt: skip
    in_rows_or_products(monkeypatch, in_rows)
    if chunk is not None:
        monkeypatch.setattr(paired_formula, "CHUNK", chunk)
        monkeypatch.setattr(paired_rows, "CHUNK", chunk)
        monkeypatch.setattr(paired_formula, "KEPT", 0)
    given = [draw(*batch, n, d), draw(*batch, m, d), draw(*batch, m, d_v)]
    cotangent = draw(*batch, n, d_v)
    outputs, gradients = [], []
    with forcing("plain"):
        assert sdpa.path_for(*given) == "all keys: plain"
        for _ in range(2):
            leaves = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(given)]
            output = pytorch.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2])
            outputs += [pytorch.scaled_dot_product_attention(*given), output]
            found = dict(zip(wanted, torch.autograd.grad(output, [leaves[i] for i in wanted], cotangent), strict=True))
            assert all(x.dtype is torch.bfloat16 for x in found.values())
            gradients.append(tuple(found.get(i) for i in range(3)))
    assert_within_budgets(outputs, "scaled_dot_product_attention", *given)
    assert_gradients_within_budgets(gradients, cotangent, "scaled_dot_product_attention", *given)


@pytest.fixture
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pairs
@pytest.mark.usefixtures("_threads_as_before")
@pytest.mark.parametrize(("n", "m"), [(96, 144), (97, 145), (50, 47), (3, 300), (201, 49), (530, 1030)])
@pytest.mark.parametrize("kept", [0, 2**21])
def test_tasks_and_threads_have_no_part_in_the_result(
    monkeypatch: pytest.MonkeyPatch, n: int, m: int, kept: int
) -> None:
    monkeypatch.setattr(paired_formula, "KEPT", kept)
    given, cotangent = [draw(3, n, 8), draw(3, m, 8), draw(3, m, 10)], draw(3, n, 10)
    found = []
    for threads, rows, panels in ((1, 96, 3), (1, 2, 1), (2, 12, 2)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(paired_rows, "thread_count", lambda tasks, _, threads=threads: min(tasks, threads))
        for name, value in (("LEAST", rows), ("PANELS", panels), ("SCORES", 1)):
            monkeypatch.setattr(paired_rows, name, value)
        for name in ("_forward_steps", "_gradient_steps"):
            monkeypatch.setattr(paired_rows, name, Plans())
        leaves = [x.clone().requires_grad_() for x in given]
        output = paired_formula.attend(0.4, leaves[0], leaves[1], leaves[2])
        found.append((output, *torch.autograd.grad(output, leaves, cotangent)))
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))
    in_rows_or_products(monkeypatch, in_rows=False)
    leaves = [x.clone().requires_grad_() for x in given]
    output = paired_formula.attend(0.4, leaves[0], leaves[1], leaves[2])
    found = [found[0], (output, *torch.autograd.grad(output, leaves, cotangent))]
    assert_within_budgets([(x[0], None) for x in found], "grouped_query_attention", *given, scale=0.4)
    gradients = [x[1:] for x in found]
    assert_gradients_within_budgets(gradients, (cotangent, None), "grouped_query_attention", *given, scale=0.4)


@pairs
def test_second_derivatives_are_refused_by_name() -> None:
    leaves = [x.requires_grad_() for x in (draw(1, 5, 8), draw(1, 16, 8), draw(1, 16, 8))]
    with forcing("plain"):
        output = pytorch.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2])
        (gradient,) = torch.autograd.grad(output.sum(), leaves[:1], create_graph=True)
        with pytest.raises(NotImplementedError, match="second derivatives"):
            torch.autograd.grad(gradient.sum(), leaves[:1])


@pairs
def test_gradients_in_a_batch_are_those_one_by_one() -> None:
    leaves = [x.requires_grad_() for x in (draw(2, 5, 8), draw(2, 16, 8), draw(2, 16, 8))]
    cotangents = draw(3, 2, 5, 8)
    with forcing("plain"):
        output = pytorch.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2])
        together = torch.autograd.grad(output, leaves, cotangents, is_grads_batched=True, retain_graph=True)
        for i, one in enumerate(cotangents):
            found = [tuple(x[i] for x in together), torch.autograd.grad(output, leaves, one, retain_graph=True)]
            assert_gradients_within_budgets(found, one, "scaled_dot_product_attention", *leaves)


def test_what_is_not_multiplied_in_pairs_takes_another_path() -> None:
    assert not paired_formula.serves(4, 6, 8, 8, torch.float16)
    assert not paired_formula.serves(4, 6, 7, 8, torch.bfloat16)
    assert not paired_formula.serves(4, 6, 8, 7, torch.bfloat16)
    assert paired_formula.serves(4, 6, 8, 8, torch.bfloat16) == multiplies_bfloat16()
    query, key = draw(1, 5, 7), draw(1, 16, 7)
    with forcing("plain"):
        assert sdpa.path_for(query, key, key) != "all keys: plain"


@pairs
def test_odd_rows_are_left_to_others_where_nan_would_leave_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for tiles in (False, True):
        monkeypatch.setattr(products, "multiplies_tiles", lambda tiles=tiles: tiles)
        for n, m in ((3, 6), (4, 5)):
            assert paired_formula.serves(n, m, 8, 8, torch.bfloat16) == (not tiles)
        assert paired_formula.serves(4, 6, 8, 8, torch.bfloat16)


@pytest.mark.parametrize(("entries", "n", "m"), [(1, 1, 16), (3, 70, 48), (5, 20, 16), (2, 3, 4096)])
@pytest.mark.parametrize("chunk", [1, 1000, 2**19])
def test_chunks_are_all_scores_once(monkeypatch: pytest.MonkeyPatch, entries: int, n: int, m: int, chunk: int) -> None:
    monkeypatch.setattr(paired_formula, "CHUNK", chunk)
    seen = torch.zeros(entries, n)
    for some, parts in paired_formula.chunks(entries, n, m):
        for rows in parts:
            part = seen[some, rows]
            assert part.is_contiguous() or part.shape[0] == 1
            assert part.numel() * m <= chunk or part.numel() == 1
            part += 1
    assert seen.eq(1).all()


@pairs
def test_numbers_at_odd_places_are_pairs_too() -> None:
    whole = [draw(2 * 32 * 8 + 1) for _ in range(4)]
    odd = [x[1:].view(2, 32, 8) for x in whole]
    strange = torch.as_strided(draw(400), (1, 16, 8), (129, 8, 1))
    with forcing("plain"):
        leaves = [x.requires_grad_() for x in odd[:3]]
        output = pytorch.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2])
        found = torch.autograd.grad(output, leaves, odd[3])
        copies = [x.detach().clone().requires_grad_() for x in odd[:3]]
        again = pytorch.scaled_dot_product_attention(copies[0], copies[1], copies[2])
        for got, expected in zip(found, torch.autograd.grad(again, copies, odd[3].clone()), strict=True):
            assert torch.equal(got, expected)
        assert torch.equal(output, again)
        assert torch.equal(
            pytorch.scaled_dot_product_attention(strange, strange, strange),
            pytorch.scaled_dot_product_attention(strange.clone(), strange.clone(), strange.clone()),
        )


@pairs
@pytest.mark.parametrize("in_rows", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_weights_that_hooks_return_in_another_dtype_are_computed_again(
    monkeypatch: pytest.MonkeyPatch, in_rows: bool, dtype: torch.dtype
) -> None:
    in_rows_or_products(monkeypatch, in_rows)
    leaves = [x.requires_grad_() for x in (draw(2, 5, 8), draw(2, 17, 8), draw(2, 17, 8))]

    def changed(x: Tensor) -> Tensor:
        return x.to(dtype) if x.dtype is torch.float32 else x

    with forcing("plain"):
        expected = torch.autograd.grad(
            pytorch.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2]).sum(), leaves
        )  # fmt: skip
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, changed):
            output = pytorch.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2])
        found = torch.autograd.grad(output.sum(), leaves)
    cotangent = torch.ones_like(output)
    assert_gradients_within_budgets([found, expected], cotangent, "scaled_dot_product_attention", *leaves)


@pairs
def test_weights_that_hooks_replace_are_read_as_they_are() -> None:
    leaves = [x.requires_grad_() for x in (draw(2, 5, 8), draw(2, 16, 8), draw(2, 16, 8))]
    with forcing("plain"):
        output = pytorch.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2])
        expected = torch.autograd.grad(output.sum(), leaves)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.mT.contiguous().mT):
            output = pytorch.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2])
        found = torch.autograd.grad(output.sum(), leaves)
    cotangent = torch.ones_like(output)
    assert_gradients_within_budgets([found, expected], cotangent, "scaled_dot_product_attention", *leaves)
