"""Plans of the gradients of factorised attention: sequences of kernels, cached by sizes, and their memory."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnspec.backends.pytorch.kernels.llvm.kernel_plan import UNSET, KernelPlan, kernel_plan, offsets_of, unset_scratch
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.runtime.plans import plan_class

from . import backward, huge_pages
from .backward import (
    ScoreGradient,
    UnitGradient,
    ValueGradient,
    WeightGradient,
    score_gradient_kernel,
    unit_gradient_kernel,
    unit_scratch,
    value_gradient_kernel,
    weight_gradient_kernel,
)
from .factors import OUT_OF_RANGE
from .forward_plan import INTEGER, FactorOutputs, FactorPlan, Sizes, block_plan, blocked, cached_by_sizes, factor_plan
from .layout import Weight, bits, padded, row_stride
from .scores import capacity
from .tiles import CHUNK, key_lanes

GROUP_BYTES = 2**21
"""Bytes of score gradients in a group of batch entries: they are written and read while in the cache."""


def entries_per_group(n: int, h: int, stride: int, size: int) -> int:
    """Return the number of batch entries per group, whose score gradients together fit the cache.

    Score gradients have n rows of `stride` elements of `size` bytes. A group has at least two tasks per thread.
    """
    fit_cache, for_threads = GROUP_BYTES // (n * stride * size), -(-2 * torch.get_num_threads() * backward.UNITS // h)
    return max(fit_cache, for_threads, 1)


def _reals(memory: Tensor, begin: int, *shape: int, dtype: torch.dtype) -> Tensor:
    """Return the elements from byte `begin` of the memory on, in this shape."""
    return memory[begin : begin + torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)


@lru_cache(maxsize=64)
def _constants(h: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return ones (h), and per hidden unit the largest 1 + EF without a clamp.

    Ones are the flips and ratios: the gradients use the factors E and F themselves, two units at a time.
    """
    ones = torch.ones(h, dtype=dtype, device="cpu")
    return ones, ones * (capacity(bits(ones), 2) / 2)


