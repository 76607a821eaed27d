"""The kill matrix: which laws kill which mutants, and whether any honest variant fails a law.

The suite passes if every mutant is killed at every seed and no honest variant is harmed, that is fails a law.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.reporting.writing import OutputFile
from attnspec.conformance.running.kept_trials import KeptTrials
from attnspec.conformance.running.trial_run import INCOMPLETE, SECONDS, TimeUp, TrialRun
from attnspec.conformance.running.trials import LOST, Trial, TrialOutcome
from attnspec.conformance.variants import VARIANTS, Variant

SCHEMA = "attnspec-mutants/1"

MAX_NAMED_LAWS = 3
"""Largest number of killing laws named per mutant; ``--matrix`` adds a table of all."""


@dataclass(frozen=True)
class Row:
    """Outcomes of one mutant or variant over all seeds."""

    subject: Mutant | Variant
    outcomes: Sequence[TrialOutcome]

    @property
    def assigned(self) -> tuple[str, ...]:
        """Laws that must kill the mutant; empty for a variant."""
        return self.subject.breaks if isinstance(self.subject, Mutant) else ()

    @property
    def kills(self) -> int:
        """Number of seeds at which the mutant was killed, or the variant harmed."""
        return sum(o.convicts for o in self.outcomes)

    @property
    def survived(self) -> list[int]:
        """Seeds at which the mutant was not killed, or the variant not harmed."""
        return [seed for seed, o in enumerate(self.outcomes) if not o.convicts]

    @property
    def powerless(self) -> list[str]:
        """Assigned laws that fail to kill the mutant on their own."""
        powerless = {law for o in self.outcomes for law in o.powerless}
        return [law for law in self.assigned if law in powerless]

    @property
    def evaluations(self) -> int:
        """Checks of a law on an example, over all seeds."""
        return sum(o.evaluations for o in self.outcomes)

    @property
    def largest(self) -> float:
        """The largest error ratio of laws that held."""
        return max((o.largest for o in self.outcomes), default=0.0)

    @property
    def laws(self) -> dict[str, int]:
        """Number of seeds at which each law failed, largest first."""
        counts: dict[str, int] = {}
        for o in self.outcomes:
            for law in {f.law for f in o.failures} | ({LOST} if o.lost else set()):
                counts[law] = counts.get(law, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class KillMatrix:
    """Outcomes of all mutants and honest variants.

    ``every_law`` is True if each mutant was judged by every law, instead of until the first one killed it.
    ``not_tried`` gives the reason for each variant that cannot run on this system.
    """

    profile: str
    seeds: int
    every_law: bool
    mutants: Sequence[Row]
    variants: Sequence[Row]
    not_tried: Mapping[str, str] = field(default_factory=dict)

    @property
    def killed(self) -> int:
        """Number of mutants killed at every seed."""
        return sum(row.kills == self.seeds for row in self.mutants)

    @property
    def harmed(self) -> int:
        """Number of variants harmed at some seed."""
        return sum(row.kills > 0 for row in self.variants)

    @property
    def exit_status(self) -> int:
        """0 if all mutants are killed, assigned laws suffice, and no variant is harmed; else 1."""
        powerless = any(row.powerless for row in self.mutants)
        return 0 if self.killed == len(self.mutants) and not powerless and not self.harmed else 1

    @property
    def only_killer(self) -> dict[str, list[str]]:
        """Per law, the mutants that no other law kills; empty unless mutants were judged by every law."""
        mutants: dict[str, list[str]] = {}
        for row in self.mutants if self.every_law else ():
            if len(row.laws) == 1:
                mutants.setdefault(next(iter(row.laws)), []).append(row.subject.name)
        return dict(sorted(mutants.items()))

    @property
    def false_alarm_bound(self) -> float | None:
        """Upper bound (95 %) of the false-alarm rate; None after an alarm or without checks."""
        checks = sum(row.evaluations for row in self.variants)
        return 3 / checks if checks and not self.harmed else None  # the rule of three

    def as_json(self) -> dict[str, Any]:
        """Return the matrix as plain JSON."""
        return {
            "schema": SCHEMA,
            "profile": self.profile,
            "seeds": self.seeds,
            "matrix": self.every_law,
            "mutants": [
                {
                    "name": row.subject.name,
                    "chapter": row.subject.chapter,
                    "statement": row.subject.statement,
                    "source": row.subject.source if isinstance(row.subject, Mutant) else "",
                    "operations": list(row.subject.operations),
                    "assigned": list(row.assigned),
                    "killed": row.kills,
                    "survived_seeds": row.survived,
                    "powerless": row.powerless,
                    "laws": row.laws,
                    "checks": row.evaluations,
                }
                for row in self.mutants
            ],
            "variants": [
                {
                    "name": row.subject.name,
                    "statement": row.subject.statement,
                    "operations": list(row.subject.operations),
                    "checks": row.evaluations,
                    "harmed": row.kills,
                    "laws": row.laws,
                    "largest_error_ratio": row.largest,
                    "failures": [list(f) for o in row.outcomes for f in o.failures],
                }
                for row in self.variants
            ],
            "only_killer": self.only_killer,
            "not_tried": dict(self.not_tried),
            "false_alarm_bound": self.false_alarm_bound,
            "exit_status": self.exit_status,
        }


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
    """Judge mutants and variants, print the outcomes, and return the exit status.

    ``workers`` is the number of processes, None for one per core, 0 for everything in this process. ``matrix`` judges
    each mutant by every law, instead of until the first one kills it. Trials in ``kept`` are not repeated; new ones are
    added to it. After ``minutes`` the run stops and prints its progress. Variants that this system cannot run are
    skipped; their names and the reasons are printed.
    """
    not_tried = {name: reason for name, v in variants.items() if (reason := v.lacking())}
    variants = {name: v for name, v in variants.items() if name not in not_tried}
    # Variants take longest. They come first, so that no process is still busy with one when all others are idle.
    subjects: list[Mutant | Variant] = [*variants.values(), *mutants.values()]
    trials = [Trial(subject, profile, seed, every_law=matrix) for seed in range(seeds) for subject in subjects]
    run = TrialRun(workers, console, kept, minutes)
    try:
        outcomes = run.outcomes(trials, SECONDS[profile])
    except TimeUp as error:
        console.print(str(error))
        return INCOMPLETE

    def rows(group: Mapping[str, Mutant] | Mapping[str, Variant]) -> list[Row]:
        return [Row(s, [outcomes[s.name, profile, seed, matrix] for seed in range(seeds)]) for s in group.values()]

    kill_matrix = KillMatrix(profile, seeds, matrix, rows(mutants), rows(variants), not_tried)
    _print(kill_matrix, console)
    if file is not None:
        file.write(json.dumps(kill_matrix.as_json(), indent=1) + "\n")
    return kill_matrix.exit_status


# Tables ---------------------------------------------------------------------------------------------------------------


def _print(matrix: KillMatrix, console: Console) -> None:
    """Print the tables of mutants and variants, and of laws if every law judged mutants."""
    seeds = f"{matrix.seeds} seed{'s' * (matrix.seeds != 1)}"
    if matrix.mutants:
        console.print(_mutant_table(matrix, seeds))
        for row in matrix.mutants:
            for law in row.powerless:
                name = escape(row.subject.name)
                console.print(f"[red]powerless[/red] {name}: expected its law {law} to kill it alone", soft_wrap=True)
        if matrix.every_law:
            console.print(_law_table(matrix, seeds))
        elif matrix.seeds > 1:
            console.print("At seed 0 each assigned law was tried alone; at other seeds only until one killed.")
    if matrix.variants:
        console.print(_variant_table(matrix, seeds))
        if matrix.false_alarm_bound is not None:
            total, bound = sum(row.evaluations for row in matrix.variants), matrix.false_alarm_bound
            console.print(f"No false alarm in {total} checks: the rate is below {bound:.1e}, with 95 % confidence.")
    for name, reason in matrix.not_tried.items():
        console.print(f"[yellow]not tried[/yellow] {escape(name)}: {escape(reason)}")
    killed = [f"{matrix.killed} of {len(matrix.mutants)} mutants killed"] if matrix.mutants else []
    harmed = [f"{matrix.harmed} of {len(matrix.variants)} honest variants harmed"] if matrix.variants else []
    console.print(", ".join(killed + harmed), highlight=False)


def _table(title: str, columns: str) -> Table:
    """Return a table with comma-separated column titles; ``#`` marks columns of numbers."""
    table = Table(title=title)
    for column in columns.split(", "):
        table.add_column(column.removeprefix("#"), overflow="fold", justify="right" if column[0] == "#" else "left")
    return table


