"""Products of half dtypes on CUDA, tested without a GPU.

PyTorch's ``out_dtype`` is computed on the CPU by its definition. `pretended_cuda` shows what operations multiply on a
GPU.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.pytorch.runtime import products
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES
from attnspec.backends.pytorch.runtime.forcing import forcing
from attnspec.backends.pytorch.runtime.products import add_product, batched_product, wide_linear, wide_product
from attnspec.spec.contract.tree import flatten, map_tree
from tests.budgets import assert_gradients_within_budgets

from .pretended_cuda import Device, pretended, pretended_cuda
from .test_autocast import FLOATING, arguments

GPU = torch.device("cuda:0")
DTYPES = pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def widened_multiplication(left: Tensor, right: Tensor, out_dtype: torch.dtype) -> Tensor:
    assert left.dtype == right.dtype in HALF_DTYPES
    assert out_dtype is torch.float32
    return left.to(out_dtype) @ right.to(out_dtype)


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Half products on the CPU, by their definition."""
    monkeypatch.setattr(products, "multiplies_halves", lambda x, dtype: True)
    aten = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    aten.impl("mm.dtype", widened_multiplication, "CPU")  # type: ignore[no-untyped-call]
    aten.impl("bmm.dtype", widened_multiplication, "CPU")  # type: ignore[no-untyped-call]
    yield
    aten._destroy()  # type: ignore[no-untyped-call]


# Numbers --------------------------------------------------------------------------------------------------------------

SHAPES = [((3, 4), (4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)),
          ((1, 3, 4), (7, 4, 5)), ((3, 4), (2, 4, 5))]  # fmt: skip


@DTYPES
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_half_operands_are_multiplied_exactly_and_summed_in_float32(
    left: tuple[int, ...], right: tuple[int, ...], dtype: torch.dtype, halves: None
) -> None:
    x, w = draw(*left, dtype=dtype), draw(*right, dtype=dtype)
    assert products.path_for(x, w) == "out_dtype"
    assert torch.equal(wide_product(x, w), x.float() @ w.float())
    assert torch.equal(batched_product(x, w), x.float() @ w.float())
    if w.dim() == 2:
        assert torch.equal(wide_linear(x, w.mT, w[0]), x.float() @ w.float() + w[0].float())
        terms = draw(*left[:-1], right[-1])
        assert torch.equal(add_product(terms, x, w), terms + x.float() @ w.float())


@DTYPES
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.parametrize("computed", [False, True])
def test_gradients_are_within_the_budgets_of_the_class(
    left: tuple[int, ...], right: tuple[int, ...], computed: bool, dtype: torch.dtype, halves: None
) -> None:
    x, w, cotangent = draw(*left, dtype=dtype), draw(*right, dtype=dtype), draw(*left[:-1], right[-1], dtype=dtype)
    inputs = [y.requires_grad_() for y in (x, w)]
    wide = inputs[0].float() if computed else inputs[0]
    output = wide_product(wide, inputs[1]).to(dtype)
    cotangent = cotangent.expand(output.shape)
    gradients = torch.autograd.grad(output, inputs, cotangent)
    assert [g.dtype for g in gradients] == [dtype, dtype]
    plain = [y.detach() for y in inputs]
    assert_gradients_within_budgets(gradients, cotangent, lambda x, w: x @ w, *plain)


@DTYPES
def test_a_computed_operand_is_rounded_once_and_has_an_unrounded_gradient(dtype: torch.dtype, halves: None) -> None:
    x, w = draw(5, 4).requires_grad_(), draw(4, 3, dtype=dtype)
    output = wide_product(x, w)
    rounded = x.detach().to(dtype).float()
    assert torch.equal(output, rounded @ w.float())
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert gradient.dtype is torch.float32
    assert torch.equal(gradient, torch.ones(5, 3) @ w.float().mT)


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1.0, 1e9, 1e30])
def test_float16_neither_overflows_nor_vanishes_in_computed_operands_and_gradients(scale: float, halves: None) -> None:
    x, w = draw(5, 4), draw(4, 3, dtype=torch.float16)
    rows = torch.tensor([1.0, 1e-6, 1e6, 0.0, 1.0])[:, None] * scale
    inputs = [(x * rows).requires_grad_(), w.clone().requires_grad_()]
    output = wide_product(inputs[0], inputs[1])
    expected = inputs[0].detach().double() @ w.double()
    largest = expected.abs().amax(-1, keepdim=True)
    assert ((output - expected).abs() <= 2**-9 * largest).all()
    (gradient,) = torch.autograd.grad(output, inputs[0], (rows * torch.ones(5, 3)))
    exact = (rows * torch.ones(5, 3)).double() @ w.double().mT
    assert ((gradient - exact).abs() <= 2**-9 * exact.abs().amax(-1, keepdim=True)).all()


def test_infinite_and_undefined_numbers_stay_in_their_rows(halves: None) -> None:
    x, w = torch.ones(4, 2), torch.ones(2, 2, dtype=torch.float16)
    x[1, 0], x[2, 0] = torch.inf, torch.nan
    output = wide_product(x, w)
    assert output[:, 0].tolist()[:2] == [2.0, torch.inf]
    assert output[2].isnan().all()
    assert output[3].tolist() == [2.0, 2.0]


