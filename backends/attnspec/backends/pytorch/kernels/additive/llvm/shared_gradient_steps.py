"""The kernels of the gradients of a whole call, in the order in which they run, and their memory."""

from collections.abc import Mapping

from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.steps import NOTHING, Step, laid_out, scratch, step
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.runtime.plans import plan_class

from . import backward, factors, pages
from .attention_gradients import entries_at_once
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
from .factors import KeyBlocks
from .layout import Weight, bits, blocks, padded, row_stride
from .shared_steps import INTEGER, FactorSteps, Sizes, factor_steps
from .tiles import CHUNK
from .unit_gradients import unit_constants


@plan_class
class GradientSteps:
    """Gradients of projected queries and keys, of the weight and of values."""

    sizes: Sizes
    factors: FactorSteps
    block: Step
    groups: Mapping[int, tuple[Step, Step]]
    """By the number of entries that are taken together: gradients of scores, and those of units."""
    of_value: Step
    of_weight: Step
    together: int
    tiles: int
    stride: int
    ones: Tensor
    limit: Tensor
    offsets: tuple[int, ...]
    size: int
    """Bytes of memory."""

    def run(
        self, gradient: Tensor, a: Tensor, b: Tensor, w: Tensor, value: Tensor, output: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Gradients of a (entries, n, h), b (entries, m, h), w (h) and value (entries, m, d).

        None where factors do not serve all pairs, or the unit of the weight is not 1.
        """
        weight, s = Weight.of(w), self.sizes
        if float(weight.unit) != 1.0:
            return None
        _held, memory = pages.kept_bytes("additive gradients", a, self.size)
        base, ones, size = memory.data_ptr(), self.ones.data_ptr(), a.element_size()
        *written, of_block, of_scores, of_extents, own, of_units = [base + offset for offset in self.offsets]
        serve, clamped = self.factors.run(a.data_ptr(), b.data_ptr(), ones, ones, self.limit.data_ptr(), written)
        if not serve:
            return None
        self.block.run(value.data_ptr(), of_block)
        by_a, by_b, by_w = a.new_empty(a.shape), pages.empty(a, *b.shape), a.new_empty(s.h)
        by_value = pages.empty(a, *value.shape)
        rows, index = self.tiles * backward.ROWS, s.index.data_ptr()
        if rows > s.n:  # no kernel writes them
            begin, numbers = of_scores - base, min(self.together, s.entries) * rows * self.stride
            scores = memory[begin : begin + numbers * size].view(s.real).view(-1, rows, self.stride)
            scores.numpy()[:, s.n :] = 0.0
        at_weights, at_gradient, at_output = weights.data_ptr(), gradient.data_ptr(), output.data_ptr()
        at_a, at_b, at_w = by_a.data_ptr(), by_b.data_ptr(), weight.raw.data_ptr()
        for first in range(0, s.entries, self.together):
            of_score, of_unit = self.groups[min(self.together, s.entries - first)]
            features, of_index = first * s.n * s.d * size, index + first * INTEGER
            extents = of_extents + first * self.tiles * 2 * INTEGER
            of_score.run(
                at_weights + first * s.n * self.stride * size, at_gradient + features, of_block, of_index,
                at_output + features, of_scores, extents,
            )  # fmt: skip
            of_unit.run(
                of_index, of_index, written[0], written[3], at_w, int(clamped != 0), own, of_scores, extents,
                at_a + first * s.n * s.h * size, at_b + first * s.m * s.h * size, of_units + first * s.h * size,
            )  # fmt: skip
        self.of_value.run(at_weights, at_gradient, by_value.data_ptr())
        self.of_weight.run(of_units, by_w.data_ptr())
        return by_a, by_b, by_w, by_value


def gradient_steps(s: Sizes) -> GradientSteps:
    """For these sizes."""
    like, width = s.like, bits(s.like)
    size, stride, entries, tiles = like.element_size(), row_stride(s.m, like), s.entries, -(-s.n // backward.ROWS)
    together = entries_at_once(s.n, s.h, stride, size)
    key_blocks = entries * blocks(s.m, like)
    last = entries % together
    groups = {count: _group(s, count, stride) for count in {min(together, entries), *([last] if last else [])}}
    threads = max(own.threads for _, own in groups.values())
    chunks = -(-s.m // CHUNK)
    of_value = ValueGradient(
        tasks=entries * chunks, chunks=chunks, n=s.n, m=s.m, stride=stride, d=s.d, causal=s.causal, weights=NOTHING,
        grad_output=NOTHING, grad_value=NOTHING,
    )  # fmt: skip
    block = KeyBlocks(tasks=key_blocks, m=s.m, h=s.d, raw=NOTHING, block=NOTHING)
    of_weight = WeightGradient(entries=entries, h=s.h, of_entries=NOTHING, total=NOTHING)
    of_factors = factor_steps(s)
    offsets, bytes_of_all = laid_out([
        *of_factors.sizes, size * entries * padded(s.m, like) * s.d,
        size * min(together, entries) * tiles * backward.ROWS * stride, INTEGER * entries * tiles * 2,
        size * threads * sum(unit_scratch(stride)), size * entries * s.h,
    ])  # fmt: skip
    v, w = ValueGradient, WeightGradient
    return GradientSteps(
        s,
        of_factors,
        step(
            factors.block_kernel(width), thread_count(key_blocks, 2 * entries * s.m * s.d), block,
            KeyBlocks.raw, KeyBlocks.block,
        ),
        groups,
        step(
            value_gradient_kernel(width), thread_count(entries * chunks, entries * s.n * s.m * s.d), of_value,
            v.weights, v.grad_output, v.grad_value,
        ),
        step(weight_gradient_kernel(width), 1, of_weight, w.of_entries, w.total),
        together, tiles, stride, *unit_constants(s.h, s.real), offsets, bytes_of_all,
    )  # fmt: skip


def _group(s: Sizes, count: int, stride: int) -> tuple[Step, Step]:
    """For so many entries: the gradients of scores, and those of units."""
    width = bits(s.like)
    score_chunks, unit_chunks = -(-s.n // CHUNK), -(-s.h // backward.UNITS)
    unit_threads = thread_count(count * unit_chunks, count * s.n * s.m * s.h)
    of_scores = ScoreGradient(
        tasks=count * score_chunks, chunks=score_chunks, n=s.n, m=s.m, stride=stride, d=s.d, causal=s.causal,
        weights=NOTHING, grad_output=NOTHING, value_block=NOTHING, value_index=NOTHING, output=NOTHING,
        score_grad=NOTHING, extent=NOTHING,
    )  # fmt: skip
    of_units = UnitGradient(
        tasks=count * unit_chunks, chunks=unit_chunks, n=s.n, m=s.m, stride=stride, h=s.h, a_index=NOTHING,
        b_index=NOTHING, query=NOTHING, key=NOTHING, weight=NOTHING, clamp=False,
        scratch=scratch(unit_threads, sum(unit_scratch(stride)), s.real), score_grad=NOTHING, extent=NOTHING,
        grad_query=NOTHING, grad_key=NOTHING, grad_weight=NOTHING,
    )  # fmt: skip
    g, u = ScoreGradient, UnitGradient
    return (
        step(
            score_gradient_kernel(width, s.n == 1), thread_count(count * score_chunks, count * s.n * s.m * s.d),
            of_scores, g.weights, g.grad_output, g.value_block, g.value_index, g.output, g.score_grad, g.extent,
        ),
        step(
            unit_gradient_kernel(width, False, s.n == 1), unit_threads, of_units, u.a_index, u.b_index, u.query, u.key,
            u.weight, u.clamp, u.scratch, u.score_grad, u.extent, u.grad_query, u.grad_key, u.grad_weight,
        ),
    )  # fmt: skip
