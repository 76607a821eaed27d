"""A matrix as text, for the terminal and in Markdown."""

import re
from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.matrix.cells import DIRECTIONS, Cell, Confirmation, Matrix, Row, State, Violation
from attnspec.conformance.remote.incidents import AT_INPUT
from attnspec.conformance.reporting.markup import table
from attnspec.conformance.running.messages import argument_lines

COLOURS = {
    State.CONFORMS: "green",
    State.DEVIATES: "yellow",
    State.VIOLATES: "red",
    State.NOT_OFFERED: "dim",
    State.NOT_JUDGED: "magenta",
}

MAX_PROGRAM = 12_000
"""Length in characters up to which pages show a program; longer programs are only in the JSON."""

MEANINGS = {
    State.CONFORMS: "every law of the profile holds",
    State.DEVIATES: "every law holds, but with a declared choice other than the specification's, named under the row",
    State.VIOLATES: "a law does not hold for the input shown under Violations",
    State.NOT_OFFERED: "the library refuses the call; its reason is under the row",
    State.NOT_JUDGED: "there is no verdict; the reason is under the row",
}


def facts(matrix: Matrix) -> list[tuple[str, str]]:
    """Return the conditions of the run and the number of cells in each state."""
    pairs = [
        ("device", matrix.device),
        ("date", matrix.date),
        ("profile", matrix.profile),
        ("seed", str(matrix.seed)),
        *((name, text) for name, text in matrix.versions.items()),
        ("cells", ", ".join(f"{count} {state}" for state, count in matrix.counts().items() if count)),
    ]
    interruption = ("interrupted", "cells without a verdict were not judged before the run was interrupted")
    return [*pairs, interruption] if matrix.interrupted else pairs


def mark(cell: Cell) -> str:
    """Return a cell's state, with the number of its violations."""
    count = len(cell.violations)
    return f"{cell.state} ({count})" if count > 1 else str(cell.state)


def remarks(matrix: Matrix, row: Row) -> Iterator[tuple[str, str]]:
    """Yield titles and texts of a row's declarations, refusals and cells not judged."""
    yield "operations", ", ".join(row.operations) or "unknown"
    for question, choice in row.deviations.items():
        yield f"deviates in {question}", choice
    if row.limits:
        yield "limits", "; ".join(row.limits)
    if row.precision:
        yield "precision", ", ".join(row.precision.values())
    yield from row.notes.items()
    for state in (State.NOT_OFFERED, State.NOT_JUDGED):
        for reason, where in cells_by_reason(matrix, row, state).items():
            yield str(state), f"{where}: {reason}"
    for cell in row.cells:
        place = f"{cell.dtype}, {cell.direction}"
        for operation, reason in cell.partly.items():
            yield "refused", f"{operation} ({place}): {reason}"
        if cell.profile:
            yield "profile", f"{cell.profile} for {place}: {matrix.profile} has no example for it"
        if cell.state is State.VIOLATES and cell.reason:
            yield "partly not judged", f"{place}: {cell.reason}"


def cells_by_reason(matrix: Matrix, row: Row, state: State) -> dict[str, str]:
    """Return, by reason, a row's dtypes and directions that are in this state."""
    cells_of: dict[str, list[Cell]] = {}
    for cell in row.cells:
        if cell.state is state:
            cells_of.setdefault(cell.reason, []).append(cell)
    return {reason: _where(matrix, cells) for reason, cells in cells_of.items()}


def _where(matrix: Matrix, cells: list[Cell]) -> str:
    dtypes = {d: [c.dtype for c in cells if c.direction == d] for d in DIRECTIONS}
    texts = {d: "every dtype" if len(x) == len(matrix.dtypes) else ", ".join(x) for d, x in dtypes.items()}
    if texts["forward"] == texts["backward"]:
        return texts["forward"]
    return "; ".join(f"{d} {text}" for d, text in texts.items() if text)


ENDS: Mapping[str, str] = {Reason.CRASHED: "is ended by a signal", Reason.HUNG: "does not end"}
"""Ways in which a program shows a crash or a hang; for other violations it exits with status 1."""


def shown_message(violation: Violation) -> str:
    """Return a violation's message; for a crash or hang with known inputs, without the law's own example."""
    known = violation.reason in ENDS and violation.arguments
    return f"{violation.message.partition(AT_INPUT)[0]} at this input" if known else violation.message


def confirmation_sentence(violation: Violation) -> str:
    """Return a sentence on the confirmation of a violation."""
    if violation.confirmation is Confirmation.CONFIRMED:
        return f"Confirmed: a program without attnspec {ENDS.get(violation.reason, 'exits with status 1')}."
    if violation.confirmation is Confirmation.NOT_CONFIRMED:
        return f"Not confirmed by a program without attnspec: {violation.why}."
    return f"No program without attnspec shows it: {violation.why}."


