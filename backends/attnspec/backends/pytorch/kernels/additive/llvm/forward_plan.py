"""Plans of factorised scores and attention: sequences of kernels, cached by sizes.

A plan computes factors exp(2a) and exp(2b) of queries a and keys b, checks their range, and runs the kernel that uses
them. A flip of -1 negates a hidden unit, so that signs of weights alternate; a ratio is max|w|/w of its weight w.
Argument buffers are filled once for all calls with the same sizes; each call only sets addresses.
"""

from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.kernel_plan import UNSET, KernelPlan, kernel_plan, offsets_of, unset_scratch
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.runtime.plans import REMEMBERED, plan_class

from . import factors, huge_pages
from .arguments import Attend, Scores, Scoring, Terms, attention_scratch
from .factor_range import FactorRange, factor_range_kernel
from .factors import KeyBlocks, KeyFactors, QueryFactors
from .forward import attend_kernel
from .layout import (
    EXPONENTIAL_WORK,
    MaskPlaces,
    Weight,
    address,
    bits,
    blocks,
    entry_index,
    padded,
    row_stride,
    score_limits,
)
from .scores import scores_kernel
from .tiles import CHUNK, key_lanes

P = ParamSpec("P")
S = TypeVar("S")

INTEGER = 8
"""Bytes of an integer."""


