"""Backends whose process is broken by one raise: every later call raises, until the process is restarted."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.judging.engine import Case, governing_laws, judge
from attnspec.conformance.judging.health import Health
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import UNJUDGED, Result, Status
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.description import contract_from
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.suite import run_case
from attnspec.spec import OPERATIONS

STICKY = """
import os

import numpy as np

name = "sticky"
limits = {{"dtypes": ("float32",), "devices": ("cuda",)}}
semantics = {{"minus_infinity": "zero"}}
broken = os.path.exists(__file__ + ".broken")
if os.path.exists(__file__ + ".unusable"):
    raise ImportError("imported twice")

def mark(state):
    open(__file__ + "." + state, "w").close()
    return True

def launch(breaks):
    global broken
    broken = broken or breaks
    if broken:
        raise RuntimeError("an illegal memory access was encountered")

def dot_scores(query, key):
    rejected = min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]
    launch({breaks})
    if rejected:
        raise ValueError("sizes differ")
    return query @ np.swapaxes(key, -1, -2)

def softmax(scores, *, mask=None):
    launch(False)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf).astype(scores.dtype)
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(scores - np.where(np.isfinite(largest), largest, 0).astype(scores.dtype))
    sums = exponentials.sum(-1, keepdims=True)
    return exponentials / np.where(sums == 0, 1, sums).astype(scores.dtype)
