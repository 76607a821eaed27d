"""A matrix as text: on a terminal and as Markdown."""

import re
from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.matrix.cells import DIRECTIONS, Cell, Confirmation, Matrix, Row, State, Violation
from attnspec.conformance.remote.incidents import AT
from attnspec.conformance.reporting.markup import table
from attnspec.conformance.running.messages import shortened

COLOURS = {
    State.CONFORMS: "green",
    State.DEVIATES: "yellow",
    State.VIOLATES: "red",
    State.NOT_OFFERED: "dim",
    State.NOT_JUDGED: "magenta",
}

MAX_PROGRAM = 12_000
"""Characters of the longest program that pages show; a longer one is only in the JSON."""

MEANINGS = {
    State.CONFORMS: "every law of the profile holds",
    State.DEVIATES: "every law holds with a declared choice that is not the normative one; the row names it",
    State.VIOLATES: "a law does not hold; the input is below",
    State.NOT_OFFERED: "the library refuses the call, with the reason below",
    State.NOT_JUDGED: "there is no verdict, for the reason below",
}


def facts(matrix: Matrix) -> list[tuple[str, str]]:
    """Return the conditions and the counts of the matrix."""
    found = [
        ("device", matrix.device),
        ("date", matrix.date),
        ("profile", matrix.profile),
        ("seed", str(matrix.seed)),
        *((name, text) for name, text in matrix.versions.items()),
        ("cells", ", ".join(f"{count} {state}" for state, count in matrix.counts().items() if count)),
    ]
    return [*found, ("interrupted", "what has no verdict was not judged")] if matrix.interrupted else found


def mark(cell: Cell) -> str:
    """Return a cell's state, with the number of its violations."""
    count = len(cell.violations)
    return f"{cell.state} ({count})" if count > 1 else str(cell.state)


def remarks(matrix: Matrix, row: Row) -> Iterator[tuple[str, str]]:
    """Yield what a row's verdicts leave out and what it declares, each with its title."""
    yield "operations", ", ".join(row.operations) or "unknown"
    for question, choice in row.deviations.items():
        yield f"deviates in {question}", choice
    if row.limits:
        yield "limits", "; ".join(row.limits)
    if row.precision:
        yield "precision", ", ".join(row.precision.values())
    yield from row.notes.items()
    for state in (State.NOT_OFFERED, State.NOT_JUDGED):
        for reason, where in by_reason(matrix, row, state).items():
            yield str(state), f"{where}: {reason}"
    for cell in row.cells:
        for operation, reason in cell.partly.items():
            yield "refused", f"{operation} ({cell.dtype}, {cell.direction}): {reason}"
        if cell.profile:
            yield (
                "profile",
                f"{cell.profile} for {cell.dtype}, {cell.direction}: {matrix.profile} has no example for it",
            )
        if cell.state is State.VIOLATES and cell.reason:
            yield "not judged besides", f"{cell.dtype}, {cell.direction}: {cell.reason}"


def by_reason(matrix: Matrix, row: Row, state: State) -> dict[str, str]:
    """Return a row's dtypes and directions in a state, by reason."""
    found: dict[str, list[Cell]] = {}
    for cell in row.cells:
        if cell.state is state:
            found.setdefault(cell.reason, []).append(cell)
    return {reason: _where(matrix, cells) for reason, cells in found.items()}


def _where(matrix: Matrix, cells: list[Cell]) -> str:
    dtypes = {d: [c.dtype for c in cells if c.direction == d] for d in DIRECTIONS}
    every = {d: "every dtype" if len(found) == len(matrix.dtypes) else ", ".join(found) for d, found in dtypes.items()}
    if every["forward"] == every["backward"]:
        return every["forward"]
    return "; ".join(f"{d} {text}" for d, text in every.items() if text)


ENDS: Mapping[str, str] = {Reason.CRASHED: "is ended by a signal", Reason.HUNG: "does not come to its end"}
"""Endings of a program without attnspec that shows a crash or a hang; for other violations it exits with 1."""


def seen(violation: Violation) -> str:
    """Return a violation's message; the law's own example is omitted if the call's inputs are known."""
    known = violation.reason in ENDS and violation.arguments
    return f"{violation.message.partition(AT)[0]} at this input" if known else violation.message


def said(violation: Violation) -> str:
    """Return a sentence on the confirmation of a violation."""
    if violation.confirmation is Confirmation.CONFIRMED:
        return f"Confirmed: a program without attnspec {ENDS.get(violation.reason, 'exits with 1')}."
    if violation.confirmation is Confirmation.NOT_CONFIRMED:
        return f"Not confirmed by a program without attnspec: {violation.why}."
    return f"No program without attnspec shows it: {violation.why}."


