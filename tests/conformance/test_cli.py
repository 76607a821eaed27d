"""The command line, end to end: verdicts, exit statuses, messages, and backends that misbehave."""

import json
import os
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.snippet import DERIVED, snippet
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws import CHECKS
from attnspec.spec.contract.operation import OPERATIONS

SCHEMA = json.loads(resources.files("attnspec.conformance.reporting").joinpath("report.schema.json").read_text())

RIGHT = """
import numpy as np

name = "right"

def dot_scores(query, key):
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise ValueError("sizes differ")
    return query @ np.swapaxes(key, -1, -2)
"""

ATTENTION = """
import numpy as np

name = "wrong"
semantics = {"masked_nonfinite": "propagates"}

def scaled_dot_product_attention(query, key, value, *, mask=None, causal=False):
    scores = query @ np.swapaxes(key, -1, -2) / np.array(query.shape[-1], query.dtype)
    allowed = np.ones(scores.shape[-2:], bool) if mask is None else mask
    if causal:
        allowed = allowed & np.tri(*scores.shape[-2:], dtype=bool)
    scores = np.where(allowed, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-1e30)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total > 0, total, 1).astype(query.dtype) @ value
"""


def attnspec(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    environment = {**os.environ, "COLUMNS": "200", "PYTHONWARNINGS": "default", **variables}
    command = [sys.executable, "-P", "-m", "attnspec.conformance.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=300, check=False
    )


def written(folder: Path, code: str) -> str:
    """A backend in a file."""
    (folder / "backend.py").write_text(code)
    return "backend.py"


def checked(folder: Path, code: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Status and report of a check."""
    done = attnspec("check", written(folder, code), "--json", "r.json", "--workers", "2", *arguments, folder=folder)
    assert "Traceback" not in done.stderr, done.stderr
    report: dict[str, Any] = json.loads((folder / "r.json").read_text())
    assert report["exit_status"] == done.returncode
    jsonschema.validate(report, SCHEMA)
    return done.returncode, report


def test_a_right_backend_conforms(tmp_path: Path) -> None:
    status, report = checked(tmp_path, RIGHT)
    assert (status, report["verdict"]) == (0, "conforms")
    assert report["summary"]["failed"] == report["summary"]["lost"] == 0
    assert report["summary"]["error_ratio"] <= 1
    assert report["semantics"] == {
        "repeatability": {"declared": "bitwise", "observed": "bitwise"},
        "rejection": {"declared": "raises", "observed": "raises"},
    }
    absent = {r["operation"] for r in report["results"] if r["status"] == "not-provided"}
    assert "softmax" in absent
    assert "dot_scores" not in absent


def test_dividing_by_d_is_shown_at_its_smallest(tmp_path: Path) -> None:
    status, report = checked(tmp_path, ATTENTION, "--law", "operation.oracle", "--dtype", "float64")
    assert (status, report["verdict"]) == (1, "violates")
    (result,) = [r for r in report["results"] if r["status"] == "failed"]
    shown = result["counterexample"]
    query, key, value = (shown["arguments"][name] for name in ("query", "key", "value"))
    assert [len(query), len(query[0]), len(key), len(value[0])] == [1, 2, 2, 1]
    numbers = {x for rows in (query, key, value) for row in rows for x in row}
    assert numbers == {0.0, 1.0}
    assert shown["arguments"]["mask"] is None
    (tmp_path / "snippet.py").write_text(shown["snippet"])
    replayed = subprocess.run([sys.executable, "snippet.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert replayed.returncode == 1, replayed.stderr
    assert "expected" in replayed.stdout


def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    reports = []
    for workers in ("1", "3"):
        _, report = checked(tmp_path, ATTENTION, "--workers", workers, "--operation", "scaled_dot_product_attention")
        reports.append(report["results"])
    assert reports[0] == reports[1]


def test_what_may_follow_from_the_formula_comes_last(tmp_path: Path) -> None:
    done = attnspec("check", written(tmp_path, ATTENTION), "--workers", "2", folder=tmp_path)
    heads = (
        "\nwrong violates\n",
        "operation.oracle is violated",
        "explained by semantics rejection = unchecked: 1 law",
    )
    places = [f"\n{done.stdout}".index(head) for head in (*heads, "What follows may be a consequence")]
    assert places == sorted(places)
    after = done.stdout[places[-1] :]
    assert "laws of scaled_dot_product_attention: " in after
    assert all(law in after for law in ("attention.scale", "semantics.causal_alignment"))
    assert " is violated by" not in after
    alone = attnspec("check", "backend.py", "--law", "attention.scale", "--workers", "2", folder=tmp_path)
    assert "attention.scale is violated" in alone.stdout
    assert "consequence" not in alone.stdout


def test_what_is_no_terminal_cuts_nothing(tmp_path: Path) -> None:
    written(tmp_path, ATTENTION)
    call = ("check", "backend.py", "--law", "operation.oracle", "--law", "operation.rejection", "--workers", "2")
    uncut, narrow = (attnspec(*call, folder=tmp_path, COLUMNS=columns) for columns in ("", "60"))
    (row,) = [line for line in uncut.stdout.splitlines() if line.startswith(" attention ")]
    assert row.split()[:2] == ["attention", "scaled_dot_product_attention"]
    assert "…" not in uncut.stdout[: uncut.stdout.index("limits:")] + uncut.stderr
    tables = narrow.stdout[narrow.stdout.index("· quick") : narrow.stdout.index("limits:")]
    assert max(map(len, tables.splitlines())) <= 60
    assert "…" not in tables
    listed = attnspec("list", "operations", folder=tmp_path, COLUMNS="")
    assert all(o.name in listed.stdout and o.statement in listed.stdout for o in OPERATIONS.values())


def test_one_mutant_alone(tmp_path: Path) -> None:
    done = attnspec("mutants", "--only", "base 1*", "--workers", "1", "--json", "m.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 killed" in done.stdout
    assert "variants" not in done.stdout
    report = json.loads((tmp_path / "m.json").read_text())
    assert [m["name"] for m in report["mutants"]] == ["base 1000"]
    assert report["variants"] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_kill_matrix_that_cannot_be_written_is_shown_all_the_same(tmp_path: Path) -> None:
    done = attnspec("mutants", "--only", "base 1000", "--workers", "1", "--json", "/dev/full", folder=tmp_path)
    assert done.returncode == 2
    assert "--json: '/dev/full' could not be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "1 of 1 killed" in done.stdout


def test_every_kind_of_report(tmp_path: Path) -> None:
    done = attnspec(
        "check", written(tmp_path, RIGHT), "--law", "operation.oracle", "--html", "r.html", "--junit", "r.xml",
        folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0
    assert "right conforms" in done.stdout
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>\n<html lang=")
    assert "<testsuite" in (tmp_path / "r.xml").read_text()


MISBEHAVING = {
    "exits": ("import os\ndef dot_scores(query, key):\n    os._exit(0)\n", "crashed"),
    "is killed": (
        "import os, signal\ndef dot_scores(query, key):\n    os.kill(os.getpid(), signal.SIGSEGV)\n",
        "crashed",
    ),
    "hangs": ("import time\ndef dot_scores(query, key):\n    time.sleep(600)\n", "hung"),
    "calls sys.exit": ("import sys\ndef dot_scores(query, key):\n    sys.exit(0)\n", "raised"),
    "raises": ("def dot_scores(query, key):\n    raise OSError('no such thing')\n", "raised"),
    "gives nothing": ("def dot_scores(query, key):\n    return None\n", "type"),
    "gives texts": ("import numpy as np\ndef dot_scores(query, key):\n    return np.array('x')\n", "type"),
    "gives NaN": (
        "import numpy as np\ndef dot_scores(query, key):\n    return query @ np.swapaxes(key, -1, -2) * np.nan\n",
        "value",
    ),
    "raises what cannot be read": (
        "class Mute(Exception):\n    def __str__(self):\n        raise ValueError\n"
        "def dot_scores(query, key):\n    raise Mute\n",
        "raised",
    ),
    "raises what is no exception": ("def dot_scores(query, key):\n    raise GeneratorExit\n", "raised"),
    "raises KeyboardInterrupt": ("def dot_scores(query, key):\n    raise KeyboardInterrupt\n", "raised"),
    "raises what cannot be written": ("def dot_scores(query, key):\n    raise ValueError('\\udc80')\n", "raised"),
    "gives what cannot be handed back": (
        "def to_numpy(x):\n    raise ValueError('cannot')\ndef dot_scores(query, key):\n    return 1\n",
        "raised",
    ),
    "takes nothing": (
        "def from_numpy(x, *, device):\n    if x.ndim > 1:\n        raise ValueError('cannot')\n    return x\n"
        "def dot_scores(query, key):\n    return 1\n",
        "raised",
    ),
    "gives another shape": (
        "import numpy as np\ndef dot_scores(query, key):\n    return (query @ np.swapaxes(key, -1, -2))[None]\n",
        "shape",
    ),
}


@pytest.mark.parametrize(("code", "reason"), MISBEHAVING.values(), ids=MISBEHAVING)
def test_what_misbehaves_violates_by_name(tmp_path: Path, code: str, reason: str) -> None:
    status, report = checked(
        tmp_path, "name = 'bad'\n" + code, "--law", "operation.oracle", "--law", "operation.dtype",
        "--dtype", "float64", "--hang-after", "2",
    )  # fmt: skip
    assert (status, report["verdict"]) == (1, "violates")
    assert report["summary"]["lost"] == 0
    oracle = next(r for r in report["results"] if r["law"] == "operation.oracle" and r["status"] == "failed")
    assert oracle["reason"] == reason
    assert oracle["message"]


def test_other_laws_are_judged_after_a_crash(tmp_path: Path) -> None:
    code = (
        RIGHT
        + """
_scores = dot_scores
def dot_scores(query, key):
    if query.shape[-2] == 3 and key.shape[-2] == 2:
        import os
        os._exit(7)
    return _scores(query, key)
"""
    )
    status, report = checked(tmp_path, code, "--law", "scoring.isometry", "--law", "moments.mean")
    assert report["summary"]["lost"] == 0
    means = [r["status"] for r in report["results"] if r["law"] == "moments.mean" and r["status"] != "not-provided"]
    assert means == ["passed", "passed"] or status == 1


HARMLESS = {
    "prints": "import os\nos.write(1, b'\\xff raw\\n')\nprint('hello')\n",
    "says goodbye": "import atexit\natexit.register(lambda: print('bye'))\n",
    "leaves a thread behind": "import threading, time\nthreading.Thread(target=lambda: time.sleep(5)).start()\n",
    "declares a dtype twice": "limits = {'dtypes': ['float32', 'float32']}\n",
    "declares NumPy's integers": "limits = {'head_sizes': (np.int64(4), 8), 'max_length': np.int64(16)}\n",
    "has markup in its name": "name = 'a[/b]c'\n",
}


@pytest.mark.parametrize("code", HARMLESS.values(), ids=HARMLESS)
def test_what_does_no_harm_conforms(tmp_path: Path, code: str) -> None:
    status, report = checked(tmp_path, RIGHT + code, "--law", "operation.oracle")
    assert (status, report["verdict"]) == (0, "conforms")


def test_what_stands_in_the_folder_is_not_part_of_the_judgement(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_collection_modifyitems(items):\n    items[:] = []\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nonsense\n")
    for module in ("queue", "token", "select", "numpy"):
        (tmp_path / f"{module}.py").write_text("1 / 0\n")
    assert checked(tmp_path, RIGHT, "--law", "operation.oracle")[0] == 0


def test_backends_in_modules_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "backend.py").write_text(RIGHT)
    assert attnspec("check", "mine.backend", "--law", "operation.oracle", folder=tmp_path).returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_without_some_characters(tmp_path: Path, encoding: str) -> None:
    arguments = ("check", written(tmp_path, RIGHT), "--law", "operation.oracle")
    done = attnspec(*arguments, folder=tmp_path, PYTHONIOENCODING=encoding)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_reports_are_in_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    written(tmp_path, RIGHT.replace('"right"', '"right ± √d"'))
    files = ("--json", "r.json", "--html", "r.html", "--junit", "r.xml")
    done = attnspec("check", "backend.py", "--law", "operation.shape", *files, folder=tmp_path, **plain)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "right ± √d conforms" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["backend"]["name"] == "right ± √d"
    spec = attnspec("spec", "--html", "s.html", "--markdown", "s.md", folder=tmp_path, **plain)
    assert (spec.returncode, "√" in (tmp_path / "s.md").read_text(encoding="utf-8")) == (0, True), spec.stderr


def test_no_control_character_of_a_backend_reaches_the_terminal(tmp_path: Path) -> None:
    code = RIGHT.replace('"right"', r'"right\x1b[31m"').replace('"sizes differ"', r'"sizes\x1b[2J differ"')
    code = (
        code.replace("    if min(", "    if query.shape[-1] > 2 or min(")
        + r"notes = {'a\x07': 'b\x1b]0;title\x07'}"
        + "\n"
    )
    done = attnspec("check", written(tmp_path, code), "--law", "operation.oracle", "--html", "r.html", folder=tmp_path)
    assert done.returncode == 1
    assert r"ValueError: sizes\x1b[2J differ" in done.stdout
    for text in (done.stdout, done.stderr, (tmp_path / "r.html").read_text(encoding="utf-8")):
        assert not {c for c in text if not c.isprintable()} - {"\n"}
    unusable = attnspec("check", written(tmp_path, r"raise ValueError('\x1b[2J')"), folder=tmp_path)
    assert (unusable.returncode, "\x1b" in unusable.stderr, r"\x1b[2J" in unusable.stderr) == (2, False, True)


def test_an_error_of_the_suite_is_no_verdict(tmp_path: Path) -> None:
    code = "from attnspec.conformance import cli\ncli.app = lambda: 1 / 0\ncli.main()\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.endswith(
        "attnspec: an error of its own, and no verdict; please report it with the lines above\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("option", ["--json", "--html", "--junit"])
def test_a_report_that_cannot_be_written_is_shown_all_the_same(tmp_path: Path, option: str) -> None:
    arguments = ("check", written(tmp_path, RIGHT), "--law", "operation.oracle", option, "/dev/full")
    done = attnspec(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert f"{option}: '/dev/full' could not be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "right conforms" in done.stdout


def test_sigterm_is_like_ctrl_c(tmp_path: Path) -> None:
    slow = "    import time, pathlib\n    pathlib.Path('called').touch()\n    time.sleep(0.2)\n    if min"
    backend = written(tmp_path, RIGHT.replace("    if min", slow))
    command = [sys.executable, "-P", "-m", "attnspec.conformance.cli", "check", backend, "--json", "r.json"]
    command += ["--sandbox", "off"]  # the backend leaves a file
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 120
        while not (tmp_path / "called").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        run.terminate()
        shown, printed = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "interrupted; the report has what was judged" in printed
    report = json.loads((tmp_path / "r.json").read_text())
    lost = [r for r in report["results"] if r["status"] == "lost"]
    assert report["verdict"] == "unusable"
    assert {(r["reason"], r["message"]) for r in lost} == {("interrupted", "interrupted")}
    assert f"interrupted, {len(lost):,} laws have no verdict" in shown
    assert "lost:" not in shown


def test_a_lost_case_says_why(tmp_path: Path) -> None:
    code = RIGHT + "class Odd(np.ndarray):\n    shape = property(lambda self: 1 / 0)\n"
    code += "_scores = dot_scores\ndef dot_scores(query, key):\n    return _scores(query, key).view(Odd)\n"
    status, report = checked(tmp_path, code, "--law", "operation.oracle", "--in-process")
    assert (status, report["verdict"]) == (2, "unusable")
    lost = [r["message"] for r in report["results"] if r["status"] == "lost"]
    assert len(lost) == 2
    assert all("checking operation.oracle: ZeroDivisionError: division by zero in judging/" in why for why in lost)


SHIFTED = ATTENTION.replace("scores.shape[-2:], dtype", "scores.shape[-2:], 1, dtype").replace(
    "query.shape[-1], query.dtype)", "query.shape[-1] ** 0.5, query.dtype)"
)
"""Right but for its causal mask, which lets every query see one key too many."""


@pytest.mark.parametrize(
    ("code", "law"),
    [
        (ATTENTION, "operation.broadcasting"),
        (ATTENTION, "operation.rejection"),
        (SHIFTED, "semantics.causal_alignment"),
    ],
)
def test_a_snippet_prints_the_inputs_of_the_report(tmp_path: Path, code: str, law: str) -> None:
    _, report = checked(tmp_path, code, "--law", law, "--dtype", "float64")
    (found,) = [r["counterexample"] for r in report["results"] if r["status"] == "failed"]
    assert f"\n{DERIVED}\n" in found["snippet"]
    (tmp_path / "snippet.py").write_text(found["snippet"])
    done = subprocess.run([sys.executable, "snippet.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    for name in ("query", "mask", "causal"):
        value = found["arguments"][name]
        shown = np.array(value) if isinstance(value, list) else value
        assert f"\n{name} = {shown}\n" in done.stdout
    if law == "semantics.causal_alignment":
        assert found["arguments"]["causal"] is True
        assert len(found["arguments"]["query"]) != len(found["arguments"]["key"])


@pytest.mark.parametrize(
    ("operation", "budget", "plain"),
    [("dot_scores", [[1e-6, 1e-6]], True), ("dot_scores", [[1.0, 1e-6]], False), ("causal_mask", [[0, 0]], False)],
)
def test_a_snippet_compares_only_where_that_shows_it(operation: str, budget: list[list[float]], plain: bool) -> None:
    chosen = OPERATIONS[operation]
    values: dict[str, Any] = {"query": np.ones((1, 1)), "key": np.ones((2, 1)), "n": 1, "m": 2}
    values = {name: values[name] for name in chosen.call.names if name in values}
    given = Arguments(chosen, values)
    subject = Subject(reference, Contract.of(reference, "reference"), chosen, "float64", "cpu")
    kind = float if chosen.float_result else bool
    expected, got = np.zeros((1, 2), kind), np.array([[0, 0.1]]).astype(kind)
    violation = Violation("", expected=expected, got=got, budget=np.array(budget), index=(0, 1), arguments=given)
    text = snippet(subject, CHECKS["operation.oracle"][0], given, violation, 0)
    assert ("replay(" not in text) == plain
    assert "# The law" not in text


def test_snippets_blame_whoever_is_wrong(tmp_path: Path) -> None:
    _, report = checked(tmp_path, ATTENTION, "--law", "pooling.uniform", "--law", "attention.single-key",
                        "--law", "operation.batch-invariance", "--law", "operation.oracle", "--law", "masking.garbage",
                        "--law", "operation.rejection", "--law", "attention.scale",
                        "--law", "semantics.causal_alignment")  # fmt: skip
    found = [r for r in report["results"] if r["status"] == "failed"]
    assert {r["law"] for r in found} >= {"operation.oracle", "operation.rejection", "attention.scale"}
    for r in found:
        right = r["counterexample"]["snippet"].replace("'backend.py'", "'reference'")
        (tmp_path / "snippet.py").write_text(right)
        done = subprocess.run([sys.executable, "snippet.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (r["law"], done.stdout, done.stderr)


UNUSABLE = {
    ("check", "nosuch"): "backend 'nosuch': expected a registered name",
    ("check", "nofile.py"): "backend 'nofile.py': cannot be imported: FileNotFoundError",
    ("check", "empty.py"): "backend 'empty.py': expected operations such as dot_scores",
    ("check", "broken.py"): "backend 'broken.py': cannot be imported: ZeroDivisionError: division by zero",
    ("check", "leaves.py"): "backend 'leaves.py': cannot be imported: SystemExit: 3",
    ("check", "dies.py"): "backend 'dies.py': its import ended the process with status 9",
    ("check", "nameless.py"): "backend 'nameless.py': name: expected a text; got None",
    ("check", "limits.py"): "backend 'limits.py': limits: expected fields among",
    ("check", "backend.py:Nope"): "backend 'backend.py:Nope': expected an attribute 'Nope'",
    ("check", "backend.py", "--device", "cuda"): "device: expected one of cpu; got 'cuda'",
    ("check", "backend.py", "--law", "scoring.isometri"): "scoring.isometry",
    ("check", "backend.py", "--operation", "softmaxx"): "--operation: expected one of",
    ("check", "backend.py", "--operation", "softmax"): "--operation: expected one of dot_scores, which it provides",
    ("check", "backend.py", "--dtype", "float16"): "--dtype: expected one of float64, float32, its limits",
    ("check", "backend.py", "--profile", "slow"): "--profile: expected one of quick, full, release; got 'slow'",
    ("check", "backend.py", "--workers", "0"): "--workers: expected at least 1; got 0",
    ("check", "backend.py", "--hang-after", "nan"): "--hang-after: expected more than 0 and at most 86,400 seconds",
    ("check", "backend.py", "--hang-after", "1e12"): "--hang-after: expected more than 0 and at most 86,400 seconds",
    ("check", "workers.py", "--in-process"): "nothing was judged: 3 worker processes ended while they imported",
    ("check", "fails.py", "--in-process"): "nothing was judged: ",
    ("check", "waits.py", "--in-process"): "nothing was judged: worker processes did not import the backend within 6 s",
    ("check", "backend.py", "--json", "no/such/folder.json"): "--json: expected a file that can be written",
    ("spec", "--html", "no/such/folder.html"): "--html: expected a file that can be written; got 'no/such/folder.html'",
    ("spec", "--html", "one", "--markdown", "./one"): "--html: expected another file than that of --markdown",
    ("mutants", "--json", "no/such/folder.json"): "--json: expected a file that can be written; got 'no/such/",
    ("mutants", "--json", "."): "--json: expected a file that can be written; got '.': Is a directory",
    ("mutants", "--only", "Base 1000"): "--only: expected one of base 1000, ",
    ("mutants", "--only", "base 100"): "--only: expected one of base 1000, ",
    ("mutants", "--only", "nosuch*"): "; got 'nosuch*'",
    ("mutants", "--page", "no/such/folder.md"): "--page: expected a file that can be written; got 'no/such/",
    ("mutants", "--page", "k.md", "--matrix"): "--page: expected no --profile, --seeds, --only, --matrix or ",
    ("mutants", "--page", "empty.py", "--keep", "empty.py"): "--keep: empty.py: expected trials that 'attnspec mutants",
    ("show", "softmaxx"): "show: expected one of softmax",
    ("show", "LSTM_Cell"): "show: expected one of lstm_cell, ",
    ("check", "backend.py", "--operation", "SDPA"): "--operation: expected one of scaled_dot_product_attention, ",
    ("list", "things"): "list: expected one of operations, laws, backends, mutants; got 'things'",
}


@pytest.mark.parametrize(("arguments", "message"), UNUSABLE.items(), ids=[" ".join(a) for a in UNUSABLE])
def test_what_cannot_be_used_is_said_in_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    written(tmp_path, RIGHT)
    for name, code in {
        "empty": "x = 1\n",
        "broken": "1 / 0\n",
        "leaves": "import sys\nsys.exit(3)\n",
        "dies": "import os\nos._exit(9)\n",
        "nameless": RIGHT.replace('name = "right"', ""),
        "limits": RIGHT + "limits = {'sizes': 3}\n",
        "workers": f"import os, sys\nif 'execnet' in sys.modules:\n    os._exit(1)\n{RIGHT}",
        "fails": f"import sys\nif 'execnet' in sys.modules:\n    1 / 0\n{RIGHT}",
        "waits": f"import sys, time\nif 'execnet' in sys.modules:\n    time.sleep(600)\n{RIGHT}",
    }.items():
        (tmp_path / f"{name}.py").write_text(code)
    done = attnspec(*arguments, folder=tmp_path, ATTNSPEC_IMPORT_SECONDS="6" if "waits.py" in arguments else "120")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(os.name != "posix", reason="SIGINT is ignored by a shell of POSIX")
def test_the_wait_for_workers_ends_where_sigint_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(f"import sys, time\nif 'execnet' in sys.modules:\n    time.sleep(600)\n{RIGHT}")
    command = f'trap "" INT; exec "{sys.executable}" -P -m attnspec.conformance.cli check waits.py --in-process'
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env={**os.environ, "ATTNSPEC_IMPORT_SECONDS": "6"}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "worker processes did not import the backend within 6 s" in done.stderr


def test_lists_and_shows(tmp_path: Path) -> None:
    for what, found in (
        ("operations", "bahdanau_context"),
        ("laws", "masking.future-invariance"),
        ("backends", "pytorch"),
    ):
        done = attnspec("list", what, folder=tmp_path)
        assert done.returncode == 0
        assert found in done.stdout
    shown = attnspec("show", "scaled_dot_product_attention", folder=tmp_path)
    assert "S0(6)" in shown.stdout
    assert "attention.scale-trade" in shown.stdout
    assert "Var" in attnspec("show", "moments.variance", folder=tmp_path).stdout
    assert attnspec("spec", "--markdown", "spec.md", folder=tmp_path).returncode == 0
    assert "## additive_scores" in (tmp_path / "spec.md").read_text()


def test_the_suite_in_a_test_file_of_somebody_else(tmp_path: Path) -> None:
    written(tmp_path, ATTENTION)
    (tmp_path / "test_mine.py").write_text(
        "import backend\nfrom attnspec.conformance import ConformanceSuite\n"
        "class TestMine(ConformanceSuite):\n    backend = backend\n    laws = ('operation.oracle', 'operation.shape')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "operation.oracle is violated by scaled_dot_product_attention (float64)" in done.stdout
    assert "2 failed" in done.stdout


def test_pytest_with_the_name_of_a_backend(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "attnspec.conformance"),
        *("-o", "consider_namespace_packages=true", f"--attn-backend={written(tmp_path, RIGHT)}"),
        *("--attn-law=operation.oracle", "--attn-json=r.json"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "conforms"


MISSPELT = {
    "--attn-operation=foo": "operation: expected one of",
    "--attn-law=nonsense": "law: expected one of",
    "--attn-dtype=bfloat16": "--dtype: expected one of float64, float32, its limits; got 'bfloat16'",
    "--attn-device=cuda": "--device: expected one of cpu, its limits; got 'cuda'",
    "--attn-profile=fast": "profile: expected one of",
}


@pytest.mark.parametrize(("option", "message"), MISSPELT.items())
def test_pytest_refuses_what_it_cannot_select(tmp_path: Path, option: str, message: str) -> None:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "attnspec.conformance"),
        *("-o", "consider_namespace_packages=true", f"--attn-backend={written(tmp_path, RIGHT)}", option),
        "--attn-json=r.json",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode not in (0, 5)
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        ("operations = ('scaled_dot_attention',)", (), "operation: expected one of"),
        ("operations = ('softmax',)", (), "--operation: expected one of dot_scores, which it provides"),
        ("operations = 'dot_scores'", (), "TestMine.operations: expected a tuple of names; got 'dot_scores'"),
        ("laws = ('operation.oracle',)", ("--attn-json=r.json",), "--attn-json: expected --attn-backend=NAME too"),
        ("laws = ('operation.oracle',)", ("--attn-backend=nope",), "TestMine names its own backend; got 'nope'"),
    ],
)
def test_a_suite_refuses_what_it_cannot_select(
    tmp_path: Path, body: str, options: tuple[str, ...], message: str
) -> None:
    written(tmp_path, RIGHT)
    (tmp_path / "test_mine.py").write_text(
        "import backend\nfrom attnspec.conformance import ConformanceSuite\n"
        f"class TestMine(ConformanceSuite):\n    backend = backend\n    {body}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode not in (0, 5)
    assert message in done.stdout + done.stderr


def test_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, attnspec.conformance.plugin as p; print({'numpy', 'hypothesis', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
