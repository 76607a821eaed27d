"""Pointwise kernels of additive attention for few terms: forward and backward, one tanh per term.

The factors of `scores` cost a pass over queries and keys and range checks. If a query or key meets few others, that
takes longer than the exponentials it saves. Here hidden units lie in the lanes, so nothing is transposed or padded: a
and b are read as the projections wrote them.

    e = exp 2(a+b) of a projected query a and key b,  r = 1/(1+e),  tanh(a+b) = 1 - 2r,  1 - tanh² = 4er²

Two units of a key share a division; no result depends on another query or key. A task of the backward owns a batch
entry, so that the order of every sum is fixed.
"""

from collections.abc import Sequence

from attnspec.backends.pytorch.kernels.llvm.arguments import (
    Arguments,
    Bytes,
    Flag,
    OptionalBooleans,
    OptionalReals,
    Reals,
    Result,
    Scratch,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS
from attnspec.backends.pytorch.kernels.llvm.registers import (
    groups,
    load,
    load_stored,
    size_of,
    store,
    store_stored,
    vectors,
)
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp

from .scores import cut_slope

KEYS = 2
"""Keys per tile whose scores are in registers."""
UNITS = 4 if HAS_512_BITS else 2
"""Vectors of hidden units per tile whose gradients are in registers."""
COLUMNS = 4
"""Vectors of a pooled value per tile, in registers."""


class Pointwise(Arguments):
    """Common arguments of both kernels.

    ``a`` (·, n, h), ``b`` (·, m, h), ``value`` (·, m, d) and ``weights`` (entries, n, m) are contiguous; entries of the
    first three are ``…_entry`` elements apart, 0 if all share one. With ``causal``, query i sees only keys up to i.
    Values may be of a half dtype.
    """

    tasks: Size
    n: Size
    m: Size
    h: Size
    d: Size
    a_entry: Size
    b_entry: Size
    value_entry: Size
    causal: Flag
    scratch: Scratch
    a: Reals
    b: Reals
    w: Reals
    value: Bytes


class Forward(Pointwise):
    """Arguments of `forward_kernel`; a task is a query of an entry.

    ``mask`` has rows of booleans ``mask_row`` apart, entries ``mask_entry`` apart; ``output`` is (entries, n, d).
    ``nan`` becomes 1 if a score or a result is NaN.
    """

    mask: OptionalBooleans
    mask_entry: Size
    mask_row: Size
    output: Reals
    weights: OptionalReals
    nan: Result


class Backward(Pointwise):
    """Arguments of `backward_kernel`; a task is an entry. All ``grad_…`` except ``grad_output`` are written.

    ``grad_b`` and ``grad_value`` may be of a half dtype if there is one query.
    """

    weights: Reals
    grad_output: Reals
    grad_a: Reals
    grad_b: Bytes
    grad_w: Reals
    grad_value: Bytes


def _exponentials(k: Kernel, xs: list[Value]) -> list[Value]:
    """Return e = exp 2x of sums x = a + b."""
    top = k.full(20.0 if k.bits == 32 else 150.0)  # where tanh rounds to 1, and (1 + e)² is finite
    return [exp(k, k.select(x.compare(">", top), top, x) * 2.0) for x in xs]


def _reciprocals(k: Kernel, es: list[Value]) -> list[Value]:
    """Return r = 1/(1 + e) of one or two e, by one division."""
    xs = [e + 1.0 for e in es]
    if len(xs) == 1:
        return [k.full(1.0) / xs[0]]
    both = k.full(1.0) / (xs[0] * xs[1])
    return [both * xs[1], both * xs[0]]


@compiled
def forward_kernel(bits: int, stored: str = "real") -> Kernel[Forward]:
    """Write the output, and weights if their slot is set; ``stored`` is the format of values (`Memory.load_stored`)."""
    k = Kernel("pointwise_forward", Forward, bits)
    g = k.argument
    with k.tasks(g.tasks) as task:
        entry, i = task // g.n, task % g.n
        scores = g.scratch.of(k.thread)
        stop = k.select(g.causal.is_nonzero(), k.minimum(i + 1, g.m), g.m)
        _scores(k, entry, i, stop, scores)
        reciprocal = _softmax(k, entry, i, stop, scores)
        _pool(k, entry, task, stop, scores, reciprocal, stored)

        def save(j: Value, inside: Value | None) -> None:
            # keys after a causal query get 0 even if `reciprocal` is NaN; masked keys would not, but with a mask
            # the path `llvm` computes calls with NaN again
            visible = k.lanes_below(stop - j)
            weight = k.select(visible, k.load_lanes(visible, scores, j) * reciprocal, k.full(0.0))
            store(k, weight, inside, g.weights, task * g.m + j)

        with k.when(g.weights.is_given()):
            vectors(k, g.m, save)
    return k


def _scores(k: Kernel[Forward], entry: Value, i: Value, stop: Value, scores: RealPointer) -> None:
    """Write the scores of a query with its keys up to `stop`."""
    g = k.argument
    a = g.a + (entry * g.a_entry + i * g.h)
    keys = g.b + entry * g.b_entry
    with k.loop(0, stop, KEYS) as j:
        rows = [keys + k.minimum(j + t, stop - 1) * g.h for t in range(KEYS)]
        sums = [Variable(k, k.full(0.0)) for _ in rows]

        # here and below, defaults bind this iteration's variables; a closure would see later ones
        def add(
            units: list[Value], insides: Sequence[Value | None], rows: list[RealPointer] = rows,
            sums: list[Variable] = sums,
        ) -> None:  # fmt: skip
            queries, weights = (
                [load(k, inside, x, u) for inside, u in zip(insides, units, strict=True)] for x in (a, g.w)
            )
            for row, total in zip(rows, sums, strict=True):
                own = [load(k, inside, row, u) for inside, u in zip(insides, units, strict=True)]
                es = _exponentials(k, [x + y for x, y in zip(queries, own, strict=True)])
                for weight, r in zip(weights, _reciprocals(k, es), strict=True):
                    total.set(k.fma(weight, k.fma(r, k.full(-2.0), k.full(1.0)), total.get()))

        groups(k, g.h, 2, add)
        for t, total in enumerate(sums):
            with k.when((j + t).compare("<", stop)):
                k.store_first(k.sum(total.get()), scores, j + t)


def _softmax(k: Kernel[Forward], entry: Value, i: Value, stop: Value, scores: RealPointer) -> Value:
    """Replace scores by exp(score - maximum), 0 where not attendable; return 1 / their sum, 0 without keys.

    If all attendable scores are −∞, they become NaN.
    """
    g = k.argument
    lowest = k.full(float("-inf"))
    maximum, has_nan = Variable(k, lowest), Variable(k, k.integer(0))

    def attendable(j: Value, inside: Value) -> Value:
        attendable_lanes = Variable(k, inside)
        with k.when(g.mask.is_given()):
            attendable_lanes.set(k.load_bytes(g.mask + (entry * g.mask_entry + i * g.mask_row), j, inside))
        return attendable_lanes.get()

    with k.loop(0, stop, k.lanes) as j:
        inside = k.lanes_below(stop - j)
        # scratch memory has room for a whole register after the scores
        score = k.select(inside, k.load(scores, j), lowest)
        has_nan.set(has_nan.get() | k.select(k.any(score.compare("!=", score)), k.integer(1), k.integer(0)))
        score = k.select(attendable(j, inside), score, lowest)
        k.store(score, scores, j)
        maximum.set(k.maximum(score, maximum.get()))  # in this order a NaN score is ignored
    with k.when(has_nan.get().is_nonzero()):
        k.store_int(has_nan.get(), g.nan, 0)
    largest = k.max(maximum.get())
    empty = largest.compare("==", lowest)
    with k.when(k.any(empty)), k.loop(0, stop, k.lanes) as j:
        k.store(k.select(attendable(j, k.lanes_below(stop - j)), k.full(float("nan")), lowest), scores, j)
    largest = k.select(empty, k.full(0.0), largest)
    total = Variable(k, k.full(0.0))
    with k.loop(0, stop, k.lanes) as j:
        weight = exp(k, k.load(scores, j) - largest)
        k.store(weight, scores, j)
        total.add(weight)
    row_sum = k.sum(total.get())
    return k.select(row_sum.compare("==", 0.0), k.full(0.0), k.full(1.0) / row_sum)


def _pool(k: Kernel[Forward], entry: Value, row: Value, stop: Value, weights: RealPointer, scale: Value,
          stored: str) -> None:  # fmt: skip
    """Write the weighted sum of the values, times `scale`, to a row of the output."""
    g = k.argument
    values, output = g.value + entry * g.value_entry * size_of(k, stored), g.output + row * g.d

    def columns(places: list[Value], insides: Sequence[Value | None]) -> None:
        sums = [Variable(k, k.full(0.0)) for _ in places]
        with k.loop(0, stop) as j:
            weight = k.broadcast(weights, j)
            for place, inside, total in zip(places, insides, sums, strict=True):
                value = load_stored(k, inside, values, j * g.d + place, stored)
                total.set(k.fma(weight, value, total.get()))
        for place, inside, total in zip(places, insides, sums, strict=True):
            result = total.get() * scale
            with k.when(k.any(result.compare("!=", result))):
                k.store_int(k.integer(1), g.nan, 0)
            store(k, result, inside, output, place)

    groups(k, g.d, COLUMNS, columns)


@compiled
def backward_kernel(bits: int, stored: str = "real", b_format: str = "real",
                    value_format: str = "real") -> Kernel[Backward]:  # fmt: skip
    """Write gradients of a, b, value, and of w_v per entry.

    Formats are those of `Memory.load_stored`: ``stored`` of values, the others of the gradients of b and values.
    """
    k = Kernel("pointwise_backward", Backward, bits)
    g = k.argument
    with k.tasks(g.tasks) as entry:
        by_b, by_w = g.grad_b + entry * g.m * g.h * size_of(k, b_format), g.grad_w + entry * g.h
        by_value = g.grad_value + entry * g.m * g.d * size_of(k, value_format)
        # clear the sums of keys that the first query does not see
        seen = k.select(g.causal.is_nonzero(), k.integer(1), g.m)
        for target, width, stored_as in ((by_b, g.h, b_format), (by_value, g.d, value_format)):
            first = seen * width

            def clear(
                i: Value, inside: Value | None, target: BytePointer = target, first: Value = first,
                stored_as: str = stored_as,
            ) -> None:  # fmt: skip
                store_stored(k, k.full(0.0), inside, target, first + i, stored_as)

            vectors(k, g.m * width - first, clear)
        of_scores = g.scratch.of(k.thread)
        with k.loop(0, g.n) as i:
            stop = k.select(g.causal.is_nonzero(), k.minimum(i + 1, g.m), g.m)
            _score_gradients(k, entry, i, stop, of_scores, by_value, stored, value_format)
            _unit_gradients(k, entry, i, stop, of_scores, by_b, by_w, b_format)
    return k


def _sum_before(k: Kernel[Backward], i: Value, inside: Value | None, row: BytePointer, place: Value,
                  stored_as: str = "real") -> Value:  # fmt: skip
    """Return the sum over queries before i; 0, without reading memory, for the first or only query."""
    if stored_as != "real":  # sums have a half format only if there is one query
        return k.full(0.0)
    before = k.lanes_below(k.select(i.is_zero(), k.integer(0), k.integer(k.lanes)))
    return load_stored(k, before if inside is None else inside & before, row, place, stored_as)


def _score_gradients(k: Kernel[Backward], entry: Value, i: Value, stop: Value, of_scores: RealPointer,
                     by_value: BytePointer, stored: str, value_format: str) -> None:  # fmt: skip
    """Write gradients of a query's scores; add its part to the gradients of values."""
    g = k.argument
    row = entry * g.n + i
    weights, gradient = g.weights + row * g.m, g.grad_output + row * g.d
    values = g.value + entry * g.value_entry * size_of(k, stored)
    delta = Variable(k, k.full(0.0))
    with k.loop(0, stop) as j:
        weight, total = k.broadcast(weights, j), Variable(k, k.full(0.0))

        def add(c: Value, inside: Value | None, j: Value = j, weight: Value = weight, total: Variable = total) -> None:
            part, place = load(k, inside, gradient, c), j * g.d + c
            total.set(k.fma(part, load_stored(k, inside, values, place, stored), total.get()))
            old = _sum_before(k, i, inside, by_value, place, value_format)
            new = k.select(weight.compare("==", 0.0), old, k.fma(weight, part, old))
            store_stored(k, new, inside, by_value, place, value_format)

        vectors(k, g.d, add)
        of_weight = k.sum(total.get())
        k.store_first(of_weight, of_scores, j)
        is_zero = weight.compare("==", 0.0)
        delta.set(k.select(is_zero, delta.get(), k.fma(weight, of_weight, delta.get())))
    with k.loop(0, stop, k.lanes) as j:
        inside = k.lanes_below(stop - j)
        weight = k.load_lanes(inside, weights, j)
        change = weight * (k.load_lanes(inside, of_scores, j) - delta.get())
        k.store_lanes(k.select(weight.compare("==", 0.0), weight, change), inside, of_scores, j)


def _unit_gradients(k: Kernel[Backward], entry: Value, i: Value, stop: Value, of_scores: RealPointer,
                    by_b: BytePointer, by_w: RealPointer, b_format: str) -> None:  # fmt: skip
    """Write a query's gradient of a; add its part to those of b (times w at the last query) and w."""
    g = k.argument
    a, keys = g.a + (entry * g.a_entry + i * g.h), g.b + entry * g.b_entry
    by_a = g.grad_a + (entry * g.n + i) * g.h

    def walk(units: list[Value], insides: Sequence[Value | None]) -> None:
        queries = [load(k, inside, a, u) for inside, u in zip(insides, units, strict=True)]
        of_a = [Variable(k, k.full(0.0)) for _ in units]
        before = BytePointer(by_w.address)
        of_w = [Variable(k, _sum_before(k, i, inside, before, u)) for inside, u in zip(insides, units, strict=True)]
        weights = [load(k, inside, g.w, u) for inside, u in zip(insides, units, strict=True)]
        factors = [k.select(i.compare("==", g.n - 1), weight, k.full(1.0)) for weight in weights]
        with k.loop(0, stop) as j:
            s = k.broadcast(of_scores, j)
            places = [j * g.h + u for u in units]
            own = [load(k, inside, keys, place) for inside, place in zip(insides, places, strict=True)]
            es = _exponentials(k, [x + y for x, y in zip(queries, own, strict=True)])
            reciprocals = [r for c in range(0, len(es), 2) for r in _reciprocals(k, es[c : c + 2])]
            for c, (e, r) in enumerate(zip(es, reciprocals, strict=True)):
                change = s * cut_slope(k, e * r * r * 4.0)  # slopes below the unit roundoff become 0
                of_a[c].add(change)
                of_w[c].set(k.fma(s, k.fma(r, k.full(-2.0), k.full(1.0)), of_w[c].get()))
                old = _sum_before(k, i, insides[c], by_b, places[c], b_format)
                store_stored(k, (old + change) * factors[c], insides[c], by_b, places[c], b_format)
        for c, (inside, u) in enumerate(zip(insides, units, strict=True)):
            store(k, of_a[c].get() * weights[c], inside, by_a, u)
            store(k, of_w[c].get(), inside, by_w, u)

    groups(k, g.h, UNITS, walk)
