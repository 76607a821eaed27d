"""The command line, end to end: verdicts, exit statuses, messages, and backends that misbehave."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

from attnspec import reference
from attnspec.conformance.cli import app
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.snippet import DERIVED, snippet
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.remote.description import contract_from
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.writing import UnwritableError
from attnspec.conformance.running.planning import Plan, check_names
from attnspec.conformance.running.probe import Probe
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import OPERATIONS

pytestmark = pytest.mark.slow

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
    done = attnspec("check", written(folder, code), "--json", "r.json", "--workers", "1", *arguments, folder=folder)
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


CONVICTING = (
    "operation.oracle", "operation.rejection", "operation.broadcasting", "operation.batch-invariance",
    "attention.scale", "attention.single-key", "pooling.uniform", "masking.garbage", "semantics.causal_alignment",
)  # fmt: skip


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """A check of ATTENTION by some laws at float64: its folder, what it printed, and its report."""
    folder = tmp_path_factory.mktemp("wrong")
    laws = [argument for law in CONVICTING for argument in ("--law", law)]
    files = ("--json", "r.json", "--dtype", "float64", "--workers", "1")
    done = attnspec("check", written(folder, ATTENTION), *files, *laws, folder=folder)
    report: dict[str, Any] = json.loads((folder / "r.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert (done.returncode, report["verdict"]) == (1, "violates"), done.stderr
    return folder, done.stdout, report


def replayed(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a snippet beside the backend."""
    (folder / "snippet.py").write_text(code)
    return subprocess.run([sys.executable, "snippet.py"], cwd=folder, capture_output=True, text=True, check=False)


def test_dividing_by_d_is_shown_at_its_smallest(wrong: tuple[Path, str, dict[str, Any]]) -> None:
    folder, _, report = wrong
    (result,) = [r for r in report["results"] if (r["law"], r["status"]) == ("operation.oracle", "failed")]
    shown = result["counterexample"]
    query, key, value = (shown["arguments"][name] for name in ("query", "key", "value"))
    assert [len(query), len(query[0]), len(key), len(value[0])] == [1, 2, 2, 1]
    numbers = {x for rows in (query, key, value) for row in rows for x in row}
    assert numbers == {0.0, 1.0}
    assert shown["arguments"]["mask"] is None
    done = replayed(folder, shown["snippet"])
    assert done.returncode == 1, done.stderr
    assert "expected" in done.stdout


def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    reports = []
    for workers in ("1", "3"):
        _, report = checked(tmp_path, ATTENTION, "--workers", workers, "--law", "operation.oracle", "--law",
                            "operation.rejection", "--law", "attention.scale")  # fmt: skip
        reports.append(report["results"])
    assert reports[0] == reports[1]


def test_what_may_follow_from_the_formula_comes_last(wrong: tuple[Path, str, dict[str, Any]]) -> None:
    folder, printed, _ = wrong
    heads = (
        "\nwrong violates\n",
        "operation.oracle is violated",
        "explained by semantics rejection = unchecked: 1 law",
    )
    places = [f"\n{printed}".index(head) for head in (*heads, "What follows may be a consequence")]
    assert places == sorted(places)
    after = printed[places[-1] :]
    assert "laws of scaled_dot_product_attention: " in after
    assert all(law in after for law in ("attention.scale", "semantics.causal_alignment"))
    assert " is violated by" not in after
    law = ("--law", "attention.scale", "--dtype", "float64")
    alone = attnspec("check", "backend.py", *law, "--workers", "1", folder=folder)
    assert "attention.scale is violated" in alone.stdout
    assert "consequence" not in alone.stdout


