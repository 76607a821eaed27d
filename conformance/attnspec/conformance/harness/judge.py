"""``judge``: one result of anybody's attention against the formula, in one line of anybody's harness."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from attnspec.conformance.harness.arrays import EIGHT_BITS, read
from attnspec.conformance.harness.parts import Part, of_elements, pairs, parts, separable, whole
from attnspec.conformance.harness.verdict import Verdict, Worst
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.running.selection import unknown_name
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.shapes import ShapeError, bind, results
from attnspec.spec.contract.tree import Kind, Leaf, Misfit, as_tuple, described, flatten, mapped

MOST_PAIRS = 2**22
"""Pairs of a query and a key up to which gradients are judged, in an element of the batch."""


class _Given:
    """A backend whose results are known already."""

    name = "the given result"

    def __init__(self, operation: str, precision: Any, semantics: Any) -> None:
        self.precision, self.semantics = precision, semantics
        setattr(self, operation, lambda *arguments, **options: None)


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
    """Whether ``output`` is what the operation gives for these arguments, within the budget of every number.

    ``output`` and ``arguments`` are arrays of any framework on any device, as the operation's Protocol names and
    orders them, or trees of them. Where a result has more rows than the oracle affords, some rows of every element of
    the batch are judged, chosen by ``seed``, against all keys. ``precision`` is the name of a class, or what a backend
    declares, as is ``semantics``. ``gradients`` are by path those of ⟨cotangent, output⟩, and are judged too.

    Errors: ``ValueError`` for an unknown operation, class or choice, or for gradients of more pairs of a query and a
    key than can be judged; ``TypeError`` for what cannot be read, or is no argument; ``ShapeError`` for a shape that
    violates the Protocol. NaN in a result is a verdict.
    """
    if operation not in OPERATIONS:
        raise ValueError(unknown_name("judge", operation, OPERATIONS))
    described_as = OPERATIONS[operation]
    given = _arguments(described_as, arguments, options)
    found = _results(described_as, output, given, "output")
    dtype, given = _in_one_dtype(described_as, given, found)
    declared = {dtype: precision} if isinstance(precision, str) else precision
    subject = Subject(
        backend := _Given(operation, declared, semantics), Contract.of(backend), described_as, dtype, "cpu"
    )
    rng = np.random.default_rng(seed)
    record = _Record(subject)
    _judge_results(record, whole(given, found), rng)
    if gradients is not None:
        weights = _results(described_as, cotangent, given, "cotangent")
        _judge_gradients(record, whole(given, weights), _gradients(described_as, gradients, given))
    elif cotangent is not None:
        raise TypeError(f"{operation}: gradients: expected a mapping, for there is a cotangent; got None")
    return record.verdict()


def _arguments(operation: Operation, positional: tuple[Any, ...], options: Mapping[str, Any]) -> Arguments:
    """The arguments as NumPy arrays; ``TypeError`` for what the operation does not take."""
    names = operation.call.names
    if len(positional) > len(names):
        raise TypeError(f"{operation.name}: expected at most {len(names)} arguments; got {len(positional)}")
    values = dict(zip(names, positional, strict=False))
    for name, value in options.items():
        if name not in names:
            raise TypeError(unknown_name(operation.name, name, names))
        if name in values:
            raise TypeError(f"{operation.name}: {name}: expected one value; got two")
        values[name] = value
    lacking = [name for name in names if name not in values and name not in operation.defaults]
    if lacking:
        raise TypeError(f"{operation.name}: {lacking[0]}: expected an argument; got none")
    try:
        kinds = {leaf.path: leaf for leaf, _ in described(operation.call, values) if isinstance(leaf, Leaf)}
    except Misfit as error:
        raise TypeError(f"{operation.name}: {error}") from None

    def convert(path: str, x: Any) -> Any:
        return read(x, f"{operation.name}: {path}") if path in kinds and x is not None else x

    found = {name: mapped(value, convert, name) for name, value in values.items()}
    bind(operation, found)
    return Arguments(operation, found)


def _results(operation: Operation, value: Any, given: Arguments, what: str) -> Results:
    """The arrays of a result, or of a cotangent, of the shapes that belong to the arguments."""
    try:
        leaves = results(operation, value)
    except Misfit as error:
        raise TypeError(f"{operation.name}: {what}: {error}") from None
    found: Results = {}
    for leaf, x in leaves:
        title = what if leaf.path == "result" else f"{what} {leaf.path}"
        array, expected = read(x, f"{operation.name}: {title}"), given.binding.shape(leaf)
        if array.shape != expected:
            raise ShapeError(operation.name, title, f"shape {as_tuple(expected)}", as_tuple(array.shape))
        if array.dtype.kind in "OUSMmc":
            raise TypeError(f"{operation.name}: {title}: expected real numbers; got {array.dtype}")
        found[leaf.path] = array
    return found


def _gradients(operation: Operation, gradients: Mapping[str, Any], given: Arguments) -> Results:
    """The gradients by path, of the shapes of the arguments."""
    known = {leaf.path: x for leaf, x in given.floats}
    found: Results = {}
    for path, g in flatten(dict(gradients)).items():
        if path not in known:
            raise ValueError(unknown_name(f"{operation.name}: gradients", path, known))
        found[path] = read(g, f"{operation.name}: the gradient of {path}")
        if found[path].shape != known[path].shape:
            expected, got = as_tuple(known[path].shape), as_tuple(found[path].shape)
            raise ShapeError(operation.name, f"the gradient of {path}", f"shape {expected}", got)
    return found


def _in_one_dtype(operation: Operation, given: Arguments, found: Results) -> tuple[str, Arguments]:
    """The dtype of all float arrays, and the arguments in it."""
    dtypes = {leaf.path: str(x.dtype.name) for leaf, x in given.floats}
    if dtypes and set(dtypes.values()) <= EIGHT_BITS:
        # They are exact in the dtype of the result.
        dtype = str(found[operation.leading.path].dtype.name)
        given = given.replaced({leaf.path: x.astype(numpy_dtype(dtype)) for leaf, x in given.floats})
        dtypes = dict.fromkeys(dtypes, dtype)
    if not dtypes:
        return str(found[operation.leading.path].dtype.name), given
    if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= set(DEFAULTS):
        got = ", ".join(f"{path} in {dtype}" for path, dtype in dtypes.items())
        raise TypeError(f"{operation.name}: expected floats in one of {', '.join(DEFAULTS)}; got {got}")
    return next(iter(dtypes.values())), given


class _Record:
    """What became of all comparisons; ``outside`` says why some could tell nothing."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.worst: Worst | None = None
        self.compared = 0
        self.judged: list[str] = []
        self.outside = ""

    def compare(
        self, got: Numbers, expected: Numbers, budget: Numbers, part: Part, of: str, row: int | None = None
    ) -> None:
        """Compare numbers with those expected, and remember the one that is the furthest beyond its budget.

        Where the class may overflow, numbers that are not those expected tell nothing.
        """
        self.compared += got.size
        try:
            self.subject.matches(got, expected, budget, part.arguments, of)
        except Violation as error:
            largest = self.subject.precision.largest
            # An infinite bound tells that it is not known, and not that anything overflows.
            if any(largest < x.peak < np.inf for x in self.subject.oracles(part.arguments).values()):
                self.outside = f"an intermediate may exceed {largest:.3g}, the largest number of its precision class"
                return
            index = error.index or ()
            allowed = float(np.broadcast_to(budget, got.shape)[index])
            found, wanted = got[index], expected[index]
            with np.errstate(all="ignore"):
                ratio = float(np.abs(wanted - np.asarray(found, wanted.dtype)) / allowed) if allowed else np.inf
            ratio = ratio if np.isfinite(ratio) else np.inf
            if self.worst is None or ratio > self.worst.ratio:
                self.worst = Worst(of, part.place(index, row), found, wanted, allowed, ratio)

    def verdict(self) -> Verdict:
        """The verdict on all that was compared."""
        subject, untold = self.subject, self.subject.not_judged / max(self.compared, 1)
        if untold == 1:
            self.outside = self.outside or "the budget of every number is too large to tell anything"
        return Verdict(
            subject.operation.name,
            subject.dtype,
            subject.ratio,
            self.worst,
            ", ".join(self.judged),
            untold,
            self.outside,
        )


