"""No backend that forges the verdict of its run conforms, with or without a sandbox."""

import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote import sandbox
from attnspec.conformance.remote.environment import own_folders
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.processes import HAS_PROC, processes
from attnspec.conformance.running import integrity
from attnspec.conformance.running.contract_file import read_contract, write_contract
from attnspec.conformance.running.post_mortem import valid_answer

from . import hostile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_PROC, reason="the system does not say what processes there are"),
]

COMMAND = ["-P", "-m", "attnspec.conformance.cli"]
SMALL = ("--law", "operation.oracle", "--dtype", "float64", "--workers", "1")

needs_sandbox = pytest.mark.skipif(sandbox.sandbox_error() is not None, reason=str(sandbox.sandbox_error()))
MODES = ["off", pytest.param("on", marks=needs_sandbox)]


def check(
    folder: Path, code: str, mode: str, *options: str, python: str | Path = sys.executable, **variables: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (folder / "backend.py").write_text(code, encoding="utf-8")
    path = folder / "report.json"
    command = [str(python), *COMMAND, "check", "backend.py", *SMALL, "--sandbox", mode, *options, "--json", str(path)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=240, check=False
    )
    no_report = {"verdict": "none", "backend": {"notes": {}}}
    return done, json.loads(path.read_text(encoding="utf-8")) if path.exists() else no_report


FORGED_INCIDENTS = """
import glob, json, os, sys, tempfile
passed = [{"operation": "dot_scores", "law": "operation.oracle", "dtype": "float64", "status": "passed",
           "reason": None, "message": "", "examples": 9, "not_judged": 0, "error_ratio": 0.5, "observed": None,
           "counterexample": None}]
folders = {os.path.dirname(os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY", ""))}
folders |= {*glob.glob(tempfile.gettempdir() + "/attnspec-*")}
for folder in folders:
    try:
        with open(os.path.join(folder, "dot_scores-float64.incidents.json"), "w") as f:
            json.dump(passed, f)
    except OSError:
        pass
"""


@pytest.mark.parametrize("mode", MODES)
def test_forged_files_in_the_folder_of_the_run_are_ignored(tmp_path: Path, mode: str) -> None:
    done, report = check(tmp_path, f"{FORGED_INCIDENTS}{hostile.WRONG}", mode)
    assert (done.returncode, report["verdict"]) == (1, "violates"), done.stdout + done.stderr
    assert report["sandbox"] == ("bubblewrap" if mode == "on" else "none")


SURROUNDINGS = """
import os, sys
known = [n for n in os.environ if n.startswith(("PYTEST", "HYPOTHESIS", "ATTNSPEC_RUN"))]
notes = {"known": " ".join(known + [x for x in sys.orig_argv if "attnspec-" in x])}
"""


@pytest.mark.parametrize("mode", MODES)
def test_the_processes_of_a_backend_know_no_path_of_the_run(tmp_path: Path, mode: str) -> None:
    done, report = check(tmp_path, hostile.RIGHT + SURROUNDINGS, mode, PYTEST_ADDOPTS="-q")
    assert (done.returncode, report["backend"]["notes"]) == (0, {"known": ""}), done.stdout + done.stderr


REWRITING_PROCESS = """
import os, sys, time
if 'attnspec.conformance.remote.description' in sys.orig_argv and not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-c", '''
import time
for _ in range(600):
    time.sleep(0.1)
    try:
        text = open("report.json").read()
        open("report.json", "w").write(text.replace("violates", "conforms"))
    except OSError:
        pass
'''], {})
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_process_left_by_the_first_import_rewrites_no_report(tmp_path: Path, mode: str) -> None:
    done, report = check(tmp_path, REWRITING_PROCESS + hostile.WRONG, mode)
    assert (done.returncode, report["verdict"]) == (1, "violates"), done.stdout + done.stderr
    time.sleep(0.5)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["verdict"] == "violates"
    if mode == "off":
        (title,) = report["left_behind"]
        assert "processes that the backend left running" in done.stdout
        assert not [p for p in processes() if f"(process {p.number})" in title and not p.ended]


def test_a_sitecustomize_that_an_import_writes_is_named(tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    file = tmp_path / "start" / "sitecustomize.py"
    done, report = check(
        tmp_path, f"open({str(file)!r}, 'w').close()\n{hostile.RIGHT}", "off", PYTHONPATH=str(tmp_path / "start")
    )
    assert (done.returncode, report["verdict"]) == (2, "unusable"), done.stdout
    assert f"the judge's own files changed while it ran, so no verdict can be trusted: {file}" in done.stderr


FORGING_AND_EXITING = """
import os, stat
passed = b'{"r": ["passed", 0.0]}'
for number in range(3, 256):
    try:
        if stat.S_ISFIFO(os.fstat(number).st_mode) or stat.S_ISSOCK(os.fstat(number).st_mode):
            os.write(number, len(passed).to_bytes(8, "little") + bytes(8) + passed)
    except OSError:
        pass
os._exit(0)
"""


@pytest.mark.parametrize("mode", MODES)
def test_answers_forged_before_an_exit_at_import_give_no_verdict(tmp_path: Path, mode: str) -> None:
    done, report = check(tmp_path, FORGING_AND_EXITING + hostile.WRONG, mode)
    assert (done.returncode, report["verdict"]) == (2, "unusable"), done.stdout + done.stderr


SHADOWING = """
import pathlib
for folder in (".", pathlib.Path(__file__).parent):
    for name in ("numpy", "torch", "hypothesis"):
        try:
            pathlib.Path(folder, name + ".py").write_text("raise SystemExit(0)")
        except OSError:
            pass
"""


@pytest.mark.parametrize("mode", MODES)
def test_modules_written_beside_a_backend_replace_none_of_the_judge(tmp_path: Path, mode: str) -> None:
    done, report = check(tmp_path, hostile.WRONG + SHADOWING, mode)
    assert (done.returncode, report["verdict"]) in {(1, "violates"), (2, "unusable")}, done.stdout + done.stderr


def appending(file: Path, line: str) -> str:
    """Code that appends a line to a file, and notes the reason if it cannot."""
    return f"""
try:
    with open({str(file)!r}, "a") as f: f.write({line!r} + chr(10))
    notes = {{"could": "write"}}
except OSError as error:
    notes = {{"could": error.strerror}}
"""


def expect_no_forgery(
    done: subprocess.CompletedProcess[str], report: dict[str, Any], mode: str, file: Path, before: str | None
) -> None:
    """Without a sandbox the run names the changed file; with one the file is unchanged."""
    if mode == "off":
        assert (done.returncode, report["verdict"]) == (2, "unusable"), done.stdout + done.stderr
        reason = "the judge's own files changed while it ran, so no verdict can be trusted: "
        assert report["reason"].startswith(reason)
        # A process that starts later may also compile the changed file.
        compiled = importlib.util.cache_from_source(str(file))
        assert {*report["reason"].removeprefix(reason).split(", ")} - {compiled} == {str(file)}
        assert report["reason"] in done.stderr
    else:
        assert (done.returncode, report["verdict"]) == (1, "violates"), done.stdout + done.stderr
        assert report["backend"]["notes"] == {"could": "Read-only file system"}
        assert (file.read_text(encoding="utf-8") if file.exists() else None) == before


@pytest.mark.parametrize("mode", MODES)
def test_edited_source_files_of_the_judge_are_noticed(tmp_path: Path, mode: str) -> None:
    # The run uses a copy of attnspec, so that nothing else is harmed.
    copies = [tmp_path / "copy" / str(i) for i, _ in enumerate(own_folders())]
    for folder, copy in zip(own_folders(), copies, strict=True):
        shutil.copytree(folder, copy / "attnspec")
    (file,) = (path for copy in copies if (path := copy / "attnspec/conformance/judging/results.py").exists())
    before = file.read_text(encoding="utf-8")
    code = hostile.WRONG + appending(file, "Result.violates = property(lambda self: False)")
    done, report = check(tmp_path, code, mode, PYTHONPATH=os.pathsep.join(map(str, copies)))
    expect_no_forgery(done, report, mode, file, before)


@pytest.mark.parametrize("mode", MODES)
def test_path_files_that_an_import_writes_are_named(tmp_path: Path, mode: str) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv/bin/python"
    show = "import site; print(site.getsitepackages()[0])"
    folder = Path(subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout.strip())
    same = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (folder / "same.pth").write_text(same, encoding="utf-8")
    file = folder / "left.pth"
    code = hostile.WRONG + appending(file, "import sys; sys.left = True")
    done, report = check(tmp_path, code, mode, python=python)
    expect_no_forgery(done, report, mode, file, None)


PYTEST_CONFIGURATION = """
import glob, os, signal, sys, tempfile
if 'attnspec.conformance.remote.host' in sys.orig_argv and not os.path.exists(MARK):
    open(MARK, "w").close()
    for folder in glob.glob(tempfile.gettempdir() + "/attnspec-*"):
        try:
            with open(folder + "/pytest.ini", "w") as file:
                file.write("[pytest]\\npythonpath = " + os.path.dirname(MARK) + "\\naddopts = -p forged\\n")
        except OSError:
            pass
    os.kill(os.getppid(), signal.SIGKILL)
"""


def test_a_judge_that_starts_anew_reads_no_configuration_of_the_backend(tmp_path: Path) -> None:
    forged = (
        "from attnspec.conformance.judging.comparison import Comparisons\nComparisons.matches = lambda *a, **k: None\n"
    )
    (tmp_path / "forged.py").write_text(forged, encoding="utf-8")
    mark, temporary = tmp_path / "mark", tmp_path / "temporary"
    temporary.mkdir()
    code = f"MARK = {str(mark)!r}{PYTEST_CONFIGURATION}{hostile.WRONG}"
    done, report = check(tmp_path, code, "off", TMPDIR=str(temporary))
    assert mark.exists()
    assert (done.returncode, report["verdict"]) == (1, "violates"), done.stdout + done.stderr


def test_files_that_replace_the_judges_code_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, path = tmp_path / "own", tmp_path / "path"
    for folder in (own, path):
        folder.mkdir()
    (own / "judge.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(integrity, "own_folders", lambda: [str(own)])
    monkeypatch.setattr(sys, "path", [*sys.path, str(path)])
    files = integrity.JudgeFiles()
    assert files.changed() == []
    compiled = Path(importlib.util.cache_from_source(str(own / "judge.py")))
    assert compiled.exists(), "one that appears later would be the backend's"
    harmless, added = path / "notes.txt", [path / "numpy", path / "sitecustomize.so", path / "left.pth", own / "judge"]
    harmless.touch()
    for place in added:
        place.mkdir()
        (place / "__init__.py").touch()
    (added[-1] / "__init__.py").touch()
    compiled.touch()
    expected = [*added[:-1], added[-1] / "__init__.py", compiled]
    assert files.changed() == sorted(map(str, expected))


def test_a_run_ends_if_the_required_sandbox_is_missing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done, report = check(tmp_path, hostile.RIGHT, "on", PATH=str(tmp_path / "bin"))
    reason = "--sandbox: expected a sandbox; bubblewrap (bwrap) is not installed; 'off' judges without one"
    assert (done.returncode, report["verdict"], report["reason"]) == (2, "unusable", reason), done.stdout
    assert done.stderr == f"attnspec: {reason}\n"


def at_first_call(file: Path, statement: str) -> str:
    """A right backend that runs a statement before its first call only."""
    act = f"if not os.path.exists({str(file)!r}): open({str(file)!r}, 'w').close(); {statement}"
    return f"import os, signal\n{hostile.before_each_call(act)}"


def test_a_judge_that_is_stopped_continues(tmp_path: Path) -> None:
    done, _ = check(tmp_path, at_first_call(tmp_path / "done", "os.kill(os.getppid(), signal.SIGSTOP)"), "off")
    assert (tmp_path / "done").exists()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of the judge was stopped; it is continued" in done.stderr


def test_a_judge_that_is_killed_once_judges_again(tmp_path: Path) -> None:
    done, report = check(tmp_path, at_first_call(tmp_path / "done", "os.kill(os.getppid(), signal.SIGKILL)"), "off")
    assert (tmp_path / "done").exists()
    assert (done.returncode, report["verdict"]) == (0, "conforms"), done.stdout + done.stderr


def test_a_judge_that_is_always_killed_convicts_nobody(tmp_path: Path) -> None:
    kills = hostile.before_each_call("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    done, report = check(tmp_path, kills, "off")
    assert (done.returncode, report["verdict"]) == (2, "unusable"), done.stdout + done.stderr
    (lost,) = {r["message"] for r in report["results"] if r["status"] == "lost"}
    assert lost.startswith("the judge's own process was ended by SIGKILL (out of memory?)")
    assert not [r for r in report["results"] if r["status"] == "failed"]


@needs_sandbox
@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
def test_a_sandbox_lets_no_signal_out(tmp_path: Path, number: str) -> None:
    act = f"import os, signal; [os.kill(p, signal.{number}) for p in (1, os.getppid()) if p != os.getpid()]"
    done, report = check(tmp_path, hostile.before_each_call(act), "on")
    assert (done.returncode, report["verdict"]) == (0, "conforms"), done.stdout + done.stderr
    assert "of the judge" not in done.stderr


@needs_sandbox
def test_the_signal_that_ended_a_process_is_named_in_a_sandbox_too(tmp_path: Path) -> None:
    done, _ = check(tmp_path, hostile.before_each_call("import ctypes; ctypes.string_at(0)"), "on")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SIGSEGV" in done.stdout


def test_a_result_beyond_its_budget_cannot_pass() -> None:
    for ratio in (1.29e15, float("nan")):
        forged = Result("softmax", "operation.oracle", "float64", Status.PASSED, error_ratio=ratio)
        assert (forged.status, forged.reason, forged.violates) == (Status.FAILED, "value", True)
        read = Result.from_json({**forged.as_json(), "status": "passed", "reason": None})
        assert read.status is Status.FAILED
    assert Result("softmax", "operation.oracle", "float64", Status.PASSED, error_ratio=1.0).status is Status.PASSED


def test_a_contract_file_changed_by_another_process_is_refused(tmp_path: Path) -> None:
    write_contract(tmp_path, {"name": "mine"}, "key")
    assert read_contract(tmp_path, 1.0, "key") == {"name": "mine"}
    (tmp_path / "contract.json").write_text('0\n{"name": "another"}', encoding="utf-8")
    with pytest.raises(BackendError, match="another process has changed it"):
        read_contract(tmp_path, 1.0, "key")


def test_an_answer_after_a_crash_cannot_set_the_verdict() -> None:
    example = dict.fromkeys(("arguments", "expected", "got", "budget", "index"), None) | {"snippet": "pass"}
    complete = {"message": "m", "counterexample": example}
    assert valid_answer(json.dumps(complete).encode()) == complete
    assert valid_answer(b'{"note": "n"}') == {"note": "n"}
    answers: tuple[Any, ...] = (
        {"message": "m", "counterexample": example, "status": "passed"}, {"message": 1, "counterexample": example},
        {"message": "m", "counterexample": {"snippet": "pass"}}, {"note": "n", "status": "passed"}, {"note": 1}, [], {},
    )  # fmt: skip
    for answer in answers:
        assert valid_answer(json.dumps(answer).encode()) is None
    assert valid_answer(b"\x80\x04.") is None


MEMORY = """
import ctypes, os, sys
from attnspec.conformance.remote.processes import DUMPABLE, close_memory
os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(DUMPABLE, 1, 0, 0, 0)  # as any process that was started by this user
if sys.argv[1] == "closed": close_memory()
if not os.fork():
    try:
        open(f"/proc/{os.getppid()}/mem", "rb")
    except PermissionError as error:
        print(error.strerror, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can become another user")
def test_processes_of_the_same_user_cannot_read_the_judges_memory() -> None:
    for memory, output in (("open", ""), ("closed", "Permission denied\n")):
        done = subprocess.run([sys.executable, "-c", MEMORY, memory], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, output), done.stderr
