"""Precision classes: the roundings that a correct implementation may make, in unit roundoffs.

A class is not a tolerance. From the class and the inputs, ``attnspec.reference.budget`` derives an error budget for
every element of every result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attnspec.spec.contract.close_names import close_names
from attnspec.spec.contract.operation import Operation

_DOUBLE, _SINGLE, _HALF, _BFLOAT16, _TF32 = 2.0**-53, 2.0**-24, 2.0**-11, 2.0**-8, 2.0**-11
_TINY_DOUBLE, _TINY_SINGLE = 2.0**-1022, 2.0**-126
"""Smallest normal numbers. Smaller ones may be flushed to 0, so this is also their largest absolute error."""


@dataclass(frozen=True)
class Precision:
    """The roundings that a class allows; fields are unit roundoffs unless stated otherwise.

    - accumulation: products, sums, exponentials.
    - operand: computed operands of a product (0: not rounded again). inputs: its input operands (0: used exactly).
    - stored: scores written to memory (0: never written).
    - weights: normalised weights before they multiply values. output: results.
    - tanh: relative error of tanh beyond ``accumulation``.
    - bias: relative error with the same sign everywhere (truncation).
    - one_pass: True if variances may be computed as E[x²] − E[x]².

    The next fields are absolute errors of numbers near 0: half the step between the smallest numbers of the format, or
    its smallest normal number if smaller ones may be flushed to 0.

    - smallest: of the accumulation. weights_smallest, output_smallest: of weights and output.
    - inputs_smallest: of input operands (0: their format is not changed).
    - scaled: of all operands but weights, as a fraction of the largest number of the operand's array (0: stored without
      a scale).
    - weights_scaled: of weights in 8 bits or fewer, as a fraction of the largest weight of their row (0: in more bits).

    largest: the magnitude that no intermediate may exceed, nor an operand stored in another format. Beyond it, inputs
    lie outside the domain.
    """

    dtype: str
    accumulation: float
    operand: float = 0.0
    inputs: float = 0.0
    stored: float = 0.0
    weights: float = 0.0
    output: float = 0.0
    tanh: float = 0.0
    bias: float = 0.0
    one_pass: bool = False
    smallest: float = _TINY_SINGLE
    weights_smallest: float = _TINY_SINGLE
    output_smallest: float = _TINY_SINGLE
    inputs_smallest: float = 0.0
    scaled: float = 0.0
    weights_scaled: float = 0.0
    largest: float = 2.0**127

    @property
    def term(self) -> float:
        """Computed terms of a sum: as ``operand`` where results are narrow too, else 0.

        A class that narrows only the operands of matrix products, such as ``tf32``, adds in its accumulation.
        """
        return self.operand if self.output else 0.0


def _mixed(dtype: str, u: float, step: float, largest: float) -> Precision:
    return Precision(
        dtype, _SINGLE, operand=u, weights=u, output=u, weights_smallest=step, output_smallest=step, largest=largest
    )


def _eight_bits(base: Precision) -> Precision:
    """Store all operands and the weights in 8 bits (4 exponent, 3 mantissa), unscaled.

    The format's largest number is 448 and its smallest step 2⁻⁹.
    """
    u, step = 2.0**-4, 2.0**-10
    return replace(base, inputs=u, operand=u, weights=u, weights_smallest=step, inputs_smallest=step, largest=448.0)


def _scaled_eight_bits(base: Precision) -> Precision:
    """Store operands and weights in 8 bits, scaled per block or larger part; the exponent has 4 or 5.

    The error 2⁻³ is the unit roundoff of the variant with 5 bits of exponent, and so 2 of mantissa. It also covers the
    clipping of the other one: a scale that is a power of 2 moves the largest number to at most 512, which 448 replaces.
    The step 2⁻¹⁸ is half the smallest step, 2⁻¹⁰, divided by the least scaled maximum, 2⁸.
    """
    u, step = 2.0**-3, 2.0**-18
    return replace(base, inputs=u, operand=u, weights=u, weights_smallest=step, scaled=step)


def _with_weights(base: Precision, u: float, step: float) -> Precision:
    """Round weights to fewer bits before they multiply the values; ``step`` is relative to a row's largest."""
    return replace(base, weights=max(base.weights, u), weights_scaled=step)


_MIXED_BFLOAT16 = _mixed("bfloat16", _BFLOAT16, _TINY_SINGLE, 2.0**127)
_MIXED_HALF = _mixed("float16", _HALF, 2.0**-25, 6.0e4)  # half of float16's smallest step; a little below its maximum

CLASSES: Mapping[str, Precision] = {
    "ieee64": Precision(
        "float64",
        _DOUBLE,
        smallest=_TINY_DOUBLE,
        weights_smallest=_TINY_DOUBLE,
        output_smallest=_TINY_DOUBLE,
        largest=2.0**1023,
    ),
    "ieee32": Precision("float32", _SINGLE),
    # Arrays are float64, which the backend converts to float32.
    "ieee32-float64": Precision("float64", _SINGLE, inputs=_SINGLE, inputs_smallest=_TINY_SINGLE),
    "tf32": Precision("float32", _SINGLE, operand=_TF32, inputs=_TF32, weights=_TF32),
    "mixed-bfloat16": _MIXED_BFLOAT16,
    "mixed-float16": _MIXED_HALF,
    "prescaled-bfloat16": replace(_MIXED_BFLOAT16, inputs=_BFLOAT16),
    "prescaled-float16": replace(_MIXED_HALF, inputs=_HALF),
    "eager-bfloat16": replace(_MIXED_BFLOAT16, inputs=_BFLOAT16, stored=_BFLOAT16),
    "eager-float16": replace(_MIXED_HALF, inputs=_HALF, stored=_HALF),
    "e4m3-float32": _eight_bits(Precision("float32", _SINGLE)),
    "e4m3-bfloat16": _eight_bits(_MIXED_BFLOAT16),
    "e4m3-float16": _eight_bits(_MIXED_HALF),
    "mxfp8-float32": _scaled_eight_bits(Precision("float32", _SINGLE)),
    "mxfp8-bfloat16": _scaled_eight_bits(_MIXED_BFLOAT16),
    "mxfp8-float16": _scaled_eight_bits(_MIXED_HALF),
}

