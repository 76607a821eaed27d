"""Pretended CUDA tensors: numbers of the CPU that say they are on a GPU.

Where no GPU is, `pretended_cuda` shows which route a call takes, that its results are on the device, that nothing waits
for the device, and that no CPU tensor is among the operands. It does not show how kernels behave. PyTorch's kernels for
CUDA alone (flash, variable-length, flex_attention, products with ``out_dtype``) are replaced by their definitions, and
``F.scaled_dot_product_attention`` by PyTorch's formula behind a test of the limits of its kernels. Triton's kernels run
in Triton's interpreter if ``TRITON_INTERPRET=1`` was set before their import; otherwise the operators that launch them
are replaced by the formula.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import varlen
from torch.overrides import enable_reentrant_dispatch
from torch.utils import _device
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

from attnspec.backends.pytorch.kernels.dot import cuda_groups, flex
from attnspec.backends.pytorch.runtime import devices

CUDA = torch.device("cuda:0")
aten = torch.ops.aten

_empty_strided = torch.empty_strided
_tensor_to = Tensor.to


class MixedDevices(RuntimeError):
    """An operation got tensors of the CPU and of the GPU."""


class CudaError(RuntimeError):
    """A kernel failed, or would have computed something else."""


class Waited(RuntimeError):
    """An operation waited for the device where that is forbidden."""


@dataclass
class Device:
    """State of the pretended GPU.

    ``waits``: operations that waited for it. ``capturing``: a CUDA graph is captured, so waiting raises. ``kernels``:
    PyTorch's fused kernels and our operators that ran, in order. ``multiplied``: dtypes of operands of matrix products
    outside of these kernels. ``error``: that of an illegal access, which every later operation raises again.
    ``has_float64`` is false on some devices, such as Apple's.
    """

    waits: list[str] = field(default_factory=list)
    capturing: bool = False
    kernels: list[str] = field(default_factory=list)
    multiplied: set[torch.dtype] = field(default_factory=set)
    error: str = ""
    has_float64: bool = True

    def wait(self, operation: str) -> None:
        """Record that an operation waits; raise while a graph is captured."""
        self.waits.append(operation)
        if self.capturing:
            raise Waited(f"{operation} waits for the device")

    def demand(self, condition: bool, error: str) -> None:
        """Raise an error that stays, as after an illegal access, unless the condition holds."""
        if not condition:
            self.error = f"CUDA error: {error}"
            raise CudaError(self.error)

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Refuse waits, as the capture of a CUDA graph does."""
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False


DEVICE = Device()

WAITING = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.nonzero_numpy.default, aten.equal.default,
    aten.masked_select.default, aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor, aten.is_nonzero.default, aten.allclose.default,
}  # fmt: skip
"""Operators that return numbers or sizes to the CPU."""

COPYING = {aten._to_copy.default, aten.copy_.default}
"""Operators that copy between devices."""

RETURNS_LENGTHS = {aten._pack_padded_sequence.default, aten._pad_packed_sequence.default}
"""Operators that return lengths of the CPU as their second result."""

TAKES_LENGTHS = RETURNS_LENGTHS | {
    aten._pack_padded_sequence_backward.default, aten.rnn_tanh.data, aten.rnn_relu.data, aten.gru.data, aten.lstm.data,
}  # fmt: skip
"""Operators that take lengths of the CPU."""

INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operators that take indices of the CPU, and copy them to the device."""

PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.convolution}
"""Products of matrices; their last two tensors are multiplied."""


class PretendedTensor(Tensor):
    """A tensor that says it is on a GPU; ``numbers`` are its content."""

    __module__ = "torch"  # layouts of the suite are made by the library that a type names

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "PretendedTensor":
        # The body is a tensor without memory: it has autograd, and no device guard, which this build of PyTorch lacks.
        offset = numbers.storage_offset() if numbers.numel() else 0
        last = sum((n - 1) * stride for n, stride in zip(numbers.shape, numbers.stride(), strict=True))
        size = offset + last + 1 if numbers.numel() else 0
        with torch.inference_mode(False):  # PyTorch gives results a version, which tensors of inference lack
            memory = _empty_strided((size,), (1,), dtype=numbers.dtype, device="meta")
            body = memory.as_strided(numbers.shape, numbers.stride(), offset)
            return Tensor._make_subclass(cls, body, False)

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def untyped_storage(self) -> Any:
        return self.numbers.untyped_storage()

    def is_neg(self) -> bool:
        return self.numbers.is_neg()

    def resolve_neg(self) -> Tensor:
        return self.clone() if self.is_neg() else self

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor first."
            )
        return self.detach().cpu().numpy()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendedTensor({self.numbers!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.detach().clone().requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return PretendedTensor, (self.numbers,)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's own is written in C++
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute on the CPU; refuse what a GPU refuses, and record what waits for it."""
        named = dict(kwargs or {})
        if func is torch.ops.prim.device.default:
            return CUDA
        if DEVICE.error:
            raise CudaError(DEVICE.error)
        to_cpu = func is aten._to_copy.default and named.get("device") == torch.device("cpu")
        if "device" in named and named["device"] is not None:
            to_cpu = torch.device(named["device"]).type == "cpu"
            named["device"] = torch.device("cpu")
        refuse_mixed(func, args, named)
        if func in WAITING or to_cpu or any(x.dtype is torch.bool for x in _indices(func, args) if x is not None):
            DEVICE.wait(str(func))
        name = str(func.name()) if hasattr(func, "name") else ""
        if name.startswith("attnspec::"):
            DEVICE.kernels.append(name.removeprefix("attnspec::"))
        if getattr(func, "overloadpacket", None) in PRODUCTS:
            DEVICE.multiplied |= {x.dtype for x in [x for x in args if isinstance(x, Tensor)][-2:]}
        compute = DEFINITIONS.get(name, func)
        unwrap = _numbers if _returns_view(func) else _resolved_numbers
        computed = compute(*tree_map(unwrap, args), **tree_map(unwrap, named))
        if to_cpu:
            return computed
        if func in RETURNS_LENGTHS and isinstance(computed, tuple):
            return _pretended(computed[0]), computed[1]
        if not DEVICE.has_float64 and any(
            x.dtype is torch.float64 for x in tree_leaves(computed) if isinstance(x, Tensor)
        ):
            raise TypeError("the device has no float64")
        if isinstance(func, torch._ops.OpOverload) and torch.Tag.inplace_view in func.tags:
            with no_dispatch():  # `transpose_` and others give the body another shape, too
                func(*args, **named)
        returned = _mutated(func, args, named)
        return returned if returned is not None else tree_map(_pretended, computed)


def _indices(func: Any, args: Any) -> Any:
    return args[1] if func in INDEXING else ()


def refuse_mixed(func: Any, args: Any, named: Mapping[str, Any]) -> None:
    """Raise for a CPU tensor with dimensions among the arguments, as PyTorch does."""
    if func in TAKES_LENGTHS:
        return
    if func in COPYING:
        if any(type(x) is not PretendedTensor for x in args if isinstance(x, Tensor)):
            DEVICE.wait(str(func))
        return
    for x in tree_leaves((args, named)):
        if isinstance(x, PretendedTensor) or not isinstance(x, Tensor):
            continue
        if x.is_meta:
            raise NotImplementedError(
                f"{func}: PyTorch has made a tensor on the device that the body has; its numbers are lost"
            )
        if func in INDEXING and any(x is index for index in args[1]):
            DEVICE.wait(str(func))
        elif x.dim():
            raise MixedDevices(f"Expected all tensors to be on the same device; {func} got cuda:0 and {x.device}")


def _mutated(func: Any, args: Any, named: Mapping[str, Any]) -> Any:
    """Return the argument that an in-place operator returns; None for other operators."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return None
    written = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            x = named.get(argument.name) if argument.kwarg_only or i >= len(args) else args[i]
            if x is not None:
                written.append(x)
    return written[0] if len(written) == 1 else tuple(written)


def _numbers(x: Any) -> Any:
    return x.numbers if isinstance(x, PretendedTensor) else x


def _returns_view(func: Any) -> bool:
    results = func._schema.returns if hasattr(func, "_schema") else []
    return any(x.alias_info is not None for x in results)


def _resolved_numbers(x: Any) -> Any:
    """The numbers of x; here PyTorch no longer applies a lazy negation."""
    numbers = _numbers(x)
    lazy = isinstance(numbers, Tensor) and numbers.is_neg()
    return torch._neg_view(numbers).neg() if lazy else numbers


def _pretended(x: Any) -> Any:
    return PretendedTensor(x) if isinstance(x, Tensor) and not isinstance(x, PretendedTensor) else x


def pretended(x: Tensor) -> Tensor:
    """Copy a tensor to the pretended GPU; the copy requires gradients if x does."""
    return PretendedTensor(x.detach().clone()).requires_grad_(x.requires_grad)


# Kernels of PyTorch, by their definitions -----------------------------------------------------------------------------


def _attention(query: Tensor, key: Tensor, value: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log Σ exp of scores in float32; 0 and −∞ without keys."""
    keyless = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(keyless, 0.0), -1).masked_fill(keyless, 0.0)
    value = _repeated(value, query.shape[1]).to(weights.dtype)
    # Sums of products, no products of matrices: those are recorded.
    output = (weights.unsqueeze(-1) * value.unsqueeze(-3)).sum(-2)
    return output.to(query.dtype), torch.logsumexp(scores, -1)


