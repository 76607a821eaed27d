"""Exact values of quantised operands, and quantisation of arrays to every declared format."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from attnspec.spec.contract.quantized import OperandFormat, Quantized
from attnspec.spec.contract.tree import as_tuple

Numbers = np.ndarray[Any, Any]

CODE_DTYPES = (
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn", "int8",
)  # fmt: skip
"""Dtypes of codes."""

NARROW_SCALES = ("float8_e8m0fnu", "float8_e4m3fn")
"""Dtypes of scales in 8 bits."""

SCALE_DTYPES = ("float32", "float16", "bfloat16", *NARROW_SCALES)
"""Dtypes of scales. Codes times scales of 24 bits are exact in double precision."""


def exact_values(operand: Quantized, title: str) -> Numbers:
    """Return codes times scales in double precision, which is exact.

    ``operand`` holds NumPy arrays; ``title`` names it in messages. Errors: ``TypeError`` for another dtype;
    ``ValueError`` for scales that do not fit the codes.
    """
    codes, scales = operand.codes, operand.scales
    _demand_dtype(codes, CODE_DTYPES, f"{title}: codes")
    # Two scales of 24 bits and a code would have more bits than a double.
    if operand.global_scale is None:
        _demand_dtype(scales, SCALE_DTYPES, f"{title}: scales")
    else:
        _demand_dtype(scales, NARROW_SCALES, f"{title}: scales beside a global_scale")
    values: Numbers = codes.astype(np.float64) * _spread(scales.astype(np.float64), codes.shape, title)
    if operand.global_scale is None:
        return values
    _demand_dtype(operand.global_scale, ("float32",), f"{title}: global_scale")
    if operand.global_scale.size != 1:
        shape = as_tuple(operand.global_scale.shape)
        raise ValueError(f"{title}: global_scale: expected a single number; got shape {shape}")
    return values * float(operand.global_scale.reshape(()))


def _demand_dtype(x: Numbers, names: Sequence[str], title: str) -> None:
    if x.dtype.name not in names:
        raise TypeError(f"{title}: expected one of {', '.join(names)}; got {x.dtype.name}")


def _spread(scales: Numbers, shape: tuple[int, ...], title: str) -> Numbers:
    """Return a scale for every code."""
    leading = len(shape) - scales.ndim
    own = (1,) * leading + scales.shape
    if leading < 0 or any(size % max(count, 1) or (size and not count) for size, count in zip(shape, own, strict=True)):
        raise ValueError(f"{title}: scales: {_expected_scales(shape)}; got {as_tuple(scales.shape)}")
    spread = scales.reshape(own)
    for axis, size in enumerate(shape):
        if spread.shape[axis] not in (1, size):
            spread = np.repeat(spread, size // spread.shape[axis], axis)
    return spread


def _expected_scales(shape: tuple[int, ...]) -> str:
    """Describe the shapes of scales that fit codes of a shape, with examples."""
    expected = f"expected axes of sizes that divide those of the codes, {as_tuple(shape)}"
    if len(shape) < 2:
        return expected
    per_token, per_channel = as_tuple((*shape[:-1], 1)), as_tuple((*shape[:-2], 1, shape[-1]))
    return f"{expected}, such as {per_token} for a scale per token, {per_channel} per channel or () per tensor"


def element_of(operand: Quantized, core: int, index: tuple[int, ...]) -> Quantized:
    """Return one batch element of an operand of NumPy arrays; ``core`` counts the dimensions behind the batch.

    Batch dimensions may be absent or of size 1, as in broadcasting.
    """
    codes = operand.codes
    scales = operand.scales.reshape((1,) * (codes.ndim - operand.scales.ndim) + operand.scales.shape)
    batch = codes.shape[: codes.ndim - core]
    places = [0 if size == 1 else i for size, i in zip(batch, index[len(index) - len(batch) :], strict=True)]
    blocks = [i * count // size for i, count, size in zip(places, scales.shape, batch, strict=False)]
    return replace(operand, codes=np.asarray(codes[tuple(places)]), scales=np.asarray(scales[tuple(blocks)]))


def quantize(
    x: Numbers, form: OperandFormat, token_axis: int | None, dtype: str, page_axis: int | None = None
) -> Quantized:
    """Return an array's nearest codes, with scales by the largest number of each block.

    Scales of 8 bits may clip this number, as the formats' own recipes do. ``token_axis`` is negative, None for
    a vector; the last axis has the channels. Tokens may be spread over a ``page_axis``, also negative. ``dtype`` is the
    one that the operand stands for.
    """
    blocks = _block_counts(x.shape, form, token_axis, page_axis)
    largest = np.abs(_in_blocks(x.astype(np.float64), blocks)).max(tuple(range(1, 2 * x.ndim, 2)), initial=0.0)
    top = 127.0 if form.codes == "int8" else _largest(form.codes)
    largest = np.where(largest > 0, largest, 1.0)
    scales, global_scale = _scales(largest, top, form)
    unit = Quantized(np.ones(x.shape, _dtype(form.codes)), scales, global_scale)
    steps = exact_values(unit, form.name)
    # A scale of 8 bits may be 0: then so are the numbers of its block.
    in_codes = np.clip(np.divide(x, steps, out=np.zeros(x.shape), where=steps > 0), -top, top)
    codes = (np.rint(in_codes) if form.codes == "int8" else in_codes).astype(_dtype(form.codes))
    return Quantized(codes, scales, global_scale, dtype)


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _largest(name: str) -> float:
    finfo: Any = ml_dtypes.finfo
    return float(finfo(_dtype(name)).max)


def _block_counts(
    shape: tuple[int, ...], form: OperandFormat, token_axis: int | None, page_axis: int | None
) -> tuple[int, ...]:
    """Number of blocks along every axis; a scale for all tokens is one for all pages."""
    counts = list(shape) if form.by_head else [1] * len(shape)
    if page_axis is not None and form.tokens is None:
        counts[page_axis] = 1
    for axis, block in ((token_axis, form.tokens), (-1, form.channels)):
        if axis is not None:
            counts[axis] = 1 if block is None else shape[axis] // block
    return tuple(counts)


def _in_blocks(x: Numbers, counts: tuple[int, ...]) -> Numbers:
    """Split every axis in two: blocks, and places within one."""
    return x.reshape([n for size, count in zip(x.shape, counts, strict=True) for n in (count, size // count)])


def _scales(largest: Numbers, top: float, form: OperandFormat) -> tuple[Numbers, Numbers | None]:
    """Scales from the largest magnitude of every block; ``top`` is the largest code."""
    if form.has_global_scale:
        # As in NVIDIA's recipe: the largest scale of a block is the largest number of its format.
        global_scale = np.float32(largest.max(initial=0.0) / (top * _largest(form.scales)))
        return (largest / top / np.float64(global_scale)).astype(_dtype(form.scales)), np.asarray(global_scale)
    if form.scales == "float8_e8m0fnu":
        # As in the MX specification: the largest number gets the largest exponent of the codes. The smallest number of
        # E8M0 is 2⁻¹²⁷.
        exponents = np.maximum(np.floor(np.log2(largest)) - np.floor(np.log2(top)), -127.0)
        return np.exp2(exponents).astype(_dtype(form.scales)), None
    return (largest / top).astype(_dtype(form.scales)), None


def varied(
    x: Numbers, form: OperandFormat, token_axis: int | None, rng: np.random.Generator, page_axis: int | None = None
) -> Numbers:
    """Multiply every block by a factor between 1/4 and 4, then restore the mean square.

    With such numbers, a scale of another block shows.
    """
    counts = _block_counts(x.shape, form, token_axis, page_axis)
    factors = np.exp2(rng.uniform(-2, 2, counts))
    changed = x * _spread(factors, x.shape, form.name)
    size = float(np.sqrt((x**2).mean() / (changed**2).mean())) if prod(x.shape) else 1.0
    return changed * size
