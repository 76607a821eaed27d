"""Scaled dot-product attention on the CPU: which kernel, and how to get there.

``flash`` is PyTorch's fused kernel, ``halves`` several calls of it for one causal call, ``blocked`` and ``kept`` are
products over heads, ``math`` is what PyTorch does with empty inputs. The numbers in :func:`kernel` are where the
measured times cross (1, 2 and 4 threads of Zen 4, float32). Where others need the cores too, ``flash`` suffers least:
its threads wait for each other only once. Hence more than two threads always take it, but for long causal calls.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.pytorch.blocked import Kept, blocked
from attnspec.backends.pytorch.call import Call
from attnspec.backends.pytorch.causal_halves import CausalHalves, blocks, fused
from attnspec.backends.pytorch.transforms import transformed

HALF = (torch.bfloat16, torch.float16)
GROUP_FROM = 1 << 21
"""The least work of one call of several, with one thread."""
SHARE = 0.9
"""Keys that remain, at most, where some are left out: numbers of keys that are not round slow products down by 9 %."""


def kernel(call: Call) -> str:
    """``flash``, ``halves``, ``blocked``, ``kept`` or ``math``."""
    query, m = call.query, call.key.shape[-2]
    b, h, n, _ = query.shape
    heads, pairs = b * h, n * m
    total = heads * pairs
    if total == 0:
        return "math"
    if query.dtype in HALF or transformed():
        return "flash"
    threads = torch.get_num_threads()
    if call.causal and call.mask is None and n == m and _halves(call, threads):
        return "halves"
    if call.differentiates():
        # the backward of flash gives every head to one thread; more than two would wait for each other too often
        few = heads < threads and 1 << 18 <= total <= 1 << 19 and not call.causal
        many = heads >= 4 * threads and 1 << 16 <= total <= 1 << 20
        return "kept" if threads <= 2 and (few or many) else "flash"
    short = threads == 2 and heads >= 4 * threads and pairs <= 1 << 14
    return "blocked" if short and total >= 1 << 16 else "flash"


def _halves(call: Call, threads: int) -> bool:
    n, d = call.query.shape[-2:]
    # from 1024 rows on flash leaves enough out, and several threads would wait for each other after every call
    pays = n >= 384 if threads == 1 else 512 <= n < 1024
    return pays and d == call.value.shape[-1] and blocks(n) > 1


def dense(call: Call) -> Tensor:
    """All heads of the call with one kernel."""
    query, key, value, mask, causal, scale, _ = call
    chosen = kernel(call)
    if chosen == "kept" or chosen == "blocked":
        return _by_products(call, keep=chosen == "kept")
    if chosen == "halves":
        return _by_halves(call)
    if mask is not None and causal:
        mask, causal = call.allowed(), False
    d_v = value.shape[-1]
    if chosen == "flash":
        query, key, value = _of_one_width(query, key, value)
    output = F.scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale=scale)
    return output if output.shape[-1] == d_v else output[..., :d_v]


def flash(call: Call) -> tuple[Tensor, Tensor]:
    """All heads with the fused kernel itself, and the logarithms of the sums (b, h, n), which tell of NaN in keys."""
    query, key, value, mask, causal, scale, _ = call
    bias = None
    if mask is not None:
        bias, causal = _bias(call), False
    output, sums = fused(*_of_one_width(query, key, value), 0.0, causal, attn_mask=bias, scale=scale)
    d_v = value.shape[-1]
    return output if output.shape[-1] == d_v else output[..., :d_v], sums


def _bias(call: Call) -> Tensor:
    """0 where a key is allowed, −∞ elsewhere: 1 − 1/x of 1 and 0, which takes a third of the time of choosing."""
    return call.allowed().to(call.query.dtype).reciprocal_().neg_().add_(1)


def _of_one_width(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the fused kernel takes."""
    d, d_v = query.shape[-1], value.shape[-1]
    if d == d_v and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1:
        return query, key, value
    width = max(d, d_v)
    return _fitted(query, width), _fitted(key, width), _fitted(value, width)


def _fitted(x: Tensor, width: int) -> Tensor:
    """Zeros at the end change neither scores nor the columns returned; the fused kernel wants one width, contiguous."""
    if x.shape[-1] < width:
        return F.pad(x, (0, width - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)


def _by_halves(call: Call) -> Tensor:
    b, h, n, d = call.query.shape
    joined = (_fitted(x.reshape(b * h, n, d), d) for x in call[:3])
    output: Tensor = CausalHalves.apply(*joined, call.scale, blocks(n))[0]  # type: ignore[no-untyped-call]
    return output.view(b, h, n, d)


def _by_products(call: Call, *, keep: bool) -> Tensor:
    """Matrix products over heads, with the mask as a bias; a row without keys is opened and zeroed behind them."""
    b, h, n, _ = call.query.shape
    m, d_v = call.value.shape[-2:]
    query, key, value = (x.reshape(b * h, *x.shape[-2:]) for x in call[:3])
    bias = empty = None
    if call.mask is not None or call.causal:
        bias = _bias(call)
        if call.mask is not None:
            empty = bias.amax(-1, keepdim=True) == -torch.inf
            if empty.any():
                bias.masked_fill_(empty, 0)
            else:
                empty = None
        # additions over whole matrices, not over single rows
        bias = bias.expand(*bias.shape[:-2], n, m).contiguous()
    output: Tensor
    if keep:
        output = Kept.apply(query, key, value, bias, h, call.scale)[0]  # type: ignore[no-untyped-call]
    else:
        output = blocked(query, key, value, bias, h, call.scale)
    output = output.view(b, h, n, d_v)
    return output if empty is None else output.masked_fill(empty, 0)


def worth_grouping(call: Call, lengths: tuple[int, ...]) -> bool:
    """Whether one call for each length, without padding, beats one with it: each has fewer heads for the threads."""
    b, h, n, d = call.query.shape
    threads = torch.get_num_threads()
    fills = h >= threads or (not call.differentiates() and h * n >= 64 * threads)
    large = h * n * d * sum(lengths) >= b * group_from()
    return fills and large and sum(lengths) <= SHARE * b * call.key.shape[-2]


def group_from() -> int:
    """Multiply-adds per batch element from which each gets its own call with its own number of keys.

    Threads wait for each other after every call, and each has less to do before.
    """
    return GROUP_FROM * torch.get_num_threads() ** 2


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
