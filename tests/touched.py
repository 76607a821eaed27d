"""The test files that a change touches: ``python -m tests.touched [COMMIT]`` prints them, for ``nox -s check``.

A test file is touched if it is changed, or if it imports a changed module: directly, through a package that gathers
modules, or through a module of the tests. A test that starts a command shows no such import; the whole suite runs it.
Where only docstrings and comments of a module differ, the tests of prose are enough.
"""

import ast
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

from attnspec.conformance.running.trial_digest import without_docstrings
from tests.modules import ROOT, Module, modules

ALWAYS = ("tests/test_architecture.py", "tests/test_names.py", "tests/test_tolerances.py")
"""Tests of the tree as a whole."""

PROSE_TESTS = (
    *ALWAYS,
    "tests/test_docs.py",
    "tests/spec/test_documentation.py",
    "tests/conformance/test_catalogue.py",
    "tests/conformance/test_specification.py",
)
"""Tests of prose: docstrings become documentation."""

TOUCHING_ALL = ("pyproject.toml", "constraints.txt", "conftest.py", "noxfile.py")
"""Files whose change touches every test."""

NEW = ("ls-files", "--others", "--exclude-standard")

TESTS = {path: Module(".", path) for path in sorted((ROOT / "tests").rglob("*.py"))}
SOURCES = {module.path: module for module in modules()}
BY_NAME = {module.name: module for module in (*TESTS.values(), *SOURCES.values())}


def changed_since(commit: str) -> list[Path]:
    """The new files, and those that differ from the merge base with a commit."""
    merge_base = _git("merge-base", "HEAD", commit)
    return [ROOT / line for call in (("diff", "--name-only", *merge_base), NEW) for line in _git(*call)]


def changed_in_prose_only(commit: str, changed: Collection[Path]) -> list[Path]:
    """The changed modules of which only docstrings and comments differ from the commit."""
    (merge_base,) = _git("merge-base", "HEAD", commit)
    known = {*_git("ls-tree", "-r", "--name-only", merge_base)}
    before = {path: path.relative_to(ROOT).as_posix() for path in changed if path in SOURCES}
    return [
        path
        for path, name in before.items()
        if name in known and code(path.read_text("utf-8")) == code("\n".join(_git("show", f"{merge_base}:{name}")))
    ]


def code(text: str) -> str:
    """A module without docstrings, comments and layout."""
    return ast.dump(without_docstrings(text))


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def touched(changed: Collection[Path], prose_only: Collection[Path] = ()) -> list[str]:
    """The test files to run after a change, relative to the root; some files changed in prose only."""
    if any(path.name in TOUCHING_ALL for path in changed):
        return ["tests"]
    importers = {
        path for path in TESTS if path.name.startswith("test_") and _files_used_by(path) & {*changed} - {*prose_only}
    }
    pages = {ROOT / "tests/test_docs.py"} if any(path.suffix == ".md" for path in changed) else set()
    if any(path.is_relative_to(ROOT / "proofs") for path in changed):
        pages |= {ROOT / "tests/test_proofs.py", ROOT / "tests/reference/test_proved_bound.py"}
    always_run = PROSE_TESTS if prose_only else ALWAYS
    return sorted({*always_run, *(str(path.relative_to(ROOT)) for path in importers | pages)})


def _files_used_by(test: Path) -> set[Path]:
    """A test file and its imports, followed through modules of the tests and through packages."""
    files, pending = {test}, [TESTS[test]]
    while pending:
        for other in _imported(pending.pop()):
            if other.path not in files:
                files.add(other.path)
                if other.path in TESTS or other.path.name == "__init__.py":
                    pending.append(other)
    return files


@cache
def _imported(module: Module) -> tuple[Module, ...]:
    """The modules of this project that a module imports."""
    names = dict.fromkeys(module.imports())
    candidates = (BY_NAME.get(name) or BY_NAME.get(name.rpartition(".")[0]) for name in names)
    return tuple(dict.fromkeys(other for other in candidates if other is not None))


if __name__ == "__main__":
    (since,) = sys.argv[1:] or ["origin/main"]
    differing = changed_since(since)
    print("\n".join(touched(differing, changed_in_prose_only(since, differing))))