@DTYPES
def test_uses_of_an_operand_that_was_widened_before_are_summed_in_float32(dtype: torch.dtype, halves: None) -> None:
    x, w = draw(5, 4, dtype=dtype).requires_grad_(), [draw(4, 3, dtype=dtype) / 3 for _ in range(40)]
    wide = x.float()
    output = torch.stack([wide_product(wide, one.float(), dtype) for one in w]).sum(0)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(gradient, (40 * (torch.ones(5, 3) @ w[0].float().mT)).to(dtype))


def test_gradients_of_a_matrix_that_a_batch_shares_are_summed_in_float32(halves: None) -> None:
    x, w = draw(300, 1, 4, dtype=torch.bfloat16), draw(2, 4, 3, dtype=torch.bfloat16).requires_grad_()
    output = wide_product(x[:, None], w)
    (gradient,) = torch.autograd.grad(output.sum(), w)
    exact = x.double().sum(0).mT.expand(2, 4, 3)
    assert ((gradient - exact).abs() <= 2**-8 * exact.abs() + 1e-4).all()


@pytest.mark.parametrize(("left", "right"), [((0, 4), (4, 3)), ((2, 0), (0, 3)), ((0, 2, 4), (4, 3)), ((2, 4), (4, 0))])
@DTYPES
def test_empty_operands_are_multiplied_widened(
    left: tuple[int, ...], right: tuple[int, ...], dtype: torch.dtype, halves: None
) -> None:
    x, w = (torch.ones(shape, dtype=dtype, requires_grad=True) for shape in (left, right))
    assert products.path_for(x, w) == "wide"
    output = wide_product(x, w)
    assert output.dtype is torch.float32
    assert torch.equal(output, torch.zeros(*left[:-1], right[-1]))
    assert [g.shape for g in torch.autograd.grad(output.sum(), (x, w))] == [x.shape, w.shape]


# Derivatives, transforms and torch.compile ----------------------------------------------------------------------------


def squared(x: Tensor, w: Tensor) -> Tensor:
    return wide_product(x, w).square().sum()


@DTYPES
def test_second_derivatives_are_those_of_widened_products(dtype: torch.dtype, halves: None) -> None:
    x, w = (draw(*shape, dtype=dtype).requires_grad_() for shape in ((3, 4), (4, 2)))
    results = []
    for compute in (squared, lambda x, w: (x.float() @ w.float()).square().sum()):
        (first,) = torch.autograd.grad(compute(x, w), x, create_graph=True)
        results.append(torch.autograd.grad(first.float().square().sum(), (x, w)))
    for got, expected in zip(*results, strict=True):
        assert ((got - expected).abs() <= 2**-5 * expected.abs().max()).all()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch's own forward mode
@DTYPES
def test_transforms_and_forward_mode_multiply_widened_operands(dtype: torch.dtype, halves: None) -> None:
    x, w = draw(6, 3, 4, dtype=dtype), draw(4, 2, dtype=dtype)

    def widened(x: Tensor, w: Tensor) -> Tensor:
        assert products.path_for(x, w) == "wide"
        return wide_product(x, w)

    expected = x.float() @ w.float()
    assert torch.equal(torch.func.vmap(widened, (0, None))(x, w), expected)
    assert torch.equal(torch.func.jvp(lambda x: widened(x, w), (x,), (x,))[1], expected)
    gradient = torch.func.grad(lambda x: widened(x, w).sum())(x)
    assert torch.equal(gradient, (torch.ones(6, 3, 2) @ w.float().mT).to(dtype))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by the compiler itself
@DTYPES
def test_torch_compile_traces_half_products_and_their_gradients(dtype: torch.dtype, halves: None) -> None:
    x, w = (draw(*shape, dtype=dtype).requires_grad_() for shape in ((3, 4), (4, 2)))
    graphs: list[Any] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(squared, fullgraph=True, backend=keep)
    expected = torch.autograd.grad(squared(x, w), (x, w))
    assert all(map(torch.equal, torch.autograd.grad(compiled(x, w), (x, w)), expected))
    assert len(graphs) == 1


def test_torch_compile_asks_once_which_products_a_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "capability", lambda device: (8, 0))

    def chosen(x: Tensor) -> Tensor:
        return x + 1 if products._gpu_multiplies_halves(GPU, torch.float16) else x

    assert torch.compile(chosen, fullgraph=True, backend="eager")(torch.zeros(1)) == 1


# Which GPUs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "bfloat16", "float16"),
    [((9, 0), True, True), ((8, 0), True, True), ((7, 5), False, True), ((6, 1), False, False)],
)
def test_a_gpu_without_tensor_cores_for_a_dtype_multiplies_widened_operands(
    capability: tuple[int, int], bfloat16: bool, float16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "capability", lambda device: capability)
    assert products._gpu_multiplies_halves(GPU, torch.bfloat16) == bfloat16
    assert products._gpu_multiplies_halves(GPU, torch.float16) == float16


