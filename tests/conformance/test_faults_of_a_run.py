"""Runs lose no verdict to signals, time limits, closed outputs, full disks or narrow terminals."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.results import INTERRUPTED, TIME_LIMIT, Result, Status
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.folder import TemporaryFolder, remove_abandoned
from attnspec.conformance.remote.processes import HAS_PROC, processes
from attnspec.conformance.reporting.junit import as_junit
from attnspec.conformance.reporting.report import Report
from attnspec.conformance.reporting.table import print_report
from attnspec.conformance.reporting.verdict_page import as_html
from attnspec.conformance.reporting.writing import OutputFile, UnwritableError, write_report
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import Verdicts

from . import hostile
from .test_cli import read_report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals are others here")]

COMMAND = [sys.executable, "-P", "-m", "attnspec"]
CHECK = ("check", "backend.py", "--law", "operation.oracle", "--dtype", "float64", "--workers", "1")
FILES = ("--json", "r.json", "--html", "r.html", "--junit", "r.xml")
FULL = Path("/dev/full")
SWALLOWING = """
import os, signal, time
from attnspec.conformance.running.interruption import Interruption

interruption, raised = Interruption(), []
interruption.hold()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.7)
try:
    try:
        interruption.release()
    except KeyboardInterrupt as interrupt:
        raised.append(str(interrupt))
        time.sleep(0.7)
        raised.append("handled")
    time.sleep(60)
except KeyboardInterrupt as interrupt:
    raised.append(str(interrupt))
interruption.acknowledge()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(1)
print(raised, interruption.reason)
"""
"""A signal whose first exception is swallowed; after it is acknowledged, another signal."""

RESUMED = """
import os, signal
from attnspec.conformance.running.interruption import Interruption

interruption = Interruption()
interruption.hold()
interruption.release()
interruption.acknowledge()
os.kill(os.getpid(), signal.SIGTERM)
try:
    interruption.resume()
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt as interrupt:
    print("resumed:", interrupt)
"""
"""A signal in a second part of a run, after the first was acknowledged."""

SIGNAL_WHILE_IMPORTED = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("attnspec", run_name="__main__", alter_sys=True)
"""
"""The command, interrupted by SIGINT during its first imports."""


