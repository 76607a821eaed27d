"""Sums of products that stay in registers throughout the inner dimension."""

from collections.abc import Sequence

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS
from attnspec.backends.pytorch.kernels.llvm.memory import Index
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable

STEPS = 1 if HAS_512_BITS else 2
"""Unroll factor of the inner dimension. With fewer registers, loop tests take a larger part of the time."""

Sums = list[list[Variable]]


def zeros(k: Kernel, rows: int, vectors: int) -> Sums:
    """The sums of a tile before any product."""
    return [[Variable(k, k.full(0.0)) for _ in range(vectors)] for _ in range(rows)]


def add_product(k: Kernel, sums: Sums, scalars: Sequence[tuple[RealPointer, int]], step: Index,
                vectors: RealPointer, vector_step: Index, depth: tuple[Index, Value]) -> None:  # fmt: skip
    """sums[r][c] += the sum over t in `depth` of scalars[r][t*step] * vectors[t*vector_step + c-th vector].

    A row of scalars is a pointer and a number of reals to skip; ``depth`` is the first t and the end.
    """
    begin, end = k.constant(depth[0], depth[1]), depth[1]
    # unrolled, rows with a variable step would need an address per row and step, more than there are registers
    few_addresses = isinstance(step, int) or all(base is scalars[0][0] for base, _ in scalars)
    for steps in sorted({STEPS if few_addresses else 1, 1}, reverse=True):
        stop = begin + (end - begin) // steps * steps
        with k.loop(begin, stop, steps) as first:
            for t in (first + i for i in range(steps)):
                loaded = [k.load(vectors, t * vector_step + c * k.lanes) for c in range(len(sums[0]))]
                for (base, offset), row in zip(scalars, sums, strict=True):
                    scalar = k.broadcast(base, t * step + offset)
                    for total, vector in zip(row, loaded, strict=True):
                        total.set(k.fma(scalar, vector, total.get()))
        begin = stop
