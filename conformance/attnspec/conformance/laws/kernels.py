"""Checks of the laws of grouped and latent attention, positions, masks and dropout."""

from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import attendable, mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import doubles, sample, together, wide
from attnspec.spec.contract.axes import Axis, Part
from attnspec.spec.contract.law import of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Kind, Leaf
from attnspec.spec.kernels import DocumentMask, SlidingWindowMask
from attnspec.spec.laws import kernels as law

GROUPS = ((1, 4), (4, 1), (2, 3))
"""Heads of the keys, and query heads per key head."""

GREAT_CAP = 2.0**10
"""A cap far above all scores of a sample."""


def alike(subject: Subject, given: Arguments, other: Arguments, what: str) -> None:
    """Demand equal results of two calls, within the sum of both budgets."""

    def budgets() -> Results:
        return together(subject.budgets(given), subject.budgets(other))

    subject.all_match(subject.results(given), doubles(subject.results(other)), budgets, given, what)


def has(subject: Subject, *parts: Part) -> bool:
    """Return whether the backend accepts all these parts of the operation."""
    return all(map(subject.limits.has, map(subject.operation.part, parts)))


def has_window(subject: Subject) -> bool:
    """Return whether the backend accepts windows."""
    return subject.operation.window is not None and subject.limits.has(subject.operation.window)


def with_heads(heads_k: int, group: int, operation: Operation) -> dict[str, int]:
    """The sizes for ``heads_k`` key heads with ``group`` query heads each."""
    (of_keys,), (of_group,) = operation.sizes_of(Axis.HEAD), operation.sizes_of(Axis.GROUP)
    return {of_keys: heads_k, of_group: group}


def operands(operation: Operation) -> tuple[Leaf, Leaf, Leaf]:
    """Queries, keys and values, recognised by width: keys are as wide as queries."""
    (heads,), (group,) = operation.sizes_of(Axis.HEAD), operation.sizes_of(Axis.GROUP)
    query = operation.queries[0]
    first, second = (x for x in operation.floats if heads in x.sizes and group not in x.sizes)
    keys_first = first.core[-1].factors == query.core[-1].factors
    return (query, first, second) if keys_first else (query, second, first)


def logarithms(operation: Operation) -> list[str]:
    """The paths of logarithms of sums of exponentials among the results, if any."""
    return [x.path for x in operation.outputs if x is not operation.leading]


