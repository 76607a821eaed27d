"""Public defects are convicted, and the page about them says what the registry says."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from attnspec.conformance.rediscovered import REDISCOVERED, Rediscovered
from attnspec.conformance.running.trials import Task, perform
from attnspec.spec import LAWS, OPERATIONS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rediscovery.md"
MAKING = runpy.run_path(str(ROOT / "docs" / "rediscovery.py"))
CONVICTED = [r for r in REDISCOVERED.values() if r.convicted]


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("r", CONVICTED, ids=lambda r: r.source)
def test_defect_is_convicted(r: Rediscovered) -> None:
    assert perform(Task(r, r.profile, 0)).failures


@pytest.mark.parametrize("r", REDISCOVERED.values(), ids=lambda r: r.source)
def test_defect_is_described(r: Rediscovered) -> None:
    repository, _, number = r.source.partition("#")
    assert repository.count("/") == 1
    assert number.isdigit()
    assert r.title
    assert r.framework
    assert r.statement.endswith(".")


def test_there_are_enough() -> None:
    assert len(CONVICTED) >= 30


def test_the_page_is_up_to_date() -> None:
    verdicts: dict[str, Any] = MAKING["verdicts_on"](read(PAGE))
    assert list(verdicts) == [r.source for r in CONVICTED]
    assert MAKING["page"](verdicts) == read(PAGE)
    for source, (law, _) in verdicts.items():
        (operation,) = REDISCOVERED[source].operations
        assert OPERATIONS[operation] in LAWS[law.strip("`")].operations


def test_a_result_of_another_shape_is_a_violation_in_every_mode() -> None:
    transposed = REDISCOVERED["pytorch/pytorch#80306"]
    trials = [perform(Task(transposed, "quick", seed, law="training.modes")) for seed in range(3)]
    messages = [f.message for trial in trials for f in trial.failures]
    assert messages
    assert all("has shape" in message for message in messages)
