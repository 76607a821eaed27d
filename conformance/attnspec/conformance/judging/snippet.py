"""Counterexamples as JSON for reports, each with a Python script that reproduces it."""

import base64
import textwrap
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.judging.results import json_number
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.spec.contract.tree import as_source, branches, field_names

MAX_SHOWN = 400
"""Most elements of a printed array; others are shown by shape and dtype."""

DERIVED = (
    "# The law derives its inputs from these and the seed, or the seed alone; replay makes them again and prints them."
)
"""Comment in a snippet whose arguments are the check's.

The report then shows those of the law's own call that failed.
"""


def counterexample(
    subject: Subject,
    check: Check,
    arguments: Arguments,
    violation: Violation,
    seed: int,
    *,
    hang_after: float | None = None,
) -> dict[str, Any]:
    """The counterexample for the report; its snippet exits with status 1.

    With ``hang_after`` the snippet calls the backend in a process of its own, for at most that many seconds.
    """
    script = snippet(subject, check, arguments, violation, seed, hang_after=hang_after)
    return {**without_snippet(arguments, violation), "snippet": script}


def without_snippet(arguments: Arguments, violation: Violation) -> dict[str, Any]:
    """The counterexample for the report, with an empty snippet."""
    return {
        "arguments": {path: readable(value) for path, value in _shown(violation.arguments or arguments)},
        "expected": readable(violation.expected),
        "got": readable(violation.got),
        "budget": readable(violation.budget),
        "index": None if violation.index is None else list(violation.index),
        "snippet": "",
    }


def _shown(arguments: Arguments) -> Iterator[tuple[str, Any]]:
    """The paths and values of arguments; of quantised operands those of codes and scales, as they were passed."""
    for path, value in arguments.items():
        if path not in arguments.quantized:
            yield path, value
            continue
        operand = arguments.quantized[path]
        parts = {"codes": operand.codes, "scales": operand.scales, "global_scale": operand.global_scale}
        yield from ((f"{path}.{name}", part) for name, part in parts.items() if part is not None)