def _scores(query: Tensor, key: Tensor, scale: float | None) -> Tensor:
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    key = _repeated(key, query.shape[1]).to(wide)
    products = (query.to(wide).unsqueeze(-2) * key.unsqueeze(-3)).sum(-1)
    return products * (query.shape[-1] ** -0.5 if scale is None else scale)


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[1], 1) if x.shape[1] != heads else x


def _without_later_keys(scores: Tensor) -> Tensor:
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, -torch.inf)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """``aten::_scaled_dot_product_flash_attention``: half dtypes, equal head sizes divisible by 8."""
    assert query.dtype in (torch.bfloat16, torch.float16)
    assert query.shape[-1] == key.shape[-1] == value.shape[-1] <= 256
    assert query.shape[-1] % 8 == 0
    refuse_misaligned(query, key, value)
    refuse_large_grids(query)
    DEVICE.kernels.append("flash")
    scores = _scores(query, key, scale)
    output, logarithms = _attention(query, key, value, _without_later_keys(scores) if is_causal else scores)
    empty = torch.empty(0)
    return output, logarithms, empty, empty, query.shape[-2], key.shape[-2], empty, empty, empty


def _half_product(left: Tensor, right: Tensor, out_dtype: torch.dtype) -> Tensor:
    """``aten::mm.dtype``: PyTorch multiplies operands of one half dtype into float32."""
    assert left.dtype == right.dtype != out_dtype
    return left.to(out_dtype) @ right.to(out_dtype)


def _additive(
    a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, inner: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """``attnspec::additive_attention_triton`` by the formula."""
    batch, n, m = *a.shape[:2], b.shape[1]
    allowed = torch.ones(batch, n, m, dtype=torch.bool)
    if mask is not None:
        allowed = allowed & mask.expand(batch // inner, inner, n, m).reshape(batch, n, m)
    allowed = allowed.tril() if causal else allowed
    keyless = ~allowed.any(-1, keepdim=True)
    # Excluded keys and values have no effect, even NaN; so there are values per query.
    sums = torch.where(allowed[..., None], a.float()[:, :, None] + b.float()[:, None], 0.0)
    scores = (sums.tanh() @ w_v.float()).masked_fill(~allowed, -torch.inf)
    weights = torch.softmax(scores.masked_fill(keyless, 0.0), -1).masked_fill(~allowed, 0.0)
    values = torch.where(allowed[..., None], value.float()[:, None], 0.0)
    output = (weights.unsqueeze(-2) @ values).squeeze(-2).masked_fill(keyless, 0.0)
    logarithms = torch.logsumexp(scores.detach(), -1).masked_fill(keyless.squeeze(-1), math.inf) * math.log2(math.e)
    return output.to(value.dtype), logarithms


def _gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], gradient: Tensor) -> tuple[Tensor, ...]:
    with enable_reentrant_dispatch(), torch.enable_grad():  # an operator runs below autograd
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(function(*leaves), leaves, gradient)


