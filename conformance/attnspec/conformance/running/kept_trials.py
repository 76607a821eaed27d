"""Outcomes of trials in a file: interrupted runs continue, unchanged trials are not repeated."""

import json
from collections.abc import Sequence
from pathlib import Path

from attnspec.conformance.running.probe import json_object
from attnspec.conformance.running.trial_digest import digest
from attnspec.conformance.running.trials import Failure, Key, Trial, TrialOutcome

SCHEMA = "attnspec-trials/3"


class KeptTrials:
    """Outcomes in a file of JSON lines, each with the digest of its code.

    Raises ``ValueError`` for another kind of file, or another schema.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[Key, tuple[str, TrialOutcome]] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        complete = text[: text.rfind("\n") + 1] or text
        header, *rows = [json_object(line) or {} for line in complete.splitlines()] or [{"schema": SCHEMA}]
        if header.get("schema") != SCHEMA:
            raise ValueError(
                f"{path}: expected trials that 'attnspec mutants --keep' wrote, {SCHEMA}; "
                f"got {header.get('schema', 'something else')}; name a new file, or remove this one"
            )
        for row in rows:
            key = (row["subject"], row["profile"], row["seed"], row["every"])
            failures = tuple(Failure(*f) for f in row["failures"])
            kept = {name: row[name] for name in ("seconds", "largest", "lost", "assigned")}
            outcome = TrialOutcome(failures, row["checks"], **kept, powerless=tuple(row["powerless"]))
            self._rows[key] = row["digest"], outcome
        # Written again without an incomplete last line, which an interrupted run may leave.
        path.write_text(complete or json.dumps(header) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._rows)

    def outcomes(self, trials: Sequence[Trial]) -> dict[Key, TrialOutcome]:
        """Return stored outcomes of trials whose code has not changed since."""
        outcomes = {}
        for trial in trials:
            # Both digests are computed now and cached: code may change while trials run.
            digests = {assigned: digest(trial, assigned=assigned) for assigned in (False, True)}
            stored_digest, outcome = self._rows.get(trial.key, ("", None))
            if outcome is not None and stored_digest == digests[outcome.assigned]:
                outcomes[trial.key] = outcome
        return outcomes

    def add(self, trial: Trial, outcome: TrialOutcome) -> None:
        """Store a trial's outcome, replacing an older one."""
        code_digest = digest(trial, assigned=outcome.assigned)
        self._rows[trial.key] = code_digest, outcome
        subject, profile, seed, every_law = trial.key
        row = {
            "subject": subject,
            "profile": profile,
            "seed": seed,
            "every": every_law,
            "digest": code_digest,
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
