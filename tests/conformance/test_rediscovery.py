"""Rediscovered defects are convicted by laws that govern their operation."""

import runpy
from pathlib import Path

import pytest

from attnspec.conformance.rediscovered import REDISCOVERED, Rediscovered
from attnspec.conformance.running.trials import Trial, run_trial
from attnspec.spec import LAWS, OPERATIONS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE_SCRIPT = runpy.run_path(str(ROOT / "docs" / "rediscovery.py"))
CONVICTED = [r for r in REDISCOVERED.values() if r.convicted]


@pytest.mark.parametrize("r", CONVICTED, ids=lambda r: r.source)
def test_every_rediscovered_defect_is_convicted(r: Rediscovered) -> None:
    (law,), (operation,) = r.breaks, r.operations
    assert OPERATIONS[operation] in LAWS[law].operations
    assert [f.law for f in run_trial(Trial(r, r.profile, 0, law=law)).failures] == [law]


@pytest.mark.parametrize("r", REDISCOVERED.values(), ids=lambda r: r.source)
def test_every_rediscovered_defect_is_described(r: Rediscovered) -> None:
    repository, _, number = r.source.partition("#")
    assert repository.count("/") == 1
    assert number.isdigit()
    assert r.title
    assert r.framework
    assert r.statement.endswith(".")


def test_at_least_30_rediscovered_defects_are_convicted() -> None:
    assert len(CONVICTED) >= 30


def test_the_page_has_a_row_for_every_bug_report() -> None:
    verdicts = {r.source: PAGE_SCRIPT["Verdict"]("a.law", "query 2×3") for r in CONVICTED}
    rows = [line for line in PAGE_SCRIPT["page"](verdicts).splitlines() if line.startswith("| [")]
    assert [row.split("](")[0].removeprefix("| [") for row in rows if row.endswith("| a.law | query 2×3 |")] == [
        r.source for r in CONVICTED
    ]
    assert len(rows) == len(REDISCOVERED)


def test_a_result_of_another_shape_is_a_violation_in_every_mode() -> None:
    transposed = REDISCOVERED["pytorch/pytorch#80306"]
    trials = [run_trial(Trial(transposed, "quick", seed, law="training.same-in-every-mode")) for seed in range(3)]
    messages = [f.message for trial in trials for f in trial.failures]
    assert messages
    assert all("has shape" in message for message in messages)
