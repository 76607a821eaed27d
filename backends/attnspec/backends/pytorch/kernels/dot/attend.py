"""CPU attention by kernels, with one cached plan per kind of call.

Shapes, strides, dtypes and flags determine a plan: argument checks, the choice of kernels (`choice`), and their
argument buffers. Later calls of the same kind change only addresses.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot import choice
from attnspec.backends.pytorch.kernels.dot.call import Call, Tensors, four_dimensional, four_of_mask, in_groups
from attnspec.backends.pytorch.kernels.dot.differentiable import Attend, Results
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime import forcing
from attnspec.backends.pytorch.runtime.plans import Plans, seen
from attnspec.backends.pytorch.runtime.transforms import fused_allowed, lazy, only_described

# plans also depend on these; as functions in C++ they are fast
grad, threads = torch.is_grad_enabled, torch.get_num_threads

_plans: Plans[Attend] = Plans()


class Numbers(NamedTuple):
    """Numeric options; with ``grouped``, operands are (*batch, heads, rows, features)."""

    left: int | None
    right: int | None
    scale: float | None
    softcap: float | None = None
    grouped: bool = False
    wide: bool = False
    in_layer: bool = False

    def call(self, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None) -> tuple[Call, torch.Size]:
        """`Call` in four dimensions, and its batch."""
        left, right, scale, softcap, grouped, wide, in_layer = self
        mask, lengths, offsets, slopes, bias = Tensors(*tensors)
        if not grouped:
            return four_dimensional(query, key, value, mask, right is not None, scale, in_layer)
        visible, scoring = Visible(mask, left, right, lengths, offsets), Scoring(scale, softcap, bias, slopes)
        call, batch = in_groups(query, key, value, visible, scoring)
        return call._replace(options=call.options._replace(wide=wide)), batch


def attend(
    check: Callable[[], Any] | None, numbers: Numbers, query: Tensor, key: Tensor, value: Tensor,
    *tensors: Tensor | None,
) -> Results | None:  # fmt: skip
    """Output, and log Σ exp of a grouped call; None if only the formula is right.

    ``tensors`` are the first fields of `Tensors`, in the caller's shapes. ``check`` raises for mismatched arguments; it
    is called once per kind of call.
    """
    plan, kind = None, None
    try:
        kind = (
            numbers, grad(), threads(), fused_allowed(), forcing.chosen, seen(query), seen(key), seen(value),
            query.stride(), key.stride(), value.stride(),
            *((seen(x), None if x is None else x.stride()) for x in tensors),
        )  # fmt: skip
        plan = _plans.get(kind)
    except (AttributeError, TypeError, RuntimeError):  # not a dense tensor: `check` refuses it, or it runs uncached
        kind = None
    if plan is None and check is not None:
        check()
    given = [x for x in tensors if x is not None] if tensors else ()
    if lazy(query, key, value, *given):
        return attend(None, numbers, *map(_resolved, (query, key, value)), *map(_resolved, tensors))
    if plan is None:
        plan = _made(numbers, query, key, value, *tensors)
        if kind is not None:
            _plans.remember(kind, plan)
    return plan(query, key, value, *tensors)


def _resolved(x: Any) -> Any:
    """x without lazy negation; zeros without memory, which PyTorch's fused kernel misreads, get memory."""
    return x if x is None else x.clone() if only_described(x) else x.resolve_neg()


def _nothing(*given: Tensor | None) -> None:
    return None


def _made(numbers: Numbers, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None) -> Attend:
    """Choose the kernels for calls of this kind and fill in their arguments."""
    call, batch = numbers.call(query, key, value, *tensors)
    path, grouped, rank = choice.path_for(call), numbers.grouped, len(batch)
    if path == "plain" or not key.shape[-2]:
        return _nothing
    ready = call.fits if grouped else rank <= 2 and all(x.shape[:-2] == batch for x in (query, key, value))
    joins = path == "llvm" and choice.joins(call)
    if joins:
        call, ready = _joined(call), False
    if grouped or not ready:
        rank = 2
    operands, m = (query, key, value) if ready else call[:3], key.shape[-2]
    execute = choice.executor(path).plan(call, operands, rank)
    if ready and not tensors:
        return execute

    if ready and not grouped:
        own, given = call.tensors.mask, tensors[0]
        assert own is not None is not given
        size, stride, lies = own.size(), own.stride(), own.data_ptr() == given.data_ptr()

        def attend_under_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Results | None:
            # one `as_strided` is faster than several views
            mask = mask.as_strided(size, stride) if lies else four_of_mask(mask, batch, m)
            return execute(query, key, value, mask)

        return attend_under_mask

    def attend_in_four(query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None) -> Results | None:
        shape, d_v = query.shape[-3 if grouped else -2 : -1], value.shape[-1]
        call, _ = numbers.call(query, key, value, *tensors)
        call = _joined(call) if joins else call
        found = execute(*call[:3], *call.tensors)
        if found is None:
            return None
        output, logarithms = found
        output = output.reshape(*batch, *shape, d_v)
        return output, None if logarithms is None else logarithms.reshape(*batch, *shape)

    return attend_in_four


def _joined(call: Call) -> Call:
    """The call with each group's heads, of one query each, as queries of one head."""
    query, key, options, tensors = call.query, call.key, call.options, call.tensors
    (b, heads, _, d), (heads_k, m) = query.shape, key.shape[1:3]
    if options.right is not None:  # the end of the query's window becomes a length
        stops = torch.full((b,), options.right + 1) if tensors.offsets is None else tensors.offsets + options.right + 1
        stops = stops.clamp(max=m) if tensors.lengths is None else torch.minimum(stops, tensors.lengths)
        tensors, options = tensors._replace(lengths=stops), options._replace(right=None)
    query = query.reshape(b, heads_k, heads // heads_k, d)
    return call._replace(query=query, options=options, tensors=tensors)
