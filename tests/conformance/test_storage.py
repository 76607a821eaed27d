"""Memory layouts of arrays, and backends that misread them."""

import re
from math import gcd
from threading import Thread
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from attnspec.backends.bases.numpy import NumPyBackend
from attnspec.backends.bases.torch import TorchBackend, from_numpy, to_numpy
from attnspec.conformance.inputs.layouts import (
    FAR_OFFSET,
    LAYOUTS,
    VIEW_ERRORS,
    Layout,
    negated,
    spread_out,
    with_stride_0,
)
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.exclusive import alone
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status
from attnspec.conformance.laws.storage import STEP
from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.running.trials import Trial, run_trial
from attnspec.spec import Limits
from attnspec.spec.contract.law import LAWS

WRONG = [m for m in MUTANTS.values() if m.chapter == "storage"][::4]
"""Every fourth mutant of the chapter; ``nox -s mutants`` judges all."""

SHAPES = [(3,), (2, 3), (2, 3, 4), (2, 1, 3, 4), (0, 3), (2, 0)]


def tensor(x: Any) -> torch.Tensor:
    return from_numpy(np.array(x, order="C"), device="cpu")


def array(x: Any) -> Any:
    return np.array(x, order="C")


def test_arrays_of_a_call_step_through_all_layouts() -> None:
    # Array i of a call gets layout i · STEP, modulo their number, from a first one on.
    assert gcd(STEP, len(LAYOUTS)) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_layouts_keep_the_numbers(layout: Layout, shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    np.testing.assert_array_equal(layout(x, array), x)
    try:
        laid_out = layout(x, tensor)
    except VIEW_ERRORS:
        assert "backwards" in layout.__name__
    else:
        np.testing.assert_array_equal(to_numpy(laid_out), x)


def test_layouts_differ_in_strides_base_offset_or_writing() -> None:
    x = np.arange(2 * 3 * 5 * 4, dtype=np.float32).reshape(2, 3, 5, 4)
    views = [layout(x, array) for layout in LAYOUTS]
    kinds = [(v.strides, v.base is None or v.base.size == v.size, v.flags.writeable) for v in views]
    offsets = [v.__array_interface__["data"][0] - (v if v.base is None else v.base).__array_interface__["data"][0]
              for v in views]  # fmt: skip
    assert len(set(zip(kinds, offsets, strict=True))) == len(LAYOUTS)
    dense = [v for v in views if v.strides[-1] == v.itemsize and not v.flags.c_contiguous]
    assert len(dense) >= 6


def test_negated_arrays_keep_the_numbers() -> None:
    for dtype in (np.float64, ml_dtypes.bfloat16):
        x = np.random.default_rng(0).standard_normal((2, 3)).astype(dtype)
        assert negated(x, tensor).is_neg()
        np.testing.assert_array_equal(to_numpy(negated(x, tensor)), x)
    with pytest.raises(VIEW_ERRORS):
        negated(x, array)


class IgnoresLazyNegation(TorchBackend):
    """A backend that reads memory by its address and so ignores PyTorch's lazy negation."""

    name = "signless"

    def softmax(self, scores: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        memory = scores.untyped_storage()
        read = torch.empty(0, dtype=scores.dtype).set_(memory, scores.storage_offset(), scores.shape, scores.stride())
        return read.masked_fill(~mask if mask is not None else torch.zeros((), dtype=torch.bool), -torch.inf).softmax(
            -1
        )


def test_lazily_negated_arrays_are_tried() -> None:
    contract = Contract.of(IgnoresLazyNegation())
    (case,) = cases(contract, operations=("softmax",), laws=("storage.views-equal-copies",), dtypes=("float32",))
    (result,) = judge(IgnoresLazyNegation(), contract, case, PROFILES["quick"])
    assert result.status is Status.FAILED
    assert "laid out as negated" in result.message


@pytest.mark.parametrize("axis", [0, -2, -1])
def test_repeated_arrays_have_stride_0(axis: int) -> None:
    x = np.repeat(np.take(np.arange(24.0).reshape(2, 3, 4), [0], axis), (2, 3, 4)[axis], axis)
    assert with_stride_0(x, axis, array).strides[axis] == 0
    assert with_stride_0(x, axis, tensor).stride(axis) == 0
    np.testing.assert_array_equal(with_stride_0(x, axis, tensor).numpy(), x)


@pytest.mark.parametrize("axis", [0, 1])
def test_distant_rows_need_more_than_31_bits(axis: int) -> None:
    x = np.arange(2 * 3 * 4, dtype=np.int8).reshape(2, 3, 4)
    far, of_torch = spread_out(x, axis, array), spread_out(x, axis, tensor)
    assert far.strides[axis] * (x.shape[axis] - 1) >= FAR_OFFSET
    assert of_torch.stride(axis) * (x.shape[axis] - 1) >= FAR_OFFSET
    np.testing.assert_array_equal(far, x)
    np.testing.assert_array_equal(of_torch.numpy(), x)
    assert spread_out(x[:1], 0, array) is None
    assert spread_out(x.astype(np.float64), 0, array) is None


@pytest.mark.parametrize("m", WRONG, ids=lambda m: m.name)
def test_wrong_backends_are_convicted_in_full(m: Mutant) -> None:
    outcome = run_trial(Trial(m, "full", 0, operation=m.operations[0]))
    assert {failure.law for failure in outcome.failures} & set(m.breaks)


class OneRow(NumPyBackend):
    """An honest backend of one operation, in NumPy, with limits."""

    name = "one row"
    limits = Limits(dtypes=("float32",), max_batch_dims=1, broadcasting=False, features=())

    def dot_scores(self, query: Any, key: Any) -> Any:
        if query.shape[-1] != key.shape[-1] or query.shape[:-2] != key.shape[:-2]:
            raise ValueError("sizes differ")
        return np.array(query @ key.swapaxes(-1, -2), query.dtype)


def test_an_honest_backend_with_limits_conforms() -> None:
    backend = OneRow()
    contract = Contract.of(backend)
    laws = ["operation.independent-of-other-calls", *(law for law in LAWS if law.startswith("storage."))]
    (case,) = cases(contract, laws=laws)
    statuses = {r.law: r.status for r in judge(backend, contract, case, PROFILES["full"])}
    assert Status.FAILED not in statuses.values()
    assert statuses["storage.views-equal-copies"] is statuses["operation.independent-of-other-calls"] is Status.PASSED


class OnDevice(OneRow):
    """An honest backend that declares a device, and how much of its memory is free."""

    limits = Limits(dtypes=("float32",), devices=("cuda",), max_batch_dims=1, broadcasting=False, features=())

    def __init__(self, free: int | None) -> None:
        self.free, self.asked = free, 0

    def from_numpy(self, array: Any, *, device: str) -> Any:
        return super().from_numpy(array, device="cpu")

    def free_memory(self, *, device: str) -> int | None:
        self.asked += 1
        return self.free


ROOM = [
    (10**9, r"offsets beyond 31 bits: 1\d\.\d GB are needed on cuda, and 1\.0 GB are free"),
    (None, r"offsets beyond 31 bits: 1\d\.\d GB are needed on cuda, and the backend has no free_memory"),
    (10**12, ""),
]


@pytest.mark.parametrize(("free", "note"), ROOM, ids=["little", "unknown", "much"])
def test_distant_rows_are_tried_where_the_device_has_room(free: int | None, note: str) -> None:
    backend = OnDevice(free)
    contract = Contract.of(backend, device="cuda")
    (case,) = cases(contract, operations=("dot_scores",), laws=("storage.views-equal-copies",))
    (result,) = judge(backend, contract, case, PROFILES["full"], device="cuda")
    assert result.status is Status.PASSED
    assert re.fullmatch(note, result.note)
    assert backend.asked


def test_one_judge_at_a_time_holds_large_arrays() -> None:
    order: list[str] = []

    def wait() -> None:
        with alone():
            order.append("second")

    with alone():
        second = Thread(target=wait)
        second.start()
        second.join(0.2)
        order.append("first")
    second.join()
    assert order == ["first", "second"]
