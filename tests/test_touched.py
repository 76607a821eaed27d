"""Which tests ``nox -s check`` runs after a change."""

import pytest

from tests.modules import ROOT
from tests.touched import ALWAYS, OF_SENTENCES, code, touched

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


def test_where_only_sentences_differ_what_people_read_is_tested() -> None:
    mutants = ROOT / MUTANTS
    assert touched([mutants], [mutants]) == sorted(OF_SENTENCES)
    assert all((ROOT / path).exists() for path in OF_SENTENCES)


def test_code_without_sentences() -> None:
    text = (ROOT / MUTANTS).read_text(encoding="utf-8")
    assert code(text.replace("The other polarity.", "Otherwise.").replace("MASKED = (", "# why\nMASKED = (")) == code(
        text
    )
    assert code(text.replace("-1e4", "-1e5")) != code(text)
