"""Counterexamples for reports, each with Python code that reproduces it."""

import base64
import textwrap
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.judging.results import json_number
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.spec.contract.tree import as_source, branches, field_names

SHOWN = 400
"""Most elements of a printed array; larger and empty arrays show shape and dtype."""

DERIVED = (
    "# The law derives its inputs from these and the seed, or the seed alone; replay makes them again and prints them."
)
"""Comment in snippets whose arguments differ from those that the report shows."""


def counterexample(
    subject: Subject,
    check: Check,
    arguments: Arguments,
    violation: Violation,
    seed: int,
    *,
    hang_after: float | None = None,
) -> dict[str, Any]:
    """The counterexample for the report; its snippet exits with 1.

    With ``hang_after`` the snippet calls the backend in a process of its own, for at most that many seconds.
    """
    script = snippet(subject, check, arguments, violation, seed, hang_after=hang_after)
    return {**without_snippet(arguments, violation), "snippet": script}


def without_snippet(arguments: Arguments, violation: Violation) -> dict[str, Any]:
    """The counterexample for the report, with an empty snippet."""
    shown = violation.arguments or arguments
    return {
        "arguments": {path: readable(value) for path, value in shown.items()},
        "expected": readable(violation.expected),
        "got": readable(violation.got),
        "budget": readable(violation.budget),
        "index": None if violation.index is None else list(violation.index),
        "snippet": "",
    }


def readable(x: Any) -> Any:
    """Plain JSON: small arrays as lists, others as shape and dtype, non-finite numbers as text."""
    if x is None or isinstance(x, bool | int | str):
        return x
    array = np.asarray(x)
    if array.size > SHOWN or not array.size:
        return {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.dtype.kind in "biu":
        return array.tolist()
    return _listed(array.astype(np.float64).tolist())


def _listed(x: Any) -> Any:
    if isinstance(x, list):
        return [_listed(element) for element in x]
    return json_number(x)


def literal(x: Any) -> str:
    """A Python expression for an argument."""
    if not isinstance(x, np.ndarray):
        return repr(x)
    dtype = "ml_dtypes.bfloat16" if x.dtype.name == "bfloat16" else f"np.{x.dtype.name}" if x.dtype != bool else "bool"
    if x.size <= SHOWN and x.size:
        known = x if x.dtype.kind in "biuf" else x.astype(np.float32)
        text = np.array2string(
            known, separator=", ", threshold=SHOWN + 1, max_line_width=100, formatter={"float_kind": str}
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
    """A script that shows the violation and exits with 1."""
    operation = subject.operation
    given = arguments.passed
    code = "\n".join(f"{name} = {as_source(value, literal)}" for name, value in given.items())
    records = sorted({type(x).__name__ for value in given.values() for x in _records(value)})
    named = ", ".join(f"{name}={name}" for name in given)
    plain = _plain(check, arguments, violation)
    imports = ["import sys"]
    imports += ["import base64, zlib"] if "zlib." in code else []
    imports += ["", "import ml_dtypes"] if "ml_dtypes." in code else [""]
    imports += ["import numpy as np"] if plain or "np." in code else []
    record_import = [f"from attnspec.spec import {', '.join(records)}"] if records else []
    backend = subject.contract.origin
    if plain:
        imports += ["from attnspec import reference", "from attnspec.conformance import call, load", *record_import]
        choices = ", ".join(f"{question}={choice!r}" for question, choice in subject.choices.items())
        under = f"with reference.choosing({choices}):\n    " if choices else ""
        body = f"""
got = call(load({backend!r}), {operation.name!r}, {named})
{under}expected = reference.{operation.name}({named})
print("expected", expected, "got", got, "difference", got - expected, sep="\\n")
sys.exit(bool(np.any(~(np.abs(got - expected) <= {_largest(violation.budget)}))))
"""
        if subject.device != "cpu":
            body = body.replace(f"{operation.name!r}, ", f"{operation.name!r}, device={subject.device!r}, ", 1)
    else:
        imports += ["from attnspec.conformance import replay", *record_import]
        derived = not _same(violation.arguments or arguments, arguments)
        body = f"\n{DERIVED}" if derived else ""
        alone = "" if hang_after is None else f", hang_after={hang_after:g}"
        body += textwrap.dedent(f"""
            sys.exit(
                replay({backend!r}, {check.law.id!r}, {operation.name!r}, {subject.dtype!r},
                       dict({named}), seed={seed}, device={subject.device!r}{alone})
            )
            """)
    return "\n".join([*imports, "", code]) + body


def _plain(check: Check, arguments: Arguments, violation: Violation) -> bool:
    """Return whether the plain reference, which rounds too, shows the error by over two budgets."""
    if check.law.id != FORMULA or violation.reason != Reason.VALUE or violation.budget is None:
        return False
    if len(arguments.operation.outputs) > 1:
        return False
    if any(is_float(x) and x.dtype.name == "bfloat16" for x in arguments.arrays.values()):
        return False
    if np.asarray(violation.got).dtype == bool:
        return False
    got, expected = (np.asarray(x, np.float64)[violation.index or ()] for x in (violation.got, violation.expected))
    with np.errstate(invalid="ignore"):
        return not abs(got - expected) <= 2 * np.max(violation.budget)


def _same(one: Arguments, other: Arguments) -> bool:
    """Return whether arguments are equal, in shapes, dtypes and types too."""
    return one.keys() == other.keys() and all(_same_value(one[path], other[path]) for path in one)


def _same_value(one: Any, other: Any) -> bool:
    """Return whether two values and their types are equal; NaN equals NaN."""
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return type(one) is type(other) and bool(one == other or (one != one and other != other))
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=is_float(one))


def _records(value: Any) -> Iterator[Any]:
    """The records of a tree, outer before inner."""
    if field_names(value):
        yield value
    for _, part in branches(value) or ():
        yield from _records(part)


def _largest(budget: Numbers) -> str:
    return f"{float(np.max(budget)):.6g}"