def inputs(violation: Violation) -> list[str]:
    """Return the arguments of the smallest input, a line for each."""
    return [f"{name} = {shortened(value)}" for name, value in violation.arguments.items()]


def following(cell: Cell) -> str:
    """Return a sentence on the laws that are not judged while a cell has violations."""
    return f"These may hold once that is right: {', '.join(cell.following)}."


# The terminal ---------------------------------------------------------------------------------------------------------


def print_matrix(matrix: Matrix, console: Console) -> None:
    """Print the table, remarks, every violation, and the conditions of the run."""
    shown = Table(title=matrix.title, title_style="bold", box=SIMPLE_HEAD)
    shown.add_column("row", overflow="fold")
    for dtype in matrix.dtypes:
        for direction in DIRECTIONS:
            shown.add_column(f"{dtype}\n{direction}", overflow="fold")
    for row in matrix.rows:
        cells = [row.cell(dtype, direction) for dtype in matrix.dtypes for direction in DIRECTIONS]
        shown.add_row(Text(row.name), *(Text(mark(c), style=COLOURS[c.state]) for c in cells))
    console.print(shown)
    for row in matrix.rows:
        console.print(Text(row.name, style="bold"))
        for title, text in remarks(matrix, row):
            console.print(Text(f"  {title}: {text}"), soft_wrap=True)
    for row, cell, violation in matrix.violations():
        console.print(Text(f"\n{_heading(row, cell, violation)}", style="red"), soft_wrap=True)
        lines = [violation.statement, seen(violation), *inputs(violation), said(violation)]
        console.print(Text("\n".join(f"  {line}" for line in lines)), soft_wrap=True)
        if cell.following and violation is cell.violations[-1]:
            console.print(Text(f"  {following(cell)}"), soft_wrap=True)
    console.print("\n" + "\n".join(f"{name}: {text}" for name, text in facts(matrix)), highlight=False, markup=False)


def _heading(row: Row, cell: Cell, violation: Violation) -> str:
    return f"{row.name}: {violation.law} is violated by {violation.operation} ({cell.dtype}, {cell.direction})"


# Markdown -------------------------------------------------------------------------------------------------------------


def as_markdown(matrix: Matrix) -> str:
    """Return the matrix as Markdown."""
    sections = [f"{'#' * level} {title}\n\n{text}" if level else text for level, title, text in parts(matrix)]
    return "\n\n".join([f"# {matrix.title}", *sections]) + "\n"


def parts(matrix: Matrix) -> Iterator[tuple[int, str, str]]:
    """Yield the sections of the matrix: level (0 for none), title, Markdown."""
    made = f"`attnspec matrix {matrix.library}` made this page; nothing in it is written by hand."
    yield 0, "", made
    yield 0, "", table(("", ""), [(name, _literal(text)) for name, text in facts(matrix)])
    for direction in DIRECTIONS:
        header = ("row", *matrix.dtypes)
        lines = [(_literal(r.name), *(mark(r.cell(d, direction)) for d in matrix.dtypes)) for r in matrix.rows]
        yield 2, direction.capitalize(), table(header, lines)
    yield 2, "What the words mean", "\n".join(f"- {state}: {text}." for state, text in MEANINGS.items())
    found = list(matrix.violations())
    yield 2, "Violations", "None." if not found else f"{len(found)}, each at the smallest input that was found."
    for row, cell, violation in found:
        yield 3, _literal(_heading(row, cell, violation)), _violation(cell, violation)
    yield 2, "Rows", "What each declares, and what the library refuses."
    for row in matrix.rows:
        items = [f"- {_literal(title)}: {_literal(text)}" for title, text in remarks(matrix, row)]
        yield 3, _literal(row.name), "\n".join(items)


def _violation(cell: Cell, violation: Violation) -> str:
    lines = [
        _literal(violation.statement),
        f"{_literal(seen(violation))}.".replace("..", "."),
        "```text\n" + "\n".join(inputs(violation)) + "\n```",
        _literal(said(violation)),
    ]
    if violation.program and len(violation.program) <= MAX_PROGRAM:
        lines.append(f"```python\n{violation.program}```")
    elif violation.program:
        lines.append(f"The program has {len(violation.program):,} characters: it is in the JSON.")
    if cell.following and violation is cell.violations[-1]:
        lines.append(following(cell))
    return "\n\n".join(lines)


def _literal(text: str) -> str:
    """Return text with all Markdown marks escaped."""
    return re.sub(r"([\\`*_<\[#])", r"\\\1", text)
