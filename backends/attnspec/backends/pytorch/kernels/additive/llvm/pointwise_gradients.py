"""Gradients by the pointwise kernels (path ``pointwise``), for a whole batch or piece by piece.

a = query w_qᵀ and b = key w_kᵀ are the projections that the kernels attend with. They are None where the caller passed
projected queries and keys, without w_q and w_k. A piece is some entries of the batch, so few that they stay in the
cache. `pointwise_plan.Plan` explains ``plan.reads``, ``plan.half`` and ``plan.rounds``.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.decode_arguments import STORED
from attnspec.backends.pytorch.kernels.llvm import matmul
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, buffer_slots
from attnspec.backends.pytorch.kernels.llvm.threads import call
from attnspec.backends.pytorch.runtime.accumulation import finite, upcast
from attnspec.backends.pytorch.runtime.transforms import addressable, operations_intercepted

from .pointwise_kernels import Backward, backward_kernel
from .pointwise_plan import Operands, Plan


def gradients(
    plan: Plan, operands: Operands, gradient: Tensor, a: Tensor | None, b: Tensor | None, weights: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return gradients of the `wanted` operands, in their shapes and in the dtype of sums.

    ``wanted`` has a flag for each of `Operands`; more flags are ignored.
    """
    query, key, value, w_q, w_k, w_v = operands
    wants_query, wants_key, wants_value, wants_w_q, wants_w_k, wants_w_v = wanted[:6]
    if plan.half:
        gradient = gradient.float()
    a, b = query if a is None else a, key if b is None else b
    are_zero = False
    by_pytorch = operations_intercepted() or not addressable(gradient)
    if by_pytorch:
        by_a, by_b, by_value, by_w = _by_pytorch(plan, a, b, w_v, value, gradient, weights)
    else:
        by_a, by_b, by_value, by_w = _by_kernel(plan, a, b, w_v, value, gradient, weights)
        are_zero = w_q is not None and _gradients_are_zero(plan, a, b, value, gradient, weights, wanted)
    query_gradient = key_gradient = of_w_q = of_w_k = None
    if wants_query or wants_w_q:
        by_a = _operand_gradient(by_a, query, plan.shared[0])
        query_gradient, of_w_q = _projection_gradients(by_a, query, w_q, wants_query, wants_w_q, are_zero, by_pytorch)
    if wants_key or wants_w_k:
        by_b = _operand_gradient(by_b, key, plan.shared[1])
        key_gradient, of_w_k = _projection_gradients(by_b, key, w_k, wants_key, wants_w_k, are_zero, by_pytorch)
    value_gradient = _operand_gradient(by_value, value, plan.shared[2]) if wants_value else None
    return query_gradient, key_gradient, value_gradient, of_w_q, of_w_k, by_w if wants_w_v else None


def _gradients_are_zero(
    plan: Plan, a: Tensor, b: Tensor, value: Tensor, gradient: Tensor, weights: Tensor, wanted: Sequence[bool]
) -> bool:
    """Return True if projections' gradients are wanted and exactly 0: one key, with finite scores and gradients.

    With one key the weight is 1 whatever its score, so score gradients are 0, and so are their products with finite
    operands. Operands are finite where a and b are: an infinite one would make its projection infinite or NaN.
    """
    through = wanted[0] or wanted[1] or wanted[3] or wanted[4]  # query, key, w_q or w_k
    if plan.m > 1 or not through or not all(map(finite, (a, b, weights))):
        return False
    rows, value = gradient.reshape(-1, plan.n, plan.d), value.reshape(-1, plan.d, 1)
    return finite(torch.matmul(rows, value.to(rows.dtype)))


