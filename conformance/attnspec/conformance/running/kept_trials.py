"""Trials stored in a file: interrupted runs continue, and changed code repeats only the trials it affects."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnspec.conformance.running.trial_digest import digest
from attnspec.conformance.running.trials import Failure, Key, Outcome, Task

SCHEMA = "attnspec-trials/3"


class KeptTrials:
    """Outcomes in a file of JSON lines, with the digest of each trial's code.

    Raises ``ValueError`` for another kind of file, or another schema.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[Key, tuple[str, Outcome]] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1] or text
        head, *rows = [_read(line) for line in whole.splitlines()] or [{"schema": SCHEMA}]
        if head.get("schema") != SCHEMA:
            raise ValueError(
                f"{path}: expected trials that 'attnspec mutants --keep' wrote, {SCHEMA}; "
                f"got {head.get('schema', 'something else')}; name a new file, or remove this one"
            )
        for row in rows:
            key = (row["subject"], row["profile"], row["seed"], row["every"])
            failures = tuple(Failure(*f) for f in row["failures"])
            outcome = Outcome(
                failures,
                row["checks"],
                row["seconds"],
                row["largest"],
                row["lost"],
                tuple(row["powerless"]),
                row["assigned"],
            )
            self._rows[key] = row["digest"], outcome
        # An incomplete last line is dropped.
        path.write_text(whole or json.dumps(head) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._rows)

    def outcomes(self, tasks: Sequence[Task]) -> dict[Key, Outcome]:
        """Return stored outcomes of tasks whose code has not changed since."""
        found = {}
        for task in tasks:
            # Both digests are computed before anything is judged: code may change while trials run.
            today = {assigned: digest(task, assigned=assigned) for assigned in (False, True)}
            judged_by, outcome = self._rows.get(task.key, ("", None))
            if outcome is not None and judged_by == today[outcome.assigned]:
                found[task.key] = outcome
        return found

    def add(self, task: Task, outcome: Outcome) -> None:
        """Store a task's outcome, replacing an older one."""
        now = digest(task, assigned=outcome.assigned)
        self._rows[task.key] = now, outcome
        subject, profile, seed, every = task.key
        row = {
            "subject": subject,
            "profile": profile,
            "seed": seed,
            "every": every,
            "digest": now,
            "failures": outcome.failures,
            "checks": outcome.evaluations,
            "seconds": round(outcome.seconds, 3),
            "largest": outcome.largest,
            "lost": outcome.lost,
            "powerless": outcome.powerless,
            "assigned": outcome.assigned,
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _read(line: str) -> dict[str, Any]:
    """Parse a line as a JSON object; return an empty dict if it is not one."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