def test_what_is_no_terminal_cuts_nothing(tmp_path: Path) -> None:
    written(tmp_path, ATTENTION)
    call = ("check", "backend.py", "--law", "operation.oracle", "--law", "operation.rejection", "--workers", "1")
    uncut, narrow = (attnspec(*call, "--dtype", "float64", folder=tmp_path, COLUMNS=columns) for columns in ("", "60"))
    (row,) = [line for line in uncut.stdout.splitlines() if line.startswith(" attention ")]
    assert row.split()[:2] == ["attention", "scaled_dot_product_attention"]
    assert "…" not in uncut.stdout[: uncut.stdout.index("limits:")] + uncut.stderr
    tables = narrow.stdout[narrow.stdout.index("· quick") : narrow.stdout.index("limits:")]
    assert max(map(len, tables.splitlines())) <= 60
    assert "…" not in tables


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
    "additive_scores": ("import os; os._exit(0)", "crashed"),
    "general_scores": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed"),
    "scaled_dot_scores": ("import time; time.sleep(600)", "hung"),
    "gaussian_scores": ("import sys; sys.exit(0)", "raised"),
    "location_scores": ("raise OSError('no such thing')", "raised"),
    "layer_norm": ("return None", "type"),
    "mean_normalization": ("return np.array('x')", "type"),
    "softmax": ("return np.full(np.shape(arguments[0]), np.nan, arguments[0].dtype)", "value"),
    "average_pooling": ("raise Mute", "raised"),
    "attention_pooling": ("raise GeneratorExit", "raised"),
    "scaled_dot_product_attention": ("raise KeyboardInterrupt", "raised"),
    "self_attention": ("raise ValueError('\\udc80')", "raised"),
    "dot_scores": ("return (arguments[0] @ np.swapaxes(arguments[1], -1, -2))[None]", "shape"),
}
"""Bodies of operations that misbehave in one backend, each with the reason that a report gives."""

MUTE = """
import numpy as np

name = "bad"

class Mute(Exception):
    def __str__(self):
        raise ValueError
"""
"""The head of that backend, with an exception that cannot be read."""

WITHOUT_ARRAYS = {
    "gives what cannot be handed back": (
        "def to_numpy(x):\n    raise ValueError('cannot')\ndef dot_scores(query, key):\n    return 1\n"
    ),
    "takes nothing": (
        "def from_numpy(x, *, device):\n    if x.ndim > 1:\n        raise ValueError('cannot')\n    return x\n"
        "def dot_scores(query, key):\n    return 1\n"
    ),
}
BRIEFLY = ("--law", "operation.oracle", "--dtype", "float64", "--hang-after", "2")


def test_what_misbehaves_violates_by_name(tmp_path: Path) -> None:
    """Each operation is judged in spite of what the others do to the process of the backend."""
    operations = (f"def {name}(*arguments, **options):\n    {body}\n" for name, (body, _) in MISBEHAVING.items())
    status, report = checked(tmp_path, MUTE + "".join(operations), *BRIEFLY)
    assert (status, report["verdict"], report["summary"]["lost"]) == (1, "violates", 0)
    failed = {r["operation"]: r for r in report["results"] if r["status"] == "failed"}
    assert {name: r["reason"] for name, r in failed.items()} == {name: why for name, (_, why) in MISBEHAVING.items()}
    assert all(r["message"] for r in failed.values())


@pytest.mark.parametrize("code", WITHOUT_ARRAYS.values(), ids=WITHOUT_ARRAYS)
def test_arrays_that_cannot_be_converted_violate_by_name(tmp_path: Path, code: str) -> None:
    status, report = checked(tmp_path, "name = 'bad'\n" + code, *BRIEFLY)
    assert (status, report["verdict"], report["summary"]["lost"]) == (1, "violates", 0)
    (failed,) = failures(report).values()
    assert failed["reason"] == "raised"
    assert failed["message"]


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
    status, report = checked(tmp_path, code, "--law", "scoring.isometry", "--law", "moments.mean-and-variance")
    assert report["summary"]["lost"] == 0
    means = [
        r["status"]
        for r in report["results"]
        if r["law"] == "moments.mean-and-variance" and r["status"] != "not-provided"
    ]
    assert means == ["passed", "passed"] or status == 1


HARMLESS = """
import atexit, os, threading, time

os.write(1, b"\\xff raw\\n")
print("hello")
atexit.register(lambda: print("bye"))
threading.Thread(target=lambda: time.sleep(5)).start()
limits = {"dtypes": ["float32", "float32"], "head_sizes": (np.int64(4), 8), "max_length": np.int64(16)}
name = "a[/b]c"
"""
"""It prints, also when it ends, leaves a thread, declares a dtype twice, NumPy's integers, and markup in its name."""


