"""Gradients against the formula's: all of them, or some rows of calls with too many pairs."""

from dataclasses import replace
from math import prod

import numpy as np

from attnspec.conformance.harness.choices import Expected
from attnspec.conformance.harness.dots import Dots
from attnspec.conformance.harness.parts import PAIRS, Part, of_elements, pairs, separable, with_rows
from attnspec.conformance.harness.record import Record
from attnspec.conformance.inputs.arguments import Numbers, along, take
from attnspec.conformance.judging.rows import rows_to_judge
from attnspec.conformance.judging.subject import Results
from attnspec.spec.contract.tree import Kind

MOST_PAIRS = 2**22
"""Most query–key pairs with every gradient judged: per batch element, or in all if elements share an argument."""

MOST_ROWS = 64
"""Largest number of rows with a nonzero cotangent for which gradients are computed from these rows."""


def judge_gradients(
    record: Record, given: Part, outputs: Results, found: Results, rng: np.random.Generator, seed: int
) -> None:
    """Judge gradients by path; ``given`` holds the cotangents as its results, ``outputs`` the actual results.

    If not all elements of the batch are affordable, ``seed`` chooses the first one.

    Errors: ``ValueError`` for more pairs than can be judged.
    """
    arguments = given.arguments
    apart = separable(arguments)
    most = pairs(arguments) // max(prod(arguments.batch), 1) if apart else pairs(arguments)
    if most > MOST_PAIRS:
        _judge_some(record, given, outputs, found, rng, seed, most)
        return
    for part, own in of_elements(given, found) if apart else [(replace(given, places=()), found)]:
        expected = record.subject.gradients(part.arguments, _cotangents(record, part))
        for path, g in own.items():
            record.compare(g, Expected(*expected[path]), part, f"the gradient of {path}")
    record.judged.append("every number of the gradients")


def _cotangents(record: Record, part: Part) -> Results:
    floats = (leaf for leaf in record.subject.operation.outputs if leaf.kind is Kind.FLOAT)
    return {leaf.path: part.results[leaf.path] for leaf in floats}


def _judge_some(
    record: Record,
    given: Part,
    outputs: Results,
    found: Results,
    rng: np.random.Generator,
    seed: int,
    most: int,
) -> None:
    """Judge query gradients in some independent rows, and other gradients at some keys.

    A query row has its own gradient. Gradients of other arguments are sums over rows: they are judged if the cotangent
    is 0 in all but a few rows, or if scores are dot products.
    """
    subject, arguments = record.subject, given.arguments
    operation, asking = subject.operation, subject.operation.asking or ""
    count = int(np.clip(PAIRS // max(pairs(arguments, 1), 1), 4, MOST_ROWS))
    rows = rows_to_judge(subject, arguments, count, rng) if separable(arguments) else None
    if rows is None:
        raise ValueError(
            f"{operation.name}: gradients: expected at most {MOST_PAIRS:,} pairs of a query and a key where rows "
            f"cannot be judged by themselves; got {most:,}"
        )
    asked = _nonzero_rows(record, given)
    summed = [path for path in found if asking not in arguments.leaves[path].sizes]
    dots = Dots.of(record, seed)
    if len(asked) <= MOST_ROWS:
        _judge_rows(record, given, found, asked, ", which are all that the cotangent asks for" if summed else "")
    elif dots is not None:
        dots.judge(given, outputs, found, rows, rng)
    elif summed:
        raise ValueError(
            f"{operation.name}: the gradient of {summed[0]}: expected a cotangent of 0 in all but {MOST_ROWS} rows, or "
            f"at most {MOST_PAIRS:,} pairs of a query and a key; got {len(asked):,} rows and {most:,} pairs"
        )
    else:
        _judge_rows(record, given, found, rows, "")


def _judge_rows(record: Record, given: Part, found: Results, rows: Numbers, every: str) -> None:
    subject, arguments = record.subject, given.arguments
    asking = subject.operation.asking or ""
    for whole, own in of_elements(given, found, len(rows)):
        part = with_rows(subject, whole, rows)
        expected = subject.gradients(part.arguments, _cotangents(record, part))
        for path, g in own.items():
            leaf = arguments.leaves[path]
            of_rows = asking in leaf.sizes
            got = along(g, leaf, asking, whole.arguments.binding, take(rows)) if of_rows else g
            row = len(leaf.core) + leaf.axes(asking)[0] if of_rows else None
            record.compare(got, Expected(*expected[path]), part, f"the gradient of {path}", row)
    record.judged.append(f"the gradients of {len(rows):,} rows{every}")


def _nonzero_rows(record: Record, given: Part) -> Numbers:
    """Return the rows in which any element of the batch has a nonzero cotangent."""
    asking = record.subject.operation.asking or ""
    found: set[int] = set()
    for leaf in record.subject.operation.outputs:
        if leaf.kind is Kind.FLOAT:
            x = given.results[leaf.path]
            (axis,) = leaf.axes(asking)
            rows = np.moveaxis(x != 0, x.ndim + axis, 0).reshape(x.shape[axis], -1).any(-1)
            found.update(map(int, np.flatnonzero(rows)))
    return np.array(sorted(found), dtype=np.intp)
