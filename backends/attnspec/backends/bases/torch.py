"""Base of backends that compute with PyTorch tensors."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from attnspec.backends.bases.contract import Operations
from attnspec.backends.bases.numpy import NDArray, strided_copy
from attnspec.spec.contract.tree import flatten, map_tree


def devices() -> tuple[str, ...]:
    """Return the device types that PyTorch finds on this machine, the CPU first."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def default_device(device: str) -> AbstractContextManager[Any]:
    """Return a context in which operations without array arguments compute on a device."""
    context: AbstractContextManager[Any] = torch.device(device)
    return context


def from_numpy(array: NDArray, *, device: str) -> Tensor:
    """Return a copy with the same dtype, and on the CPU the same strides.

    bfloat16 and floats of 8 bits are those of ``ml_dtypes``; of its float4, two become a byte of ``float4_e2m1fn_x2``.
    ``ValueError`` for a device that does not exist; it lists those that do.
    """
    if device != "cpu":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError):
            raise ValueError(f"device: expected one of {', '.join(devices())}; got {device!r}") from None
    tensor = _as_tensor(strided_copy(array))
    return tensor if device == "cpu" else tensor.to(device)


def _as_tensor(array: NDArray) -> Tensor:
    """A tensor of the same memory, or of packed codes of float4."""
    name = array.dtype.name
    if name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if name == "float4_e2m1fn":
        codes = array.view(np.uint8)
        return torch.from_numpy(codes[..., ::2] | codes[..., 1::2] << 4).view(torch.float4_e2m1fn_x2)
    if name.startswith("float8"):
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, name))
    return torch.from_numpy(array)


def to_numpy(array: Tensor) -> NDArray:
    """Return a copy, bfloat16 as ``ml_dtypes.bfloat16``; ``TypeError`` unless ``array`` is a tensor."""
    if not isinstance(array, Tensor):
        raise TypeError(f"result: expected a torch.Tensor; got {type(array).__name__}")
    tensor = array.detach().cpu().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        return np.array(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(tensor.numpy())


class _Seed(torch.autograd.Function):
    """A scalar whose gradient is the cotangent, with its strides.

    It replaces ``grad_outputs``: to check their shapes, PyTorch imports a symbolic algebra system.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cotangent: Tensor) -> Tensor:
        ctx.cotangent = cotangent
        return torch.zeros((), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        return ctx.cotangent, None


def pullback(
    function: Callable[..., Any], arguments: Mapping[str, Any], wanted: Collection[str]
) -> tuple[Any, Callable[[Any], dict[str, Tensor]]]:
    """Return function(**arguments), and the function of its backward pass for the ``wanted`` paths.

    The backward function takes a cotangent shaped like the result, with None for parts to ignore. It returns gradients
    by path: 0 if the result does not depend on an argument. No two gradients share memory.
    """
    values = flatten(dict(arguments))
    leaves = {path: values[path].detach().requires_grad_() for path in wanted}
    with torch.enable_grad():
        result = function(**map_tree(dict(arguments), lambda path, a: leaves.get(path, a)))

    def backward(cotangent: Any) -> dict[str, Tensor]:
        pairs = zip(flatten(result).values(), flatten(cotangent).values(), strict=True)
        with torch.enable_grad():
            totals = [_seeded(x, c) for x, c in pairs if c is not None and x.requires_grad]
        if not totals:
            return {path: torch.zeros_like(a) for path, a in leaves.items()}
        total = sum(totals[1:], totals[0])
        computed = torch.autograd.grad(
            total, tuple(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        # For sums, autograd returns the cotangent itself, possibly for several arguments: clone it.
        used_storages = {c.untyped_storage().data_ptr() for c in flatten(cotangent).values() if c is not None}
        results = {}
        for path, g in zip(leaves, computed, strict=True):
            storage = g.untyped_storage().data_ptr()
            results[path] = g.clone() if storage in used_storages else g
            used_storages.add(storage)
        return results

    return result, backward


def _seeded(x: Tensor, cotangent: Tensor) -> Tensor:
    return _Seed.apply(x, cotangent)  # type: ignore[no-untyped-call, no-any-return]


def gradients(function: Callable[..., Any], arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Tensor]:
    """Return gradients of ⟨cotangent, function(**arguments)⟩, keyed by path, for every float tensor.

    They are 0 if the result does not depend on the tensor. Arguments and cotangent may be trees of tensors; None in the
    cotangent ignores that part of the result. A tensor passed under two names gets two gradients.
    """
    values = flatten(dict(arguments))
    wanted = [path for path, a in values.items() if isinstance(a, Tensor) and a.is_floating_point()]
    return pullback(function, arguments, wanted)[1](cotangent)


@contextmanager
def _inference(threads: int) -> Iterator[None]:
    former_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(former_threads)


def modes(dtype: str, *, device: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """Return modes: no_grad, inference with another thread count, and for 16-bit dtypes autocast."""
    threads = 2 if torch.get_num_threads() == 1 else 1
    by_name: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "no_grad": torch.no_grad,
        f"inference_mode with threads = {threads}": partial(_inference, threads),
    }
    if dtype in ("bfloat16", "float16"):
        by_name["autocast"] = partial(torch.autocast, torch.device(device).type, dtype=getattr(torch, dtype))
    return by_name


def free_memory(*, device: str) -> int | None:
    """Return the bytes that are free on a GPU, after its unused ones are returned; None for other devices."""
    if torch.device(device).type != "cuda":
        return None
    torch.cuda.empty_cache()
    free: int = torch.cuda.mem_get_info(device)[0]
    return free


class TorchBackend(Operations[Tensor]):
    """Subclass, set ``name`` and define operations as methods.

    Conversion copies, so that an operation that writes to its inputs never changes the caller's arrays.
    """

    name: str

    def from_numpy(self, array: NDArray, *, device: str) -> Tensor:
        """Return a copy with the same dtype; ``ValueError`` for a device that does not exist."""
        return from_numpy(array, device=device)

    def default_device(self, device: str) -> AbstractContextManager[Any]:
        """Return a context in which operations without array arguments compute on a device."""
        return default_device(device)

    def to_numpy(self, array: Tensor) -> NDArray:
        """Return a copy with the same dtype; ``TypeError`` unless `array` is a tensor."""
        return to_numpy(array)

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Tensor]:
        """Return the gradients of ⟨cotangent, operation(**arguments)⟩, keyed by path, for every float tensor."""
        return gradients(getattr(self, operation), arguments, cotangent)

    def pullback(
        self, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
    ) -> tuple[Any, Callable[[Any], dict[str, Tensor]]]:
        """Return the result and its backward pass for the float tensors at the ``wanted`` paths."""
        return pullback(getattr(self, operation), arguments, wanted)

    def free_memory(self, *, device: str) -> int | None:
        """Return the bytes that are free on a GPU; None for other devices."""
        return free_memory(device=device)

    def modes(self, dtype: str, *, device: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """Return modes: no_grad, inference with another thread count, and for 16-bit dtypes autocast."""
        return modes(dtype, device=device)
