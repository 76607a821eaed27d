"""Plans of the kernels for few queries and keys; heads may share keys."""

from array import array
from collections.abc import Sequence
from math import e, log2
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import Call, Options, as_4d
from attnspec.backends.pytorch.kernels.dot.decode_arguments import STORED, StridedBytes
from attnspec.backends.pytorch.kernels.dot.differentiable import Attend, runner
from attnspec.backends.pytorch.kernels.dot.small_backward import Backward, backward_kernel, backward_scratch
from attnspec.backends.pytorch.kernels.dot.small_forward import Forward, forward_kernel, forward_scratch
from attnspec.backends.pytorch.kernels.dot.small_rows import MANY_QUERIES, Small
from attnspec.backends.pytorch.kernels.dot.tiled import flagged_buffer
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, buffer_slots
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, register_bytes
from attnspec.backends.pytorch.kernels.llvm.registers import in_registers
from attnspec.backends.pytorch.kernels.llvm.threads import call as call_kernel
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.scratch_memory import lease_address

MOST_ELEMENTS = 2**18
"""Most scores, and most elements of queries or keys, per head of keys: they are in a thread's memory."""

empty_like = torch.empty_like


@plan_class
class Plan:
    """Kernels for all calls with the same shapes, strides and options.

    ``output``, ``logarithms`` (None unless returned) and ``weights`` (None without a backward) are templates from
    which `empty_like` makes results; their own memory is freed. ``strides`` are those of the operands, ``scratch`` is
    in bytes.
    """

    rank: int
    options: Options
    output: Tensor
    logarithms: Tensor | None
    weights: Tensor | None
    strides: tuple[tuple[int, ...], ...]
    scratch: int
    threads: int
    kernel: "Compiled[Forward]"
    buffer: "array[int]"
    backward_plan: "BackwardPlan | None"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *_: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool, tuple[Tensor, ...]]:
        """Output, log Σ exp, whether scores or results are not finite, and weights for backward."""
        output, logarithms, weights = empty_like(self.output), self.logarithms, self.weights
        buffer = self.buffer[:]
        buffer[_QUERY], buffer[_KEY], buffer[_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
        buffer[_OUTPUT] = output.data_ptr()
        # the kernel sets the flag in the buffer's own last slot, of 8 bytes as all slots
        buffer[_NONFINITE] = buffer.buffer_info()[0] + 8 * _FLAG
        buffer[_SCRATCH], _held = lease_address("small", self.scratch)  # leased as long as `_held` exists
        if weights is not None:
            weights = empty_like(weights)
            buffer[_WEIGHTS] = weights.data_ptr()
        if mask is not None:
            buffer[_MASK] = mask.data_ptr()
        if logarithms is not None:
            logarithms = empty_like(logarithms)
            buffer[_LOGARITHMS] = logarithms.data_ptr()
        call_kernel(self.kernel, self.threads, buffer)
        return output, logarithms, buffer[_FLAG] != 0, () if weights is None else (weights,)

    def reads(self, operands: Sequence[Tensor], saved: Sequence[Tensor]) -> bool:
        """Return whether strides are those of the forward pass, and weights contiguous."""
        return tuple(x.stride() for x in operands) == self.strides and saved[0].is_contiguous()

    def backward(
        self, operands: Sequence[Tensor], tensors: Sequence[Tensor | None], saved: Sequence[Tensor],
        gradient: Tensor | None, logarithms_gradient: Tensor | None, wanted: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """Gradients of all operands: leaving some out would save little time."""
        (query, key, value), (weights,), backward = operands, saved, self.backward_plan
        assert backward is not None
        if gradient is None:
            gradient = query.new_zeros(self.output.shape)
        elif gradient.stride(-1) != 1:
            gradient = gradient.contiguous()
        query_gradient, key_gradient, value_gradient = empty_like(query), empty_like(key), empty_like(value)
        buffer = backward.buffer[:]
        # address and three strides, which are not known before
        buffer[_GRADIENT : _GRADIENT + 4] = array("q", StridedBytes.to_slots(as_4d(gradient, self.rank)))
        buffer[_QUERY], buffer[_KEY], buffer[_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
        buffer[_QUERY_GRADIENT], buffer[_KEY_GRADIENT] = query_gradient.data_ptr(), key_gradient.data_ptr()
        buffer[_VALUE_GRADIENT] = value_gradient.data_ptr()
        buffer[_BACKWARD_WEIGHTS] = weights.data_ptr()
        buffer[_SCRATCH], _held = lease_address("small", backward.scratch)  # leased as long as `_held` exists
        if tensors and tensors[0] is not None:
            buffer[_MASK] = tensors[0].data_ptr()
        if logarithms_gradient is not None:
            logarithms_gradient = logarithms_gradient.to(weights.dtype).contiguous()
            buffer[_LOGARITHMS_GRADIENT] = logarithms_gradient.data_ptr()
        call_kernel(backward.kernel, self.threads, buffer)
        return query_gradient, key_gradient, value_gradient


@plan_class
class BackwardPlan:
    """Argument buffer, kernel and scratch bytes of the gradients."""

    buffer: "array[int]"
    kernel: "Compiled[Backward]"
    scratch: int


def serves(call: Call) -> bool:
    """Return whether options are only causality, scale and a mask, and layout and sizes fit."""
    query, key, value, mask = *call[:3], call.tensors.mask
    tensors = [query, key, value] if mask is None else [query, key, value, mask]
    if not call.is_simple() or query.dtype not in STORED:
        return False
    if any(x.stride(-1) != 1 and x.shape[-1] > 1 for x in tensors):
        return False
    # `empty_like` makes the gradients; for overlapping rows, such as expanded ones, it changes the layout
    if any(torch.empty_like(x, device="meta").stride(-1) != 1 and x.shape[-1] > 1 for x in tensors[:3]):
        return False
    group, n, m = query.shape[1] // key.shape[1], query.shape[-2], key.shape[-2]
    widest = max(query.shape[-1], value.shape[-1])
    return group * n * m <= MOST_ELEMENTS and max(group * n, m) * widest <= MOST_ELEMENTS


def plan(call: Call, operands: Sequence[Tensor], rank: int) -> Attend:
    """Return the function for calls like this one; ``operands`` have ``rank`` batch dimensions."""
    return runner(_plan(call, operands, rank), call.differentiates())


def _plan(call: Call, operands: Sequence[Tensor], rank: int) -> Plan:
    tracked, mask, options = needs_gradients(*operands), call.tensors.mask, call.options
    shape = *operands[0].shape[:-1], operands[2].shape[-1]
    query, key, value = (as_4d(x.detach(), rank) for x in operands)
    (b, heads, n, d), (heads_k, m, d_v) = query.shape, value.shape[1:]
    group, real = heads // heads_k, upcast(query[:0, :0]).dtype
    lanes = register_bytes() // real.itemsize
    stored, rows = STORED[query.dtype], b * heads * n
    copied = stored != "real" and group * n >= MANY_QUERIES
    bits, kind = 8 * real.itemsize, (stored, mask is not None, copied)
    threads = thread_count(b * heads_k, b * heads * n * m * (d + d_v) / 2)
    sizes: dict[str, Any] = {
        "tasks": b * heads_k, "heads_k": heads_k, "group": group, "n": n, "m": m, "d": d, "d_v": d_v,
        "causal": options.right == 0, "scale": options.scale, "log2_scale": options.scale * log2(e), "query": query,
        "key": key, "value": value, "mask": mask,
    }  # fmt: skip
    # every call sets its own addresses: here only sizes and strides are read, so one element stands for all memory
    output, placeholder = query.new_empty(b, heads, n, d_v), torch.empty(1, dtype=real)
    scratch = sum(forward_scratch(lanes, stored, copied, n, m, d, d_v))
    arguments = Forward(
        **sizes, scratch=placeholder.expand(threads, scratch), weights=None, output=output, logarithms=None,
        nonfinite=array("q", [0]),
    )  # fmt: skip
    backward = None
    if tracked:
        backward_size = sum(backward_scratch(lanes, stored, copied, group, n, m, d, d_v))
        query_gradient, key_gradient, value_gradient = (as_4d(empty_like(x), rank) for x in operands)
        backward_arguments = Backward(
            **sizes, scratch=placeholder.expand(threads, backward_size), weights=placeholder, gradient=output,
            logarithms_gradient=None, query_gradient=query_gradient, key_gradient=key_gradient,
            value_gradient=value_gradient,
        )  # fmt: skip
        bytes_of_threads = threads * backward_size * real.itemsize
        backward = BackwardPlan(flagged_buffer(backward_arguments), backward_kernel(bits, *kind), bytes_of_threads)
    logarithms = _template_of(shape[:-1], query.dtype) if options.logarithms else None
    weights = _template_of((rows * in_registers(m, lanes),), real) if tracked else None
    return Plan(
        rank=rank, options=options, output=_template_of(shape, query.dtype), logarithms=logarithms, weights=weights,
        strides=tuple(x.stride() for x in operands), scratch=threads * scratch * real.itemsize, threads=threads,
        kernel=forward_kernel(bits, *kind), buffer=flagged_buffer(arguments), backward_plan=backward,
    )  # fmt: skip


def _template_of(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Template for `empty_like`, which is faster than `torch.empty` with a shape."""
    template = torch.empty(shape, dtype=dtype, device="cpu")
    template.untyped_storage().resize_(0)
    return template


_QUERY, _KEY, _VALUE, _MASK, _SCRATCH, _WEIGHTS, _OUTPUT, _LOGARITHMS, _NONFINITE = buffer_slots(
    Small.query, Small.key, Small.value, Small.mask, Small.scratch, Forward.weights, Forward.output,
    Forward.logarithms, Forward.nonfinite,
)  # fmt: skip
_FLAG = LEADING + Forward.slots  # one past the arguments, see `flagged_buffer`
_BACKWARD_WEIGHTS, _GRADIENT, _LOGARITHMS_GRADIENT, _QUERY_GRADIENT, _KEY_GRADIENT, _VALUE_GRADIENT = buffer_slots(
    Backward.weights, Backward.gradient, Backward.logarithms_gradient, Backward.query_gradient,
    Backward.key_gradient, Backward.value_gradient,
)  # fmt: skip
