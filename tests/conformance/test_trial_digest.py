"""A change of the code concerns the trials that ran it; no trial runs code that its digest does not cover."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from attnspec.conformance.laws import CHECKS
from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.running import trial_digest
from attnspec.conformance.running.trial_digest import digest
from attnspec.conformance.running.trials import Task, perform
from attnspec.conformance.variants import VARIANTS, Variant
from attnspec.spec import LAWS, OPERATIONS
from tests.modules import modules

SUBJECTS: dict[str, Mutant | Variant] = {**MUTANTS, **VARIANTS}
FILES = {module.name: module for module in modules("spec", "reference", "conformance")}

Change = Callable[[str], str]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Nothing stays in memory that a test has changed."""
    yield
    forget()


def forget() -> None:
    trial_digest._digest.cache_clear()
    trial_digest._reached.cache_clear()


@cache
def today(assigned: bool) -> dict[str, str]:
    return digests(assigned)


def digests(assigned: bool) -> dict[str, str]:
    return {name: digest(Task(subject, "quick", 0), assigned=assigned) for name, subject in SUBJECTS.items()}


def touched(module: str, change: Change, monkeypatch: pytest.MonkeyPatch, *, assigned: bool = False) -> set[str]:
    """The mutants and variants whose digests a change of the text of a module changes."""
    before, read, file = today(assigned), trial_digest._read, FILES[f"attnspec.{module}"]
    text = change(file.text)
    assert text != file.text
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", lambda path, encoding: text)
        as_changed = read.__wrapped__(file.name)
    with monkeypatch.context() as patched:
        patched.setattr(trial_digest, "_read", lambda name: as_changed if name == file.name else read(name))
        forget()
        after = digests(assigned)
    forget()
    return {name for name in before if before[name] != after[name]}


def constant(text: str) -> str:
    return text + "\nONE_MORE = 1\n"


def written_in(module: str) -> set[str]:
    return {name for name, subject in SUBJECTS.items() if subject.alteration.__module__ == f"attnspec.{module}"}


def governed_by(module: str) -> dict[str, set[str]]:
    """The mutants and variants with an operation that a check in a module concerns, with the laws of these checks."""
    found: dict[str, set[str]] = {}
    for name, subject in SUBJECTS.items():
        for operation in map(OPERATIONS.__getitem__, subject.operations):
            for law in (law for law in LAWS.values() if law.concerns(operation)):
                if any(c.function.__module__ == f"attnspec.{module}" and c.concerns(operation) for c in CHECKS[law.id]):
                    found.setdefault(name, set()).add(law.id)
    return found


@pytest.mark.parametrize(
    ("module", "change"),
    [
        ("conformance.mutants.pooling", lambda text: text.replace('    """', '    """Indeed: ', 1)),
        ("conformance.mutants.pooling", lambda text: text + "# a comment\n"),
        ("conformance.laws.pooling", lambda text: text.replace('"""', '"""Indeed: ', 1)),
        ("reference.pooling", lambda text: text.replace('"""', '"""Indeed: ', 1)),
        ("spec.pooling", lambda text: text.replace('    """', '    """Indeed: ', 1)),
        ("conformance.reporting.kills", constant),
        ("conformance.cli", constant),
        ("conformance.laws", constant),
        ("conformance.mutants", constant),
        ("spec.errata", constant),
        ("spec.lectures.registry", constant),
    ],
)
def test_sentences_and_reports_touch_no_trial(module: str, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    assert touched(module, change, monkeypatch) == set()


@pytest.mark.parametrize(
    ("module", "change"),
    [
        ("conformance.running.trials", constant),
        ("conformance.judging.profiles", lambda text: re.sub(r"= (\d+)", r"= 1\1", text, count=1)),
        ("conformance.inputs.corners", constant),
        ("conformance.mutants.correct.vision", constant),
        ("conformance.laws.common", constant),
        ("conformance.laws.operation", constant),
        ("reference.budget.error_array", constant),
        ("reference.normalization", constant),
        ("spec.contract.shapes", constant),
    ],
)
def test_what_every_trial_runs_touches_all(module: str, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    assert touched(module, change, monkeypatch, assigned=True) == set(SUBJECTS)


@pytest.mark.parametrize(
    "module", ["conformance.mutants.pooling", "conformance.mutants.ignored", "conformance.variants.sums"]
)
def test_a_mutant_or_variant_touches_those_of_its_module(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert touched(module, constant, monkeypatch) == written_in(module) != set()


@pytest.mark.parametrize(
    "module", ["conformance.laws.vision", "conformance.laws.infinities", "conformance.laws.multihead"]
)
def test_a_check_touches_the_trials_that_it_judges(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    governed = governed_by(module)
    assert set() < governed.keys() < SUBJECTS.keys()
    assert touched(module, constant, monkeypatch) == governed.keys()
    judged = {n for n, laws in governed.items() if not isinstance(s := SUBJECTS[n], Mutant) or laws & {*s.breaks}}
    assert touched(module, constant, monkeypatch, assigned=True) == judged


@pytest.mark.parametrize("module", ["reference.vision", "spec.complexity"])
def test_a_chapter_touches_the_trials_of_its_operations(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = module.rpartition(".")[2]
    of_chapter = {n for n, s in SUBJECTS.items() if any(OPERATIONS[o].chapter == chapter for o in s.operations)}
    assert touched(module, constant, monkeypatch) == of_chapter != set()


# No trial runs what its digest does not cover ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["base 1000", "hidden state and cell exchanged", "all sentences of a batch fed the first", "padding in the mean"],
)
def test_a_trial_runs_no_other_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(SUBJECTS[name], "quick", 0)
    digest(task, assigned=False)  # which laws govern an operation is part of the digest, and not asked again
    ran: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        ran[frame.f_code] = frame.f_globals.get("__name__", "")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        outcome = perform(task)
    finally:
        sys.setprofile(before)
    ours = {code: module for code, module in ran.items() if module.startswith("attnspec.")}
    assert outcome.assigned
    assert len(set(ours.values())) > 30
    covered, read = set[str](), trial_digest._read

    def record(module: str) -> Any:
        covered.add(module)
        return read(module)

    forget()
    monkeypatch.setattr(trial_digest, "_read", record)
    digest(task, assigned=True)
    assert set(ours.values()) - covered == set()
    assert {code.co_name for code in ours if {"__doc__", "getdoc"} & {*code.co_names}} == set()


def functions(function: Any) -> Iterator[Any]:
    """A function, and those that it holds."""
    yield function
    for cell in getattr(function, "__closure__", None) or ():
        if hasattr(cell.cell_contents, "__code__"):
            yield from functions(cell.cell_contents)


def test_a_check_names_the_module_that_has_all_of_it() -> None:
    for check in (check for found in CHECKS.values() for check in found):
        held = {f.__code__.co_filename for f in functions(check.function)}
        reached = {str(FILES[m].path) for m in trial_digest._reached(check.function.__module__)}
        assert held <= reached, check.name


def test_what_is_judged_imports_by_name() -> None:
    for name in trial_digest._reached(perform.__module__) | {n for n in FILES if ".laws." in n or ".mutants." in n}:
        for node in ast.walk(FILES[name].tree):
            whole = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert [n for n in whole if n.startswith("attnspec")] in ([], ["attnspec.conformance.laws"]), name
