"""Conventions of attention kernels: a choice is accepted if declared, convicted if not, by `check` and `judge`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge as judge_case
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.reference import REFERENCE
from attnspec.reference.defining.choices import choosing
from attnspec.spec import QUESTIONS

FORMULA = "operation.oracle"


def normal(*shape: int, seed: int = 0) -> Numbers:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def heads_and_keys(n: int = 3, m: int = 6, batch: tuple[int, ...] = (2,)) -> dict[str, Any]:
    """Query, key and value with four heads of queries and two of keys."""
    shapes = {"query": (*batch, 4, n, 8), "key": (*batch, 2, m, 8), "value": (*batch, 2, m, 4)}
    return {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}


def grouped(query: Numbers, key: Numbers, value: Numbers, **options: Any) -> Any:
    return REFERENCE["grouped_query_attention"](query, key, value, **options)


def near(beyond: Numbers, causal: bool, window: Any) -> Numbers:
    """True at the keys that a causal mask and a window allow; ``beyond`` is how far each key is after its query."""
    left, right = (None, None) if window is None else window
    allowed = np.ones(beyond.shape, bool)
    for side in (0 if causal else None, right):
        allowed = allowed if side is None else allowed & (beyond <= side)
    return allowed if left is None else allowed & (beyond >= -left)


def packed_from_the_end(
    query: Numbers, key: Numbers, value: Numbers, query_ends: Numbers, key_ends: Numbers,
    *, causal: bool = False, window: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """`flash_attn_varlen_func` since FlashAttention 2.1: each sequence's last query is aligned with its last key."""
    parts = []
    for (i, i_end), (j, j_end) in zip(pairwise(query_ends), pairwise(key_ends), strict=True):
        n, m = int(i_end - i), int(j_end - j)
        mask = near(np.arange(m) - np.arange(n)[:, None] - (m - n), causal, window)
        arrays = query[..., i:i_end, :], key[..., j:j_end, :], value[..., j:j_end, :]
        parts.append(grouped(*arrays, mask=mask, **options))
    return tuple(np.concatenate(x, axis) for x, axis in zip(zip(*parts, strict=True), (-2, -1), strict=True))


