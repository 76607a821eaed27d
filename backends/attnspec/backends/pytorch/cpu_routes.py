"""Scaled dot-product attention on the CPU: which kernel, and how to get there.

``flash`` is PyTorch's fused kernel, ``blocked`` and ``kept`` are products over heads, ``rows`` over row blocks,
``math`` is what PyTorch does with empty inputs. The numbers in :func:`kernel` are where the measured times cross
(4 × Zen 4, float32 and float64).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.pytorch.blocked import Kept, blocked
from attnspec.backends.pytorch.call import Call
from attnspec.backends.pytorch.causal_rows import CausalRows

HALF = (torch.bfloat16, torch.float16)
GROUP_FROM = 1 << 21
"""Multiply-adds per batch element from which each gets its own call with its own number of keys."""


def kernel(call: Call) -> str:
    """``flash``, ``blocked``, ``kept``, ``rows`` or ``math``."""
    query = call.query
    b, h, n, _ = query.shape
    heads, pairs = b * h, n * call.key.shape[-2]
    total = heads * pairs
    if total == 0:
        return "math"
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or query.dtype in HALF:
        return "flash"
    threads = torch.get_num_threads()
    differentiates = call.differentiates()
    if threads == 1 and call.causal and call.mask is None and 384 <= n <= (2048 if differentiates else 1024):
        return "rows"
    if differentiates:
        if total > 1 << 21:
            return "flash"
        if threads == 1:
            kept = pairs <= 1 << 16 and total >= (1 << 15 if heads >= 8 else 1 << 16) and heads >= 4
        elif heads <= threads:
            kept = total >= 1 << 16 and (heads > 1 or pairs <= 1 << 19)
        else:
            kept = heads >= 2 * threads and pairs <= 25600 and total >= 1 << 15
        return "kept" if kept else "flash"
    if threads == 1:
        return "blocked" if heads >= 64 and pairs <= 1 << 14 else "flash"
    fits = pairs <= (1 << 16 if call.causal else 1 << 18)
    return "blocked" if heads >= threads and fits and total >= 1 << 16 else "flash"


def dense(call: Call) -> Tensor:
    """All heads of the call with one kernel."""
    query, key, value, mask, causal, scale, _ = call
    chosen = kernel(call)
    if chosen == "kept" or chosen == "blocked":
        return _by_products(call, keep=chosen == "kept")
    if chosen == "rows":
        return _by_rows(call)
    if mask is not None and causal:
        mask, causal = call.allowed(), False
    d, d_v = query.shape[-1], value.shape[-1]
    if chosen == "math" or (d == d_v and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1):
        return F.scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale=scale)
    query, key, value = (_fitted(x, max(d, d_v)) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale=scale)[..., :d_v]


def _fitted(x: Tensor, width: int) -> Tensor:
    """Zeros at the end change neither scores nor the columns returned; the fused kernel wants one width, contiguous."""
    if x.shape[-1] < width:
        return F.pad(x, (0, width - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)


def _by_rows(call: Call) -> Tensor:
    b, h, n, _ = call.query.shape
    output: Tensor = CausalRows.apply(*(x.reshape(b * h, *x.shape[-2:]) for x in call[:3]), call.scale)  # type: ignore[no-untyped-call]
    return output.view(b, h, n, -1)


def _by_products(call: Call, *, keep: bool) -> Tensor:
    """Matrix products over heads, with the mask as a bias; a row without keys is opened and zeroed behind them."""
    b, h, n, _ = call.query.shape
    m, d_v = call.value.shape[-2:]
    query, key, value = (x.reshape(b * h, *x.shape[-2:]) for x in call[:3])
    bias = empty = None
    if call.mask is not None or call.causal:
        bias = query.new_zeros(()).where(call.allowed(), -torch.inf)
        if call.mask is not None:
            empty = bias.amax(-1, keepdim=True) == -torch.inf
            if empty.any():
                bias.masked_fill_(empty, 0)
            else:
                empty = None
        rows = bias.shape[-2]
        alike = bias.dim() == 2 or bias.shape[0] * bias.shape[1] == 1
        bias = bias.view(1, rows, m) if alike else bias.expand(b, h, -1, -1).reshape(b * h, rows, m)
    output: Tensor
    if keep:
        output = Kept.apply(query, key, value, bias, call.scale)[0]  # type: ignore[no-untyped-call]
    else:
        output = blocked(query, key, value, bias, call.scale)
    output = output.view(b, h, n, d_v)
    return output if empty is None else output.masked_fill(empty, 0)


def worth_grouping(call: Call, lengths: tuple[int, ...]) -> bool:
    """Whether one call for each length, without padding, beats one with it: each has fewer heads for the threads."""
    b, h, n, d = call.query.shape
    threads = torch.get_num_threads()
    fills = h >= threads or (not call.differentiates() and h * n >= 64 * threads)
    return fills and h * n * d * sum(lengths) >= b * GROUP_FROM and sum(lengths) <= 0.95 * b * call.key.shape[-2]


def grouped(call: Call) -> Tensor:
    """One call for each run of batch elements with the same number of keys."""
    return torch.cat([dense(group) for group in groups(call)])


def groups(call: Call) -> list[Call]:
    """The runs of batch elements with the same number of keys."""
    lengths = call.lengths or ()
    starts = [i for i, length in enumerate(lengths) if not i or length != lengths[i - 1]]
    sizes = [stop - start for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=True)]
    split = (torch.split(x, sizes) for x in (call.query, call.key, call.value))
    parts = zip(starts, *split, strict=True)
    return [Call(q, k, v, None, call.causal, call.scale).first_keys(lengths[i]) for i, q, k, v in parts]
