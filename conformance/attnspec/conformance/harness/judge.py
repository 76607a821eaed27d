"""``judge``: comparison of one attention result with the formula, in one line of any test harness."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.harness import reading
from attnspec.conformance.harness.backward import judge_gradients
from attnspec.conformance.harness.ensemble import Ensemble
from attnspec.conformance.harness.expected import Expected, expected, on_all_cores, one_blas_thread
from attnspec.conformance.harness.filters import extent as extent_of_groups
from attnspec.conformance.harness.filters import shared_error
from attnspec.conformance.harness.hidden_defects import hidden_defects
from attnspec.conformance.harness.other_readings import Call, right_reading
from attnspec.conformance.harness.parts import Part, extent, pairs, parts, whole, with_rows
from attnspec.conformance.harness.record import Record, declared_to_raise
from attnspec.conformance.harness.verdict import Verdict
from attnspec.conformance.judging.sampled_rows import rows_to_judge
from attnspec.conformance.judging.subject import Subject
from attnspec.spec.contract.operation import OPERATIONS, Operation

DIAGNOSED_PAIRS = 2**16
"""Query–key pairs per batch element up to which all rows are compared with known defects."""

DIAGNOSED_NUMBERS = 2**21
"""Numbers in all arguments up to which calls with quantised operands are diagnosed whole."""

DIAGNOSED_ROWS = 16
"""Number of rows compared with known defects in larger batch elements; a mask then replaces the causal flag."""


def judge(
    operation: str,
    output: Any,
    *arguments: Any,
    precision: str | Mapping[str, Any] | None = None,
    semantics: Mapping[str, Any] | None = None,
    gradients: Mapping[str, Any] | None = None,
    cotangent: Any = None,
    seed: int = 0,
    ensembles: bool = True,
    **options: Any,
) -> Verdict:
    """Compare ``output`` with the operation's right result for these arguments, within every number's budget.

    ``output`` and ``arguments`` are arrays of any framework on any device, or trees of them, named and ordered as in
    the operation's Protocol. ``precision`` is the name of a precision class, or maps dtypes to names as a backend
    declares them. ``semantics`` maps questions to declared choices.

    If a result has too many rows for the oracle, some rows of every batch element, chosen by ``seed``, are judged, with
    all keys. If every number is within its budget, errors that many rows share are searched too, unless ``ensembles``
    is False.

    ``gradients`` by argument path, those of ⟨cotangent, output⟩, are judged too. In large calls query gradients are
    judged in some rows. Key and value gradients are judged at some keys if scores are dot products. All others need a
    cotangent that is 0 in all but a few rows.

    Errors: ``ValueError`` for an unknown operation, class or choice, or for gradients that cannot be judged;
    ``TypeError`` for unreadable or unknown arguments; ``ShapeError`` for a shape that violates the Protocol. NaN in a
    result is no error; it is judged like any number.
    """
    described = reading.without_results(reading.operation_named(operation, "judge"), output)
    inputs = reading.arguments_of(described, arguments, options)
    results = reading.results_of(described, output, inputs, "output")
    dtype, inputs = reading.in_one_dtype(described, inputs, results)
    reading.demand_dtype(described, results, dtype, "output")
    subject = reading.subject_of(described, dtype, precision, semantics, inputs)
    rng = reading.generator(seed, "judge")
    record = Record(subject)
    _judge_results(record, whole(inputs, results), rng, ensembles)
    if gradients is not None:
        cotangents = reading.cotangent_of(described, cotangent, inputs, dtype)
        gradient_arrays = reading.gradients_of(described, gradients, inputs, dtype)
        judge_gradients(record, whole(inputs, cotangents), results, gradient_arrays, rng, seed)
    elif cotangent is not None:
        raise TypeError(f"{operation}: gradients: expected a mapping, because a cotangent is passed; got None")

    def verdict_on(call: Call) -> Verdict:
        other = Record(call.subject)
        _judge_results(other, whole(call.arguments, call.results), reading.generator(seed, "judge"), ensembles)
        return other.verdict()

    if gradients is None:
        record.propose = partial(right_reading, Call(subject, inputs, results), verdict_on)
    return record.verdict()


def _judge_results(record: Record, call: Part, rng: np.random.Generator, ensembles: bool) -> None:
    subject, operation = record.subject, record.subject.operation
    record.outside = declared_to_raise(subject, call.arguments)
    judged_parts = list(parts(subject, call, rng))
    # The subject's backend is a placeholder: the dtype of `alibi_slopes`, say, is read from these results.
    for part in judged_parts:
        part.arguments.memo["results"] = part.results
    with on_all_cores() as map_parts:
        expectations_of_parts = map_parts(partial(expected, subject), judged_parts)
        for part, expectations in zip(judged_parts, expectations_of_parts, strict=True):
            for leaf in operation.outputs:
                axes = leaf.axes(operation.query_size or "")
                row = len(leaf.core) + axes[0] if axes else None

                def ordered(subject: Subject, part: Part = part, path: str = leaf.path) -> Expected:
                    return expected(subject, part)[path]

                right = expectations[leaf.path]
                record.compare(part.results[leaf.path], right, part, subject.title_of(leaf), row, ordered)
        if record.where is not None:
            part, index, row = record.where
            quantized = bool(call.arguments.quantized)
            where = (call, part.place(index, row), row) if quantized else record.where
            record.diagnose = partial(diagnosis, subject, *where)
        ensemble = Ensemble(subject, call.arguments, judged_parts)
        record.hidden = partial(hidden_defects, ensemble, together=ensembles)
        if not ensembles:
            record.ensemble = "not tested, because ensembles=False"
        elif record.worst is None and not record.outside and operation.float_result:
            ensemble.map_parts = map_parts
            record.together, record.ensemble = shared_error(ensemble), extent_of_groups(ensemble)
            ensemble.map_parts = map
    record.judged.append(extent(call, judged_parts) + _missing_results(operation))


def _missing_results(operation: Operation) -> str:
    missing = {leaf.path for leaf in OPERATIONS[operation.name].outputs} - {leaf.path for leaf in operation.outputs}
    return f", without {', '.join(sorted(missing))}, which was not passed" if missing else ""


def diagnosis(subject: Subject, part: Part, index: tuple[int, ...], row: int | None) -> str:
    """Return a sentence on the known defect that has a wrong part's numbers; empty without one.

    ``index`` is the place of the part's worst number, ``row`` the axis of rows, counted after the batch axes. Known
    defects are compared on this number's batch element, or on all of them.
    """
    # Imported here because it loads all mutants, which right results never need.
    from attnspec.conformance.explaining.inquiry import diagnosis_of_result
    from attnspec.conformance.mutants.ignored import mutant_name, optional_of

    batch_axes = len(part.arguments.batch)
    numbers = sum(x.size for _, x in part.arguments.leaf_arrays)
    # The scale of another head shows only in a call with several.
    if part.arguments.quantized and numbers <= DIAGNOSED_NUMBERS:
        judged_part = Part(part.arguments, part.results, ())
    else:
        element = index[:batch_axes]
        judged_part = Part(part.arguments.element(element), {path: x[element] for path, x in part.results.items()}, ())
    large = pairs(judged_part.arguments) > DIAGNOSED_PAIRS
    rows = rows_to_judge(subject, judged_part.arguments, DIAGNOSED_ROWS, np.random.default_rng(0)) if large else None
    if rows is not None:
        worst = [] if row is None else [index[batch_axes + row]]
        judged_part = with_rows(subject, judged_part, np.unique([*rows, *worst]))
    passed_arguments = part.arguments.passed
    # A mask that spells out a causal flag was not passed by the caller.
    absent = {mutant_name(name) for name in optional_of(subject.operation) if passed_arguments.get(name) is None}
    # Threads would wait for each other in matrices this small, and use up the time of the diagnosis.
    with one_blas_thread():
        defect = diagnosis_of_result(subject, judged_part.arguments, judged_part.results, without=absent)
    return "" if defect is None else defect.sentence
