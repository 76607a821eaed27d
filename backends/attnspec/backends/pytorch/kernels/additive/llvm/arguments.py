"""What the kernels of scores and attention take."""

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
from attnspec.backends.pytorch.kernels.llvm.steps import CACHE_LINE
from attnspec.backends.pytorch.kernels.llvm.values import Extent


class Terms(Arguments):
    """The terms of the scores: factors of queries and keys, `layout.Weight`, and where factors do not serve.

    ``clamp_tiles`` (entries, key blocks) is 1 for the blocks that need a clamp; None if no block does. ``direct`` says
    whether some pairs must be computed from ``query_raw``, ``key_raw`` and ``weight`` themselves.
    """

    query_factor: Reals
    key_factor: Reals
    ratio: Reals
    offset: Reals
    minus_two_scale: Reals
    unit: Reals
    clamp_tiles: OptionalIntegers
    direct: Flag
    query_raw: Reals
    key_raw: OptionalReals
    weight: Reals
    query_flag: Reals
    key_flag: Reals


class Scoring(Arguments):
    """What scores take: tasks are ``chunks`` of query rows of every entry of the batch.

    ``stride`` is the distance of rows of scores; ``a_index`` and ``b_index`` (batches) hold, for each entry of the
    batch, the entry of the queries and of the keys.
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

    ``mask`` holds rows of booleans, those of a batch entry from ``mask_index`` on and ``mask_row`` apart; ``value`` is
    (entries, m, d), d in whole registers; ``output`` is (batches, n, d), ``weights`` (batches, n, stride).
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
    """Reals of a thread: scores, reciprocals of their sums, and for a single row its pooled values."""
    line = CACHE_LINE * 8 // bits
    return stride * rows, -(-rows // line) * line, d
