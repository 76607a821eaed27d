"""Rotary embeddings, RMS normalization and short convolutions: layouts of memory, and second derivatives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.bases.torch import gradients, to_numpy
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "odd offset": lambda x: torch.cat((x.new_zeros(1), x.flatten()))[1:].view_as(x),
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second feature": lambda x: torch.stack((x, -x), -1).flatten(-2)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
    "lazily negated": lambda x: torch.complex(x, -x).conj().imag,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_do_not_matter(layout: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[layout](torch.randn(3, 5, 8)).to(dtype)
    assert_within_budgets(to_numpy(pytorch.rotary_embedding(x)), "rotary_embedding", x=to_numpy(x))
    weight = torch.randn(8, dtype=dtype)
    normalized = pytorch.rms_norm(x, weight)
    assert_within_budgets(to_numpy(normalized), "rms_norm", x=to_numpy(x), weight=to_numpy(weight))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", ["rotary_embedding", "rms_norm"])
def test_cotangents_have_any_layout(operation: str, layout: str) -> None:
    arguments = {"x": torch.randn(3, 5, 8)} | ({"weight": torch.randn(8)} if operation == "rms_norm" else {})
    cotangent = LAYOUTS[layout](torch.randn(3, 5, 8))
    computed = gradients(getattr(pytorch, operation), arguments, cotangent)
    arrays: dict[str, Any] = {name: to_numpy(x) for name, x in arguments.items()}
    assert_gradients_within_budgets(
        {path: to_numpy(x) for path, x in computed.items()}, to_numpy(cotangent), operation, **arrays
    )


def test_second_derivatives_are_those_of_the_formula() -> None:
    x, weight = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((2, 3, 4), (4,)))

    def normalize(x: Tensor, weight: Tensor) -> Tensor:
        return pytorch.rms_norm(x, weight, epsilon=0.01)

    positions = torch.tensor([[[0, 2, 5]], [[1, 1, 1]]])  # one row of positions for each of two more batch entries

    def rotate(x: Tensor) -> Tensor:
        return pytorch.rotary_embedding(x, positions)

    def convolve(x: Tensor, filters: Tensor, state: Tensor) -> Tensor:
        return pytorch.short_convolution(x, filters, state)[0]

    filters, state = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((4, 3), (2, 2, 4)))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(normalize, (x, weight))
        assert check(rotate, (x,))
        assert check(convolve, (x, filters, state))


def test_autocast_of_a_caller_does_not_round_gradients() -> None:
    x, weight = torch.randn(2, 3, 4).requires_grad_(), torch.randn(4).requires_grad_()
    usual = torch.autograd.grad(pytorch.rms_norm(x, weight).sum(), (x, weight))
    with torch.autocast("cpu", torch.bfloat16):
        within = torch.autograd.grad(pytorch.rms_norm(x, weight).sum(), (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(usual, within, strict=True))


def test_only_the_weight_or_only_the_rows_need_gradients() -> None:
    x, weight = torch.randn(2, 3, 4).requires_grad_(), torch.randn(4).requires_grad_()
    of_x, of_weight = torch.autograd.grad(pytorch.rms_norm(x, weight).sum(), (x, weight))
    assert torch.equal(torch.autograd.grad(pytorch.rms_norm(x, weight.detach()).sum(), x)[0], of_x)
    assert torch.equal(torch.autograd.grad(pytorch.rms_norm(x.detach(), weight).sum(), weight)[0], of_weight)


@pytest.mark.parametrize("operation", ["rotary_embedding", "rms_norm", "short_convolution"])
def test_gradients_may_be_batched_and_results_changed_in_place(operation: str) -> None:
    x, others = torch.randn(2, 3, 4).requires_grad_(), {"rms_norm": [torch.randn(4)]}
    others["short_convolution"] = [torch.randn(4, 3), torch.randn(2, 2, 4)]
    result = getattr(pytorch, operation)(x, *others.get(operation, []))
    result = result[0] if operation == "short_convolution" else result
    cotangents = torch.randn(5, 2, 3, 4)
    (together,) = torch.autograd.grad(result, x, cotangents, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(result, x, c, retain_graph=True)[0] for c in cotangents]
    assert torch.equal(together, torch.stack(one_by_one))
    result.mul_(2)
    assert torch.equal(torch.autograd.grad(result, x, cotangents[0])[0], 2 * one_by_one[0])
