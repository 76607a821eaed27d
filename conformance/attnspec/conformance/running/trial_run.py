"""A run of trials within a time limit; stored outcomes are used, new ones stored."""

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
from attnspec.conformance.running.trials import LOST, Key, Trial, TrialOutcome
from attnspec.conformance.variants import Variant

SECONDS = {"quick": 120.0, "full": 1200.0, "release": 7200.0}
"""Seconds after which a trial counts as hung, per profile."""

INCOMPLETE = 2
"""Exit status of a run that did not finish within its time limit."""


class TimeUp(Exception):
    """The time limit of a run is over; the message says how to continue."""


@dataclass
class TrialRun:
    """Settings of a run of trials, timed from the creation of this object.

    ``workers``: number of processes, None for one per core, 0 for this process only. ``minutes``: time limit, None for
    none.
    """

    workers: int | None
    console: Console
    kept: KeptTrials | None = None
    minutes: float | None = None
    _start: float = field(default_factory=time.monotonic)

    def outcomes(self, trials: Sequence[Trial], limit: float) -> dict[Key, TrialOutcome]:
        """Return the outcomes of trials by key; each trial may take ``limit`` seconds.

        Prints every harmed variant and surviving mutant immediately. Raises :class:`TimeUp` when the time is over,
        after at least one trial.
        """
        judged: dict[Key, TrialOutcome] = {}
        bar = Bar(self.console, "judging", len(trials))

        def count(trial: Trial, outcome: TrialOutcome) -> None:
            judged[trial.key] = outcome
            self._print_unwanted(trial, outcome)
            bar.count(f"{len(judged)} of {len(trials)} trials judged")

        def done(trial: Trial, outcome: TrialOutcome) -> None:
            count(trial, outcome)
            if self.kept is not None:
                self.kept.add(trial, outcome)
            over = self.minutes is not None and time.monotonic() > self._start + 60 * self.minutes
            if over and len(judged) < len(trials):
                how = "with --keep it could continue" if self.kept is None else "the same command continues"
                raise TimeUp(f"{len(judged)} of {len(trials)} trials judged in {self.minutes:g} minutes: {how}")

        stored = {} if self.kept is None else self.kept.outcomes(trials)
        waiting = [trial for trial in trials if trial.key not in stored]
        if self.kept is not None:
            where = escape(str(self.kept.path))
            self.console.print(f"trials kept in {where}: {len(stored)}, judged anew: {len(waiting)}", soft_wrap=True)
        with bar:
            for trial in trials:
                if trial.key in stored:
                    count(trial, stored[trial.key])
            outcomes(waiting, os.cpu_count() or 1 if self.workers is None else self.workers, limit, done)
        return judged

    def _print_unwanted(self, trial: Trial, outcome: TrialOutcome) -> None:
        name, wrong = escape(trial.subject.name), outcome.convicts
        if wrong and isinstance(trial.subject, Variant):
            law = outcome.failures[0].law if outcome.failures else LOST
            self.console.print(f"[red]harmed[/red] {name} at seed {trial.seed}: {law}")
        elif not wrong and isinstance(trial.subject, Mutant):
            self.console.print(f"[red]survives[/red] {name} at seed {trial.seed}")