def _additive_gradients(
    grad: Tensor, grad_lse: Tensor | None, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None,
    inner: int, causal: bool, out: Tensor, lse: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """``attnspec::additive_attention_triton_backward`` by the formula."""
    assert grad_lse is None

    def output(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor) -> Tensor:
        return _additive(a, b, w_v, value, mask, inner, causal)[0]

    return _gradients(output, (a, b, w_v, value), grad)


def _additive_scores(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    return ((a.float()[:, :, None] + b.float()[:, None]).tanh() @ w_v.float()).to(a.dtype)


def _additive_scores_gradients(grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor) -> tuple[Tensor, ...]:
    return _gradients(_additive_scores, (a, b, w_v), grad)


def _additive_step(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, inner: int) -> Tensor:
    return _additive(a[:, None], b, w_v, value, mask, inner, False)[0].squeeze(1)


DEFINITIONS: dict[str, Callable[..., Any]] = {
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::mm.dtype": _half_product,
    "aten::bmm.dtype": _half_product,
}
"""Functions of CPU tensors by the name of the operator that they replace."""

OF_TRITON: dict[str, Callable[..., Any]] = {
    "attnspec::additive_attention_triton": _additive,
    "attnspec::additive_attention_triton_backward": _additive_gradients,
    "attnspec::additive_scores_triton": _additive_scores,
    "attnspec::additive_scores_triton_backward": _additive_scores_gradients,
    "attnspec::additive_step_triton": _additive_step,
}
"""Operators of Triton's kernels, by the formula, where the kernels are not interpreted."""


GRID = 65_535
"""Most heads, and most batch elements, of a fused kernel: sizes of a grid of blocks."""


def refuse_misaligned(*tensors: Tensor) -> None:
    """Raise for addresses at which 16 bytes cannot be loaded at once; PyTorch 2.11 does not."""
    aligned = all(x.data_ptr() % 16 == 0 for x in tensors)
    DEVICE.demand(aligned, "misaligned address (https://github.com/pytorch/pytorch/issues/183484)")


def refuse_large_grids(query: Tensor) -> None:
    """Raise for more heads or batch elements than a grid has."""
    fits = max(query.shape[:2]) <= GRID
    DEVICE.demand(fits, "invalid configuration argument (https://github.com/pytorch/pytorch/issues/142228)")


def refuse_wrong_masks(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> None:
    """Raise where PyTorch's memory-efficient kernel computes wrong rows under a mask."""
    rows = mask.shape[-2]
    DEVICE.demand(rows * key.shape[-2] < 2**32, "wrong rows (https://github.com/pytorch/pytorch/issues/187227)")
    repeated = any(x.shape[i] > 1 and x.stride(i) == 0 for x in (query, key, value) for i in range(x.dim()))
    DEVICE.demand(not repeated, "wrong output (https://github.com/pytorch/pytorch/issues/191937)")


def kernel_of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """Return the kernel that ``F.scaled_dot_product_attention`` runs, by what its kernels document: without cuDNN's."""
    backends: Any = torch.backends.cuda
    half = query.dtype in (torch.bfloat16, torch.float16)
    sizes = query.shape[-1], value.shape[-1]
    dense = all(x.stride(-1) == 1 for x in (query, key, value)) and min(query.numel(), key.numel(), value.numel()) > 0
    if dense and half and mask is None and sizes[0] == sizes[1] <= 256 and backends.flash_sdp_enabled():
        return "flash"
    unit = 8 if half else 4
    fits = query.dtype is not torch.float64 and all(size % unit == 0 for size in sizes)
    return "efficient" if dense and fits and backends.mem_efficient_sdp_enabled() else "math"


_sdpa = F.scaled_dot_product_attention


def _checked_sdpa(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """``F.scaled_dot_product_attention`` by its formula, within the limits of the chosen kernel."""
    if isinstance(query, PretendedTensor):
        kernel = kernel_of(query, key, value, attn_mask)
        DEVICE.kernels.append(kernel)
        if kernel != "math":
            refuse_misaligned(query, key, value)
            refuse_large_grids(query)
        if kernel == "efficient" and attn_mask is not None:
            refuse_wrong_masks(query, key, value, attn_mask)
        scores = _scores(query, key, scale)
        scores = _without_later_keys(scores) if is_causal else scores
        scores = scores if attn_mask is None else scores.masked_fill(~attn_mask, -torch.inf)
        return _attention(query, key, value, scores)[0]
    return _sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


@functools.wraps(varlen.varlen_attn)
def _varlen(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *,
    return_aux: Any = None, scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False, **others: Any,
) -> Any:  # fmt: skip
    """``varlen_attn`` by its documentation: (positions, heads, features); windows count from the last key."""
    assert not others
    assert cu_seq_q.dtype is cu_seq_k.dtype is torch.int32
    assert query.shape[-1] == value.shape[-1]
    assert query.dtype in (torch.bfloat16, torch.float16)
    assert enable_gqa or query.shape[1] == key.shape[1]
    refuse_misaligned(query, key, value)
    DEVICE.kernels.append("varlen")
    ends, of_keys = _numbers(cu_seq_q).tolist(), _numbers(cu_seq_k).tolist()
    assert max_q == max(b - a for a, b in pairwise(ends))
    assert max_k == max(b - a for a, b in pairwise(of_keys))
    outputs, logarithms = [], []
    for (a, b), (c, d) in zip(pairwise(ends), pairwise(of_keys), strict=True):
        q, k, v = (x.transpose(0, 1)[None] for x in (query[a:b], key[c:d], value[c:d]))
        ahead = torch.arange(d - c)[None] - torch.arange(b - a)[:, None] - ((d - c) - (b - a))
        left, right = (math.inf if x < 0 else x for x in window_size)
        outside = _pretended((ahead < -left) | (ahead > right))
        output, logarithm = _attention(q, k, v, _scores(q, k, scale).masked_fill(outside, -torch.inf))
        outputs.append(output[0].transpose(0, 1))
        logarithms.append(logarithm[0])
    output = torch.cat(outputs)
    return output if return_aux is None else (output, torch.cat(logarithms, -1))


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any = None, block_mask: Any = None,
    scale: float | None = None, enable_gqa: bool = False, *, return_aux: Any = None,
) -> Any:  # fmt: skip
    """``flex_attention`` with scores in memory."""
    DEVICE.kernels.append("flex")
    scores = _scores(query, key, scale)
    places = _places(scores.shape)
    if score_mod is not None:
        scores = score_mod(scores, *places)
    if block_mask is not None:
        b = places[0] if block_mask.by_element else torch.zeros_like(places[0])
        scores = torch.where(block_mask.condition(b, *places[1:]), scores, -torch.inf)
    output, logarithms = _attention(query, key, value, scores)
    return output, SimpleNamespace(lse=logarithms)


def _places(shape: torch.Size) -> list[Tensor]:
    """Return the indices b, h, i and j of all scores."""
    sizes = [[1] * axis + [size] + [1] * (3 - axis) for axis, size in enumerate(shape)]
    return [PretendedTensor(torch.arange(max(s)).view(s)) for s in sizes]


def _block_mask(condition: Any, b: int | None, h: int | None, n: int, m: int, device: Any) -> Any:
    assert torch.device(device) == CUDA
    return SimpleNamespace(condition=condition, by_element=b is not None)


# Placement, and questions about the device ----------------------------------------------------------------------------


class _Upload(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return PretendedTensor(x.detach().clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.as_tensor(_numbers(gradients[0]))


class _Download(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.as_tensor(_numbers(x)).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return PretendedTensor(gradients[0])


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``Tensor.to`` between the CPU and the pretended GPU."""
    device = kwargs.get("device")
    if args and (isinstance(args[0], (str, torch.device, Tensor)) or args[0] is None):
        device = args[0]
    if isinstance(device, Tensor):
        args, device = (device.dtype, *args[1:]), device.device
    elif device is not None:
        args = args[1:] if args and args[0] is device else args
        kwargs.pop("device", None)
    if device is None:
        return _tensor_to(x, *args, **kwargs)
    on_gpu = isinstance(x, PretendedTensor)
    if _is_cuda(device):
        if not on_gpu:
            if not kwargs.get("non_blocking"):
                DEVICE.wait("copy from the CPU")
            x = _Upload.apply(x)  # type: ignore[no-untyped-call]
    elif torch.device(device).type == "cpu":
        if on_gpu:
            DEVICE.wait("copy to the CPU")
            x = _Download.apply(x)  # type: ignore[no-untyped-call]
    else:
        return _tensor_to(x, device, *args, **kwargs)
    return _tensor_to(x, *args, **kwargs) if args or kwargs else x


CONSTRUCTORS = _device._device_constructors()
"""PyTorch's own factories; the function remembers its result, which must not be those of `_made_on`."""

_of_default_device = _device.DeviceContext.__torch_function__


def _make_on_default_device(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """``torch.device("cuda")`` as a context, also for the pretended GPU."""
    kwargs = kwargs or {}
    if _is_cuda(mode.device) and func in CONSTRUCTORS and kwargs.get("device") is None:
        return _pretended(func(*args, **kwargs | {"device": "cpu"}))
    return _of_default_device(mode, func, types, args, kwargs)  # type: ignore[no-untyped-call]


def _made_on(name: str) -> Callable[..., Any]:
    """Return ``torch.name`` that makes tensors on the pretended GPU, too."""
    original = getattr(torch, name)

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if not _is_cuda(kwargs.get("device")):
            return original(*args, **kwargs)
        if name in ("tensor", "as_tensor"):
            DEVICE.wait("copy from the CPU")
        requires_grad = kwargs.pop("requires_grad", False)
        numbers = original(*args, **kwargs | {"device": "cpu"})
        return _pretended(numbers).requires_grad_(requires_grad)

    return make


def _made_in_operators(name: str) -> Callable[..., Tensor]:
    """Return the factory ``aten::name`` for calls from operators written in C++."""

    def make(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Tensor:
        return PretendedTensor(getattr(aten, name)(*args, **kwargs, device="cpu"))

    return make


FACTORIES = (
    "arange", "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand", "randint",
    "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
)  # fmt: skip


def _properties(capability: tuple[int, int]) -> Any:
    large = capability[1] == 0 and capability[0] >= 8
    return SimpleNamespace(
        name="pretended GPU", major=capability[0], minor=capability[1], multi_processor_count=132, warp_size=32,
        total_memory=80 << 30, shared_memory_per_block_optin=232_448 if large else 101_376,
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65_536,
    )  # fmt: skip


@contextmanager
def pretended_cuda(capability: tuple[int, int] = (9, 0)) -> Iterator[Device]:
    """Pretend to have a GPU of this compute capability; yield its state, `DEVICE`."""
    from attnspec.backends.pytorch.kernels.additive.triton import launch, operators

    names: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: capability >= (8, 0),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "pretended GPU",
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: _properties(capability),
        "is_current_stream_capturing": lambda: DEVICE.capturing,
        "synchronize": lambda device=None: DEVICE.wait("synchronize"),
        "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0, synchronize=lambda: DEVICE.wait("stream")),
        "mem_get_info": lambda device=None: (80 << 30, 80 << 30),
        "empty_cache": lambda: None,
        "device_of": lambda x: nullcontext(),
    }
    patches: list[Any] = [patch.object(torch.cuda, name, function) for name, function in names.items()]
    patches += [patch.object(torch, name, _made_on(name)) for name in FACTORIES]
    patches += [
        patch.object(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda")),
        patch.object(_device.DeviceContext, "__torch_function__", _make_on_default_device),
        patch.object(Tensor, "to", _to),
        patch.object(Tensor, "cuda", lambda x, *args, **kwargs: _to(x, CUDA)),
        patch.object(Tensor, "cpu", lambda x, *args, **kwargs: _to(x, "cpu")),
        patch.object(F, "scaled_dot_product_attention", _checked_sdpa),
        patch.object(varlen, "varlen_attn", _varlen),
        patch.object(flex, "_compiled", lambda: (_flex_attention, _block_mask)),
        patch.object(cuda_groups, "KINDS", (*cuda_groups.KINDS, PretendedTensor)),
    ]
    if launch.INTERPRET:
        patches.append(patch.object(operators, "supports", _takes_triton))
        patches.append(patch.dict(os.environ, TRITON_INTERPRET="1"))  # Triton loads parts of itself late
    else:
        patches.append(patch.dict(DEFINITIONS, OF_TRITON))
    DEVICE.__init__()  # type: ignore[misc]
    with ExitStack() as stack:
        # Operators written in C++, such as `where`, make tensors on the device that the body has.
        library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        stack.callback(library._destroy)  # there is no public way to remove an implementation again
        for name in ("scalar_tensor", "full", "zeros", "ones"):
            library.impl(name, _made_in_operators(name), "Meta")  # type: ignore[no-untyped-call]
        for each in patches:
            stack.enter_context(each)
        devices._capability.cache_clear()
        stack.callback(devices._capability.cache_clear)
        stack.callback(DEVICE.__init__)  # type: ignore[misc]
        yield DEVICE


def _takes_triton(a: Tensor, *others: Tensor) -> bool:
    """`supports` for operators whose kernels Triton interprets."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return a.dtype in dtypes and all(isinstance(x, PretendedTensor) and x.dtype is a.dtype for x in (a, *others))
