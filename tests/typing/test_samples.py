"""Mypy reports exactly the errors that the samples announce as ``# E: code text``."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "samples"
Errors = Mapping[tuple[str, int], tuple[str, str]]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    """Code and text of every error of one run outside the repository."""
    folder = tmp_path_factory.mktemp("samples")
    for sample in SAMPLES.glob("*.py"):
        (folder / sample.name).write_text(sample.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    errors = re.findall(r"^(\w+\.py):(\d+): error: (.*)  \[([\w-]+)\]$", done.stdout, re.MULTILINE)
    return {(file, int(line)): (code, text) for file, line, text, code in errors}


def expected(file: str) -> Errors:
    """The errors that the comments of a sample announce."""
    lines = (SAMPLES / file).read_text(encoding="utf-8").splitlines()
    announced = {number: re.search(r"  # E: ([\w-]+) (.*)$", line) for number, line in enumerate(lines, 1)}
    return {(file, number): (m[1], m[2]) for number, m in announced.items() if m}


def test_right_code_is_accepted(reported: Errors) -> None:
    assert {where: error for where, error in reported.items() if where[0] == "right.py"} == {}


def test_wrong_code_is_rejected_where_it_is_wrong(reported: Errors) -> None:
    announced = expected("wrong.py")
    assert len(announced) >= 18
    assert reported.keys() == announced.keys()
    for where, (code, text) in announced.items():
        assert reported[where][0] == code, where
        assert text in reported[where][1], where