def inputs(violation: Violation) -> list[str]:
    """Return the arguments of the smallest input, one line each."""
    return argument_lines(violation.operation, violation.arguments)


def following_sentence(cell: Cell) -> str:
    """Return a sentence on the laws whose violations may be consequences of the cell's violations."""
    return f"These laws are violated too, but may hold once that is corrected: {', '.join(cell.following)}."


# The terminal ---------------------------------------------------------------------------------------------------------


def print_matrix(matrix: Matrix, console: Console) -> None:
    """Print the table, remarks on each row, every violation, and the run's conditions."""
    grid = Table(title=matrix.title, title_style="bold", box=SIMPLE_HEAD)
    grid.add_column("row", overflow="fold")
    for dtype in matrix.dtypes:
        for direction in DIRECTIONS:
            grid.add_column(f"{dtype}\n{direction}", overflow="fold")
    for row in matrix.rows:
        cells = [row.cell(dtype, direction) for dtype in matrix.dtypes for direction in DIRECTIONS]
        grid.add_row(Text(row.name), *(Text(mark(c), style=COLOURS[c.state]) for c in cells))
    console.print(grid)
    for row in matrix.rows:
        console.print(Text(row.name, style="bold"))
        for title, text in remarks(matrix, row):
            console.print(Text(f"  {title}: {text}"), soft_wrap=True)
    for row, cell, violation in matrix.violations():
        console.print(Text(f"\n{_heading(row, cell, violation)}", style="red"), soft_wrap=True)
        lines = [violation.statement, shown_message(violation), *inputs(violation), confirmation_sentence(violation)]
        console.print(Text("\n".join(f"  {line}" for line in lines)), soft_wrap=True)
        if cell.following and violation is cell.violations[-1]:
            console.print(Text(f"  {following_sentence(cell)}"), soft_wrap=True)
    console.print("\n" + "\n".join(f"{name}: {text}" for name, text in facts(matrix)), highlight=False, markup=False)


def _heading(row: Row, cell: Cell, violation: Violation) -> str:
    return f"{row.name}: {violation.law} is violated by {violation.operation} ({cell.dtype}, {cell.direction})"


# Markdown -------------------------------------------------------------------------------------------------------------


def as_markdown(matrix: Matrix) -> str:
    """Return the matrix as Markdown."""
    sections = [f"{'#' * level} {title}\n\n{text}" if level else text for level, title, text in parts(matrix)]
    return "\n\n".join([f"# {matrix.title}", *sections]) + "\n"


def parts(matrix: Matrix) -> Iterator[tuple[int, str, str]]:
    """Yield the sections of the Markdown page: level of the heading (0 for none), title, text."""
    yield 0, "", f"`attnspec matrix {matrix.library}` made this page; do not edit it by hand."
    yield 0, "", table(("", ""), [(name, _literal(text)) for name, text in facts(matrix)])
    for direction in DIRECTIONS:
        lines = [(_literal(r.name), *(mark(r.cell(d, direction)) for d in matrix.dtypes)) for r in matrix.rows]
        yield 2, direction.capitalize(), table(("row", *matrix.dtypes), lines)
    yield 2, "States of a cell", "\n".join(f"- {state}: {text}." for state, text in MEANINGS.items())
    violations = list(matrix.violations())
    counted = f"{len(violations)}, each with the smallest input that was found to show it."
    yield 2, "Violations", counted if violations else "None."
    for row, cell, violation in violations:
        yield 3, _literal(_heading(row, cell, violation)), _violation(cell, violation)
    yield 2, "Rows", "The declarations of each row, and the calls that the library refuses."
    for row in matrix.rows:
        items = [f"- {_literal(title)}: {_literal(text)}" for title, text in remarks(matrix, row)]
        yield 3, _literal(row.name), "\n".join(items)


def _violation(cell: Cell, violation: Violation) -> str:
    lines = [
        _literal(violation.statement),
        f"{_literal(shown_message(violation))}.".replace("..", "."),
        "```text\n" + "\n".join(inputs(violation)) + "\n```",
        _literal(confirmation_sentence(violation)),
    ]
    if violation.program and len(violation.program) <= MAX_PROGRAM:
        lines.append(f"```python\n{violation.program}```")
    elif violation.program:
        lines.append(f"The program has {len(violation.program):,} characters: it is in the JSON file.")
    if cell.following and violation is cell.violations[-1]:
        lines.append(following_sentence(cell))
    return "\n\n".join(lines)


def _literal(text: str) -> str:
    """Return text with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_<\[#])", r"\\\1", text)