"""
"""An illegal access in one operation breaks both, as errors of CUDA do."""

MESSAGE = "an illegal memory access was encountered"
MANY_KEYS = "not rejected and key.shape[-2] >= 128"
LASTING = "afterwards a call that had worked raised, too, until the process was restarted"

Results = dict[str, dict[str, Result]]

FEW_LAWS = ("operation.oracle", "operation.shape", "operation.rejection", "operation.independent-of-other-calls")


def results_of(
    folder: Path, breaks: str, *operations: str, in_process: bool = False, laws: Sequence[str] = FEW_LAWS
) -> Results:
    """Results by operation and law of a sticky backend, judged by one process; all laws if ``laws`` is empty."""
    file = folder / "sticky.py"
    file.write_text(STICKY.format(breaks=breaks), encoding="utf-8")
    settings = Settings(device="cuda", in_process=in_process)
    if in_process:
        backend: Any = load(str(file))
        return _judged(backend, contract_of(backend, str(file), "cuda"), operations, settings, laws)
    backend = RemoteBackend(str(file), "cuda", hang_after=20.0)
    try:
        contract = contract_from(dict(backend.await_declarations(60.0)), str(file))
        return _judged(backend, contract, operations, settings, laws)
    finally:
        backend.close()


def _judged(backend: Any, contract: Any, operations: Sequence[str], settings: Settings, laws: Sequence[str]) -> Results:
    results = {}
    for operation in operations:
        recorded: dict[str, Any] = {}
        governing = governing_laws(OPERATIONS[operation])
        case = Case(operation, "float32", tuple(law for law in governing if law in laws or not laws))
        with suppress(pytest.fail.Exception):
            run_case(backend, contract, case, settings, recorded.__setitem__)
        results[operation] = {r.law: r for r in map(Result.from_json, recorded["attnspec"])}
    return results


@pytest.mark.parametrize("laws", [FEW_LAWS, pytest.param((), marks=pytest.mark.slow)], ids=["few laws", "all laws"])
def test_a_lasting_raise_is_blamed_on_the_call_that_caused_it(tmp_path: Path, laws: Sequence[str]) -> None:
    results = results_of(tmp_path, MANY_KEYS, "dot_scores", "softmax", laws=laws)
    assert {r.status for r in results["softmax"].values()} <= {Status.PASSED, Status.NOT_APPLICABLE}
    failed = {law: r for law, r in results["dot_scores"].items() if r.status is Status.FAILED}
    assert list(failed) == ["operation.oracle"]
    (result,) = failed.values()
    assert result.reason == "raised"
    assert MESSAGE in result.message
    assert LASTING in result.message
    assert result.counterexample is not None
    assert result.counterexample["arguments"]["query"] == [[0.0]]
    assert np.shape(result.counterexample["arguments"]["key"]) == (128, 1)


def test_a_raise_that_a_law_expects_is_blamed_too_if_it_lasts(tmp_path: Path) -> None:
    results = results_of(tmp_path, "rejected", "dot_scores", "softmax")
    assert [r for r in results["softmax"].values() if r.violates] == []
    failed = {law: r for law, r in results["dot_scores"].items() if r.violates}
    assert list(failed) == ["operation.rejection"]
    assert LASTING in failed["operation.rejection"].message


def test_an_operation_that_breaks_the_process_at_every_call_spoils_no_other(tmp_path: Path) -> None:
    results = results_of(tmp_path, "True", "dot_scores", "softmax")
    assert results["dot_scores"]["operation.oracle"].reason == "raised"
    assert [r for r in results["softmax"].values() if r.violates] == []


def test_a_process_that_cannot_be_restarted_is_not_judged_further(tmp_path: Path) -> None:
    results = results_of(tmp_path, MANY_KEYS, "dot_scores", "softmax", in_process=True)
    failed = [r for r in results["dot_scores"].values() if r.status is Status.FAILED]
    assert [r.law for r in failed] == ["operation.oracle"]
    assert "this process cannot be restarted: run with --isolated" in failed[0].message
    assert failed[0].counterexample is not None
    assert [r.law for r in results["dot_scores"].values() if r.violates] == ["operation.oracle"]
    later = [*results["softmax"].values()]
    assert [r for r in later if r.violates] == []
    assert {r.status for r in later} == {Status.LOST}
    assert all(r.message.startswith(UNJUDGED) and MESSAGE in r.message for r in later)


@pytest.mark.parametrize(
    ("state", "why"), [("broken", "a new process did not help"), ("unusable", "ImportError: imported twice")]
)
def test_a_break_that_no_restart_mends_is_blamed_once(tmp_path: Path, state: str, why: str) -> None:
    results = results_of(tmp_path, f"{MANY_KEYS} and mark({state!r})", "softmax", "dot_scores", "softmax")
    assert [r.law for r in results["dot_scores"].values() if r.violates] == ["operation.oracle"]
    assert why in results["dot_scores"]["operation.oracle"].message
    assert {r.status for r in results["softmax"].values()} == {Status.LOST}
    assert [r for r in results["softmax"].values() if r.violates] == []
    assert all(MESSAGE in r.message and why in r.message for r in results["softmax"].values())


def test_an_expected_raise_is_not_blamed_for_a_stored_call_that_raises_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "sticky.py"
    file.write_text(STICKY.format(breaks="False"), encoding="utf-8")
    backend: Any = load(str(file))
    contract = contract_of(backend, str(file), "cuda")
    calls: list[int] = []

    def raises_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a call of another operation")

    contract.health.restart = lambda: ""
    contract.health.remember(0, raises_once)
    case = Case("dot_scores", "float32", ("operation.rejection",))
    (result,) = judge(backend, contract, case, PROFILES["quick"], device="cuda")
    assert len(calls) > 1
    assert result.status is Status.PASSED


def test_a_raise_without_consequences_breaks_nothing() -> None:
    restarts: list[str] = []

    def restart() -> str:
        restarts.append("")
        return ""

    health = Health(restart=restart)
    health.note("raised ValueError", None)
    assert not health.broke(lambda: None, "softmax")
    assert health.answers()
    assert (restarts, health.breaks) == ([], 0)


def test_an_operation_of_which_no_call_works_is_restarted_once() -> None:
    restarts: list[str] = []

    def restart() -> str:
        restarts.append("")
        return ""

    health = Health(restart=restart)

    def raises() -> None:
        raise NotImplementedError

    for _ in range(3):
        health.note("raised NotImplementedError", None)
        assert not health.broke(raises, "softmax")
    assert (len(restarts), health.breaks) == (1, 0)