# Truncation errs by a whole step, rounding by half. Tanh instructions of GPUs err by 2⁻¹¹. Tensor cores keep 14 bits
# of sums of 8-bit operands.
MODIFIERS: Mapping[str, Callable[[Precision], Precision]] = {
    "truncating": lambda p: replace(
        p, operand=2 * p.operand, inputs=2 * p.inputs, weights=2 * p.weights, bias=2 * max(p.operand, p.inputs)
    ),
    "fast-tanh": lambda p: replace(p, tanh=2.0**-11),
    "one-pass-variance": lambda p: replace(p, one_pass=True),
    "short-sums": lambda p: replace(p, accumulation=max(p.accumulation, 2.0**-13)),
    # Exponentials are at most 1. Unscaled, half the smallest step is 2⁻¹⁰ in E4M3 and 2⁻¹⁷ in E5M2; a scale shrinks it.
    "weights-e4m3": lambda p: _with_weights(p, 2.0**-4, 2.0**-10),
    "weights-e5m2": lambda p: _with_weights(p, 2.0**-3, 2.0**-17),
    # 127 steps of equal size up to the largest weight of a row or block.
    "weights-int8": lambda p: _with_weights(p, 0.0, 1 / 254),
    # Blocks of E4M3 whose scale, a power of 2, brings their largest weight to 2⁸ at least and clips it above 448.
    "weights-mxfp8": lambda p: _with_weights(p, 2.0**-3, 2.0**-18),
    # Blocks of E2M1, whose numbers are 0, ½, 1, 1½, 2, 3, 4, 6 times a scale. The scale is rounded to E4M3, by 1/16.
    "weights-nvfp4": lambda p: _with_weights(p, 2.0**-2, (1 + 2.0**-4) * 0.25 / 6),
}

DEFAULTS: Mapping[str, str] = {
    "float64": "ieee64",
    "float32": "ieee32",
    "bfloat16": "mixed-bfloat16",
    "float16": "mixed-float16",
}


def precision(name: str) -> Precision:
    """Return a class by name, changed by modifiers after ``+``: ``"mixed-bfloat16+fast-tanh"``.

    ``ValueError`` names a class or modifier that does not exist.
    """
    base, *modifiers = name.split("+")
    if base not in CLASSES:
        raise ValueError(f"precision: expected a class among {close_names(base, CLASSES)}; got {base!r}")
    result = CLASSES[base]
    for modifier in modifiers:
        if modifier not in MODIFIERS:
            raise ValueError(
                f"precision: expected a modifier among {close_names(modifier, MODIFIERS)}; got {modifier!r}"
            )
        result = MODIFIERS[modifier](result)
    return result


@dataclass(frozen=True)
class DeclaredPrecision:
    """Precision classes of a backend: ``{dtype: class}`` or ``{operation: {dtype: class}, "*": …}``."""

    default: Mapping[str, str] = field(default_factory=dict)
    per_operation: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def name(self, operation: str, dtype: str) -> str:
        """Name of the declared class, else of the dtype's default."""
        own = self.per_operation.get(operation, {})
        return own.get(dtype) or self.default.get(dtype) or DEFAULTS[dtype]

    def __call__(self, operation: str, dtype: str) -> Precision:
        """Return the declared class, else the dtype's default."""
        return precision(self.name(operation, dtype))

    @classmethod
    def of(cls, declared: Any, operations: Mapping[str, Operation]) -> "DeclaredPrecision":
        """Read a backend's ``precision`` attribute; ``ValueError`` states what was expected and what came."""
        if declared is None:
            return cls()
        if not isinstance(declared, Mapping):
            raise ValueError(f"precision: expected a mapping from dtypes to classes; got {type(declared).__name__}")
        if declared and set(declared) <= {*operations, "*"}:
            parts = {name: _dtypes(d) for name, d in declared.items()}
            return cls(parts.pop("*", {}), parts)
        return cls(_dtypes(declared))


def _dtypes(declared: Any) -> Mapping[str, str]:
    if not isinstance(declared, Mapping) or not set(declared) <= set(DEFAULTS):
        wanted = f"a mapping from {', '.join(DEFAULTS)} to classes, or from operations to such mappings"
        raise ValueError(f"precision: expected {wanted}; got {declared!r}")
    for dtype, name in declared.items():
        if not isinstance(name, str):
            raise ValueError(f"precision {dtype}: expected a class, such as {DEFAULTS[dtype]!r}; got {name!r}")
        class_dtype = precision(name).dtype
        if class_dtype != dtype:
            raise ValueError(f"precision: expected a class for {dtype}; got {name!r}, which is for {class_dtype}")
    return dict(declared)