class Sizes(NamedTuple):
    """Batch dimensions of the call and of its operands, and sizes; ``d`` is padded to whole registers."""

    batch: torch.Size
    a_batch: torch.Size
    b_batch: torch.Size
    value_batch: torch.Size
    n: int
    m: int
    h: int
    d: int
    causal: bool
    real: torch.dtype

    @property
    def entries(self) -> int:
        """Number of entries of the flattened batch."""
        return self.batch.numel()

    @property
    def like(self) -> Tensor:
        """An empty tensor in the dtype of sums."""
        return torch.empty(0, dtype=self.real, device="cpu")

    def indices(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the entry of queries, keys and values for each entry of the batch."""
        a, b, value = (entry_index(x, self.batch) for x in (self.a_batch, self.b_batch, self.value_batch))
        return a, b, value


def cached_by_sizes(make: Callable[P, S]) -> Callable[P, S]:
    """Cache the results of `make` by its arguments and PyTorch's number of threads."""

    @lru_cache(maxsize=REMEMBERED)
    def cached(threads: int, *arguments: P.args, **options: P.kwargs) -> S:
        return make(*arguments, **options)

    def plan(*arguments: P.args, **options: P.kwargs) -> S:
        return cached(torch.get_num_threads(), *arguments, **options)  # type: ignore[arg-type]  # hashable, as all sizes

    return plan


def key_factor_plan(entries: int, m: int, h: int, like: Tensor) -> KernelPlan:
    """Plan for factors of keys (entries, m, h); run(keys, flips, factors, flags, maxima) takes addresses.

    Flips are those of `Weight`, flags those of `factors.RowFlag`; maxima are the largest factors.
    """
    tasks = entries * blocks(m, like)
    arguments = KeyFactors(tasks=tasks, m=m, h=h, raw=UNSET, flip=UNSET, factor=UNSET, flag=UNSET, maximum=UNSET)
    k = KeyFactors
    return kernel_plan(
        factors.key_factor_kernel(bits(like)), thread_count(tasks, entries * m * h * EXPONENTIAL_WORK), arguments,
        k.raw, k.flip, k.factor, k.flag, k.maximum,
    )  # fmt: skip


def block_plan(entries: int, m: int, columns: int, like: Tensor) -> KernelPlan:
    """Plan for copying rows (entries, m, columns) into key blocks; run(source, target) takes addresses."""
    tasks = entries * blocks(m, like)
    arguments = KeyBlocks(tasks=tasks, m=m, h=columns, raw=UNSET, block=UNSET)
    threads = thread_count(tasks, 2 * entries * m * columns)
    return kernel_plan(factors.block_kernel(bits(like)), threads, arguments, KeyBlocks.raw, KeyBlocks.block)


def blocked(x: Tensor) -> Tensor:
    """Return x (entries, m, columns) as (entries, blocks, columns, keys); padding repeats the last key."""
    entries, m, columns = x.shape
    out = huge_pages.empty(x, entries, blocks(m, x), columns, key_lanes(bits(x)))
    block_plan(entries, m, columns, x).run(x.data_ptr(), out.data_ptr())
    return out


def key_factors(b: Tensor, flip: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return exp(2 flip b) in blocks, flags of keys, and maxima per block and unit; b is (entries, m, h).

    `ScoringPlan.run` can use these for many queries.
    """
    entries, m, h = b.shape
    count, width = blocks(m, b), key_lanes(bits(b))
    factor = huge_pages.empty(b, entries, count, h, width, read_often=True)
    flag, maximum = b.new_empty(entries, count * width), b.new_empty(entries, count, h)
    key_factor_plan(entries, m, h, b).run(*(x.data_ptr() for x in (b, flip, factor, flag, maximum)))
    return factor, flag, maximum


class FactorOutputs(NamedTuple):
    """A number for each output of a `FactorPlan`: its size in bytes, its offset, or its address.

    Factors, flags (`factors.RowFlag`) and maxima of queries and of keys; flags of key blocks that need a clamp.
    """

    query: int
    query_flag: int
    query_maximum: int
    key: int
    key_flag: int
    key_maximum: int
    clamped: int


@plan_class
class FactorPlan:
    """Kernels that compute factors of queries and keys, and check their range."""

    of_keys: KernelPlan | None
    """None if the factors of keys are computed before the call."""
    of_queries: KernelPlan
    check: KernelPlan
    sizes: FactorOutputs

    def run(self, a: int, b: int, flip: int, ratio: int, limit: int, written: FactorOutputs) -> tuple[bool, int]:
        """Write the factors; return whether some pairs cannot use them, and the address of clamp flags or 0.

        Pairs whose factors are out of range are computed pointwise, by tanh. Blocks of keys whose products of factors
        may exceed ``limit`` are computed with a clamp at it (`FactorRange`). All arguments are addresses: projected
        queries ``a`` and keys ``b``; ``flip`` and ``ratio`` per hidden unit (`Weight`); ``written``: the outputs.
        """
        of_query, query_flag, query_maximum, of_key, key_flag, key_maximum, clamped = written
        if self.of_keys is not None:
            self.of_keys.run(b, flip, of_key, key_flag, key_maximum)
        self.of_queries.run(a, flip, ratio, of_query, query_flag, query_maximum)
        any_clamped_and_any_pointwise = array("q", [0, 0])
        start = any_clamped_and_any_pointwise.buffer_info()[0]
        self.check.run(query_flag, key_flag, query_maximum, key_maximum, ratio, limit, clamped, start, start + INTEGER)
        any_clamped, any_pointwise = any_clamped_and_any_pointwise
        return any_pointwise != 0, clamped if any_clamped else 0


def factor_plan(s: Sizes, *, prepared: bool = False) -> FactorPlan:
    """Return the plan of factors for sizes `s`; ``prepared`` if the factors of keys are computed before the call."""
    like, width = s.like, bits(s.like)
    size, entries, rows = like.element_size(), s.b_batch.numel(), s.a_batch.numel() * s.n
    key_blocks, query_tasks, keys = entries * blocks(s.m, like), -(-rows // factors.ROWS), entries * padded(s.m, like)
    queries = QueryFactors(
        tasks=query_tasks, rows=rows, h=s.h, raw=UNSET, flip=UNSET, ratio=UNSET, factor=UNSET, flag=UNSET,
        maximum=UNSET,
    )  # fmt: skip
    unset_result = array("q", [0])  # `run` sets the addresses of both results
    check = FactorRange(
        rows=rows, keys=keys, query_groups=query_tasks, key_groups=key_blocks, h=s.h,
        query_flag=UNSET, key_flag=UNSET, query_maximum=UNSET, key_maximum=UNSET, ratio=UNSET, limit=UNSET,
        clamped=UNSET, clamps=unset_result, pointwise=unset_result,
    )  # fmt: skip
    q, r = QueryFactors, FactorRange
    key_size = 0 if prepared else size
    sizes = FactorOutputs(
        query=size * rows * s.h, query_flag=size * rows, query_maximum=size * query_tasks * s.h,
        key=key_size * keys * s.h, key_flag=key_size * keys, key_maximum=key_size * key_blocks * s.h,
        clamped=INTEGER * key_blocks,
    )  # fmt: skip
    return FactorPlan(
        None if prepared else key_factor_plan(entries, s.m, s.h, like),
        kernel_plan(
            factors.query_factor_kernel(width), thread_count(query_tasks, rows * s.h * EXPONENTIAL_WORK), queries,
            q.raw, q.flip, q.ratio, q.factor, q.flag, q.maximum,
        ),
        kernel_plan(
            factor_range_kernel(width), 1, check, r.query_flag, r.key_flag, r.query_maximum, r.key_maximum, r.ratio,
            r.limit, r.clamped, r.clamps, r.pointwise,
        ),
        sizes,
    )  # fmt: skip


@plan_class
class ScoringPlan:
    """Plan of factors, then of the kernel of scores or attention that uses them."""

    factors: FactorPlan
    kernel: KernelPlan
    mask: MaskPlaces | None
    indices: tuple[Tensor, ...]
    """Referenced to keep them in memory: the plan's argument slots hold their addresses."""
    limit: Tensor
    """`score_limits` of the factors."""
    offsets: tuple[int, ...]
    """Offsets of the parts of memory: `FactorOutputs`, then scratch."""
    size: int
    """Bytes of memory."""

    def run(
        self, a: Tensor, b: Tensor, weight: Weight, memory: Tensor, *others: Tensor | None,
        keys: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Run on a (entries, n, h) and b (entries, m, h), contiguous; ``others`` are the kernel's last arguments.

        ``memory`` has `size` bytes. ``keys`` are the `key_factors` of b, if computed before.
        """
        base, of_a, ratio = memory.data_ptr(), a.data_ptr(), weight.ratio.data_ptr()
        *outputs, scratch = [base + offset for offset in self.offsets]
        written = FactorOutputs(*outputs)
        if keys is not None:
            key, key_flag, key_maximum = keys
            written = written._replace(
                key=key.data_ptr(), key_flag=key_flag.data_ptr(), key_maximum=key_maximum.data_ptr()
            )
        pointwise, clamped = self.factors.run(
            of_a, b.data_ptr(), weight.flip.data_ptr(), ratio, self.limit.data_ptr(), written
        )
        raw = blocked(b) if pointwise else None
        # in the order of `_SCORING`: scratch memory and the fields of `Terms`; then the kernel's last arguments
        self.kernel.run(
            scratch, written.query, written.key, ratio, weight.offset.data_ptr(), weight.minus_two_scale.data_ptr(),
            weight.unit.data_ptr(), clamped, int(pointwise), of_a, address(raw), weight.raw.data_ptr(),
            written.query_flag, written.key_flag, *map(address, others),
        )  # fmt: skip

    def mask_rows(self, mask: Tensor | None) -> Tensor | None:
        """Return the mask as the kernel reads it: keys expanded, contiguous."""
        return None if mask is None or self.mask is None else mask.expand(self.mask.shape).contiguous()


_SCORING = (Scoring.scratch, *range(Scoring.terms, Scoring.terms + Terms.slots))
"""Argument slots that every call fills in: scratch memory, and all of `Terms`."""

_NO_TERMS = Terms(
    query_factor=UNSET, key_factor=UNSET, ratio=UNSET, offset=UNSET, minus_two_scale=UNSET, unit=UNSET,
    clamp_tiles=None, pointwise=False, query_raw=UNSET, key_raw=None, weight=UNSET, query_flag=UNSET,
    key_flag=UNSET,
)  # fmt: skip


@cached_by_sizes
def attention_plan(s: Sizes, mask: torch.Size | None, *, prepared: bool = False) -> ScoringPlan:
    """Return the plan of attention for sizes `s` and a mask of this shape.

    ``others`` of `run` are mask rows or None, finite values (entries, m, d), output (entries, n, d), and weights
    (entries, n, stride) or None.
    """
    like = s.like
    # a causal backward reads weights of a whole chunk of keys, more than the kernel for a single row writes
    stride, single = row_stride(s.m, like), s.n == 1 and not s.causal
    rows = 1 if single else CHUNK
    chunks = -(-s.n // rows)
    tasks, numbers = s.entries * chunks, sum(attention_scratch(bits(like), rows, stride, s.d))
    threads = thread_count(tasks, s.entries * s.n * s.m * (s.h + s.d))
    indices = a_index, b_index, value_index = s.indices()
    mask_rows = None if mask is None else MaskPlaces.of(mask, s.batch, s.n, s.m)
    arguments = Attend(
        tasks=tasks, chunks=chunks, n=s.n, m=s.m, h=s.h, causal=s.causal, stride=stride,
        scratch=unset_scratch(threads, numbers, s.real), a_index=a_index, b_index=b_index, terms=_NO_TERMS, mask=None,
        mask_index=None if mask_rows is None else mask_rows.index, mask_row=0 if mask_rows is None else mask_rows.step,
        value_index=value_index, value=UNSET, d=s.d, output=UNSET, weights=None,
    )  # fmt: skip
    kernel = kernel_plan(
        attend_kernel(bits(like), single), threads, arguments, *_SCORING, Attend.mask, Attend.value, Attend.output,
        Attend.weights,
    )  # fmt: skip
    of_factors = factor_plan(s, prepared=prepared)
    offsets, size = offsets_of([*of_factors.sizes, like.element_size() * threads * numbers])
    return ScoringPlan(of_factors, kernel, mask_rows, indices, score_limits(s.h, s.real), offsets, size)


@cached_by_sizes
def score_plan(s: Sizes) -> ScoringPlan:
    """Return the plan of scores for sizes `s`; ``others`` of `run` is the output (entries, n, m)."""
    like = s.like
    stride, chunks = row_stride(s.m, like), -(-s.n // CHUNK)
    tasks, numbers = s.entries * chunks, sum(attention_scratch(bits(like), CHUNK, stride, 0))
    threads = thread_count(tasks, s.entries * s.n * s.m * s.h)
    indices = a_index, b_index, _ = s.indices()
    arguments = Scores(
        tasks=tasks, chunks=chunks, n=s.n, m=s.m, h=s.h, causal=False, stride=stride,
        scratch=unset_scratch(threads, numbers, s.real), a_index=a_index, b_index=b_index, terms=_NO_TERMS,
        output=UNSET,
    )  # fmt: skip
    kernel = kernel_plan(scores_kernel(bits(like)), threads, arguments, *_SCORING, Scores.output)
    of_factors = factor_plan(s)
    offsets, size = offsets_of([*of_factors.sizes, like.element_size() * threads * numbers])
    return ScoringPlan(of_factors, kernel, None, indices, score_limits(s.h, s.real), offsets, size)
