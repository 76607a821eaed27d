"""Checks of the laws of selected attention. Options of ``@checks``: see ``Check``."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import key_offsets
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import demand_refusal, doubles, key_heads, random_like, sample, sum_budgets, wide
from attnspec.conformance.laws.kernels import operands
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.tree import Kind
from attnspec.spec.laws import operation as operation_law
from attnspec.spec.laws import selected as law


@checks(law.INDEXER_HEADS_ADD)
def indexer_heads_add(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compute the scores of every head alone, and add them."""
    (heads,) = subject.operation.sizes_of(Axis.HEAD)
    single = [arguments.along(heads, take([r])) for r in range(arguments.size(heads))]
    expected = sum((wide(subject.call(x)) for x in single), np.zeros(()))
    budget = sum((subject.budget(x) for x in single), subject.budget(arguments))
    subject.demand_match(subject.call(arguments), expected, budget, arguments, "of all heads, the score")
    return bool(expected.size)


@checks(law.INDEXER_RECTIFIES_PRODUCTS)
def indexer_rectifies_products(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Add the scores of queries and of their opposites, with weights of both signs."""
    query, key, weights = (leaf.path for leaf in subject.operation.floats)
    mixed = arguments.replaced({weights: random_like(arguments.array(weights), rng, subject)})
    opposite = mixed.replaced({query: -mixed.array(query)})
    if not (subject.in_domain(mixed) and subject.in_domain(opposite)):
        return False
    q, k, w = (wide(mixed.array(path)) for path in (query, key, weights))
    magnitudes = np.abs(q @ np.swapaxes(k[..., None, :, :], -1, -2))
    expected = (np.swapaxes(w, -1, -2)[..., None] * magnitudes).sum(-3)
    got, budget = wide(subject.call(mixed)) + wide(subject.call(opposite)), subject.budget(mixed)
    subject.demand_match(got, expected, budget + subject.budget(opposite), mixed, "of both queries, the score")
    return bool(expected.size)


@checks(law.TOP_KEYS_ARE_GREATEST)
def top_keys_are_greatest(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Select from the scores, from rounded ones, which repeat, and from some that are hidden."""
    (leaf,), (count,) = subject.operation.floats, (x.path for x in subject.operation.options)
    scores = wide(arguments.array(leaf.path))
    few_values = np.clip(np.round(scores), -1, 1)
    hidden = np.where(rng.random(scores.shape) < 0.4, -np.inf, scores)
    for x in (scores, few_values, hidden, np.full(scores.shape, -np.inf)):
        call = arguments.replaced({leaf.path: subject.exact(x)})
        selected, ranked = subject.call(call), wide(call.array(leaf.path))
        number = np.minimum((ranked > -np.inf).sum(-1), call[count])
        message = "the number of selected keys is not count, or that of the scores above −∞ if fewer"
        subject.demand(bool((selected.sum(-1) == number).all()), message, call, got=selected)
        least = np.min(np.where(selected, ranked, np.inf), axis=-1, initial=np.inf)
        most = np.max(np.where(selected, -np.inf, ranked), axis=-1, initial=-np.inf)
        message = "a key is left out, and one with a smaller score is selected"
        subject.demand(bool((least >= most).all()), message, call, got=selected)
    return bool(scores.size)


def _indices(arguments: Arguments) -> tuple[str, Numbers, int]:
    """Path of the indices, the indices, and the number of keys."""
    ((path, size),) = arguments.operation.selections.items()
    return path, arguments.array(path), arguments.size(size)


def _mask(indices: Numbers, keys: int) -> Numbers:
    """Mask (…, n, m) of the keys that indices name."""
    mask: Numbers = (indices[..., None] == np.arange(keys)).any(-2)
    return mask


@checks(law.SELECTION_IS_MASK)
def selection_is_mask(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compute attention under the mask in double precision: for the example, and for all keys in random order."""
    operation = subject.operation
    if subject.dtype == "float64" or not arguments.queries:
        return False
    path, indices, keys = _indices(arguments)
    every = np.argsort(rng.random((*indices.shape[:-1], keys)), axis=-1)
    calls = [arguments, arguments.replaced({path: every})] if keys else [arguments]
    query, key, value = (wide(arguments.array(leaf.path)) for leaf in operands(operation))
    own = key_heads(subject, query.shape[-3], key.shape[-3])
    scale = arguments[operation.part(ScoreEffect.SCALE)]
    scores = query @ np.swapaxes(key[..., own, :, :], -1, -2)
    scores = scores / np.sqrt(query.shape[-1]) if scale is None else scores * scale
    for call in calls:
        shared = _mask(_indices(call)[1], keys)
        mask = np.broadcast_to(shared, (*shared.shape[:-3], key.shape[-3], *shared.shape[-2:]))[..., own, :, :]
        if call.causal:
            mask = mask & (key_offsets(call, operation.key_size or "", semantics=subject.semantics) <= 0)
        highest = np.max(np.where(mask, scores, -np.inf), axis=-1, keepdims=True, initial=-1e300)
        powers = np.where(mask, np.exp(np.minimum(scores - highest, 0)), 0)
        weights = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)
        expected, budget = weights @ value[..., own, :, :], subject.budget(call)
        subject.demand_match(subject.call(call), expected, budget, call, "of the selected keys, the result")
    return True


@checks(law.ORDER_OF_SELECTION, once=True)
def order_of_selection(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Permute the indices of every row, among three more that name no key; then put 17 such before them."""
    sampled = sample(subject, rng, (2,), queries=4, keys=7)
    path, indices, _ = _indices(sampled)
    rows = indices.shape[:-1]
    longer = np.concatenate([indices, np.full((*rows, 3), -1)], axis=-1)
    shuffled = np.take_along_axis(longer, np.argsort(rng.random(longer.shape), axis=-1), axis=-1)
    behind = np.concatenate([np.full((*rows, 17), -1), indices], axis=-1)
    expected, budgets = doubles(subject.results(sampled)), subject.budgets(sampled)
    for name, changed in (("in another order", shuffled), ("behind 17 of −1", behind)):
        call = sampled.replaced({path: changed})
        both = sum_budgets(budgets, subject.budgets(call))
        subject.all_match(subject.results(call), expected, both, call, f"with indices {name},")
    return bool(indices.size)


@checks(law.UNSELECTED_KEYS)
def unselected_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN in a key and value that no index names; the first query names none."""
    path, indices, keys = _indices(arguments)
    if not keys or not arguments.queries:
        return False
    place = int(rng.integers(keys))
    without = np.where((indices == place) | (np.arange(indices.shape[-2])[:, None] == 0), -1, indices)
    clean = arguments.replaced({path: without})
    changes = {}
    for leaf in operands(subject.operation)[1:]:
        spoiled = clean.array(leaf.path).copy()
        spoiled[..., place, :] = np.nan
        changes[leaf.path] = spoiled
    spoiled_call, got = clean.replaced(changes), subject.call(clean)
    message = "the result of a query that selects no keys is not 0"
    subject.demand(not got[..., 0, :].any(), message, clean, got=got)
    budget = subject.budget(clean)
    subject.demand_match(subject.call(spoiled_call), wide(got), 2 * budget, spoiled_call, "with NaN, the result")
    return bool(got.size)


@checks(operation_law.REJECTION)
def index_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass the index −2, and one more than the last."""
    items = arguments.operation.selections.items()
    return any(demand_refusal(subject, arguments, x, arguments.size(y) - 1, rng, "an index", -1) for x, y in items)


@checks(law.POSITIONS_OF_A_BLOCK, once=True)
def positions_of_a_block(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat blocks along both axes: partial ones at the end, and fewer than there are positions."""
    operation = subject.operation
    (leaf,), options = operation.leaves, [x.path for x in operation.options if x.kind is not Kind.SIZE]
    for size_pair in ((2, 3), (3, 2), (1, 4), (4, 1)):
        sizes = dict.fromkeys(operation.sizes_of(Axis.BLOCK), 3)
        sampled = sample(subject, rng, (2,), queries=8, keys=7, sizes=sizes, whole=True)
        call = sampled.replaced(dict(zip(options, size_pair, strict=True)))
        blocks, (height, width) = call.array(leaf.path), size_pair
        rows, columns = blocks.shape[-2] * height, blocks.shape[-1] * width
        n, m = (call.size(x.path) for x in operation.numbers)
        expected = np.zeros((*blocks.shape[:-2], max(n, rows), max(m, columns)), bool)
        expected[..., :rows, :columns] = np.repeat(np.repeat(blocks, height, axis=-2), width, axis=-1)
        subject.demand_match(
            subject.call(call), expected[..., :n, :m], np.zeros(()), call, "of the block, the position"
        )
    return True
