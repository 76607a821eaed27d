"""Calls of the direct kernels: what is known of a call from its shapes is found once, in a plan.

A call without gradients takes the batch in pieces that stay in the processor's cache, projections included.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, register_bytes
from attnspec.backends.pytorch.kernels.llvm.threads import call, worth_waking
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.first_order import first_order, no_second_derivative
from attnspec.backends.pytorch.runtime.plans import Plans
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

from .direct_kernels import Backward, Forward, backward_kernel, forward_kernel

PIECE = 2**16
"""Numbers of projected keys that are made at a time, without gradients: 256 KiB of float32."""

ONCE = no_second_derivative("additive attention", "llvm", "additive.attention(..., path='plain')")


class Operands(NamedTuple):
    """query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v), w_q (h, d_q), w_k (h, d_k), w_v (h).

    Without w_q and w_k, query and key are projected already.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    w_q: Tensor | None
    w_k: Tensor | None
    w_v: Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """What all calls with the same shapes, dtype and flags have in common; words are the kernels' but for addresses."""

    batch: torch.Size
    entries: int
    n: int
    m: int
    h: int
    d: int
    shared: tuple[bool, bool, bool]
    mask_shape: tuple[int, ...]
    causal: bool
    half: bool
    pieces: tuple[tuple[int, int], ...]
    parallel: bool
    scratch: int
    forward: "Compiled[Forward]"
    forward_words: "array[int]"
    backward_words: "array[int]"
    bits: int


