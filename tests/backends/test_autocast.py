"""Autocast: operations of products take and give its dtype, differences and exponentials keep theirs."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.pytorch import additive
from attnspec.spec import OPERATIONS, Kind, Leaf, Option
from attnspec.spec.contract.tree import build_tree, dimension_value, flatten, map_tree, unscoped
from tests.budgets import assert_within_budgets

SIZES = {"n": 3, "m": 5, "h": 3, "heads": 2, "depth": 2}
"""Every other size is 4."""
KEEPS_DTYPE = {"softmax", "mean_normalization", "average_pooling", "gaussian_scores", "nadaraya_watson", "layer_norm"}
KEEPS_DTYPE |= {"add_positions", "concat_positions", "concat_output", "embed", "encoder_context"}
KEEPS_DTYPE |= {"split_heads", "merge_heads", "learned_positions"}
KEEPS_DTYPE |= {"patchify", "interpolate", "gelu", "rms_norm", "add_rms_norm", "linear_attention", "short_convolution"}
KEEPS_DTYPE |= {"merge_attention", "rotary_embedding", "axial_rotary_embedding", "dropout", "gated_output"}
KEEPS_DTYPE |= {"relative_position_bias"}
FLOATING = sorted(name for name, operation in OPERATIONS.items() if operation.differentiable and hasattr(pytorch, name))


def arguments(operation: str, dtype: torch.dtype) -> dict[str, Any]:
    """A float for every argument that has to be given."""
    generator = torch.Generator().manual_seed(0)

    def draw(node: Leaf | Option) -> Tensor | int | None:
        if isinstance(node, Option) and node.kind is Kind.SIZE:
            return SIZES.get(node.path, 4)
        if not isinstance(node, Leaf) or node.kind is Kind.BOOL:
            return None
        core = [dimension_value(d.factors, {s: SIZES.get(unscoped(s), 4) for s in d.sizes}) or 0 for d in node.core]
        counted = OPERATIONS[operation].cumulative.get(node.path)
        if counted is not None:  # from 0 to the number of positions
            return torch.arange(core[-1]) * SIZES[counted] // (core[-1] - 1)
        if node.kind is Kind.INT:
            return torch.randint(4, (*[2][: node.batched], *core), generator=generator)
        return torch.randn(2, *core, generator=generator)[... if node.batched else 0].to(dtype)

    tree = build_tree(OPERATIONS[operation].call, draw, lambda layers: 2)
    return {name: value for name, value in tree.items() if value is not None}


@pytest.mark.parametrize("operation", FLOATING)
def test_results_are_those_of_operands_in_its_dtype(operation: str) -> None:
    compute = getattr(pytorch, operation)
    inputs = arguments(operation, torch.float32)
    taken = torch.float32 if operation in KEEPS_DTYPE else torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        got = flatten(compute(**inputs))

    def cast(_: str, x: Any) -> Any:
        return x.to(taken) if isinstance(x, Tensor) and x.is_floating_point() else x

    expected = flatten(compute(**map_tree(inputs, cast)))
    assert got.keys() == expected.keys()
    assert all(x.dtype is taken for x in got.values())
    assert all(torch.equal(x, expected[path]) for path, x in got.items())


@pytest.mark.parametrize("operation", FLOATING)
def test_float64_operands_keep_their_dtype_under_autocast(operation: str) -> None:
    compute, inputs = getattr(pytorch, operation), arguments(operation, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        first, second = flatten(compute(**inputs)), flatten(compute(**inputs))
    assert all(x.dtype is torch.float64 for x in first.values())
    assert all(torch.equal(x, second[path]) for path, x in first.items())


def test_operands_may_differ_under_autocast_alone() -> None:
    query, key = torch.randn(3, 4), torch.randn(5, 4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert pytorch.dot_scores(query, key).dtype is torch.bfloat16
    with pytest.raises(
        TypeError, match=r"^dot_scores: key: expected torch.float32 like the others; got torch.bfloat16$"
    ):
        pytorch.dot_scores(query, key)


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_stays_in_the_dtype_of_its_cache(dtype: torch.dtype, tracked: bool) -> None:
    b, w_v, value, query = torch.randn(2, 7, 4), torch.randn(4), torch.randn(2, 7, 3), torch.randn(2, 4)
    cache = additive.prepare_keys(b, w_v, value)
    query = query.to(dtype).requires_grad_(tracked)
    with torch.autocast("cpu", torch.bfloat16):
        got = additive.step(cache, query)
    assert got.dtype is torch.float32
    assert torch.equal(got, additive.step(cache, query.float()))
    assert got.requires_grad is tracked


def test_a_cache_that_is_copied_under_autocast_keeps_its_dtype() -> None:
    cache = additive.prepare_keys(torch.randn(2, 7, 4), torch.randn(4), torch.randn(2, 7, 3))
    with torch.autocast("cpu", torch.bfloat16):
        other = copy.deepcopy(cache)
    query = torch.randn(2, 4)
    assert torch.equal(additive.step(other, query), additive.step(cache, query))


def test_autocast_of_another_device_changes_nothing() -> None:
    query, key = torch.randn(3, 4), torch.randn(5, 4)
    before = torch.is_autocast_enabled("xpu")
    torch.set_autocast_enabled("xpu", True)
    try:
        with pytest.raises(TypeError, match=r"torch.float32 like the others"):
            pytorch.dot_scores(query, key.bfloat16())
        assert pytorch.dot_scores(query, key).dtype is torch.float32
    finally:
        torch.set_autocast_enabled("xpu", before)


def test_meta_tensors_know_no_autocast() -> None:
    a, b, w_v = (torch.randn(size, device="meta") for size in ((2, 5, 4), (2, 7, 4), (4,)))
    assert additive.attention(a, b, w_v, b).shape == (2, 5, 4)
    assert additive.scores(a, b, w_v).shape == (2, 5, 7)


def test_the_gradient_of_a_float32_leaf_is_float32() -> None:
    leaf = torch.randn(2, 5, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        total = pytorch.self_attention(leaf, causal=True).float().sum()
    (gradient,) = torch.autograd.grad(total, leaf)
    assert gradient.dtype is torch.float32
    assert gradient.isfinite().all()


def test_torch_compile_sees_autocast() -> None:
    x = torch.randn(2, 5, 4)
    compiled = torch.compile(pytorch.scaled_dot_product_attention, fullgraph=True, backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(x, x, x).dtype is torch.bfloat16
    assert compiled(x, x, x).dtype is torch.float32


def test_operations_do_not_share_the_compilations_that_torch_compile_allows() -> None:
    x = torch.randn(2, 5, 4)
    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=1):
        for name in ("dot_scores", "scaled_dot_scores", "gaussian_scores"):
            operation = getattr(pytorch, name)
            compiled: Any = torch.compile(operation, fullgraph=True, backend="eager")
            got = compiled(x, x)
            assert_within_budgets([got, operation(x, x)], name, x, x)
