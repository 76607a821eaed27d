"""Reads of keys and values by the decode kernel: scores, and weighted sums of values.

Rows are read in order, each from its first column to its last. Reading a key prefetches its value, and reading a value
prefetches the key one block later: both are then read at nearly the rate of one contiguous array.
"""

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import interleaved, sums_of_lanes

from .decode_arguments import PAIRS, Decode

SUMS = 16 if HAS_512_BITS else 8
"""Vectors of output columns summed together, over all outputs."""

COLUMNS = {8: (8, 4, 1), 4: (4, 1), 2: (2, 1)}
"""Vectors of columns per output, largest first, by the largest number that registers hold."""

COLUMNS_OF_PAIRS = (8, 4, 2)
"""`COLUMNS` for values that are read in pairs of keys."""


def outputs_at_once(stored: str, members: int) -> int:
    """Number of outputs summed together, of ``members`` heads that share keys.

    With few registers, half dtypes are widened once for all heads, a few columns at a time.
    """
    if HAS_512_BITS:
        return min(2, members)
    return 1 if stored == "real" else members


class KeyRows:
    """``count`` keys and values of one page, and the next keys' address to prefetch."""

    def __init__(self, k: Kernel[Decode], stored: str, key: BytePointer, value: BytePointer, next_key: BytePointer,
                 count: Value) -> None:  # fmt: skip
        self.k, self.stored, self.key, self.value, self.next_key, self.count = k, stored, key, value, next_key, count
        self.bytes = k.size if stored == "real" else 2

    def scores(self, queries: list[RealPointer], first: Value, partial: RealPointer) -> Value:
        """Scores of ``queries`` with the keys from ``first`` on, those of a query adjacent.

        Keys past the last repeat it. ``partial`` holds a vector for each score.
        """
        k, g = self.k, self.k.argument
        segment = k.lanes // len(queries)
        pairs = self.stored == PAIRS
        stored, add, elements = ("real", k.add_products_of_pairs, g.d // 2) if pairs else (self.stored, k.fma, g.d)
        size = k.size if pairs else self.bytes
        with k.loop(0, k.integer(segment)) as r:
            row = self.key + k.minimum(first + r, self.count - 1) * g.key.row
            ahead = self.value + k.minimum(first + r, self.count - 1) * g.value.row
            sums = [Variable(k, k.full(0.0)) for _ in queries]
            with k.loop(0, elements, k.lanes) as column:
                key = k.load_stored(row, column * size, stored)
                k.prefetch(ahead, column * size)
                for query, total in zip(queries, sums, strict=True):
                    total.set(add(key, k.load(query, column), total.get()))
            for i, total in enumerate(sums):
                k.store(total.get(), partial, (r + i * segment) * k.lanes)
        return sums_of_lanes(k, [k.load(partial, i * k.lanes) for i in range(k.lanes)])

    def pool(self, weights: RealPointer, shrink: RealPointer, outputs: list[RealPointer], segment: int) -> None:
        """output = shrink*output + the sum over keys of weight*value, for each output.

        ``shrink`` rescales the sums over earlier blocks of keys to the new row maximum.
        """
        k, g = self.k, self.k.argument
        begin = k.integer(0)
        for vectors in COLUMNS[min(8, SUMS // len(outputs))]:
            wide = vectors * k.lanes
            end = begin + (g.d_v - begin) // wide * wide
            with k.loop(begin, end, wide) as column:
                places = [column + c * k.lanes for c in range(vectors)]
                sums = self._rescaled(outputs, places, shrink, segment)
                with k.loop(0, self.count) as key:
                    row = self.value + key * g.value.row
                    loaded = [k.load_stored(row, place * self.bytes, self.stored) for place in places]
                    for place in places:
                        k.prefetch(self.next_key + key * g.key.row, place * self.bytes)
                    # a register holds the weights of ``segment`` keys, those of each output adjacent
                    at = key // segment * k.lanes + key % segment
                    for i, totals in enumerate(sums):
                        weight = k.broadcast(weights, at + i * segment)
                        for value, total in zip(loaded, totals, strict=True):
                            total.set(k.fma(weight, value, total.get()))
                self._store(sums, outputs, places)
            begin = end

    def pool_pairs(self, parts: tuple[RealPointer, RealPointer], shrink: RealPointer, outputs: list[RealPointer],
                   segment: int) -> None:  # fmt: skip
        """`pool` over pairs of keys, for weights that are sums of two bfloat16 ``parts``.

        In each two vectors of an output, the columns are in the order of `interleaved`.
        """
        k, g = self.k, self.k.argument
        begin, zero = k.integer(0), k.full(0.0)
        for vectors in COLUMNS_OF_PAIRS:
            wide = vectors * k.lanes
            end = begin + (g.d_v - begin) // wide * wide
            with k.loop(begin, end, wide) as column:
                places = [column + c * k.lanes for c in range(vectors)]
                sums = self._rescaled(outputs, places, shrink, segment)
                with k.loop(0, self.count, 2) as key:
                    second = k.minimum(key + 1, self.count - 1)
                    rows = self.value + key * g.value.row, self.value + second * g.value.row
                    loaded: list[Value] = []
                    for place in places[::2]:
                        x, y = (k.load_stored(row, place * self.bytes, "real") for row in rows)
                        # zeros past the last key: repeating it would give NaN if it is infinite
                        loaded.extend(interleaved(k, x, k.select((key + 1).compare("<", self.count), y, zero)))
                        k.prefetch(self.next_key + key * g.key.row, place * self.bytes)
                        k.prefetch(self.next_key + second * g.key.row, place * self.bytes)
                    at = key // segment * k.lanes + key % segment
                    for i, totals in enumerate(sums):
                        for part in parts:
                            weight = k.broadcast(part, (at + i * segment) // 2)
                            for value, total in zip(loaded, totals, strict=True):
                                total.set(k.add_products_of_pairs(weight, value, total.get()))
                self._store(sums, outputs, places)
            begin = end

    def _rescaled(
        self, outputs: list[RealPointer], places: list[Value], shrink: RealPointer, segment: int
    ) -> list[list[Variable]]:
        k = self.k
        return [
            [Variable(k, k.load(output, place) * k.broadcast(shrink, i * segment)) for place in places]
            for i, output in enumerate(outputs)
        ]

    def _store(self, sums: list[list[Variable]], outputs: list[RealPointer], places: list[Value]) -> None:
        for output, totals in zip(outputs, sums, strict=True):
            for place, total in zip(places, totals, strict=True):
                self.k.store(total.get(), output, place)
