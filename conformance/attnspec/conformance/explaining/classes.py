"""Precision classes that may explain numbers because they allow more than the declared one."""

from math import frexp

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.spec.contract.axes import Part
from attnspec.spec.contract.precision import CLASSES, MODIFIERS, precision

LEAST_USED = 2.0**-5
"""Smallest used part of the budget that indicates a precision class; honest implementations use a tenth or more.

Errors far below what a class allows are no evidence for the class.
"""

EIGHT_BITS = 2.0**-4
"""The least unit roundoff of operands of 8 bits."""

EXPLAINING = [modifier for modifier in MODIFIERS if modifier not in ("truncating", "short-sums")]
"""Modifiers that may explain numbers: without truncation, see :func:`wider_classes`, and 8-bit ``short-sums``."""


def wider_classes(declared: str, dtype: str) -> list[str]:
    """Return the classes of a dtype that allow more than the declared one, narrowest first.

    Classes of 8 bits are left out, since most elements are not judged under them. So is truncation, which allows errors
    of one sign. Both would explain wrong numbers too.
    """
    base = [name for name, p in CLASSES.items() if p.dtype == dtype and p.inputs < EIGHT_BITS]
    least, wider = _allowed(declared), dict[tuple[float, ...], str]()
    for name in (*base, *(f"{name}+{modifier}" for modifier in EXPLAINING for name in base)):
        allowed = _allowed(name)
        if allowed != least and all(a >= b for a, b in zip(allowed, least, strict=True)):
            wider.setdefault(allowed, name)
    return [wider[allowed] for allowed in sorted(wider, key=sum)]


def explaining_classes(declared: str, dtype: str, exactly_scaled: bool) -> list[str]:
    """Return the classes that may explain numbers, narrowest first.

    If scaling a query rounded nothing, ``prescaled-*`` is left out: it would explain stored scores too.
    """
    classes = wider_classes(declared, dtype)
    return [name for name in classes if not (exactly_scaled and name.startswith("prescaled-"))]


def exact_scale(given: Arguments) -> bool:
    """Return true if scaling queries is exact: the scale is a power of 2, as is 1/√d for d a power of 4.

    False if scores are not products of the given queries and keys.
    """
    operation, scaled = given.operation, given.operation.part(Part.SCALE)
    widths = {leaf.core[-1].factors for leaf in (*operation.queries, *operation.attended[:1]) if leaf.core}
    if len(widths) != 1 or not operation.queries:
        return False
    scale = (
        given[scaled]
        if scaled and given[scaled] is not None
        else given.array(operation.queries[0].path).shape[-1] ** -0.5
    )
    return bool(abs(frexp(scale)[0]) == 0.5)


def widest(name: str) -> str:
    """Return the class with every explaining modifier; a violation under it is not due to precision."""
    return "+".join((name.partition("+")[0], *EXPLAINING))


def _allowed(name: str) -> tuple[float, ...]:
    """Return the roundings that a class allows, by kind."""
    p = precision(name)
    one_pass = p.accumulation * p.one_pass
    return (p.accumulation, p.operand, p.inputs, p.stored, p.weights, p.output, p.tanh, p.bias, one_pass)
