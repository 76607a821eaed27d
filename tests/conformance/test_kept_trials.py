"""Kept trials let interrupted runs continue; changed code repeats only the trials that run it."""

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
from attnspec.conformance.running.trials import Failure, Trial, TrialOutcome


def judge_base(trials: KeptTrials | None, minutes: float | None = None) -> tuple[int, str]:
    text = io.StringIO()
    mutants = {name: MUTANTS[name] for name in MUTANTS if name.startswith("base ")}
    console = Console(file=text, width=200)
    options: dict[str, Any] = {"mutants": mutants, "variants": {}, "kept": trials, "minutes": minutes}
    return judge_mutants("quick", 2, False, 0, None, console, **options), text.getvalue()


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    status, output = judge_base(KeptTrials(path), minutes=0)
    assert status == INCOMPLETE
    assert "1 of " in output
    assert "the same command continues" in output
    assert len(KeptTrials(path)) == 1
    status, output = judge_base(KeptTrials(path))
    assert status == 0
    assert "killed at 2 seeds" in output
    assert f"trials kept in {path}: 1, judged anew: 1" in output
    before = path.read_text()
    assert judge_base(KeptTrials(path)) == (status, output.replace(": 1, judged anew: 1", ": 2, judged anew: 0"))
    assert path.read_text() == before


def test_a_run_without_a_file_cannot_continue() -> None:
    status, output = judge_base(None, minutes=0)
    assert status == INCOMPLETE
    assert "with --keep" in output


def kept_outcome(trials: KeptTrials, trial: Trial) -> TrialOutcome | None:
    return trials.outcomes([trial]).get(trial.key)


@pytest.mark.parametrize("assigned", [False, True])
def test_outcomes_are_read_as_they_were_written(tmp_path: Path, assigned: bool) -> None:
    trial = Trial(MUTANTS["base 1000"], "quick", 3)
    failure = Failure("softmax", "float32", "operation.oracle", "value", "is 1")
    judged = TrialOutcome((failure,), 7, 0.25, 0.5, lost=True, assigned=assigned)
    KeptTrials(tmp_path / "trials").add(trial, judged)
    assert kept_outcome(KeptTrials(tmp_path / "trials"), trial) == judged
    assert kept_outcome(KeptTrials(tmp_path / "trials"), Trial(trial.subject, "quick", 4)) is None


def test_a_trial_whose_code_has_changed_is_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trials"
    chosen = [Trial(MUTANTS[name], "quick", 0) for name in ("base 1000", "ε of 10⁻³")]
    file = KeptTrials(path)
    for trial in chosen:
        file.add(trial, TrialOutcome((), 1, 0.0))

    def changed(trial: Trial, *, assigned: bool) -> str:
        return "changed" if trial == chosen[0] else digest(trial, assigned=assigned)

    with monkeypatch.context() as patched:
        patched.setattr("attnspec.conformance.running.kept_trials.digest", changed)
        file = KeptTrials(path)
        assert file.outcomes(chosen) == {chosen[1].key: TrialOutcome((), 1, 0.0)}
        file.add(chosen[0], TrialOutcome((), 2, 0.0))
        for trials in (file, KeptTrials(path)):
            assert trials.outcomes(chosen) == {
                chosen[0].key: TrialOutcome((), 2, 0.0),
                chosen[1].key: TrialOutcome((), 1, 0.0),
            }
    assert kept_outcome(KeptTrials(path), chosen[0]) is None


def test_the_trial_of_an_incomplete_line_is_judged_again(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    trials = KeptTrials(path)
    for seed in range(2):
        trials.add(Trial(MUTANTS["base 1000"], "quick", seed), TrialOutcome((), 1, 0.0))
    path.write_text(path.read_text()[:-9])
    trials = KeptTrials(path)
    assert len(trials) == 1
    trials.add(Trial(MUTANTS["base 1000"], "quick", 1), TrialOutcome((), 1, 0.0))
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
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str, got: str) -> None:
    path = tmp_path / "trials"
    path.write_text(text)
    expected = "expected trials that 'attnspec mutants --keep' wrote, attnspec-trials/3"
    with pytest.raises(ValueError, match=f"{path}: {expected}; got {got}; name a new file, or remove this one"):
        KeptTrials(path)
    assert path.read_text() == text
