"""Derivatives of every order and direction, torch.compile with sizes it does not know, and torch.export."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.export import Dim, export
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.backends import pytorch
from attnspec.backends.pytorch import additive, sdpa
from attnspec.reference import REFERENCE
from attnspec.spec import LayerNormParameters
from tests.budgets import (
    assert_gradients_within_budgets,
    assert_slopes_within_budgets,
    assert_within_budgets,
    attention_gradients,
    projected_additive_attention,
)

Operation = Callable[..., Tensor]
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch's own forward mode


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def attention(x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool)
    mask[1] = False
    return sdpa.attend(x, x.flip(-1), x * x, mask=mask, causal=True)


def regression(x: Tensor) -> Tensor:
    return pytorch.nadaraya_watson(x, x.flip(-2), x * x)


ROW_1_ATTENDS_NOTHING = np.arange(3)[:, None] != 1
FORMULAS: dict[Operation, Callable[[Any], Any]] = {
    attention: lambda x: REFERENCE["scaled_dot_product_attention"](
        x, x[..., ::-1], x * x, mask=ROW_1_ATTENDS_NOTHING, causal=True
    ),
    regression: lambda x: REFERENCE["nadaraya_watson"](x, x[..., ::-1, :], x * x),
}


@pytest.mark.parametrize("operation", [attention, regression])
def test_forward_mode_gives_the_slopes_of_the_formula(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    # None cannot be called: the operation must not set switches, which other threads of the process would see.
    monkeypatch.setattr(torch._C, "_set_sdp_use_flash", None)
    x, direction = draw(3, 4), draw(4, 3).mT
    tangent = torch.func.jvp(operation, (x,), (direction,))[1]
    with dual_level():
        dual = make_dual(x, direction)  # type: ignore[no-untyped-call]
        dual_tangent = unpack_dual(operation(dual)).tangent  # type: ignore[no-untyped-call]
    for i, cotangent in enumerate(torch.eye(12, dtype=torch.float64).reshape(12, 3, 4)):
        slopes = [tangent.flatten()[i], dual_tangent.flatten()[i]]
        assert_slopes_within_budgets(slopes, {"x": direction}, cotangent, FORMULAS[operation], x)


def gradient_of_attention(x: Any) -> Any:
    cotangent = np.ones(x.shape)
    of_query, of_key, of_value = attention_gradients(
        x, x[..., ::-1], x * x, cotangent, ROW_1_ATTENDS_NOTHING, causal=True
    )
    return of_query + of_key[..., ::-1] + of_value * (2 * x)


def test_the_hessian_is_that_of_the_formula() -> None:
    x = draw(3, 4)
    hessian = torch.func.hessian(lambda x: attention(x).sum())(x)
    with sdpa_kernel(SDPBackend.MATH):
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(attention(leaf).sum(), leaf, create_graph=True)
        rows = [torch.autograd.grad(g, leaf, retain_graph=True)[0] for g in gradient.flatten()]
    assert_within_budgets(gradient, gradient_of_attention, x)
    for i, cotangent in enumerate(torch.eye(12, dtype=torch.float64).reshape(12, 3, 4)):
        gradients = [(hessian.reshape(12, 3, 4)[i],), (rows[i],)]
        assert_gradients_within_budgets(gradients, cotangent, gradient_of_attention, x)


def test_second_derivatives_are_refused_with_the_place_that_has_them() -> None:
    x = draw(3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(additive.attention(x, x, x[0], x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"llvm; additive.attention\(.*, path='plain'\) has them$"):
        torch.autograd.grad(gradient.sum(), x)


@pytest.mark.parametrize("row", [(5, 7), (2, 1, 7), (1, 7)])
def test_compiled_with_sizes_that_are_not_known(row: tuple[int, ...]) -> None:
    mask = draw(*row) > -0.5
    operands = draw(2, 5, 8), draw(2, 7, 8), draw(8), draw(2, 7, 4)
    compiled = torch.compile(additive.attention, fullgraph=True, dynamic=True, backend="eager")
    results = [run(*operands, mask=mask) for run in (compiled, additive.attention)]
    assert_within_budgets(results, projected_additive_attention, *operands, mask=mask)


@pytest.mark.parametrize("path", ["llvm", "plain"])
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_once_for_all_sizes(path: str, masked: bool) -> None:
    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(additive.attention, fullgraph=True, dynamic=True, backend=counter)
    for n, m in ((5, 7), (6, 11), (9, 8)):
        operands = draw(2, n, 8), draw(2, m, 8), draw(8), draw(2, m, 4)
        mask = draw(n, m) > -0.5 if masked else None
        results = [run(*operands, mask=mask, path=path) for run in (compiled, additive.attention)]
        assert_within_budgets(results, projected_additive_attention, *operands, mask=mask)
    assert counter.frame_count == 1


REFUSED: dict[str, Callable[[], Any]] = {
    "sinusoidal_positional_encoding: n: expected an integer; got True": lambda: pytorch.sinusoidal_positional_encoding(
        True, 4
    ),
    "sinusoidal_positional_encoding: d: expected d of at least 1; got -2": lambda: (
        pytorch.sinusoidal_positional_encoding(2, -2)
    ),
    "padding_mask: m: expected m of at least 0; got -1": lambda: pytorch.padding_mask(torch.tensor([1, 2]), -1),
    "padding_mask: m: expected an integer; got 2.0": lambda: pytorch.padding_mask(
        torch.tensor([1, 2]),
        2.0,  # type: ignore[arg-type]  # what is refused
    ),
    "padding_mask: lengths: expected torch.uint8 or a signed integer dtype; got torch.uint16": lambda: (
        pytorch.padding_mask(torch.tensor([1, 2]).to(torch.uint16), 2)
    ),
    "patchify: patch: expected patch of at least 1; got -2": lambda: pytorch.patchify(draw(4, 4, 1), -2),
    "patchify: image: expected rows of at least 1; got (0, 4, 1)": lambda: pytorch.patchify(draw(0, 4, 1), 2),
    "interpolate: rows: expected rows of at least 1; got 0": lambda: pytorch.interpolate(draw(2, 2, 2, 3), 1, 0, 5),
    "layer_norm: x: expected d of at least 1; got (2, 0)": lambda: pytorch.layer_norm(
        draw(2, 0), LayerNormParameters(draw(0), draw(0))
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_compiled_code_refuses_in_the_same_words(message: str) -> None:
    torch.compiler.reset()
    for run in (REFUSED[message], torch.compile(REFUSED[message], backend="eager")):
        with pytest.raises((ValueError, TypeError)) as raised:
            run()
        assert str(raised.value) == message
    torch.compiler.reset()
    with pytest.raises(Unsupported):
        torch.compile(REFUSED[message], fullgraph=True, backend="eager")()


def test_numbers_of_positions_are_compiled_once() -> None:
    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(pytorch.padding_mask, fullgraph=True, dynamic=True, backend=counter)
    lengths = torch.tensor([3, 2])
    for m in (4, 7, 3):
        assert torch.equal(compiled(lengths, m), pytorch.padding_mask(lengths, m))
    assert counter.frame_count == 1
    with pytest.raises(Unsupported):
        compiled(lengths, -1)


class Scaled(torch.nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return pytorch.scaled_dot_product_attention(query, key, key)


class Additive(torch.nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return additive.attention(query, key, key[0, 0], key)


EXPORTED: dict[type[torch.nn.Module], Callable[[Any, Any], Any]] = {
    Scaled: lambda query, key: REFERENCE["scaled_dot_product_attention"](query, key, key),
    Additive: lambda query, key: projected_additive_attention(query, key, key[0, 0], key),
}


@pytest.mark.parametrize("module", EXPORTED)
@pytest.mark.parametrize("dynamic", [{0: "b"}, {1: "n"}, {1: "m"}])
def test_export_takes_other_sizes(module: type[torch.nn.Module], dynamic: dict[int, str]) -> None:
    axis, name = next(iter(dynamic.items()))
    size: Any = {axis: Dim(name)}
    shapes = {"b": (size, size), "n": (size, None), "m": (None, size)}[name]
    query, key = draw(2, 33, 4), draw(2, 70, 4)
    exported = export(module(), (query, key), dynamic_shapes=shapes).module()
    for factor in (1, 3):
        wide = [x.repeat_interleave(factor, axis) if s else x for x, s in zip((query, key), shapes, strict=True)]
        results = [run(*wide) for run in (exported, module())]
        assert_within_budgets(results, EXPORTED[module], *wide)
