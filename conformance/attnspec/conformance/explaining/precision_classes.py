"""Precision classes wider than the declared one, which may explain a backend's errors."""

from math import frexp

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.contract.precision import CLASSES, precision

MIN_USED_BUDGET = 2.0**-5
"""Smallest error ratio under a class that is evidence for the class.

Implementations of a class use a tenth of its budget or more. Errors far below what it allows have another cause.
"""

ONLY_IF = "declare it only if the kernel rounds like this"
"""Warning beside a class that would explain errors."""

EIGHT_BITS = 2.0**-4
"""Smallest unit roundoff of 8-bit operands."""

EXPLAINING_MODIFIERS = ("fast-tanh", "one-pass-variance")
"""Modifiers that may explain errors; :func:`wider_classes` says why the others may not."""


def wider_classes(declared: str, dtype: str) -> list[str]:
    """Return the classes of a dtype that allow more than the declared one, narrowest first.

    8-bit classes are left out, since their budgets are too wide to judge most elements. So is truncation, which allows
    errors of a single sign. Both would explain wrong formulas, too.
    """
    base = [name for name, p in CLASSES.items() if p.dtype == dtype and p.inputs < EIGHT_BITS]
    declared_roundings, wider = _allowed(declared), dict[tuple[float, ...], str]()
    for name in (*base, *(f"{name}+{modifier}" for modifier in EXPLAINING_MODIFIERS for name in base)):
        allowed = _allowed(name)
        if allowed != declared_roundings and all(a >= b for a, b in zip(allowed, declared_roundings, strict=True)):
            wider.setdefault(allowed, name)
    return [wider[allowed] for allowed in sorted(wider, key=sum)]


def explaining_classes(declared: str, dtype: str, exactly_scaled: bool) -> list[str]:
    """Return the classes that may explain a backend's errors, narrowest first.

    If scaling queries was exact, ``prescaled-*`` is no explanation, although it would allow rounded scores too.
    """
    classes = wider_classes(declared, dtype)
    return [name for name in classes if not (exactly_scaled and name.startswith("prescaled-"))]


def has_exact_scale(arguments: Arguments) -> bool:
    """Return True if scaling queries rounds nothing, since the scale is a power of 2.

    1/√d is one if d is a power of 4. False if scores are not products of the passed queries and keys. False for doubles
    too: these are values of quantised operands, which a kernel may round to its dtype before any scale.
    """
    if any(x.dtype == np.float64 for _, x in arguments.floats):
        return False
    operation, scale_option = arguments.operation, arguments.operation.part(ScoreEffect.SCALE)
    widths = {leaf.core[-1].factors for leaf in (*operation.queries, *operation.attended[:1]) if leaf.core}
    if len(widths) != 1 or not operation.queries:
        return False
    scale = arguments[scale_option] if scale_option else None
    scale = arguments.array(operation.queries[0].path).shape[-1] ** -0.5 if scale is None else scale
    return bool(abs(frexp(scale)[0]) == 0.5)  # the mantissa of a power of 2


def widest_class(name: str) -> str:
    """Return a class with every explaining modifier; violations under it are not due to precision."""
    return "+".join((name.partition("+")[0], *EXPLAINING_MODIFIERS))


def _allowed(name: str) -> tuple[float, ...]:
    """Return the unit roundoffs of the roundings that a class allows."""
    p = precision(name)
    one_pass = p.accumulation * p.one_pass
    of_weights = p.weights, p.weights_scaled
    return (p.accumulation, p.operand, p.inputs, p.stored, *of_weights, p.output, p.tanh, p.bias, one_pass)