@checks(law.GROUPS, once=True)
def groups(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compute some heads alone: query head r with key head r // group."""
    operation = subject.operation
    (of_keys,), (of_group,) = operation.sizes_of(Axis.HEAD), operation.sizes_of(Axis.GROUP)
    for heads_k, group in GROUPS:
        given = sample(subject, rng, queries=3, keys=5, sizes=with_heads(heads_k, group, operation))
        whole, budgets = doubles(subject.results(given)), subject.budgets(given)
        for r in {0, group - 1, heads_k * group - 1, int(rng.integers(heads_k * group))}:
            changes = {}
            for leaf, x in given.given:
                own = leaf.axes(of_group) or leaf.axes(of_keys)
                if own:
                    chosen = r if of_group in leaf.sizes else r // group
                    changes[leaf.path] = np.take(x, [chosen], axis=own[0])
            alone = given.replaced(changes)
            got = subject.results(alone)
            for leaf in operation.outputs:
                (axis,) = leaf.axes(of_group)
                expected, budget = (np.take(x[leaf.path], [r], axis=axis) for x in (whole, budgets))
                subject.matches(got[leaf.path], expected, 2 * budget, alone, f"head {r} alone, the {leaf.path}")
    return True


@checks(law.CAP, once=True)
def cap(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set caps of 2¹⁰, which moves scores by s³/3c² at most, and of 2⁻⁶⁰."""
    operation = subject.operation
    if not has(subject, Part.CAP, Part.SCALE):
        return False
    path, scale = operation.part(Part.CAP), operation.part(Part.SCALE)
    given = sample(subject, rng, (2,), queries=4, keys=6)
    if operation.mask is not None:
        given = given.with_mask((rng.random(mask_shape(given)) < 0.5) | (np.arange(given.keys_count or 0) == 1))
    great = given.replaced({path: GREAT_CAP})
    query, key, value = (wide(given.array(leaf.path)) for leaf in operands(operation))
    largest = np.sqrt((query**2).sum(-1)).max() * np.sqrt((key**2).sum(-1)).max()
    moved = float(largest) ** 3 / (3 * GREAT_CAP**2)
    budgets = together(subject.budgets(great), subject.budgets(given))
    budgets[operation.leading.path] = budgets[operation.leading.path] + 2 * moved * np.abs(value).max()
    budgets |= {beside: budgets[beside] + moved for beside in logarithms(operation)}
    what = "under a cap that no score comes near,"
    subject.all_match(subject.results(great), doubles(subject.results(given)), budgets, great, what)
    least = given.replaced({path: 2.0**-60})
    alike(subject, least, given.replaced({scale: 0.0}), "under a cap that leaves scores of about 0,")
    return True


@checks(law.BIAS)
def sink(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace the sink by an attendable key of zeros whose bias is the sink."""
    operation = subject.operation
    if not has(subject, Part.SINK, Part.BIAS):
        return False
    path, biased, (query, key, value) = operation.part(Part.SINK), operation.part(Part.BIAS), operands(operation)
    heads, dtype = arguments.array(query.path).shape[-3], arguments.array(query.path).dtype
    given = arguments.plain().replaced({path: subject.exact(rng.standard_normal(heads))})
    m = given.keys_count or 0
    bias = np.zeros((1, 1, m), dtype) if given[biased] is None else given.array(biased)
    column = np.broadcast_to(given.array(path)[:, None, None], (*bias.shape[:-3], heads, bias.shape[-2], 1))
    changes: dict[str, Any] = {path: None}
    changes[biased] = np.concatenate([np.broadcast_to(bias, (*column.shape[:-1], m)), column], axis=-1)
    for leaf in (key, value):
        x = given.array(leaf.path)
        changes[leaf.path] = np.concatenate([x, np.zeros_like(x, shape=(*x.shape[:-2], 1, x.shape[-1]))], axis=-2)
    if given.mask is not None and operation.mask is not None:
        mask = attendable(given)
        changes[operation.mask.path] = np.concatenate([mask, np.ones((*mask.shape[:-1], 1), bool)], axis=-1)
    alike(subject, given, given.replaced(changes), "with sinks,")
    return True


@checks(law.BIAS)
def slopes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace slopes by a bias of −slope·|distance|, for later keys too."""
    operation = subject.operation
    if not has(subject, Part.SLOPES, Part.BIAS):
        return False
    path, biased, (query, _, _) = operation.part(Part.SLOPES), operation.part(Part.BIAS), operands(operation)
    powers = subject.exact(2.0 ** -rng.integers(0, 5, arguments.array(query.path).shape[-3]).astype(float))
    given = arguments.replaced({path: powers, biased: None} | ({operation.flag: False} if operation.flag else {}))
    n, m = given.queries or 0, given.keys_count or 0
    diagonal = np.arange(n)[:, None] + (m - n if subject.semantics.bottom_right else 0)
    distance = np.abs(diagonal - np.arange(m))
    exact = -wide(powers)[:, None, None] * distance
    bias = subject.exact(exact)
    if not np.array_equal(wide(bias), exact):
        return False
    alike(subject, given, given.replaced({path: None, biased: bias}), "with slopes,")
    return True


@checks(law.LOGARITHM, once=True)
def natural_logarithm(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat all keys, which adds log 2; add 1 to all scores by the bias."""
    operation = subject.operation
    if not logarithms(operation):
        return False
    (path,), (query, _, _) = logarithms(operation), operands(operation)
    given = sample(subject, rng, (2,), queries=3, keys=5)
    size = operation.asked or ""
    changed = [(given.along(size, take(np.tile(np.arange(given.size(size)), 2))), np.log(2.0), "of repeated keys,")]
    if has(subject, Part.BIAS):
        one = np.ones((1, 1, 1), given.array(query.path).dtype)
        changed.append((given.replaced({operation.part(Part.BIAS): one}), 1.0, "of scores that are greater by 1,"))
    before, budgets = doubles(subject.results(given)), subject.budgets(given)
    for other, more, what in changed:
        expected = {**before, path: before[path] + more}
        subject.all_match(subject.results(other), expected, together(budgets, subject.budgets(other)), other, what)
    return True


@checks(law.LOGARITHM)
def empty_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Mask some rows, with a sink and without."""
    operation = subject.operation
    if not arguments.queries:
        return False
    mask = attendable(arguments, bottom_right=subject.semantics.bottom_right)
    mask[..., int(rng.integers(arguments.queries)), :] = False
    dead = np.expand_dims(~mask.any(-1), -2)
    masked, path = arguments.with_mask(mask), operation.part(Part.SINK)
    every = (masked, masked.replaced({path: None}))
    cases = [given for given in every if given[path] is not None or subject.semantics.fully_masked == "zero"]
    for given in cases:
        output = subject.call(given)
        empty = np.broadcast_to(dead, output.shape[:-1])
        subject.holds(bool((output[empty] == 0).all()), "a row without keys is not 0", given, got=output)
        if not logarithms(operation):
            continue
        (beside,) = logarithms(operation)
        found = subject.results(given)[beside]
        expected: Numbers = np.full(found.shape, -np.inf)
        budget = np.zeros(found.shape)
        if given[path] is not None:
            expected = np.broadcast_to(wide(given.array(path))[:, None], found.shape)
            budget = subject.budgets(given)[beside]
        right = (wide(found) == expected) | (np.abs(wide(found) - np.maximum(expected, -1e30)) <= budget)
        message = "the logarithm of a row without keys is not that of its sink, or −∞"
        subject.holds(bool(right[empty].all()), message, given, expected=expected, got=found)
    return bool(cases)


# Latent keys ----------------------------------------------------------------------------------------------------------


@checks(law.PLAIN_AND_ABSORBED, once=True)
def plain_and_absorbed(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with both forms in double precision, for more queries than keys and fewer."""
    for queries, keys in ((5, 3), (2, 6)):
        given = sample(subject, rng, (2,), queries=queries, keys=keys, heads=3)
        q, q_r, c, k_r, w_k, w_v = (wide(given.array(leaf.path)) for leaf in given.operation.floats)
        scale = (q.shape[-1] + q_r.shape[-1]) ** -0.5
        heads = q.shape[-3]
        rotated, latent = (np.broadcast_to(x[:, None], (2, heads, *x.shape[1:])) for x in (k_r, c))
        k, v = (latent @ np.swapaxes(w, -1, -2) for w in (w_k, w_v))
        plain = _weights(np.concatenate([q, q_r], -1), np.concatenate([k, rotated], -1), scale) @ v
        absorbed = _weights(np.concatenate([q @ w_k, q_r], -1), np.concatenate([latent, rotated], -1), scale)
        for expected, form in ((plain, "plain"), ((absorbed @ latent) @ np.swapaxes(w_v, -1, -2), "absorbed")):
            title = f"against the {form} form, the result"
            subject.matches(subject.call(given), expected, subject.budget(given), given, title)
    return True


def _weights(query: Numbers, key: Numbers, scale: float) -> Numbers:
    """Softmax of scaled dot products, plainly."""
    scores = scale * (query @ np.swapaxes(key, -1, -2))
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    weights: Numbers = exponentials / exponentials.sum(-1, keepdims=True)
    return weights


# Positions and masks --------------------------------------------------------------------------------------------------


def _positions(subject: Subject) -> str:
    """The argument that holds positions."""
    return next(iter(subject.operation.drawn))


@checks(law.ROTATION)
def rotation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check squared lengths of rows, rows at position 0, and a shift of all positions."""
    ((_, rows),) = arguments.floats
    x, got, budget = wide(rows), wide(subject.call(arguments)), subject.budget(arguments)
    if not got.size:
        return False
    slack = (2 * np.abs(got) * budget + budget**2).sum(-1)
    expected = (np.broadcast_to(x, got.shape) ** 2).sum(-1)
    subject.matches((got**2).sum(-1), expected, slack, arguments, "the squared length of row")
    if subject.limits.has(_positions(subject)):
        still = arguments.replaced({_positions(subject): np.zeros(x.shape[-2], np.int64)})
        subject.matches(subject.call(still), x, subject.budget(still), still, "at position 0, the result")
        _moved_along(subject, arguments, rng)
    return True


def _moved_along(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> None:
    """Demand that inner products of rows stay when all positions move by one number."""
    ((_, rows),) = arguments.floats
    first, shift = rng.integers(0, 50, rows.shape[-2]), int(rng.integers(1, 50))
    products: list[Numbers] = []
    slack: Numbers = np.zeros(())
    for moved in (first, first + shift):
        given = arguments.replaced({_positions(subject): moved})
        got, budget = wide(subject.call(given)), subject.budget(given)
        products.append(got @ np.swapaxes(got, -1, -2))
        half = np.abs(got) @ np.swapaxes(budget, -1, -2)
        slack = slack + half + np.swapaxes(half, -1, -2) + budget @ np.swapaxes(budget, -1, -2)
    subject.matches(products[1], products[0], slack, given, f"{shift} positions later, the inner product")


@checks(law.SLOPE_HALVES, once=True)
def slope_halves(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the slopes of 1 to 16 heads, and of 24."""
    (option,) = subject.operation.numbers
    for heads in (*range(1, 17), 24):
        given = Arguments(subject.operation, {option.path: heads})
        got, budget = wide(subject.call(given)), subject.budget(given)
        below = 1 << (heads.bit_length() - 1)
        powers = got[0] ** np.arange(1, below + 1)
        subject.matches(got[:below], powers, 64 * budget[:below], given, "as a power, the slope")
        last = slice(below - 1, below)
        subject.matches(got[last], np.array([2.0**-8]), budget[last], given, "the last slope")
        twice_as_many = wide(subject.call(Arguments(subject.operation, {option.path: 2 * below})))
        expected = twice_as_many[0::2][: heads - below]
        subject.matches(got[below:], expected, 2 * budget[below:], given, "of the other heads, the slope")
    return True


@checks(law.MASKS, governs=of(SlidingWindowMask))
def window_parts(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare a window of two sides with the masks of its sides."""
    path = subject.operation.window or ""

    def mask(left: int | None, right: int | None) -> Numbers:
        return subject.call(arguments.replaced({path: (left, right)}))

    n, m = (arguments[o.path] for o in subject.operation.numbers)
    left, right = int(rng.integers(4)), int(rng.integers(4))
    for got, expected in (
        (mask(left, right), mask(left, None) & mask(None, right)),
        (mask(0, 0), np.eye(n, m, dtype=bool)),
        (mask(None, 0), np.tri(n, m, dtype=bool)),
        (mask(None, None), np.ones((n, m), bool)),
    ):
        subject.matches(got, expected, np.zeros(expected.shape), arguments, "against its parts, the mask")
    return True


@checks(law.MASKS, governs=of(DocumentMask))
def documents(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Renumber documents beyond 24 bits, with numbers equal in 16 bits; exchange the sides."""
    mask = subject.call(arguments)
    names = 2**24 + rng.permutation([0, 1, 2**16])
    first, second = (leaf.path for leaf in subject.operation.leaves)
    renamed = arguments.replaced({path: names[arguments.array(path)] for path in (first, second)})
    title = "of documents with other names, the mask"
    subject.matches(subject.call(renamed), mask, np.zeros(mask.shape), renamed, title)
    exchanged = Arguments(subject.operation, {first: arguments.array(second), second: arguments.array(first)})
    turned = np.swapaxes(mask, -1, -2)
    subject.matches(subject.call(exchanged), turned, np.zeros(turned.shape), exchanged, "of sides exchanged, the mask")
    return True


@checks(law.DROPOUT_MEAN)
def dropout_mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Average over all rotations of a mask that keeps k of m keys."""
    operation, m = subject.operation, min(arguments.keys_count or 0, 8)
    if m < 2 or 0 in arguments.binding.result:
        return False
    (rate,) = (o.path for o in operation.options if o.kind is Kind.NUMBER)
    given = arguments.along(operation.asked or "", take(np.arange(m)))
    kept = int(rng.integers(1, m))
    total: Numbers = np.zeros(())
    slack: Numbers = np.zeros(())
    for shift in range(m):
        keep = np.roll(np.arange(m) < kept, shift)[None]
        dropped = given.with_mask(keep).replaced({rate: 1 - kept / m})
        total = total + wide(subject.call(dropped)) / m
        slack = slack + subject.budget(dropped) / m
    ((_, weights),) = given.floats
    expected = wide(weights)
    slack = slack + 16 * np.finfo(np.float64).eps * np.abs(expected)
    subject.matches(total, np.broadcast_to(expected, total.shape), slack, given, "over all masks, the mean")
    return True
