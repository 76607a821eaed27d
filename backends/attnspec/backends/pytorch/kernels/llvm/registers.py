"""Loops over rows of reals by registers: whole ones, then some lanes of the last.

Some processors take many times as long to write some lanes as to write all, even if the mask covers all.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, RealPointer, Value

Inside: TypeAlias = Value | None
"""Booleans that mark existing lanes; None for all."""


def in_registers(numbers: Extent, lanes: int) -> Extent:
    """``numbers`` rounded up to whole registers."""
    return (numbers + (lanes - 1)) // lanes * lanes


def size_of(k: Kernel, stored: str) -> int:
    """Bytes of a number ``stored`` as in `Memory.load_stored`."""
    return k.size if stored == "real" else 2


def load(k: Kernel, inside: Inside, base: RealPointer, i: Value) -> Value:
    """Load the existing lanes; the others are 0."""
    return k.load(base, i) if inside is None else k.load_lanes(inside, base, i)


def store(k: Kernel, value: Value, inside: Inside, base: RealPointer, i: Value) -> None:
    """Store the existing lanes."""
    if inside is None:
        k.store(value, base, i)
    else:
        k.store_lanes(value, inside, base, i)


def load_stored(k: Kernel, inside: Inside, row: BytePointer, i: Value, stored: str) -> Value:
    """`load` for a row of ``stored`` numbers, from number i on."""
    byte = i * size_of(k, stored)
    return k.load_stored(row, byte, stored) if inside is None else k.load_stored_lanes(inside, row, byte, stored)


def store_stored(k: Kernel, value: Value, inside: Inside, row: BytePointer, i: Value, stored: str) -> None:
    """`store` for a row of ``stored`` numbers, from number i on."""
    byte = i * size_of(k, stored)
    if inside is None:
        k.store_stored(value, row, byte, stored)
    else:
        k.store_stored_lanes(value, inside, row, byte, stored)


def vectors(k: Kernel, count: Value, body: Callable[[Value, Inside], None]) -> None:
    """Call the body for each vector of ``count`` reals: its first index, and the existing lanes."""
    groups(k, count, 1, lambda places, insides: body(places[0], insides[0]))


def groups(k: Kernel, count: Value, together: int, body: Callable[[list[Value], Sequence[Inside]], None]) -> None:
    """Call the body for ``together`` whole vectors at a time, then for single vectors."""
    step = together * k.lanes
    whole = count // step * step
    with k.loop(0, whole, step) as i:
        body([i + c * k.lanes for c in range(together)], [None] * together)
    if together > 1:
        grouped, whole = whole, count // k.lanes * k.lanes
        with k.loop(grouped, whole, k.lanes) as i:
            body([i], [None])
    with k.loop(whole, count, k.lanes) as i:
        body([i], [k.lanes_below(count - i)])
