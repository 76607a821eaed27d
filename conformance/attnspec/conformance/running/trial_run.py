"""A run of trials: stored ones are skipped, new ones stored, within a time limit."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape

from attnspec.conformance.mutants import Mutant
from attnspec.conformance.running.kept_trials import KeptTrials
from attnspec.conformance.running.progress import Bar
from attnspec.conformance.running.trial_pool import outcomes
from attnspec.conformance.running.trials import LOST, Key, Outcome, Task
from attnspec.conformance.variants import Variant

SECONDS = {"quick": 120.0, "full": 1200.0, "release": 7200.0}
"""Seconds after which a task counts as hung, per profile."""

INCOMPLETE = 2
"""Exit status of a run that did not finish within its time."""


class TimeUp(Exception):
    """A run has used up its time; the message gives its progress and how to continue."""


@dataclass
class TrialRun:
    """Settings of a run of trials, timed from the creation of this object.

    ``workers``: number of processes; None: one per core; 0: everything in this process. ``minutes``: total time; None:
    no limit.
    """

    workers: int | None
    console: Console
    kept: KeptTrials | None = None
    minutes: float | None = None
    _start: float = field(default_factory=time.monotonic)

    def outcomes(self, tasks: Sequence[Task], limit: float) -> dict[Key, Outcome]:
        """Return the outcomes of tasks by key; each task may take ``limit`` seconds.

        Prints every harmed variant and surviving mutant immediately. Raises :class:`TimeUp` when the time is over,
        after at least one task.
        """
        found: dict[Key, Outcome] = {}
        bar = Bar(self.console, "judging", len(tasks))

        def count(task: Task, outcome: Outcome) -> None:
            found[task.key] = outcome
            self._name(task, outcome)
            bar.count(f"{len(found)} of {len(tasks)} trials judged")

        def done(task: Task, outcome: Outcome) -> None:
            count(task, outcome)
            if self.kept is not None:
                self.kept.add(task, outcome)
            if self._over and len(found) < len(tasks):
                where = "with --keep the same command goes on" if self.kept is None else "the same command goes on"
                raise TimeUp(f"{len(found)} of {len(tasks)} trials judged in {self.minutes:g} minutes: {where}")

        known = {} if self.kept is None else self.kept.outcomes(tasks)
        waiting = [task for task in tasks if task.key not in known]
        if self.kept is not None:
            where = escape(str(self.kept.path))
            self.console.print(f"trials kept in {where}: {len(known)}, judged anew: {len(waiting)}", soft_wrap=True)
        with bar:
            for task in tasks:
                if task.key in known:
                    count(task, known[task.key])
            outcomes(waiting, os.cpu_count() or 1 if self.workers is None else self.workers, limit, done)
        return found

    def _name(self, task: Task, outcome: Outcome) -> None:
        name, wrong = escape(task.subject.name), outcome.convicts
        if wrong and isinstance(task.subject, Variant):
            law = outcome.failures[0].law if outcome.failures else LOST
            self.console.print(f"[red]harmed[/red] {name} at seed {task.seed}: {law}")
        elif not wrong and isinstance(task.subject, Mutant):
            self.console.print(f"[red]survives[/red] {name} at seed {task.seed}")

    @property
    def _over(self) -> bool:
        return self.minutes is not None and time.monotonic() > self._start + 60 * self.minutes