def _extent(pairs: Tensor, width: int) -> Tensor:
    """Return each query tile's range of key blocks with a True. `pairs` is (entries, whole n, whole m)."""
    entries, n, stride = pairs.shape
    blocks = stride // width
    tiles = pairs.reshape(entries, n // backward.ROWS, backward.ROWS, blocks, width).any(-1).any(2)
    number = torch.arange(blocks, device=pairs.device)
    low = torch.where(tiles, number, blocks).amin(-1)
    return torch.stack((low, torch.where(tiles, number + 1, 0).amax(-1)), -1).contiguous()


@plan_class
class UnitGradientPlan:
    """Kernels from score gradients to gradients of projected queries, keys and w_v."""

    sizes: Sizes
    factors: FactorPlan
    groups: Mapping[int, KernelPlan]
    """Plans by the number of entries in a group."""
    of_weight: KernelPlan
    indices: tuple[Tensor, Tensor]
    ones: Tensor
    limit: Tensor
    bytes: tuple[int, ...]
    """Sizes of the parts of memory: `FactorOutputs`, then scratch."""


def _unit_plan(s: Sizes, count: int, *, pointwise: bool) -> KernelPlan:
    """Return the plan of a group of `count` entries; ``pointwise`` from a and b instead of factors."""
    stride, chunks = row_stride(s.m, s.like), -(-s.h // backward.UNITS)
    threads = thread_count(count * chunks, count * s.n * s.m * s.h)
    arguments = UnitGradient(
        tasks=count * chunks, chunks=chunks, n=s.n, m=s.m, stride=stride, h=s.h, a_index=UNSET, b_index=UNSET,
        query=UNSET, key=UNSET, weight=UNSET, clamp=False,
        scratch=unset_scratch(threads, sum(unit_scratch(stride)), s.real), score_grad=UNSET, extent=UNSET,
        grad_query=UNSET, grad_key=UNSET, grad_weight=UNSET,
    )  # fmt: skip
    u = UnitGradient
    return kernel_plan(
        unit_gradient_kernel(bits(s.like), pointwise, s.n == 1), threads, arguments, u.a_index, u.b_index, u.query,
        u.key, u.weight, u.clamp, u.scratch, u.score_grad, u.extent, u.grad_query, u.grad_key, u.grad_weight,
    )  # fmt: skip


@cached_by_sizes
def unit_gradient_plan(s: Sizes, group_size: int) -> UnitGradientPlan:
    """Return the plan for sizes `s`, in groups of `group_size` entries."""
    last = s.entries % group_size
    groups = {
        count: _unit_plan(s, count, pointwise=False)
        for count in {min(group_size, s.entries), *([last] if last else [])}
    }
    threads = max(group.threads for group in groups.values())
    arguments = WeightGradient(entries=s.entries, h=s.h, of_entries=UNSET, total=UNSET)
    w, of_factors = WeightGradient, factor_plan(s)
    scratch_bytes = s.real.itemsize * threads * sum(unit_scratch(row_stride(s.m, s.like)))
    return UnitGradientPlan(
        s, of_factors, groups, kernel_plan(weight_gradient_kernel(bits(s.like)), 1, arguments, w.of_entries, w.total),
        s.indices()[:2], *_constants(s.h, s.real), (*of_factors.sizes, scratch_bytes),
    )  # fmt: skip


class UnitGradients:
    """Gradients of a, b and w_v of sum(score_grad * scores), by factors where in range.

    Call `add` for each group of entries, then `finish`.
    """

    def __init__(
        self, plan: UnitGradientPlan, a: Tensor, b: Tensor, weight: Weight, memory: Tensor, offsets: Sequence[int]
    ) -> None:
        """a (entries, n, h), b (entries, m, h): contiguous; ``memory`` has `UnitGradientPlan.bytes` at ``offsets``."""
        self.plan, self.sizes, self.raw, self.weight, s = plan, plan.sizes, (a, b), weight, plan.sizes
        self.memory, self.offsets, base = memory, FactorOutputs(*offsets[:-1]), memory.data_ptr()
        *outputs, self.scratch = [base + offset for offset in offsets]
        written, ones = FactorOutputs(*outputs), plan.ones.data_ptr()
        self.query, self.key = written.query, written.key
        self.pointwise, clamped = plan.factors.run(
            a.data_ptr(), b.data_ptr(), ones, ones, plan.limit.data_ptr(), written
        )
        self.clamp = int(clamped != 0)
        self.of_a, self.of_b = a.new_empty(s.entries, s.n, s.h), huge_pages.empty(a, s.entries, s.m, s.h)
        self.of_w = a.new_empty(s.entries, s.h)

    def add(self, first: int, score_grad: Tensor, extent: int) -> None:
        """Compute the entries from ``first`` on; score_grad is (entries, n in whole tiles, stride).

        ``extent`` is the address of (entries, tiles, 2): each tile's range of key blocks where score_grad is not 0.
        Outside these ranges score_grad must be finite if some pairs cannot use factors.
        """
        count, s = len(score_grad), self.sizes
        by_factors = self.plan.groups[count]
        if not self.pointwise:
            self._fill(by_factors, first, self.query, self.key, self.clamp, score_grad, extent)
            return
        # Pairs out of range first, pointwise from a and b; then the others by factors; then the sums of both. Each run
        # takes score gradients that are 0 for the other run's pairs.
        padded_keys, (a_index, b_index) = padded(s.m, s.like), self.plan.indices
        query_flags = _reals(self.memory, self.offsets.query_flag, s.a_batch.numel(), s.n, dtype=s.real)
        key_flags = _reals(self.memory, self.offsets.key_flag, s.b_batch.numel(), padded_keys, dtype=s.real)
        key_flags = pad(key_flags, (0, score_grad.shape[2] - padded_keys))
        stop = first + count
        flags = query_flags[a_index[first:stop], :, None] + key_flags[b_index[first:stop], None, :]
        pairs = pad(flags >= OUT_OF_RANGE, (0, 0, 0, score_grad.shape[1] - s.n))
        extent_of_pairs, (a, b) = _extent(pairs, key_lanes(bits(s.like))), self.raw
        masked, keys = torch.where(pairs, score_grad, 0.0), blocked(b)
        self._fill(
            _unit_plan(s, count, pointwise=True), first, a.data_ptr(), keys.data_ptr(), 0, masked,
            extent_of_pairs.data_ptr(),
        )  # fmt: skip
        pointwise_parts = [x[first:stop].clone() for x in (self.of_a, self.of_b, self.of_w)]
        masked = torch.where(pairs, 0.0, score_grad)
        self._fill(by_factors, first, self.query, self.key, self.clamp, masked, extent)
        for gradient, part in zip((self.of_a, self.of_b, self.of_w), pointwise_parts, strict=True):
            gradient[first:stop] += part

    def _fill(self, unit: KernelPlan, first: int, query: int, key: int, clamp: int, score_grad: Tensor,
              extent: int) -> None:  # fmt: skip
        """Run the kernel on factors, or a and b, at the addresses ``query`` and ``key``; it overwrites the entries."""
        s, (a_index, b_index), of_index = self.sizes, self.plan.indices, first * INTEGER
        of_unit = first * s.h * s.real.itemsize
        unit.run(  # in the order of slots in `_unit_plan`
            a_index.data_ptr() + of_index, b_index.data_ptr() + of_index, query, key, self.weight.raw.data_ptr(),
            clamp, self.scratch, score_grad.data_ptr(), extent, self.of_a.data_ptr() + of_unit * s.n,
            self.of_b.data_ptr() + of_unit * s.m, self.of_w.data_ptr() + of_unit,
        )  # fmt: skip

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return da (entries, n, h), db (entries, m, h), and dw_v without its term sum(score_grad).

        Under a softmax that term is 0. Kernels computed with w_v / unit, so da and db are multiplied by the unit.
        """
        of_w, unit = self.of_w.new_empty(self.sizes.h), float(self.weight.unit)
        self.plan.of_weight.run(self.of_w.data_ptr(), of_w.data_ptr())
        return (self.of_a, self.of_b, of_w) if unit == 1.0 else (self.of_a * unit, self.of_b * unit, of_w)


@plan_class
class GradientPlan:
    """Steps of the gradients of projected queries and keys, w_v and values."""

    sizes: Sizes
    units: UnitGradientPlan
    block: KernelPlan
    groups: Mapping[int, KernelPlan]
    """Plans of score gradients, by the number of entries in a group."""
    of_value: KernelPlan
    group_size: int
    tiles: int
    stride: int
    value_index: Tensor
    offsets: tuple[int, ...]
    """Offsets of the parts of memory: `FactorOutputs`, values in blocks, score gradients, extents, scratch."""
    size: int
    """Bytes of memory."""

    def run(
        self, gradient: Tensor, a: Tensor, b: Tensor, w: Tensor, value: Tensor, output: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return gradients of the operands: a (entries, n, h), b (entries, m, h), w (h) and value (entries, m, d).

        All operands are contiguous and in the dtype of sums: gradient and output (entries, n, d), weights (entries, n,
        stride), finite values. The gradient of a row without an attendable key has no effect, but must be finite.
        """
        s, size = self.sizes, a.element_size()
        # `_held` keeps the memory from other calls until the return
        _held, memory = huge_pages.leased_bytes("additive gradients", a, self.size)
        *of_factors, of_block, of_scores, of_extents, of_scratch = self.offsets
        base, index = memory.data_ptr(), self.value_index.data_ptr()
        units = UnitGradients(self.units, a, b, Weight.of(w), memory, (*of_factors, of_scratch))
        self.block.run(value.data_ptr(), base + of_block)
        by_value = huge_pages.empty(a, s.entries, *value.shape[1:])
        rows = self.tiles * backward.ROWS
        scores = _reals(memory, of_scores, min(self.group_size, s.entries), rows, self.stride, dtype=s.real)
        # kernels leave parts unwritten, which are read only if some pairs are computed pointwise
        if units.pointwise:
            scores.numpy()[:] = 0.0
        elif rows > s.n:
            scores.numpy()[:, s.n :] = 0.0
        at_weights, at_gradient, at_output = weights.data_ptr(), gradient.data_ptr(), output.data_ptr()
        for first in range(0, s.entries, self.group_size):
            count = min(self.group_size, s.entries - first)
            features, extents = first * s.n * s.d * size, base + of_extents + first * self.tiles * 2 * INTEGER
            self.groups[count].run(
                at_weights + first * s.n * self.stride * size, at_gradient + features, base + of_block,
                index + first * INTEGER, at_output + features, base + of_scores, extents,
            )  # fmt: skip
            units.add(first, scores[:count], extents)
        self.of_value.run(at_weights, at_gradient, by_value.data_ptr())
        return *units.finish(), by_value


@cached_by_sizes
def gradient_plan(s: Sizes) -> GradientPlan:
    """Return the plan of all gradients for sizes `s`."""
    like = s.like
    size, stride, tiles = like.element_size(), row_stride(s.m, like), -(-s.n // backward.ROWS)
    group_size, values, chunks = entries_per_group(s.n, s.h, stride, size), s.value_batch.numel(), -(-s.m // CHUNK)
    of_value = ValueGradient(
        tasks=s.entries * chunks, chunks=chunks, n=s.n, m=s.m, stride=stride, d=s.d, causal=s.causal, weights=UNSET,
        grad_output=UNSET, grad_value=UNSET,
    )  # fmt: skip
    units, v = unit_gradient_plan(s, group_size), ValueGradient
    *of_factors, of_scratch = units.bytes
    offsets, bytes_of_all = offsets_of([
        *of_factors, size * values * padded(s.m, like) * s.d,
        size * min(group_size, s.entries) * tiles * backward.ROWS * stride, INTEGER * s.entries * tiles * 2, of_scratch,
    ])  # fmt: skip
    return GradientPlan(
        s, units, block_plan(values, s.m, s.d, like), {count: _score_gradient_plan(s, count) for count in units.groups},
        kernel_plan(
            value_gradient_kernel(bits(like)), thread_count(s.entries * chunks, s.entries * s.n * s.m * s.d), of_value,
            v.weights, v.grad_output, v.grad_value,
        ),
        group_size, tiles, stride, s.indices()[2], offsets, bytes_of_all,
    )  # fmt: skip


def _score_gradient_plan(s: Sizes, count: int) -> KernelPlan:
    stride, chunks = row_stride(s.m, s.like), -(-s.n // CHUNK)
    arguments = ScoreGradient(
        tasks=count * chunks, chunks=chunks, n=s.n, m=s.m, stride=stride, d=s.d, causal=s.causal, weights=UNSET,
        grad_output=UNSET, value_block=UNSET, value_index=UNSET, output=UNSET, score_grad=UNSET,
        extent=UNSET,
    )  # fmt: skip
    g = ScoreGradient
    return kernel_plan(
        score_gradient_kernel(bits(s.like), s.n == 1), thread_count(count * chunks, count * s.n * s.m * s.d), arguments,
        g.weights, g.grad_output, g.value_block, g.value_index, g.output, g.score_grad, g.extent,
    )  # fmt: skip