def plan(operands: Operands, mask: Tensor | None, causal: bool, batch: torch.Size) -> Plan | None:
    """The plan of a call whose shapes are right and not empty; None for batches that the kernels do not take."""
    query, key, value, w_q, w_k, w_v = operands
    entries, n, m, h, d = batch.numel(), query.shape[-2], key.shape[-2], w_v.shape[0], value.shape[-1]
    given = [query, key, value] if mask is None else [query, key, value, mask]
    if any(x.shape[:-2] != batch and x.shape[:-2].numel() != 1 for x in given):
        return None
    shared = [x.shape[:-2].numel() != entries for x in given]
    bits = 64 if query.dtype is torch.float64 else 32
    half = query.dtype in HALF_DTYPES
    rows = 0 if mask is None else mask.shape[-2]
    weights = 0 if w_k is None else w_k.numel()  # each piece reads them
    size = max(1, max(PIECE, weights) // (m * max(h, key.shape[-1], d)))
    whole = any(shared) or (w_q is None and not half) or size >= entries
    pieces = ((0, entries),) if whole else tuple((i, min(i + size, entries)) for i in range(0, entries, size))
    sizes = {
        "n": n, "m": m, "h": h, "d": d, "causal": int(causal),
        "a_entry": 0 if shared[0] else n * h, "b_entry": 0 if shared[1] else m * h,
        "value_entry": 0 if shared[2] else m * d,
    }  # fmt: skip
    of_mask = {} if mask is None else {"mask_entry": 0 if shared[3] else rows * m, "mask_row": m if rows > 1 else 0}
    scratch = m + register_bytes() * 8 // bits
    forward = _words(Forward, scratch, sizes | of_mask)
    backward = _words(Backward, scratch, sizes | {"tasks": entries})
    return Plan(
        batch, entries, n, m, h, d, (shared[0], shared[1], shared[2]),
        () if mask is None else (*mask.shape[:-1], m), causal, half, pieces,
        worth_waking(entries * n, entries * n * m * h), scratch, forward_kernel(bits), forward, backward, bits,
    )  # fmt: skip


def _words(arguments: Any, scratch: int, sizes: dict[str, int]) -> "array[int]":
    """Leading words, the sizes, and zeros; then a word for what the kernel says about NaN."""
    words = array("q", bytes(8 * (LEADING + arguments.words + 1)))
    for name, size in sizes.items():
        words[LEADING + getattr(arguments, name)] = size
    words[LEADING + arguments.scratch + 1] = scratch
    return words


_plans: Plans[Plan | None] = Plans()


def attention(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """`attend` for projected operands that fit together; None also for empty ones. Batches of any kind broadcast."""
    shapes = [a.shape[:-2], b.shape[:-2], value.shape[:-2]]
    batch = broadcast(*shapes, mask.shape[:-2] if mask is not None else ())
    if not batch.numel() * a.shape[-2] * b.shape[-2]:
        return None
    kind = a.shape, b.shape, w_v.shape, value.shape, None if mask is None else mask.shape, causal, a.dtype
    made = _plans.get(kind)
    if made is None:
        made = _plans.remember(kind, plan(Operands(a, b, value, None, None, w_v), mask, causal, batch))
    if made is None:
        a, b, value = (x.expand(*batch, *x.shape[-2:]) for x in (a, b, value))
        mask = None if mask is None else mask.expand(*batch, *mask.shape[-2:])
        return attention(a, b, w_v, value, mask, causal)
    tracked = recorded(a, b, w_v, value)
    return attend(made, Operands(a, b, value, None, None, w_v), mask, tracked)


def attend(plan: Plan, operands: Operands, mask: Tensor | None, tracked: bool) -> Tensor | None:
    """The output; None where it, or a gradient, may be wrong because of NaN at excluded keys, or has no memory."""
    query, key, value, _, _, w_v = operands
    if value.is_neg() or w_v.is_neg() or value._is_zerotensor() or w_v._is_zerotensor():
        return None
    if query._is_zerotensor() or key._is_zerotensor():
        return None
    return attend_ordinary(plan, operands, mask, tracked)


def attend_ordinary(plan: Plan, operands: tuple[Any, ...], mask: Tensor | None, tracked: bool) -> Tensor | None:
    """`attend` for tensors without lazy signs, named or not."""
    operands = Operands(*operands)
    value = operands.value
    if mask is not None:
        mask = (mask if mask.shape == plan.mask_shape else mask.expand(plan.mask_shape)).contiguous()
    if tracked:
        output, nan = DirectAttention.apply(*operands, mask, plan)  # type: ignore[no-untyped-call]
    elif len(plan.pieces) == 1:
        output, nan, *_ = _forward(plan, wide(operands) if plan.half else operands, mask, (0, plan.entries), False)
        output = output.to(value.dtype) if plan.half else output
    else:
        output, nan = _in_pieces(plan, operands, mask)
    return None if nan and mask is not None else output


def _in_pieces(plan: Plan, operands: Operands, mask: Tensor | None) -> tuple[Tensor, bool]:
    query, key, value, w_q, w_k, w_v = operands
    if plan.half and w_q is not None and w_k is not None:
        w_q, w_k = w_q.float(), w_k.float()
    rows = [x.reshape(plan.entries, *x.shape[-2:]) for x in (query, key, value)]
    masks = mask if mask is None or len(mask.shape) < 3 else mask.flatten(0, -3)
    output = value.new_empty(plan.entries, plan.n, plan.d)
    nan = False
    for start, stop in plan.pieces:
        part = Operands(rows[0][start:stop], rows[1][start:stop], rows[2][start:stop], w_q, w_k, w_v)
        part = wide(part) if plan.half else part
        own = masks if masks is None or masks.dim() < 3 or len(masks) == 1 else masks[start:stop]
        output[start:stop], strange, *_ = _forward(plan, part, own, (start, stop), False)
        nan = nan or strange
    return output.view(*plan.batch, plan.n, plan.d), nan


def wide(operands: Operands) -> Operands:
    """Operands of a half dtype in float32."""
    query, key, value, w_q, w_k, w_v = operands
    if w_q is not None and w_k is not None:
        w_q, w_k = w_q.float(), w_k.float()
    return Operands(query.float(), key.float(), value.float(), w_q, w_k, w_v.float())


def _forward(
    plan: Plan, operands: Operands, mask: Tensor | None, part: tuple[int, int], save: bool
) -> tuple[Tensor, bool, Tensor, Tensor, Tensor | None]:
    """Output, whether a NaN was met, projected query and key, and weights if they are to be saved.

    The operands are in the dtype of the sums; the output is, too.
    """
    query, key, value, w_q, w_k, w_v = operands
    entries = part[1] - part[0]
    a = query.resolve_neg() if w_q is None else linear(query, w_q)
    b = key.resolve_neg() if w_k is None else linear(key, w_k)
    a, b, value, w_v = a.contiguous(), b.contiguous(), value.contiguous(), w_v.contiguous()
    shape = (*plan.batch, plan.n, plan.d) if entries == plan.entries else (entries, plan.n, plan.d)
    output = torch.empty(shape, dtype=a.dtype)
    weights = torch.empty((entries, plan.n, plan.m), dtype=a.dtype) if save else None
    threads = torch.get_num_threads() if plan.parallel else 1
    scratch = torch.empty(threads * plan.scratch, dtype=a.dtype)
    words = plan.forward_words[:]
    words[_TASKS] = entries * plan.n
    words[_SCRATCH] = scratch.data_ptr()
    words[_A] = a.data_ptr()
    words[_B] = b.data_ptr()
    words[_W] = w_v.data_ptr()
    words[_VALUE] = value.data_ptr()
    words[_OUTPUT] = output.data_ptr()
    if mask is not None:
        words[_MASK] = mask.data_ptr()
    if weights is not None:
        words[_WEIGHTS] = weights.data_ptr()
    words[_NAN] = words.buffer_info()[0] + 8 * _STRANGE
    call(plan.forward, threads, words)
    return output, words[_STRANGE] != 0, a, b, weights


_TASKS, _SCRATCH, _A, _B, _W, _VALUE, _MASK, _OUTPUT, _WEIGHTS, _NAN = (
    LEADING + word
    for word in (
        Forward.tasks, Forward.scratch, Forward.a, Forward.b, Forward.w, Forward.value, Forward.mask, Forward.output,
        Forward.weights, Forward.nan,
    )
)  # fmt: skip
_STRANGE = LEADING + Forward.words


class DirectAttention(torch.autograd.Function):
    """The output, and whether a NaN was met."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, w_q: Tensor | None, w_k: Tensor | None, w_v: Tensor,
        mask: Tensor | None, plan: Plan,
    ) -> tuple[Tensor, bool]:  # fmt: skip
        """Keep the projected operands and the weights, and, where they are few numbers, what was widened."""
        operands = Operands(query, key, value, w_q, w_k, w_v)
        widened = wide(operands) if plan.half else operands
        output, nan, a, b, weights = _forward(plan, widened, mask, (0, plan.entries), True)
        kept = widened if plan.half and plan.entries * plan.m * plan.h <= PIECE else _NOTHING
        projected = (None, None) if w_q is None else (a, b)
        ctx.save_for_backward(*operands, *projected, weights, *kept)
        ctx.plan = plan
        return output.to(value.dtype) if plan.half else output, nan

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        """Gradients of the operands that need them."""
        saved = ctx.saved_tensors
        operands, (a, b, weights), kept = Operands(*saved[:6]), saved[6:9], Operands(*saved[9:])
        wanted = ctx.needs_input_grad

        def of_operands(gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            given = kept if kept.query is not None else wide(operands) if ctx.plan.half else operands
            return gradients(ctx.plan, given, gradient, a, b, weights, wanted, operands.value.dtype)

        found = first_order(ONCE, of_operands, gradient, *(x for x in operands if x is not None))
        return *found, None, None


_NOTHING = (None,) * 6


def gradients(
    plan: Plan, operands: Operands, gradient: Tensor, a: Tensor | None, b: Tensor | None, weights: Tensor,
    wanted: Sequence[bool], dtype: torch.dtype,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the operands that are wanted, in their shapes and in a dtype; the operands are widened already."""
    query, key, value, w_q, w_k, w_v = operands
    if plan.half:
        gradient = gradient.float()
    a, b = query if a is None else a, key if b is None else b
    if intercepted() or not addressable(gradient):
        by_a, by_b, by_value, by_w = _by_pytorch(plan, a, b, w_v, value, gradient, weights)
    else:
        by_a, by_b, by_value, by_w = _by_kernel(plan, a, b, w_v, value, gradient, weights)
    of_query = of_key = of_w_q = of_w_k = None
    if wanted[0] or wanted[3]:
        of_query, of_w_q = _through(_own(by_a, query, plan.shared[0]), query, w_q, wanted[0], wanted[3])
    if wanted[1] or wanted[4]:
        of_key, of_w_k = _through(_own(by_b, key, plan.shared[1]), key, w_k, wanted[1], wanted[4])
    of_value = _own(by_value, value, plan.shared[2]) if wanted[2] else None
    found = of_query, of_key, of_value, of_w_q, of_w_k, by_w if wanted[5] else None
    if not plan.half:
        return found
    return tuple(None if x is None else x.to(dtype) for x in found)


def _own(gradient: Tensor, x: Tensor, shared: bool) -> Tensor:
    """The gradient (entries, rows, columns) in the batch of an operand."""
    return (gradient.sum(0) if shared else gradient).view(*x.shape[:-1], gradient.shape[-1])


def _through(
    gradient: Tensor, x: Tensor, w: Tensor | None, of_input: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of x and of the weight that projected it, of that of the projection."""
    if w is None:
        return gradient, None
    rows = gradient.view(-1, w.shape[0])
    by_weight = rows.mT @ x.reshape(-1, w.shape[1]) if of_weight else None
    return (rows @ w).view(x.shape) if of_input else None, by_weight


def _by_kernel(
    plan: Plan, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, gradient: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, b and value by entries, and of w_v."""
    # hooks on saved tensors may have changed their strides
    a, b, w_v, value = a.resolve_neg().contiguous(), b.resolve_neg().contiguous(), w_v.contiguous(), value.contiguous()
    gradient, weights = gradient.contiguous(), weights.contiguous()
    e, n, m, h, d = plan.entries, plan.n, plan.m, plan.h, plan.d
    by_a, by_b = a.new_empty(e, n, h), a.new_empty(e, m, h)
    by_value, by_w = a.new_empty(e, m, d), a.new_empty(e, h)
    threads = torch.get_num_threads() if plan.parallel and e > 1 else 1
    scratch = a.new_empty(threads * plan.scratch)
    words = plan.backward_words[:]
    for place, x in zip(
        _BACKWARD, (scratch, a, b, w_v, value, weights, gradient, by_a, by_b, by_w, by_value), strict=True
    ):
        words[place] = x.data_ptr()
    call(backward_kernel(plan.bits), threads, words)
    return by_a, by_b, by_value, by_w[0] if e == 1 else by_w.sum(0)


_BACKWARD = tuple(
    LEADING + word
    for word in (
        Backward.scratch, Backward.a, Backward.b, Backward.w, Backward.value, Backward.weights, Backward.grad_output,
        Backward.grad_a, Backward.grad_b, Backward.grad_w, Backward.grad_value,
    )
)  # fmt: skip


def _by_pytorch(
    plan: Plan, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, gradient: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same by PyTorch's operations, for what kernels cannot read: batched gradients, dispatch modes, subclasses."""
    e = plan.entries
    a, b, value = (x.reshape(-1, *x.shape[-2:]).expand(e, -1, -1) for x in (a, b, value))
    gradient = gradient.reshape(e, plan.n, plan.d)
    tanh = torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3))
    of_weights = gradient @ value.mT
    delta = (weights * of_weights).masked_fill(weights == 0, 0).sum(-1, keepdim=True)
    of_scores = (weights * (of_weights - delta)).masked_fill(weights == 0, 0)
    of_sums = of_scores.unsqueeze(-1) * (1 - tanh * tanh)
    # stops a NaN in the incoming gradient of a row without an attendable key
    gradient = gradient.masked_fill((weights == 0).all(-1, keepdim=True), 0)
    by_w = (of_scores.unsqueeze(-1) * tanh).sum((0, 1, 2))
    return of_sums.sum(-2) * w_v, of_sums.sum(-3) * w_v, weights.mT @ gradient, by_w
