"""The checks on a GPU: a dry run of every stage, made-up faults, and the reports."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import counters, report
from benchmarks.gpu.check import STATUSES, Outcome
from benchmarks.gpu.cli import STAGES, Stage, main

FAULTY = "tests.benchmarks.faulty_stages"
GPU_ALONE = (
    "compute-sanitizer",
    "torch.compile",
    "second stream",
    "captured in a graph",
    "hardware's tanh",
    "occupancy and stalls",
)
"""Parts of names of checks that a dry run only lists."""


def checks_of(folder: Path, number: int) -> list[dict[str, Any]]:
    results = json.loads((folder / report.FILE).read_text("utf-8"))
    checks: list[dict[str, Any]] = results["stages"][str(number)]["checks"]
    return checks


def run_faulty(place: str, folder: Path, seconds: float = 300) -> tuple[int, list[tuple[str, str, str]]]:
    """Run one faulty stage; return the exit status, and name, status and remark of its checks."""
    stages = [Stage("made-up faults", f"{FAULTY}:{place}")]
    status = main(["--dry-run", "--seconds", str(seconds), "--output", str(folder)], stages)
    return status, [(check["name"], check["status"], check["remark"]) for check in checks_of(folder, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(STAGES)))
def test_a_dry_run_tries_all_but_what_needs_a_gpu(number: int, tmp_path: Path) -> None:
    assert main(["--dry-run", "--stage", str(number), "--seconds", "500", "--output", str(tmp_path)]) == 0
    checks = checks_of(tmp_path, number)
    needing = [check for check in checks if any(part in check["name"] for part in GPU_ALONE)]
    assert all((check["status"], check["remark"]) == ("not tried", "needs a GPU") for check in needing)
    tried = [check for check in checks if check not in needing]
    assert all(check["status"] == "ok" for check in tried)
    assert bool(tried) == (number != 6)
    page = (tmp_path / report.PAGE).read_text("utf-8")
    assert page.startswith("# Dry run on ")
    assert f"## {number} {STAGES[number].title}" in page
    assert f"torch {torch.__version__}" in page


def test_a_wrong_kernel_fails_its_checks_and_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, checks = run_faulty("wrong_kernel", tmp_path)
    assert status == 1
    assert [(name, outcome) for name, outcome, _ in checks] == [
        ("decoding step, float32", "FAIL"), ("decoding step, masked, float32", "FAIL"),
    ]  # fmt: skip
    assert all("bahdanau_context in float32 is wrong" in remark for _, _, remark in checks)
    assert "FAIL decoding step, float32  " in capfd.readouterr().out


def test_a_lost_device_fails_one_check(tmp_path: Path) -> None:
    status, checks = run_faulty("lost_device", tmp_path)
    assert status == 1
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    illegal = "illegal", "FAIL", f"{error}; the device answers no later call of this process"
    assert checks == [("before", "ok", ""), illegal, ("after", "ok", ""), ("later", "ok", "")]


def test_a_check_that_ends_its_process_fails(tmp_path: Path) -> None:
    status, checks = run_faulty("ended_process", tmp_path)
    assert status == 1
    assert checks == [
        ("before", "ok", ""),
        ("segfault", "FAIL", "its process ended with status 139"),
        ("after", "ok", ""),
    ]


@pytest.mark.slow
def test_checks_beyond_the_time_limit_are_not_reached(tmp_path: Path) -> None:
    status, checks = run_faulty("endless", tmp_path, seconds=40)
    assert status == 1
    assert checks == [
        ("before", "ok", ""),
        ("endless", "not reached", "time limit of 40 s"),
        ("after", "not reached", "time limit of 40 s"),
    ]


def test_a_stage_that_cannot_start_fails(tmp_path: Path) -> None:
    status, checks = run_faulty("refusing", tmp_path)
    assert status == 1
    assert checks == [("made-up faults", "FAIL", "its process ended with status 1")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is at hand")
def test_a_run_without_a_gpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", str(tmp_path)]) == 2
    assert "expected a CUDA device; PyTorch finds none. --dry-run needs no GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def stage(device: str, **machine: str) -> dict[str, Any]:
    check = {"name": "a", "status": "ok", "used": 0.5, "milliseconds": 2.0, "remark": ""}
    machine = {"device": device, "commit": "1", **machine}
    return {"title": "stage", "seconds": 1.0, "machine": machine, "checks": [check]}


def test_a_folder_keeps_other_stages_of_one_machine_and_commit(tmp_path: Path) -> None:
    def numbers(number: int, changed: dict[str, Any], *, dry: bool = False) -> list[str]:
        report.write(tmp_path, number, changed, dry=dry)
        return list(json.loads((tmp_path / report.FILE).read_text("utf-8"))["stages"])

    assert numbers(2, stage("GPU")) == ["2"]
    assert numbers(0, stage("GPU", time="later")) == ["0", "2"]
    assert numbers(1, stage("other GPU")) == ["1"]
    assert numbers(2, stage("other GPU", commit="2")) == ["2"]
    assert numbers(3, stage("other GPU", commit="2"), dry=True) == ["3"]
    assert numbers(4, stage("other GPU") | {"machine": {}}, dry=True) == ["3", "4"]
    assert "| a | ok | 0.5 | 2 |  |" in (tmp_path / report.PAGE).read_text("utf-8")


def test_every_status_has_its_line() -> None:
    lines = [Outcome(status, 0.25, 12.345, "remark").line("name") for status in STATUSES]
    assert lines == [
        "ok   name  0.25  12.3 ms  remark",
        "FAIL name  0.25  12.3 ms  remark",
        "not tried: remark: name",
        "not reached: remark: name",
    ]


def test_hardware_counters_are_read_from_the_table_of_ncu() -> None:
    stalls = [
        f"{counters.STALL_PREFIX}{name}{counters.STALL_SUFFIX}" for name in ("long_scoreboard", "math_pipe_throttle")
    ]
    names = ["ID", "Kernel Name", counters.OCCUPANCY, counters.ISSUED, *stalls]
    launches = [["0", "forward_kernel", "23.5", "61.0", "0.5", "1,200.5"], ["1", "step_kernel", "9", "8", "2", "1"]]
    table = [names, ["", "", "%", "%", "inst", "inst"], *launches]
    text = "\n".join(["==PROF== Connected", *(",".join(f'"{cell}"' for cell in row) for row in table)])
    rows = counters.rows(text)
    assert [row["Kernel Name"] for row in rows] == ["forward_kernel", "step_kernel"]
    assert list(map(counters.summary, rows)) == [
        "23.5 % of the warps, 61.0 % of the cycles issue, 1.2e+03 warps wait for math_pipe_throttle",
        "9 % of the warps, 8 % of the cycles issue, 2 warps wait for long_scoreboard",
    ]
    assert counters.rows("") == []


@pytest.mark.slow
def test_the_chain_of_tanh_compiles_into_the_hardwares_approximation() -> None:
    pytest.importorskip("triton")
    code = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton
from benchmarks.gpu.hardware_tanh import tanh_kernel
signature = {"x": "*fp32", "out": "*fp32", "CHAIN": "constexpr", "BLOCK": "constexpr"}
source = ASTSource(tanh_kernel, signature, {"CHAIN": 16, "BLOCK": 1024}, {})
print(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"].count("tanh.approx.f32"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 16 * 1024 // 128  # numbers of a thread, of four warps
