"""Comparison of sampled rows, for results with too many rows for the oracle."""

from math import prod

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, along, take
from attnspec.conformance.inputs.attendance import mask_options, with_explicit_mask
from attnspec.conformance.judging.subject import Subject
from attnspec.spec.contract.axes import Axis

MAX_ROWS = 24
"""Most rows judged per batch element."""

MAX_PAIRS = 2**17
"""Most pairs of a query and a key per call of the oracle."""

TILES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Tile sizes of kernels: the rows before and after a tile's border are sampled first."""


def sample_indices(count: int, most: int, rng: np.random.Generator) -> Numbers:
    """At most ``most`` sorted indices below ``count``: first, last, at tile borders, and random ones."""
    if count <= most:
        return np.arange(count)
    borders = [border + side for border in TILES for side in (0, -1) if border + side < count]
    ends = [0, count - 1]
    near = rng.permutation([x for x in borders if x not in ends])[: max((most - len(ends)) * 2 // 3, 0)]
    chosen = {*ends, *map(int, near)}
    others = rng.permutation([x for x in range(count) if x not in chosen])[: max(most - len(chosen), 0)]
    return np.array(sorted({*chosen, *map(int, others)}))


def judge_rows(
    subject: Subject, arguments: Arguments, rng: np.random.Generator, what: str = "", most: int = MAX_ROWS
) -> bool:
    """Compare a result with the oracle: all rows, or a sample per batch element.

    Rows are sampled only if each depends on its own query alone; the other rows count as not judged. ``what`` names the
    result in messages. Return whether the inputs are in the domain.
    """
    rows = rows_to_judge(subject, arguments, most, rng)
    if rows is None:
        if not subject.in_domain(arguments):
            return False
        subject.follows_formula(arguments, what)
        return True
    operation, query = subject.operation, subject.operation.query_size or ""
    results = subject.results(arguments)
    pairs_per_row = max(prod(arguments.batch) * (arguments.keys_count or 1), 1)
    for chosen in np.array_split(rows, -(-len(rows) * pairs_per_row // MAX_PAIRS)):
        part = with_explicit_mask(arguments, chosen, semantics=subject.semantics)
        if not subject.in_domain(part):
            return False
        expected = subject.oracles(part)
        for leaf in operation.outputs:
            got = along(results[leaf.path], leaf, query, arguments.binding, take(chosen))
            title = f"{what} in {len(rows)} of {arguments.queries} rows, {subject.title_of(leaf)}".strip()
            subject.demand_match(got, expected[leaf.path].value, expected[leaf.path].budget, part, title)
    left = 1 - len(rows) / (arguments.queries or 1)
    subject.not_judged += round(left * sum(results[leaf.path].size for leaf in operation.outputs))
    return True


def rows_to_judge(subject: Subject, arguments: Arguments, most: int, rng: np.random.Generator) -> Numbers | None:
    """The rows to sample; None for all, if they are few or not independent."""
    operation, count = subject.operation, arguments.queries or 0
    query, mask = operation.query_size, operation.mask
    if query is None or count <= most or operation.attends_to_itself or query not in operation.order_free(Axis.QUERY):
        return None
    if any(query not in leaf.sizes for leaf in operation.outputs):
        return None
    # Sampling renumbers rows. A mask can express causal flag, window and lengths instead, but not ALiBi slopes.
    in_mask = {*mask_options(operation)} if mask is not None and query in mask.sizes else set()
    non_default = [path for path in operation.ordered if arguments[path] is not operation.defaults[path]]
    return None if {*non_default} - in_mask else sample_indices(count, most, rng)
