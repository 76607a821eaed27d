"""Tests compare by budgets, bit for bit or by counted roundings (``tests/budgets.py``); tolerances are refused."""

import re

from .modules import ROOT

TOLERANCE = re.compile(r"\b(?:assert_close|assert_allclose|allclose|isclose|approx)\(|\b[ra]tol\b")


def test_no_test_has_a_tolerance() -> None:
    files = (x for x in sorted((ROOT / "tests").rglob("*.py")) if x.name != "test_tolerances.py")
    lines = ((x, line) for x in files for line in x.read_text("utf-8").splitlines())
    matches = [f"{x.relative_to(ROOT).as_posix()}: {line.strip()}" for x, line in lines if TOLERANCE.search(line)]
    assert not matches, "compare by budgets, bit for bit, or count the roundings"
