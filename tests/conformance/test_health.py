"""Backends whose process is broken by one raise: every later call raises, until the process is restarted."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.judging import reduction
from attnspec.conformance.judging.cases import Case, governing_laws
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.health import FORWARD, Health
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
backward_broken = False
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

def vjp(operation, arguments, cotangent):
    global backward_broken
    key = arguments.get("key")
    many_keys = key is not None and key.shape[-2] >= 64
    backward_broken = backward_broken or {backward_breaks}
    launch(False)
    if backward_broken:
        raise RuntimeError("an illegal memory access was encountered")
    if operation == "dot_scores":
        query, key = arguments["query"], arguments["key"]
        gradients = {{"query": cotangent @ key, "key": np.swapaxes(cotangent, -1, -2) @ query}}
        return {{name: summed(x, arguments[name].shape) for name, x in gradients.items()}}
    weights = softmax(**arguments)
    products = np.where(weights > 0, weights * cotangent, 0)
    gradient = products - weights * products.sum(-1, keepdims=True)
    return {{"scores": summed(gradient.astype(weights.dtype), arguments["scores"].shape)}}

def summed(x, shape):
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, size in enumerate(shape) if size == 1 != x.shape[i]), keepdims=True)
"""
"""An illegal access in one operation breaks both, as errors of CUDA do."""

MESSAGE = "an illegal memory access was encountered"
MANY_KEYS = "not rejected and key.shape[-2] >= 128"
LASTING = "afterwards a call that had worked raised, too, until the process was restarted"

Results = dict[str, dict[str, Result]]

FEW_LAWS = ("operation.oracle", "operation.shape", "operation.rejection", "operation.independent-of-other-calls")


def results_of(
    folder: Path,
    breaks: str,
    *operations: str,
    in_process: bool = False,
    laws: Sequence[str] = FEW_LAWS,
    backward_breaks: str = "False",
) -> Results:
    """Results by operation and law of a sticky backend, judged by one process; all laws if ``laws`` is empty."""
    file = folder / "sticky.py"
    file.write_text(STICKY.format(breaks=breaks, backward_breaks=backward_breaks), encoding="utf-8")
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
def test_a_lasting_raise_is_blamed_on_the_call_that_caused_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laws: Sequence[str]
) -> None:
    # Each smaller input restarts the process; on a busy machine the usual time is not enough for the smallest.
    monkeypatch.setattr(reduction, "MAX_SECONDS", 300)
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


def test_a_raise_after_which_calls_end_the_process_is_blamed_alone(tmp_path: Path) -> None:
    results = results_of(tmp_path, f"{MANY_KEYS} or (broken and os._exit(4))", "dot_scores", "softmax")
    violated = [r for by_law in results.values() for r in by_law.values() if r.violates]
    assert [(r.operation, r.law, r.reason) for r in violated] == [("dot_scores", "operation.oracle", "raised")]
    assert LASTING in violated[0].message


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
    file.write_text(STICKY.format(breaks="False", backward_breaks="False"), encoding="utf-8")
    backend: Any = load(str(file))
    contract = contract_of(backend, str(file), "cuda")
    calls: list[int] = []

    def raises_at_first() -> None:
        calls.append(1)
        if len(calls) <= 2:
            raise RuntimeError("a call of another operation")

    contract.health.restart = lambda: ""
    contract.health.remember(0, raises_at_first)
    case = Case("dot_scores", "float32", ("operation.rejection",))
    (result,) = judge(backend, contract, case, PROFILES["quick"], device="cuda")
    assert len(calls) > 2
    assert result.status is Status.PASSED


@pytest.mark.parametrize("breaks", ["False", "rejected"])
def test_without_restart_an_expected_raise_is_blamed_only_if_its_own_operation_raises_then(
    tmp_path: Path, breaks: str
) -> None:
    file = tmp_path / "sticky.py"
    file.write_text(STICKY.format(breaks=breaks, backward_breaks="False"), encoding="utf-8")
    backend: Any = load(str(file))
    contract = contract_of(backend, str(file), "cuda")

    def raises_by_itself() -> None:
        raise RuntimeError("a call of another operation")

    contract.health.remember(0, raises_by_itself)
    case = Case("dot_scores", "float32", ("operation.rejection",))
    (result,) = judge(backend, contract, case, PROFILES["quick"], device="cuda")
    assert result.status is (Status.PASSED if breaks == "False" else Status.FAILED)
    assert bool(contract.health.broken) is (breaks == "rejected")


@pytest.mark.parametrize("in_process", [False, True])
def test_a_backward_pass_that_breaks_later_ones_is_blamed_alone(tmp_path: Path, in_process: bool) -> None:
    laws = ("operation.oracle", "operation.gradient", "training.linear-in-cotangent")
    results = results_of(
        tmp_path, "False", "dot_scores", "softmax", in_process=in_process, laws=laws, backward_breaks="many_keys"
    )
    violated = [r for by_law in results.values() for r in by_law.values() if r.violates]
    assert [(r.operation, r.law) for r in violated] == [("dot_scores", "operation.gradient")]
    assert MESSAGE in violated[0].message
    assert ("this process cannot be restarted: run with --isolated" if in_process else LASTING) in violated[0].message
    others = {r.status for by_law in results.values() for r in by_law.values()} - {Status.FAILED}
    assert others == ({Status.LOST} if in_process else {Status.PASSED})


def test_backward_passes_that_always_break_later_ones_spoil_no_other_operation(tmp_path: Path) -> None:
    laws = ("operation.oracle", "operation.gradient")
    breaks = "operation == 'dot_scores'"
    results = results_of(tmp_path, "False", "dot_scores", "softmax", laws=laws, backward_breaks=breaks)
    assert [r.law for r in results["dot_scores"].values() if r.violates] == ["operation.gradient"]
    assert {r.status for r in results["softmax"].values()} == {Status.PASSED}


def test_a_call_that_raises_now_and_then_has_not_broken_the_process() -> None:
    calls: list[int] = []

    def raises_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("now and then")

    health = Health()
    health.remember(1, raises_once)
    health.note("raised ValueError", None)
    assert not health.broke({FORWARD: raises_once}, "softmax")


def test_a_raise_without_consequences_breaks_nothing() -> None:
    restarts: list[str] = []

    def restart() -> str:
        restarts.append("")
        return ""

    health = Health(restart=restart)
    health.note("raised ValueError", None)
    assert not health.broke({FORWARD: lambda: None}, "softmax")
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
        assert not health.broke({FORWARD: raises}, "softmax")
    assert (len(restarts), health.breaks) == (1, 0)
