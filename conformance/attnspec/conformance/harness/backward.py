"""Comparison of gradients with the formula's: all, or samples if a call is too large."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from attnspec.conformance.harness.expected import Expected
from attnspec.conformance.harness.parts import JUDGED_PAIRS, Part, elements_with_gradients, pairs, separable, with_rows
from attnspec.conformance.harness.record import Record
from attnspec.conformance.harness.sampled_gradients import SampledGradients
from attnspec.conformance.inputs.arguments import Arguments, Numbers, along, take
from attnspec.conformance.judging.sampled_rows import rows_to_judge
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.spec.contract.tree import Kind

MAX_PAIRS = 2**22
"""Query–key pairs up to which every gradient is judged: per batch element, or in total if elements share arrays."""

EVERY_GRADIENT = "every number of the gradients"
"""Extent of a judgement without samples, as text."""

MAX_ROWS = 64
"""Rows with a nonzero cotangent up to which gradients are computed from these rows alone."""


def judge_gradients(
    record: Record, call: Part, outputs: Results, gradients: Results, rng: np.random.Generator, seed: int
) -> None:
    """Judge gradients by path.

    ``call`` holds the cotangents in place of results, ``outputs`` the actual results. If key gradients of only some
    batch elements are affordable, ``seed`` chooses the first of them. Errors: ``ValueError`` for too large a call.
    """
    count = pairs_with_gradients(call.arguments)
    if count > MAX_PAIRS:
        _judge_samples(record, call, outputs, gradients, rng, seed, count)
        return
    for part, part_gradients, expected in expected_gradients(record.subject, call, gradients):
        for path, g in part_gradients.items():
            ordered = partial(_ordered, path, part, _cotangents(record.subject, part))
            record.compare(g, expected[path], part, f"the gradient of {path}", ordered=ordered)
    record.judged.append(EVERY_GRADIENT)


def pairs_with_gradients(arguments: Arguments) -> int:
    """Return the query–key pairs of a batch element; of the whole call if elements share arrays."""
    return pairs(arguments) // max(prod(arguments.batch), 1) if separable(arguments) else pairs(arguments)


def expected_gradients(
    subject: Subject, call: Part, gradients: Results
) -> Iterator[tuple[Part, Results, dict[str, Expected]]]:
    """Yield parts, their gradients, and the right ones.

    ``call`` holds the cotangents in place of results.
    """
    # Gradients of arrays that elements share have no batch axes, so that ``places`` would not fit.
    alone = [(replace(call, places=()), gradients)]
    for part, part_gradients in elements_with_gradients(call, gradients) if separable(call.arguments) else alone:
        right = subject.gradients(part.arguments, _cotangents(subject, part))
        yield part, part_gradients, {path: Expected(*right[path]) for path in part_gradients}


def _cotangents(subject: Subject, part: Part) -> Results:
    float_outputs = (leaf for leaf in subject.operation.outputs if leaf.kind is Kind.FLOAT)
    return {leaf.path: part.results[leaf.path] for leaf in float_outputs}


def _ordered(path: str, part: Part, cotangents: Results, subject: Subject) -> Expected:
    return Expected(*subject.gradients(part.arguments, cotangents)[path])


def _judge_samples(
    record: Record, call: Part, outputs: Results, gradients: Results, rng: np.random.Generator, seed: int, count: int
) -> None:
    """Judge samples of gradients: query gradients in some rows, other gradients at some keys.

    Each query row has its own gradient. Gradients of other arguments are sums over all rows. They can be judged if the
    cotangent is 0 in all but ``MAX_ROWS`` rows, or if scores are dot products.
    """
    subject, arguments = record.subject, call.arguments
    operation, query_size = subject.operation, subject.operation.query_size or ""
    most_rows = int(np.clip(JUDGED_PAIRS // max(pairs(arguments, 1), 1), 4, MAX_ROWS))
    rows = rows_to_judge(subject, arguments, most_rows, rng) if separable(arguments) else None
    if rows is None:
        raise ValueError(
            f"{operation.name}: gradients: expected at most {MAX_PAIRS:,} query–key pairs, because rows "
            f"cannot be judged separately; got {count:,}"
        )
    cotangent_rows = _nonzero_rows(record, call)
    summed = [path for path in gradients if query_size not in arguments.leaves[path].sizes]
    dots = SampledGradients.of(record, seed)
    if len(cotangent_rows) <= MAX_ROWS:
        remark = ", the only ones with a nonzero cotangent" if summed else ""
        _judge_rows(record, call, gradients, cotangent_rows, remark)
    elif dots is not None:
        dots.judge(call, outputs, gradients, rows, rng)
    elif summed:
        raise ValueError(
            f"{operation.name}: the gradient of {summed[0]}: expected a cotangent of 0 in all but {MAX_ROWS} rows, or "
            f"at most {MAX_PAIRS:,} query–key pairs; got {len(cotangent_rows):,} rows and {count:,} pairs"
        )
    else:
        _judge_rows(record, call, gradients, rows, "")


def _judge_rows(record: Record, call: Part, gradients: Results, rows: Numbers, remark: str) -> None:
    subject, arguments = record.subject, call.arguments
    query_size = subject.operation.query_size or ""
    for element, element_gradients in elements_with_gradients(call, gradients, len(rows)):
        part = with_rows(subject, element, rows)
        cotangents = _cotangents(subject, part)
        expected = subject.gradients(part.arguments, cotangents)
        for path, g in element_gradients.items():
            leaf = arguments.leaves[path]
            has_rows = query_size in leaf.sizes
            judged_rows = along(g, leaf, query_size, element.arguments.binding, take(rows)) if has_rows else g
            row = len(leaf.core) + leaf.axes(query_size)[0] if has_rows else None
            right, ordered = Expected(*expected[path]), partial(_ordered, path, part, cotangents)
            record.compare(judged_rows, right, part, f"the gradient of {path}", row, ordered)
    record.judged.append(f"the gradients of {len(rows):,} rows{remark}")


def _nonzero_rows(record: Record, call: Part) -> Numbers:
    """Return the indices of rows with a nonzero cotangent in any batch element."""
    query_size = record.subject.operation.query_size or ""
    nonzero: set[int] = set()
    for leaf in record.subject.operation.outputs:
        if leaf.kind is Kind.FLOAT:
            x = call.results[leaf.path]
            (axis,) = leaf.axes(query_size)
            rows = np.moveaxis(x != 0, x.ndim + axis, 0).reshape(x.shape[axis], -1).any(-1)
            nonzero.update(map(int, np.flatnonzero(rows)))
    return np.array(sorted(nonzero), dtype=np.intp)