def readable(x: Any) -> Any:
    """A value as plain JSON: large arrays as shape and dtype, non-finite numbers as text."""
    if x is None or isinstance(x, bool | int | str):
        return x
    if isinstance(x, tuple):
        return [readable(element) for element in x]
    array = np.asarray(x)
    if array.size > MAX_SHOWN or not array.size:
        return {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.dtype.kind in "biu":
        return array.tolist()
    return _json_numbers(array.astype(np.float64).tolist())


def _json_numbers(x: Any) -> Any:
    if isinstance(x, list):
        return [_json_numbers(element) for element in x]
    return json_number(x)


def literal(x: Any) -> str:
    """A Python expression for an argument."""
    if not isinstance(x, np.ndarray):
        return repr(x)
    dtype = "ml_dtypes.bfloat16" if x.dtype.name == "bfloat16" else f"np.{x.dtype.name}" if x.dtype != bool else "bool"
    if x.size <= MAX_SHOWN and x.size:
        numbers = x if x.dtype.kind in "biuf" else x.astype(np.float32)
        text = np.array2string(
            numbers, separator=", ", threshold=MAX_SHOWN + 1, max_line_width=100, formatter={"float_kind": str}
        )
        return f"np.array({text.replace('nan', 'np.nan').replace('inf', 'np.inf')}, {dtype})"
    if not x.size or not np.any(x):
        return f"np.zeros({x.shape}, {dtype})"
    packed = base64.b85encode(zlib.compress(np.ascontiguousarray(x).tobytes(), 9)).decode()
    return f"np.frombuffer(zlib.decompress(base64.b85decode({packed!r})), {dtype}).reshape({x.shape})"


def snippet(
    subject: Subject,
    check: Check,
    arguments: Arguments,
    violation: Violation,
    seed: int,
    *,
    hang_after: float | None = None,
) -> str:
    """A script that shows the violation and exits with status 1."""
    operation = subject.operation
    call_arguments = arguments.passed
    code = "\n".join(f"{name} = {as_source(value, literal)}" for name, value in call_arguments.items())
    records = sorted({type(x).__name__ for value in call_arguments.values() for x in _records(value)})
    keyword_text = ", ".join(f"{name}={name}" for name in call_arguments)
    by_reference = _shown_by_reference(check, arguments, violation)
    imports = ["import sys"]
    imports += ["import base64, zlib"] if "zlib." in code else []
    imports += ["", "import ml_dtypes"] if "ml_dtypes." in code else [""]
    imports += ["import numpy as np"] if by_reference or "np." in code else []
    record_import = [f"from attnspec.spec import {', '.join(records)}"] if records else []
    backend = subject.contract.origin
    if by_reference:
        imports += ["from attnspec import reference", "from attnspec.conformance import call, load", *record_import]
        choices = ", ".join(f"{question}={choice!r}" for question, choice in subject.choices.items())
        choosing = f"with reference.choosing({choices}):\n    " if choices else ""
        body = f"""
got = call(load({backend!r}), {operation.name!r}, {keyword_text})
{choosing}expected = reference.{operation.name}({keyword_text})
print("expected", expected, "got", got, "difference", got - expected, sep="\\n")
sys.exit(bool(np.any(~(np.abs(got - expected) <= {float(np.max(violation.budget)):.6g}))))
"""
        if subject.device != "cpu":
            body = body.replace(f"{operation.name!r}, ", f"{operation.name!r}, device={subject.device!r}, ", 1)
    else:
        imports += ["from attnspec.conformance import replay", *record_import]
        derived = not _same_arguments(violation.arguments or arguments, arguments)
        body = f"\n{DERIVED}" if derived else ""
        # Choices that the backend does not declare, but was observed to make.
        observed = dict(subject.contract.assumed)
        assumed = f", semantics={observed!r}" if observed else ""
        hang_option = "" if hang_after is None else f", hang_after={hang_after:g}"
        body += textwrap.dedent(f"""
            sys.exit(
                replay({backend!r}, {check.law.id!r}, {operation.name!r}, {subject.dtype!r},
                       dict({keyword_text}), seed={seed}, device={subject.device!r}{hang_option}{assumed})
            )
            """)
    return "\n".join([*imports, "", code]) + body


def _shown_by_reference(check: Check, arguments: Arguments, violation: Violation) -> bool:
    """Return whether comparing with the public reference shows the violation.

    The reference computes in the inputs' dtype and rounds too, so the error must exceed two budgets, or be NaN.
    """
    if check.law.id != FORMULA or violation.reason != Reason.VALUE or violation.budget is None:
        return False
    if len(arguments.operation.outputs) > 1 or np.asarray(violation.got).dtype == bool:
        return False
    if any(is_float(x) and x.dtype.name == "bfloat16" for x in arguments.arrays.values()):
        return False
    got, expected = (np.asarray(x, np.float64)[violation.index or ()] for x in (violation.got, violation.expected))
    with np.errstate(invalid="ignore"):
        return not abs(got - expected) <= 2 * np.max(violation.budget)


def _same_arguments(left: Arguments, right: Arguments) -> bool:
    """Return whether arguments are equal, in shapes, dtypes and types too."""
    return left.keys() == right.keys() and all(_same_value(left[path], right[path]) for path in left)


def _same_value(left: Any, right: Any) -> bool:
    """Return whether two values and their types are equal; NaN equals NaN."""
    if not isinstance(left, np.ndarray) or not isinstance(right, np.ndarray):
        return type(left) is type(right) and bool(left == right or (left != left and right != right))
    return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=is_float(left))


def _records(value: Any) -> Iterator[Any]:
    """The records of a tree, outer before inner."""
    if field_names(value):
        yield value
    for _, part in branches(value) or ():
        yield from _records(part)
