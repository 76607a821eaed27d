"""Every operation on pretended CUDA tensors: placement, numbers, gradients, waits for the device."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch as backend
from attnspec.backends.pytorch.kernels.dot import cuda_fused, sdpa
from attnspec.backends.pytorch.runtime import devices, on_cuda
from attnspec.spec import OPERATIONS, Operation
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.tree import flatten, map_tree
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

from .pretended_cuda import CudaError, Device, MixedDevices, PretendedTensor, Waited, pretended, pretended_cuda
from .test_pytorch import OPERATIONS_HERE, arguments, name_of


@pytest.fixture
def gpu() -> Iterator[Device]:
    with pretended_cuda() as device:
        yield device


def inputs_of(operation: Operation, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments on the CPU, lengths and searches included."""
    inputs = arguments(operation, dtype, sizes={"steps": 3, "beams": 2})
    if "eos" in operation.signature.parameters:
        inputs["eos"] = 0
    return {"lengths": torch.tensor([3, 0]), "m": 7} if operation.name == "padding_mask" else inputs


def on_gpu(inputs: Any) -> Any:
    return map_tree(inputs, lambda _, x: pretended(x) if isinstance(x, Tensor) else x)


def is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


# Pretended tensors ----------------------------------------------------------------------------------------------------


def test_pretended_tensors_are_on_the_gpu_until_they_are_copied(gpu: Device) -> None:
    x = torch.arange(6.0).view(2, 3).to("cuda")
    assert (x.device, x.is_cuda, x.is_cpu, x.mT.device) == (torch.device("cuda:0"), True, False, x.device)
    assert (x.mT.stride(), x[1:].data_ptr() - x.data_ptr(), x[1:].storage_offset()) == ((1, 3), 12, 3)
    assert torch.zeros(2, device="cuda").is_cuda
    assert torch.zeros_like(x).is_cuda
    assert x.new_ones(2).is_cuda
    assert (x.cpu().is_cuda, x.to("cpu", torch.float64).dtype) == (False, torch.float64)
    assert torch.equal(x.cpu(), torch.arange(6.0).view(2, 3))
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        x.numpy()


def test_pretended_tensors_refuse_those_of_the_cpu(gpu: Device) -> None:
    x = torch.ones(3, device="cuda")
    assert (x * torch.tensor(2.0)).is_cuda
    y = torch.ones(3)
    mixes: list[Callable[[], Tensor]] = [lambda: x + y, lambda: torch.eye(3) @ x, lambda: torch.cat((x, y))]
    for mix in mixes:
        with pytest.raises(MixedDevices):
            mix()


def test_reading_a_pretended_tensor_waits_for_the_gpu(gpu: Device) -> None:
    x = torch.ones((), device="cuda")
    readers: list[Callable[[Tensor], Any]] = [bool, float, lambda y: y.tolist(), lambda y: y.cpu(), lambda y: y[y > 0]]
    for read in readers:
        before = len(gpu.waits)
        read(x)
        assert len(gpu.waits) > before
        with gpu.without_waiting(), pytest.raises(Waited):
            read(x)
    with gpu.without_waiting():
        (x + 1).masked_fill_(x > 0, 2.0).sum()


def test_pretended_tensors_have_gradients(gpu: Device) -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    y = x.to("cuda")
    (y.cpu() * torch.where(y > 0, y, 0.0).cpu()).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0]


def test_pretended_tensors_are_transposed_in_place(gpu: Device) -> None:
    x = torch.ones(2, 3, device="cuda", requires_grad=True)
    y = (2 * x).transpose_(0, 1)
    assert y.shape == (3, 2)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert gradient.tolist() == [[2.0] * 3] * 2


def test_an_illegal_access_spoils_all_later_operations(gpu: Device) -> None:
    x = torch.ones(1, 1, 5, 8, device="cuda").flatten()[1:33].view(1, 1, 4, 8)
    with pytest.raises(CudaError, match="misaligned address"):
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
    with pytest.raises(CudaError, match="misaligned address"):
        x + x


# Operations -----------------------------------------------------------------------------------------------------------

FUSED = {"flash", "efficient", "varlen", "flex", "math"}
"""Kernels of PyTorch whose choices the backend declares."""

