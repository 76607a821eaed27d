"""Backends that compile for new shapes: their time limit, their examples, and the progress of a run."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.client import HostEnded
from attnspec.conformance.remote.clock import COMPILING, REPORTED, FirstCall
from attnspec.conformance.remote.description import contract_from
from attnspec.conformance.running.compiling import Notice, compiling
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.suite import run_case
from attnspec.spec import OPERATIONS, Limits

COMPILES = """
import time
import numpy as np

name = "compiles"
limits = {{"dtypes": ("float32",), "new_shapes": {new_shapes!r}}}
compiled = set()

def dot_scores(query, key):
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise ValueError("sizes differ")
    if (query.shape, key.shape) not in compiled:
        compiled.add((query.shape, key.shape))
        end = time.process_time() + {seconds}
        while time.process_time() < end:
            pass
    return query @ np.swapaxes(key, -1, -2)
"""
"""It computes for some seconds whenever shapes are new."""


def statuses(folder: Path, new_shapes: str, seconds: float, law: str) -> dict[str, str]:
    """Statuses by law, of a run in which a check may take one second."""
    (folder / "compiles.py").write_text(COMPILES.format(new_shapes=new_shapes, seconds=seconds), encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "compiles.py", "--hang-after", "1"]
    command += ["--law", law, "--workers", "1", "--json", "r.json"]
    subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    report = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    return {r["law"]: r["status"] for r in report["results"] if r["operation"] == "dot_scores"}


@pytest.mark.parametrize("compiles", [True, False], ids=["new shapes", "every call"])
def test_only_first_calls_with_new_shapes_have_a_time_limit_of_their_own(tmp_path: Path, compiles: bool) -> None:
    code = COMPILES.format(new_shapes="cheap", seconds=1.2)
    code = code if compiles else code.replace("not in compiled", "not in set()")
    (tmp_path / "compiles.py").write_text(code, encoding="utf-8")
    backend = RemoteBackend(str(tmp_path / "compiles.py"), "cpu", hang_after=2.5)
    try:
        backend.await_declarations(60.0)
        backend.host.start_check()
        with nullcontext() if compiles else pytest.raises(HostEnded, match=r"did not answer within 2\.5 s"):
            for n in (1, 2, 3, 1, 2, 3):
                backend.to_numpy(backend.dot_scores(*(backend.from_numpy(np.ones((n, 2)), device="cpu"),) * 2))
    finally:
        backend.close()


@pytest.mark.slow
@pytest.mark.parametrize(("new_shapes", "status"), [("cheap", "failed"), ("expensive", "passed")])
def test_one_long_compilation_is_no_hang_if_it_is_declared(tmp_path: Path, new_shapes: str, status: str) -> None:
    assert statuses(tmp_path, new_shapes, 2.0, "operation.dtype") == {"operation.dtype": status}


def test_a_first_call_that_hangs_is_reported_with_the_time_that_it_was_allowed(tmp_path: Path) -> None:
    """The quarter of a second of a usual check, times 8 for declared expensive shapes."""
    file = tmp_path / "compiles.py"
    file.write_text(COMPILES.format(new_shapes="expensive", seconds=600), encoding="utf-8")
    backend = RemoteBackend(str(file), "cpu", hang_after=0.25)
    recorded: dict[str, Any] = {}
    try:
        contract = contract_from(dict(backend.await_declarations(60.0)), str(file))
        case, settings = Case("dot_scores", "float32", ("operation.oracle",)), Settings(hang_after=0.25)
        with pytest.raises(pytest.fail.Exception):
            run_case(backend, contract, case, settings, recorded.__setitem__)
    finally:
        backend.close()
    (result,) = recorded["attnspec"]
    assert result["reason"] == "hung"
    assert result["message"] == "the backend did not answer within 2 s"
    assert "hang_after=2)" in result["counterexample"]["snippet"]


@pytest.mark.parametrize("most", [12, 60])
def test_expensive_shapes_are_reused(most: int) -> None:
    operation = OPERATIONS["additive_attention"]

    def shapes(new_shapes: str) -> set[tuple[object, ...]]:
        examples = corners(operation, Limits(new_shapes=new_shapes), seed=0, most=most, work=2.0**14)
        return {(*x.sizes.items(), x.batch) for x in examples}

    assert len(shapes("expensive")) == 6
    assert len(shapes("cheap")) > 6
    assert shapes("expensive") <= shapes("cheap")


def test_a_cost_of_shapes_must_be_known() -> None:
    with pytest.raises(ValueError, match="limits new_shapes: expected cheap or expensive; got 'slow'"):
        Limits(new_shapes="slow")


def test_a_long_first_call_is_reported_and_ends() -> None:
    reports: list[str] = []
    clock = FirstCall(COMPILING * 20.0, lambda: reports.append("compiling"))
    clock.passed = clock.spent = REPORTED / 2
    assert not clock.over
    assert reports == []
    clock.passed = clock.spent = REPORTED
    assert not clock.over
    assert reports == ["compiling"]
    clock.spent = COMPILING * 20.0
    assert clock.over


def test_a_notice_names_the_operation_until_it_is_taken_back(tmp_path: Path) -> None:
    notice = Notice(tmp_path)
    notice("softmax")
    assert compiling(tmp_path) == ["softmax"]
    notice("")
    assert compiling(tmp_path) == []
