"""Trials that are kept in a file, so that a run which is broken off goes on where it was."""

import hashlib
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from attnspec.conformance.running.trials import Failure, Outcome, Task

SCHEMA = "attnspec-trials/1"

JUDGES = ("spec", "reference", "conformance")
"""What an outcome depends on, of the packages in ``attnspec``."""


def digest() -> str:
    """A digest of the specification, the reference and the suite: of laws, inputs, mutants and variants."""
    found = hashlib.sha256()
    for name in JUDGES:
        for folder in import_module(f"attnspec.{name}").__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                found.update(f"{name}/{path.relative_to(folder).as_posix()}\n".encode())
                found.update(path.read_bytes())
    return found.hexdigest()[:16]


class KeptTrials:
    """The outcomes in a file of JSON lines, of which the first says what they were judged by.

    ``ValueError`` for a file of something else, or of trials that were judged by other laws.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[tuple[str, str, int, bool], Outcome] = {}
        head = {"schema": SCHEMA, "digest": digest()}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1] or text
        rows = [_read(line) for line in whole.splitlines()]
        if rows and rows[0].get("schema") != SCHEMA:
            raise ValueError(f"{path}: expected trials that 'attnspec mutants --keep' wrote; got something else")
        if rows and rows[0] != head:
            expected, got = head["digest"], rows[0].get("digest")
            raise ValueError(f"{path}: expected trials judged by the present suite, {expected}; got {got}")
        for row in rows[1:]:
            failures = tuple(Failure(*f) for f in row["failures"])
            key = (row["subject"], row["profile"], row["seed"], row["every"])
            self._outcomes[key] = Outcome(failures, row["checks"], row["seconds"], row["largest"], row["lost"])
        # A line that was not written to its end is not kept.
        path.write_text(whole or json.dumps(head) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._outcomes)

    def outcome(self, task: Task) -> Outcome | None:
        """What became of a task; None if it was not judged yet."""
        return self._outcomes.get(_key(task))

    def add(self, task: Task, outcome: Outcome) -> None:
        """Keep what became of a task."""
        self._outcomes[_key(task)] = outcome
        subject, profile, seed, every = _key(task)
        row = {
            "subject": subject,
            "profile": profile,
            "seed": seed,
            "every": every,
            "failures": outcome.failures,
            "checks": outcome.evaluations,
            "seconds": round(outcome.seconds, 3),
            "largest": outcome.largest,
            "lost": outcome.lost,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _key(task: Task) -> tuple[str, str, int, bool]:
    return task.subject.name, task.profile, task.seed, task.every


def _read(line: str) -> dict[str, Any]:
    """A line as an object, an empty one for a line that is none."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
