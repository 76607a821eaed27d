"""Whole runs with the backend in its own process: hostile surroundings, signals, and pytest."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from attnspec.conformance.remote.loading import comes_with_attnspec
from attnspec.conformance.remote.processes import HAS_PROC, processes

from . import hostile

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals are others here")]

COMMAND = [sys.executable, "-P", "-m", "attnspec.conformance.cli"]
SMALL = ("--law", "operation.oracle", "--dtype", "float64", "--workers", "1")

IN_JUDGED = "'attnspec.conformance.remote.host' in sys.orig_argv"
"""An expression that is true in the process where the backend is judged."""


def check(folder: Path, code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Check a backend of this code, with a report beside its folder."""
    backend = folder / "backend.py"
    backend.write_text(code, encoding="utf-8")
    report = folder.parent / f"{folder.name}.json"
    command = [*COMMAND, "check", str(backend), *SMALL, *options, "--json", str(report)]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=240, check=False
    )


def report(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder.parent / f"{folder.name}.json").read_text(encoding="utf-8"))
    return document


def violations(folder: Path) -> set[tuple[str, str]]:
    return {(r["law"], r["reason"]) for r in report(folder)["results"] if r["status"] == "failed"}


def test_a_declaration_that_changes_before_judging_is_refused(tmp_path: Path) -> None:
    code = f"{hostile.WRONG}import sys\nif {IN_JUDGED}:\n    limits = {{'dtypes': ('float64',), 'max_length': 1}}\n"
    done = check(tmp_path, code)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stdout + done.stderr
    assert "limits: expected what its first import declared, " in done.stderr


def test_a_run_in_process_says_so(tmp_path: Path) -> None:
    done = check(tmp_path, hostile.RIGHT, "--in-process")
    assert done.returncode == 0
    assert "judged in the same process as the backend, which could change verdicts" in done.stdout
    assert report(tmp_path)["in_process"] is True
    done = check(tmp_path, hostile.RIGHT)
    assert (done.returncode, "judged in the same process" in done.stdout, report(tmp_path)["in_process"]) == (
        0,
        False,
        False,
    )


def test_output_of_the_backend_is_shown_in_process_only(tmp_path: Path) -> None:
    printing = hostile.before_each_call("print('printed by ' + name)")
    here = check(tmp_path, printing, "--in-process")
    assert here.returncode == 0, here.stdout + here.stderr
    assert "printed by right\n" in here.stderr
    assert "printed by right" not in here.stdout
    elsewhere = check(tmp_path, printing)
    assert "printed by right" not in elsewhere.stdout + elsewhere.stderr


def test_backends_shipped_with_attnspec_are_recognised() -> None:
    assert comes_with_attnspec("pytorch")
    assert not comes_with_attnspec("mine.py")
    assert not comes_with_attnspec("attnspec.backends.pytorch")


def test_a_backend_that_forges_verdicts_in_its_process_is_convicted_by_another(tmp_path: Path) -> None:
    done = check(tmp_path, hostile.PATCHING)
    assert (done.returncode, report(tmp_path)["verdict"]) == (1, "violates"), done.stdout + done.stderr
    assert violations(tmp_path) == {("operation.oracle", "value")}
    done = check(tmp_path, hostile.PATCHING, "--in-process")
    # Its patches let every law pass, but the report shows that no number was compared.
    assert (done.returncode, report(tmp_path)["verdict"]) == (2, "unusable"), done.stdout + done.stderr
    assert "which could change verdicts" in done.stdout


@pytest.mark.skipif(not HAS_PROC, reason="the system does not say what processes there are")
def test_a_process_left_behind_is_in_the_report(tmp_path: Path) -> None:
    leaving = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True, env={})"
    # A process with much memory ends slowly, and only then does its child get a new parent.
    at_first_call = f"if not hasattr(np, 'left'): np.left = bytearray(300_000_000); {leaving}"
    # In a sandbox the child ends with the process namespace, perhaps before it can be named.
    done = check(tmp_path, hostile.before_each_call(_block(at_first_call)), "--sandbox", "off")
    assert done.returncode == 0, done.stdout + done.stderr
    (title,) = report(tmp_path)["left_behind"]
    assert f"processes that the backend left running, ended now: {title}" in done.stdout
    number = int(title.removeprefix("sleep (process ").rstrip(")"))
    assert not [p for p in processes() if p.number == number and p.state != "Z"]


def _block(line: str) -> str:
    """A condition and what follows from it, on lines of their own."""
    head, _, body = line.partition(": ")
    return f"{head}:\n        " + "\n        ".join(body.split("; "))


