"""Grouped-query attention with log Σ exp and gradients, by the fastest kernel for a call.

On CUDA the kernels are PyTorch's (`cuda_groups`), on the CPU `path_choice` selects them. Where a function here returns
None, the caller computes the formula (`kernels.formula`). Only the formula supports ``torch.compile``, ``torch.func``,
modes, forward mode, numbers that are not finite, and second derivatives.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from attnspec.backends.pytorch.kernels.dot import cached_plans, cuda_groups, path_choice
from attnspec.backends.pytorch.kernels.dot.batches import merge_batch, merge_ints
from attnspec.backends.pytorch.kernels.dot.cached_plans import NumericOptions
from attnspec.backends.pytorch.kernels.dot.call import Call, Options, Tensors, grouped_call
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.transforms import addressable, operations_intercepted

ALL_PAIRS, DEFAULT_SCORING = Visible(), Scoring()


def path_for(query: Tensor, key: Tensor, value: Tensor, visible: Visible = ALL_PAIRS,
             scoring: Scoring = DEFAULT_SCORING) -> str:  # fmt: skip
    """Path name for query (*batch, heads, n, d), key and value (*batch, heads_k, m, d).

    ``decode``, ``small``, ``llvm``, ``pytorch`` or ``plain`` on the CPU, ``enable_gqa``, ``flex`` or ``plain`` on CUDA.
    """
    if operations_intercepted():
        return "plain"
    if not query.is_cpu or forced() == "flex":
        return cuda_groups.path_for(query, key, value, visible, scoring)
    return path_choice.path_for(grouped_call(query, key, value, visible, scoring)[0])


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring,
           check: Callable[[], Any] | None = None) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """Output and log Σ exp; None if only the formula is right. With sinks, which the caller adds, both stay unrounded.

    query (*batch, heads, n, d), key (*batch, heads_k, m, d), value (*batch, heads_k, m, d_v); batches broadcast.
    ``check`` raises for arguments that do not fit together; on the CPU it is called once per kind of call
    (`cached_plans`), to save time.
    """
    # `check` has not run: the query may be no tensor
    on_cpu = isinstance(query, Tensor) and query.is_cpu and forced() != "flex"
    if operations_intercepted() or not on_cpu:
        if check is not None:
            check()
        path = path_for(query, key, value, visible, scoring)
        return None if path == "plain" else cuda_groups.attend(path, query, key, value, visible, scoring)
    mask, left, right, lengths, offsets = visible
    scale, softcap, bias, slopes, sinks = scoring
    tensors = mask, lengths, offsets, slopes, bias  # the order of `Tensors`
    options = NumericOptions(left, right, scale, softcap, grouped=True, wide=sinks is not None)
    option_tensors = () if all(x is None for x in tensors) else tensors
    results = cached_plans.attend(check, options, query, key, value, *option_tensors)
    if results is None:
        return None
    output, logarithms = results
    assert logarithms is not None
    return output, logarithms


def attend_in_pages(query: Tensor, key_pages: Tensor, value_pages: Tensor, table: Tensor, visible: Visible,
                    scoring: Scoring) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """`attend` for one query per head and keys in pages (pages, heads_k, page, d).

    It has no slopes. ``table`` (*batch, blocks) holds the numbers of each sequence's pages.
    """
    empty = not (query.shape[-1] and table.shape[-1])
    if (
        empty
        or scoring.slopes is not None
        or operations_intercepted()
        or not query.is_cpu
        or forced() not in (None, "decode")
    ):
        return None
    _, left, right, lengths, offsets = visible
    assert lengths is not None
    batch = broadcast(query.shape[:-3], table.shape[:-1], lengths.shape)
    scale = query.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    options = Options(scale, left, right, scoring.softcap, logarithms=True, wide=scoring.sinks is not None)
    tensors = Tensors(None, merge_ints(lengths, batch), merge_ints(offsets, batch))
    call = Call(merge_batch(query, batch), key_pages, value_pages, options, tensors)
    if not (path_choice.serves_step(call) and addressable(table)):
        return None
    from attnspec.backends.pytorch.kernels.dot import decode

    table = table.expand(*batch, table.shape[-1]).reshape(batch.numel(), -1).long().contiguous()
    operands = call.query, call.key, call.value
    attend_to_pages = decode.plan(call, operands, rank=2, table=table)
    results = attend_to_pages(*operands, *call.tensors)
    if results is None:
        return None
    output, logarithms = results
    assert logarithms is not None
    return output.reshape(*batch, *output.shape[1:]), logarithms.reshape(*batch, *logarithms.shape[1:])
