"""Checks of the laws of masks, and of attention under them."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep
from attnspec.conformance.inputs.attendance import before_features, collapsed_masks, mask_shape, spelled_out
from attnspec.conformance.inputs.changes import hiding, with_other_rows
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import (
    aligned,
    causal_sizes,
    doubles,
    live_rows,
    picked,
    refuses_outside,
    sample,
    together,
    twice,
    wide,
)
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.tree import Kind
from attnspec.spec.laws import masking as law
from attnspec.spec.laws import operation


def _normal(subject: Subject, rng: np.random.Generator, scale: float = 1.0) -> Callable[[Numbers], Numbers]:
    """A function from arrays to normal numbers of their shape, exact in the dtype."""
    return lambda x: subject.exact(scale * rng.standard_normal(x.shape))


def _first(results: Results, count: int, size: str, subject: Subject, arguments: Arguments) -> Results:
    """The first rows along this axis, of every result that has it."""
    chosen = picked(results, size, np.arange(count), subject, arguments)
    return {leaf.path: chosen[leaf.path] for leaf in subject.operation.outputs if size in leaf.sizes}


def _future(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> tuple[Arguments, int] | None:
    """The causal arguments, and a position that others follow; None if there is none."""
    given = arguments.under_causal()
    rows, columns = causal_sizes(subject)
    n, m = given.size(rows), given.size(columns)
    if n < 1 or m < 2 or not aligned(subject, given):
        return None
    return given, int(rng.integers(min(n, m - 1)))


@checks(law.FUTURE_INVARIANCE)
def future_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace everything after a position, then cut it off."""
    found = _future(subject, arguments, rng)
    if found is None:
        return False
    given, i = found
    rows, columns = causal_sizes(subject)
    changed = with_other_rows(given, columns, np.arange(given.size(columns)) > i, _normal(subject, rng))
    before, after = (_first(subject.results(x), i + 1, rows, subject, given) for x in (given, changed))

    def budget(path: str) -> Numbers:
        concerned = (given, changed) if subject.shares_scales else (given,)
        found: Numbers = np.maximum.reduce(
            [_first(subject.budgets(x), i + 1, rows, subject, x)[path] for x in concerned]
        )
        return found

    for path, x in before.items():
        what = f"after a change behind position {i}, the {path}"
        subject.same(after[path], x, partial(budget, path), changed, what)
    _cut_off(subject, given, i)
    return True


def _cut_off(subject: Subject, given: Arguments, i: int) -> None:
    """Compare with the call whose queries and keys after a position are cut off."""
    rows, columns = causal_sizes(subject)
    length = subject.limits.length_from(i + 1)
    if length > min(given.size(rows), given.size(columns)):
        return
    cut = given
    for size in dict.fromkeys((rows, columns)):
        cut = cut.along(size, keep(length))
    expected = _first(doubles(subject.results(given)), length, rows, subject, given)
    budgets = _first(subject.budgets(given), length, rows, subject, given)
    got, kept = subject.results(cut), "position" if length == 1 else f"{length} positions"
    for path, x in expected.items():
        subject.matches(got[path], x, 2 * budgets[path], given, f"for the first {kept} alone, the {path}")


