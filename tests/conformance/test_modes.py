"""Modes of calling a backend: numbers of threads, another thread, autocast of float32."""

import threading
from pathlib import Path
from typing import cast

import pytest
import torch

from attnspec.backends.bases.torch import TorchBackend
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.description import contract_from
from attnspec.spec import Limits


class Backend(TorchBackend):
    name = "mine"
    limits = Limits(dtypes=("float32", "bfloat16"))

    def softmax(self, scores: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.finished(scores.softmax(-1).nan_to_num(0.0))

    def finished(self, weights: torch.Tensor) -> torch.Tensor:
        return weights


class FixedThreadCount(Backend):
    """A backend whose weights are 0 if the number of threads has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = torch.get_num_threads()

    def finished(self, weights: torch.Tensor) -> torch.Tensor:
        return weights if torch.get_num_threads() == self.threads else weights * 0


class HalvedUnderAutocast(Backend):
    def softmax(self, scores: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        weights = super().softmax(scores, mask=mask)
        return weights / 2 if torch.is_autocast_enabled("cpu") and scores.dtype is torch.float32 else weights


def result_of_modes(backend: Backend, dtype: str) -> Result:
    contract = Contract.of(backend)
    candidates = cases(contract, operations=("softmax",), laws=("training.same-in-every-mode",))
    (case,) = (x for x in candidates if x.dtype == dtype)
    (result,) = judge(backend, contract, case, PROFILES["quick"])
    return result


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_backend_passes_and_keeps_its_threads(dtype: str) -> None:
    threads = torch.get_num_threads()
    assert result_of_modes(Backend(), dtype).status is Status.PASSED
    assert torch.get_num_threads() == threads


def test_other_numbers_of_threads_are_tried() -> None:
    result = result_of_modes(FixedThreadCount(), "float32")
    assert result.status is Status.FAILED
    assert "inference_mode with threads = " in result.message


def test_autocast_of_float32_is_tried() -> None:
    result = result_of_modes(HalvedUnderAutocast(), "bfloat16")
    assert result.status is Status.FAILED
    assert "in mode autocast with inputs in float32" in result.message


IN_THREADS = """
import threading
import numpy as np

name = "mine"
limits = {{"dtypes": ("float32",)}}
settings = threading.local()
settings.scale = 1.0

def softmax(scores, *, mask=None):
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.nan_to_num(np.exp(scores - scores.max(-1, keepdims=True, initial=-3e38)))
        weights = np.nan_to_num(weights / weights.sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return weights * np.float32({scale})
"""


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("1", ""),
        ("getattr(settings, 'scale', 2.0)", "in a thread that is not the main one, the result"),
        ("settings.scale", "in a thread that is not the main one: raised AttributeError"),
    ],
)
def test_a_process_of_a_backend_calls_it_in_another_thread_too(tmp_path: Path, scale: str, message: str) -> None:
    (tmp_path / "backend.py").write_text(IN_THREADS.format(scale=scale), encoding="utf-8")
    backend = RemoteBackend(str(tmp_path / "backend.py"), "cpu", hang_after=60.0)
    try:
        contract = contract_from(dict(backend.await_declarations(60.0)), backend.origin)
        (case,) = cases(contract, laws=("training.same-in-every-mode",))
        (result,) = judge(backend, contract, case, PROFILES["quick"])
    finally:
        backend.close()
    assert result.status is (Status.FAILED if message else Status.PASSED), result.message
    assert result.message.startswith(message)


class MainThreadScale(Backend):
    """A backend whose scale is a setting of the main thread."""

    def __init__(self) -> None:
        self.settings = threading.local()
        self.settings.scale = 1

    def finished(self, weights: torch.Tensor) -> torch.Tensor:
        return weights * getattr(self.settings, "scale", 2)


def test_another_thread_is_tried_beside_modes_of_a_framework() -> None:
    result = result_of_modes(MainThreadScale(), "float32")
    assert result.status is Status.FAILED
    assert result.message.startswith("in a thread that is not the main one, the result")


class NoResultInThreads(Backend):
    def softmax(self, scores: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        weights = super().softmax(scores, mask=mask)
        return weights if threading.current_thread() is threading.main_thread() else cast(torch.Tensor, None)


def test_no_array_in_another_thread_is_a_violation() -> None:
    result = result_of_modes(NoResultInThreads(), "float32")
    assert (result.status, result.reason) == (Status.FAILED, Reason.TYPE)
    assert "NoneType" in result.message


@pytest.mark.parametrize("modes", [None, ["inference_mode"]])
def test_modes_that_are_no_mapping_are_a_violation(modes: object) -> None:
    backend = Backend()
    vars(backend)["modes"] = lambda dtype, device: modes
    result = result_of_modes(backend, "float32")
    assert (result.status, result.reason) == (Status.FAILED, Reason.TYPE), result.message
    assert "modes: expected a mapping" in result.message
