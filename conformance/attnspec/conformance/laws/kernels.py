"""Checks of the laws of the attention that people run."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import attendable, mask_shape, spelled_out
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import doubles, sample, together, twice, wide
from attnspec.conformance.laws.registry import checks
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import Kind
from attnspec.spec.laws import kernels as law

GROUPS = ((1, 4), (4, 1), (2, 3))
"""Heads of the keys, and heads of the queries for each of them."""

GREAT_CAP = 2.0**10
"""A cap that scores of a sample are far from."""


def _alike(subject: Subject, given: Arguments, other: Arguments, what: str) -> None:
    """Two calls give the same results, within the budgets of both."""

    def budgets() -> Results:
        return together(subject.budgets(given), subject.budgets(other))

    subject.all_match(subject.results(given), doubles(subject.results(other)), budgets, given, what)


def _has(subject: Subject, *parts: str) -> bool:
    """Whether the backend has these optional parts, each of which the operation has."""
    return all(map(subject.limits.has, parts))


def _of_backend(subject: Subject, name: str, values: dict[str, Any]) -> tuple[Subject, Arguments] | None:
    """Another operation of the backend, with these arguments; None if it is not provided."""
    other = subject.beside(OPERATIONS[name])
    return None if other is None else (other, Arguments(other.operation, values))


# Groups and options ---------------------------------------------------------------------------------------------------


@checks(law.GROUPS, once=True)
def groups(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compute some heads alone: head r of the queries with head r // group of the keys."""
    for heads_k, group in GROUPS:
        given = sample(subject, rng, queries=3, keys=5, sizes={"heads_k": heads_k, "group": group})
        whole, budgets = doubles(subject.results(given)), subject.budgets(given)
        for r in {0, group - 1, heads_k * group - 1, int(rng.integers(heads_k * group))}:
            changes = {}
            for leaf, x in given.given:
                for size, chosen in (("group", r), ("heads_k", r // group)):
                    axis = next(iter(leaf.axes(size)), None)
                    if axis is not None:
                        changes[leaf.path] = np.take(x, [chosen], axis=axis)
                        break
            alone = given.replaced(changes)
            got = subject.results(alone)
            for leaf in subject.operation.outputs:
                (axis,) = leaf.axes("group")
                expected, budget = (np.take(x[leaf.path], [r], axis=axis) for x in (whole, budgets))
                subject.matches(got[leaf.path], expected, 2 * budget, alone, f"head {r} alone, the {leaf.path}")
    return True


@checks(law.OPTIONS_COUNT, once=True, at_leading=True)
def options_count(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Give each option and each optional array alone, and look for a difference that no rounding explains."""
    operation = subject.operation
    plain = sample(subject, rng, (2,), queries=4, keys=6)
    whole = sample(subject, rng, (2,), queries=4, keys=6, whole=True)
    before, budgets = doubles(subject.results(plain)), subject.budgets(plain)
    tried = False
    for name in operation.call.names:
        if name not in operation.features or not subject.limits.has(name):
            continue
        value = next(iter(operation.tried.get(name, ())), None)
        value = True if value is None and operation.defaults[name] is False else value
        if value is None:
            value = whole[name]
        if operation.lengths.get(name) is not None:
            value = np.full_like(value, 3)
        given = plain.replaced({name: value})
        after = subject.results(given)
        changed = any((np.abs(wide(x) - before[path]) > 8 * budgets[path]).any() for path, x in after.items())
        subject.holds(changed, f"{name} is accepted and has no effect", given, expected=before, got=after)
        tried = True
    return tried


@checks(law.WINDOW)
def window(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Spell windows out in the mask: of no reach, of a random one, and open to one side."""
    if not _has(subject, "window"):
        return False
    reach = int(rng.integers(1, 4))
    for ends in ((0, 0), (reach, 0), (0, reach), (None, 0), (reach, None)):
        given = arguments.replaced({"window": ends})
        spelled = spelled_out(given, bottom_right=subject.semantics.bottom_right)
        _alike(subject, given, spelled, f"with window={ends},")
    return True


@checks(law.CAP, once=True)
def cap(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """A cap of 2¹⁰, which moves a score s by s³/3c² at most; and one of 2⁻⁶⁰."""
    if not _has(subject, "softcap", "scale"):
        return False
    given = sample(subject, rng, (2,), queries=4, keys=6)
    if given.operation.mask is not None:
        given = given.with_mask((rng.random(mask_shape(given)) < 0.5) | (np.arange(given.keys_count or 0) == 1))
    great = given.replaced({"softcap": GREAT_CAP})
    largest = [np.sqrt((wide(x) ** 2).sum(-1)).max() for leaf, x in given.floats if "d" in leaf.sizes]
    moved = float(np.prod(largest)) ** 3 / (3 * GREAT_CAP**2)
    values = max(np.abs(wide(x)).max() for leaf, x in given.floats if "d_v" in leaf.sizes)
    budgets = together(subject.budgets(great), subject.budgets(given))
    reach = {path: x + moved * (2 * values if path == "output" else 1.0) for path, x in budgets.items()}
    what = "under a cap that no score comes near,"
    subject.all_match(subject.results(great), doubles(subject.results(given)), reach, great, what)
    least = given.replaced({"softcap": 2.0**-60})
    _alike(subject, least, given.replaced({"scale": 0.0}), "under a cap that leaves scores of about 0,")
    return True


@checks(law.SINK)
def sink(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Put the sink into the bias of one more key of zeros, which every query may attend to."""
    if not _has(subject, "sinks", "bias"):
        return False
    heads = arguments.array("query").shape[-3]
    given = arguments.replaced({"sinks": subject.exact(rng.standard_normal(heads))})
    given = given.plain().replaced({"key_lengths": None, "slopes": None})
    m = given.keys_count or 0
    bias = given["bias"]
    shape = (1, 1, m) if bias is None else bias.shape
    full = np.zeros(shape, given.array("query").dtype) if bias is None else bias
    if full.shape[-1] != m:
        full = np.repeat(full, m, axis=-1)
    column = np.broadcast_to(given.array("sinks")[:, None, None], (*full.shape[:-3], heads, full.shape[-2], 1))
    full = np.broadcast_to(full, (*column.shape[:-1], m))
    changes: dict[str, Any] = {"sinks": None, "bias": np.concatenate([full, column], axis=-1)}
    for path in ("key", "value"):
        x = given.array(path)
        changes[path] = np.concatenate([x, np.zeros_like(x, shape=(*x.shape[:-2], 1, x.shape[-1]))], axis=-2)
    mask = attendable(given)
    if given.mask is not None:
        changes["mask"] = np.concatenate([mask, np.ones((*mask.shape[:-1], 1), bool)], axis=-1)
    _alike(subject, given, given.replaced(changes), "with sinks,")
    return True


@checks(law.SLOPES)
def slopes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Spell slopes out in the bias."""
    if not _has(subject, "slopes", "bias") or subject.semantics.bottom_right:
        return False
    n, m, query = arguments.queries or 0, arguments.keys_count or 0, arguments.array("query")
    powers = subject.exact(2.0 ** -rng.integers(0, 5, query.shape[-3]).astype(float))
    given = arguments.replaced({"slopes": powers, "bias": None})
    distance = np.abs(np.arange(n)[:, None] - np.arange(m))
    exact = -wide(given.array("slopes"))[:, None, None] * distance
    bias = subject.exact(exact)
    if not np.array_equal(wide(bias), exact):
        return False
    _alike(subject, given, given.replaced({"slopes": None, "bias": bias}), "with slopes,")
    return True


@checks(law.NATURAL_LOGARITHM, once=True)
def natural_logarithm(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat all keys; and add 1 to all scores by the bias."""
    if not _has(subject, "log_sum_exp"):
        return False
    given = sample(subject, rng, (2,), queries=3, keys=5)
    (size,) = (given.operation.asked or "",)
    repeated = given.along(size, take(np.tile(np.arange(given.size(size)), 2)))
    pairs = [(repeated, np.log(2.0), "of repeated keys,")]
    if _has(subject, "bias"):
        one = np.ones((1, 1, 1), given.array("query").dtype)
        pairs.append((given.replaced({"bias": one}), 1.0, "of scores that are greater by 1,"))
    before, budgets = doubles(subject.results(given)), subject.budgets(given)
    for changed, more, what in pairs:
        expected = {**before, "log_sum_exp": before["log_sum_exp"] + more}
        total = together(budgets, subject.budgets(changed))
        subject.all_match(subject.results(changed), expected, total, changed, what)
    return True


@checks(law.EMPTY_ROWS)
def empty_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Mask some rows, with a sink and without."""
    if subject.semantics.fully_masked != "zero" or not arguments.queries:
        return False
    mask = attendable(arguments, bottom_right=subject.semantics.bottom_right)
    mask[..., int(rng.integers(arguments.queries)), :] = False
    dead = np.expand_dims(~mask.any(-1), -2)
    masked = arguments.with_mask(mask)
    for given in (masked, masked.replaced({"sinks": None})):
        results = subject.results(given)
        output, found = results["output"], results["log_sum_exp"]
        empty = np.broadcast_to(dead, found.shape)
        subject.holds(bool((output[empty] == 0).all()), "a row without keys is not 0", given, got=output)
        if given["sinks"] is None:
            right = bool((found[empty] == -np.inf).all())
        else:
            sinks = np.broadcast_to(wide(given.array("sinks"))[:, None], found.shape)
            budget = subject.budgets(given)["log_sum_exp"]
            right = bool(
                (np.abs(wide(found) - sinks) <= budget + 2 * subject.precision.output * np.abs(sinks))[empty].all()
            )
        subject.holds(right, "the logarithm of a row without keys is not that of its sink, or −∞", given, got=found)
    return True


# Sequences in one array, and in pages ---------------------------------------------------------------------------------


def _packed(subject: Subject, rng: np.random.Generator) -> tuple[Arguments, list[slice], list[slice]]:
    """Three sequences, of which one has no queries and one no keys, and where each lies."""
    given = sample(subject, rng, queries=7, keys=9, sizes={"sequences": 3})
    n, m = given.queries or 0, given.keys_count or 0
    ends = (np.array([0, n // 2, n - 1, n]), np.array([0, m // 3, m - 2, m]))
    given = given.replaced({"query_ends": ends[0], "key_ends": ends[1]})
    of_queries, of_keys = ([slice(a, b) for a, b in pairwise(e)] for e in ends)
    return given, of_queries, of_keys


def _options(subject: Subject) -> Iterator[dict[str, Any]]:
    """Options under which positions are counted."""
    yield {}
    if _has(subject, "causal"):
        yield {"causal": True}
    if _has(subject, "window"):
        yield {"window": (1, 0)}


@checks(law.PACKED, once=True)
def packed(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compute each sequence alone."""
    base, of_queries, of_keys = _packed(subject, rng)
    for options in _options(subject):
        given = base.replaced(options)
        whole, budgets = doubles(subject.results(given)), subject.budgets(given)
        for i, j in zip(of_queries, of_keys, strict=True):
            alone = given.along("n", take(np.arange(given.size("n"))[i])).along(
                "m", take(np.arange(given.size("m"))[j])
            )
            one = {"query_ends": np.array([0, i.stop - i.start]), "key_ends": np.array([0, j.stop - j.start])}
            alone = Arguments(given.operation, {**alone.values_by_name, **one})
            got = subject.results(alone)
            for path, x in got.items():
                rows = (..., i, slice(None)) if path == "output" else (..., i)
                subject.matches(x, whole[path][rows], 2 * budgets[path][rows], alone, f"of one sequence, the {path}")
    return True


@checks(law.PADDED, once=True)
def padded(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Put the sequences into a batch, behind each numbers that do not count."""
    base, of_queries, of_keys = _packed(subject, rng)
    most = max(s.stop - s.start for s in of_queries), max(s.stop - s.start for s in of_keys)
    values = {path: _rows(base.array(path), of_keys, most[1]) for path in ("key", "value")}
    values["query"] = _rows(base.array("query"), of_queries, most[0])
    values["key_lengths"] = np.array([s.stop - s.start for s in of_keys])
    found = _of_backend(subject, "grouped_query_attention", values)
    if found is None or not _has(subject, "key_lengths"):
        return False
    other, batch = found
    for options in _options(subject):
        given, padded_ones = base.replaced(options), batch.replaced(options)
        if other.semantics.bottom_right:
            continue
        results, budgets = subject.results(given), subject.budgets(given)
        expected = doubles(other.results(padded_ones))
        for b, rows in enumerate(of_queries):
            count = rows.stop - rows.start
            for path, x in results.items():
                features: tuple[Any, ...] = (slice(None),) * (path == "output")
                here: Any = (..., rows, *features)
                there: Any = (b, ..., slice(count), *features)
                title = f"of sequence {b} in a padded batch, the {path}"
                subject.matches(x[here], expected[path][there], 2 * budgets[path][here], given, title)
    return True


def _rows(x: Numbers, parts: Sequence[slice], most: int) -> Numbers:
    """Parts of the rows of x (heads, n, d), each with as many rows: (parts, heads, most, d)."""
    found = np.ones((len(parts), x.shape[0], most, x.shape[-1]), x.dtype)
    for i, part in enumerate(parts):
        found[i, :, : part.stop - part.start] = x[:, part]
    return found


def _paged(subject: Subject, rng: np.random.Generator, pages: int = 6) -> Arguments:
    """Two elements with tables of three pages out of more, lengths that end within a page, one shared page."""
    sizes = {"pages": pages, "blocks": 3, "page": 4, "heads_k": 2, "group": 2}
    given = sample(subject, rng, (2,), queries=3, sizes=sizes)
    order = rng.permutation(pages)
    return given.replaced({"block_table": order[[[0, 1, 2], [1, 3, 4]]], "key_lengths": np.array([10, 5])})


@checks(law.PAGES, once=True)
def pages(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Permute the pages, and number them anew in the table."""
    base = _paged(subject, rng)
    order = rng.permutation(base.size("pages"))
    where = np.argsort(order)
    for options in _options(subject):
        given = base.replaced(options)
        moved = given.along("pages", take(order)).replaced({"block_table": where[given.array("block_table")]})
        what = "with pages in another order, the"
        expected = subject.results(given)
        for path, x in subject.results(moved).items():
            subject.matches(x, wide(expected[path]), 2 * subject.budgets(given)[path], moved, f"{what} {path}")
    return True


@checks(law.UNUSED_PAGES, once=True)
def unused_pages(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN, infinities and large numbers where no element of the batch has rows."""
    given = _paged(subject, rng)
    used = np.zeros((given.size("pages"), given.size("page")), bool)
    for table, length in zip(given.array("block_table"), given.array("key_lengths"), strict=True):
        for j in range(int(length)):
            used[table[j // used.shape[1]], j % used.shape[1]] = True
    before = subject.results(given)
    for poison in (np.nan, np.inf, 1e4):
        changes = {}
        for path in ("key_pages", "value_pages"):
            x = given.array(path)
            changes[path] = np.where(used[:, None, :, None], x, x.dtype.type(poison))
        changed = given.replaced(changes)
        for path, x in subject.results(changed).items():
            expected, budget = wide(before[path]), 2 * subject.budgets(given)[path]
            subject.matches(x, expected, budget, changed, f"with {poison} in rows that are not used, the {path}")
    return True


@checks(law.CONTIGUOUS, once=True)
def contiguous(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Gather the rows; queries are the last positions, which a mask says of those in one piece."""
    base = _paged(subject, rng)
    table, lengths = base.array("block_table"), base.array("key_lengths")
    values: dict[str, Any] = {"query": base.array("query")}
    for path in ("key", "value"):
        rows = np.moveaxis(base.array(f"{path}_pages")[table], -4, -3)
        values[path] = np.ascontiguousarray(rows.reshape(*rows.shape[:-3], -1, rows.shape[-1]))
    n, m = values["query"].shape[-2], values["key"].shape[-2]
    at = lengths[:, None, None] - n + np.arange(n)[:, None]
    for options, near in (({}, np.arange(m) < m), ({"causal": True}, np.arange(m) <= at)):
        if not _has(subject, *options):
            continue
        given = base.replaced(options)
        found = _of_backend(
            subject, "grouped_query_attention", {**values, "mask": near & (np.arange(m) < lengths[:, None, None])}
        )
        if found is None:
            return False
        other, whole = found
        expected, budgets = doubles(other.results(whole)), twice(subject.budgets(given))
        subject.all_match(subject.results(given), expected, budgets, given, "against the rows in one piece,")
    return True


# Latent keys, and parts -----------------------------------------------------------------------------------------------


@checks(law.PLAIN_AND_ABSORBED, once=True)
def plain_and_absorbed(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the reference of attention in groups, on keys and on queries that are projected exactly."""
    for queries, keys in ((5, 3), (2, 6)):
        given = sample(subject, rng, (2,), queries=queries, keys=keys, heads=3)
        small = {path: subject.exact(np.round(4 * wide(x)) / 4) for path, x in given.arrays.items()}
        given = given.replaced(small)
        q, q_r, c, k_r, w_k, w_v = (wide(given.array(leaf.path)) for leaf in given.operation.floats)
        scale = (q.shape[-1] + q_r.shape[-1]) ** -0.5
        heads, rotated = q.shape[-3], np.broadcast_to(k_r[:, None], (2, q.shape[-3], *k_r.shape[1:]))
        k, v = (c[:, None] @ np.swapaxes(w, -1, -2) for w in (w_k, w_v))
        plain = _softmax(np.concatenate([q, q_r], -1), np.concatenate([k, rotated], -1), scale) @ v
        latent = np.broadcast_to(c[:, None], (2, heads, *c.shape[1:]))
        absorbed = _softmax(np.concatenate([q @ w_k, q_r], -1), np.concatenate([latent, rotated], -1), scale)
        for expected, what in ((plain, "plain"), ((absorbed @ latent) @ np.swapaxes(w_v, -1, -2), "absorbed")):
            subject.matches(
                subject.call(given), expected, subject.budget(given), given, f"against the {what} form, the result"
            )
    return True


def _softmax(query: Numbers, key: Numbers, scale: float) -> Numbers:
    scores = scale * (query @ np.swapaxes(key, -1, -2))
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    weights: Numbers = exponentials / exponentials.sum(-1, keepdims=True)
    return weights


def _in_parts(subject: Subject, rng: np.random.Generator) -> tuple[Subject, Arguments, list[Arguments]] | None:
    """Attention in groups by the backend: to all keys, and to parts of them, one without any."""
    attention = subject.beside(OPERATIONS["grouped_query_attention"])
    if attention is None or not _has(attention, "log_sum_exp"):
        return None
    whole = sample(attention, rng, (2,), queries=3, keys=7, sizes={"heads_k": 2, "group": 2})
    cuts = [slice(0, 3), slice(3, 3), slice(3, 7)]
    m = whole.keys_count or 0
    parts = []
    for cut in cuts:
        hidden = np.zeros((3, m), bool)
        hidden[:, cut] = True
        parts.append(whole.with_mask(hidden))
    return attention, whole, parts


def _stacked(subject: Subject, attention: Subject, parts: list[Arguments]) -> Arguments:
    """The results of the parts, as arguments of the operation that merges them."""
    found = [attention.results(part) for part in parts]
    outputs = np.stack([x["output"] for x in found], axis=-2)
    return Arguments(
        subject.operation, {"outputs": outputs, "log_sum_exps": np.stack([x["log_sum_exp"] for x in found], axis=-1)}
    )


@checks(law.MERGED, once=True)
def merged(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Merge what the backend gives for parts of the keys."""
    found = _in_parts(subject, rng)
    if found is None:
        return False
    attention, whole, parts = found
    given = _stacked(subject, attention, parts)
    expected = doubles(attention.results(whole))
    budgets = together(attention.budgets(whole), _moved(subject, attention, given, parts), subject.budgets(given))
    subject.all_match(subject.results(given), expected, budgets, given, "of parts of the keys,")
    return True


def _moved(subject: Subject, attention: Subject, given: Arguments, parts: list[Arguments]) -> Results:
    """How far the errors of the parts may move what they are merged to."""
    outputs, logarithms = wide(given.array("outputs")), wide(given.array("log_sum_exps"))
    budgets = [attention.budgets(part) for part in parts]
    with np.errstate(all="ignore"):
        weights = np.exp(logarithms - logarithms.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        of_logarithms = np.stack([np.nan_to_num(b["log_sum_exp"], posinf=0.0) for b in budgets], axis=-1)
    shift = (weights * of_logarithms).sum(-1)
    direct = (weights[..., None] * np.stack([b["output"] for b in budgets], axis=-2)).sum(-2)
    reach = np.abs(outputs).max(-2) * 4 * shift[..., None]
    return {"output": direct + reach, "log_sum_exp": 2 * shift}


@checks(law.MERGED_GRADIENTS, once=True)
def merged_gradients(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Take cotangents back through the merging and through the attention of every part."""
    found = _in_parts(subject, rng)
    if found is None or subject.dtype not in ("float32", "float64"):
        return False
    attention, whole, parts = found
    cotangents = attention.cotangents(whole, rng)
    expected = attention.gradients(whole, cotangents)
    back = subject.vjp(_stacked(subject, attention, parts), cotangents)
    total: dict[str, Numbers] = {}
    for p, part in enumerate(parts):
        of_part = {"output": back["outputs"][..., p, :], "log_sum_exp": back["log_sum_exps"][..., p]}
        for path, g in attention.vjp(part, {name: np.ascontiguousarray(x) for name, x in of_part.items()}).items():
            total[path] = total.get(path, np.zeros(g.shape)) + wide(g)
    for path, (value, budget) in expected.items():
        slack = 4 * budget + 64 * attention.precision.accumulation * np.abs(value).max(initial=1.0)
        subject.matches(total[path], value, slack, whole, f"through the parts, the gradient of {path}")
    return True


# Positions and masks --------------------------------------------------------------------------------------------------


@checks(law.ROTATION)
def rotation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Squared lengths of rows before and after; and all rows at position 0."""
    x, got, budget = wide(arguments.array("x")), wide(subject.call(arguments)), subject.budget(arguments)
    if not got.size:
        return False
    rows = np.broadcast_to(x, got.shape)
    slack = (2 * np.abs(got) * budget + budget**2).sum(-1)
    subject.matches((got**2).sum(-1), (rows**2).sum(-1), slack, arguments, "the squared length of row")
    if _has(subject, "positions"):
        still = arguments.replaced({"positions": np.zeros(x.shape[-2], np.int64)})
        subject.matches(subject.call(still), x, subject.budget(still), still, "at position 0, the result")
    return True


@checks(law.ROTARY_DISTANCE)
def rotary_distance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Move all positions by one number: all inner products of rows stay."""
    if not _has(subject, "positions") or not np.prod(arguments.binding.result):
        return False
    first = rng.integers(0, 50, arguments.size("n"))
    products, slack = [], np.zeros(())
    for shift in (0, int(rng.integers(1, 50))):
        given = arguments.replaced({"positions": first + shift})
        got, budget = wide(subject.call(given)), subject.budget(given)
        products.append(got @ np.swapaxes(got, -1, -2))
        half = np.abs(got) @ np.swapaxes(budget, -1, -2)
        slack = slack + half + np.swapaxes(half, -1, -2) + budget @ np.swapaxes(budget, -1, -2)
    subject.matches(products[1], products[0], slack, given, f"{shift} positions later, the inner product")
    return True


@checks(law.SLOPE_HALVES, once=True)
def slope_halves(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Slopes of 1 to 16 heads, and of 24."""
    for heads in (*range(1, 17), 24):
        given = Arguments(subject.operation, {"heads": heads})
        got, budget = wide(subject.call(given)), subject.budget(given)
        below = 1 << (heads.bit_length() - 1)
        subject.matches(
            got[:below], got[0] ** np.arange(1, below + 1), 64 * budget[:below], given, "as a power, the slope"
        )
        subject.matches(got[below - 1 : below], np.array([2.0**-8]), budget[below - 1 : below], given, "the last slope")
        twice_as_many = wide(subject.call(Arguments(subject.operation, {"heads": 2 * below})))
        expected = twice_as_many[0::2][: heads - below]
        subject.matches(got[below:], expected, 2 * budget[below:], given, "of the other heads, the slope")
    return True


@checks(law.WINDOW_PARTS)
def window_parts(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Combine the masks of both sides."""

    def mask(left: int | None, right: int | None) -> Numbers:
        return subject.call(arguments.replaced({"window": (left, right)}))

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


@checks(law.DOCUMENTS)
def documents(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Give documents other numbers, and exchange the sides."""
    mask = subject.call(arguments)
    names = rng.permutation(100)
    paths = [leaf.path for leaf in subject.operation.leaves if leaf.kind is Kind.INT]
    renamed = arguments.replaced({path: names[arguments.array(path)] for path in paths})
    subject.matches(
        subject.call(renamed), mask, np.zeros(mask.shape), renamed, "of documents with other names, the mask"
    )
    first, second = paths
    exchanged = Arguments(subject.operation, {first: arguments.array(second), second: arguments.array(first)})
    turned = np.swapaxes(mask, -1, -2)
    subject.matches(subject.call(exchanged), turned, np.zeros(turned.shape), exchanged, "of sides exchanged, the mask")
    return True


@checks(law.DROPOUT_MEAN)
def dropout_mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Keep k of m keys, in every place in turn: each is kept in k of m masks, which is the probability exactly."""
    m = arguments.keys_count or 0
    weights = wide(arguments.array("weights"))
    if m < 2 or not weights.size or not np.isfinite(weights).all():
        return False
    m = min(m, 8)
    given = arguments.along("m", take(np.arange(m)))
    kept = int(rng.integers(1, m))
    pattern = np.arange(m) < kept
    total, slack = np.zeros(()), np.zeros(())
    for shift in range(m):
        dropped = given.replaced({"keep": np.roll(pattern, shift)[None], "rate": 1 - kept / m})
        total = total + wide(subject.call(dropped)) / m
        slack = slack + subject.budget(dropped) / m
    expected = wide(given.array("weights"))
    slack = slack + 16 * np.finfo(np.float64).eps * np.abs(expected)
    subject.matches(total, np.broadcast_to(expected, total.shape), slack, given, "over all masks, the mean")
    return True
