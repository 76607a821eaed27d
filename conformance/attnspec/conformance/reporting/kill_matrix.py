"""The kill matrix: every mutant must be killed at every seed, and no honest variant harmed."""

import json
from collections.abc import Mapping

from rich.console import Console

from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.reporting.kill_report import KillMatrix, Row
from attnspec.conformance.reporting.kill_tables import print_kill_matrix
from attnspec.conformance.reporting.writing import OutputFile
from attnspec.conformance.running.kept_trials import KeptTrials
from attnspec.conformance.running.trial_run import INCOMPLETE, SECONDS, TimeUp, TrialRun
from attnspec.conformance.running.trials import Task
from attnspec.conformance.variants import VARIANTS, Variant


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
    run = TrialRun(workers, console, kept, minutes)
    try:
        found = run.outcomes(tasks, SECONDS[profile])
    except TimeUp as error:
        console.print(str(error))
        return INCOMPLETE

    def rows(group: Mapping[str, Mutant] | Mapping[str, Variant]) -> list[Row]:
        return [Row(s, [found[s.name, profile, seed, matrix] for seed in range(seeds)]) for s in group.values()]

    result = KillMatrix(profile, seeds, matrix, rows(mutants), rows(variants), not_tried)
    print_kill_matrix(result, console)
    if file is not None:
        file.write(json.dumps(result.as_json(), indent=1) + "\n")
    return result.exit_status
