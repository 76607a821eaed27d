"""The kernels of a whole call, in the order in which they run, and the memory that they share.

What differs between calls are addresses: their words are made once for all calls with the same sizes.
"""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.steps import NOTHING, Step, laid_out, scratch, step
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.runtime.plans import plan_class

from . import factors
from .arguments import Attend, Terms, attention_scratch
from .attention import MaskPlaces, MaskRows
from .factors import KeyFactors, QueryFactors
from .forward import attend_kernel
from .layout import EXPONENTIAL_WORK, Weight, bits, blocks, padded, row_stride, score_limits
from .reach import Reach, reach_kernel
from .tiles import CHUNK, key_lanes

INTEGER = 8
"""Bytes."""


@plan_class
class Sizes:
    """Entries of the batch, queries, keys, hidden units and features of values, in whole registers."""

    entries: int
    n: int
    m: int
    h: int
    d: int
    causal: bool
    real: torch.dtype
    index: Tensor
    """The numbers of the entries."""

    @property
    def like(self) -> Tensor:
        """An empty tensor in the dtype of sums."""
        return torch.empty(0, dtype=self.real, device="cpu")


@plan_class
class FactorSteps:
    """The factors of queries and of keys, and where they serve."""

    of_keys: Step
    of_queries: Step
    reach: Step
    sizes: tuple[int, ...]
    """Bytes of what these steps write: factors, flags and largest ones of queries and of keys, clamped blocks."""

    def run(self, a: int, b: int, flip: int, ratio: int, limit: int, written: Sequence[int]) -> tuple[bool, int]:
        """Whether factors serve all pairs, and where it is written which blocks of keys need a clamp: 0 if none does.

        From the addresses of projected queries and keys, of flips, ratios and limits (`Reach`), and of where the steps
        write.
        """
        of_query, query_flag, query_most, of_key, key_flag, key_most, clamped = written
        self.of_keys.run(b, flip, of_key, key_flag, key_most)
        self.of_queries.run(a, flip, ratio, of_query, query_flag, query_most)
        answers = array("q", [0, 0])
        clamps = answers.buffer_info()[0]
        self.reach.run(query_flag, key_flag, query_most, key_most, ratio, limit, clamped, clamps, clamps + INTEGER)
        return not answers[1], clamped if answers[0] else 0


