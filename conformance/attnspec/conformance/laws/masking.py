"""Checks of the laws of masks, and of attention under them. Options of ``@checks``: see ``Check``."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep
from attnspec.conformance.inputs.attendance import collapsed_masks, mask_shape, with_explicit_mask, with_feature_axes
from attnspec.conformance.inputs.changes import hide_from, with_other_rows
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import (
    aligned_top_left,
    causal_sizes,
    demand_refusal,
    doubled,
    doubles,
    live_rows,
    sample,
    select_rows,
    sum_budgets,
    wide,
)
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.tree import Kind
from attnspec.spec.laws import masking as law
from attnspec.spec.laws import operation


def _normal_like(subject: Subject, rng: np.random.Generator, scale: float = 1.0) -> Callable[[Numbers], Numbers]:
    """A function that returns normal numbers of an array's shape, exact in the dtype."""
    return lambda x: subject.exact(scale * rng.standard_normal(x.shape))


def _first_rows(results: Results, count: int, size: str, subject: Subject, arguments: Arguments) -> Results:
    """The first rows of every result that has this axis."""
    chosen = select_rows(results, size, np.arange(count), subject, arguments)
    return {leaf.path: chosen[leaf.path] for leaf in subject.operation.outputs if size in leaf.sizes}


def _causal_call(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> tuple[Arguments, int] | None:
    """The causal arguments, and a position before the last; None without such a position."""
    causal = arguments.under_causal()
    rows, columns = causal_sizes(subject)
    n, m = causal.size(rows), causal.size(columns)
    if n < 1 or m < 2 or not aligned_top_left(subject, causal):
        return None
    return causal, int(rng.integers(min(n, m - 1)))


@checks(law.FUTURE_INVARIANCE)
def future_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace everything after a position; cut it off."""
    causal_call = _causal_call(subject, arguments, rng)
    if causal_call is None:
        return False
    causal, i = causal_call
    rows, columns = causal_sizes(subject)
    changed = with_other_rows(causal, columns, np.arange(causal.size(columns)) > i, _normal_like(subject, rng))
    before, after = (_first_rows(subject.results(x), i + 1, rows, subject, causal) for x in (causal, changed))

    def budget(path: str) -> Numbers:
        # If numbers of an array share a scale, later numbers may change the roundings of earlier ones.
        concerned = (causal, changed) if subject.shares_scales else (causal,)
        parts = [_first_rows(subject.budgets(x), i + 1, rows, subject, x)[path] for x in concerned]
        larger: Numbers = np.maximum.reduce(parts)
        return larger

    for path, x in before.items():
        title = f"with other numbers after position {i}, the {path}"
        subject.demand_equal(after[path], x, partial(budget, path), changed, title)
    _cut_off(subject, causal, i)
    return True


def _cut_off(subject: Subject, causal: Arguments, i: int) -> None:
    """Compare with the call without the queries and keys after a position."""
    rows, columns = causal_sizes(subject)
    length = subject.limits.length_from(i + 1)
    if length > min(causal.size(rows), causal.size(columns)):
        return
    cut = causal
    for size in dict.fromkeys((rows, columns)):
        cut = cut.along(size, keep(length))
    expected = _first_rows(doubles(subject.results(causal)), length, rows, subject, causal)
    budgets = _first_rows(subject.budgets(causal), length, rows, subject, causal)
    if columns != rows:  # attention weights have an axis of keys, too
        expected, budgets = (select_rows(x, columns, np.arange(length), subject, causal) for x in (expected, budgets))
    got, described_length = subject.results(cut), "position" if length == 1 else f"{length} positions"
    for path, x in expected.items():
        title = f"for the first {described_length} alone, the {path}"
        subject.demand_match(got[path], x, 2 * budgets[path], causal, title)


@checks(law.MASKED_GETS_NO_GRADIENT, governs=law.causal)
def future_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check that results up to a position have no gradient at later positions."""
    causal_call = _causal_call(subject, arguments, rng)
    if causal_call is None:
        return False
    causal, i = causal_call
    if subject.semantics.fully_masked != "zero" and not live_rows(subject, causal).all():
        return False  # rows without keys may be NaN, or average later keys
    rows, columns = causal_sizes(subject)
    cotangents = subject.cotangents(causal, rng)
    cotangents = {
        leaf.path: _zero_behind(cotangents[leaf.path], leaf.axes(rows), i)
        for leaf in subject.operation.outputs
        if leaf.path in cotangents and rows in leaf.sizes
    }
    gradients = subject.vjp(causal, cotangents)
    for leaf, _ in causal.floats:
        if columns not in leaf.sizes:
            continue
        gradient = gradients[leaf.path]
        before = _zero_behind(gradient, leaf.axes(columns), i)
        subject.demand(
            bool(np.array_equal(gradient != 0, before != 0)),
            f"the gradient of {leaf.path} after position {i} is not 0",
            causal,
            got=gradient,
            expected=wide(before),
        )
    return True


def _zero_behind(x: Numbers, axes: list[int], i: int) -> Numbers:
    """The array with zeros after position i along these axes."""
    for axis in axes:
        position = np.arange(x.shape[axis]).reshape(-1, *(1,) * (-axis - 1))
        x = np.where(position > i, x.dtype.type(0), x)
    return x


@checks(law.EQUALS_EXPLICIT_MASK)
def equals_explicit_mask(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace a missing mask, the causal flag and windows by explicit masks."""
    unmasked, masks = arguments.without_masks(), subject.operation.masks
    full = unmasked.replaced({leaf.path: np.ones(mask_shape(unmasked, keys), bool) for keys, leaf in masks.items()})
    _demand_same_results(subject, unmasked, full, "under a mask that allows everything,")
    if subject.operation.flag is not None:
        changed = arguments.under_causal()
        explicit = with_explicit_mask(changed, semantics=subject.semantics)
        _demand_same_results(subject, explicit, changed, "with `causal`,")
    path = subject.operation.window
    if path is not None and subject.limits.has(path):
        reach = int(rng.integers(1, 4))
        # One bound needs more than 8 bits.
        windows = ((0, 0), (reach, 0), (0, reach), (None, 0), (reach, None), (reach + 256, None))
        for ends in windows if subject.effort.slow else rng.permutation(np.array(windows, object))[:2]:
            changed = arguments.replaced({path: tuple(ends)})
            explicit = with_explicit_mask(changed, semantics=subject.semantics)
            _demand_same_results(subject, explicit, changed, f"with a window {ends},")
    return True


def _demand_same_results(subject: Subject, explicit: Arguments, implicit: Arguments, prefix: str) -> None:
    budgets = partial(_doubled_budgets, subject, explicit)
    subject.all_match(subject.results(implicit), doubles(subject.results(explicit)), budgets, implicit, prefix)


@checks(law.MASKED_KEYS_IGNORED)
def masked_keys_ignored(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store large numbers at keys that no query may attend to."""
    axes = [keys for keys in subject.operation.masks if subject.operation.summed_over(keys) and arguments.size(keys)]
    for keys in axes:
        _change_hidden_keys(subject, arguments, rng, keys)
    return bool(axes)


def _change_hidden_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator, size: str) -> None:
    keys, self_attention = arguments.size(size), size == subject.operation.query_size
    hidden = rng.random(keys) < 0.4
    hidden[int(rng.integers(keys))] = True
    mask = arguments[subject.operation.masks[size].path]
    shown_mask = (True if mask is None else mask) & ~hidden
    masked = arguments.with_mask(np.array(np.broadcast_to(shown_mask, mask_shape(arguments, size))), size)
    scale = 100.0 if subject.dtype == "float16" else 1e6  # products of float16 numbers must not overflow
    changed = with_other_rows(masked, size, hidden, _normal_like(subject, rng, scale))
    # In self-attention hidden rows are queries too: only results of unchanged rows are compared.
    visible = np.flatnonzero(~hidden)
    before, after, prefix = subject.results(masked), subject.results(changed), "with other numbers under the mask,"
    if self_attention:
        before, after = (select_rows(x, size, visible, subject, masked) for x in (before, after))

    def budget(path: str) -> Numbers:
        budgets = subject.budgets(masked)
        return (select_rows(budgets, size, visible, subject, masked) if self_attention else budgets)[path]

    for leaf in subject.operation.summed_over(size):
        path, title = leaf.path, f"{prefix} {subject.title_of(leaf)}"
        subject.demand_equal(after[path], before[path], partial(budget, path), changed, title)


@checks(law.MASKED_GETS_NO_GRADIENT, once=True, governs=law.separate_keys)
def nonfinite_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN and infinities at hidden keys, and in queries without keys."""
    if subject.semantics.masked_nonfinite != "excluded":
        return False
    tried = False
    for keys in subject.operation.separate_keys:
        if subject.operation.rows(keys):
            _compare_poisoned_gradients(subject, rng, keys)
            tried = True
    return tried


def _compare_poisoned_gradients(subject: Subject, rng: np.random.Generator, keys: str) -> None:
    """Compare gradients with NaN and infinities in rows that are ignored."""
    for masked, ignored_rows in _with_ignored_rows(subject, rng, keys):
        cotangents = subject.cotangents(masked, rng)
        expected = subject.gradients(masked, cotangents)
        for path, rows in ignored_rows.items():
            leaf, x = masked.leaves[path], wide(masked.array(path))
            poison = rng.choice([np.nan, np.inf, -np.inf], x.shape)
            ignored = with_feature_axes(rows, leaf, masked.operation.query_size) if rows.ndim > 1 else rows[..., None]
            poisoned = masked.replaced({path: subject.exact(np.where(ignored, poison, x))})
            gradients = subject.vjp(poisoned, cotangents)
            for other in (leaf.path for leaf, _ in masked.batched if leaf.path in expected):
                title = f"with NaN or infinities in masked rows of {path}, the gradient of {other}"
                subject.demand_match(gradients[other], *expected[other], poisoned, title)


def _with_ignored_rows(
    subject: Subject, rng: np.random.Generator, size: str
) -> Iterator[tuple[Arguments, dict[str, Numbers]]]:
    """Calls; each with the ignored rows, by path, on which nothing may depend.

    Ignored are keys that are hidden from all queries, and idle queries, which have no keys. The calls have several
    sizes, since kernels differ by size.
    """
    attended = [leaf.path for leaf in subject.operation.rows(size)]
    # Layers add their input to the attention, so they depend on queries without keys too.
    weighs_keys_only = subject.operation.only_weighs_keys
    query_paths = [leaf.path for leaf in subject.operation.queries if weighs_keys_only]
    small, hidden, idle = _masked_call(subject, rng, size, queries=3, keys=5)
    yield small, dict.fromkeys(attended, hidden) | dict.fromkeys(query_paths, idle)
    if subject.dtype in NARROW or not (subject.is_leading_dtype or subject.effort.slow):
        return
    few_queries, hidden, idle = _masked_call(subject, rng, size, queries=2, keys=420, features=16)
    yield few_queries, {attended[0]: hidden} | dict.fromkeys(query_paths, idle)
    if few_queries.operation.flag is not None and aligned_top_left(subject, few_queries):
        many_queries, _, _ = _masked_call(subject, rng, size, queries=17, keys=33)
        later_keys = np.arange(many_queries.keys_count or 0) >= (many_queries.queries or 0)
        yield many_queries.with_mask(None).under_causal(), {attended[0]: later_keys}


def _masked_call(
    subject: Subject, rng: np.random.Generator, size: str, /, *, queries: int, keys: int, features: int = 4
) -> tuple[Arguments, Numbers, Numbers]:
    """Masked arguments, keys hidden from all queries, and idle queries, which have no keys."""
    batch = (2,) if subject.limits.max_batch_dims else ()
    sampled = sample(subject, rng, batch, queries=queries, keys=keys, features=features)
    *rows, m = mask_shape(sampled, size)
    hidden = rng.random(m) < 0.4
    hidden[[0, -1]] = False, True
    idle = np.arange(np.prod(rows, dtype=int)).reshape(rows) % 5 == 1
    idle &= subject.semantics.fully_masked == "zero" and subject.operation.only_weighs_keys
    mask = (rng.random((*rows, m)) < 0.7) | (np.arange(m) == 0)
    return sampled.with_mask(mask & ~hidden & ~idle[..., None], size), hidden, idle


@checks(law.MASKING_EQUALS_TRUNCATION)
def masking_equals_truncation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare hidden positions with cut ones, on every axis with a mask or lengths."""
    sizes = (size for kind in (Axis.KEY, Axis.TIME) for size in subject.operation.sizes_of(kind))
    tried = False
    for size in filter(subject.operation.hiding_argument, dict.fromkeys(sizes)):
        tried |= _compare_truncated(subject, arguments, rng, size)
    return tried


def _compare_truncated(subject: Subject, arguments: Arguments, rng: np.random.Generator, size: str) -> bool:
    m = arguments.size(size)
    self_attention = size == subject.operation.query_size
    if m < 2:
        return False
    semantics = subject.semantics
    if not self_attention and (semantics.bottom_right or semantics.length_alignment == "at-length"):
        # Where the last key, or the length, aligns the queries, hiding or cutting keys moves all of them.
        arguments = arguments.unordered()
    length = subject.limits.length_from(int(rng.integers(1, m)))
    if length >= m:
        return False
    padded, visible = hide_from(arguments, size, length)
    cut = visible.along(size, keep(length))
    expected, kept_rows = doubles(subject.results(cut)), np.arange(length)
    got = select_rows(subject.results(padded), size, kept_rows, subject, padded)

    def budgets() -> Results:
        return sum_budgets(select_rows(subject.budgets(padded), size, kept_rows, subject, padded), subject.budgets(cut))

    subject.all_match(got, expected, budgets, padded, f"with positions masked from {length} on,")
    return True


@checks(operation.BROADCAST_EQUALS_REPEAT, governs=law.masked)
def mask_broadcasting(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare masks that have dimensions of size 1 with the repeated masks.

    If the result of a row without keys depends on the mask's shape, every row has the first key.
    """
    tried, one_choice = False, len({*subject.semantics.without_keys.values()}) == 1
    variants = ((keys, collapsed_masks(arguments, keys, subject.limits, rng)) for keys in subject.operation.masks)
    for keys, unmasked, collapsed in ((keys, *variant) for keys, group in variants for variant in group):
        small = rng.random(collapsed) < 0.6
        small[..., :1] |= not one_choice  # then every row has the first key
        full = np.array(np.broadcast_to(small, np.broadcast_shapes(collapsed, mask_shape(unmasked, keys))))
        if small.shape == full.shape or not small.size:
            continue
        small_call, full_call = unmasked.with_mask(small, keys), unmasked.with_mask(full, keys)
        if not one_choice and not live_rows(subject, full_call).all():
            continue
        expected = doubles(subject.results(full_call))
        budgets = partial(_doubled_budgets, subject, small_call)
        subject.all_match(subject.results(small_call), expected, budgets, small_call, "under a mask that broadcasts,")
        tried = True
    return tried


@checks(operation.BATCH_INVARIANCE, once=True, leading_dtype_only=True, governs=law.masked)
def mask_of_its_own(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare each batch element with that element alone, under its own mask.

    Elements equal queries in number, so that confusing the two raises nothing.
    """
    tried = False
    for batch, keys in product(((3,), (2, 3)), subject.operation.masks):
        if len(batch) > subject.limits.max_batch_dims:
            continue
        sampled = sample(subject, rng, batch, queries=3, keys=6, heads=2)
        full = mask_shape(sampled, keys)
        for shape in dict.fromkeys((full, (*batch, *(1,) * (len(full) - len(batch) - 1), full[-1]))):
            mask = rng.random(shape) < 0.6
            mask[..., 0] = True
            masked = sampled.with_mask(mask, keys)
            whole = subject.results(masked)
            for index in np.ndindex(*batch):
                alone = subject.results(masked.element(index))
                prefix = f"for element {index} of the batch, under its mask,"
                for leaf in subject.operation.outputs:
                    path = leaf.path
                    got, expected, title = whole[path][index], wide(alone[path]), f"{prefix} {subject.title_of(leaf)}"
                    budget = partial(_element_budget, subject, masked, path, index)
                    subject.demand_match(got, expected, budget, masked, title)
        tried = True
    return tried


def _doubled_budgets(subject: Subject, arguments: Arguments) -> Results:
    return doubled(subject.budgets(arguments))


def _element_budget(subject: Subject, arguments: Arguments, path: str, index: tuple[int, ...]) -> Any:
    return _doubled_budgets(subject, arguments)[path][index]


def _sides(arguments: Arguments) -> tuple[str, str]:
    """The paths of the numbers of rows and of columns of a mask."""
    rows, columns = (option.path for option in arguments.operation.numbers)
    return rows, columns


@checks(law.STRICT_MASK_EXCLUDES_DIAGONAL)
def strict_mask_excludes_diagonal(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand that the two causal masks differ by the diagonal."""
    (option,) = (o for o in subject.operation.options if o.kind is Kind.CHOICE)
    inclusive, strict = (subject.call(arguments.replaced({option.path: x})) for x in (True, False))
    rows, columns = (arguments[path] for path in _sides(arguments))
    diagonal = np.tri(rows, columns, dtype=bool) & ~np.tri(rows, columns, -1, dtype=bool)
    difference = inclusive.astype(np.int8) - strict.astype(np.int8)
    subject.demand(
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


@checks(law.PADDING_KEEPS_FIRST_KEYS)
def padding_keeps_first_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand that every row allows the first keys, as many as its length."""
    mask = subject.call(arguments)
    counts = mask.sum(-1)
    _, lengths, _ = _lengths(arguments)
    subject.demand(
        bool(np.array_equal(counts, lengths)), "a row allows more or fewer keys than its length", arguments,
        expected=lengths, got=counts,
    )  # fmt: skip
    first_keys_only = bool((mask[..., :-1] >= mask[..., 1:]).all())
    subject.demand(first_keys_only, "a row allows a key after one that it masks", arguments, got=mask)
    return True


@checks(operation.REJECTION)
def length_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass a length of −1, and one more than there are positions."""
    items = arguments.operation.lengths.items()
    return any(demand_refusal(subject, arguments, path, arguments.size(x), rng, "a length") for path, x in items)