def test_a_run_leaves_no_files_and_ignores_hostile_variables(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("raise SystemExit(3)", encoding="utf-8")
    hostile_variables = {"PYTEST_PLUGINS": "nothing", "PYTEST_ADDOPTS": "--nonsense", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = check(tmp_path, hostile.RIGHT, **hostile_variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == ["backend.py", "nothing.py"]


SURROUNDINGS = {
    "plain characters": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "few columns": {"COLUMNS": "20", "NO_COLOR": "1"},
}


@pytest.mark.parametrize("variables", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_verdicts_and_pages_are_the_same_in_other_surroundings(tmp_path: Path, variables: dict[str, str]) -> None:
    page = tmp_path.parent / f"{tmp_path.name}.html"
    done = check(tmp_path, hostile.WRONG, "--html", str(page), **variables)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stdout + done.stderr
    assert violations(tmp_path) == {("operation.oracle", "value")}
    assert "operation.oracle" in page.read_text(encoding="utf-8")


def test_two_simultaneous_runs_do_not_interfere(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(hostile.RIGHT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(hostile.WRONG, encoding="utf-8")
    commands = [[*COMMAND, "check", name, *SMALL] for name in ("right.py", "wrong.py")]
    runs = [subprocess.Popen(c, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for c in commands]
    printed = [run.communicate(timeout=240)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 1], printed


def test_control_characters_of_a_backend_are_not_printed(tmp_path: Path) -> None:
    code = hostile.before_each_call("raise ValueError('\\x1b[2J\\x1b[32mright conforms\\x07\\r')")
    done = check(tmp_path, code.replace('name = "right"', 'name = "ri\\x1b[8mght"'))
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr}


def test_a_run_in_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "backend.py").write_text(hostile.RIGHT, encoding="utf-8")
    folder.chmod(0o555)
    command = [*COMMAND, "check", "backend.py", *SMALL]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    folder.chmod(0o755)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p.name for p in folder.iterdir() if p.name != "__pycache__"] == ["backend.py"]


@pytest.mark.parametrize("ignored", [False, True], ids=["as ever", "with SIGINT ignored"])
@pytest.mark.parametrize("end", ["waits", "exits"])
def test_a_run_ends_if_the_backend_waits_or_exits(tmp_path: Path, end: str, ignored: bool) -> None:
    (tmp_path / "backend.py").write_text(hostile.before_each_call(hostile.ENDING_STATEMENTS[end][0]), encoding="utf-8")
    program = f"""
import signal, subprocess, sys
if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
    command = [sys.executable, "-c", program, *COMMAND, "check", "backend.py", *SMALL, "--hang-after", "1.5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert hostile.ENDING_STATEMENTS[end][2] in done.stdout


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero, in <module> (backend.py:3)"),
        ("__import__('os')._exit(9)", "its import ended the process with status 9"),
    ],
)
def test_an_import_that_fails_when_judged_is_reported_in_one_line(tmp_path: Path, statement: str, reason: str) -> None:
    done = check(tmp_path, f"import sys\nif {IN_JUDGED}:\n    {statement}\n{hostile.RIGHT}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.rstrip().endswith(f": {reason}")
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_import_that_does_not_end_ends_where_sigint_is_ignored(tmp_path: Path) -> None:
    waiting = hostile.WAIT_AT_IMPORT.replace("\n", "; ")
    (tmp_path / "backend.py").write_text(f"import sys\n{hostile.RIGHT}if {IN_JUDGED}:\n    {waiting}\n")
    program = (
        "import signal, os, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, *COMMAND, "check", "backend.py", *SMALL]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "ATTNSPEC_IMPORT_SECONDS": "6"}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "did not import the backend within 6 s" in done.stderr or "expected its import to end" in done.stderr


@pytest.mark.skipif(not HAS_PROC, reason="the system does not say what processes there are")
def test_ctrl_c_ends_a_run_at_once(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(hostile.before_each_call(hostile.TOUCH_AND_WAIT), encoding="utf-8")
    command = [sys.executable, "-c", hostile.SIGNALS_DEFAULT, *COMMAND, "check", "backend.py"]
    command += [*SMALL, "--json", "r.json", "--hang-after", "600", "--sandbox", "off"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        deadline = time.monotonic() + 120
        while not (tmp_path / "called").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        start = time.monotonic()
        os.killpg(run.pid, signal.SIGINT)
        _, printed = run.communicate(timeout=60)
    assert time.monotonic() - start < 30
    assert run.returncode == 2, printed
    document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert document["verdict"] == "unusable"
    assert {(r["reason"], r["message"]) for r in document["results"] if r["status"] == "lost"} == {
        ("interrupted", "interrupted")
    }
    hosts = [p for p in processes() if str(tmp_path).encode() in _command(p.number)]
    assert hosts == []


def _command(number: int) -> bytes:
    try:
        return Path("/proc", str(number), "cmdline").read_bytes() + os.readlink(f"/proc/{number}/cwd").encode()
    except OSError:
        return b""


# pytest ---------------------------------------------------------------------------------------------------------------

SUITE = """
from attnspec.conformance import ConformanceSuite


class Mine:
    name = "mine"
    limits = {{"dtypes": ("float64",)}}

    def dot_scores(self, query, key):
        {before}
        return query @ key.swapaxes(-1, -2)


def make_suite():
    class TestMade(ConformanceSuite):
        backend = Mine()
        laws = ("operation.oracle",)

    return TestMade


class TestMine(ConformanceSuite):
    backend = Mine()
    laws = ("operation.oracle",)


{more}
"""

JUDGED_HERE = (
    "TestMade was judged in the process of its backend, which may have misled it: "
    "its class is defined inside a function"
)


def run_suite(folder: Path, before: str, more: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text(SUITE.format(before=before, more=more), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def test_a_suite_judges_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "assert 'pytest' not in sys.argv[0]", "import sys\n")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "judged in this process" not in done.stdout


def test_a_suite_whose_backend_exits_is_not_green(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "import os; os._exit(0)", "def test_after():\n    assert True\n")
    assert done.returncode == 1, done.stdout
    assert "the backend ended the process with status 0" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_a_suite_that_cannot_be_imported_is_judged_in_process_and_says_so(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "pass", "TestMine = TestMade = make_suite()\n")
    assert done.returncode == 0, done.stdout
    assert JUDGED_HERE in done.stdout


def test_a_process_that_its_backend_ends_is_not_green(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "import os; os._exit(0)", "TestMine = TestMade = make_suite()\n")
    assert done.returncode == 1
    assert "attnspec: the backend has ended this process with status 0" in done.stdout
