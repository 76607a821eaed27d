"""Check of quantised operands. Options of ``@checks``: see ``Check``."""

from collections.abc import Mapping
from math import prod

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.quantization import quantize, varied
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import OutsideDeclaration
from attnspec.conformance.laws.caches import sample_paged
from attnspec.conformance.laws.common import sample, wide
from attnspec.conformance.laws.ensembles import demand_unbiased
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.limits import Formats
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.quantized import OperandFormat, Quantized, operand_format
from attnspec.spec.contract.tree import Leaf
from attnspec.spec.laws import quantization as law

LEAST_ROWS = 65
"""Fewest rows that carry an error of the gain of all results: see ``MIN_GROUPS`` of ``harness.ensemble``."""

SIZE = 64
"""Number of queries, keys and features, or two blocks if these are longer."""


@checks(law.OPERANDS_ARE_EXACT, once=True)
def formats(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call with codes and scales, whose blocks differ in magnitude, in every declared format."""
    declared = subject.limits.formats_of(subject.operation.name)
    # Values of 32 bits are exact for kernels of at most float32, not for their sums in float64.
    if subject.dtype == "float64" or not declared:
        return False
    for formats_of_call in declared:
        by_path = {path: operand_format(name) for path, name in _by_path(subject.operation, formats_of_call).items()}
        for causal in (False, True):
            if not causal or (subject.operation.flag and subject.limits.causal):
                _demand_exact(subject, by_path, rng, causal)
    return True


def _by_path(operation: Operation, formats_of_call: Formats) -> dict[str, str]:
    """Formats by argument; one format for all concerns every array but those added to scores."""
    if not isinstance(formats_of_call, str):
        return dict(formats_of_call)
    return {leaf.path: formats_of_call for leaf in operation.floats if leaf.path not in operation.parts}


def _demand_exact(
    subject: Subject, by_path: Mapping[str, OperandFormat], rng: np.random.Generator, causal: bool
) -> None:
    rows = max(SIZE, *(2 * (form.tokens or 1) for form in by_path.values()))
    columns = max(SIZE, *(2 * (form.channels or 1) for form in by_path.values()))
    if subject.operation.sizes_of(Axis.PAGE):
        sampled = sample_paged(subject, rng, queries=SIZE, rows_of_page=rows, features=columns)
    else:
        sampled = sample(subject, rng, (2,), queries=rows, keys=rows, features=columns, heads=2)
    if causal:
        sampled = sampled.under_causal()
    quantized = {path: _quantized(subject, sampled, path, form, rng) for path, form in by_path.items()}
    exact = sampled.with_quantized(quantized)
    prefix = f"with {_named(by_path)},"
    subject.follows_formula(exact, prefix)
    # Rows with few keys round alike: codes have few values.
    if not causal and not subject.operation.cumulative:
        _demand_gain(subject, exact, prefix)


def _named(by_path: Mapping[str, OperandFormat]) -> str:
    names = dict.fromkeys(form.name for form in by_path.values())
    return " and ".join(f"{', '.join(p for p, f in by_path.items() if f.name == name)} in {name}" for name in names)


def _quantized(
    subject: Subject, arguments: Arguments, path: str, form: OperandFormat, rng: np.random.Generator
) -> Quantized:
    """An argument in a format; ``OutsideDeclaration`` if the backend's sizes are no multiples of its blocks."""
    leaf, x = arguments.leaves[path], arguments.array(path).astype(np.float64)
    axis, page_axis = _token_axis(leaf, subject.operation), _page_axis(leaf, subject.operation)
    for each, block in ((axis, form.tokens), (-1, form.channels)):
        if each is not None and block is not None and x.shape[each] % block:
            raise OutsideDeclaration(f"limits: no allowed size is a multiple of {block}, the block of {form.name}")
    return quantize(varied(x, form, axis, rng, page_axis), form, axis, subject.dtype, page_axis)


def _token_axis(leaf: Leaf, operation: Operation) -> int | None:
    """The axis of positions, or of a matrix the first one, counted from the end; None for vectors."""
    axes = [
        i - len(leaf.core)
        for i, d in enumerate(leaf.core[:-1])
        if any(operation.axis(s) & Axis.POSITION for s in d.sizes)
    ]
    return axes[0] if axes else -2 if len(leaf.core) > 1 else None


def _page_axis(leaf: Leaf, operation: Operation) -> int | None:
    """The axis of the pages of a cache, counted from the end; None for other arrays."""
    pages = [size for size in operation.indices.values() if operation.axis(size) & Axis.PAGE]
    return next((axis for size in pages for axis in leaf.axes(size)), None)


def _demand_gain(subject: Subject, arguments: Arguments, prefix: str) -> None:
    """Demand that results are not too large on the whole, where rows round independently."""
    operation, oracle = subject.operation, subject.oracle(arguments)
    has_weights = any(operation.role(x) == Role.WEIGHT and len(x.core) > 1 for x in operation.leaves)
    rows = prod(oracle.value.shape[:-1])
    if has_weights or subject.precision.inputs or rows < LEAST_ROWS:
        return
    expected = wide(oracle.value).reshape(rows, -1)
    error = wide(subject.call(arguments)).reshape(rows, -1) - expected
    demand_unbiased(subject, arguments, error, expected, f"the gain {prefix.removesuffix(',')}")
