"""Golden cases for programs in any language: arguments, and an interval for every number of each result."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from attnspec.conformance.harness.expected import Expected, expected
from attnspec.conformance.harness.parts import whole
from attnspec.conformance.harness.reading import subject_of
from attnspec.conformance.harness.record import overflow
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.inputs.dtypes import half_to_single, numpy_dtype
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.reporting.schema import schema_fault
from attnspec.spec import VERSION
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation

INDEX = "index.json"
"""File that lists all cases."""

SCHEMA = Path(__file__).with_name("vectors.schema.json")
"""Schema of the index."""

SCHEMA_VERSION = 1
"""Version of the format of ``index.json``, which ``vectors.schema.json`` describes."""

DTYPES = ("float32", "float16", "bfloat16")
"""Dtypes of the cases."""

CASES = 8
"""Largest number of cases per operation and dtype."""

WORK = 2.0**9
"""Largest number of multiply-adds in a case."""

MAX_NUMBERS = 2**12
"""Largest number of elements of a result, and of each argument."""

TRIED = 32
"""Number of examples of an operation from which its cases are selected."""


@dataclass(frozen=True)
class CheckedCase:
    """Comparison of a case; ``fault`` says what is wrong, and is empty if every number is in its interval."""

    name: str
    operation: str
    fault: str = ""


def write_vectors(
    folder: Path,
    operations: Sequence[Operation],
    dtypes: Sequence[str] = DTYPES,
    semantics: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> int:
    """Write the cases of operations, and return their number; files of the same names are replaced.

    ``semantics`` are choices in place of the normative ones. Each operation and dtype has a file of tensors, named as
    in the index. Raises ``OSError`` for a folder that cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for operation in operations:
        progress(operation.name)
        for dtype in dtypes if operation.float_result or operation.floats else dtypes[:1]:
            file, tensors = f"{operation.name}.{dtype}.safetensors", dict[str, Numbers]()
            cases = list(_cases(operation, dtype, semantics))
            for number, (subject, arguments, right) in enumerate(cases):
                prefix = f"{number}/"
                entries.append(_entry(subject, arguments, right, file, prefix))
                tensors |= _tensors(arguments, right, prefix)
            if cases:
                save_file(tensors, folder / file)
    index = {"schema_version": SCHEMA_VERSION, "attnspec": VERSION, "cases": entries}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return len(entries)


def _cases(
    operation: Operation, dtype: str, semantics: Mapping[str, str] | None
) -> Iterator[tuple[Subject, Arguments, dict[str, Expected]]]:
    """Yield up to ``CASES`` small calls in the operation's domain, with their right results."""
    count = 0
    for example in corners(operation, Limits(), seed=0, most=TRIED, work=WORK):
        arguments = example.arguments(operation, dtype)
        subject = subject_of(operation, dtype, None, semantics, arguments)
        if not subject.in_domain(arguments) or subject.refuses(arguments):
            continue
        shapes = {leaf.path: arguments.binding.shape(leaf) for leaf in operation.outputs}
        if max([*map(prod, shapes.values()), *(x.size for _, x in arguments.leaf_arrays)]) > MAX_NUMBERS:
            continue
        # For operations without float arguments, the dtype of the result is read from here.
        arguments.memo["results"] = {path: np.zeros(shape, numpy_dtype(dtype)) for path, shape in shapes.items()}
        right = expected(subject, whole(arguments, arguments.memo["results"]))
        # Without finite budgets, or after an overflow, a case cannot tell right from wrong.
        if overflow(subject, arguments) or not any(np.isfinite(x.budget).any() for x in right.values()):
            continue
        yield subject, arguments, right
        count += 1
        if count == CASES:
            return


def _entry(
    subject: Subject, arguments: Arguments, right: Mapping[str, Expected], file: str, prefix: str
) -> dict[str, Any]:
    """Return a case of the index."""
    arrays = {path for path, x in arguments.items() if isinstance(x, np.ndarray)}
    return {
        "name": f"{subject.operation.name}/{subject.dtype}/{prefix[:-1]}",
        "operation": subject.operation.name,
        "dtype": subject.dtype,
        "precision": subject.contract.precision.name(subject.operation.name, subject.dtype),
        "file": file,
        "arguments": {path: {"tensor": prefix + path} for path in arguments if path in arrays},
        "options": {path: x for path, x in arguments.items() if path not in arrays},
        "results": {
            leaf.path: {
                "shape": list(right[leaf.path].value.shape),
                "lower": f"{prefix}lower {leaf.path}",
                "upper": f"{prefix}upper {leaf.path}",
                "output": prefix + leaf.path,
                "optional": leaf.optional,
            }
            for leaf in subject.operation.outputs
        },
    }


