"""The kill matrix as people read it."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnspec.conformance.mutants import Mutant
from attnspec.conformance.reporting.kill_report import KillMatrix

MOST = 3
"""Laws that are named beside a mutant; with ``--matrix`` there is a table of all."""


def print_kill_matrix(matrix: KillMatrix, console: Console) -> None:
    """What became of the mutants, by every law if they were judged so, and of the variants."""
    if matrix.mutants:
        console.print(mutants_table(matrix))
        for row in matrix.mutants:
            for law in row.powerless:
                console.print(
                    f"[red]powerless[/red] {escape(row.subject.name)}: expected {law} alone to kill it; it does not",
                    soft_wrap=True,
                )
        if matrix.every:
            console.print(laws_table(matrix))
    if matrix.variants:
        console.print(variants_table(matrix))
        if matrix.false_alarm_bound is not None:
            total, bound = sum(row.evaluations for row in matrix.variants), matrix.false_alarm_bound
            console.print(f"No false alarm in {total} checks: their rate is below {bound:.1e} (95 %).")
    for name, reason in matrix.not_tried.items():
        console.print(f"[yellow]not tried[/yellow] {escape(name)}: {escape(reason)}")


def _seeds(matrix: KillMatrix) -> str:
    return f"{matrix.seeds} seed{'s' * (matrix.seeds != 1)}"


def mutants_table(matrix: KillMatrix) -> Table:
    """Every mutant, survivors first."""
    title = f"Mutants: {matrix.killed} of {len(matrix.mutants)} killed at {_seeds(matrix)}"
    table = Table(title=title, caption="full: judged in full, for quick has no time for the laws that kill it")
    for column in ("mutant", "chapter"):
        table.add_column(column, overflow="fold")
    table.add_column("killed", justify="right")
    table.add_column("by (seeds)", overflow="fold")
    table.add_column("checks", justify="right")
    for row in sorted(matrix.mutants, key=lambda row: (row.kills, row.subject.chapter, row.subject.name)):
        style = "red" if row.kills < matrix.seeds else None
        shown = [f"{law} ({n})" for law, n in row.laws.items()]
        laws = ", ".join(shown[:MOST] + ["…"] * (len(shown) > MOST)) or "nothing"
        judged_in_full = isinstance(row.subject, Mutant) and row.subject.profile == "full"
        name = escape(row.subject.name) + (" (full)" if judged_in_full else "")
        kills, checks = f"{row.kills}/{matrix.seeds}", f"{row.evaluations / max(len(row.outcomes), 1):.0f}"
        table.add_row(name, row.subject.chapter, kills, laws, checks, style=style)
    return table


def laws_table(matrix: KillMatrix) -> Table:
    """The laws that kill each mutant, those that are assigned to it first."""
    table = Table(title=f"Which laws kill which mutant, in how many of {_seeds(matrix)} (* assigned)")
    table.add_column("mutant", overflow="fold")
    table.add_column("laws", overflow="fold")
    for row in matrix.mutants:
        assigned = row.assigned
        counts = dict.fromkeys(assigned, 0) | row.laws
        laws = sorted(counts, key=lambda law: (law not in assigned, -counts[law], law))
        shown = ", ".join(f"{'*' if law in assigned else ''}{law} {counts[law]}" for law in laws)
        weak = any(counts[law] < matrix.seeds for law in assigned)
        table.add_row(escape(row.subject.name), shown, style="yellow" if weak else None)
    return table


def variants_table(matrix: KillMatrix) -> Table:
    """Every honest variant, those that were harmed first."""
    table = Table(title=f"Honest variants: {matrix.harmed} of {len(matrix.variants)} harmed at {_seeds(matrix)}")
    table.add_column("variant", overflow="fold")
    for column in ("checks", "harmed", "largest ratio"):
        table.add_column(column, justify="right")
    table.add_column("by", overflow="fold")
    for row in sorted(matrix.variants, key=lambda row: (-row.kills, row.subject.name)):
        laws = ", ".join(f"{law} ({n})" for law, n in row.laws.items())
        kills, ratio = f"{row.kills}/{matrix.seeds}", f"{row.largest:.2f}"
        style = "red" if row.kills else None
        table.add_row(escape(row.subject.name), str(row.evaluations), kills, ratio, laws, style=style)
    return table
