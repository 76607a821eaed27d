"""Attention of few queries and keys by one plan for all calls of the same kind; heads may share keys."""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from math import e, log2
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import Call
from attnspec.backends.pytorch.kernels.dot.few_backward import Backward, backward_kernel, backward_scratch
from attnspec.backends.pytorch.kernels.dot.few_forward import Forward, forward_kernel, forward_scratch
from attnspec.backends.pytorch.kernels.dot.few_rows import MANY, Few
from attnspec.backends.pytorch.kernels.dot.group_gradients import GroupedCall, by_formula
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, register_bytes
from attnspec.backends.pytorch.kernels.llvm.registers import in_registers
from attnspec.backends.pytorch.kernels.llvm.threads import call as call_kernel
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.kept_memory import address
from attnspec.backends.pytorch.runtime.plans import Plans, plan_class
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

from .planned_kernel import as_four, template
from .step_arguments import STORED, StridedBytes

MOST = 2**18
"""Scores, or numbers of queries or keys, of a head of keys, up to which a thread has memory for them."""

empty_like, grad = torch.empty_like, torch.is_grad_enabled

Found: TypeAlias = tuple[Tensor, Tensor | None]
"""Output, and log Σ exp where it is wanted, in the dtype of the operands."""

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor | None], Found | None]


@plan_class
class Plan:
    """What all calls with the same shapes, strides and flags have in common.

    ``output``, ``logarithms``, where log Σ exp is wanted, and ``weights``, where a backward reads them, are tensors
    without memory, like which results are made; ``strides`` are those of the operands as they are given, ``scratch``
    is a number of bytes.
    """

    output: Tensor
    logarithms: Tensor | None
    weights: Tensor | None
    causal: bool
    scale: float
    strides: tuple[tuple[int, ...], ...]
    scratch: int
    threads: int
    kernel: "Compiled[Forward]"
    words: "array[int]"
    backward: "BackwardPlan | None"


@plan_class
class BackwardPlan:
    """A plan of the gradients of all calls with the same shapes, strides and flags."""

    words: "array[int]"
    kernel: "Compiled[Backward]"
    scratch: int