def _tensors(arguments: Arguments, right: Mapping[str, Expected], prefix: str) -> dict[str, Numbers]:
    """Return the arguments, and the ends of all intervals.

    Both ends are NaN where the number must be NaN, and infinite where any number is right.
    """
    tensors = {}
    for path, x in arguments.items():
        if isinstance(x, np.ndarray):
            # NumPy and many languages have no bfloat16. Its numbers, and those of float16, are exact in float32.
            tensors[prefix + path] = np.asarray(half_to_single(x), order="C")
    for path, (value, budget, nan) in right.items():
        value, budget = value.astype(np.float64), np.broadcast_to(budget, value.shape)
        is_open = np.isnan(value) if nan is None else np.isnan(value) & ~nan
        exact = np.isnan(value) | (budget == 0)
        for name, sign in (("lower", -1.0), ("upper", 1.0)):
            with np.errstate(all="ignore"):
                end = np.where(exact, value, value + sign * budget)
            tensors[f"{prefix}{name} {path}"] = np.asarray(np.where(is_open, sign * np.inf, end), order="C")
    return tensors


def check_vectors(folder: Path, outputs: Path) -> Iterator[CheckedCase]:
    """Yield the comparison of each case whose file is in ``outputs``, under the same name.

    Raises ``ValueError`` for a folder without a readable index, a file that is not in the safetensors format, or cases
    whose intervals are missing.
    """
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected an index that 'attnspec vectors write' has written; got {error}") from error
    if fault := schema_fault(index, SCHEMA):
        raise ValueError(f"{path}: expected an index that 'attnspec vectors write' has written: {fault}")
    loaded: dict[str, tuple[dict[str, Numbers], dict[str, Numbers]]] = {}
    for case in index["cases"]:
        file = case["file"]
        if not (outputs / file).exists():
            continue
        if file not in loaded:
            loaded = {file: (_loaded(folder / file), _loaded(outputs / file))}
        _demand_intervals(folder / file, case, loaded[file][0])
        yield CheckedCase(case["name"], case["operation"], _fault(case, *loaded[file]))


def _loaded(file: Path) -> dict[str, Numbers]:
    try:
        return load_file(file)
    except (OSError, SafetensorError, KeyError) as error:
        raise ValueError(
            f"{file}: expected tensors in the safetensors format, in float32, float64 or float16; got {error!r}"
        ) from error


def _demand_intervals(file: Path, case: Mapping[str, Any], tensors: Mapping[str, Numbers]) -> None:
    """Raise ``ValueError`` unless a file has the intervals of a case, in the right shapes."""
    for result in case["results"].values():
        for name in (result["lower"], result["upper"]):
            expected, got = result["shape"], list(tensors[name].shape) if name in tensors else "none"
            if got != expected:
                raise ValueError(f"{file}: expected a tensor {name!r} of shape {expected}; got {got}")


def _fault(case: Mapping[str, Any], right: Mapping[str, Numbers], outputs: Mapping[str, Numbers]) -> str:
    """Return what is wrong with the outputs of a case; empty if nothing is."""
    for path, result in case["results"].items():
        got = outputs.get(result["output"])
        if got is None and result["optional"]:
            continue
        if got is None:
            return f"expected a tensor {result['output']!r}; got {', '.join(sorted(outputs)) or 'none'}"
        lower, upper = right[result["lower"]], right[result["upper"]]
        if got.shape != lower.shape:
            return f"{path}: expected shape {tuple(lower.shape)}; got {tuple(got.shape)}"
        x = got.astype(np.float64)
        # Between infinite ends NaN is right, too.
        outside = ~(
            ((lower <= x) & (x <= upper)) | (np.isnan(lower) & np.isnan(x)) | (np.isneginf(lower) & np.isposinf(upper))
        )
        if outside.any():
            with np.errstate(all="ignore"):
                excess = np.where(outside, np.nan_to_num(np.fmax(lower - x, x - upper), nan=np.inf, posinf=np.inf), -1)
            at = np.unravel_index(int(np.argmax(excess)), x.shape)
            place = f"[{', '.join(map(str, at))}]" if at else ""
            interval = "NaN" if np.isnan(lower[at]) else f"a number in [{lower[at]:.9g}, {upper[at]:.9g}]"
            count = f"{outside.sum()} of {x.size} numbers are wrong"
            return f"{path}{place}: expected {interval}; got {x[at]:.9g}; {count}"
    return ""