def test_amd_and_accumulation_in_float16_multiply_widened_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "capability", lambda device: (9, 0))
    monkeypatch.setattr(torch._C, "_get_cublas_allow_fp16_accumulation", lambda: True)
    assert not products._gpu_multiplies_halves(GPU, torch.float16)
    assert products._gpu_multiplies_halves(GPU, torch.bfloat16)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert not products._gpu_multiplies_halves(GPU, torch.bfloat16)


@DTYPES
def test_the_cpu_multiplies_widened_operands(dtype: torch.dtype) -> None:
    x = draw(3, 3, dtype=dtype)
    assert products.path_for(x, x) == "wide"
    assert products.operand(x).dtype is torch.float32


# Operations -----------------------------------------------------------------------------------------------------------


FUSED_NETWORKS = (
    "rnn", "lstm", "bidirectional_rnn", "bidirectional_lstm", "stacked_rnn", "stacked_lstm", "rnn_self_attention",
)  # fmt: skip

IN_FLOAT32 = {
    **dict.fromkeys(FUSED_NETWORKS, "PyTorch's operators do not say what they round of half operands"),
    "additive_attention": "the path without Triton, where values are widened",
    "multi_head_additive_attention": "as additive_attention",
    "bahdanau_context": "as additive_attention",
    "linear_attention": "the state, which every step adds to",
    "indexer_scores": "the sum over heads, which ranks the keys, of one row per query",
    "selected_attention": "gathered rows, whose gradients of all queries are summed in float32",
    "latent_attention": "the product of the pooled latent, whose rounding would not be averaged over keys",
    "merge_attention": "as many products as there are parts of the keys, of one row each",
}
"""Operations that multiply matrices in float32, with the reason."""

WITH_GRADIENTS_IN_FLOAT32 = {
    **dict.fromkeys(FUSED_NETWORKS, "PyTorch's operators do not say what they round of half operands"),
    **IN_FLOAT32,
    **dict.fromkeys(("gru", "bidirectional_gru", "stacked_gru"), "gradients of all steps are summed in float32"),
    "teacher_forced_decode": "gradients of all steps are summed in float32",
    "decoder_step": "the pooled annotations, of one row, whose gradients of both uses are summed in float32",
}
"""Operations that do so where gradients are recorded."""


@pytest.fixture
def gpu() -> Iterator[Device]:
    """An Ampere GPU on which attention takes the path ``plain``, if it has one."""
    with pretended_cuda((8, 0)) as device, forcing("plain"):
        yield device


def dtypes_multiplied(operation: str, dtype: torch.dtype, gradients: bool, gpu: Device) -> set[torch.dtype]:
    """Run an operation, forward and backward; return the dtypes of operands of its matrix products."""
    inputs = map_tree(arguments(operation, dtype), lambda _, x: pretended(x) if isinstance(x, Tensor) else x)
    if operation == "beam_decode":
        inputs["eos"] = 1
    floats = [x for x in flatten(inputs).values() if isinstance(x, Tensor) and x.is_floating_point()]
    for x in floats:
        x.requires_grad_(gradients)
    gpu.multiplied.clear()
    results = [x for x in flatten(getattr(pytorch, operation)(**inputs)).values() if x.is_floating_point()]
    if gradients:
        torch.autograd.grad([x.float().sum() for x in results], floats, allow_unused=True)
    return gpu.multiplied


@DTYPES
@pytest.mark.parametrize("operation", sorted({*FLOATING, "beam_decode"}))
def test_cuda_multiplies_no_widened_operands_but_where_a_reason_is_named(
    operation: str, dtype: torch.dtype, gpu: Device
) -> None:
    assert (torch.float32 in dtypes_multiplied(operation, dtype, False, gpu)) == (operation in IN_FLOAT32)
    if operation in FLOATING:
        in_float32 = torch.float32 in dtypes_multiplied(operation, dtype, True, gpu)
        assert in_float32 == (operation in WITH_GRADIENTS_IN_FLOAT32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_dtypes_are_multiplied_as_they_are(dtype: torch.dtype, gpu: Device) -> None:
    assert dtypes_multiplied("encoder_layer", dtype, True, gpu) == {dtype}


def test_the_suite_acquits_half_products() -> None:
    """Judge in another process, which pretends to have a GPU."""
    backend = "tests/backends/pretended_pytorch.py"
    command = (sys.executable, "-m", "attnspec.conformance.cli", "check", backend, "--in-process", "--workers", "1")
    chosen = {
        "--operation": ("multi_head_attention", "feed_forward", "gru_cell", "graph_layer", "latent_attention"),
        "--law": ("operation.oracle", "operation.gradient"),
        "--dtype": ("bfloat16", "float16"),
    }
    selection = [word for option, values in chosen.items() for value in values for word in (option, value)]
    root = Path(__file__).parents[2]
    variables = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([*command, *selection], capture_output=True, text=True, timeout=600, cwd=root, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pytorch on a pretended GPU conforms" in done.stdout
