"""Messages of a backend's exceptions: printable, with its own frames, without those of the suite."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.foreign_calls import Raised, placed, printable
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
    """The message of an exception that a call of the backend raises."""
    (folder / "bad.py").write_text(BACKEND, encoding="utf-8")
    backend = load(str(folder / "bad.py"))
    subject = Subject(backend, Contract.of(backend), OPERATIONS[operation], "float64", "cpu")
    outcome = subject.result_or_raised(dict(zip(subject.operation.call.names, arguments, strict=False)))
    assert isinstance(outcome, Raised)
    return outcome.message


def test_an_exception_says_where_it_was_raised_and_who_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert message("dot_scores", tmp_path, 1, 2) == (
        r"AssertionError: too \x1b[2J wide, in inner (bad.py:8), "
        "called by middle (bad.py:12), called by dot_scores (bad.py:16)"
    )


def test_files_elsewhere_are_named_in_full(tmp_path: Path) -> None:
    assert f"in inner ({tmp_path / 'bad.py'}:8)" in message("dot_scores", tmp_path, 1, 2)


def test_only_the_raising_frame_of_a_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = message("softmax", tmp_path, 1)
    assert text.endswith("called by softmax (bad.py:20)")
    assert text.count(f"json{os.sep}") == 1


def test_a_call_with_wrong_arguments_has_no_place(tmp_path: Path) -> None:
    text = message("causal_mask", tmp_path, 1, 2)
    assert text.startswith("TypeError: causal_mask() takes")
    assert ", in " not in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain ± √d", "plain ± √d"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("two\nlines\r", r"two\nlines\r"),
        ("\u202egnp", r"\u202egnp"),
        ("\udc80", r"\udc80"),
    ],
)
def test_control_characters_are_escaped(text: str, escaped: str) -> None:
    assert printable(text) == escaped


def test_names_and_notes_of_a_backend_are_printable() -> None:
    notes = {"kernel\x07": "fast\x1b[0m"}
    contract = Contract.of(SimpleNamespace(name="loud\x1b[31m", notes=notes))
    assert (contract.name, dict(contract.notes)) == (r"loud\x1b[31m", {r"kernel\x07": r"fast\x1b[0m"})


def test_operations_without_arrays_are_called_on_the_device() -> None:
    current = ["cpu"]

    @contextmanager
    def default_device(device: str) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    backend = SimpleNamespace(causal_mask=lambda *_: current[-1], dot_scores=lambda *_: current[-1])
    assert placed(backend, "causal_mask", "cuda:0")() == "cpu"
    backend.default_device = default_device
    devices = [placed(backend, name, "cuda:0")() for name in ("causal_mask", "dot_scores")]
    assert devices == ["cuda:0", "cpu"]
    assert placed(backend, "causal_mask", "cpu")() == "cpu"
    assert placed(backend, "default_device", "cuda:0") is default_device