def serves(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the kernels take query (b, heads, n, d), key, value (b, heads_k, m, ·), mask (b|1, heads|1, n|1, m)."""
    given = [query, key, value] if mask is None else [query, key, value, mask]
    if query.dtype not in STORED or any(x.stride(-1) != 1 and x.shape[-1] > 1 for x in given):
        return False
    # rows that overlap have gradients that lie in another way
    if any(torch.empty_like(x, device="meta").stride(-1) != 1 and x.shape[-1] > 1 for x in given[:3]):
        return False
    group, n, m = query.shape[1] // key.shape[1], query.shape[-2], key.shape[-2]
    widest = max(query.shape[-1], value.shape[-1])
    return group * n * m <= MOST and max(group * n, m) * widest <= MOST


def _lanes(x: Tensor) -> int:
    """Numbers of a register in which sums of this dtype are taken."""
    return register_bytes() // (8 if x.dtype is torch.float64 else 4)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, *,
    shape: Sequence[int], given: Sequence[Tensor], logarithms: bool,
) -> Attend:  # fmt: skip
    """What computes calls like this one, in four dimensions; it gives None where a score is not finite or a result NaN.

    It takes the operands as ``given``, of which those in four dimensions are views, and gives an output of ``shape``.
    What is made once for such calls is kept.
    """
    tracked, lie = recorded(*given), [(x.shape, x.stride()) for x in (query, key, value, *given)]
    of_mask = None if mask is None else (mask.shape, mask.stride())
    kind = *lie, of_mask, query.dtype, causal, scale, tuple(shape), tracked, logarithms, torch.get_num_threads()
    made = _plans.get(kind)
    if made is None:
        made = _made(query, key, value, mask, causal, scale, shape=shape, given=given, logarithms=logarithms)
        _plans.remember(kind, made)
    return made


_plans: Plans[Attend] = Plans()


def _made(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, *,
    shape: Sequence[int], given: Sequence[Tensor], logarithms: bool,
) -> Attend:  # fmt: skip
    (b, heads, n, d), (heads_k, m, d_v) = query.shape, value.shape[1:]
    group, real, lanes = heads // heads_k, widened(query[:0, :0]).dtype, _lanes(query)
    m_whole, rows = in_registers(m, lanes), b * heads * n
    stored = STORED[query.dtype]
    copied = stored != "real" and group * n >= MANY
    bits, kind = 8 * real.itemsize, (stored, mask is not None, copied)
    tracked = recorded(*given)
    threads = thread_count(b * heads_k, b * heads * n * m * (d + d_v) / 2)
    sizes: dict[str, Any] = {
        "tasks": b * heads_k, "heads_k": heads_k, "group": group, "n": n, "m": m, "d": d, "d_v": d_v,
        "causal": causal, "scale": scale, "log2_scale": scale * log2(e), "query": query, "key": key, "value": value,
        "mask": mask,
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
        by_query, by_key, by_value = (as_four(empty_like(x), x.dim() - 2) for x in given)
        of_results = Backward(
            **sizes, scratch=numbers.expand(threads, more), weights=numbers, gradient=output, of_logarithms=None,
            of_query=by_query, of_key=by_key, of_value=by_value,
        )  # fmt: skip
        bytes_of_threads = threads * more * real.itemsize
        backward = BackwardPlan(template(of_results), backward_kernel(bits, *kind), bytes_of_threads)
    plan = Plan(
        _without_memory(shape, query.dtype), _without_memory(shape[:-1], query.dtype) if logarithms else None,
        _without_memory((rows * m_whole,), real) if tracked else None, causal, scale, tuple(x.stride() for x in given),
        threads * scratch * real.itemsize, threads, forward_kernel(bits, *kind), template(arguments), backward,
    )  # fmt: skip
    compute = partial(_forward, plan) if backward is None else _differentiable(plan, backward)

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Found | None:
        found = compute(query, key, value) if mask is None else compute(query, key, value, mask)
        return None if found[2] else found[:2]

    return attend


def _without_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor to make others like it, which takes less time than making them of a shape."""
    made = torch.empty(shape, dtype=dtype, device="cpu")
    made.untyped_storage().resize_(0)
    return made


def grouped(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """What computes calls of attention in groups of heads like this one: output and log Σ exp."""
    shape, given = (*query.shape[:-1], value.shape[-1]), (query, key, value)
    compute = attention(query, key, value, None, causal, scale, shape=shape, given=given, logarithms=True)
    return cast("Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor] | None]", compute)


def planned(
    call: Call, given: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, batch: torch.Size
) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor | None] | None:
    """What computes calls of scaled dot-product attention like this one; None where operands must be copied."""
    views = [*zip(call[:3], given, strict=True), *([(call.mask, mask)] if mask is not None else [])]
    if any(own is None or own.data_ptr() != x.data_ptr() for own, x in views):
        return None
    if call.differentiates() and (len(batch) > 2 or any(x.shape[:-2] != batch for x in given)):
        return None
    shape = *batch, call.query.shape[-2], call.value.shape[-1]
    own = attention(*call[:6], shape=shape, given=given, logarithms=False)

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor | None:
        found = own(query, key, value, mask)
        return None if found is None else found[0]

    return attend


def attend(call: Call) -> Tensor | None:
    """The output of a call that `serves` admits; None where a score is not finite or a result NaN."""
    given = call.query, call.key, call.value
    shape = *call.query.shape[:-1], call.value.shape[-1]
    found = attention(*call[:6], shape=shape, given=given, logarithms=False)(*call[:4])
    return None if found is None else found[0]


_QUERY, _KEY, _VALUE, _MASK, _SCRATCH, _WEIGHTS, _OUTPUT, _LOGARITHMS, _STRANGE = (
    LEADING + word
    for word in (
        Few.query, Few.key, Few.value, Few.mask, Few.scratch, Forward.weights, Forward.output, Forward.logarithms,
        Forward.strange,
    )
)  # fmt: skip
_ANSWER = LEADING + Forward.words


def _forward(
    plan: Plan, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor | None, bool, Tensor | None]:
    """Output, log Σ exp if it is wanted, whether something is not finite, and weights if a backward reads them."""
    output, logarithms, weights = empty_like(plan.output), plan.logarithms, plan.weights
    words = plan.words[:]
    words[_QUERY], words[_KEY], words[_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
    words[_OUTPUT] = output.data_ptr()
    at = words.buffer_info()[0]
    words[_STRANGE] = at + 8 * _ANSWER
    words[_SCRATCH], _held = address("few", plan.scratch)
    if weights is not None:
        weights = empty_like(weights)
        words[_WEIGHTS] = weights.data_ptr()
    if mask is not None:
        words[_MASK] = mask.data_ptr()
    if logarithms is not None:
        logarithms = empty_like(logarithms)
        words[_LOGARITHMS] = logarithms.data_ptr()
    if plan.threads == 1:  # as `call_kernel` does, without its frame: of small calls that is half a percent
        plan.kernel.call(at)
    else:
        call_kernel(plan.kernel, plan.threads, words)
    return output, logarithms, words[_ANSWER] != 0, weights


def _differentiable(plan: Plan, backward_plan: BackwardPlan) -> Callable[..., tuple[Tensor, Tensor | None, bool]]:
    """`_forward` as a function of autograd.

    What is known of the call is no argument and no attribute of a context, each of which takes a part of a microsecond.
    """

    class FewQueries(torch.autograd.Function):
        """Output, log Σ exp if it is wanted, and whether something is not finite."""

        @staticmethod
        def forward(
            ctx: Any, query: Tensor, key: Tensor, value: Tensor, *mask: Tensor
        ) -> tuple[Tensor, Tensor | None, bool]:
            """The backward reads the weights."""
            output, logarithms, strange, weights = _forward(plan, query, key, value, *mask)
            ctx.save_for_backward(query, key, value, weights, *mask)
            ctx.set_materialize_grads(False)
            return output, logarithms, strange

        @staticmethod
        def backward(
            ctx: Any, gradient: Tensor | None, of_logarithms: Tensor | None, _: None
        ) -> tuple[Tensor | None, ...]:
            """By the kernel where it is first order, else by the formula."""
            query, key, value, weights, *mask = saved = ctx.saved_tensors
            if gradient is None:
                gradient = query.new_zeros(plan.output.shape)
            elif gradient.stride(-1) != 1:
                gradient = gradient.contiguous()
            operands, given = (query, key, value), [gradient, *saved]
            if of_logarithms is not None:
                given.append(of_logarithms)
            # hooks on saved tensors may have changed their strides and classes
            lie = tuple(x.stride() for x in operands) == plan.strides and all(map(addressable, given))
            if grad() or intercepted() or not lie or not weights.is_contiguous():
                wanted = ctx.needs_input_grad[:3]
                found = _by_formula(plan, operands, mask[0] if mask else None, (gradient, of_logarithms), wanted)
                return *found, *(None for _ in mask)
            return _gradients(plan, backward_plan, saved, gradient, of_logarithms)

    return FewQueries.apply


_B_WEIGHTS, _GRADIENT, _OF_LOGARITHMS, _OF_QUERY, _OF_KEY, _OF_VALUE = (
    LEADING + word
    for word in (
        Backward.weights, Backward.gradient, Backward.of_logarithms, Backward.of_query,
        Backward.of_key, Backward.of_value,
    )
)  # fmt: skip


def _gradients(
    plan: Plan, backward: BackwardPlan, saved: Sequence[Tensor], gradient: Tensor, of_logarithms: Tensor | None
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of query, key and value, by the kernel, and none of a mask."""
    query, key, value, weights, *mask = saved
    by_query, by_key, by_value = empty_like(query), empty_like(key), empty_like(value)
    words = backward.words[:]
    words[_GRADIENT : _GRADIENT + 4] = array("q", StridedBytes.to_words(as_four(gradient, gradient.dim() - 2)))
    words[_QUERY], words[_KEY], words[_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
    words[_OF_QUERY], words[_OF_KEY], words[_OF_VALUE] = by_query.data_ptr(), by_key.data_ptr(), by_value.data_ptr()
    words[_B_WEIGHTS] = weights.data_ptr()
    words[_SCRATCH], _held = address("few", backward.scratch)
    if mask:
        words[_MASK] = mask[0].data_ptr()
    if of_logarithms is not None:
        of_logarithms = of_logarithms.resolve_neg().to(weights.dtype).contiguous()
        words[_OF_LOGARITHMS] = of_logarithms.data_ptr()
    if plan.threads == 1:  # as in `_forward`
        backward.kernel.call(words.buffer_info()[0])
    else:
        call_kernel(backward.kernel, plan.threads, words)
    return (by_query, by_key, by_value, None) if mask else (by_query, by_key, by_value)


def _by_formula(
    plan: Plan, operands: Sequence[Tensor], mask: Tensor | None, gradients: tuple[Tensor, Tensor | None],
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The same, so that they can be differentiated again."""
    like, shape = widened(operands[0][..., :0]), plan.output.shape
    gradient, of_logarithms = (like.new_zeros(shape[:-1]) if x is None else x.to(like.dtype) for x in gradients)
    given = operands
    if plan.logarithms is None:  # heads are a part of the batch, each with keys of its own
        given = [x.reshape(-1, 1, *x.shape[-2:]) for x in operands]
        n, m = given[0].shape[-2], given[1].shape[-2]
        mask = None if mask is None else mask.expand(*shape[:-1], m).reshape(-1, 1, n, m)
        gradient, of_logarithms = gradient.reshape(-1, 1, *gradient.shape[-2:]), of_logarithms.reshape(-1, 1, n)
    call = GroupedCall(plan.scale, None, 0 if plan.causal else None, None)
    found = by_formula(
        call, (given[0], given[1], given[2]), (mask, None, None, None, None), (gradient, of_logarithms), wanted
    )
    return tuple(
        None if x is None else x.reshape(own.shape).to(own.dtype) for x, own in zip(found, operands, strict=True)
    )