@checks(law.GRADIENTS, governs=law.causal)
def future_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check that results up to a position have no gradient at later positions."""
    found = _future(subject, arguments, rng)
    if found is None:
        return False
    given, i = found
    if subject.semantics.fully_masked != "zero" and not live_rows(subject, given).all():
        return False
    rows, columns = causal_sizes(subject)
    cotangents = subject.cotangents(given, rng)
    cotangents = {
        leaf.path: _zero_behind(cotangents[leaf.path], leaf.axes(rows), i)
        for leaf in subject.operation.outputs
        if leaf.path in cotangents and rows in leaf.sizes
    }
    gradients = subject.vjp(given, cotangents)
    for leaf, _ in given.floats:
        if columns not in leaf.sizes:
            continue
        g = gradients[leaf.path]
        before = _zero_behind(g, leaf.axes(columns), i)
        subject.holds(
            bool(np.array_equal(g != 0, before != 0)),
            f"the gradient of {leaf.path} behind position {i} is not 0",
            given,
            got=g,
            expected=wide(before),
        )
    return True


def _zero_behind(x: Numbers, axes: list[int], i: int) -> Numbers:
    """The array with zeros after position i along these axes."""
    for axis in axes:
        position = np.arange(x.shape[axis]).reshape(-1, *(1,) * (-axis - 1))
        x = np.where(position > i, x.dtype.type(0), x)
    return x


@checks(law.SPELLED_OUT)
def spelled_out_in_masks(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace missing masks, the causal flag and windows by explicit masks."""
    none, masks = arguments.without_masks(), subject.operation.masks
    full = none.replaced({leaf.path: np.ones(mask_shape(none, keys), bool) for keys, leaf in masks.items()})
    _says_the_same(subject, none, full, "under a mask that allows everything,")
    if subject.operation.flag is not None:
        given = arguments.under_causal()
        spelled = spelled_out(given, bottom_right=subject.semantics.bottom_right)
        _says_the_same(subject, spelled, given, "with `causal`,")
    path = subject.operation.window
    if path is not None and subject.limits.has(path):
        reach = int(rng.integers(1, 4))
        windows = ((0, 0), (reach, 0), (0, reach), (None, 0), (reach, None), (reach + 256, None))
        for ends in windows if subject.effort.slow else rng.permutation(np.array(windows, object))[:2]:
            given = arguments.replaced({path: tuple(ends)})
            spelled = spelled_out(given, bottom_right=subject.semantics.bottom_right)
            _says_the_same(subject, spelled, given, f"with a window {ends},")
    return True


def _says_the_same(subject: Subject, spelled: Arguments, given: Arguments, what: str) -> None:
    """Demand equal results of two encodings of the same mask."""
    budgets = partial(_twice_budgets, subject, spelled)
    subject.all_match(subject.results(given), doubles(subject.results(spelled)), budgets, given, what)


