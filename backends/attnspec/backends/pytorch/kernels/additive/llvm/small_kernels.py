"""Kernels for few rows: all projections of a call, and all of their gradients.

PyTorch's call overhead for one matrix product exceeds the whole time of such a kernel. Half dtypes are widened when
read and rounded when written, in registers.
"""

from collections.abc import Callable

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Bytes, Reals, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, RealPointer, Value, Variable


class Widths(Arguments):
    """Sizes: rows of queries and keys over the batch, their widths, hidden units, elements of the values."""

    queries: Size
    keys: Size
    d_q: Size
    d_k: Size
    h: Size
    values: Size


class Stored(Arguments):
    """Operands, or their gradients, contiguous and in their own dtype."""

    query: Bytes
    key: Bytes
    value: Bytes
    w_q: Bytes
    w_k: Bytes
    w_v: Bytes


class Projection(Arguments):
    """Arguments of `projection_kernel`; it writes a (queries, h), b (keys, h), and widened value and w_v."""

    widths: Widths
    operands: Stored
    a: Reals
    b: Reals
    value: Reals
    w: Reals


class Gradients(Arguments):
    """Arguments of `gradient_kernel`: from gradients ``by_…`` of `Projection`'s outputs, with that of w_v
    (entries, h), to gradients ``results`` of the operands, which are all written."""

    widths: Widths
    entries: Size
    operands: Stored
    by_a: Reals
    by_b: Reals
    by_value: Reals
    by_w: Reals
    results: Stored


class _Rows:
    """Access to rows of the format `stored`, by whole vectors and then single elements."""

    def __init__(self, k: Kernel, stored: str) -> None:
        self.k, self.stored = k, stored
        self.bytes = k.size if stored == "real" else 2

    def walk(self, count: Value, body: Callable[[Value, bool], None]) -> None:
        """Call body(i, single) for each whole vector of `count` elements, then for each remaining element."""
        whole = count // self.k.lanes * self.k.lanes
        with self.k.loop(0, whole, self.k.lanes) as i:
            body(i, False)
        with self.k.loop(whole, count) as i:
            body(i, True)

    def load(self, base: BytePointer, i: Value, single: bool) -> Value:
        """Load the vector, or single element, at element i."""
        load = self.k.load_stored_scalar if single else self.k.load_stored
        return load(base, i * self.bytes, self.stored)

    def store(self, value: Value, base: BytePointer, i: Value, single: bool) -> None:
        """Store the vector, or its first element, at element i."""
        self.k.store_stored(value, base, i * self.bytes, self.stored, lane_0=single)

    def row(self, base: BytePointer, number: Value, width: Value) -> BytePointer:
        return base + number * width * self.bytes


def _load_real(k: Kernel, base: RealPointer, i: Value, single: bool) -> Value:
    return k.broadcast(base, i) if single else k.load(base, i)


@compiled
def projection_kernel(bits: int, stored: str) -> Kernel[Projection]:
    """Write x Wᵀ of queries and keys, and widened value and w_v."""
    k = Kernel("small_projections", Projection, bits)
    g, rows = k.argument, _Rows(k, stored)
    widths, operands = g.widths, g.operands

    def project(x: BytePointer, w: BytePointer, target: RealPointer, count: Value, width: Value) -> None:
        with k.loop(0, count) as r, k.loop(0, widths.h) as u:
            lanes, single = Variable(k, k.full(0.0)), Variable(k, k.full(0.0))
            left, right = rows.row(x, r, width), rows.row(w, u, width)

            def add(i: Value, alone: bool) -> None:
                total = single if alone else lanes
                total.set(k.fma(rows.load(left, i, alone), rows.load(right, i, alone), total.get()))

            rows.walk(width, add)
            k.store_first(k.sum(lanes.get()) + single.get(), target, r * widths.h + u)

    def widen(x: BytePointer, target: RealPointer, count: Value) -> None:
        def copy(i: Value, alone: bool) -> None:
            value = rows.load(x, i, alone)
            if alone:
                k.store_first(value, target, i)
            else:
                k.store(value, target, i)

        rows.walk(count, copy)

    project(operands.query, operands.w_q, g.a, widths.queries, widths.d_q)
    project(operands.key, operands.w_k, g.b, widths.keys, widths.d_k)
    widen(operands.value, g.value, widths.values)
    widen(operands.w_v, g.w, widths.h)
    return k


@compiled
def gradient_kernel(bits: int, stored: str) -> Kernel[Gradients]:
    """Write gradients of all operands, in their dtype; that of w_v is summed over entries."""
    k = Kernel("small_gradients", Gradients, bits)
    g, rows = k.argument, _Rows(k, stored)
    widths, operands, results = g.widths, g.operands, g.results

    def products(count: Value, width: Value, depth: Value, factor: Callable[[Value, Value], Value],
                 other: BytePointer, target: BytePointer) -> None:  # fmt: skip
        """Write target[r, c] = sum over t of factor(r, t) other[t, c]."""
        with k.loop(0, count) as r:

            def column(c: Value, alone: bool) -> None:
                total = Variable(k, k.full(0.0))
                with k.loop(0, depth) as t:
                    loaded = rows.load(rows.row(other, t, width), c, alone)
                    total.set(k.fma(factor(r, t), loaded, total.get()))
                rows.store(total.get(), rows.row(target, r, width), c, alone)

            rows.walk(width, column)

    def project_back(by: RealPointer, x: BytePointer, w: BytePointer, of_x: BytePointer, of_w: BytePointer,
                     count: Value, width: Value) -> None:  # fmt: skip
        products(count, width, widths.h, lambda r, u: k.broadcast(by, r * widths.h + u), w, of_x)
        products(widths.h, width, count, lambda u, r: k.broadcast(by, r * widths.h + u), x, of_w)

    def narrow(i: Value, alone: bool) -> None:
        rows.store(_load_real(k, g.by_value, i, alone), results.value, i, alone)

    def of_unit(u: Value, alone: bool) -> None:
        total = Variable(k, k.full(0.0))
        with k.loop(0, g.entries) as entry:
            total.add(_load_real(k, g.by_w, entry * widths.h + u, alone))
        rows.store(total.get(), results.w_v, u, alone)

    project_back(g.by_a, operands.query, operands.w_q, results.query, results.w_q, widths.queries, widths.d_q)
    project_back(g.by_b, operands.key, operands.w_k, results.key, results.w_k, widths.keys, widths.d_k)
    rows.walk(widths.values, narrow)
    rows.walk(widths.h, of_unit)
    return k
