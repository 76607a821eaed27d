"""The command line, end to end: verdicts, exit statuses, messages, and backends that misbehave."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from attnspec.conformance.remote.loading import contract_of
from attnspec.conformance.reporting.writing import UnwritableError
from attnspec.conformance.running.planning import Plan, check_names
from attnspec.conformance.running.probe import Probe
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import OPERATIONS

from .test_report import SCHEMA

pytestmark = pytest.mark.slow

RIGHT = """
import numpy as np

name = "right"

def dot_scores(query, key):
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise ValueError("sizes differ")
    return query @ np.swapaxes(key, -1, -2)
"""

WRONG_ATTENTION = """
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
    environment = {**os.environ, "COLUMNS": "200", "PYTHONWARNINGS": "default", **variables}
    command = [sys.executable, "-P", "-m", "attnspec.conformance.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=300, check=False
    )


def write_backend(folder: Path, code: str) -> str:
    (folder / "backend.py").write_text(code)
    return "backend.py"


def read_report(path: Path) -> dict[str, Any]:
    """A report, validated by its schema."""
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    return report


def run_check(folder: Path, code: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = attnspec(
        "check", write_backend(folder, code), "--json", "r.json", "--workers", "1", *arguments, folder=folder
    )
    assert "Traceback" not in done.stderr, done.stderr
    report = read_report(folder / "r.json")
    assert report["exit_status"] == done.returncode
    return done.returncode, report


def test_a_right_backend_conforms(tmp_path: Path) -> None:
    status, report = run_check(tmp_path, RIGHT)
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


VIOLATED_LAWS = (
    "operation.oracle", "operation.rejection", "operation.broadcast-equals-repeat", "operation.batch-invariance",
    "attention.unbiased-scale", "attention.single-key-returns-its-value", "pooling.equal-keys-give-mean",
    "masking.masked-keys-ignored", "semantics.causal_alignment",
)  # fmt: skip


@pytest.fixture(scope="module")
def wrong_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """The folder, output and report of a check of WRONG_ATTENTION at float64."""
    folder = tmp_path_factory.mktemp("wrong")
    laws = [argument for law in VIOLATED_LAWS for argument in ("--law", law)]
    files = ("--json", "r.json", "--dtype", "float64", "--workers", "1")
    done = attnspec("check", write_backend(folder, WRONG_ATTENTION), *files, *laws, folder=folder)
    report = read_report(folder / "r.json")
    assert (done.returncode, report["verdict"]) == (1, "violates"), done.stderr
    return folder, done.stdout, report


def run_snippet(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "snippet.py").write_text(code)
    return subprocess.run([sys.executable, "snippet.py"], cwd=folder, capture_output=True, text=True, check=False)


def test_the_counterexample_of_a_wrong_scale_is_the_smallest(wrong_run: tuple[Path, str, dict[str, Any]]) -> None:
    folder, _, report = wrong_run
    (result,) = [r for r in report["results"] if (r["law"], r["status"]) == ("operation.oracle", "failed")]
    counterexample = result["counterexample"]
    query, key, value = (counterexample["arguments"][name] for name in ("query", "key", "value"))
    assert [len(query), len(query[0]), len(key), len(value[0])] == [1, 2, 2, 1]
    numbers = {x for rows in (query, key, value) for row in rows for x in row}
    assert numbers == {0.0, 1.0}
    assert counterexample["arguments"]["mask"] is None
    done = run_snippet(folder, counterexample["snippet"])
    assert done.returncode == 1, done.stderr
    assert "expected" in done.stdout


def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    reports = []
    for workers in ("1", "3"):
        _, report = run_check(tmp_path, WRONG_ATTENTION, "--workers", workers, "--law", "operation.oracle", "--law",
                            "operation.rejection", "--law", "attention.unbiased-scale")  # fmt: skip
        reports.append(report["results"])
    assert reports[0] == reports[1]


def test_consequences_of_the_formula_are_printed_last(wrong_run: tuple[Path, str, dict[str, Any]]) -> None:
    folder, printed, _ = wrong_run
    heads = (
        "\nwrong violates\n",
        "operation.oracle is violated",
        "explained by semantics rejection = unchecked: 1 law",
    )
    places = [f"\n{printed}".index(head) for head in (*heads, "Possible consequences")]
    assert places == sorted(places)
    after = printed[places[-1] :]
    assert "laws of scaled_dot_product_attention: " in after
    assert all(law in after for law in ("attention.unbiased-scale", "semantics.causal_alignment"))
    assert " is violated by" not in after
    law = ("--law", "attention.unbiased-scale", "--dtype", "float64")
    alone = attnspec("check", "backend.py", *law, "--workers", "1", folder=folder)
    assert "attention.unbiased-scale is violated" in alone.stdout
    assert "consequence" not in alone.stdout


def test_output_to_a_file_is_not_cut(tmp_path: Path) -> None:
    write_backend(tmp_path, WRONG_ATTENTION)
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
        "check", write_backend(tmp_path, RIGHT), "--law", "operation.oracle", "--html", "r.html", "--junit", "r.xml",
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
"""Bodies of misbehaving operations of one backend, with the reasons in the report."""

MUTE_EXCEPTION = """
import numpy as np

name = "bad"

class Mute(Exception):
    def __str__(self):
        raise ValueError
"""
"""The head of that backend, with an exception whose message cannot be read."""

FAILING_CONVERSIONS = {
    "gives what cannot be handed back": (
        "def to_numpy(x):\n    raise ValueError('cannot')\ndef dot_scores(query, key):\n    return 1\n"
    ),
    "takes nothing": (
        "def from_numpy(x, *, device):\n    if x.ndim > 1:\n        raise ValueError('cannot')\n    return x\n"
        "def dot_scores(query, key):\n    return 1\n"
    ),
}
GPU = """
limits = {"devices": ("cuda",)}

def from_numpy(x, *, device):
    if device != "cuda":
        raise ValueError(f"device: expected cuda; got {device}")
    return x.copy()
"""
"""The end of a backend that declares only CUDA; its arrays are NumPy's."""

ONE_LAW = ("--law", "operation.oracle", "--dtype", "float64", "--hang-after", "2")


def test_every_misbehaving_operation_violates_with_its_reason(tmp_path: Path) -> None:
    """Crashes and hangs of one operation do not keep the others from being judged."""
    operations = (f"def {name}(*arguments, **options):\n    {body}\n" for name, (body, _) in MISBEHAVING.items())
    status, report = run_check(tmp_path, MUTE_EXCEPTION + "".join(operations), *ONE_LAW)
    assert (status, report["verdict"], report["summary"]["lost"]) == (1, "violates", 0)
    failed = {r["operation"]: r for r in report["results"] if r["status"] == "failed"}
    assert {name: r["reason"] for name, r in failed.items()} == {name: why for name, (_, why) in MISBEHAVING.items()}
    assert all(r["message"] for r in failed.values())


@pytest.mark.parametrize("code", FAILING_CONVERSIONS.values(), ids=FAILING_CONVERSIONS)
def test_arrays_that_cannot_be_converted_violate_by_name(tmp_path: Path, code: str) -> None:
    status, report = run_check(tmp_path, "name = 'bad'\n" + code, *ONE_LAW)
    assert (status, report["verdict"], report["summary"]["lost"]) == (1, "violates", 0)
    (failed,) = failures_by_law(report).values()
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
    _, report = run_check(tmp_path, code, "--law", "scoring.isometry-invariance", "--law", "moments.mean-and-variance")
    assert report["summary"]["lost"] == 0
    statuses = [
        r["status"]
        for r in report["results"]
        if r["law"] == "moments.mean-and-variance" and r["status"] != "not-provided"
    ]
    assert statuses == ["passed", "passed"]


HARMLESS_CODE = """
import atexit, os, threading, time

os.write(1, b"\\xff raw\\n")
print("hello")
atexit.register(lambda: print("bye"))
threading.Thread(target=lambda: time.sleep(5)).start()
limits = {"dtypes": ["float32", "float32"], "head_sizes": (np.int64(4), 8), "max_length": np.int64(16)}
name = "a[/b]c"
"""
"""Output, a running thread, a dtype declared twice, integers of NumPy, markup in the name."""


def test_harmless_side_effects_do_not_matter(tmp_path: Path) -> None:
    status, report = run_check(tmp_path, RIGHT + HARMLESS_CODE, "--law", "operation.oracle")
    assert (status, report["verdict"]) == (0, "conforms")


def test_files_of_the_current_folder_do_not_influence_the_judge(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_collection_modifyitems(items):\n    items[:] = []\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nonsense\n")
    for module in ("queue", "token", "select", "numpy"):
        (tmp_path / f"{module}.py").write_text("1 / 0\n")
    assert run_check(tmp_path, RIGHT, "--law", "operation.oracle")[0] == 0


def test_backends_in_modules_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "backend.py").write_text(RIGHT)
    assert attnspec("check", "mine.backend", "--law", "operation.oracle", folder=tmp_path).returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_the_command_works_with_any_terminal_encoding(tmp_path: Path, encoding: str) -> None:
    arguments = ("check", write_backend(tmp_path, RIGHT), "--law", "operation.oracle")
    done = attnspec(*arguments, folder=tmp_path, PYTHONIOENCODING=encoding)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_reports_are_in_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    write_backend(tmp_path, RIGHT.replace('"right"', '"right ± √d"'))
    files = ("--json", "r.json", "--html", "r.html", "--junit", "r.xml")
    done = attnspec("check", "backend.py", "--law", "operation.shape", *files, folder=tmp_path, **locale)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "right ± √d conforms" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["backend"]["name"] == "right ± √d"
    spec = attnspec("spec", "--html", "s.html", "--markdown", "s.md", folder=tmp_path, **locale)
    assert (spec.returncode, "√" in (tmp_path / "s.md").read_text(encoding="utf-8")) == (0, True), spec.stderr


def test_no_control_character_of_a_backend_reaches_the_terminal(tmp_path: Path) -> None:
    code = RIGHT.replace('"right"', r'"right\x1b[31m"').replace('"sizes differ"', r'"sizes\x1b[2J differ"')
    code = (
        code.replace("    if min(", "    if query.shape[-1] > 2 or min(")
        + r"notes = {'a\x07': 'b\x1b]0;title\x07'}"
        + "\n"
    )
    done = attnspec(
        "check", write_backend(tmp_path, code), "--law", "operation.oracle", "--html", "r.html", folder=tmp_path
    )
    assert done.returncode == 1
    assert r"ValueError: sizes\x1b[2J differ" in done.stdout
    for text in (done.stdout, done.stderr, (tmp_path / "r.html").read_text(encoding="utf-8")):
        assert not {c for c in text if not c.isprintable()} - {"\n"}
    unusable = attnspec("check", write_backend(tmp_path, r"raise ValueError('\x1b[2J')"), folder=tmp_path)
    assert (unusable.returncode, "\x1b" in unusable.stderr, r"\x1b[2J" in unusable.stderr) == (2, False, True)


def test_an_error_of_attnspec_itself_is_no_verdict(tmp_path: Path) -> None:
    code = "from attnspec.conformance import cli\ncli.app = lambda: 1 / 0\ncli.main()\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.endswith(
        "attnspec: an error of attnspec, so no verdict; please report it with the lines above\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("option", ["--json", "--html", "--junit"])
def test_a_report_that_cannot_be_written_is_shown_all_the_same(tmp_path: Path, option: str) -> None:
    call = ("check", write_backend(tmp_path, RIGHT), "--law", "operation.shape", "--dtype", "float64", "--workers", "1")
    done = attnspec(*call, option, "/dev/full", folder=tmp_path)
    assert done.returncode == 2
    assert f"{option}: '/dev/full' could not be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "right conforms" in done.stdout


def test_sigterm_interrupts_as_ctrl_c_does(tmp_path: Path) -> None:
    slow_call = "    import time, pathlib\n    pathlib.Path('called').touch()\n    time.sleep(0.2)\n    if min"
    backend = write_backend(tmp_path, RIGHT.replace("    if min", slow_call))
    command = [sys.executable, "-P", "-m", "attnspec.conformance.cli", "check", backend, "--json", "r.json"]
    command += ["--sandbox", "off"]  # the backend leaves a file
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 120
        while not (tmp_path / "called").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        run.terminate()
        output, messages = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "interrupted; the report has what was judged" in messages
    report = json.loads((tmp_path / "r.json").read_text())
    lost = [r for r in report["results"] if r["status"] == "lost"]
    assert report["verdict"] == "unusable"
    assert {(r["reason"], r["message"]) for r in lost} == {("interrupted", "interrupted")}
    assert f"interrupted, {len(lost):,} laws have no verdict" in output
    assert "lost:" not in output


def test_a_lost_case_has_its_reason(tmp_path: Path) -> None:
    code = RIGHT + "class Odd(np.ndarray):\n    shape = property(lambda self: 1 / 0)\n"
    code += "_scores = dot_scores\ndef dot_scores(query, key):\n    return _scores(query, key).view(Odd)\n"
    status, report = run_check(tmp_path, code, "--law", "operation.oracle", "--in-process")
    assert (status, report["verdict"]) == (2, "unusable")
    lost = [r["message"] for r in report["results"] if r["status"] == "lost"]
    assert len(lost) == 2
    assert all("checking operation.oracle: ZeroDivisionError: division by zero in judging/" in why for why in lost)


SHIFTED_ATTENTION = WRONG_ATTENTION.replace("scores.shape[-2:], dtype", "scores.shape[-2:], 1, dtype").replace(
    "query.shape[-1], query.dtype)", "query.shape[-1] ** 0.5, query.dtype)"
)
"""Right but for the causal mask, where every query sees one key too many."""


def failures_by_law(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {r["law"]: r for r in report["results"] if r["status"] == "failed"}


@pytest.mark.parametrize("law", ["operation.rejection", "semantics.causal_alignment"])
def test_a_snippet_prints_the_inputs_of_the_report(
    wrong_run: tuple[Path, str, dict[str, Any]], tmp_path: Path, law: str
) -> None:
    folder, _, report = wrong_run
    if law == "semantics.causal_alignment":
        folder, (_, report) = tmp_path, run_check(tmp_path, SHIFTED_ATTENTION, "--law", law, "--dtype", "float64")
    counterexample = failures_by_law(report)[law]["counterexample"]
    assert f"\n{DERIVED}\n" in counterexample["snippet"]
    done = run_snippet(folder, counterexample["snippet"])
    assert done.returncode == 1, done.stderr
    for name in ("query", "mask", "causal"):
        value = counterexample["arguments"][name]
        expected = np.array(value) if isinstance(value, list) else value
        assert f"\n{name} = {expected}\n" in done.stdout
    if law == "semantics.causal_alignment":
        assert counterexample["arguments"]["causal"] is True
        assert len(counterexample["arguments"]["query"]) != len(counterexample["arguments"]["key"])


@pytest.mark.parametrize(
    ("operation", "budget", "compares"),
    [("dot_scores", [[1e-6, 1e-6]], True), ("dot_scores", [[1.0, 1e-6]], False), ("causal_mask", [[0, 0]], False)],
)
def test_a_snippet_compares_results_if_it_suffices(operation: str, budget: list[list[float]], compares: bool) -> None:
    chosen = OPERATIONS[operation]
    values: dict[str, Any] = {"query": np.ones((1, 1)), "key": np.ones((2, 1)), "n": 1, "m": 2}
    values = {name: values[name] for name in chosen.call.names if name in values}
    arguments = Arguments(chosen, values)
    subject = Subject(reference, Contract.of(reference, "reference"), chosen, "float64", "cpu")
    kind = float if chosen.float_result else bool
    expected, got = np.zeros((1, 2), kind), np.array([[0, 0.1]]).astype(kind)
    violation = Violation("", expected=expected, got=got, budget=np.array(budget), index=(0, 1), arguments=arguments)
    text = snippet(subject, CHECKS["operation.oracle"][0], arguments, violation, 0)
    assert ("replay(" not in text) == compares
    assert "# The law" not in text


def test_snippets_acquit_the_reference(wrong_run: tuple[Path, str, dict[str, Any]]) -> None:
    folder, _, report = wrong_run
    failed = failures_by_law(report)
    assert set(failed) >= {"operation.oracle", "operation.rejection", "attention.unbiased-scale"}
    for law, r in failed.items():
        done = run_snippet(folder, r["counterexample"]["snippet"].replace("'backend.py'", "'reference'"))
        assert done.returncode == 0, (law, done.stdout, done.stderr)


REFUSED = {
    ("nosuch",): "backend 'nosuch': expected a registered name",
    ("nofile.py",): "backend 'nofile.py': cannot be imported: FileNotFoundError",
    ("empty.py",): "backend 'empty.py': expected operations such as dot_scores",
    ("broken.py",): "backend 'broken.py': cannot be imported: ZeroDivisionError: division by zero",
    ("leaves.py",): "backend 'leaves.py': cannot be imported: SystemExit: 3",
    ("dies.py",): "backend 'dies.py': its import ended the process with status 9",
    ("nameless.py",): "backend 'nameless.py': name: expected a non-empty string, since the function dot_scores makes",
    ("limits.py",): "backend 'limits.py': limits: expected fields among",
    ("backend.py:Nope",): "backend 'backend.py:Nope': expected an attribute 'Nope'",
    ("backend.py", "device", "cuda"): "device: expected one of cpu; got 'cuda'",
    ("backend.py", "operations", "softmax"): "--operation: expected one of dot_scores, which the backend provides",
    ("backend.py", "dtypes", "float16"): "--dtype: expected one of float64, float32, the backend's limits",
}


def write_unusable_backends(folder: Path) -> None:
    """Write ``backend.py``, which can be judged, and files that cannot."""
    write_backend(folder, RIGHT)
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


@pytest.mark.parametrize(("selection", "message"), REFUSED.items(), ids=[" ".join(a) for a in REFUSED])
def test_a_backend_that_cannot_be_judged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selection: tuple[str, ...], message: str
) -> None:
    """The run is planned as by the command, without worker processes."""
    write_unusable_backends(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = Settings()
    if selection[1:]:
        field, value = selection[1:]
        changed: dict[str, Any] = {field: value if field == "device" else (value,)}
        settings = replace(settings, **changed)
    probe = Probe(selection[0], settings.device)
    try:
        with pytest.raises(BackendError) as raised:
            Plan.of(contract_from(probe.description(), probe.backend), settings)
    finally:
        probe.close()
    assert message in str(raised.value)


def test_the_only_declared_device_is_judged_without_an_option(tmp_path: Path) -> None:
    (tmp_path / "gpu.py").write_text(RIGHT + GPU, encoding="utf-8")
    done = attnspec("check", "gpu.py", "--json", "r.json", *ONE_LAW, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["device"] == "cuda"


def test_a_misspelt_operation_is_named_in_the_notes() -> None:
    backend = SimpleNamespace(name="misspelt", softmax=np.exp, layernorm=np.exp, normalise=np.exp)
    assert contract_of(backend, "misspelt", "cpu").notes == {
        "layernorm": "not tried, because no operation has this name; the nearest is layer_norm"
    }


REFUSED_RUNS = {
    ("check", "broken.py"): "backend 'broken.py': cannot be imported: ZeroDivisionError: division by zero",
    ("check", "backend.py", "--law", "scoring.isometri"): "scoring.isometry-invariance",
    ("spec", "--html", "no/such/folder.html"): "--html: expected a file that can be written; got 'no/such/folder.html'",
    ("check", "workers.py", "--in-process"): "nothing was judged: 3 worker processes ended while they imported",
    ("check", "fails.py", "--in-process"): "nothing was judged: ",
    ("check", "waits.py", "--in-process"): "nothing was judged: worker processes did not import the backend within 6 s",
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED_RUNS.items(), ids=[" ".join(a) for a in REFUSED_RUNS])
def test_what_cannot_be_judged_is_refused_in_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    write_unusable_backends(tmp_path)
    workers = ("--workers", "1") if arguments[1] in ("broken.py", "waits.py") else ()
    seconds = "6" if "waits.py" in arguments else "120"
    done = attnspec(*arguments, *workers, folder=tmp_path, ATTNSPEC_IMPORT_SECONDS=seconds)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


UNKNOWN_NAMES = {
    ("operations", "softmaxx"): "--operation: expected one of",
    ("operations", "SDPA"): "--operation: expected one of scaled_dot_product_attention, ",
    ("laws", "scoring.isometri"): "scoring.isometry-invariance",
    ("profile", "slow"): "--profile: expected one of quick, full, release; got 'slow'",
}


@pytest.mark.parametrize(("setting", "message"), UNKNOWN_NAMES.items())
def test_a_setting_that_does_not_exist_is_refused(setting: tuple[str, str], message: str) -> None:
    field, value = setting
    changed: dict[str, Any] = {field: value if field == "profile" else (value,)}
    settings = replace(Settings(), **changed)
    with pytest.raises(BackendError) as raised:
        check_names(settings, "--")
    assert message in str(raised.value)


WRONG_ARGUMENTS = {
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
    ("show", "MLA"): "got 'MLA'; it stands in the text of latent_attention",
    ("show", "LSTM_Cell"): "show: expected one of lstm_cell, ",
    ("list", "things"): "list: expected one of operations, laws, backends, mutants, questions, precisions; got",
}


@pytest.mark.parametrize(("arguments", "expected"), WRONG_ARGUMENTS.items(), ids=[" ".join(a) for a in WRONG_ARGUMENTS])
def test_wrong_arguments_are_refused_in_one_line_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    write_unusable_backends(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    # `main` prints both exceptions in one line and exits with 2, whatever their message.
    message = str(done.exception) if isinstance(done.exception, BackendError | UnwritableError) else done.stderr
    assert done.exit_code == 2 or not isinstance(done.exception, SystemExit)
    assert expected in message
    assert len(message.strip().splitlines()) == 1


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


def test_list_and_show_print_operations_laws_and_backends(tmp_path: Path) -> None:
    def printed(*arguments: str) -> str:
        done = CliRunner(env={"COLUMNS": ""}).invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.output

    assert "masking.future-invariance" in printed("list", "laws")
    assert "pytorch" in printed("list", "backends")
    operations = printed("list", "operations")
    assert all(o.name in operations and o.statement in operations for o in OPERATIONS.values())
    operation_page = printed("show", "scaled_dot_product_attention")
    assert "S0(6)" in operation_page
    assert "attention.query-key-scale-exchange" in operation_page
    assert "Var" in printed("show", "moments.mean-and-variance")
    # Once as users call it: output that is no terminal is not cut.
    assert attnspec("list", "operations", folder=tmp_path, COLUMNS="").stdout == operations


def test_a_subclass_of_the_suite_runs_under_pytest(tmp_path: Path) -> None:
    write_backend(tmp_path, WRONG_ATTENTION)
    (tmp_path / "test_mine.py").write_text(
        "import backend\nfrom attnspec.conformance import ConformanceSuite\n"
        "class TestMine(ConformanceSuite):\n    backend = backend\n    laws = ('operation.oracle', 'operation.shape')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "operation.oracle is violated by scaled_dot_product_attention (float64)" in done.stdout
    assert "2 failed" in done.stdout


def test_pytest_judges_a_backend_by_its_name(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "attnspec.conformance"),
        *("-o", "consider_namespace_packages=true", f"--attn-backend={write_backend(tmp_path, RIGHT)}"),
        *("--attn-law=operation.oracle", "--attn-json=r.json"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verdict"] == "conforms"
    assert report["seconds"] > 0


UNKNOWN_PYTEST_OPTIONS = {
    "--attn-operation=foo": "operation: expected one of",
    "--attn-law=nonsense": "law: expected one of",
    "--attn-dtype=bfloat16": "--dtype: expected one of float64, float32, the backend's limits; got 'bfloat16'",
    "--attn-device=cuda": "--device: expected one of cpu, the backend's limits; got 'cuda'",
    "--attn-profile=fast": "profile: expected one of",
}


@pytest.mark.parametrize(("option", "message"), UNKNOWN_PYTEST_OPTIONS.items())
def test_pytest_refuses_unknown_selections(tmp_path: Path, option: str, message: str) -> None:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "attnspec.conformance"),
        *("-o", "consider_namespace_packages=true", f"--attn-backend={write_backend(tmp_path, RIGHT)}", option),
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
        ("operations = ('softmax',)", (), "--operation: expected one of dot_scores, which the backend provides"),
        ("operations = 'dot_scores'", (), "TestMine.operations: expected a tuple of names; got 'dot_scores'"),
        ("laws = ('operation.oracle',)", ("--attn-json=r.json",), "--attn-json: expected --attn-backend=NAME, too"),
        ("laws = ('operation.oracle',)", ("--attn-backend=nope",), "TestMine names its own backend; got 'nope'"),
    ],
)
def test_a_suite_refuses_unknown_selections(tmp_path: Path, body: str, options: tuple[str, ...], message: str) -> None:
    write_backend(tmp_path, RIGHT)
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