@checks(law.GARBAGE)
def garbage(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store large numbers at keys that no query may attend to."""
    weighed = [keys for keys in subject.operation.masks if subject.operation.weighed(keys) and arguments.size(keys)]
    for keys in weighed:
        _hidden_garbage(subject, arguments, rng, keys)
    return bool(weighed)


def _hidden_garbage(subject: Subject, arguments: Arguments, rng: np.random.Generator, size: str) -> None:
    """Hide some keys along an axis, and store large numbers there."""
    keys, own = arguments.size(size), size == subject.operation.asking
    hidden = rng.random(keys) < 0.4
    hidden[int(rng.integers(keys))] = True
    mask = arguments[subject.operation.masks[size].path]
    shown_mask = (True if mask is None else mask) & ~hidden
    given = arguments.with_mask(np.array(np.broadcast_to(shown_mask, mask_shape(arguments, size))), size)
    scale = 100.0 if subject.dtype == "float16" else 1e6
    changed = with_other_rows(given, size, hidden, _normal(subject, rng, scale))
    # In self-attention hidden rows are queries too: only results of unchanged rows are compared.
    shown = np.flatnonzero(~hidden)
    before, after, what = subject.results(given), subject.results(changed), "with other numbers under the mask,"
    if own:
        before, after = (picked(x, size, shown, subject, given) for x in (before, after))

    def budget(path: str) -> Numbers:
        budgets = subject.budgets(given)
        return (picked(budgets, size, shown, subject, given) if own else budgets)[path]

    for leaf in subject.operation.weighed(size):
        path = leaf.path
        subject.same(after[path], before[path], partial(budget, path), changed, f"{what} {subject.titled(leaf)}")


@checks(law.GRADIENTS, once=True, governs=law.separate_keys)
def nonfinite_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN and infinities at hidden keys, and in queries without keys."""
    if subject.semantics.masked_nonfinite != "excluded":
        return False
    judged = False
    for keys in subject.operation.separate_keys:
        if subject.operation.rows(keys):
            _poisoned_gradients(subject, rng, keys)
            judged = True
    return judged


def _poisoned_gradients(subject: Subject, rng: np.random.Generator, keys: str) -> None:
    """Compare gradients after storing non-finite numbers in the hidden rows of an axis."""
    for given, left_out in _left_out(subject, rng, keys):
        cotangents = subject.cotangents(given, rng)
        expected = subject.gradients(given, cotangents)
        for path, rows in left_out.items():
            leaf, x = given.leaves[path], wide(given.array(path))
            poison = rng.choice([np.nan, np.inf, -np.inf], x.shape)
            behind = before_features(rows, leaf, given.operation.asking) if rows.ndim > 1 else rows[..., None]
            poisoned = given.replaced({path: subject.exact(np.where(behind, poison, x))})
            found = subject.vjp(poisoned, cotangents)
            for other in (leaf.path for leaf, _ in given.batched if leaf.path in expected):
                what = f"with NaN or infinities in rows of {path} that are left out, the gradient of {other}"
                subject.matches(found[other], *expected[other], poisoned, what)


def _left_out(subject: Subject, rng: np.random.Generator, size: str) -> Iterator[tuple[Arguments, dict[str, Numbers]]]:
    """Arguments, with the rows, by path, on which nothing may depend.

    They have several sizes, since kernels differ by size.
    """
    attended = [leaf.path for leaf in subject.operation.rows(size)]
    # Layers add the attention to its input, so they depend on queries without keys too.
    alone = subject.operation.only_weighs_keys
    asking = [leaf.path for leaf in subject.operation.queries if alone]
    small, hidden, idle = _masked(subject, rng, size, queries=3, keys=5)
    yield small, dict.fromkeys(attended, hidden) | dict.fromkeys(asking, idle)
    if subject.dtype in NARROW or not (subject.leading or subject.effort.slow):
        return
    few, hidden, idle = _masked(subject, rng, size, queries=2, keys=420, features=16)
    yield few, {attended[0]: hidden} | dict.fromkeys(asking, idle)
    if few.operation.flag is not None and aligned(subject, few):
        more, _, _ = _masked(subject, rng, size, queries=17, keys=33)
        behind = np.arange(more.keys_count or 0) >= (more.queries or 0)
        yield more.with_mask(None).under_causal(), {attended[0]: behind}


def _masked(
    subject: Subject, rng: np.random.Generator, size: str, /, *, queries: int, keys: int, features: int = 4
) -> tuple[Arguments, Numbers, Numbers]:
    """Masked arguments, the keys hidden from all queries, and the queries without keys."""
    batch = (2,) if subject.limits.max_batch_dims else ()
    given = sample(subject, rng, batch, queries=queries, keys=keys, features=features)
    *rows, m = mask_shape(given, size)
    hidden = rng.random(m) < 0.4
    hidden[[0, -1]] = False, True
    idle = np.arange(np.prod(rows, dtype=int)).reshape(rows) % 5 == 1
    idle &= subject.semantics.fully_masked == "zero" and subject.operation.only_weighs_keys
    mask = (rng.random((*rows, m)) < 0.7) | (np.arange(m) == 0)
    return given.with_mask(mask & ~hidden & ~idle[..., None], size), hidden, idle


@checks(law.TRUNCATION)
def truncation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare masked with cut-off positions, on every axis with a mask or lengths."""
    sizes = (size for kind in (Axis.KEY, Axis.TIME) for size in subject.operation.sizes_of(kind))
    judged = False
    for size in filter(subject.operation.hides, dict.fromkeys(sizes)):
        judged |= _truncated(subject, arguments, rng, size)
    return judged


def _truncated(subject: Subject, arguments: Arguments, rng: np.random.Generator, size: str) -> bool:
    m = arguments.size(size)
    own = size == subject.operation.asking
    if m < 2:
        return False
    if not own and subject.semantics.bottom_right:
        # Aligned at the bottom right, queries are at other distances once the last keys are cut off.
        arguments = arguments.plain()
    length = subject.limits.length_from(int(rng.integers(1, m)))
    if length >= m:
        return False
    padded, base = hiding(arguments, size, length)
    cut = base.along(size, keep(length))
    expected, first = doubles(subject.results(cut)), np.arange(length)
    got = picked(subject.results(padded), size, first, subject, padded)

    def budgets() -> Results:
        return together(picked(subject.budgets(padded), size, first, subject, padded), subject.budgets(cut))

    subject.all_match(got, expected, budgets, padded, f"with positions masked from {length} on,")
    return True


@checks(operation.BROADCASTING, governs=law.masked)
def mask_broadcasting(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass masks with some dimensions of size 1, and the same masks repeated.

    If rows without keys give what depends on the encoding of the mask, every row has the first key.
    """
    judged, alike = False, len({*subject.semantics.without_keys.values()}) == 1
    every = ((keys, collapsed_masks(arguments, keys, subject.limits, rng)) for keys in subject.operation.masks)
    for keys, given, collapsed in ((keys, *one) for keys, some in every for one in some):
        small = rng.random(collapsed) < 0.6
        small[..., :1] |= not alike
        full = np.array(np.broadcast_to(small, np.broadcast_shapes(collapsed, mask_shape(given, keys))))
        if small.shape == full.shape or not small.size:
            continue
        narrow, wide_mask = given.with_mask(small, keys), given.with_mask(full, keys)
        if not alike and not live_rows(subject, wide_mask).all():
            continue
        expected = doubles(subject.results(wide_mask))
        budgets = partial(_twice_budgets, subject, narrow)
        subject.all_match(subject.results(narrow), expected, budgets, narrow, "under a mask that broadcasts,")
        judged = True
    return judged


@checks(operation.BATCH_INVARIANCE, once=True, at_leading=True, governs=law.masked)
def mask_of_its_own(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare each element of the batch with that element alone under its own mask.

    There are as many elements as queries, so that confusing the two does not raise.
    """
    judged = False
    for batch, keys in product(((3,), (2, 3)), subject.operation.masks):
        if len(batch) > subject.limits.max_batch_dims:
            continue
        given = sample(subject, rng, batch, queries=3, keys=6, heads=2)
        full = mask_shape(given, keys)
        for shape in dict.fromkeys((full, (*batch, *(1,) * (len(full) - len(batch) - 1), full[-1]))):
            mask = rng.random(shape) < 0.6
            mask[..., 0] = True
            masked = given.with_mask(mask, keys)
            whole = subject.results(masked)
            for index in np.ndindex(*batch):
                alone = subject.results(masked.element(index))
                what = f"for element {index} of the batch, under its mask,"
                for leaf in subject.operation.outputs:
                    path = leaf.path
                    got, expected, title = whole[path][index], wide(alone[path]), f"{what} {subject.titled(leaf)}"
                    budget = partial(_element_budget, subject, masked, path, index)
                    subject.matches(got, expected, budget, masked, title)
        judged = True
    return judged


def _twice_budgets(subject: Subject, arguments: Arguments) -> Results:
    return twice(subject.budgets(arguments))


def _element_budget(subject: Subject, arguments: Arguments, path: str, index: tuple[int, ...]) -> Any:
    return _twice_budgets(subject, arguments)[path][index]


def _sides(arguments: Arguments) -> tuple[str, str]:
    """The paths of the two sizes of a mask: rows and columns."""
    rows, columns = (option.path for option in arguments.operation.numbers)
    return rows, columns


@checks(law.STRICT_MASK)
def strict_mask(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand that the two causal masks differ by the diagonal."""
    (option,) = (o for o in subject.operation.options if o.kind is Kind.CHOICE)
    inclusive, strict = (subject.call(arguments.replaced({option.path: x})) for x in (True, False))
    rows, columns = (arguments[path] for path in _sides(arguments))
    diagonal = np.tri(rows, columns, dtype=bool) & ~np.tri(rows, columns, -1, dtype=bool)
    difference = inclusive.astype(np.int8) - strict.astype(np.int8)
    subject.holds(
        bool(np.array_equal(difference, diagonal.astype(np.int8))),
        f"the masks with and without `{option.path}` do not differ by the diagonal",
        arguments,
        expected=diagonal,
        got=difference,
    )
    return True


def _lengths(arguments: Arguments) -> tuple[str, Any, int]:
    """The path of the lengths, the lengths, and the size that bounds them."""
    ((path, size),) = arguments.operation.lengths.items()
    return path, arguments[path], arguments.size(size)


@checks(law.LENGTH_COUNT)
def length_count(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand that every row allows as many keys as its length, the first ones."""
    mask = subject.call(arguments)
    counts = mask.sum(-1)
    _, lengths, _ = _lengths(arguments)
    subject.holds(
        bool(np.array_equal(counts, lengths)), "a row does not allow as many keys as its length", arguments,
        expected=lengths, got=counts,
    )  # fmt: skip
    falling = bool((mask[..., :-1] >= mask[..., 1:]).all())
    subject.holds(falling, "a key is allowed behind one that is not", arguments, got=mask)
    return True


@checks(operation.REJECTION)
def length_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass a length of −1, and one more than there are positions."""
    found = arguments.operation.lengths.items()
    return any(refuses_outside(subject, arguments, path, arguments.size(x), rng, "a length") for path, x in found)
