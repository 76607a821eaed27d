"""Precision classes that may explain numbers: those that allow more than the declared one."""

from math import frexp

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.spec.contract.axes import Part
from attnspec.spec.contract.precision import CLASSES, MODIFIERS, precision

LEAST_USED = 2.0**-5
"""The part of its budget that an implementation of a precision class uses at least; honest ones use a tenth and more.

Errors far below those that a class allows are no sign of the class.
"""

EIGHT_BITS = 2.0**-4
"""The least unit roundoff of operands of 8 bits."""

EXPLAINING = [modifier for modifier in MODIFIERS if modifier not in ("truncating", "short-sums")]
"""The modifiers that explain numbers: without truncation, as in :func:`wider_classes`, and what only 8 bits have."""


def wider_classes(declared: str, dtype: str) -> list[str]:
    """The classes of a dtype that allow more than the declared one, alone or with a modifier, the least first.

    Those of 8 bits are left out, under which most elements are not judged, and truncation, which allows errors of one
    sign: they would explain wrong numbers too.
    """
    base = [name for name, p in CLASSES.items() if p.dtype == dtype and p.inputs < EIGHT_BITS]
    least, wider = _allowed(declared), dict[tuple[float, ...], str]()
    for name in (*base, *(f"{name}+{modifier}" for modifier in EXPLAINING for name in base)):
        allowed = _allowed(name)
        if allowed != least and all(a >= b for a, b in zip(allowed, least, strict=True)):
            wider.setdefault(allowed, name)
    return [wider[allowed] for allowed in sorted(wider, key=sum)]


def explaining_classes(declared: str, dtype: str, exactly_scaled: bool) -> list[str]:
    """The classes that may explain numbers, the least first.

    Where a query times the scale was not rounded, ``prescaled-*`` is none of them: it would explain stored scores too.
    """
    classes = wider_classes(declared, dtype)
    return [name for name in classes if not (exactly_scaled and name.startswith("prescaled-"))]


def exact_scale(given: Arguments) -> bool:
    """True if queries times the scale of their scores are exact: times a power of 2, which 1/√d is for d a power of 4.

    False where scores are no products of the given queries and keys.
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
    """The class with every modifier that may explain: a violation under it is no question of precision."""
    return "+".join((name.partition("+")[0], *EXPLAINING))


def _allowed(name: str) -> tuple[float, ...]:
    """How much a class allows of each kind of rounding."""
    p = precision(name)
    one_pass = p.accumulation * p.one_pass
    return (p.accumulation, p.operand, p.inputs, p.stored, p.weights, p.output, p.tanh, p.bias, one_pass)
