"""Trials that are kept: a run that is broken off goes on, and what other laws judged does not count."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.reporting.kills import judge_mutants
from attnspec.conformance.running import kept_trials
from attnspec.conformance.running.kept_trials import KeptTrials, digest
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
    before = path.read_text()
    assert run(KeptTrials(path)) == (status, said)
    assert path.read_text() == before


def test_without_a_file_nothing_goes_on() -> None:
    status, said = run(None, minutes=0)
    assert status == INCOMPLETE
    assert "with --keep" in said


def test_outcomes_come_back_as_they_were(tmp_path: Path) -> None:
    task = Task(MUTANTS["base 1000"], "quick", 3)
    outcome = Outcome((Failure("softmax", "float32", "operation.oracle", "value", "is 1"),), 7, 0.25, 0.5, lost=True)
    KeptTrials(tmp_path / "trials").add(task, outcome)
    assert KeptTrials(tmp_path / "trials").outcome(task) == outcome
    assert KeptTrials(tmp_path / "trials").outcome(Task(task.subject, "quick", 4)) is None


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


@pytest.mark.parametrize("text", ["not json\n", "[]\n", '{"schema": "attnspec-report/1"}\n'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trials"
    path.write_text(text)
    with pytest.raises(ValueError, match="expected trials that 'attnspec mutants --keep' wrote; got something else"):
        KeptTrials(path)
    assert path.read_text() == text


def test_trials_of_another_suite_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trials"
    KeptTrials(path)
    own = json.loads(path.read_text())["digest"]
    monkeypatch.setattr(kept_trials, "digest", lambda: "0123")
    with pytest.raises(ValueError, match=f"judged by the present suite, 0123; got {own}; without this file"):
        KeptTrials(path)


def changes_the_digest(part: str, change: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a change of the text of a file changes the digest."""
    before, read = digest(), Path.read_text
    package, _, below = part.partition("/")
    (folder,) = __import__(f"attnspec.{package}", fromlist=["x"]).__path__
    changed_file = Path(folder) / below
    assert change(read(changed_file, encoding="utf-8")) != read(changed_file, encoding="utf-8")

    def changed(path: Path, *args: Any, **kwargs: Any) -> str:
        text = read(path, *args, **kwargs)
        return change(text) if path.samefile(changed_file) else text

    monkeypatch.setattr(Path, "read_text", changed)
    return digest() != before


@pytest.mark.parametrize(
    ("part", "judges"),
    [
        ("conformance/laws/pooling.py", True),
        ("conformance/inputs/corners.py", True),
        ("conformance/running/trials.py", True),
        ("spec/pooling.py", True),
        ("spec/laws/pooling.py", True),
        ("reference/budget/error_array.py", True),
        ("conformance/reporting/kills.py", False),
        ("conformance/cli.py", False),
        ("spec/errata.py", False),
        ("spec/lectures/registry.py", False),
    ],
)
def test_the_digest_is_of_what_judges(part: str, judges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert changes_the_digest(part, lambda text: text + "\nONE_MORE = 1\n", monkeypatch) == judges


@pytest.mark.parametrize(
    ("part", "change", "judges"),
    [
        ("conformance/laws/pooling.py", lambda text: text + "# a comment\n", False),
        ("conformance/laws/pooling.py", lambda text: text.replace('"""', '"""Indeed: ', 1), False),
        ("conformance/mutants/pooling.py", lambda text: text.replace('    """', '    """Indeed: ', 1), False),
        ("reference/pooling.py", lambda text: text.replace('"""', '"""Indeed: ', 1), False),
        ("spec/pooling.py", lambda text: text + "# a comment\n", False),
        ("spec/pooling.py", lambda text: text.replace('    """', '    """Indeed: ', 1), True),
        ("conformance/judging/profiles.py", lambda text: re.sub(r"= (\d+)", r"= 1\1", text, count=1), True),
    ],
)
def test_comments_and_docstrings_throw_no_trial_away(
    part: str, change: Callable[[str], str], judges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changes_the_digest(part, change, monkeypatch) == judges