def factor_steps(s: Sizes) -> FactorSteps:
    """For these sizes."""
    like, width = s.like, bits(s.like)
    size, count, rows = like.element_size(), blocks(s.m, like), s.entries * s.n
    key_tasks, query_tasks = s.entries * count, -(-rows // factors.ROWS)
    keys = KeyFactors(
        tasks=key_tasks, m=s.m, h=s.h, raw=NOTHING, flip=NOTHING, factor=NOTHING, flag=NOTHING, maximum=NOTHING
    )  # fmt: skip
    queries = QueryFactors(
        tasks=query_tasks, rows=rows, h=s.h, raw=NOTHING, flip=NOTHING, ratio=NOTHING, factor=NOTHING, flag=NOTHING,
        maximum=NOTHING,
    )  # fmt: skip
    answer = array("q", [0])
    reach = Reach(
        rows=rows, keys=key_tasks * key_lanes(width), query_groups=query_tasks, key_groups=key_tasks, h=s.h,
        query_flag=NOTHING, key_flag=NOTHING, query_maximum=NOTHING, key_maximum=NOTHING, ratio=NOTHING, limit=NOTHING,
        clamped=NOTHING, clamps=answer, direct=answer,
    )  # fmt: skip
    k, q, r = KeyFactors, QueryFactors, Reach
    work = s.h * EXPONENTIAL_WORK
    padded_keys = s.entries * padded(s.m, like)
    return FactorSteps(
        step(
            factors.key_factor_kernel(width), thread_count(key_tasks, s.entries * s.m * work), keys,
            k.raw, k.flip, k.factor, k.flag, k.maximum,
        ),
        step(
            factors.query_factor_kernel(width), thread_count(query_tasks, rows * work), queries,
            q.raw, q.flip, q.ratio, q.factor, q.flag, q.maximum,
        ),
        step(
            reach_kernel(width), 1, reach, r.query_flag, r.key_flag, r.query_maximum, r.key_maximum, r.ratio, r.limit,
            r.clamped, r.clamps, r.direct,
        ),
        (
            size * rows * s.h, size * rows, size * query_tasks * s.h, size * padded_keys * s.h, size * padded_keys,
            size * key_tasks * s.h, INTEGER * key_tasks,
        ),
    )  # fmt: skip


@plan_class
class ForwardSteps:
    """All that follows the projections."""

    factors: FactorSteps
    attend: Step
    mask: MaskPlaces | None
    limit: Tensor
    offsets: tuple[int, ...]
    size: int
    """Bytes of memory."""

    def run(
        self, a: Tensor, b: Tensor, w: Tensor, value: Tensor, mask: MaskRows | None, output: Tensor,
        weights: Tensor | None, memory: Tensor,
    ) -> bool:  # fmt: skip
        """Write the output (entries, n, d), and weights (entries, n, stride) if given.

        False, and neither is written, where factors do not serve all pairs.
        """
        weight, base, of_a = Weight.of(w), memory.data_ptr(), a.data_ptr()
        *written, own = [base + offset for offset in self.offsets]
        ratio = weight.ratio.data_ptr()
        serve, clamped = self.factors.run(
            of_a, b.data_ptr(), weight.flip.data_ptr(), ratio, self.limit.data_ptr(), written
        )
        if not serve:
            return False
        of_query, query_flag, _, of_key, key_flag, _, _ = written
        self.attend.run(
            own, of_query, of_key, ratio, weight.offset.data_ptr(), weight.minus_two_scale.data_ptr(),
            weight.unit.data_ptr(), clamped, of_a, weight.raw.data_ptr(), query_flag, key_flag,
            0 if mask is None else mask.rows.data_ptr(), value.data_ptr(), output.data_ptr(),
            0 if weights is None else weights.data_ptr(),
        )  # fmt: skip
        return True


def forward_steps(s: Sizes, mask: MaskPlaces | None) -> ForwardSteps:
    """For these sizes, and masks that lie there."""
    like, width = s.like, bits(s.like)
    stride, single = row_stride(s.m, like), s.n == 1 and not s.causal  # the backward takes causal queries by chunks
    rows = 1 if single else CHUNK
    chunks = -(-s.n // rows)
    tasks = s.entries * chunks
    threads = thread_count(tasks, s.entries * s.n * s.m * (s.h + s.d))
    numbers = sum(attention_scratch(width, rows, stride, s.d))
    terms = Terms(
        query_factor=NOTHING, key_factor=NOTHING, ratio=NOTHING, offset=NOTHING, minus_two_scale=NOTHING, unit=NOTHING,
        clamp_tiles=None, direct=False, query_raw=NOTHING, key_raw=None, weight=NOTHING, query_flag=NOTHING,
        key_flag=NOTHING,
    )  # fmt: skip
    arguments = Attend(
        tasks=tasks, chunks=chunks, n=s.n, m=s.m, h=s.h, causal=s.causal, stride=stride,
        scratch=scratch(threads, numbers, s.real), a_index=s.index, b_index=s.index, terms=terms, mask=None,
        mask_index=None if mask is None else mask.index, mask_row=0 if mask is None else mask.step,
        value_index=s.index, value=NOTHING, d=s.d, output=NOTHING, weights=None,
    )  # fmt: skip
    g, t, first = Attend, Terms, Attend.terms
    of_factors = factor_steps(s)
    offsets, size = laid_out([*of_factors.sizes, like.element_size() * threads * numbers])
    attend = step(
        attend_kernel(width, single), threads, arguments, g.scratch, first + t.query_factor, first + t.key_factor,
        first + t.ratio, first + t.offset, first + t.minus_two_scale, first + t.unit, first + t.clamp_tiles,
        first + t.query_raw, first + t.weight, first + t.query_flag, first + t.key_flag, g.mask, g.value, g.output,
        g.weights,
    )  # fmt: skip
    return ForwardSteps(of_factors, attend, mask, score_limits(s.h, s.real), offsets, size)
