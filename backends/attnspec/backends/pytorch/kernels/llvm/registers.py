"""Walks over rows of reals, a register at a time: whole ones are read and written as such, and of the last some lanes.

Some processors take many times as long to write some lanes as to write all, even where these are all.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, RealPointer, Value

Inside: TypeAlias = Value | None
"""Booleans, which lanes there are; None for all."""


def in_registers(numbers: Extent, lanes: int) -> Extent:
    """So many numbers rounded up to whole registers."""
    return (numbers + (lanes - 1)) // lanes * lanes


def size_of(k: Kernel, stored: str) -> int:
    """Bytes of a number that is ``stored`` as `Memory.load_stored` says."""
    return k.size if stored == "real" else 2


def load(k: Kernel, inside: Inside, base: RealPointer, i: Value) -> Value:
    """The lanes that there are, and zeros."""
    return k.load(base, i) if inside is None else k.load_lanes(inside, base, i)


def store(k: Kernel, value: Value, inside: Inside, base: RealPointer, i: Value) -> None:
    """Store the lanes that there are."""
    if inside is None:
        k.store(value, base, i)
    else:
        k.store_lanes(value, inside, base, i)


def load_stored(k: Kernel, inside: Inside, row: BytePointer, i: Value, stored: str) -> Value:
    """The same of the numbers of a row that are ``stored`` so, from a place on."""
    byte = i * size_of(k, stored)
    return k.load_stored(row, byte, stored) if inside is None else k.load_stored_lanes(inside, row, byte, stored)


def store_stored(k: Kernel, value: Value, inside: Inside, row: BytePointer, i: Value, stored: str) -> None:
    """Store the lanes that there are, as numbers that are ``stored`` so."""
    byte = i * size_of(k, stored)
    if inside is None:
        k.store_stored(value, row, byte, stored)
    else:
        k.store_stored_lanes(value, inside, row, byte, stored)


def vectors(k: Kernel, count: Value, body: Callable[[Value, Inside], None]) -> None:
    """The body for each vector of so many reals: its first place, and the lanes that there are."""
    groups(k, count, 1, lambda places, insides: body(places[0], insides[0]))


def groups(k: Kernel, count: Value, together: int, body: Callable[[list[Value], Sequence[Inside]], None]) -> None:
    """The body for so many whole vectors at once, as long as there are as many, then for one at a time."""
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
