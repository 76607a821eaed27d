"""``judge`` on honest and wrong results at sizes of models; usual tolerances accept both.

A fifth of the 504 honest results is judged by default. ``ATTNSPEC_WHOLE=1`` judges all, and wrong ones at 8,192 keys.
"""

import os
import shutil
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest

from attnspec.conformance import judge, suggest_inputs

torch = pytest.importorskip("torch", reason="the kernels that are judged are PyTorch's")
pytest.importorskip("torch.nn.attention.flex_attention", reason="flex_attention is judged, too")
functional, attention = torch.nn.functional, torch.nn.attention

from attnspec.backends import pytorch  # noqa: E402 - needs torch

pytestmark = pytest.mark.slow

SDPA = "scaled_dot_product_attention"
WHOLE = os.environ.get("ATTNSPEC_WHOLE") == "1"
DTYPES = ("float64", "float32", "bfloat16", "float16")
EAGER = {"bfloat16": "eager-bfloat16", "float16": "eager-float16"}

NUMBERS: dict[str, Callable[[Any, tuple[int, ...]], Any]] = {
    "normal": lambda g, shape: torch.randn(shape, generator=g),
    "sharp": lambda g, shape: 4 * torch.randn(shape, generator=g),
    "small": lambda g, shape: 0.01 * torch.randn(shape, generator=g),
    "positive": lambda g, shape: torch.rand(shape, generator=g),
    "integers": lambda g, shape: torch.randn(shape, generator=g).mul(2).round(),
    "like one another": lambda g, shape: (
        torch.randn(*shape[:-2], 1, shape[-1], generator=g).expand(shape) + 0.001 * torch.randn(shape, generator=g)
    ),
    "zeros": lambda g, shape: torch.zeros(shape),
}

MASKS: dict[str, Callable[[Any, int, int], Any]] = {
    "none": lambda g, n, m: None,
    "causal": lambda g, n, m: "causal",
    "padding": lambda g, n, m: torch.arange(m) < torch.randint(1, m + 1, (2, 1, 1, 1), generator=g),
    "random": lambda g, n, m: torch.rand(2, 3, n, m, generator=g) < 0.6,
    "banded": lambda g, n, m: (torch.arange(n)[:, None] - torch.arange(m)).abs() < 9,
    "one key": lambda g, n, m: torch.arange(m) == torch.randint(m, (n, 1), generator=g),
}


def attention_by_kernel(backend: Any) -> Callable[..., Any]:
    def call(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> Any:
        with attention.sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)

    return call


KERNELS: dict[str, Callable[..., Any]] = {
    "math": attention_by_kernel(attention.SDPBackend.MATH),
    "flash": attention_by_kernel(attention.SDPBackend.FLASH_ATTENTION),
    "ours": lambda query, key, value, mask, causal: pytorch.scaled_dot_product_attention(
        query, key, value, mask=mask, causal=causal
    ),
}

CASES = list(product(KERNELS, DTYPES, MASKS, NUMBERS))


@pytest.mark.parametrize(("kernel", "dtype", "mask", "numbers"), CASES if WHOLE else CASES[::5])
def test_honest_results_are_right(kernel: str, dtype: str, mask: str, numbers: str) -> None:
    seed = CASES.index((kernel, dtype, mask, numbers))
    g = torch.Generator().manual_seed(seed)
    n, m, d = (64, 33, 90)[seed % 3], (70, 128, 33)[seed % 4 % 3], (64, 24)[seed % 2]
    # NUMBERS is the last factor of CASES: keys of its own kind need another digit of the seed than ``numbers``
    of_keys = list(NUMBERS)[seed // len(NUMBERS) % len(NUMBERS)]
    query, key, value = (
        NUMBERS[kind](g, (2, 3, rows, d)).to(getattr(torch, dtype))
        for kind, rows in ((numbers, n), (of_keys, m), ("positive" if seed % 3 else "normal", m))
    )
    allowed = MASKS[mask](g, n, m)
    causal = isinstance(allowed, str)
    if kernel != "ours" and not causal and allowed is not None:
        # PyTorch's kernels give NaN for rows without keys, which is not normative.
        allowed = allowed | (torch.arange(m) == 0)
    options = {"causal": causal} if causal or allowed is None else {"mask": allowed}
    output = KERNELS[kernel](query, key, value, None if causal else allowed, causal)
    precision = EAGER.get(dtype) if kernel == "math" else None
    verdict = judge(SDPA, output, query, key, value, precision=precision, **options)
    # such kinds of numbers may leave no verdict: a sum may overflow float16, or budgets are too wide to judge
    assert verdict or verdict.outside, verdict


@pytest.mark.skipif(shutil.which("c++") is None, reason="flex_attention needs a C++ compiler on the CPU")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # PyTorch's compiler uses it
@pytest.mark.parametrize("dtype", DTYPES[1:] if WHOLE else DTYPES[1:2])
@pytest.mark.parametrize("causal", [False, True] if WHOLE else [True])
def test_compiled_flex_attention_is_right(dtype: str, causal: bool) -> None:
    g = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 3, 130, 64, generator=g).to(getattr(torch, dtype)) for _ in range(3))
    mask = attention.flex_attention.create_block_mask(lambda b, h, i, j: j <= i, None, None, 130, 130, device="cpu")
    compiled = torch.compile(attention.flex_attention.flex_attention)
    with torch.no_grad():
        output = compiled(query, key, value, block_mask=mask if causal else None)
    verdict = judge(SDPA, output, query, key, value, causal=causal)
    assert verdict, verdict


WRONG: dict[str, Callable[[Any, Any, Any], Any]] = {
    "the keys are not read": lambda q, k, v: formula(q, 0 * k, v),
    "the mean of the values": lambda q, k, v: v.mean(-2, keepdim=True).expand(q.shape),
    "a padding key is attended to": lambda q, k, v: formula(q, padded(k), padded(v)),
    "the last key is dropped": lambda q, k, v: formula(q, k[..., :-1, :], v[..., :-1, :]),
    "a scale that is 5 % off": lambda q, k, v: formula(1.05 * q, k, v),
}

HIDDEN = {
    "a padding key is attended to": "a key of zeros, behind the others, that is attended to",
    "the last key is dropped": "the last key left out",
}
"""Defects that inputs may hide, as a verdict describes them."""


def formula(query: Any, key: Any, value: Any) -> Any:
    """Attention in the dtype of its arguments."""
    return functional.scaled_dot_product_attention(query, key, value)


def padded(x: Any) -> Any:
    return functional.pad(x, (0, 0, 0, 1))


@cache
def inputs(keys: int, dtype: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Normal query, key and value, then suggested ones of the same shapes."""
    g = torch.Generator().manual_seed(0)
    normal = tuple(torch.randn(1, 2, keys, 64, generator=g).to(getattr(torch, dtype)) for _ in range(3))
    named = suggest_inputs(SDPA, *normal)
    suggested = tuple(torch.from_numpy(named[name]).to(getattr(torch, dtype)) for name in ("query", "key", "value"))
    return normal, suggested


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("keys", [1024, *([8192] if WHOLE else [])])
def test_errors_that_tolerances_accept_are_wrong(keys: int, dtype: str, wrong: str) -> None:
    """Normal inputs convict the error, or the verdict says that they hide it; suggested inputs convict it."""
    for suggested, (query, key, value) in enumerate(inputs(keys, dtype)):
        output = WRONG[wrong](*(x.float() for x in (query, key, value))).to(query.dtype)
        verdict = judge(SDPA, output, query, key, value)
        assert not verdict or (not suggested and HIDDEN.get(wrong) in verdict.cannot_see), verdict
