"""The kernels of the gradients of attention, one after the other."""

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count

from . import backward, pages
from .attention import whole_registers
from .backward import ScoreGradient, ValueGradient, score_gradient_kernel, value_gradient_kernel
from .layout import bits, blocked, finite, padded
from .tiles import CHUNK
from .unit_gradients import UnitGradients

GROUP_BYTES = 2**21


def entries_at_once(n: int, h: int, stride: int, size: int) -> int:
    """For how many entries the gradient of the scores exists at a time, in memory that stays in the cache.

    Its rows (n) have this stride, and its numbers this size in bytes.
    """
    return max(GROUP_BYTES // (n * stride * size), -(-2 * torch.get_num_threads() * backward.UNITS // h), 1)


def of_attendable(gradient: Tensor, weights: Tensor, m: int) -> Tensor:
    """The gradient of the output (entries, n, d) where NaN and infinities of rows without an attendable key are gone.

    From weights (entries, n, stride) of m keys: what is behind them may never have been written.
    """
    return gradient if finite(gradient) else torch.where(weights[..., :m].any(-1, keepdim=True), gradient, 0.0)


def attention_gradients(
    gradient: Tensor, a: Tensor, b: Tensor, w: Tensor, value: Tensor, output: Tensor, weights: Tensor,
    a_index: Tensor, b_index: Tensor, value_index: Tensor, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of a (entries, n, h), b (entries, m, h), w (h) and value (entries, m, d rounded up), by batch entries.

    All are in the dtype of sums: gradient and output (entries, n, d), weights (entries, n, stride), value in whole
    registers and finite. The gradient of a row without an attendable key has no effect, and must be finite.
    """
    entries, n, stride = weights.shape
    m, d = value.shape[1:]
    gradient, output = whole_registers(gradient), whole_registers(output)
    tiles = -(-n // backward.ROWS)
    extent = weights.new_empty(entries, tiles, 2, dtype=torch.int64)
    grad_value = pages.empty(a, entries, m, d)
    group = entries_at_once(n, a.shape[2], stride, a.element_size())
    rows, keys = tiles * backward.ROWS, padded(m, a)
    sizes = value.shape[0] * keys * d, a.numel(), b.shape[0] * keys * b.shape[2], min(group, entries) * rows * stride
    _held, (of_values, of_queries, of_keys, of_scores) = pages.kept_parts("additive gradients", a, sizes)
    value_block = blocked(value, of_values)
    units = UnitGradients(a, b, w, a_index, b_index, (of_queries, of_keys))
    score_grad = of_scores.view(-1, rows, stride)
    # no kernel writes all of it, but what it did not write is read only where some pairs are taken directly
    if units.direct:
        score_grad.numpy()[:] = 0.0
    elif rows > n:
        score_grad.numpy()[:, n:] = 0.0
    query_chunks, key_chunks = -(-n // CHUNK), -(-m // CHUNK)
    of_entries = weights, gradient, value_index, output, extent
    for first in range(0, entries, group):
        count = min(group, entries - first)
        own = of_entries if count == entries else [x[first : first + count] for x in of_entries]
        own_weights, own_gradient, own_index, own_output, own_extent = own
        score_arguments = ScoreGradient(
            tasks=count * query_chunks, chunks=query_chunks, n=n, m=m, stride=stride, d=d,
            causal=causal, weights=own_weights, grad_output=own_gradient, value_block=value_block,
            value_index=own_index, output=own_output, score_grad=score_grad, extent=own_extent,
        )  # fmt: skip
        score_threads = thread_count(count * query_chunks, count * n * m * d)
        run(score_gradient_kernel(bits(a), n == 1), score_threads, score_arguments)
        units.add(first, score_grad[:count], own_extent)
    value_arguments = ValueGradient(
        tasks=entries * key_chunks, chunks=key_chunks, n=n, m=m, stride=stride, d=d, causal=causal, weights=weights,
        grad_output=gradient, grad_value=grad_value,
    )  # fmt: skip
    value_threads = thread_count(entries * key_chunks, entries * n * m * d)
    run(value_gradient_kernel(bits(a)), value_threads, value_arguments)
    grad_a, grad_b = units.projection_gradients()
    return grad_a, grad_b, units.weight_gradient(), grad_value
