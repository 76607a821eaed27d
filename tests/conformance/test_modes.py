"""Modes in which a backend is called: other numbers of threads, another thread, and autocast of float32."""

import threading
from pathlib import Path
from typing import cast

import pytest
import torch

from attnspec.backends.bases.torch import TorchBackend
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.description import contract_from
from attnspec.spec import Limits


class Backend(TorchBackend):
    """Softmax by PyTorch."""

    name = "mine"
    limits = Limits(dtypes=("float32", "bfloat16"))

    def softmax(self, scores: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Rows without keys are 0."""
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.finished(scores.softmax(-1).nan_to_num(0.0))

    def finished(self, weights: torch.Tensor) -> torch.Tensor:
        """The weights."""
        return weights


class OfOneTeam(Backend):
    """Weights are 0 unless the framework has as many threads as when this backend was made."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = torch.get_num_threads()

    def finished(self, weights: torch.Tensor) -> torch.Tensor:
        """The weights, or 0."""
        return weights if torch.get_num_threads() == self.threads else weights * 0


class Uncast(Backend):
    """Weights of scores that autocast should cast are half of what they are."""

    def softmax(self, scores: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Halve."""
        found = super().softmax(scores, mask=mask)
        return found / 2 if torch.is_autocast_enabled("cpu") and scores.dtype is torch.float32 else found


def verdict(backend: Backend, dtype: str) -> Result:
    contract = Contract.of(backend)
    found = cases(contract, operations=("softmax",), laws=("training.modes",))
    (case,) = (x for x in found if x.dtype == dtype)
    (result,) = judge(backend, contract, case, PROFILES["quick"])
    return result


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_backend_holds(dtype: str) -> None:
    threads = torch.get_num_threads()
    assert verdict(Backend(), dtype).status is Status.PASSED
    assert torch.get_num_threads() == threads


def test_other_numbers_of_threads_are_tried() -> None:
    found = verdict(OfOneTeam(), "float32")
    assert found.status is Status.FAILED
    assert "inference_mode with threads = " in found.message


def test_autocast_of_float32_is_tried() -> None:
    found = verdict(Uncast(), "bfloat16")
    assert found.status is Status.FAILED
    assert "in mode autocast with inputs in float32" in found.message


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
        contract = contract_from(dict(backend.introduce(60.0)), backend.origin)
        (case,) = cases(contract, laws=("training.modes",))
        (result,) = judge(backend, contract, case, PROFILES["quick"])
    finally:
        backend.close()
    assert result.status is (Status.FAILED if message else Status.PASSED), result.message
    assert result.message.startswith(message)


class OfOneThread(Backend):
    """Its scale is a setting of the main thread."""

    def __init__(self) -> None:
        self.settings = threading.local()
        self.settings.scale = 1

    def finished(self, weights: torch.Tensor) -> torch.Tensor:
        """Scale."""
        return weights * getattr(self.settings, "scale", 2)


def test_another_thread_is_tried_beside_modes_of_a_framework() -> None:
    found = verdict(OfOneThread(), "float32")
    assert found.status is Status.FAILED
    assert found.message.startswith("in a thread that is not the main one, the result")


class Nothing(Backend):
    """Gives nothing outside of the main thread."""

    def softmax(self, scores: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        """None is no array."""
        found = super().softmax(scores, mask=mask)
        return found if threading.current_thread() is threading.main_thread() else cast(torch.Tensor, None)


def test_no_array_in_another_thread_is_a_violation() -> None:
    found = verdict(Nothing(), "float32")
    assert (found.status, found.reason) == (Status.FAILED, Reason.TYPE)
    assert "NoneType" in found.message


@pytest.mark.parametrize("named", [None, ["inference_mode"]])
def test_modes_that_are_no_mapping_are_a_violation(named: object) -> None:
    backend = Backend()
    vars(backend)["modes"] = lambda dtype, device: named
    found = verdict(backend, "float32")
    assert (found.status, found.reason) == (Status.FAILED, Reason.TYPE), found.message
    assert "modes: expected a mapping" in found.message