WITH_ARRAYS = [o for o in OPERATIONS_HERE if o.leaves]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("operation", WITH_ARRAYS, ids=name_of)
def test_every_operation_computes_on_the_gpu(operation: Operation, dtype: torch.dtype, gpu: Device) -> None:
    inputs = inputs_of(operation, dtype)
    placed = on_gpu(inputs)
    wanted = [path for path, x in flatten(placed).items() if is_float(x)] if operation.differentiable else []
    result, backward = backend.pullback(operation.name, placed, wanted)
    assert all(isinstance(x, PretendedTensor) for x in flatten(result).values() if x is not None)
    assert operation.name in on_cuda.BY_FUSED_KERNELS or not FUSED & set(gpu.kernels)
    how: dict[str, Any] = {"precision": DEFAULTS[str(dtype).removeprefix("torch.")], "informative": False}
    assert_within_budgets(result, operation.name, **inputs, **how)
    if wanted:
        weights = map_tree(result, lambda _, x: torch.randn(x.shape).to(x.dtype) if is_float(x) else None)
        gradients = backward(on_gpu(weights))
        assert all(isinstance(x, PretendedTensor) for x in gradients.values())
        ordered = tuple(gradients[path] for path in wanted)
        assert_gradients_within_budgets(ordered, weights, operation.name, **inputs, **how)


@pytest.mark.parametrize(
    "name",
    ["causal_mask", "sliding_window_mask", "alibi_slopes", "rotary_frequencies", "sinusoidal_positional_encoding"],
)
def test_operations_without_arrays_compute_on_the_default_device(name: str, gpu: Device) -> None:
    operation = OPERATIONS[name]
    sizes = arguments(operation)
    with backend.default_device("cuda:0"):
        result = getattr(backend, name)(**sizes)
    assert isinstance(result, PretendedTensor)
    assert torch.equal(result.cpu(), getattr(backend, name)(**sizes))


@pytest.mark.parametrize("causal", [False, True])
def test_without_features_rows_are_means_on_every_device(causal: bool, gpu: Device) -> None:
    query, key, value = torch.zeros(2, 3, 5, 0), torch.zeros(2, 3, 5, 0), torch.randn(2, 3, 5, 4)
    for scale in (0.5, -1.0):
        expected = sdpa.attend(query, key, value, causal=causal, scale=scale)
        result = sdpa.attend(*moved(query, key, value), causal=causal, scale=scale)
        counts = torch.arange(1.0, 6)[:, None] if causal else torch.tensor(5.0)
        means = (value.cumsum(-2) if causal else value.sum(-2, keepdim=True)) / counts
        # budgets of the operation need features: sums of five numbers are exact to some roundings
        assert all((x - means).abs().max() < 1e-6 for x in (result.cpu(), expected))


def test_positions_need_no_float64_on_the_device(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {"cuda"})
    gpu.has_float64 = False
    x, positions = torch.randn(2, 5, 6), torch.arange(5) + 7
    for inputs in ((x,), (x, positions)):
        result = backend.rotary_embedding(*moved(*inputs))
        assert isinstance(result, PretendedTensor)
        assert_within_budgets(result, "rotary_embedding", *inputs)
    axial = x, torch.arange(10).reshape(5, 2), torch.rand(2, 3)
    assert_within_budgets(backend.axial_rotary_embedding(*moved(*axial)), "axial_rotary_embedding", *axial)
    with backend.default_device("cuda"):
        assert isinstance(backend.sinusoidal_positional_encoding(5, 6), PretendedTensor)


