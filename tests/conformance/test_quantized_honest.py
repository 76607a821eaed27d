"""``judge`` acquits honest kernels with quantised operands.

1,000 results are judged by default, 100,000 with ``ATTNSPEC_WHOLE=1``; 50 of them are the batch of one call.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.inputs.quantization import exact_values, quantize, varied
from attnspec.spec import Quantized
from attnspec.spec.contract.quantized import operand_format

from .test_quantized import FORMATS, SDPA

WHOLE = os.environ.get("ATTNSPEC_WHOLE") == "1"
BATCH = 50
CALLS = (100_000 if WHOLE else 1000) // BATCH
SHARES = 10
"""Number of tests that share the calls."""

DEFAULT = {"float32": "ieee32", "bfloat16": "mixed-bfloat16", "float16": "mixed-float16"}

NUMBERS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Numbers]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "sharp": lambda rng, shape: 4 * rng.standard_normal(shape),
    "small": lambda rng, shape: 0.01 * rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.uniform(size=shape),
    "equal rows": lambda rng, shape: np.broadcast_to(rng.standard_normal((*shape[:-2], 1, shape[-1])), shape),
    "outliers": lambda rng, shape: rng.standard_normal(shape) * np.where(rng.uniform(size=shape) < 0.02, 20, 1),
}


def to_float32(operands: list[Quantized]) -> list[Numbers]:
    return [exact_values(x, "x").astype(np.float32) for x in operands]


def scores_of(query: Numbers, key: Numbers, causal: bool) -> Numbers:
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(np.float32(query.shape[-1]))
    return np.where(np.tri(*scores.shape[-2:]) == 1, scores, -np.inf) if causal else scores


def pooled(scores: Numbers, value: Numbers, store: Callable[[Numbers], Numbers]) -> Numbers:
    """Exponentials rounded by ``store`` for the product, divided by the sum of unrounded ones."""
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(store(exponentials) @ value / exponentials.sum(-1, keepdims=True))


def in_tiles(scores: Numbers, value: Numbers, store: Callable[[Numbers], Numbers]) -> Numbers:
    """Attention with a running maximum over tiles of 16 keys."""
    maximum = np.full((*scores.shape[:-1], 1), -np.inf, np.float32)
    total = np.zeros_like(maximum)
    output = np.zeros((*scores.shape[:-1], value.shape[-1]), np.float32)
    for start in range(0, scores.shape[-1], 16):
        tile = scores[..., start : start + 16]
        new = np.maximum(maximum, tile.max(-1, keepdims=True))
        correction = np.exp(maximum - new)
        exponentials = np.exp(tile - new)
        total = total * correction + exponentials.sum(-1, keepdims=True)
        output = output * correction + store(exponentials) @ value[..., start : start + 16, :]
        maximum = new
    return output / total


def as_float(kind: Any, factor: float = 1.0) -> Callable[[Numbers], Numbers]:
    return lambda x: (x * np.float32(factor)).astype(kind).astype(np.float32) / np.float32(factor)


def in_format(name: str) -> Callable[[Numbers], Numbers]:
    """Round exponentials with scales of their own, in blocks of keys."""
    form = operand_format(name)

    def store(x: Numbers) -> Numbers:
        padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % (form.channels or 1))])
        (values,) = to_float32([quantize(padded, form, -2, "float32")])
        return values[..., : x.shape[-1]]

    return store


class Kernel(NamedTuple):
    """A way to store weights, perhaps with operands rounded to the dtype first."""

    modifier: str
    store: Callable[[Numbers], Numbers]
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    rounds_operands: bool = False


ROUNDED = "prescaled"
KERNELS = {
    "weights in float32": Kernel("", lambda x: x),
    "weights in bfloat16": Kernel("", as_float(ml_dtypes.bfloat16), ("bfloat16",)),
    "weights in float16": Kernel("", as_float(np.float16), ("float16",)),
    "operands in bfloat16": Kernel(ROUNDED, as_float(ml_dtypes.bfloat16), ("bfloat16",), True),
    "weights in E4M3": Kernel("+weights-e4m3", as_float(ml_dtypes.float8_e4m3fn)),
    "weights in E4M3 times 256": Kernel("+weights-e4m3", as_float(ml_dtypes.float8_e4m3fn, 256)),
    "weights in E4M3 by row": Kernel("+weights-e4m3", in_format("e4m3-per-token")),
    "weights in E5M2": Kernel("+weights-e5m2", as_float(ml_dtypes.float8_e5m2)),
    "weights in 127 steps": Kernel("+weights-int8", lambda x: np.rint(x * 127) / np.float32(127)),
    "weights in int8 by block": Kernel("+weights-int8", in_format("int8-per-32-channels")),
    "weights in MXFP8": Kernel("+weights-mxfp8", in_format("mxfp8")),
    "weights in NVFP4": Kernel("+weights-nvfp4", in_format("nvfp4")),
}


def scaled_afterwards(operands: list[Quantized], causal: bool, store: Callable[[Numbers], Numbers]) -> Numbers:
    """Attention from codes; one scale of each operand multiplies scores and outputs."""
    query, key, value = (x.codes.astype(np.float32) for x in operands)
    scales = [x.scales.astype(np.float32) for x in operands]
    scores = scores_of(query, key, causal) * (scales[0] * scales[1])
    return np.asarray(pooled(scores, value, store) * scales[2])


def honest_results(seed: int) -> Any:
    """The verdict on a batch of honest results, with the values that describe it."""
    rng = np.random.default_rng(seed)
    name = list(KERNELS)[rng.integers(len(KERNELS))]
    kernel, kind = KERNELS[name], list(NUMBERS)[rng.integers(len(NUMBERS))]
    dtype = str(rng.choice(kernel.dtypes))
    large = rng.uniform() < 0.02
    queries, keys = (int(16 * rng.integers(1, 9 if large else 4)) * 2 for _ in range(2))
    queries = queries if large else int(rng.integers(1, 9))
    features, causal = int(rng.choice([32, 64])), bool(rng.uniform() < 0.25)
    formats = [str(rng.choice(FORMATS)) for _ in range(3)]
    if causal or large:
        queries = keys
    operands = []
    for format_name, rows in zip(formats, (queries, keys, keys), strict=True):
        form = operand_format(format_name)
        if rows % (form.tokens or 1):
            form = operand_format("e4m3-per-tensor")
        x = varied(NUMBERS[kind](rng, (BATCH, rows, features)), form, -2, rng)
        operands.append(quantize(x, form, -2, dtype))
    arrays = to_float32(operands)
    if kernel.rounds_operands:
        arrays = [x.astype(numpy_dtype(dtype)).astype(np.float32) for x in arrays]
    per_tensor = all(x.scales.size == 1 and x.global_scale is None for x in operands)
    if per_tensor and not kernel.rounds_operands:
        output = scaled_afterwards(operands, causal, kernel.store)
    else:
        attend = in_tiles if rng.uniform() < 0.5 else pooled
        output = attend(scores_of(arrays[0], arrays[1], causal), arrays[2], kernel.store)
    precision = f"prescaled-{dtype}" if kernel.rounds_operands else DEFAULT[dtype] + kernel.modifier
    with np.errstate(all="ignore"):
        verdict = judge(SDPA, output.astype(numpy_dtype(dtype)), *operands, precision=precision, causal=causal)
    return verdict, (seed, name, kind, dtype, formats, causal)


@pytest.mark.parametrize("share", range(SHARES))
def test_honest_results_are_acquitted(share: int) -> None:
    results = [honest_results(seed) for seed in range(share, CALLS, SHARES)]
    convicted = [(case, str(verdict)) for verdict, case in results if not verdict and not verdict.outside]
    assert convicted == []
    judged = [verdict for verdict, _ in results if not verdict.outside]
    assert len(judged) > 0.8 * len(results), "results that cannot be judged prove nothing"
