"""A guess at what is wrong with one result, from the element of the batch and the rows around its worst number."""

import numpy as np

from attnspec.conformance.harness.parts import Part, pairs, with_rows
from attnspec.conformance.judging.rows import rows_to_judge
from attnspec.conformance.judging.subject import Subject

PAIRS = 2**16
"""Pairs of a query and a key in an element up to which all of its rows are compared with known defects."""

ROWS = 16
"""Rows that are compared where there are more; what makes them causal is then spelled out in a mask."""


def diagnosis(subject: Subject, part: Part, index: tuple[int, ...], row: int | None) -> str:
    """The known defect with the numbers of a wrong part of a result, in a sentence; empty if there is none.

    ``index`` is the place of its worst number, ``row`` the axis of rows behind those of the batch.
    """
    # It loads all mutants, which nobody needs whose results are right.
    from attnspec.conformance.explaining.inquiry import diagnosis_of_result
    from attnspec.conformance.mutants.ignored import dropped, optional_of

    element = index[: len(part.arguments.batch)]
    one = Part(part.arguments.element(element), {path: x[element] for path, x in part.results.items()}, ())
    many = pairs(one.arguments) > PAIRS
    rows = rows_to_judge(subject, one.arguments, ROWS, np.random.default_rng(0)) if many else None
    if rows is not None:
        worst = [] if row is None else [index[len(element) + row]]
        one = with_rows(subject, one, np.unique([*rows, *worst]))
    passed = part.arguments.passed
    # A mask in which a causal flag is spelled out is none that the caller has passed.
    absent = {dropped(name) for name in optional_of(subject.operation) if passed.get(name) is None}
    found = diagnosis_of_result(subject, one.arguments, one.results, without=absent)
    return "" if found is None else found.sentence
