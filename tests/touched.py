"""The test files that a change touches: ``python -m tests.touched [COMMIT]`` prints them, for ``nox -s check``.

A test file is touched if it is changed, or if it imports a changed module, by itself, through a package that gathers
modules, or through a module of the tests. What starts a command imports nothing that tells: the whole suite runs it.
Where only docstrings and comments of a module differ, the tests of what people read are enough.
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

OF_SENTENCES = (
    *ALWAYS,
    "tests/test_docs.py",
    "tests/spec/test_documentation.py",
    "tests/conformance/test_catalogue.py",
    "tests/conformance/test_specification.py",
)
"""Tests of what people read: docstrings become documentation."""

OF_ALL = ("pyproject.toml", "constraints.txt", "conftest.py", "noxfile.py")
"""Files whose change touches every test."""

NEW = ("ls-files", "--others", "--exclude-standard")

TESTS = {path: Module(".", path) for path in sorted((ROOT / "tests").rglob("*.py"))}
SOURCES = {module.path: module for module in modules()}
BY_NAME = {module.name: module for module in (*TESTS.values(), *SOURCES.values())}


def changed_since(commit: str) -> list[Path]:
    """The files that differ from the last commit that this tree shares with another, and those that are new."""
    shared = _git("merge-base", "HEAD", commit)
    return [ROOT / line for call in (("diff", "--name-only", *shared), NEW) for line in _git(*call)]


def said_otherwise(commit: str, changed: Collection[Path]) -> list[Path]:
    """The modules among these of which only docstrings and comments differ from that commit."""
    (shared,) = _git("merge-base", "HEAD", commit)
    known = {*_git("ls-tree", "-r", "--name-only", shared)}
    before = {path: path.relative_to(ROOT).as_posix() for path in changed if path in SOURCES}
    return [
        path
        for path, name in before.items()
        if name in known and code(path.read_text("utf-8")) == code("\n".join(_git("show", f"{shared}:{name}")))
    ]


def code(text: str) -> str:
    """A module without docstrings, comments and layout."""
    return ast.dump(without_docstrings(text))


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def touched(changed: Collection[Path], sentences: Collection[Path] = ()) -> list[str]:
    """The test files that a change of these files touches, relative to the root; of some only sentences differ."""
    if any(path.name in OF_ALL for path in changed):
        return ["tests"]
    found = {path for path in TESTS if path.name.startswith("test_") and _reached(path) & {*changed} - {*sentences}}
    pages = {ROOT / "tests/test_docs.py"} if any(path.suffix == ".md" for path in changed) else set()
    read = OF_SENTENCES if sentences else ALWAYS
    return sorted({*read, *(str(path.relative_to(ROOT)) for path in found | pages)})


def _reached(test: Path) -> set[Path]:
    """A test file, what it imports, what modules of the tests do that it imports, and what packages gather."""
    found, open_ = {test}, [TESTS[test]]
    while open_:
        for other in _imported(open_.pop()):
            if other.path not in found:
                found.add(other.path)
                if other.path in TESTS or other.path.name == "__init__.py":
                    open_.append(other)
    return found


@cache
def _imported(module: Module) -> tuple[Module, ...]:
    """The modules of this project that a module imports."""
    names = dict.fromkeys(module.imports())
    found = (BY_NAME.get(name) or BY_NAME.get(name.rpartition(".")[0]) for name in names)
    return tuple(dict.fromkeys(other for other in found if other is not None))


if __name__ == "__main__":
    (since,) = sys.argv[1:] or ["origin/main"]
    differing = changed_since(since)
    print("\n".join(touched(differing, said_otherwise(since, differing))))