def cached(
    query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False, window: Any = None,
    bias: Any = None, slopes: Any = None, key_lengths: Any = None, bottom_right: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Attention to a cache: with lengths ℓ, query i is at ℓ − n + i, as in ONNX's Attention-24 with `nonpad_kv_seqlen`.

    Without lengths it is at i, or at m − n + i if ``bottom_right``, as in `flash_attn_with_kvcache`.
    """
    n, m = query.shape[-2], key.shape[-2]
    start = np.array(m - n if bottom_right else 0) if key_lengths is None else key_lengths - n
    beyond = np.arange(m) - np.arange(n)[:, None] - start[..., None, None]
    allowed = near(beyond, causal, window) & (True if mask is None else mask)
    allowed = allowed if key_lengths is None else allowed & (np.arange(m) < key_lengths[..., None, None])
    if slopes is not None:
        linear = -slopes[:, None, None] * np.abs(beyond)[..., None, :, :].astype(slopes.dtype)
        bias = linear if bias is None else bias + linear
    return grouped(query, key, value, mask=allowed, bias=bias, **options)


def narrower(window: Any) -> Any:
    """The window with one key less on its left side."""
    return window if window is None or window[0] is None else (window[0] - 1, window[1])


def own_in_window(
    query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, window: Any = None, **options: Any
) -> Any:
    """Windows of W keys, the query's own among them, as `sliding_window` of Hugging Face's models."""
    if window is not None:
        inside = own_in_window_mask(query.shape[-2], key.shape[-2], window=window)
        mask = inside if mask is None else mask & inside
    return grouped(query, key, value, mask=mask, **options)


def own_in_window_mask(n: int, m: int, *, window: Any = None) -> Numbers:
    return near(np.arange(m) - np.arange(n)[:, None], False, narrower(window))


def in_base_2(query: Numbers, key: Numbers, value: Numbers, **options: Any) -> Any:
    output, logarithms = grouped(query, key, value, **options)
    return output, logarithms / np.log(np.float32(2))


def merged_in_base_2(outputs: Numbers, log_sum_exps: Numbers) -> Any:
    merged, logarithms = REFERENCE["merge_attention"](outputs, log_sum_exps * np.log(np.float32(2)))
    return merged, np.asarray(logarithms / np.log(np.float32(2)))


def skipping_empty_rows(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, **options: Any) -> Any:
    """Attention whose log-sum-exp is −∞ in rows without attendable keys, sinks or not."""
    output, with_sinks = grouped(query, key, value, mask=mask, **options)
    _, without = grouped(query, key, value, mask=mask, **{**options, "sinks": None})
    return output, np.where(np.isneginf(without), without, with_sinks)


@dataclass(frozen=True)
class Convention:
    """A choice, a backend that makes it, and a call on which the choices differ; ``others`` are declared too."""

    question: str
    choice: str
    operation: str
    backend: Callable[..., Any]
    call: dict[str, Any]
    others: dict[str, str] = field(default_factory=dict)

    @property
    def normative(self) -> str:
        return QUESTIONS[self.question].normative


ENDS = {"query_ends": np.array([0, 2, 2, 5]), "key_ends": np.array([0, 5, 7, 9])}

LENGTHS = {"key_lengths": np.array([4, 5])}

SLOPES = {"slopes": np.array([0.5, 0.25, 0.125, 1.0], np.float32)}

CONVENTIONS = [
    *(
        Convention("causal_alignment", "bottom-right", "variable_length_attention", packed_from_the_end, call)
        for call in ({**heads_and_keys(5, 9), **ENDS, **options} for options in ({"causal": True}, {"window": (1, 0)}))
    ),
    *(
        Convention("length_alignment", "at-length", "grouped_query_attention", cached, call)
        for options in ({"causal": True}, {"window": (1, 0)}, {"causal": True, **SLOPES}, SLOPES)
        for call in [{**heads_and_keys(), **LENGTHS, **options}]
    ),
    Convention(
        "window_left",
        "includes-own",
        "grouped_query_attention",
        own_in_window,
        {**heads_and_keys(6, 6), "window": (2, 0)},
    ),
    Convention(
        "window_left", "includes-own", "sliding_window_mask", own_in_window_mask, {"n": 6, "m": 6, "window": (2, 1)}
    ),
    Convention("logarithms", "base-2", "grouped_query_attention", in_base_2, heads_and_keys()),
    Convention(
        "logarithms",
        "base-2",
        "merge_attention",
        merged_in_base_2,
        {"outputs": normal(2, 3, 4, seed=1), "log_sum_exps": 3 * normal(2, 3, seed=2)},
    ),
    Convention(
        "sink_alone",
        "minus-infinity",
        "grouped_query_attention",
        skipping_empty_rows,
        {**heads_and_keys(), "sinks": normal(4), "mask": np.arange(6) < np.array([[0], [4], [6]])},
    ),
    Convention(
        "length_alignment",
        "at-length",
        "grouped_query_attention",
        partial(cached, bottom_right=True),
        {**heads_and_keys(), **LENGTHS, "causal": True},
        {"causal_alignment": "bottom-right"},
    ),
]


def verdicts(convention: Convention, backend: Callable[..., Any], declared: str) -> dict[str, Any]:
    """Results of the formula's law and of the question's, by law, at float32."""
    semantics = {**convention.others, convention.question: declared}
    kernel = SimpleNamespace(name="kernel", semantics=semantics, **{convention.operation: backend})
    laws = (FORMULA, QUESTIONS[convention.question].law)
    (case,) = cases(Contract.of(kernel), operations=(convention.operation,), dtypes=("float32",), laws=laws)
    return {r.law: r for r in judge_case(kernel, Contract.of(kernel), case, PROFILES["quick"])}


of_every_convention = pytest.mark.parametrize(
    "convention", CONVENTIONS, ids=[f"{i} {c.operation} {c.question}={c.choice}" for i, c in enumerate(CONVENTIONS)]
)


@of_every_convention
def test_a_declared_convention_is_accepted(convention: Convention) -> None:
    results = verdicts(convention, convention.backend, convention.choice)
    assert {law: r.message for law, r in results.items() if r.violates} == {}
    assert results[QUESTIONS[convention.question].law].examples
    output = convention.backend(**convention.call)
    semantics = {**convention.others, convention.question: convention.choice}
    assert judge(convention.operation, output, **convention.call, semantics=semantics)


@of_every_convention
def test_an_undeclared_convention_is_convicted_and_observed(convention: Convention) -> None:
    results = verdicts(convention, convention.backend, convention.normative)
    assert all(r.violates for r in results.values())
    assert results[QUESTIONS[convention.question].law].observed == convention.choice
    output = convention.backend(**convention.call)
    assert not judge(convention.operation, output, **convention.call, semantics=convention.others)


@of_every_convention
def test_a_convention_that_is_declared_and_not_followed_is_convicted(convention: Convention) -> None:

    def normative(*arrays: Numbers, **options: Any) -> Any:
        with choosing(**convention.others):
            return REFERENCE[convention.operation](*arrays, **options)

    results = verdicts(convention, normative, convention.choice)
    assert all(r.violates for r in results.values())
    assert results[QUESTIONS[convention.question].law].observed == convention.normative
    semantics = {**convention.others, convention.question: convention.choice}
    assert not judge(convention.operation, normative(**convention.call), **convention.call, semantics=semantics)
