"""Modes of PyTorch in which a backend is called: other numbers of threads, and autocast of float32."""

import pytest
import torch

from attnspec.backends.bases.torch import TorchBackend
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.spec import Limits

THREADS = torch.get_num_threads()


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
    """Rows that other threads compute are missing."""

    def finished(self, weights: torch.Tensor) -> torch.Tensor:
        """As many rows as threads are known."""
        return weights if torch.get_num_threads() == THREADS else weights * 0


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
    assert verdict(Backend(), dtype).status is Status.PASSED
    assert torch.get_num_threads() == THREADS


def test_other_numbers_of_threads_are_tried() -> None:
    found = verdict(OfOneTeam(), "float32")
    assert found.status is Status.FAILED
    assert "inference_mode with threads = " in found.message


def test_autocast_of_float32_is_tried() -> None:
    found = verdict(Uncast(), "bfloat16")
    assert found.status is Status.FAILED
    assert "in mode autocast with inputs in float32" in found.message