def _mutant_table(matrix: KillMatrix, seeds: str) -> Table:
    title = f"Mutants: {matrix.killed} of {len(matrix.mutants)} killed at {seeds}"
    table = _table(title, "mutant, chapter, #killed, by (seeds), #checks")
    for row in sorted(matrix.mutants, key=lambda row: (row.kills, row.subject.chapter, row.subject.name)):
        shown = [f"{law} ({n})" for law, n in row.laws.items()]
        laws = ", ".join(shown[:MAX_NAMED_LAWS] + ["…"] * (len(shown) > MAX_NAMED_LAWS)) or "nothing"
        judged_in_full = isinstance(row.subject, Mutant) and row.subject.profile == "full"
        name = escape(row.subject.name) + (" (judged in full)" if judged_in_full else "")
        kills, checks = f"{row.kills}/{matrix.seeds}", f"{row.evaluations / max(len(row.outcomes), 1):.0f}"
        style = "red" if row.kills < matrix.seeds else None
        table.add_row(name, row.subject.chapter, kills, laws, checks, style=style)
    return table


def _law_table(matrix: KillMatrix, seeds: str) -> Table:
    table = _table(f"Laws that kill each mutant, and at how many of {seeds} (* assigned)", "mutant, laws")
    for row in matrix.mutants:
        counts = dict.fromkeys(row.assigned, 0) | row.laws
        laws = sorted(counts, key=lambda law: (law not in row.assigned, -counts[law], law))
        shown = ", ".join(f"{'*' if law in row.assigned else ''}{law} {counts[law]}" for law in laws)
        weak = any(counts[law] < matrix.seeds for law in row.assigned)
        table.add_row(escape(row.subject.name), shown, style="yellow" if weak else None)
    return table


def _variant_table(matrix: KillMatrix, seeds: str) -> Table:
    title = f"Honest variants: {matrix.harmed} of {len(matrix.variants)} harmed at {seeds}"
    table = _table(title, "variant, #checks, #harmed, #largest ratio, by")
    for row in sorted(matrix.variants, key=lambda row: (-row.kills, row.subject.name)):
        laws = ", ".join(f"{law} ({n})" for law, n in row.laws.items())
        numbers = str(row.evaluations), f"{row.kills}/{matrix.seeds}", f"{row.largest:.2f}"
        table.add_row(escape(row.subject.name), *numbers, laws, style="red" if row.kills else None)
    return table
