"""Which tests ``nox -s check`` runs after a change."""

import pytest

from tests.modules import ROOT
from tests.touched import ALWAYS, touched

MUTANTS = "conformance/attnspec/conformance/mutants/masking.py"


@pytest.mark.parametrize(
    ("changed", "run", "left_out"),
    [
        (MUTANTS, "tests/conformance/test_mutants.py", "tests/reference/test_shapes.py"),
        ("reference/attnspec/reference/vision.py", "tests/reference/test_vision.py", "tests/spec/test_annotations.py"),
        ("tests/budgets.py", "tests/backends/test_sdpa.py", "tests/conformance/test_cli.py"),
        ("tests/reference/test_shapes.py", "tests/reference/test_shapes.py", "tests/reference/test_edges.py"),
        ("README.md", "tests/test_docs.py", "tests/conformance/test_mutants.py"),
    ],
)
def test_what_imports_a_changed_file_is_run(changed: str, run: str, left_out: str) -> None:
    found = touched([ROOT / changed])
    assert {run, *ALWAYS} <= set(found)
    assert left_out not in found


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt", "tests/conformance/conftest.py"])
def test_what_concerns_every_test_runs_all(changed: str) -> None:
    assert touched([ROOT / changed]) == ["tests"]
