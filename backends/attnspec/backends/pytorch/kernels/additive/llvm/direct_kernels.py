"""Additive attention of few terms: one kernel forward and one backward, which take every tanh by itself.

Factors of queries and keys, as `scores` has them, cost a pass over both and a plan for what they cannot hold. Where a
query or a key meets few others, that takes longer than the exponentials that they save. Here hidden units lie in the
lanes, so that nothing is transposed or padded either: a and b are read as the products leave them.

    e = exp 2(a+b),  r = 1/(1+e),  tanh(a+b) = 1 - 2r,  1 - tanh² = 4er²

Two units of a key share a division; no result depends on another query or key. A task of the backward owns a batch
entry, so that every sum has one order.
"""

from collections.abc import Callable

from attnspec.backends.pytorch.kernels.llvm.arguments import (
    Arguments,
    Flag,
    OptionalBooleans,
    OptionalReals,
    Reals,
    Result,
    Scratch,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp

KEYS = 2
"""Keys whose scores are in registers at once."""
COLUMNS = 4
"""Vectors of a pooled value that are in registers at once."""


class Direct(Arguments):
    """What both kernels take.

    ``a`` (·, n, h), ``b`` (·, m, h), ``value`` (·, m, d) and ``weights`` (entries, n, m) are contiguous; entries of
    the first three are ``…_entry`` reals apart, 0 where all share one. ``limit`` is whether query i sees keys up to i.
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
    value: Reals


class Forward(Direct):
    """Arguments of `forward_kernel`; a task is a query of an entry.

    ``mask`` has rows of booleans, ``mask_row`` apart, those of entries ``mask_entry``; ``output`` is (entries, n, d).
    ``nan`` becomes 1 where a score or a result is NaN, ``nan_score`` where a score is.
    """

    mask: OptionalBooleans
    mask_entry: Size
    mask_row: Size
    output: Reals
    weights: OptionalReals
    nan: Result


class Backward(Direct):
    """Arguments of `backward_kernel`; a task is an entry. All that begins with ``grad_`` is written, but the first."""

    weights: Reals
    grad_output: Reals
    grad_a: Reals
    grad_b: Reals
    grad_w: Reals
    grad_value: Reals


def _top(k: Kernel) -> float:
    """The largest a + b that counts: beyond, 1 - tanh rounds to 0, and products of two 1 + e are still finite."""
    return 20.0 if k.bits == 32 else 150.0


def _exponentials(k: Kernel, xs: list[Value]) -> list[Value]:
    """e of sums a + b."""
    top = k.full(_top(k))
    return [exp(k, k.select(x.compare(">", top), top, x) * 2.0) for x in xs]


def _reciprocals(k: Kernel, es: list[Value]) -> list[Value]:
    """r of one or two e, by one division."""
    xs = [e + 1.0 for e in es]
    if len(xs) == 1:
        return [k.full(1.0) / xs[0]]
    both = k.full(1.0) / (xs[0] * xs[1])
    return [both * xs[1], both * xs[0]]


def _inside(k: Kernel, count: Value, first: Value) -> Value:
    return k.lanes_below(count - first)


def _in_pairs(k: Kernel[Direct], body: Callable[[Value, int], None]) -> None:
    """The body for the first of two vectors of units, as long as there are two, then for one."""
    h = k.argument.h
    whole = h // (2 * k.lanes) * (2 * k.lanes)
    rest = h - whole
    two = k.select(rest.compare(">", k.lanes), h, whole)
    with k.loop(0, two, 2 * k.lanes) as u:
        body(u, 2)
    with k.loop(two, h, k.lanes) as u:
        body(u, 1)


@compiled
def forward_kernel(bits: int) -> Kernel[Forward]:
    """Output and, on request, weights."""
    k = Kernel("direct_forward", Forward, bits)
    g = k.argument
    with k.tasks(g.tasks) as task:
        entry, i = task // g.n, task % g.n
        scores = g.scratch.of(k.thread)
        stop = k.select(g.causal.is_nonzero(), k.minimum(i + 1, g.m), g.m)
        _scores(k, entry, i, stop, scores)
        reciprocal = _softmax(k, entry, i, stop, scores)
        _pool(k, entry, task, stop, scores, reciprocal)
        with k.when(g.weights.is_given()), k.loop(0, g.m, k.lanes) as j:
            seen = _inside(k, stop, j)
            weight = k.load_lanes(seen, scores, j) * reciprocal
            # an excluded key keeps its 0 in a row that is NaN
            weight = k.select(k.load_lanes(seen, scores, j).compare("==", 0.0), k.full(0.0), weight)
            k.store_lanes(weight, _inside(k, g.m, j), g.weights, task * g.m + j)
    return k


def _scores(k: Kernel[Forward], entry: Value, i: Value, stop: Value, scores: RealPointer) -> None:
    """Scores of a query, its keys up to `stop`."""
    g = k.argument
    a = g.a + (entry * g.a_entry + i * g.h)
    keys = g.b + entry * g.b_entry
    with k.loop(0, stop, KEYS) as j:
        rows = [keys + k.minimum(j + t, stop - 1) * g.h for t in range(KEYS)]
        sums = [Variable(k, k.full(0.0)) for _ in rows]

        def add(first: Value, count: int, rows: list[RealPointer] = rows, sums: list[Variable] = sums) -> None:
            units = [first + c * k.lanes for c in range(count)]
            insides = [_inside(k, g.h, u) for u in units]
            queries, weights = (
                [k.load_lanes(inside, x, u) for inside, u in zip(insides, units, strict=True)] for x in (a, g.w)
            )
            for row, total in zip(rows, sums, strict=True):
                own = [k.load_lanes(inside, row, u) for inside, u in zip(insides, units, strict=True)]
                es = _exponentials(k, [x + y for x, y in zip(queries, own, strict=True)])
                for weight, r in zip(weights, _reciprocals(k, es), strict=True):
                    total.set(k.fma(weight, k.fma(r, k.full(-2.0), k.full(1.0)), total.get()))

        _in_pairs(k, add)
        for t, total in enumerate(sums):
            with k.when((j + t).compare("<", stop)):
                k.store_first(k.sum(total.get()), scores, j + t)


def _softmax(k: Kernel[Forward], entry: Value, i: Value, stop: Value, scores: RealPointer) -> Value:
    """Scores into exp(score - maximum), exactly 0 where not attendable; the reciprocal of their sum, 0 without keys."""
    g = k.argument
    lowest = k.full(float("-inf"))
    maximum, strange = Variable(k, lowest), Variable(k, k.integer(0))
    with k.loop(0, stop, k.lanes) as j:
        inside = _inside(k, stop, j)
        score = k.load_lanes(inside, scores, j)
        strange.set(strange.get() | k.select(k.any(score.compare("!=", score)), k.integer(1), k.integer(0)))
        attendable = Variable(k, inside)
        with k.when(g.mask.is_given()):
            attendable.set(k.load_bytes(g.mask + (entry * g.mask_entry + i * g.mask_row), j, inside))
        score = k.select(attendable.get(), score, lowest)
        k.store_lanes(score, inside, scores, j)
        maximum.set(k.maximum(score, maximum.get()))  # in this order a NaN is passed over
    with k.when(strange.get().is_nonzero()):
        k.store_int(strange.get(), g.nan, 0)
    largest = k.max(maximum.get())
    largest = k.select(largest.compare("==", lowest), k.full(0.0), largest)
    total = Variable(k, k.full(0.0))
    with k.loop(0, stop, k.lanes) as j:
        inside = _inside(k, stop, j)
        weight = exp(k, k.select(inside, k.load_lanes(inside, scores, j), lowest) - largest)
        k.store_lanes(weight, inside, scores, j)
        total.add(weight)
    row_sum = k.sum(total.get())
    return k.select(row_sum.compare("==", 0.0), k.full(0.0), k.full(1.0) / row_sum)


def _pool(k: Kernel[Forward], entry: Value, row: Value, stop: Value, weights: RealPointer, scale: Value) -> None:
    """The weighted sum of the values, times `scale`, into a row of the output."""
    g = k.argument
    values, output = g.value + entry * g.value_entry, g.output + row * g.d

    def columns(first: Value, count: int) -> None:
        insides = [_inside(k, g.d, first + c * k.lanes) for c in range(count)]
        sums = [Variable(k, k.full(0.0)) for _ in range(count)]
        with k.loop(0, stop) as j:
            weight = k.broadcast(weights, j)
            for c, (inside, total) in enumerate(zip(insides, sums, strict=True)):
                total.set(k.fma(weight, k.load_lanes(inside, values, j * g.d + first + c * k.lanes), total.get()))
        for c, (inside, total) in enumerate(zip(insides, sums, strict=True)):
            result = total.get() * scale
            with k.when(k.any(result.compare("!=", result))):
                k.store_int(k.integer(1), g.nan, 0)
            k.store_lanes(result, inside, output, first + c * k.lanes)

    step = COLUMNS * k.lanes
    whole = g.d // step * step
    with k.loop(0, whole, step) as first:
        columns(first, COLUMNS)
    with k.loop(whole, g.d, k.lanes) as first:
        columns(first, 1)


@compiled
def backward_kernel(bits: int) -> Kernel[Backward]:
    """Gradients of a, b, value, and of w_v by entries."""
    k = Kernel("direct_backward", Backward, bits)
    g = k.argument
    with k.tasks(g.tasks) as entry:
        by_b, by_w, by_value = g.grad_b + entry * g.m * g.h, g.grad_w + entry * g.h, g.grad_value + entry * g.m * g.d
        for target, count in ((by_b, g.m * g.h), (by_w, g.h), (by_value, g.m * g.d)):
            with k.loop(0, count, k.lanes) as c:
                k.store_lanes(k.full(0.0), _inside(k, count, c), target, c)
        of_scores = g.scratch.of(k.thread)
        with k.loop(0, g.n) as i:
            stop = k.select(g.causal.is_nonzero(), k.minimum(i + 1, g.m), g.m)
            _score_gradients(k, entry, i, stop, of_scores, by_value)
            _unit_gradients(k, entry, i, stop, of_scores, by_b, by_w)
        with k.loop(0, g.h, k.lanes) as u:
            inside = _inside(k, g.h, u)
            weight = k.load_lanes(inside, g.w, u)
            with k.loop(0, g.m) as j:
                k.store_lanes(k.load_lanes(inside, by_b, j * g.h + u) * weight, inside, by_b, j * g.h + u)
    return k


def _score_gradients(k: Kernel[Backward], entry: Value, i: Value, stop: Value, of_scores: RealPointer,
                     by_value: RealPointer) -> None:  # fmt: skip
    """Gradients of a query's scores; its part of those of the values."""
    g = k.argument
    row = entry * g.n + i
    weights, gradient, values = g.weights + row * g.m, g.grad_output + row * g.d, g.value + entry * g.value_entry
    delta = Variable(k, k.full(0.0))
    with k.loop(0, stop) as j:
        weight, total = k.broadcast(weights, j), Variable(k, k.full(0.0))
        with k.loop(0, g.d, k.lanes) as c:
            inside = _inside(k, g.d, c)
            part = k.load_lanes(inside, gradient, c)
            total.set(k.fma(part, k.load_lanes(inside, values, j * g.d + c), total.get()))
            old = k.load_lanes(inside, by_value, j * g.d + c)
            new = k.select(weight.compare("==", 0.0), old, k.fma(weight, part, old))
            k.store_lanes(new, inside, by_value, j * g.d + c)
        of_weight = k.sum(total.get())
        k.store_first(of_weight, of_scores, j)
        none = weight.compare("==", 0.0)
        delta.set(k.select(none, delta.get(), k.fma(weight, of_weight, delta.get())))
    with k.loop(0, stop, k.lanes) as j:
        inside = _inside(k, stop, j)
        weight = k.load_lanes(inside, weights, j)
        change = weight * (k.load_lanes(inside, of_scores, j) - delta.get())
        k.store_lanes(k.select(weight.compare("==", 0.0), weight, change), inside, of_scores, j)


def _unit_gradients(k: Kernel[Backward], entry: Value, i: Value, stop: Value, of_scores: RealPointer,
                    by_b: RealPointer, by_w: RealPointer) -> None:  # fmt: skip
    """Gradients of a query's a, and its part of those of b (but for the weight) and of the weight."""
    g = k.argument
    a, keys = g.a + (entry * g.a_entry + i * g.h), g.b + entry * g.b_entry
    by_a = g.grad_a + (entry * g.n + i) * g.h

    def walk(first: Value, count: int) -> None:
        units = [first + c * k.lanes for c in range(count)]
        insides = [_inside(k, g.h, u) for u in units]
        queries = [k.load_lanes(inside, a, u) for inside, u in zip(insides, units, strict=True)]
        of_a = [Variable(k, k.full(0.0)) for _ in units]
        of_w = [Variable(k, k.load_lanes(inside, by_w, u)) for inside, u in zip(insides, units, strict=True)]
        with k.loop(0, stop) as j:
            s = k.broadcast(of_scores, j)
            places = [j * g.h + u for u in units]
            own = [k.load_lanes(inside, keys, place) for inside, place in zip(insides, places, strict=True)]
            es = _exponentials(k, [x + y for x, y in zip(queries, own, strict=True)])
            for c, (e, r) in enumerate(zip(es, _reciprocals(k, es), strict=True)):
                change = s * (e * r * r * 4.0)
                of_a[c].add(change)
                of_w[c].set(k.fma(s, k.fma(r, k.full(-2.0), k.full(1.0)), of_w[c].get()))
                old = k.load_lanes(insides[c], by_b, places[c])
                k.store_lanes(old + change, insides[c], by_b, places[c])
        for c, (inside, u) in enumerate(zip(insides, units, strict=True)):
            k.store_lanes(of_a[c].get() * k.load_lanes(inside, g.w, u), inside, by_a, u)
            k.store_lanes(of_w[c].get(), inside, by_w, u)

    _in_pairs(k, walk)
