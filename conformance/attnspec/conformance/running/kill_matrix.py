"""The kill matrix: every mutant must be killed at every seed, and no honest variant harmed."""

import json
import os
import time
from collections.abc import Mapping

from rich.console import Console

from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.reporting.kill_report import KillMatrix, Row
from attnspec.conformance.reporting.kill_tables import TrialProgress, print_kill_matrix
from attnspec.conformance.reporting.writing import OutputFile
from attnspec.conformance.running.kept_trials import KeptTrials
from attnspec.conformance.running.trial_pool import outcomes
from attnspec.conformance.running.trials import Outcome, Task
from attnspec.conformance.variants import VARIANTS, Variant

SECONDS = {"quick": 120.0, "full": 1200.0, "release": 7200.0}
"""After which a task counts as hung, for each profile."""


INCOMPLETE = 2
"""The exit status of a run that was not finished in its time."""


class TimeUp(Exception):
    """A run took all the time that it was given."""


def judge_mutants(
    profile: str,
    seeds: int,
    matrix: bool,
    workers: int | None,
    file: OutputFile | None,
    console: Console,
    *,
    mutants: Mapping[str, Mutant] = MUTANTS,
    variants: Mapping[str, Variant] = VARIANTS,
    kept: KeptTrials | None = None,
    minutes: float | None = None,
) -> int:
    """Judge mutants and variants and print what became of them.

    ``workers``: processes, None for one per core, 0 for none (everything in this process). ``matrix`` goes on after the
    first violation and finds every law that kills a mutant. Trials that are ``kept`` are not repeated, and those that
    end are kept with them. A run of so many ``minutes`` says how far it came. Variants for which the system lacks
    something are not judged, and named with what it is. Returns the exit status.
    """
    not_tried = {name: reason for name, v in variants.items() if (reason := v.lacking())}
    variants = {name: v for name, v in variants.items() if name not in not_tried}
    # Variants, which take longest, come first.
    subjects: list[Mutant | Variant] = [*variants.values(), *mutants.values()]
    tasks = [Task(subject, profile, seed, every=matrix) for seed in range(seeds) for subject in subjects]
    found: dict[tuple[str, int], Outcome] = {}
    end = None if minutes is None else time.monotonic() + 60 * minutes
    with TrialProgress(len(tasks), console) as progress:

        def count(task: Task, outcome: Outcome) -> None:
            found[task.subject.name, task.seed] = outcome
            progress.done(task, outcome)

        def done(task: Task, outcome: Outcome) -> None:
            count(task, outcome)
            if kept is not None:
                kept.add(task, outcome)
            if end is not None and time.monotonic() > end and len(found) < len(tasks):
                raise TimeUp

        waiting = []
        for task in tasks:
            known = None if kept is None else kept.outcome(task)
            if known is None:
                waiting.append(task)
            else:
                count(task, known)
        try:
            outcomes(waiting, os.cpu_count() or 1 if workers is None else workers, SECONDS[profile], done)
        except TimeUp:
            where = "with --keep the same command goes on" if kept is None else "the same command goes on"
            console.print(f"{len(found)} of {len(tasks)} trials judged in {minutes:g} minutes: {where}")
            return INCOMPLETE

    def rows(group: Mapping[str, Mutant] | Mapping[str, Variant]) -> list[Row]:
        return [Row(s, [found[s.name, seed] for seed in range(seeds)]) for s in group.values()]

    result = KillMatrix(profile, seeds, matrix, rows(mutants), rows(variants), not_tried)
    print_kill_matrix(result, console)
    if file is not None:
        file.write(json.dumps(result.as_json(), indent=1) + "\n")
    return result.exit_status
