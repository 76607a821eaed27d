"""``judge``: compare one attention result with the formula, in one line of any harness."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from attnspec.conformance.explaining.classes import LEAST_USED, exact_scale, explaining_classes, widest
from attnspec.conformance.harness.backward import judge_gradients
from attnspec.conformance.harness.choices import expected
from attnspec.conformance.harness.filters import accusation, extent
from attnspec.conformance.harness.hidden import hidden
from attnspec.conformance.harness.parts import Part, count_of_heads, own_heads, pairs, parts, whole, with_rows
from attnspec.conformance.harness.reading import (
    arguments_of,
    cotangent_of,
    demand_dtype,
    generator,
    gradients_of,
    in_one_dtype,
    operation_named,
    results_of,
    subject_of,
    without_results,
)
from attnspec.conformance.harness.record import Record
from attnspec.conformance.harness.together import Ensemble
from attnspec.conformance.harness.verdict import Verdict
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.rows import rows_to_judge
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.spec.contract.operation import OPERATIONS, Operation

DIAGNOSED_PAIRS = 2**16
"""Query–key pairs per element up to which all of its rows are compared with known defects."""

DIAGNOSED_ROWS = 16
"""Rows compared in larger elements; a mask then replaces the causal flag."""


def judge(
    operation: str,
    output: Any,
    *arguments: Any,
    precision: str | Mapping[str, Any] | None = None,
    semantics: Mapping[str, Any] | None = None,
    gradients: Mapping[str, Any] | None = None,
    cotangent: Any = None,
    seed: int = 0,
    **options: Any,
) -> Verdict:
    """Judge whether ``output`` is the operation's result for these arguments, within every number's budget.

    ``output`` and ``arguments`` are arrays of any framework on any device, or trees of them, named and ordered as in
    the operation's Protocol. If a result has more rows than the oracle affords, ``seed`` chooses some rows of every
    batch element, which are judged against all keys. Numbers within their budgets are also judged together.
    ``precision`` is the name of a class, or a backend's declaration, as is ``semantics``. ``gradients``, by path, are
    those of ⟨cotangent, output⟩ and are judged too. With too many query–key pairs, gradients of queries are judged in
    some rows, those of keys and values at some keys if scores are dot products, and others if the cotangent is 0 in all
    but a few rows.

    Errors: ``ValueError`` for an unknown operation, class or choice, or for gradients that cannot be judged;
    ``TypeError`` for unreadable or unknown arguments; ``ShapeError`` for a shape that violates the Protocol. NaN in a
    result is judged, not rejected.
    """
    described_as = without_results(operation_named(operation, "judge"), output)
    given = arguments_of(described_as, arguments, options)
    found = results_of(described_as, output, given, "output")
    dtype, given = in_one_dtype(described_as, given, found)
    demand_dtype(described_as, found, dtype, "output")
    subject = subject_of(described_as, dtype, precision, semantics)
    rng = generator(seed, "judge")
    record = Record(subject)
    _judge_results(record, whole(given, found), rng)
    if gradients is not None:
        weights = cotangent_of(described_as, cotangent, given, dtype)
        asked = gradients_of(described_as, gradients, given, dtype)
        judge_gradients(record, whole(given, weights), found, asked, rng, seed)
    elif cotangent is not None:
        raise TypeError(f"{operation}: gradients: expected a mapping, for there is a cotangent; got None")
    record.propose = partial(_class_that_explains, subject, given, found, seed) if gradients is None else str
    return record.verdict()


def _class_that_explains(subject: Subject, given: Arguments, found: Results, seed: int) -> str:
    """Return the narrowest class under which a wrong result is right; empty if there is none."""
    declared = subject.contract.precision.name(subject.operation.name, subject.dtype)
    classes = explaining_classes(declared, subject.dtype, exact_scale(given))

    def under(name: str) -> Verdict:
        record = Record(subject_of(subject.operation, subject.dtype, name, vars(subject.semantics)))
        # A copy, without the remembered budgets of another class.
        _judge_results(record, whole(given.replaced({}), found), generator(seed, "judge"))
        return record.verdict()

    if not classes or under(widest(classes[-1])).worst is not None:
        return ""
    verdicts = ((name, under(name)) for name in classes)
    return next((name for name, verdict in verdicts if verdict and verdict.ratio >= LEAST_USED), "")


def _judge_results(record: Record, given: Part, rng: np.random.Generator) -> None:
    subject, operation = record.subject, record.subject.operation
    chosen = list(parts(subject, given, rng))
    for part in chosen:
        part.arguments.memo["results"] = part.results
    # Threads of the BLAS would compete with these threads.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count()) as threads:
        for part, wanted in zip(chosen, threads.map(lambda part: expected(subject, part), chosen), strict=True):
            for leaf in operation.outputs:
                axes = leaf.axes(operation.asking or "")
                row = len(leaf.core) + axes[0] if axes else None
                record.compare(part.results[leaf.path], wanted[leaf.path], part, subject.titled(leaf), row)
        if record.where is not None:
            record.diagnose = partial(diagnosis, subject, *record.where)
        ensemble = Ensemble(subject, given.arguments, chosen)
        record.hidden = partial(hidden, ensemble)
        if record.worst is None and not record.outside and operation.float_result:
            ensemble.each = threads.map
            record.together, record.ensemble = accusation(ensemble), extent(ensemble)
            ensemble.each = map
    record.judged.append(_extent(given, chosen) + _lacking(operation))


def _lacking(operation: Operation) -> str:
    """Return a note on results that the caller did not pass."""
    lacking = {leaf.path for leaf in OPERATIONS[operation.name].outputs} - {leaf.path for leaf in operation.outputs}
    return f", without {', '.join(sorted(lacking))}, which is not given" if lacking else ""


def _extent(given: Part, chosen: list[Part]) -> str:
    """Describe how much of a result is judged."""
    if not any(x.size for x in given.results.values()):
        return "nothing, for the result is empty"
    rows = chosen[-1].rows
    if rows is None:
        return "every number"
    elements, queries = prod(given.arguments.batch), given.arguments.queries
    heads = count_of_heads(given.arguments) if own_heads(given.arguments.operation) else 1
    groups = [f"of each of {heads:,} heads"] if heads > 1 else []
    groups += [f"of each of {elements:,} elements of the batch"] if elements > 1 else []
    return " ".join([f"{len(rows):,} of {queries:,} rows", *groups]) + ", with all keys"


def diagnosis(subject: Subject, part: Part, index: tuple[int, ...], row: int | None) -> str:
    """Return a sentence on the known defect that gives a wrong part's numbers; empty without one.

    ``index`` is the place of its worst number, ``row`` the axis of rows after those of the batch.
    """
    # Imported here because it loads all mutants, which right results never need.
    from attnspec.conformance.explaining.inquiry import diagnosis_of_result
    from attnspec.conformance.mutants.ignored import dropped, optional_of

    element = index[: len(part.arguments.batch)]
    one = Part(part.arguments.element(element), {path: x[element] for path, x in part.results.items()}, ())
    many = pairs(one.arguments) > DIAGNOSED_PAIRS
    rows = rows_to_judge(subject, one.arguments, DIAGNOSED_ROWS, np.random.default_rng(0)) if many else None
    if rows is not None:
        worst = [] if row is None else [index[len(element) + row]]
        one = with_rows(subject, one, np.unique([*rows, *worst]))
    passed = part.arguments.passed
    # A mask that spells out a causal flag was not passed by the caller.
    absent = {dropped(name) for name in optional_of(subject.operation) if passed.get(name) is None}
    found = diagnosis_of_result(subject, one.arguments, one.results, without=absent)
    return "" if found is None else found.sentence
