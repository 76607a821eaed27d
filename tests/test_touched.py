"""The tests that ``nox -s check`` runs after a change."""

import pytest

from tests.modules import ROOT
from tests.touched import ALWAYS, PROSE_TESTS, code, touched

MUTANTS = "conformance/attnspec/conformance/mutants/masking.py"


@pytest.mark.parametrize(
    ("changed", "run", "left_out"),
    [
        (MUTANTS, "tests/conformance/test_mutants.py", "tests/reference/test_shapes.py"),
        ("reference/attnspec/reference/vision.py", "tests/reference/test_vision.py", "tests/spec/test_annotations.py"),
        ("tests/budgets.py", "tests/backends/test_sdpa.py", "tests/conformance/test_cli.py"),
        ("tests/reference/test_shapes.py", "tests/reference/test_shapes.py", "tests/reference/test_edges.py"),
        ("proofs/Bound.v", "tests/reference/test_proved_bound.py", "tests/reference/test_edges.py"),
        ("README.md", "tests/test_docs.py", "tests/conformance/test_mutants.py"),
    ],
)
def test_importers_of_a_changed_file_are_run(changed: str, run: str, left_out: str) -> None:
    tests = touched([ROOT / changed])
    assert {run, *ALWAYS} <= set(tests)
    assert left_out not in tests


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt", "tests/conformance/conftest.py"])
def test_a_change_that_concerns_every_test_runs_all(changed: str) -> None:
    assert touched([ROOT / changed]) == ["tests"]


def test_a_change_of_prose_alone_runs_the_tests_of_prose() -> None:
    mutants = ROOT / MUTANTS
    assert touched([mutants], [mutants]) == sorted(PROSE_TESTS)
    assert all((ROOT / path).exists() for path in PROSE_TESTS)


def test_code_without_sentences() -> None:
    text = (ROOT / MUTANTS).read_text(encoding="utf-8")
    assert code(text.replace("The other polarity.", "Otherwise.").replace("MASKED = (", "# why\nMASKED = (")) == code(
        text
    )
    assert code(text.replace("-1e4", "-1e5")) != code(text)
