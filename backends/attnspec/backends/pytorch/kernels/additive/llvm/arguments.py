"""Arguments of the kernels of scores and attention."""

from attnspec.backends.pytorch.kernels.llvm.arguments import (
    Arguments,
    Flag,
    Integers,
    OptionalBooleans,
    OptionalIntegers,
    OptionalReals,
    Reals,
    Scratch,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.kernel_plan import CACHE_LINE
from attnspec.backends.pytorch.kernels.llvm.values import Extent


class Terms(Arguments):
    """Inputs of the scores: factors of queries and keys, `layout.Weight`, and flags of factors out of range.

    ``clamp_tiles`` (entries, key blocks) is 1 for the blocks that need a clamp; None if no block does. ``pointwise`` is
    1 if some pairs must be computed from ``query_raw``, ``key_raw`` and ``weight`` instead of factors.
    """

    query_factor: Reals
    key_factor: Reals
    ratio: Reals
    offset: Reals
    minus_two_scale: Reals
    unit: Reals
    clamp_tiles: OptionalIntegers
    pointwise: Flag
    query_raw: Reals
    key_raw: OptionalReals
    weight: Reals
    query_flag: Reals
    key_flag: Reals


class Scoring(Arguments):
    """Common arguments of scores and attention; a task is one of ``chunks`` of query rows per batch entry.

    ``stride`` is the distance between rows of scores; ``a_index`` and ``b_index`` (batches) map each entry of the batch
    to the entry of its queries and of its keys.
    """

    tasks: Size
    chunks: Size
    n: Size
    m: Size
    h: Size
    causal: Flag
    stride: Size
    scratch: Scratch
    a_index: Integers
    b_index: Integers
    terms: Terms


class Scores(Scoring):
    """Arguments of `scores_kernel`; ``output`` is (batches, n, m)."""

    output: Reals


class Attend(Scoring):
    """Arguments of `attend_kernel`.

    ``mask`` holds rows of booleans; a batch entry's rows begin at ``mask_index``, ``mask_row`` bytes apart. ``value``
    is (entries, m, d), d in whole registers; ``output`` is (batches, n, d), ``weights`` (batches, n, stride).
    """

    mask: OptionalBooleans
    mask_index: OptionalIntegers
    mask_row: Size
    value_index: Integers
    value: Reals
    d: Size
    output: Reals
    weights: OptionalReals


def attention_scratch(bits: int, rows: int, stride: Extent, d: Extent | int) -> tuple[Extent | int, ...]:
    """Counts of reals per thread: scores, reciprocals of their sums, pooled values of a single row."""
    line = CACHE_LINE * 8 // bits
    return stride * rows, -(-rows // line) * line, d