def _judge_results(record: _Record, given: Part, rng: np.random.Generator) -> None:
    subject, operation = record.subject, record.subject.operation
    rows = 0
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        chosen = list(parts(subject, given, rng))
        for part in chosen:
            part.arguments.memo["results"] = part.results
        every = threads.map(lambda part: subject.oracles(part.arguments), chosen)
        for part, oracles in zip(chosen, every, strict=True):
            for leaf in operation.outputs:
                expected, axes = oracles[leaf.path], leaf.axes(operation.asking or "")
                row = len(leaf.core) + axes[0] if axes else None
                record.compare(
                    part.results[leaf.path], expected.value, expected.budget, part, subject.titled(leaf), row
                )
            rows = 0 if part.rows is None else len(part.rows)
    elements, queries = prod(given.arguments.batch), given.arguments.queries
    each = f" of each of {elements:,} elements of the batch" if elements > 1 else ""
    record.judged.append(f"{rows:,} of {queries:,} rows{each}, with all keys" if rows else "every number")


def _judge_gradients(record: _Record, given: Part, found: Results) -> None:
    subject, arguments = record.subject, given.arguments
    apart = separable(arguments)
    most = pairs(arguments) // max(prod(arguments.batch), 1) if apart else pairs(arguments)
    if most > MOST_PAIRS:
        of = "an element of the batch" if apart else "the call"
        raise ValueError(
            f"{subject.operation.name}: gradients: expected at most {MOST_PAIRS:,} pairs of a query and a key in "
            f"{of}; got {most:,}"
        )
    for part, own in of_elements(given, found) if apart else [(replace(given, places=()), found)]:
        weights = {leaf.path: part.results[leaf.path] for leaf in subject.operation.outputs if leaf.kind is Kind.FLOAT}
        expected = subject.gradients(part.arguments, weights)
        for path, g in own.items():
            record.compare(g, *expected[path], part, f"the gradient of {path}")
    record.judged.append("every number of the gradients")