def check(folder: Path, *arguments: str, code: str = hostile.RIGHT, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    (folder / "backend.py").write_text(code, encoding="utf-8")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
    return subprocess.run([*COMMAND, *CHECK, *arguments], cwd=folder, text=True, timeout=240, check=False, **streams)


def start_check(folder: Path, code: str, *arguments: str) -> "subprocess.Popen[str]":
    """A running check whose backend has created ``called``; temporary files are in ``t``."""
    (folder / "backend.py").write_text(code, encoding="utf-8")
    (folder / "t").mkdir()
    process = subprocess.Popen(
        # The backend leaves a file, which a sandbox forbids.
        [
            *(sys.executable, "-c", hostile.SIGNALS_DEFAULT, *COMMAND, *CHECK, "--hang-after=600", "--sandbox=off"),
            *arguments,
        ],
        cwd=folder, env={**os.environ, "TMPDIR": str(folder / "t")}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (folder / "called").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return process


def processes_in(folder: Path) -> list[str]:
    """Processes that still work in a folder five seconds after a run."""
    for _ in range(50):
        titles = [p.title for p in processes() if not p.ended and _works_in(p.number, folder)]
        if not titles:
            break
        time.sleep(0.1)
    return titles


def _works_in(number: int, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/{number}/cwd") == str(folder)
    except OSError:
        return False


# Signals --------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not HAS_PROC, reason="the system does not say what processes there are")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("judging", [False, True], ids=["imported", "judged"])
def test_a_signal_leaves_a_report_and_nothing_else(tmp_path: Path, name: str, judging: bool) -> None:
    code = hostile.before_each_call(hostile.TOUCH_AND_WAIT) if judging else hostile.RIGHT + hostile.TOUCH_AND_WAIT
    with start_check(tmp_path, code, *FILES) as process:
        process.send_signal(getattr(signal, name))
        _, messages = process.communicate(timeout=60)
    assert (process.returncode, messages.count("attnspec: interrupted")) == (2, 1), messages
    report = read_report(tmp_path / "r.json")
    assert (report["verdict"], report["exit_status"], report["reason"]) == ("unusable", 2, "interrupted")
    assert {(r["status"], r["reason"]) for r in report["results"] if r["operation"] == "dot_scores"} == (
        {("lost", "interrupted")} if judging else set()
    )
    assert "unusable" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert ElementTree.parse(tmp_path / "r.xml").getroot().get("errors") == "1"
    assert [*(tmp_path / "t").iterdir()] == []
    assert processes_in(tmp_path) == []


def test_a_signal_while_the_command_is_imported_leaves_a_report(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(hostile.RIGHT, encoding="utf-8")
    command = [sys.executable, "-P", "-c", SIGNAL_WHILE_IMPORTED, *CHECK, *FILES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (2, "attnspec: interrupted\n")
    assert (read_report(tmp_path / "r.json")["verdict"], (tmp_path / "r.xml").exists()) == ("unusable", True)
    listing = [sys.executable, "-P", "-c", SIGNAL_WHILE_IMPORTED, "list"]
    done = subprocess.run(listing, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (130, False)


def test_a_signal_is_raised_until_it_is_acknowledged() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWING], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "['interrupted', 'handled', 'interrupted'] interrupted\n"), done.stderr


def test_a_signal_is_raised_again_once_the_run_resumes() -> None:
    done = subprocess.run([sys.executable, "-c", RESUMED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "resumed: interrupted\n"), done.stderr


@pytest.mark.skipif(not HAS_PROC, reason="the system does not say what processes there are")
def test_temporary_files_of_a_killed_run_are_removed_by_the_next(tmp_path: Path) -> None:
    with start_check(tmp_path, hostile.before_each_call(hostile.TOUCH_AND_WAIT)) as process:
        process.kill()
    assert processes_in(tmp_path) == []
    assert len([*(tmp_path / "t").iterdir()]) > 0
    done = check(tmp_path, env={**os.environ, "TMPDIR": str(tmp_path / "t")})
    assert done.returncode == 0, done.stderr
    assert [*(tmp_path / "t").iterdir()] == []


def test_only_abandoned_temporary_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("attnspec-mine", "attnspec-old"):
        (tmp_path / name).mkdir()
    (tmp_path / "attnspec-old" / "lock").touch()
    with TemporaryFolder() as used:
        remove_abandoned(tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["attnspec-mine", Path(used).name])
    assert [p.name for p in tmp_path.iterdir()] == ["attnspec-mine"]


# Time limits ----------------------------------------------------------------------------------------------------------


def test_a_slow_backend_ends_at_the_time_limit(tmp_path: Path) -> None:
    done = check(tmp_path, *FILES, "--time-limit", "6", code=hostile.before_each_call("__import__('time').sleep(1)"))
    assert done.returncode == 2, done.stderr
    report = read_report(tmp_path / "r.json")
    assert (report["verdict"], report["reason"], report["time_limit"]) == ("unusable", "time limit", 6.0)
    (lost,) = [r for r in report["results"] if r["status"] == "lost"]
    assert (lost["law"], lost["reason"]) == ("operation.oracle", "time limit")
    assert "time limit, 1 laws have no verdict" in done.stdout
    assert 'message="time limit"' in (tmp_path / "r.xml").read_text(encoding="utf-8")


@pytest.mark.parametrize("seconds", ["-1", "nan", "1e12"])
def test_an_invalid_time_limit_is_refused(tmp_path: Path, seconds: str) -> None:
    done = check(tmp_path, "--time-limit", seconds)
    assert done.returncode == 2
    assert done.stderr.startswith("attnspec: --time-limit: expected at least 0 and at most ")


@pytest.mark.parametrize("why", [INTERRUPTED, TIME_LIMIT])
def test_a_run_that_ends_early_violates_where_a_law_has_failed(why: str) -> None:
    settings = Settings(operations=("softmax",), laws=("operation.oracle",))
    plan = Plan.of(Contract.of(SimpleNamespace(name="mine", softmax=lambda x: x)), settings)
    for status, verdict, exit_status in ((Status.PASSED, "unusable", 2), (Status.FAILED, "violates", 1)):
        results = {"softmax-float32": [Result("softmax", "operation.oracle", "float32", status, "value")]}
        report = Report.of(plan, Verdicts(results), settings, 1.0, early_end=why)
        assert (report.verdict, report.exit_status, report.reason) == (verdict, exit_status, why)
        assert {r.reason for r in report.results if r.status is Status.LOST} == {why}


def test_pytest_obeys_the_time_limit(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(hostile.RIGHT.replace('"float64",', '"float32", "float64"'), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "attnspec.conformance"),
        *("-o", "consider_namespace_packages=true", "--attn-backend=backend.py", "--attn-law=operation.oracle"),
        *("--attn-json=r.json", "--attn-time-limit=0.01"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, "Exit: time limit" in done.stdout) == (2, True), done.stdout
    report = read_report(tmp_path / "r.json")
    assert (report["verdict"], report["reason"]) == ("unusable", "time limit")


# Outputs that are closed or full --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [hostile.RIGHT, hostile.WRONG], ids=["right", "wrong"])
def test_a_closed_pipe_changes_no_verdict(tmp_path: Path, code: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = check(tmp_path, *FILES, code=code, stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, "Traceback" in done.stderr) == (int(code is hostile.WRONG), False), done.stderr
    assert all((tmp_path / name).stat().st_size for name in FILES[1::2])
    assert read_report(tmp_path / "r.json")["exit_status"] == done.returncode


def test_closed_streams_change_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(hostile.RIGHT, encoding="utf-8")
    line = 'exec "$@" <&- >&- 2>&-'
    command = ["sh", "-c", line, "sh", *COMMAND, *CHECK, *FILES]
    assert subprocess.run(command, cwd=tmp_path, timeout=240, check=False).returncode == 0
    assert read_report(tmp_path / "r.json")["verdict"] == "conforms"


@pytest.mark.skipif(not FULL.exists(), reason="there is no device that is always full")
@pytest.mark.parametrize(("code", "status"), [(hostile.RIGHT, 2), (hostile.WRONG, 1)], ids=["right", "wrong"])
def test_outputs_on_a_full_disk_are_named_and_the_others_written(tmp_path: Path, code: str, status: int) -> None:
    with FULL.open("w", encoding="utf-8") as full:
        done = check(tmp_path, "--json", str(FULL), *FILES[2:], code=code, stdout=full)
    assert done.returncode == status
    assert [line for line in done.stderr.splitlines() if line.startswith("attnspec: ")] == [
        "attnspec: --json: '/dev/full' could not be written: No space left on device",
        "attnspec: standard output could not be written: No space left on device",
    ]
    assert "Traceback" not in done.stderr
    assert all((tmp_path / name).stat().st_size for name in ("r.html", "r.xml"))


def test_a_disk_that_fills_up_leaves_the_old_report_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(path: Path, text: str, **options: Any) -> int:
        with path.open("w", encoding="utf-8") as file:
            file.write(text[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "old").write_text("old", encoding="utf-8")
    monkeypatch.setattr(Path, "write_text", fill)
    for name in ("old", "new"):
        with pytest.raises(UnwritableError, match=r"--json: .* could not be written: No space left on device"):
            OutputFile(tmp_path / name, "--json").write("a report")
    assert {p.name: p.read_text(encoding="utf-8") for p in tmp_path.iterdir()} == {"old": "old"}


def test_a_pipe_is_opened_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        file = OutputFile(pipe, "--json")
        file.check()
        file.write("a report")
        assert reader.communicate(timeout=60)[0] == "a report"


def test_links_and_modes_of_written_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "target").touch(mode=0o600)
    (tmp_path / "link").symlink_to("target")
    OutputFile(tmp_path / "link", "--json").write("a report")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "target").read_text(encoding="utf-8") == "a report"
    tmp_path.chmod(0o555)
    try:
        OutputFile(tmp_path / "target", "--json").write("another")
    finally:
        tmp_path.chmod(0o755)
    assert (tmp_path / "target").read_text(encoding="utf-8") == "another"


def test_a_disk_without_room_for_temporary_files_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=65536))
    with pytest.raises(BackendError, match=r"TMPDIR: expected .* room for temporary files; got: 65,536 bytes"):
        TemporaryFolder()


# Reports --------------------------------------------------------------------------------------------------------------


def test_an_unusable_backend_overwrites_older_reports(tmp_path: Path) -> None:
    for name in FILES[1::2]:
        (tmp_path / name).write_text("of an older run", encoding="utf-8")
    done = check(tmp_path, *FILES, code="1 / 0\n")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    report = read_report(tmp_path / "r.json")
    assert (report["verdict"], report["results"], report["backend"]["name"]) == ("unusable", [], "backend.py")
    assert f"attnspec: {report['reason']}\n" == done.stderr
    for name in ("r.html", "r.xml"):
        assert "ZeroDivisionError: division by zero" in (tmp_path / name).read_text(encoding="utf-8")


def report_of(*results: Result) -> Report:
    backend = SimpleNamespace(name="mine", softmax=lambda x: x, scaled_dot_product_attention=lambda *arrays: arrays)
    return Report(Contract.of(backend, "mine.py"), Settings(), results, 1.0)


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_a_narrow_terminal_hides_no_number(columns: int) -> None:
    result = Result("scaled_dot_product_attention", "operation.oracle", "float64", Status.PASSED, examples=4321)
    console = Console(file=StringIO(), width=columns)
    print_report(report_of(result), console)
    assert isinstance(console.file, StringIO)
    table = console.file.getvalue().partition("quick")[2].partition("limits:")[0]
    assert max(map(len, table.splitlines())) <= columns
    for text in (
        "attention",
        "scaled_dot_product_attention",
        "laws",
        "1/1",
        "examples",
        "4,321",
        "budget",
        "used",
        "0%",
    ):
        assert text in (table if columns > 28 else table.replace("\n", ""))


def test_junit_has_a_test_for_every_case_and_a_failure_for_every_violation() -> None:
    failed = Result("softmax", "operation.oracle", "float64", Status.FAILED, "value", "1 is \x1b not\n2")
    passed = Result("softmax", "operation.shape", "float32", Status.PASSED, examples=3)
    absent = Result("dot_scores", "operation.shape", "float32", Status.NOT_PROVIDED)
    suite = ElementTree.fromstring(as_junit(report_of(failed, passed, absent)))
    assert {key: suite.get(key) for key in ("name", "tests", "failures", "errors")} == {
        "name": "mine", "tests": "2", "failures": "1", "errors": "0"
    }  # fmt: skip
    assert [(x.get("classname"), x.get("name")) for x in suite] == [("softmax", "float64"), ("softmax", "float32")]
    (failure,) = suite.iter("failure")
    assert (failure.get("message"), failure.get("type"), failure.text) == (
        "operation.oracle", "value", "1 is \\x1b not\n2"
    )  # fmt: skip


def test_one_file_that_cannot_be_written_does_not_stop_the_others(tmp_path: Path) -> None:
    report = report_of(Result("softmax", "operation.oracle", "float64", Status.PASSED, examples=1))
    files = {name: OutputFile(tmp_path / name, f"--{name}") for name in ("json", "html", "junit")}
    (tmp_path / "html").mkdir()
    (error,) = write_report(report, files, Console(file=StringIO()))
    assert error.startswith("--html: ")
    assert (tmp_path / "json").read_text(encoding="utf-8") == report.as_text()
    assert (tmp_path / "junit").read_text(encoding="utf-8") == as_junit(report)
    assert "mine conforms" in as_html(report)


def test_a_removed_current_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["sh", "-c", 'rmdir "$0"; exec "$@"', str(gone), *COMMAND, "list"]
    done = subprocess.run(command, cwd=gone, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("attnspec: ")] == [
        "attnspec: expected to be run in a folder that exists; got: No such file or directory"
    ]
    assert "Traceback" not in done.stderr
