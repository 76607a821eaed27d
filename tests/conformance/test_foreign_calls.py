"""What a backend's code raises, in words: printable, with the place, and without the frames of the suite."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.foreign_calls import Raised, printable
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.remote.loading import load
from attnspec.spec import OPERATIONS

BACKEND = """
import json

name = "bad"


def inner(query):
    assert query is None, "too \\x1b[2J wide"


def middle(query):
    inner(query)


def dot_scores(query, key):
    middle(query)


def softmax(scores, *, mask=None):
    return json.loads("{")


def causal_mask(n):
    return None
"""


def message(operation: str, folder: Path, *arguments: Any) -> str:
    """What is said of an exception in a call of the backend."""
    (folder / "bad.py").write_text(BACKEND, encoding="utf-8")
    backend = load(str(folder / "bad.py"))
    subject = Subject(backend, Contract.of(backend), OPERATIONS[operation], "float64", "cpu")
    found = subject.outcome(dict(zip(subject.operation.call.names, arguments, strict=False)))
    assert isinstance(found, Raised)
    return found.message


def test_an_exception_says_where_it_was_raised_and_who_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert message("dot_scores", tmp_path, 1, 2) == (
        r"AssertionError: too \x1b[2J wide, in inner (bad.py:8), "
        "called by middle (bad.py:12), called by dot_scores (bad.py:16)"
    )


def test_files_elsewhere_are_named_in_full(tmp_path: Path) -> None:
    assert f"in inner ({tmp_path / 'bad.py'}:8)" in message("dot_scores", tmp_path, 1, 2)


def test_of_a_library_only_what_raised_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = message("softmax", tmp_path, 1)
    assert said.endswith("called by softmax (bad.py:20)")
    assert said.count(f"json{os.sep}") == 1


def test_a_call_that_never_reaches_the_backend_has_no_place(tmp_path: Path) -> None:
    said = message("causal_mask", tmp_path, 1, 2)
    assert said.startswith("TypeError: causal_mask() takes")
    assert ", in " not in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ± √d", "plain ± √d"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("two\nlines\r", r"two\nlines\r"),
        ("\u202egnp", r"\u202egnp"),
        ("\udc80", r"\udc80"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_names_and_notes_of_a_backend_are_printable() -> None:
    notes = {"kernel\x07": "fast\x1b[0m"}
    contract = Contract.of(SimpleNamespace(name="loud\x1b[31m", notes=notes))
    assert (contract.name, dict(contract.notes)) == (r"loud\x1b[31m", {r"kernel\x07": r"fast\x1b[0m"})
