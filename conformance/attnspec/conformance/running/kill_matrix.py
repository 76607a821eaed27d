"""The kill matrix: every mutant must be killed at every seed, and no honest variant harmed."""

import json
import os
from collections.abc import Mapping

from rich.console import Console

from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.reporting.kill_report import KillMatrix, Row
from attnspec.conformance.reporting.kill_tables import TrialProgress, print_kill_matrix
from attnspec.conformance.reporting.writing import OutputFile
from attnspec.conformance.running.trial_pool import outcomes
from attnspec.conformance.running.trials import Outcome, Task
from attnspec.conformance.variants import VARIANTS, Variant

SECONDS = {"quick": 120.0, "full": 1200.0, "release": 7200.0}
"""After which a task counts as hung, for each profile."""


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
) -> int:
    """Judge mutants and variants and print what became of them.

    ``workers``: processes, None for one per core, 0 for none (everything in this process). ``matrix`` goes on after the
    first violation and finds every law that kills a mutant. Returns the exit status.
    """
    # Variants, which take longest, come first.
    subjects: list[Mutant | Variant] = [*variants.values(), *mutants.values()]
    tasks = [Task(subject, profile, seed, every=matrix) for seed in range(seeds) for subject in subjects]
    with TrialProgress(len(tasks), console) as progress:
        found = outcomes(tasks, os.cpu_count() or 1 if workers is None else workers, SECONDS[profile], progress.done)
    by_name: dict[str, list[Outcome]] = {}
    for task, outcome in zip(tasks, found, strict=True):
        by_name.setdefault(task.subject.name, []).append(outcome)
    judged, spared = ([Row(s, by_name[s.name]) for s in group.values()] for group in (mutants, variants))
    result = KillMatrix(profile, seeds, matrix, judged, spared)
    print_kill_matrix(result, console)
    if file is not None:
        file.write(json.dumps(result.as_json(), indent=1) + "\n")
    return result.exit_status
