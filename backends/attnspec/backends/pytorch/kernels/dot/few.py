"""Plans of the kernels for few queries and keys; heads may share keys."""

from array import array
from collections.abc import Sequence
from math import e, log2
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import Call, Options, as_four
from attnspec.backends.pytorch.kernels.dot.differentiable import Attend, attending
from attnspec.backends.pytorch.kernels.dot.few_backward import Backward, backward_kernel, backward_scratch
from attnspec.backends.pytorch.kernels.dot.few_forward import Forward, forward_kernel, forward_scratch
from attnspec.backends.pytorch.kernels.dot.few_rows import MANY, Few
from attnspec.backends.pytorch.kernels.dot.step_arguments import STORED, StridedBytes
from attnspec.backends.pytorch.kernels.dot.tiled import template
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, register_bytes
from attnspec.backends.pytorch.kernels.llvm.registers import in_registers
from attnspec.backends.pytorch.kernels.llvm.threads import call as call_kernel
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.kept_memory import address
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.recording import recorded

MOST = 2**18
"""Most scores, and most elements of queries or keys, per head of keys in a thread's memory."""

empty_like = torch.empty_like


@plan_class
class Plan:
    """Kernels for all calls with the same shapes, strides and options.

    ``output``, ``logarithms`` (if log Σ exp is wanted) and ``weights`` (if a backward reads them) are templates for
    `empty_like`, without memory; ``strides`` are those of the operands, ``scratch`` is in bytes.
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
    words: "array[int]"
    backward_plan: "BackwardPlan | None"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *_: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool, tuple[Tensor, ...]]:
        """Output, log Σ exp, whether a score or result is not finite, and weights for a backward."""
        output, logarithms, weights = empty_like(self.output), self.logarithms, self.weights
        words = self.words[:]
        words[_QUERY], words[_KEY], words[_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
        words[_OUTPUT] = output.data_ptr()
        words[_STRANGE] = words.buffer_info()[0] + 8 * _ANSWER
        words[_SCRATCH], _held = address("few", self.scratch)
        if weights is not None:
            weights = empty_like(weights)
            words[_WEIGHTS] = weights.data_ptr()
        if mask is not None:
            words[_MASK] = mask.data_ptr()
        if logarithms is not None:
            logarithms = empty_like(logarithms)
            words[_LOGARITHMS] = logarithms.data_ptr()
        call_kernel(self.kernel, self.threads, words)
        return output, logarithms, words[_ANSWER] != 0, () if weights is None else (weights,)

    def reads(self, operands: Sequence[Tensor], kept: Sequence[Tensor]) -> bool:
        """Return whether strides are those of the forward pass, and weights contiguous."""
        return tuple(x.stride() for x in operands) == self.strides and kept[0].is_contiguous()

    def backward(
        self, operands: Sequence[Tensor], tensors: Sequence[Tensor | None], kept: Sequence[Tensor],
        gradient: Tensor | None, of_logarithms: Tensor | None, wanted: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """Gradients of all operands: to leave some out would save little."""
        (query, key, value), (weights,), backward = operands, kept, self.backward_plan
        assert backward is not None
        if gradient is None:
            gradient = query.new_zeros(self.output.shape)
        elif gradient.stride(-1) != 1:
            gradient = gradient.contiguous()
        by_query, by_key, by_value = empty_like(query), empty_like(key), empty_like(value)
        words = backward.words[:]
        words[_GRADIENT : _GRADIENT + 4] = array("q", StridedBytes.to_words(as_four(gradient, self.rank)))
        words[_QUERY], words[_KEY], words[_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
        words[_OF_QUERY], words[_OF_KEY], words[_OF_VALUE] = by_query.data_ptr(), by_key.data_ptr(), by_value.data_ptr()
        words[_B_WEIGHTS] = weights.data_ptr()
        words[_SCRATCH], _held = address("few", backward.scratch)
        if tensors and tensors[0] is not None:
            words[_MASK] = tensors[0].data_ptr()
        if of_logarithms is not None:
            of_logarithms = of_logarithms.to(weights.dtype).contiguous()
            words[_OF_LOGARITHMS] = of_logarithms.data_ptr()
        call_kernel(backward.kernel, self.threads, words)
        return by_query, by_key, by_value


@plan_class
class BackwardPlan:
    """Argument buffer, kernel and scratch bytes of the gradients."""

    words: "array[int]"
    kernel: "Compiled[Backward]"
    scratch: int


def serves(call: Call) -> bool:
    """Return whether options are only causality, scale and a mask, and layout and sizes fit."""
    query, key, value, mask = *call[:3], call.tensors.mask
    given = [query, key, value] if mask is None else [query, key, value, mask]
    if not call.is_simple() or query.dtype not in STORED:
        return False
    if any(x.stride(-1) != 1 and x.shape[-1] > 1 for x in given):
        return False
    # gradients of overlapping rows get another layout from `empty_like`
    if any(torch.empty_like(x, device="meta").stride(-1) != 1 and x.shape[-1] > 1 for x in given[:3]):
        return False
    group, n, m = query.shape[1] // key.shape[1], query.shape[-2], key.shape[-2]
    widest = max(query.shape[-1], value.shape[-1])
    return group * n * m <= MOST and max(group * n, m) * widest <= MOST


def plan(call: Call, given: Sequence[Tensor], rank: int) -> Attend:
    """Return the function for calls like this one; operands ``given`` have ``rank`` batch dimensions."""
    return attending(_plan(call, given, rank), call.differentiates())


def _plan(call: Call, given: Sequence[Tensor], rank: int) -> Plan:
    tracked, mask, options = recorded(*given), call.tensors.mask, call.options
    shape = *given[0].shape[:-1], given[2].shape[-1]
    query, key, value = (as_four(x.detach(), rank) for x in given)
    (b, heads, n, d), (heads_k, m, d_v) = query.shape, value.shape[1:]
    group, real = heads // heads_k, widened(query[:0, :0]).dtype
    lanes = register_bytes() // real.itemsize
    stored, rows = STORED[query.dtype], b * heads * n
    copied = stored != "real" and group * n >= MANY
    bits, kind = 8 * real.itemsize, (stored, mask is not None, copied)
    threads = thread_count(b * heads_k, b * heads * n * m * (d + d_v) / 2)
    sizes: dict[str, Any] = {
        "tasks": b * heads_k, "heads_k": heads_k, "group": group, "n": n, "m": m, "d": d, "d_v": d_v,
        "causal": options.right == 0, "scale": options.scale, "log2_scale": options.scale * log2(e), "query": query,
        "key": key, "value": value, "mask": mask,
    }  # fmt: skip
    output, numbers = query.new_empty(b, heads, n, d_v), torch.empty(1, dtype=real)
    scratch = sum(forward_scratch(lanes, stored, copied, n, m, d, d_v))
    arguments = Forward(
        **sizes, scratch=numbers.expand(threads, scratch), weights=None, output=output, logarithms=None,
        strange=array("q", [0]),
    )  # fmt: skip
    backward = None
    if tracked:
        more = sum(backward_scratch(lanes, stored, copied, group, n, m, d, d_v))
        by_query, by_key, by_value = (as_four(empty_like(x), rank) for x in given)
        of_results = Backward(
            **sizes, scratch=numbers.expand(threads, more), weights=numbers, gradient=output, of_logarithms=None,
            of_query=by_query, of_key=by_key, of_value=by_value,
        )  # fmt: skip
        bytes_of_threads = threads * more * real.itemsize
        backward = BackwardPlan(template(of_results), backward_kernel(bits, *kind), bytes_of_threads)
    logarithms = _without_memory(shape[:-1], query.dtype) if options.logarithms else None
    weights = _without_memory((rows * in_registers(m, lanes),), real) if tracked else None
    return Plan(
        rank, options, _without_memory(shape, query.dtype), logarithms, weights, tuple(x.stride() for x in given),
        threads * scratch * real.itemsize, threads, forward_kernel(bits, *kind), template(arguments), backward,
    )  # fmt: skip


def _without_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Template for `empty_like`, which is faster than `torch.empty` with a shape."""
    made = torch.empty(shape, dtype=dtype, device="cpu")
    made.untyped_storage().resize_(0)
    return made


_QUERY, _KEY, _VALUE, _MASK, _SCRATCH, _WEIGHTS, _OUTPUT, _LOGARITHMS, _STRANGE = (
    LEADING + word
    for word in (
        Few.query, Few.key, Few.value, Few.mask, Few.scratch, Forward.weights, Forward.output, Forward.logarithms,
        Forward.strange,
    )
)  # fmt: skip
_ANSWER = LEADING + Forward.words


_B_WEIGHTS, _GRADIENT, _OF_LOGARITHMS, _OF_QUERY, _OF_KEY, _OF_VALUE = (
    LEADING + word
    for word in (
        Backward.weights, Backward.gradient, Backward.of_logarithms, Backward.of_query,
        Backward.of_key, Backward.of_value,
    )
)  # fmt: skip
