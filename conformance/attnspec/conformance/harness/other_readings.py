"""Other readings of a call under which a wrong result is right."""

from collections.abc import Callable, Iterator, Mapping
from math import log
from typing import NamedTuple

import numpy as np

from attnspec.conformance.explaining.precision_classes import (
    MIN_USED_BUDGET,
    explaining_classes,
    has_exact_scale,
    widest_class,
)
from attnspec.conformance.harness import reading
from attnspec.conformance.harness.verdict import RightIf, Verdict
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.semantics import choices_of_formula
from attnspec.spec.contract.shapes import ShapeError
from attnspec.spec.contract.tree import Leaf

LOGARITHM = "log_sum_exp"
"""Path of the result that some kernels return to base 2."""


class Call(NamedTuple):
    """A call as it was read: the operation with its declarations, arguments and results."""

    subject: Subject
    arguments: Arguments
    results: Results


def right_reading(call: Call, judge: Callable[[Call], Verdict]) -> RightIf:
    """Return the first other reading under which a wrong result is right; an empty one if there is none."""
    for text, other in _other_calls(call):
        if judge(other):
            return RightIf(text)
    name = _explaining_class(call, judge)
    return RightIf(f"its precision class is {name}", name) if name else RightIf()


def _other_calls(call: Call) -> Iterator[tuple[str, Call]]:
    swapped = _with_heads_after_positions(call)
    if swapped is not None:
        yield "the arrays are read as (…, n, h, d), not as (…, h, n, d)", swapped
    if LOGARITHM in call.results:
        natural = call.results[LOGARITHM].astype(np.float64) * log(2)
        yield f"{LOGARITHM} is read to base 2, not e", call._replace(results={**call.results, LOGARITHM: natural})
    for question, choices in choices_of_formula(call.subject.operation).items():
        declared = getattr(call.subject.semantics, question)
        for choice in choices:
            if choice != declared:
                yield f"{question} is {choice}, not {declared}", _under(call, semantics={question: choice})


def _under(call: Call, precision: str | None = None, semantics: Mapping[str, str] | None = None) -> Call:
    """Return the call under another precision class, or other choices."""
    subject, arguments = call.subject, call.arguments
    name = precision or subject.contract.precision.name(subject.operation.name, subject.dtype)
    choices = {**vars(subject.semantics), **(semantics or {})}
    other = reading.subject_of(subject.operation, subject.dtype, name, choices, arguments)
    # `replaced` copies the arguments, which remember budgets of the declarations under which they were judged.
    return call._replace(subject=other, arguments=arguments.replaced({}))


def _with_heads_after_positions(call: Call) -> Call | None:
    """Return the call with positions and the axis before them exchanged; None if shapes then do not fit."""
    operation = call.subject.operation
    positions = [size for size in (operation.query_size, operation.key_size) if size is not None]
    arrays = [*operation.queries, *(leaf for leaf in operation.attended if leaf not in operation.queries)]
    if not positions:  # such as a rotary embedding
        positions = list(operation.sizes_of(Axis.TIME))
        arrays = [leaf for leaf, _ in call.arguments.leaf_arrays if any(map(leaf.axes, positions))]

    def swapped(leaf: Leaf, x: Numbers) -> Numbers:
        axes = [axis for size in positions for axis in leaf.axes(size)]
        if len(axes) != 1 or x.ndim + axes[0] < 1:
            raise ShapeError(operation.name, leaf.path, "heads before the positions", x.shape)
        return x.swapaxes(axes[0], axes[0] - 1)

    try:
        arguments = call.arguments.replaced({x.path: swapped(x, call.arguments.array(x.path)) for x in arrays})
        results = {leaf.path: swapped(leaf, call.results[leaf.path]) for leaf in operation.outputs}
        fits = all(results[leaf.path].shape == arguments.binding.shape(leaf) for leaf in operation.outputs)
    except ShapeError:
        return None
    return call._replace(arguments=arguments, results=results) if fits else None


def _explaining_class(call: Call, judge: Callable[[Call], Verdict]) -> str:
    """Return the narrowest class under which a wrong result is right; empty if there is none."""
    subject, arguments = call.subject, call.arguments
    declared = subject.contract.precision.name(subject.operation.name, subject.dtype)
    classes = explaining_classes(declared, subject.dtype, has_exact_scale(arguments))

    # If the widest class explains nothing, none does. Errors far below what a class allows have another cause.
    if not classes or judge(_under(call, widest_class(classes[-1]))).worst is not None:
        return ""
    verdicts = ((name, judge(_under(call, name))) for name in classes)
    return next((name for name, verdict in verdicts if verdict and verdict.ratio >= MIN_USED_BUDGET), "")