def in_pieces(
    plan: Plan, operands: Operands, gradient: Tensor, a: Tensor | None, b: Tensor | None, weights: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """`gradients` piece by piece, in the operands' dtype; every entry must have operands of its own."""
    query, key, value, w_q, w_k, w_v = operands
    are_zero = a is not None and b is not None and _gradients_are_zero(plan, a, b, value, gradient, weights, wanted)
    rows = [x.reshape(plan.entries, *x.shape[-2:]) for x in (query, key, value)]
    gradient = gradient.reshape(plan.entries, plan.n, plan.d)
    flat_operands = Operands(rows[0], rows[1], rows[2], w_q, w_k, w_v)
    a, b = (None if x is None else x.reshape(plan.entries, *x.shape[-2:]) for x in (a, b))
    if plan.rounds and a is not None and b is not None:
        results = _by_rounded(plan, flat_operands, gradient, a, b, weights, wanted, are_zero)
    else:
        results = _by_parts(plan, flat_operands, gradient, a, b, weights, wanted, are_zero)
    shapes = (query.shape, key.shape, value.shape)
    of_rows = (None if x is None else x.view(shape) for x, shape in zip(results[:3], shapes, strict=True))
    return *of_rows, *results[3:]


def _by_parts(
    plan: Plan, operands: Operands, gradient: Tensor, a: Tensor | None, b: Tensor | None, weights: Tensor,
    wanted: Sequence[bool], are_zero: bool,
) -> list[Tensor | None]:  # fmt: skip
    """Compute each piece's gradients into its slice of the result; sum those of the weights."""
    w_q, w_k, w_v = (None if w is None else upcast(w) for w in operands[3:])
    assert w_v is not None
    memory = _memory(plan, w_v, 3)
    # new_empty, not empty_like: the operands may have other strides
    of_rows = [x.new_empty(x.shape) if want else None for x, want in zip(operands[:3], wanted[:3], strict=True)]
    of_weights = [
        w.new_zeros(w.shape) if want and w is not None else None
        for w, want in zip((w_q, w_k, w_v), wanted[3:6], strict=True)
    ]
    # The kernel writes the values' gradient to the result unless that is half and sums over queries must be wider.
    in_place = not plan.half or (plan.n == 1 and plan.reads != "real")
    for start, stop in plan.pieces:
        query, key, value = (x[start:stop] for x in operands[:3])
        query, key, value = upcast(query), upcast(key), upcast(value) if plan.reads == "real" else value
        own_a, own_b = (x if projected is None else projected[start:stop] for x, projected in ((query, a), (key, b)))
        targets = [None if x is None else x[start:stop] for x in of_rows]
        into, of_value = [x[: stop - start] for x in memory], targets[2]
        if in_place and of_value is not None:
            into[2] = of_value
        by_a, by_b, by_value, by_w = _by_kernel(
            plan, own_a, own_b, w_v, value, upcast(gradient[start:stop]), weights[start:stop], into
        )  # fmt: skip
        if not in_place and of_value is not None:
            of_value.copy_(by_value)
        for x, w, by, target, total in zip((query, key), (w_q, w_k), (by_a, by_b), targets, of_weights, strict=False):
            _add_projection_gradients(by, x, w, target, total, are_zero)
        if of_weights[2] is not None:
            of_weights[2] += by_w
    return of_rows + [None if x is None else x.to(gradient.dtype) for x in of_weights]


def _add_projection_gradients(
    gradient: Tensor, x: Tensor, w: Tensor | None, target: Tensor | None, total: Tensor | None, are_zero: bool
) -> None:
    """Write the gradient of x to ``target``; add the gradient of w to ``total``; skip None."""
    if are_zero:
        if target is not None:
            target.zero_()
        return
    if w is None:
        if target is not None:
            target.copy_(gradient)
        return
    rows, inputs = gradient.view(-1, w.shape[0]), x.reshape(-1, w.shape[1])
    if target is not None and target.dtype is w.dtype:
        matmul.product(rows, w, target.view(inputs.shape))
    elif target is not None:
        target.copy_(matmul.product(rows, w).view(x.shape))
    if total is not None:
        matmul.product_over_rows(rows, inputs, total)


def _memory(plan: Plan, like: Tensor, count: int) -> list[Tensor]:
    """Return memory for a piece's gradients: the first ``count`` of a, b and value.

    All pieces reuse it, so that it stays in the cache.
    """
    entries = max(stop - start for start, stop in plan.pieces)
    return [like.new_empty(entries, *size) for size in ((plan.n, plan.h), (plan.m, plan.h), (plan.m, plan.d))[:count]]


def _by_rounded(
    plan: Plan, operands: Operands, gradient: Tensor, a: Tensor, b: Tensor, weights: Tensor, wanted: Sequence[bool],
    are_zero: bool,
) -> list[Tensor | None]:  # fmt: skip
    """`_by_parts` with gradients of a and b rounded to bfloat16; their products are twice as fast."""
    query, key, value, w_q, w_k, w_v = operands
    by_a, by_b = value.new_empty(a.shape), value.new_empty(b.shape)
    units = upcast(w_v)
    of_value, of_w = value.new_empty(value.shape), []
    one_query = plan.n == 1  # nothing is added to gradients of keys and values by other queries
    memory = _memory(plan, units, 1 if one_query else 3)  # of a only: those of b and value go to the results
    for start, stop in plan.pieces:
        targets = by_a[start:stop], by_b[start:stop], of_value[start:stop]
        into = [x[: stop - start] for x in memory]
        if one_query:
            into += targets[1:]
        *row_gradients, w_gradient = _by_kernel(
            plan, a[start:stop], b[start:stop], units, value[start:stop], upcast(gradient[start:stop]),
            weights[start:stop], into,
        )  # fmt: skip
        for target, rows in zip(targets, row_gradients, strict=True):
            if rows is not target:
                target.copy_(rows)
        of_w.append(w_gradient)
    gradients: list[Tensor | None] = [None, None, of_value, None, None, reduce(torch.add, of_w).to(w_v.dtype)]
    for i, (by, x, w) in enumerate(((by_a, query, w_q), (by_b, key, w_k))):
        if w is not None and wanted[i]:
            gradients[i] = x.new_zeros(x.shape) if are_zero else by @ w
        if w is not None and wanted[3 + i]:
            gradients[3 + i] = w.new_zeros(w.shape) if are_zero else by.view(-1, plan.h).mT @ x.reshape(-1, w.shape[1])
    return [x if want else None for x, want in zip(gradients, wanted, strict=False)]


def _operand_gradient(gradient: Tensor, x: Tensor, shared: bool) -> Tensor:
    """Return the gradient (entries, rows, columns) in x's batch shape, summed if entries share x."""
    return (gradient.sum(0) if shared else gradient).view(*x.shape[:-1], gradient.shape[-1])


def _projection_gradients(
    gradient: Tensor, x: Tensor, w: Tensor | None, of_input: bool, of_weight: bool, are_zero: bool, by_pytorch: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return gradients of x and of its projection weight w from the projection's; ``by_pytorch`` uses PyTorch only."""
    if w is None:
        return gradient, None
    if are_zero:
        return x.new_zeros(x.shape) if of_input else None, w.new_zeros(w.shape) if of_weight else None
    rows = gradient.view(-1, w.shape[0])
    if by_pytorch or not addressable(x) or not addressable(w):
        by_weight = rows.mT @ x.reshape(-1, w.shape[1]) if of_weight else None
        return (rows @ w).view(x.shape) if of_input else None, by_weight
    by_weight = matmul.product_over_rows(rows, x.reshape(-1, w.shape[1])) if of_weight else None
    return matmul.product(rows, w).view(x.shape) if of_input else None, by_weight


def _by_kernel(
    plan: Plan, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, gradient: Tensor, weights: Tensor,
    memory: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return gradients of a, b, value per entry (in ``memory`` if passed), and of w_v.

    The memory of b and value may be of a half dtype if there is one query.
    """
    # hooks on saved tensors may have changed their strides
    a, b, w_v, value = a.resolve_neg().contiguous(), b.resolve_neg().contiguous(), w_v.contiguous(), value.contiguous()
    gradient, weights = gradient.contiguous(), weights.contiguous()
    e, n, m, h, d = len(weights), plan.n, plan.m, plan.h, plan.d
    if memory is None:
        memory = a.new_empty(e, n, h), a.new_empty(e, m, h), a.new_empty(e, m, d)
    (by_a, by_b, by_value), by_w = memory, a.new_empty(h) if e == 1 else a.new_empty(e, h)
    kernel = backward_kernel(plan.bits, STORED[value.dtype], STORED[by_b.dtype], STORED[by_value.dtype])
    threads = torch.get_num_threads() if plan.parallel and e > 1 else 1
    scratch = a.new_empty(threads * plan.scratch)
    buffer = plan.backward_buffer[:]
    buffer[_ENTRIES] = e
    for slot, x in zip(
        _BACKWARD, (scratch, a, b, w_v, value, weights, gradient, by_a, by_b, by_w, by_value), strict=True
    ):
        buffer[slot] = x.data_ptr()
    call(kernel, threads, buffer)
    return by_a, by_b, by_value, by_w if e == 1 else by_w.sum(0)


_ENTRIES = LEADING + Backward.tasks
_BACKWARD = buffer_slots(
    Backward.scratch, Backward.a, Backward.b, Backward.w, Backward.value, Backward.weights, Backward.grad_output,
    Backward.grad_a, Backward.grad_b, Backward.grad_w, Backward.grad_value,
)  # fmt: skip


def _by_pytorch(
    plan: Plan, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, gradient: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_by_kernel` by PyTorch operations, for batched gradients, dispatch modes and subclasses."""
    e = plan.entries
    a, b, value = (x.reshape(-1, *x.shape[-2:]).expand(e, -1, -1) for x in (a, b, upcast(value)))
    gradient = gradient.reshape(e, plan.n, plan.d)
    tanh = torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3))
    of_weights = gradient @ value.mT
    delta = (weights * of_weights).masked_fill(weights == 0, 0).sum(-1, keepdim=True)
    of_scores = (weights * (of_weights - delta)).masked_fill(weights == 0, 0)
    of_sums = of_scores.unsqueeze(-1) * (1 - tanh * tanh)
    # stops NaN in the incoming gradient of a row without an attendable key
    gradient = gradient.masked_fill((weights == 0).all(-1, keepdim=True), 0)
    by_w = (of_scores.unsqueeze(-1) * tanh).sum((0, 1, 2))
    return of_sums.sum(-2) * w_v, of_sums.sum(-3) * w_v, weights.mT @ gradient, by_w
