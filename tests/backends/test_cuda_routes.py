"""Every operation on pretended CUDA tensors: placement, numbers, gradients, waits for the device."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch as backend
from attnspec.spec import Operation
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


def test_an_illegal_access_spoils_all_later_operations(gpu: Device) -> None:
    x = torch.ones(1, 1, 5, 8, device="cuda").flatten()[1:33].view(1, 1, 4, 8)
    with pytest.raises(CudaError, match="misaligned address"):
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
    with pytest.raises(CudaError, match="misaligned address"):
        x + x


# Operations -----------------------------------------------------------------------------------------------------------

WITH_ARRAYS = [o for o in OPERATIONS_HERE if o.leaves]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("operation", WITH_ARRAYS, ids=name_of)
def test_every_operation_computes_on_the_gpu(operation: Operation, dtype: torch.dtype, gpu: Device) -> None:
    inputs = inputs_of(operation, dtype)
    moved = on_gpu(inputs)
    wanted = [path for path, x in flatten(moved).items() if is_float(x)] if operation.differentiable else []
    result, backward = backend.pullback(operation.name, moved, wanted)
    assert all(isinstance(x, PretendedTensor) for x in flatten(result).values() if x is not None)
    how: dict[str, Any] = {"precision": DEFAULTS[str(dtype).removeprefix("torch.")], "informative": False}
    assert_within_budgets(result, operation.name, **inputs, **how)
    if wanted:
        weights = map_tree(result, lambda _, x: torch.randn(x.shape).to(x.dtype) if is_float(x) else None)
        gradients = backward(on_gpu(weights))
        assert all(isinstance(x, PretendedTensor) for x in gradients.values())
        ordered = tuple(gradients[path] for path in wanted)
        assert_gradients_within_budgets(ordered, weights, operation.name, **inputs, **how)
