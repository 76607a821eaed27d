"""Operands as codes and scales: their exact values, and ``judge`` with them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.inputs.quantization import exact_values, quantize, varied
from attnspec.spec import Quantized
from attnspec.spec.contract.quantized import operand_format

SDPA = "scaled_dot_product_attention"

FORMATS = (
    "e4m3-per-tensor", "e5m2-per-head", "int8-per-token", "e4m3-per-channel", "int8-per-16-tokens",
    "e4m3-per-32-channels", "mxfp8", "mxfp8-along-tokens", "nvfp4", "nvfp4-along-tokens",
)  # fmt: skip


def operand(name: str, shape: tuple[int, ...], seed: int, dtype: str = "float32") -> Quantized:
    """A normal array in a format, with blocks of different magnitudes."""
    form, rng = operand_format(name), np.random.default_rng(seed)
    return quantize(varied(rng.standard_normal(shape), form, -2, rng), form, -2, dtype)


def operands(name: str, dtype: str, queries: int = 128, features: int = 64) -> list[Quantized]:
    """Query, key and value in a format."""
    return [operand(name, (2, queries, features), seed, dtype) for seed in range(3)]


def attention(*arrays: Numbers, store: Callable[[Numbers], Numbers] = lambda x: x) -> Numbers:
    """Attention in float32; ``store`` rounds the exponentials before they multiply the values."""
    query, key, value = (x.astype(np.float32) for x in arrays)
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(np.float32(query.shape[-1]))
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(store(exponentials) @ value / exponentials.sum(-1, keepdims=True))


def values(*quantized: Quantized) -> list[Numbers]:
    """Exact values of operands."""
    return [exact_values(x, "x") for x in quantized]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_kernel_that_dequantises_in_float32_is_right(name: str, dtype: str) -> None:
    quantized = operands(name, dtype)
    output = attention(*values(*quantized)).astype(numpy_dtype(dtype))
    verdict = judge(SDPA, output, *quantized)
    assert verdict, verdict
    assert "tested on 256 rows" in str(verdict)


def test_a_scale_may_be_applied_after_the_product() -> None:
    query, key, value = operands("e4m3-per-tensor", "bfloat16")
    codes = [x.codes.astype(np.float32) for x in (query, key, value)]
    codes[0] *= query.scales * key.scales
    output = (attention(*codes) * value.scales).astype(ml_dtypes.bfloat16)
    assert judge(SDPA, output, query, key, value)


def _rolled(x: Quantized) -> Quantized:
    return replace(x, scales=np.roll(x.scales, 1, -1))


def _transposed(x: Quantized) -> Quantized:
    shape = x.scales.shape
    return replace(x, scales=x.scales.swapaxes(-1, -2).reshape(shape))


def _with_scales(change: Callable[[Numbers], Any]) -> Callable[[Quantized], Quantized]:
    return lambda x: replace(x, scales=change(x.scales))


DEFECTS: dict[str, tuple[str, Callable[[Quantized], Quantized]]] = {
    "2 % too much": ("int8-per-token", _with_scales(lambda s: s * np.float32(1.02))),
    "of the block before": ("mxfp8", _rolled),
    "transposed": ("nvfp4", _transposed),
    "left out": ("e4m3-per-tensor", _with_scales(np.ones_like)),
    "applied twice": ("e4m3-per-tensor", _with_scales(lambda s: s * s)),
    "as exponents": ("mxfp8", _with_scales(lambda s: (np.log2(s.astype(np.float32)) + 127).astype(np.float32))),
    "of the first block alone": ("nvfp4", _with_scales(lambda s: s[..., :1])),
    "global scale left out": ("nvfp4", lambda x: replace(x, global_scale=np.ones((), np.float32))),
}


def misread(defect: str, changed: int, dtype: str) -> tuple[list[Quantized], list[Numbers]]:
    """Operands, and their values if one of them is read with a defect."""
    form, change = DEFECTS[defect]
    quantized = operands(form, dtype)
    arrays = values(*quantized)
    (arrays[changed],) = values(change(quantized[changed]))
    return quantized, arrays


@pytest.mark.parametrize("changed", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_wrong_scale_is_convicted(defect: str, changed: int) -> None:
    quantized, arrays = misread(defect, changed, "bfloat16")
    assert not judge(SDPA, attention(*arrays).astype(ml_dtypes.bfloat16), *quantized)


def test_a_query_tells_the_dtype_of_a_quantised_cache() -> None:
    _, key, value = operands("e4m3-per-head", "float32")
    query = np.random.default_rng(3).standard_normal((2, 128, 64)).astype(ml_dtypes.bfloat16)
    output = attention(query, *values(key, value)).astype(ml_dtypes.bfloat16)
    assert judge(SDPA, output, query, key, value).dtype == "bfloat16"
    with pytest.raises(TypeError, match=f"{SDPA}: output: expected bfloat16, like the arguments; got float32"):
        judge(SDPA, output.astype(np.float32), query, key, value)


def test_operands_rounded_to_bfloat16_first_have_a_class() -> None:
    quantized = operands("int8-per-token", "bfloat16")
    arrays = [x.astype(ml_dtypes.bfloat16) for x in values(*quantized)]
    output = attention(*arrays).astype(ml_dtypes.bfloat16)
    verdict = judge(SDPA, output, *quantized)
    assert not verdict
    assert "explained by precision prescaled-bfloat16" in str(verdict)
    assert judge(SDPA, output, *quantized, precision="prescaled-bfloat16")


def _as_torch(x: Quantized) -> Quantized:
    """An operand as tensors, with packed float4."""
    import torch

    def tensor(array: Numbers) -> torch.Tensor:
        name = {"float4_e2m1fn": "float4_e2m1fn_x2"}.get(array.dtype.name, array.dtype.name)
        numbers = np.array(array.view(np.uint8) if array.itemsize == 1 else array)
        if name.endswith("_x2"):
            numbers = numbers[..., ::2] | numbers[..., 1::2] << 4
        return torch.from_numpy(numbers).view(getattr(torch, name))

    return Quantized(tensor(x.codes), tensor(x.scales), None if x.global_scale is None else tensor(x.global_scale))


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_are_read_like_arrays(name: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    quantized = operands(name, "float32")
    output = attention(*values(*quantized))
    tensors = [_as_torch(x) for x in quantized]
    assert [x.shape for x in tensors] == [x.shape for x in quantized]
    assert judge(SDPA, output, *tensors).ratio == judge(SDPA, output, *quantized).ratio > 0


CODES, SCALES = np.ones((4, 64), np.int8), np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (Quantized(CODES.astype(np.float32), SCALES), "key: codes: expected one of .*, int8; got float32"),
        (Quantized(CODES, SCALES.astype(np.float64)), "key: scales: expected one of float32, .*; got float64"),
        (Quantized(CODES, np.ones((4, 3), np.float32)),
         r"key: scales: expected axes of sizes that divide those of the codes, \(4, 64\), such as \(4, 1\) for a scale "
         r"per token, \(1, 64\) per channel or \(\) per tensor; got \(4, 3\)"),
        (Quantized(CODES, SCALES, np.ones((), np.float32)),
         "key: scales beside a global_scale: expected one of float8_e8m0fnu, float8_e4m3fn; got float32"),
        (Quantized(CODES, SCALES.astype(ml_dtypes.float8_e4m3fn), np.ones(2, np.float32)),
         r"key: global_scale: expected a single number; got shape \(2,\)"),
        (Quantized(CODES, SCALES, dtype="float8"), "key: dtype: expected one of float64, .*; got 'float8'"),
        (Quantized(CODES, 0.5), "key: scales: expected an array, by DLPack or the array interface; got float"),
    ],
)  # fmt: skip
def test_errors_of_a_quantised_operand_say_what_was_expected(key: Quantized, message: str) -> None:
    query = value = np.ones((4, 64), np.float32)
    with pytest.raises((TypeError, ValueError), match=f"{SDPA}: {message}"):
        judge(SDPA, value, query, key, value)


def test_only_arrays_of_floats_may_be_quantised() -> None:
    ones = np.ones((4, 4), np.float32)
    with pytest.raises(TypeError, match=f"{SDPA}: mask: expected booleans; got Quantized"):
        judge(SDPA, ones, ones, ones, ones, mask=Quantized(CODES[:, :4], SCALES[:, :1]))


@pytest.mark.parametrize("name", ["e4m3", "int8-per-row", "mxfp4", "nvfp4-per-token", "e4m3-per-0-tokens", ""])
def test_an_unknown_format_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"operand format: expected e4m3, .*; got"):
        operand_format(name)


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_within_half_a_step_of_the_numbers(name: str) -> None:
    form, rng = operand_format(name), np.random.default_rng(0)
    x = varied(rng.standard_normal((3, 32, 64)), form, -2, rng)
    quantized = quantize(x, form, -2, "float32")
    (got,) = values(quantized)
    unit = {"int8": 0.0, "float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3, "float4_e2m1fn": 2**-2}[form.codes]
    # Scales of 8 bits clip a block's largest numbers, by at most an eighth.
    clipped = 2**-3 if form.scales != "float32" else 0.0
    steps = {"int8": 0.5, "float8_e4m3fn": 2**-10, "float8_e5m2": 2**-17, "float4_e2m1fn": 0.25}[form.codes]
    (scales,) = values(replace(quantized, codes=np.ones_like(quantized.codes)))
    assert (np.abs(got - x) <= np.maximum(max(unit, clipped) * np.abs(x), 1.001 * steps * scales)).all()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("e4m3-per-tensor", (1, 1, 1, 1)), ("e4m3-per-head", (1, 2, 1, 1)), ("e4m3-per-channel", (1, 2, 1, 32)),
        ("int8-per-token", (3, 2, 64, 1)), ("int8-per-64-tokens", (3, 2, 1, 1)), ("mxfp8", (3, 2, 64, 1)),
    ],
)  # fmt: skip
def test_a_scale_for_all_tokens_is_one_for_all_pages(name: str, shape: tuple[int, ...]) -> None:
    pages = np.random.default_rng(0).standard_normal((3, 2, 64, 32))
    assert quantize(pages, operand_format(name), -2, "float32", page_axis=-4).scales.shape == shape
