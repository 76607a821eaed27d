"""CPU attention by kernels, with one cached plan per kind of call.

Shapes, strides, dtypes and flags determine a plan: argument checks, the choice of kernels (`path_choice`), and their
argument buffers. Later calls of the same kind change only addresses.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot import path_choice
from attnspec.backends.pytorch.kernels.dot.call import Call, Tensors, grouped_call, mask_as_4d, ungrouped_call
from attnspec.backends.pytorch.kernels.dot.differentiable import Attend, Results
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime import forcing
from attnspec.backends.pytorch.runtime.plans import Plans, plan_properties
from attnspec.backends.pytorch.runtime.transforms import any_lazy, fused_allowed, is_unallocated_zeros

# Plans also depend on these; the functions are C++, and called without an attribute look-up.
grad, threads = torch.is_grad_enabled, torch.get_num_threads

_plans: Plans[Attend] = Plans()


class NumericOptions(NamedTuple):
    """Numeric options, as in `call.Options` and `Call`.

    Operands are (*batch, heads, rows, features) if ``grouped``, otherwise (*batch, rows, features).
    """

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
            return ungrouped_call(query, key, value, mask, right is not None, scale, in_layer)
        visible, scoring = Visible(mask, left, right, lengths, offsets), Scoring(scale, softcap, bias, slopes)
        call, batch = grouped_call(query, key, value, visible, scoring)
        return call._replace(options=call.options._replace(wide=wide)), batch


def attend(
    check: Callable[[], Any] | None, options: NumericOptions, query: Tensor, key: Tensor, value: Tensor,
    *tensors: Tensor | None,
) -> Results | None:  # fmt: skip
    """Output, and log Σ exp of a grouped call; None if only the formula is right.

    ``tensors`` are the first fields of `Tensors`, in the caller's shapes. ``check`` raises for mismatched arguments; it
    is called once per kind of call.
    """
    plan, kind = None, None
    try:
        kind = (
            options, grad(), threads(), fused_allowed(), forcing.chosen, plan_properties(query), plan_properties(key),
            plan_properties(value), query.stride(), key.stride(), value.stride(),
            *((plan_properties(x), None if x is None else x.stride()) for x in tensors),
        )  # fmt: skip
        plan = _plans.get(kind)
    except (AttributeError, TypeError, RuntimeError):  # not a dense tensor: `check` refuses it, or it runs uncached
        kind = None
    if plan is None and check is not None:
        check()
    present = [x for x in tensors if x is not None] if tensors else ()
    if any_lazy(query, key, value, *present):
        return attend(None, options, *map(_with_memory, (query, key, value)), *map(_with_memory, tensors))
    if plan is None:
        plan = _make_plan(options, query, key, value, *tensors)
        if kind is not None:
            _plans.remember(kind, plan)
    return plan(query, key, value, *tensors)


def _with_memory(x: Any) -> Any:
    """x without lazy negation; zeros without memory, which PyTorch's fused kernel misreads, get memory."""
    return x if x is None else x.clone() if is_unallocated_zeros(x) else x.resolve_neg()


def _leave_to_formula(*arguments: Tensor | None) -> None:
    return None


def _make_plan(options: NumericOptions, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None) -> Attend:
    """Choose the kernels for calls of this kind and fill in their arguments.

    If ``unchanged``, the executor gets the caller's operands, with ``rank`` batch dimensions. Else it gets those of
    `Call`, (b, heads, n, d): the returned function reshapes the operands of each call, and its result back.
    """
    call, batch = options.call(query, key, value, *tensors)
    path, grouped, rank = path_choice.path_for(call), options.grouped, len(batch)
    if path == "plain" or not key.shape[-2]:
        return _leave_to_formula
    unchanged = call.is_4d if grouped else rank <= 2 and all(x.shape[:-2] == batch for x in (query, key, value))
    merges_heads = path == "llvm" and path_choice.merges_heads(call)
    if merges_heads:
        call, unchanged = _merge_heads(call), False
    if grouped or not unchanged:
        rank = 2
    operands, m = (query, key, value) if unchanged else call[:3], key.shape[-2]
    execute = path_choice.executor(path).plan(call, operands, rank)
    if unchanged and not tensors:
        return execute

    if unchanged and not grouped:  # then the mask is the only tensor
        reshaped, original = call.tensors.mask, tensors[0]
        # for mypy: without a mask, callers pass no tensors
        assert reshaped is not None
        assert original is not None
        size, stride, in_place = reshaped.size(), reshaped.stride(), reshaped.data_ptr() == original.data_ptr()

        def attend_under_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Results | None:
            # one `as_strided` is faster than several views
            mask = mask.as_strided(size, stride) if in_place else mask_as_4d(mask, batch, m)
            return execute(query, key, value, mask)

        return attend_under_mask

    def attend_in_4d(query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None) -> Results | None:
        shape, d_v = query.shape[-3 if grouped else -2 : -1], value.shape[-1]
        call, _ = options.call(query, key, value, *tensors)
        call = _merge_heads(call) if merges_heads else call
        results = execute(*call[:3], *call.tensors)
        if results is None:
            return None
        output, logarithms = results
        output = output.reshape(*batch, *shape, d_v)
        return output, None if logarithms is None else logarithms.reshape(*batch, *shape)

    return attend_in_4d


def _merge_heads(call: Call) -> Call:
    """The call with each group's heads, of one query each, as queries of one head."""
    query, key, options, tensors = call.query, call.key, call.options, call.tensors
    (b, heads, _, d), (heads_k, m) = query.shape, key.shape[1:3]
    if options.right is not None:  # the window ends with a length; `merges_heads` excludes a left end
        ends = torch.full((b,), options.right + 1) if tensors.offsets is None else tensors.offsets + options.right + 1
        ends = ends.clamp(max=m) if tensors.lengths is None else torch.minimum(ends, tensors.lengths)
        tensors, options = tensors._replace(lengths=ends), options._replace(right=None)
    query = query.reshape(b, heads_k, heads // heads_k, d)
    return call._replace(query=query, options=options, tensors=tensors)
