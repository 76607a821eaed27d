"""The project does what its documentation says."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.judging.results import Status
from attnspec.conformance.judging.violation import Reason
from attnspec.spec import OPERATIONS, QUESTIONS, Limits
from attnspec.spec.contract.precision import CLASSES, MODIFIERS

from .modules import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted(page for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.md"))


SCRIPT = re.compile(r"^    import sys\n.*?^    sys\.exit\(.*?$", re.DOTALL | re.MULTILINE)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_table_of_errata_is_up_to_date() -> None:
    assert runpy.run_path(str(ROOT / "docs" / "errata.py"))["table"]() == read("docs/errata.md")


def test_the_page_of_schedules_is_up_to_date() -> None:
    assert runpy.run_path(str(ROOT / "docs" / "schedules.py"))["page"]() == read("docs/schedules.md")


def test_the_page_of_complexity_is_up_to_date() -> None:
    assert runpy.run_path(str(ROOT / "docs" / "complexity.py"))["table"]() == read("docs/complexity.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_named_files_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:spec|reference|backends|conformance|tests|docs|benchmarks|examples)/[\w/.]*)`", page.read_text()
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_page_of_the_pytorch_backend_counts_its_operations() -> None:
    pytest.importorskip("torch")
    from attnspec.backends import pytorch

    held = sum(hasattr(pytorch, name) for name in OPERATIONS)
    counted = f"holds {held} of the {len(OPERATIONS)} operations"
    assert counted in read("docs/pytorch.md"), f"docs/pytorch.md: expected “{counted}” in its first paragraph"


def test_every_choice_that_a_backend_declares_is_documented() -> None:
    page = read("docs/conventions.md")
    names = [*(f.name for f in fields(Limits)), *QUESTIONS, *(c for q in QUESTIONS.values() for c in q.choices)]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_precision_class_is_documented() -> None:
    page = read("docs/precision.md")
    assert [name for name in (*CLASSES, *MODIFIERS) if f"`{name}`" not in page] == []


def test_every_status_is_documented() -> None:
    page = read("docs/reports.md")
    assert [s for s in Status if f"`{s}`" not in page] == []
    assert [r for r in Reason if f"`{r}`" not in page] == []


@pytest.mark.slow
def test_the_adapter_of_the_readme_conforms_once_it_divides_by_the_root(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (code,) = re.findall(r"```python\n(# mine\.py.*?)```", read("README.md"), re.DOTALL)
    _, body = code.split("class Mine(TorchBackend):\n")
    assert len([line for line in body.splitlines() if line]) == 10  # docs/judge.md promises ten lines
    assert code.count("/ query.shape[-1]\n") == 1
    right = code.replace("/ query.shape[-1]\n", "/ query.shape[-1] ** 0.5\n")
    (tmp_path / "mine.py").write_text(right, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mine conforms" in done.stdout
    assert "deviation rejection: unchecked" in done.stdout
    unchecked = right.replace(', "rejection": "unchecked"', "")
    assert unchecked != right
    (tmp_path / "mine.py").write_text(unchecked, encoding="utf-8")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert '"rejection": "unchecked"' in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_the_readme_shows_what_its_adapter_gets(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    ((code,), (verdict,)) = (
        re.findall(rf"{what}.*?)```", read("README.md"), re.DOTALL)
        for what in (r"```python\n(# mine\.py\n", r"```\n(diagnosis of")
    )
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "mine.py"]
    wide = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=wide)
    assert done.returncode == 1, done.stderr
    assert verdict in done.stdout
    snippet = SCRIPT.search(done.stdout)
    assert snippet
    (tmp_path / "snippet.py").write_text(re.sub(r"^    ", "", snippet[0], flags=re.MULTILINE), encoding="utf-8")
    again = subprocess.run([sys.executable, "snippet.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert again.stdout.startswith("expected")


def test_the_readme_judges_a_result() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", read("README.md"), re.DOTALL)
    assert 'device="cuda"' in code
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for right in (True, False):
        names = {"my_kernel": lambda *rows, causal, right=right: sdpa(*rows, is_causal=right)}
        with nullcontext() if right else pytest.raises(AssertionError, match="times its budget"):
            exec(code.replace('"cuda"', '"cpu"'), names)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=lambda p: p.name)
def test_a_page_has_at_most_two_thousand_words(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= 2000


def test_contributing_and_changes_are_short() -> None:
    assert len(read("CONTRIBUTING.md").encode()) <= 4000
    assert len(read("CHANGELOG.md").splitlines()) <= 60


def test_the_readme_names_the_sessions() -> None:
    sessions = re.findall(r"^def (\w+)\(session: nox", read("noxfile.py"), re.MULTILINE)
    for named in re.findall(
        r"nox -s ([a-z ]+?)\s*(?:#|`|$)", read("README.md") + read("CONTRIBUTING.md"), re.MULTILINE
    ):
        assert set(named.split()) <= set(sessions)
    commands = re.findall(r"^session (\w+)", read(".ci/run"), re.MULTILINE)
    assert {"tests", "conformance"} < set(commands) <= set(sessions)


EXAMPLE = re.compile(
    r"```python\n(?P<code># (?P<file>\w+\.py)\n.*?)```.*?`attnspec (?P<command>check [^`]+)`.*?```\n(?P<shown>.*?)```",
    re.DOTALL,
)
VERDICTS = {m["file"]: m.groupdict() for m in EXAMPLE.finditer(read("docs/verdict-examples.md"))}


def test_the_page_on_verdicts_has_eleven_examples() -> None:
    assert len(VERDICTS) == read("docs/verdict-examples.md").count("```python\n# ") == 11


@pytest.mark.slow
@pytest.mark.parametrize("file", VERDICTS)
def test_the_page_on_verdicts_shows_what_is_said(file: str, tmp_path: Path) -> None:
    example = VERDICTS[file]
    (tmp_path / file).write_text(example["code"], encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", *example["command"].split(), "--workers", "1"]
    wide = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=wide)
    assert done.returncode == 1, done.stderr
    printed, script = done.stdout, SCRIPT.search(done.stdout)
    if file == "late.py":  # the page shows what the report's script prints, not the report
        assert script
        (tmp_path / "script.py").write_text(re.sub(r"^    ", "", script[0], flags=re.MULTILINE), encoding="utf-8")
        again = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert again.returncode == 1
        printed = again.stdout
    lines = iter(printed.splitlines())
    for line in example["shown"].splitlines():
        assert not line or line in lines, f"{line}\n\nis not, in this order, in\n\n{printed}"


@pytest.mark.parametrize("name", ["mine", "grouped", "decoding", "shaped", "typed"])
def test_the_examples_of_the_documentation_conform(tmp_path: Path, name: str) -> None:
    (code,) = re.findall(rf"```python\n(# {name}\.py\n.*?)```", read("docs/adapters.md"), re.DOTALL)
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", f"{name}.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_adapter_of_a_module_conforms(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert_conforms("heads", tmp_path, "--dtype", "float32")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_adapter_of_a_c_function_conforms(tmp_path: Path) -> None:
    ((source, build),) = re.findall(r"```c\n(// rows\.c: (.*?)\n.*?)```", read("docs/modules.md"), re.DOTALL)
    (tmp_path / "rows.c").write_text(source, encoding="utf-8")
    subprocess.run(build.split(), cwd=tmp_path, check=True)
    assert_conforms("rows", tmp_path)


def assert_conforms(name: str, folder: Path, *options: str) -> None:
    """Assert that ``attnspec check`` acquits an adapter of docs/modules.md."""
    (code,) = re.findall(rf"```python\n(# {name}\.py\n.*?)```", read("docs/modules.md"), re.DOTALL)
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", f"{name}.py", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_on_judging_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    page = read("docs/judge.md")
    examples = re.findall(r"```python\n(.*?)```.*?```\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 5
    number = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for code, shown in examples:
        exec(code, names)
        # Which number is the worst one depends on what PyTorch draws.
        assert number.sub("#", capsys.readouterr().out) == number.sub("#", shown)


def test_the_page_on_quantised_operands_shows_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    one_result, adapter = re.findall(r"```python\n(.*?)```", read("docs/quantised.md"), re.DOTALL)
    (shown,) = re.findall(r"```\n(scaled_dot.*?)\n```", read("docs/quantised.md"), re.DOTALL)
    exec(one_result, {})
    number = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")
    assert number.sub("#", shown) in number.sub("#", capsys.readouterr().out)
    (tmp_path / "cache.py").write_text(adapter, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "cache.py:backend"]
    command += ["--law", "quantization.operands-are-exact"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 laws hold" in done.stdout


def test_the_page_on_tolerances_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    page = read("docs/tolerance.md")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 4
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for code in examples:
        exec(code, names)
    (shown,) = re.findall(r"prints\n\n```\n(.*?)```", page, re.DOTALL)
    number = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")
    assert number.sub("#", capsys.readouterr().out) == number.sub("#", shown)


def test_the_examples_of_the_pytorch_backend_print_what_their_comments_say(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    examples = re.findall(r"```python\n(.*?)```", read("docs/pytorch.md"), re.DOTALL)
    assert len(examples) == 5
    for code in examples:
        exec(code, {})
        comments = re.findall(r"  # (.*)", code)
        if find_spec("llvmlite") is None:  # as the text above the example says
            comments = [line.replace(": llvm", ": pytorch").replace("llvm", "plain") for line in comments]
        assert capsys.readouterr().out.splitlines() == comments


@pytest.mark.slow
def test_the_commands_for_agents_judge_a_kernel(tmp_path: Path) -> None:
    (commands,) = re.findall(
        r"```\n(attnspec init.*?)```", read("conformance/attnspec/conformance/SKILL.md"), re.DOTALL
    )
    assert len(commands.splitlines()) == 3
    for command in commands.splitlines():
        words = [sys.executable, "-m", *command.split()]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


ERRORS = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", read("docs/errors.md"), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "message"), [row for row in ERRORS if row[0].startswith("attnspec ")])
def test_the_page_on_errors_shows_what_the_command_says(command: str, message: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "imported.py").write_text("from torch import softmax\n")
    (tmp_path / "empty.py").write_text("name = 'empty'\n")
    (tmp_path / "sdpa.py").write_text("def sdpa(query, key, value):\n    return value\n")
    options = "def scaled_dot_product_attention(query, key, value, *, mask=None, is_causal=False):\n    return value\n"
    (tmp_path / "renamed.py").write_text(f"name = 'renamed'\n{options}")
    words = [sys.executable, "-m", *command.split()]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (2, f"attnspec: {message}")


@pytest.mark.parametrize(("call", "message"), [row for row in ERRORS if row[0].startswith("judge(")])
def test_the_page_on_errors_shows_what_judge_says(call: str, message: str) -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises((TypeError, ValueError)) as raised:
        eval(call, {"judge": judge, "x": x, "half": x.astype(np.float16)})
    assert str(raised.value) == message


def cuda_adapter(name: str, folder: Path, *changes: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """Run an adapter of docs/cuda-kernel.md on the CPU, with changes of its code."""
    (code,) = re.findall(rf"```python\n(# {name}\.py\n.*?)```", read("docs/cuda-kernel.md"), re.DOTALL)
    for old, new in (('"devices": ("cuda",)', '"devices": ("cpu",)'), *changes):
        assert code.count(old) == 1
        code = code.replace(old, new)
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", f"{name}.py", "--hang-after", "60"]
    command += ["--law", "operation.oracle", "--law", "operation.dtype"]
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=interpreted)


@pytest.mark.slow
def test_the_triton_adapter_conforms_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    done = cuda_adapter("rows", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


SCORES = """
#include <stdint.h>
typedef int64_t size;
int launch_dot_scores(const float *q, const float *k, float *s, size b, size n, size m, size d, void *stream) {
    for (int64_t r = 0; r < b * n; r++)
        for (int64_t j = 0; j < m; j++) {
            double sum = 0;
            for (int64_t f = 0; f < d; f++) sum += (double)q[r * d + f] * k[(r / n * m + j) * d + f];
            s[r * m + j] = sum;
        }
    return 0;
}
"""
"""The library of docs/cuda-kernel.md, for the CPU."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_adapter_of_a_library_conforms_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "scores.c").write_text(SCORES, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "libscores.so", "scores.c"], cwd=tmp_path, check=True)
    done = cuda_adapter("library", tmp_path, ("torch.cuda.current_stream(query.device).cuda_stream", "None"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_adapters_of_cuda_kernels_are_python_and_declare_known_limits() -> None:
    codes = re.findall(r"```python\n(.*?)```", read("docs/cuda-kernel.md"), re.DOTALL)
    assert len(codes) == 3
    for code in codes:
        compile(code, "cuda-kernel.md", "exec")
        limits = Limits.of(eval(re.findall(r"limits = (\{.*\})", code)[0]))
        assert limits.chosen_device("auto") == "cuda"
