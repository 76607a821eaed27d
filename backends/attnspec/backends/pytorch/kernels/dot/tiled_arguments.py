"""Arguments of the tiled kernels: strided operands, padded sizes, scratch memory."""

from collections.abc import Callable
from typing import Generic, NamedTuple

from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import (
    AnyPointer,
    Arguments,
    Flag,
    Kind,
    OptionalIntegers,
    OptionalReals,
    Real,
    Reals,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
from attnspec.backends.pytorch.kernels.llvm.memory import Memory
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, IntPointer, RealPointer, Value

from .tiles import TILE_ROWS, width

KEYS = 64
"""Keys per block."""

UNBOUNDED = 2**30
"""``left`` and ``right`` of an unbounded window: beyond every key, and within 32 bits."""


class Strided(NamedTuple, Generic[AnyPointer]):
    """An operand (b, h, rows, columns): address, and strides of all dimensions but the last."""

    base: AnyPointer
    batch: Value
    head: Value
    row: Value

    def of_head(self, batch: Value, head: Value) -> AnyPointer:
        """Address of the first row of a head."""
        return self.base + (batch * self.batch + head * self.head)


def strided_reader(kind: type[AnyPointer]) -> Callable[[Memory, IntPointer, int], Strided[AnyPointer]]:
    """Return a function that emits loads of four slots: an address and three strides."""

    def read(k: Memory, buffer: IntPointer, first: int) -> Strided[AnyPointer]:
        base, *strides = (k.load_int(buffer, first + i) for i in range(4))
        return Strided(kind(base), *strides)

    return read


def _strided(x: Tensor | None) -> tuple[int, int, int, int]:
    """Address and strides; a dimension of size 1 gets stride 0, so that it broadcasts."""
    if x is None:
        return 0, 0, 0, 0
    (b, h, rows, _), strides = x.shape, x.stride()
    return x.data_ptr(), strides[0] if b > 1 else 0, strides[1] if h > 1 else 0, strides[2] if rows > 1 else 0


class StridedReals(Kind[Tensor, Strided[RealPointer]]):
    """Reals (b, h, rows, columns), with contiguous rows."""

    slots = 4
    to_slots = staticmethod(_strided)
    read = staticmethod(strided_reader(RealPointer))


class OptionalStridedReals(Kind[Tensor | None, Strided[RealPointer]]):
    """Reals (b, h, rows, columns), with contiguous rows, or None."""

    slots = 4
    to_slots = staticmethod(_strided)
    read = staticmethod(strided_reader(RealPointer))


class OptionalStridedBooleans(Kind[Tensor | None, Strided[BytePointer]]):
    """Booleans (b, h, rows, columns), with contiguous rows, or None."""

    slots = 4
    to_slots = staticmethod(_strided)
    read = staticmethod(strided_reader(BytePointer))


class Operands(Arguments):
    """Operands, output and row statistics of a call, for the forward and backward kernels.

    ``group`` heads of queries share a head of keys. ``d_padded`` and ``v_padded`` are d and d_v, `padded`. Query i sees
    keys i − ``left`` + offset to i + ``right`` + offset; either may be `UNBOUNDED`, and ``banded`` is 0 if both are.
    ``lengths`` (b) are numbers of existing keys, ``offsets`` (b) move the window.

    The scale is applied last, in the exponential, as ``log2_scale``, the scale times log₂ e. So cap, slopes and bias
    act on unscaled products: the caller has divided ``cap`` and ``slopes`` by the scale, the kernel multiplies ``bias``
    by ``over_scale`` = 1/scale. ``over_cap`` is 1/``cap``. ``capped`` is 1 if there is a cap, ``adjusts`` if there are
    cap, slopes or bias.

    ``maximum`` (b, h, n) is the largest score of a row before the scale, ``reciprocal`` (b, h, n) is
    1/Σ exp(score − maximum); both are 0 where no key is attendable. ``logarithms`` (b, h, n), if wanted, are −∞ there.
    """

    query_blocks: Size
    heads: Size
    group: Size
    n: Size
    m: Size
    d: Size
    d_v: Size
    d_padded: Size
    v_padded: Size
    banded: Flag
    left: Size
    right: Size
    lengths: OptionalIntegers
    offsets: OptionalIntegers
    adjusts: Flag
    capped: Flag
    cap: Real
    over_cap: Real
    slopes: OptionalReals
    bias: OptionalStridedReals
    over_scale: Real
    scale: Real
    log2_scale: Real
    query: StridedReals
    key: StridedReals
    value: StridedReals
    mask: OptionalStridedBooleans
    output: StridedReals
    maximum: Reals
    reciprocal: Reals
    logarithms: OptionalReals


def padded(columns: int, bits: int) -> int:
    """Columns rounded up to a multiple of a register's lanes and of `TILE_ROWS`."""
    step = max(register_bytes() * 8 // bits, TILE_ROWS)
    return -(-columns // step) * step


def _mask_bits(bits: int) -> int:
    """Reals that hold a mask bit for each of `KEYS` keys and each query. A real has room for ``bits`` bits."""
    return KEYS // bits * width(bits)


def forward_scratch(bits: int, d_padded: Extent, v_padded: Extent) -> tuple[Extent | int, ...]:
    """Scratch reals per thread: transposed queries, scores then weights, transposed output, mask bits."""
    queries = width(bits)
    return d_padded * queries, KEYS * queries, v_padded * queries, _mask_bits(bits)


def backward_scratch(bits: int, d_padded: Extent, v_padded: Extent) -> tuple[Extent | int, ...]:
    """Scratch reals per thread, in the order of `tiled_backward.Scratch`."""
    queries = width(bits)
    of_query, of_value = d_padded * queries, v_padded * queries
    return (
        of_query, of_value,  # queries and gradients of the output, transposed
        of_query, of_value,  # the same as rows
        of_query,  # sums: gradients of the queries
        KEYS * queries, KEYS * queries,  # weights, gradients of the scores
        queries, _mask_bits(bits),  # one number per query, bits of the mask
    )  # fmt: skip