def test_what_does_no_harm_conforms(tmp_path: Path) -> None:
    status, report = checked(tmp_path, RIGHT + HARMLESS, "--law", "operation.oracle")
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
    call = ("check", written(tmp_path, RIGHT), "--law", "operation.shape", "--dtype", "float64", "--workers", "1")
    done = attnspec(*call, option, "/dev/full", folder=tmp_path)
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


def failures(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Failures of a report by law."""
    return {r["law"]: r for r in report["results"] if r["status"] == "failed"}


@pytest.mark.parametrize("law", ["operation.broadcasting", "operation.rejection", "semantics.causal_alignment"])
def test_a_snippet_prints_the_inputs_of_the_report(
    wrong: tuple[Path, str, dict[str, Any]], tmp_path: Path, law: str
) -> None:
    folder, _, report = wrong
    if law == "semantics.causal_alignment":
        folder, (_, report) = tmp_path, checked(tmp_path, SHIFTED, "--law", law, "--dtype", "float64")
    found = failures(report)[law]["counterexample"]
    assert f"\n{DERIVED}\n" in found["snippet"]
    done = replayed(folder, found["snippet"])
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


def test_snippets_blame_whoever_is_wrong(wrong: tuple[Path, str, dict[str, Any]]) -> None:
    folder, _, report = wrong
    found = failures(report)
    assert set(found) >= {"operation.oracle", "operation.rejection", "attention.scale"}
    for law, r in found.items():
        done = replayed(folder, r["counterexample"]["snippet"].replace("'backend.py'", "'reference'"))
        assert done.returncode == 0, (law, done.stdout, done.stderr)


REFUSED = {
    ("nosuch",): "backend 'nosuch': expected a registered name",
    ("nofile.py",): "backend 'nofile.py': cannot be imported: FileNotFoundError",
    ("empty.py",): "backend 'empty.py': expected operations such as dot_scores",
    ("broken.py",): "backend 'broken.py': cannot be imported: ZeroDivisionError: division by zero",
    ("leaves.py",): "backend 'leaves.py': cannot be imported: SystemExit: 3",
    ("dies.py",): "backend 'dies.py': its import ended the process with status 9",
    ("nameless.py",): "backend 'nameless.py': name: expected a text; got None",
    ("limits.py",): "backend 'limits.py': limits: expected fields among",
    ("backend.py:Nope",): "backend 'backend.py:Nope': expected an attribute 'Nope'",
    ("backend.py", "device", "cuda"): "device: expected one of cpu; got 'cuda'",
    ("backend.py", "operations", "softmax"): "--operation: expected one of dot_scores, which it provides",
    ("backend.py", "dtypes", "float16"): "--dtype: expected one of float64, float32, its limits",
}


def with_unusable_backends(folder: Path) -> None:
    """Backends in files, all but the first of which nobody can judge."""
    written(folder, RIGHT)
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
        (folder / f"{name}.py").write_text(code)


@pytest.mark.parametrize(("given", "message"), REFUSED.items(), ids=[" ".join(a) for a in REFUSED])
def test_a_backend_that_cannot_be_judged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], message: str
) -> None:
    """The plan of a run, made as the command makes it, without the workers."""
    with_unusable_backends(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = Settings()
    if given[1:]:
        field, value = given[1:]
        changed: dict[str, Any] = {field: value if field == "device" else (value,)}
        settings = replace(settings, **changed)
    probe = Probe(given[0], settings.device)
    try:
        with pytest.raises(BackendError) as raised:
            Plan.of(contract_from(probe.description(), probe.backend), settings)
    finally:
        probe.close()
    assert message in str(raised.value)


UNUSABLE = {
    ("check", "broken.py"): "backend 'broken.py': cannot be imported: ZeroDivisionError: division by zero",
    ("check", "backend.py", "--law", "scoring.isometri"): "scoring.isometry",
    ("spec", "--html", "no/such/folder.html"): "--html: expected a file that can be written; got 'no/such/folder.html'",
    ("check", "workers.py", "--in-process"): "nothing was judged: 3 worker processes ended while they imported",
    ("check", "fails.py", "--in-process"): "nothing was judged: ",
    ("check", "waits.py", "--in-process"): "nothing was judged: worker processes did not import the backend within 6 s",
}


@pytest.mark.parametrize(("arguments", "message"), UNUSABLE.items(), ids=[" ".join(a) for a in UNUSABLE])
def test_what_cannot_be_used_is_said_in_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    with_unusable_backends(tmp_path)
    workers = ("--workers", "1") if arguments[1] in ("broken.py", "waits.py") else ()
    seconds = "6" if "waits.py" in arguments else "120"
    done = attnspec(*arguments, *workers, folder=tmp_path, ATTNSPEC_IMPORT_SECONDS=seconds)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


MISNAMED = {
    ("operations", "softmaxx"): "--operation: expected one of",
    ("operations", "SDPA"): "--operation: expected one of scaled_dot_product_attention, ",
    ("laws", "scoring.isometri"): "scoring.isometry",
    ("profile", "slow"): "--profile: expected one of quick, full, release; got 'slow'",
}


@pytest.mark.parametrize(("given", "message"), MISNAMED.items())
def test_a_setting_that_does_not_exist_is_refused(given: tuple[str, str], message: str) -> None:
    field, value = given
    changed: dict[str, Any] = {field: value if field == "profile" else (value,)}
    settings = replace(Settings(), **changed)
    with pytest.raises(BackendError) as raised:
        check_names(settings, "--")
    assert message in str(raised.value)


REFUSED_AT_ONCE = {
    ("check", "backend.py", "--workers", "0"): "--workers: expected at least 1; got 0",
    ("check", "backend.py", "--hang-after", "nan"): "--hang-after: expected more than 0 and at most 86,400 seconds",
    ("check", "backend.py", "--hang-after", "1e12"): "--hang-after: expected more than 0 and at most 86,400 seconds",
    ("check", "backend.py", "--json", "no/such/folder.json"): "--json: expected a file that can be written",
    ("spec", "--html", "no/such/folder.html"): "--html: expected a file that can be written; got 'no/such/folder.html'",
    ("spec", "--html", "one", "--markdown", "./one"): "--html: expected another file than that of --markdown",
    ("mutants", "--json", "no/such/folder.json"): "--json: expected a file that can be written; got 'no/such/",
    ("mutants", "--json", "."): "--json: expected a file that can be written; got '.': Is a directory",
    ("mutants", "--only", "Base 1000"): "--only: expected one of base 1000, ",
    ("mutants", "--only", "base 100"): "--only: expected one of base 1000, ",
    ("mutants", "--only", "nosuch*"): "; got 'nosuch*'",
    ("mutants", "--keep", "empty.py"): "--keep: empty.py: expected trials that 'attnspec mutants",
    ("show", "softmaxx"): "show: expected one of softmax",
    ("show", "LSTM_Cell"): "show: expected one of lstm_cell, ",
    ("list", "things"): "list: expected one of operations, laws, backends, mutants; got 'things'",
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED_AT_ONCE.items(), ids=[" ".join(a) for a in REFUSED_AT_ONCE])
def test_what_starts_no_process_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    with_unusable_backends(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    # What `main` says of both exceptions, and its status, are the same for every message.
    said = str(done.exception) if isinstance(done.exception, BackendError | UnwritableError) else done.stderr
    assert done.exit_code == 2 or not isinstance(done.exception, SystemExit)
    assert message in said
    assert len(said.strip().splitlines()) == 1


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
    def printed(*arguments: str) -> str:
        done = CliRunner(env={"COLUMNS": ""}).invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.output

    assert "masking.future-invariance" in printed("list", "laws")
    assert "pytorch" in printed("list", "backends")
    operations = printed("list", "operations")
    assert all(o.name in operations and o.statement in operations for o in OPERATIONS.values())
    shown = printed("show", "scaled_dot_product_attention")
    assert "S0(6)" in shown
    assert "attention.scale-trade" in shown
    assert "Var" in printed("show", "moments.mean-and-variance")
    # Once as users call it: what is no terminal cuts nothing.
    assert attnspec("list", "operations", folder=tmp_path, COLUMNS="").stdout == operations


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
