"""Changed code changes the digests of the trials that run it, and no others."""

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
from attnspec.conformance.running.trials import Trial, run_trial
from attnspec.conformance.variants import VARIANTS, Variant
from attnspec.spec import LAWS, OPERATIONS
from tests.modules import modules

SUBJECTS: dict[str, Mutant | Variant] = {**MUTANTS, **VARIANTS}
FILES = {module.name: module for module in modules("spec", "reference", "conformance")}

Change = Callable[[str], str]


@pytest.fixture(autouse=True)
def _forget_after_test() -> Iterator[None]:
    yield
    forget()


def forget() -> None:
    trial_digest._digest.cache_clear()
    trial_digest._reached.cache_clear()


@cache
def current_digests(assigned: bool) -> dict[str, str]:
    return digests(assigned)


def digests(assigned: bool) -> dict[str, str]:
    return {name: digest(Trial(subject, "quick", 0), assigned=assigned) for name, subject in SUBJECTS.items()}


def affected(module: str, change: Change, monkeypatch: pytest.MonkeyPatch, *, assigned: bool = False) -> set[str]:
    """The mutants and variants whose digests change with the text of a module."""
    before, read, file = current_digests(assigned), trial_digest._read, FILES[f"attnspec.{module}"]
    text = change(file.text)
    assert text != file.text
    read_text, changed = Path.read_text, trial_digest._modules()[file.name]
    with monkeypatch.context() as patched:
        # Other threads may read other files meanwhile.
        patched.setattr(Path, "read_text", lambda path, **how: text if path == changed else read_text(path, **how))
        as_changed = read.__wrapped__(file.name)
    with monkeypatch.context() as patched:
        patched.setattr(trial_digest, "_read", lambda name: as_changed if name == file.name else read(name))
        forget()
        after = digests(assigned)
    forget()
    return {name for name in before if before[name] != after[name]}


def add_constant(text: str) -> str:
    return text + "\nONE_MORE = 1\n"


def subjects_in(module: str) -> set[str]:
    return {name for name, subject in SUBJECTS.items() if subject.alteration.__module__ == f"attnspec.{module}"}


def subjects_governed_by(module: str) -> dict[str, set[str]]:
    """Mutants and variants concerned by checks of a module, with the laws of these checks."""
    laws_by_subject: dict[str, set[str]] = {}
    for name, subject in SUBJECTS.items():
        for operation in map(OPERATIONS.__getitem__, subject.operations):
            for law in (law for law in LAWS.values() if law.concerns(operation)):
                if any(c.function.__module__ == f"attnspec.{module}" and c.concerns(operation) for c in CHECKS[law.id]):
                    laws_by_subject.setdefault(name, set()).add(law.id)
    return laws_by_subject


@pytest.mark.parametrize(
    ("module", "change"),
    [
        ("conformance.mutants.pooling", lambda text: text.replace('    """', '    """Indeed: ', 1)),
        ("conformance.mutants.pooling", lambda text: text + "# a comment\n"),
        ("conformance.laws.pooling", lambda text: text.replace('"""', '"""Indeed: ', 1)),
        ("reference.pooling", lambda text: text.replace('"""', '"""Indeed: ', 1)),
        ("spec.pooling", lambda text: text.replace('    """', '    """Indeed: ', 1)),
        ("conformance.reporting.kills", add_constant),
        ("conformance.cli", add_constant),
        ("conformance.laws", add_constant),
        ("conformance.mutants", add_constant),
        ("spec.errata", add_constant),
        ("spec.lectures.registry", add_constant),
    ],
)
def test_docstrings_and_reports_change_no_digest(module: str, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    assert affected(module, change, monkeypatch) == set()


@pytest.mark.parametrize(
    ("module", "change"),
    [
        ("conformance.running.trials", add_constant),
        ("conformance.judging.profiles", lambda text: re.sub(r"= (\d+)", r"= 1\1", text, count=1)),
        ("conformance.inputs.corners", add_constant),
        ("conformance.mutants.correct.vision", add_constant),
        ("conformance.laws.common", add_constant),
        ("conformance.laws.operation", add_constant),
        ("reference.budget.error_array", add_constant),
        ("reference.normalization", add_constant),
        ("spec.contract.shapes", add_constant),
    ],
)
def test_code_of_every_trial_changes_all_digests(module: str, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    assert affected(module, change, monkeypatch, assigned=True) == set(SUBJECTS)


@pytest.mark.parametrize(
    "module", ["conformance.mutants.pooling", "conformance.mutants.ignored", "conformance.variants.sums"]
)
def test_a_mutant_or_variant_changes_digests_of_its_module(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert affected(module, add_constant, monkeypatch) == subjects_in(module) != set()


@pytest.mark.parametrize(
    "module", ["conformance.laws.vision", "conformance.laws.infinities", "conformance.laws.multihead"]
)
def test_a_check_changes_digests_of_the_trials_that_it_judges(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    governed = subjects_governed_by(module)
    assert set() < governed.keys() < SUBJECTS.keys()
    assert affected(module, add_constant, monkeypatch) == governed.keys()
    judged = {n for n, laws in governed.items() if not isinstance(s := SUBJECTS[n], Mutant) or laws & {*s.breaks}}
    assert affected(module, add_constant, monkeypatch, assigned=True) == judged


@pytest.mark.parametrize("module", ["reference.vision", "spec.complexity"])
def test_a_chapter_changes_digests_of_its_operations(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = module.rpartition(".")[2]
    of_chapter = {n for n, s in SUBJECTS.items() if any(OPERATIONS[o].chapter == chapter for o in s.operations)}
    assert affected(module, add_constant, monkeypatch) == of_chapter != set()


# No trial runs what its digest does not cover ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["base 1000", "hidden state and cell exchanged", "first sentence fed to the whole batch", "padding in the mean"],
)
def test_a_trial_runs_only_code_that_its_digest_covers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(SUBJECTS[name], "quick", 0)
    digest(trial, assigned=False)  # fills the cache of governing laws, which are part of the digest
    ran: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        ran[frame.f_code] = frame.f_globals.get("__name__", "")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        outcome = run_trial(trial)
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
    digest(trial, assigned=True)
    assert set(ours.values()) - covered == set()
    assert {code.co_name for code in ours if {"__doc__", "getdoc"} & {*code.co_names}} == set()


def functions_in_closure(function: Any) -> Iterator[Any]:
    yield function
    for cell in getattr(function, "__closure__", None) or ():
        if hasattr(cell.cell_contents, "__code__"):
            yield from functions_in_closure(cell.cell_contents)


def test_the_module_of_a_check_reaches_all_its_functions() -> None:
    for check in (check for checks in CHECKS.values() for check in checks):
        files = {f.__code__.co_filename for f in functions_in_closure(check.function)}
        reached = {str(FILES[m].path) for m in trial_digest._reached(check.function.__module__)}
        assert files <= reached, check.name


def test_modules_of_trials_import_attnspec_by_name() -> None:
    for name in trial_digest._reached(run_trial.__module__) | {n for n in FILES if ".laws." in n or ".mutants." in n}:
        for node in ast.walk(FILES[name].tree):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert [n for n in imported if n.startswith("attnspec")] in ([], ["attnspec.conformance.laws"]), name