READS = {
    "rnn", "lstm", "bidirectional_rnn", "bidirectional_lstm", "stacked_rnn", "stacked_lstm", "rnn_self_attention",
    "greedy_decode", "beam_decode", "variable_length_attention",
}  # fmt: skip
"""Operations that read numbers: lengths, or whether a search has ended."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operation", WITH_ARRAYS, ids=name_of)
def test_no_operation_waits_for_the_gpu_while_a_graph_is_captured(
    operation: Operation, dtype: torch.dtype, gpu: Device
) -> None:
    inputs = inputs_of(operation, dtype)
    placed = on_gpu(inputs)
    wanted = [path for path, x in flatten(placed).items() if is_float(x)] if operation.differentiable else []
    before = len(gpu.waits)
    result, backward = backend.pullback(operation.name, placed, wanted)
    assert operation.name in READS or len(gpu.waits) == before
    with gpu.without_waiting():
        captured, backward = backend.pullback(operation.name, placed, wanted)
        if wanted:
            backward(map_tree(captured, lambda _, x: torch.ones_like(x) if is_float(x) else None))
    how: dict[str, Any] = {"precision": DEFAULTS[str(dtype).removeprefix("torch.")], "informative": False}
    assert_within_budgets([result, captured], operation.name, **inputs, **how)


# Limits of PyTorch's kernels ------------------------------------------------------------------------------------------


def moved(*tensors: Tensor) -> list[Tensor]:
    return [pretended(x) for x in tensors]


def shifted(x: Tensor, elements: int) -> Tensor:
    """A view of the same numbers, ``elements`` behind the beginning of its memory."""
    memory = x.new_zeros(x.numel() + elements)
    memory[elements:] = x.flatten()
    return memory[elements:].view(x.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_misaligned_views_are_copied(dtype: torch.dtype, masked: bool, gpu: Device) -> None:
    x = torch.randn(2, 3, 9, 8).to(dtype)
    mask = torch.rand(9, 9) > 0.4 if masked else None
    (y,) = moved(x)
    views = [shifted(y, 1), torch.cat((y, y[..., :1]), -1)[..., :8], y.mT.contiguous().mT]
    allowed = None if mask is None else pretended(mask)
    results = [backend.scaled_dot_product_attention(view, view, view, mask=allowed) for view in views]
    assert "math" not in gpu.kernels
    assert_within_budgets(results, "scaled_dot_product_attention", x, x, x, mask=mask)
    if not masked:
        grouped = [backend.grouped_query_attention(view, view, view) for view in views]
        assert_within_budgets(grouped, "grouped_query_attention", x, x, x)


def test_packed_sequences_may_be_misaligned_views(gpu: Device) -> None:
    x, ends = torch.randn(1, 3, 9, 8).bfloat16(), torch.tensor([0, 4, 9])
    view, on_device = shifted(pretended(x), 1), pretended(ends)
    result = backend.variable_length_attention(view, view, view, on_device, on_device)
    assert gpu.kernels == ["varlen"]
    assert_within_budgets(result, "variable_length_attention", x, x, x, ends, ends)


def test_repeated_keys_are_copied_under_a_mask(gpu: Device) -> None:
    query, key, mask = torch.randn(3, 2, 5, 8), torch.randn(1, 2, 33, 8), torch.rand(3, 2, 5, 33) > 0.4
    q, k, allowed = moved(query, key, mask)
    result = backend.scaled_dot_product_attention(q, k, k, mask=allowed)
    assert gpu.kernels == ["efficient"]
    assert_within_budgets(result, "scaled_dot_product_attention", query, key, key, mask=mask)


def test_long_calls_with_lengths_are_packed_forward_and_backward(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_fused, "WAIT_FROM", 1)
    query, key, weights = (torch.randn(2, 3, n, 8).bfloat16() for n in (5, 7, 5))
    mask = (torch.arange(7) < torch.tensor([4, 6])[:, None])[:, None, None]
    (allowed,) = moved(mask)
    q, k, v = leaves = [x.requires_grad_() for x in moved(query, key, key)]
    result = backend.scaled_dot_product_attention(q, k, v, mask=allowed)
    assert gpu.kernels == ["varlen"]
    gradients = torch.autograd.grad(result, leaves, pretended(weights))
    assert_within_budgets(result, "scaled_dot_product_attention", query, key, key, mask=mask)
    inputs = query, key, key
    assert_gradients_within_budgets(gradients, weights, "scaled_dot_product_attention", *inputs, mask=mask)
    with gpu.without_waiting():  # the structure of a mask is not read while a graph is captured
        backend.scaled_dot_product_attention(q, k, v, mask=allowed)
    assert gpu.kernels == ["varlen", "efficient"]


@pytest.mark.parametrize("shape", [(65_537, 1), (1, 65_537), (65_536,), (2, 2, 65_536)])
@pytest.mark.parametrize("masked", [False, True])
def test_more_heads_than_a_grid_has_take_several_calls(shape: tuple[int, ...], masked: bool, gpu: Device) -> None:
    query = torch.randn(*shape, 2, 4)
    key, value = torch.randn(*shape, 3, 4), torch.randn(*shape, 3, 4)
    mask = torch.rand(*shape, 1, 3) > 0.4 if masked else None
    q, k, v = leaves = [x.requires_grad_() for x in moved(query, key, value)]
    allowed = None if mask is None else pretended(mask)
    result = backend.scaled_dot_product_attention(q, k, v, mask=allowed)
    assert gpu.kernels == ["efficient", "efficient"]
    expected = backend.scaled_dot_product_attention(query, key, value, mask=mask)
    # budgets of so many numbers take minutes
    assert (result.detach().cpu() - expected).abs().max() < 1e-5
    assert all(x.isfinite().all() for x in torch.autograd.grad(result.sum(), leaves))


@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_many_pairs_take_several_calls(causal: bool, gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_fused, "MOST_PAIRS", 16 * 4)
    query, key, mask = torch.randn(2, 1, 9, 8), torch.randn(2, 1, 7, 8), torch.rand(2, 1, 9, 7) > 0.4
    q, k, allowed = moved(query, key, mask)
    result = backend.scaled_dot_product_attention(q, k, k, mask=allowed, causal=causal)
    assert gpu.kernels == ["efficient"] * 3  # three rows of 16 entries each are less than 64
    assert_within_budgets(result, "scaled_dot_product_attention", query, key, key, mask=mask, causal=causal)
    one_row = backend.scaled_dot_product_attention(q, k, k, mask=allowed[..., :1, :])
    assert gpu.kernels == ["efficient"] * 4
    assert_within_budgets(one_row, "scaled_dot_product_attention", query, key, key, mask=mask[..., :1, :])


@pytest.mark.parametrize("masked", [False, True])
def test_calls_within_the_limits_compile_as_one_graph(masked: bool) -> None:
    compiled = torch.compile(cuda_fused.dense, backend="eager", fullgraph=True, dynamic=True)
    for n, m in ((5, 7), (9, 4)):
        query, key = torch.randn(2, 3, n, 8), torch.randn(2, 3, m, 8)
        mask = torch.rand(1, 1, n, m) > 0.4 if masked else None
        results = [call(query, key, key, mask, True, 8**-0.5) for call in (compiled, cuda_fused.dense)]
        assert_within_budgets(results, "scaled_dot_product_attention", query, key, key, mask=mask, causal=True)


# The suite ------------------------------------------------------------------------------------------------------------

JUDGED = {
    "fused kernels": (
        "scaled_dot_product_attention",
        "multi_head_attention",
        "encoder_layer",
        "luong_context_location",
    ),
    "groups": ("grouped_query_attention", "variable_length_attention", "paged_attention", "latent_attention"),
    "additive": ("additive_attention", "bahdanau_context", "additive_scores", "softmax"),
    "lengths and places": ("lstm", "padding_mask", "causal_mask", "alibi_slopes", "rotary_embedding", "greedy_decode"),
}


@pytest.mark.slow
@pytest.mark.parametrize("operations", JUDGED.values(), ids=list(JUDGED))
def test_the_suite_acquits_the_routes_for_cuda(operations: tuple[str, ...]) -> None:
    """Judge by the declarations for CUDA, in processes that pretend to have a GPU."""
    chosen = [word for name in operations for word in ("--operation", name)]
    chosen += ["--dtype", "float32", "--dtype", "bfloat16", "--profile", "quick", "--hang-after", "300"]
    backend_file = str(Path(__file__).with_name("pretended_pytorch.py"))
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", backend_file, "--device", "cuda", *chosen]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=root, env=with_tests(root))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pytorch on a pretended GPU conforms" in done.stdout


def with_tests(root: Path) -> dict[str, str]:
    """The environment of a process that can import these tests."""
    return dict(os.environ) | {"PYTHONPATH": str(root)}
