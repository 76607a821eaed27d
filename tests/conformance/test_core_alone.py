"""Without the extra ``check``: judge and tolerance run, the rest says how to install it."""

import subprocess
import sys
from pathlib import Path

import pytest

from attnspec.conformance.running.extra import MODULES
from tests.modules import ROOT
from tests.test_packaging import PROJECT

CORE = ("attnspec", "numpy", "jaxtyping", "typing_extensions", "ml_dtypes", "wadler_lindig")
"""Packages that are installed without extras; jaxtyping needs wadler_lindig."""

BLOCK = f"""
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

class OnlyCore(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target)
        other = path is None and spec is not None and "site-packages" in str(spec.origin) and name not in {CORE}
        return None if other else spec

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, OnlyCore]
"""
"""Program that makes every import of another package fail."""

INSTALL = "pip install 'attnspec[check]'"


def run_in_core(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCK + program, *arguments], capture_output=True, text=True)


def test_judge_and_tolerance_need_the_core_only() -> None:
    script = ROOT / "tests" / "typing" / "consumer" / "core.py"
    done = run_in_core(f"import runpy\nrunpy.run_path({str(script)!r})")
    assert done.returncode == 0, done.stderr
    assert "allowed errors from" in done.stdout


@pytest.mark.parametrize("name", ["ConformanceSuite", "call", "replay"])
def test_names_that_need_more_say_how_to_install_it(name: str) -> None:
    done = run_in_core(f"from attnspec.conformance import {name}")
    assert f"ImportError: attnspec.conformance.{name}: got no module" in done.stderr
    assert done.stderr.rstrip().endswith(INSTALL)


def test_the_command_says_how_to_install_what_it_needs() -> None:
    done = run_in_core("from attnspec.__main__ import main\nmain()", "check", "mine.py")
    assert done.returncode == 2
    assert done.stdout == ""
    missing = ", ".join(MODULES)
    assert done.stderr == (
        f"attnspec: expected the packages of the extra 'check'; got no module {missing}. Install them: {INSTALL}\n"
    )


def test_the_plugin_says_how_to_install_what_it_needs(tmp_path: Path) -> None:
    program = """
import importlib.util, pytest
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "hypothesis" else find(name)
sys.exit(pytest.main(["-p", "no:cacheprovider", "--attn-backend=reference"]))
"""
    done = subprocess.run([sys.executable, "-c", f"import sys{program}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        f"--attn-backend: expected the packages of the extra 'check'; got no module hypothesis. Install them: {INSTALL}"
        in done.stderr
    )


def test_the_core_has_four_packages_and_the_extra_those_of_its_modules() -> None:
    assert [r.split(">=")[0] for r in PROJECT["dependencies"]] == [
        "numpy", "jaxtyping", "typing-extensions", "ml-dtypes",
    ]  # fmt: skip
    distributions = {"markdown_it": "markdown-it-py", "math_core": "math-core", "xdist": "pytest-xdist"}
    needed = {distributions.get(name, name) for name in MODULES}
    # Without threadpoolctl, judging takes longer, and does not fail.
    extra = {r.split(">=")[0] for r in PROJECT["optional-dependencies"]["check"]}
    assert extra == needed | {"threadpoolctl"}
