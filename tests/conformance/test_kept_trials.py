"""Trials that are kept: a run that is broken off goes on, and a change repeats the trials that run what it changes."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.reporting.kills import judge_mutants
from attnspec.conformance.running.kept_trials import KeptTrials
from attnspec.conformance.running.trial_digest import digest
from attnspec.conformance.running.trial_run import INCOMPLETE
from attnspec.conformance.running.trials import Failure, Outcome, Task


def run(kept: KeptTrials | None, minutes: float | None = None) -> tuple[int, str]:
    text = io.StringIO()
    some = {name: MUTANTS[name] for name in MUTANTS if name.startswith("base ")}
    console = Console(file=text, width=200)
    given: dict[str, Any] = {"mutants": some, "variants": {}, "kept": kept, "minutes": minutes}
    return judge_mutants("quick", 2, False, 0, None, console, **given), text.getvalue()


def test_a_run_that_is_broken_off_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    status, said = run(KeptTrials(path), minutes=0)
    assert status == INCOMPLETE
    assert "1 of " in said
    assert "the same command goes on" in said
    assert len(KeptTrials(path)) == 1
    status, said = run(KeptTrials(path))
    assert status == 0
    assert "killed at 2 seeds" in said
    assert f"trials kept in {path}: 1, judged anew: 1" in said
    before = path.read_text()
    assert run(KeptTrials(path)) == (status, said.replace(": 1, judged anew: 1", ": 2, judged anew: 0"))
    assert path.read_text() == before


def test_without_a_file_nothing_goes_on() -> None:
    status, said = run(None, minutes=0)
    assert status == INCOMPLETE
    assert "with --keep" in said


def outcome(kept: KeptTrials, task: Task) -> Outcome | None:
    return kept.outcomes([task]).get(task.key)


@pytest.mark.parametrize("assigned", [False, True])
def test_outcomes_come_back_as_they_were(tmp_path: Path, assigned: bool) -> None:
    task = Task(MUTANTS["base 1000"], "quick", 3)
    failure = Failure("softmax", "float32", "operation.oracle", "value", "is 1")
    judged = Outcome((failure,), 7, 0.25, 0.5, lost=True, assigned=assigned)
    KeptTrials(tmp_path / "trials").add(task, judged)
    assert outcome(KeptTrials(tmp_path / "trials"), task) == judged
    assert outcome(KeptTrials(tmp_path / "trials"), Task(task.subject, "quick", 4)) is None


def test_a_trial_whose_code_has_changed_is_judged_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trials"
    tasks = [Task(MUTANTS[name], "quick", 0) for name in ("base 1000", "ε of 10⁻³")]
    kept = KeptTrials(path)
    for task in tasks:
        kept.add(task, Outcome((), 1, 0.0))

    def changed(task: Task, *, assigned: bool) -> str:
        return "changed" if task == tasks[0] else digest(task, assigned=assigned)

    with monkeypatch.context() as patched:
        patched.setattr("attnspec.conformance.running.kept_trials.digest", changed)
        kept = KeptTrials(path)
        assert kept.outcomes(tasks) == {tasks[1].key: Outcome((), 1, 0.0)}
        kept.add(tasks[0], Outcome((), 2, 0.0))
        for again in (kept, KeptTrials(path)):
            assert again.outcomes(tasks) == {tasks[0].key: Outcome((), 2, 0.0), tasks[1].key: Outcome((), 1, 0.0)}
    assert outcome(KeptTrials(path), tasks[0]) is None


def test_a_line_that_was_cut_off_is_judged_again(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    kept = KeptTrials(path)
    for seed in range(2):
        kept.add(Task(MUTANTS["base 1000"], "quick", seed), Outcome((), 1, 0.0))
    path.write_text(path.read_text()[:-9])
    kept = KeptTrials(path)
    assert len(kept) == 1
    kept.add(Task(MUTANTS["base 1000"], "quick", 1), Outcome((), 1, 0.0))
    assert len(KeptTrials(path)) == 2


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("not json\n", "something else"),
        ("[]\n", "something else"),
        ('{"schema": "attnspec-report/1"}\n', "attnspec-report/1"),
        ('{"schema": "attnspec-trials/2", "digest": "0123"}\n', "attnspec-trials/2"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, got: str) -> None:
    path = tmp_path / "trials"
    path.write_text(text)
    expected = "expected trials that 'attnspec mutants --keep' wrote, attnspec-trials/3"
    with pytest.raises(ValueError, match=f"{path}: {expected}; got {got}; name a new file, or remove this one"):
        KeptTrials(path)
    assert path.read_text() == text
