"""A whole call of the kernels that share exponentials, with its projections, where neither gradients nor a mask is
asked for: nothing stands between the kernels but what they need."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnspec.backends.pytorch.kernels.dot.regular import inspector
from attnspec.backends.pytorch.kernels.llvm.matmul import planned
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.kept_memory import kept

from . import pages
from .attention import attend as attend_rows
from .attention import whole_registers
from .direct_plan import Operands
from .layout import Factors, Weight, entry_index, padded


def serves(operands: Operands, mask: Tensor | None, batch: torch.Size) -> bool:
    """Whether all operands lie in memory as they are read, none of them empty, each with the whole batch."""
    query, key, value, w_q, w_k, w_v = operands
    whole = all(x.shape[:-2] == batch for x in (query, key, value))
    given = [x for x in (query, key, value, w_q, w_k, w_v) if x is not None]
    lies = len(given) == len(operands) and all(x.is_contiguous() and x.numel() for x in given)
    return mask is None and whole and lies


def plan(operands: Operands, causal: bool, batch: torch.Size) -> Callable[[Operands], Tensor | None]:
    """What gives the output (*batch, n, d_v) in the dtype of the operands; None where a value is not finite."""
    value = operands.value
    entries, d, dtype, index = batch.numel(), value.shape[-1], value.dtype, entry_index(batch, batch)
    h, real, m = operands.w_v.shape[0], widened(value[..., :0]).dtype, value.shape[-2]
    given = operands.query, operands.key
    rows = [x.shape[:-1].numel() for x in given]
    by_query, by_key = (planned(n, h, x.shape[-1], dtype) for n, x in zip(rows, given, strict=True))
    # a and b, and their exponentials
    numbers = [rows[0] * h, rows[1] * h, entries * padded(m, value.new_empty(0, dtype=real)) * h, rows[0] * h]
    are_moderate = inspector((value,))

    def attend(operands: Operands) -> Tensor | None:
        query, key, value, w_q, w_k, w_v = operands
        assert w_q is not None
        assert w_k is not None
        if not ((are_moderate is not None and are_moderate(value)) or bool(value.isfinite().all())):
            return None
        values = whole_registers(widened(value).view(entries, -1, d))
        memory = kept("additive", sum(numbers), real)
        memory = pages.empty(value.new_empty(0, dtype=real), sum(numbers)) if memory is None else memory
        of_a, of_b, of_keys, of_queries = torch.split_with_sizes(memory, numbers)
        a, b = of_a.view(entries, -1, h), of_b.view(entries, -1, h)
        for multiply, x, w, projected in ((by_query, query, w_q, a), (by_key, key, w_k, b)):
            if multiply is None:
                projected.copy_(linear(widened(x), widened(w)).view(projected.shape))
            else:
                multiply(x, w, projected)
        weight = Weight.of(widened(w_v))
        keys = Factors.of_keys(b, weight.flip, memory=of_keys)
        output = attend_rows(a, keys, weight, values, index, index, index, None, causal, None, of_queries)[..., :d]
        return output.to(dtype).contiguous().view(*batch, -1, d)

    return attend
