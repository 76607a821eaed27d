"""What a declaration leaves out is never called, reports say so, and a run proposes it where it was refused."""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.reporting.declaration import declaration
from attnspec.conformance.running.explanation import explained
from attnspec.conformance.running.refusals import refusals
from attnspec.spec.contract.operation import OPERATIONS

Numbers = np.ndarray[Any, Any]
ATTENTION = "scaled_dot_product_attention"
QUICK = PROFILES["quick"]


class Kernel(NamedTuple):
    """What a kernel refuses of (query, key, value, mask, causal), by which message, and its declaration."""

    refuses: Callable[..., bool]
    says: str
    declared: dict[str, Any]
    laws: tuple[str, ...]


def _batches(*arrays: Numbers) -> list[int]:
    return [size for x in arrays for size in x.shape[:-2]]


def _idle(query: Numbers, key: Numbers, mask: Any, causal: bool) -> bool:
    """Whether a query has no key."""
    allowed = np.broadcast_to(True if mask is None else mask, np.broadcast_shapes(
        () if mask is None else mask.shape, (query.shape[-2], key.shape[-2])
    ))  # fmt: skip
    allowed = allowed & np.tri(query.shape[-2], key.shape[-2], dtype=bool) if causal else allowed
    return not allowed.any(-1).all()


KERNELS: Mapping[str, Kernel] = {
    "lengths of 0": Kernel(
        lambda query, key, value, mask, causal: 0 in (query.shape[-2], key.shape[-2]),
        "zero-size array to reduction operation maximum which has no identity",
        {"limits": {"min_length": 1}},
        ("semantics.no_keys",),
    ),
    "lengths below 8": Kernel(
        lambda query, key, value, mask, causal: min(query.shape[-2], key.shape[-2]) < 8,
        "sequences must have at least 8 elements",
        {"limits": {"min_length": 8}},
        ("semantics.no_keys",),
    ),
    "batches of 0": Kernel(
        lambda query, key, value, mask, causal: 0 in _batches(query, key, value),
        "the batch must be positive",
        {"limits": {"min_batch": 1}},
        ("operation.empty-batch",),
    ),
    "masks": Kernel(
        lambda query, key, value, mask, causal: mask is not None,
        "masks are not supported",
        {"limits": {"mask": False}},
        ("semantics.fully_masked", "masking.mask-broadcasting"),
    ),
    "causal": Kernel(
        lambda query, key, value, mask, causal: causal,
        "attention() got an unexpected keyword argument 'causal'",
        {"limits": {"causal": False}},
        ("semantics.causal_alignment",),
    ),
    "views": Kernel(
        lambda query, key, value, mask, causal: (
            not all(x.flags.c_contiguous for x in (query, key, value, mask) if x is not None)
        ),
        "expected contiguous tensors",
        {"limits": {"contiguous_only": True}},
        ("operation.non-contiguous", "storage.layouts"),
    ),
    "rows without keys": Kernel(
        lambda query, key, value, mask, causal: bool(key.shape[-2]) and _idle(query, key, mask, causal),
        "a row has nothing to attend to",
        {"semantics": {"fully_masked": "error"}},
        ("masking.rows-as-declared",),
    ),
}


def backend(kernel: Kernel, **declared: Any) -> Any:
    """The reference, which refuses what the kernel does."""

    def attention(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
        if kernel.refuses(query, key, value, mask, causal):
            raise RuntimeError(kernel.says)
        return np.asarray(reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal))

    limits = {"dtypes": ("float32",), **declared.pop("limits", {})}
    return SimpleNamespace(name="kernel", scaled_dot_product_attention=attention, limits=limits, **declared)


def judged(made: Any) -> dict[str, Result]:
    """The verdict of every law."""
    contract = Contract.of(made)
    (case,) = cases(contract)
    return {r.law: r for r in judge(made, contract, case, QUICK)}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_backend_that_declares_what_it_refuses_conforms(kernel: Kernel) -> None:
    results = judged(backend(kernel, **kernel.declared))
    assert {law: r.message for law, r in results.items() if r.status is Status.FAILED} == {}
    ((attribute, ((name, value),)),) = ((a, tuple(x.items())) for a, x in kernel.declared.items())
    left_out = {law: r.reason for law, r in results.items() if (r.reason or "").startswith("left out by")}
    assert set(left_out.values()) <= {f"left out by {attribute} {name} = {value}"}
    for law in kernel.laws:
        assert results[law].status is Status.NOT_APPLICABLE, law


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_without_a_declaration_it_is_convicted_and_the_declaration_proposed(kernel: Kernel) -> None:
    made = backend(kernel)
    contract = Contract.of(made)
    (case,) = cases(contract)
    results = judge(made, contract, case, QUICK)
    failed = [r for r in results if r.status is Status.FAILED]
    assert failed
    subject = Subject(made, contract, OPERATIONS[ATTENTION], "float32", "cpu")
    found = explained(
        partial(judge, made, profile=QUICK, stop_at_first=True),
        contract,
        case,
        failed,
        lambda: refusals(subject, lambda law, example: None),
    )
    assert {r.law for r in failed} == set(found.laws)
    pasted = declaration(contract, results, {case.id: found.as_json()})
    expected = {name: dict(x) for name, x in kernel.declared.items()}
    if "limits" in expected:
        expected["limits"] = {"dtypes": ("float32",), **expected["limits"]}
    assert pasted.attributes == expected
