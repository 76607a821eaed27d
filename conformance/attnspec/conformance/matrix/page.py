"""A matrix as one page of HTML, which loads nothing from elsewhere."""

import re
from html import escape
from importlib import resources

from attnspec.conformance.matrix.cells import DIRECTIONS, Cell, Matrix, Row, State, Violation
from attnspec.conformance.matrix.showing import MAX_PROGRAM, MEANINGS, facts, inputs, mark, remarks, said, seen


def as_page(matrix: Matrix) -> str:
    """The matrix as a page."""
    parts = {
        "title": escape(matrix.title),
        "facts": "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(t)}</dd></div>" for n, t in facts(matrix)),
        "head": _head(matrix),
        "body": "\n".join(_row(matrix, row) for row in matrix.rows),
        "legend": "".join(
            f'<li><span class="{_kind(state)}">{state}</span> {escape(text)}</li>' for state, text in MEANINGS.items()
        ),
        "violations": "\n".join(_violations(matrix)) or "<p>None.</p>",
        "rows": "\n".join(_remarks(matrix, row) for row in matrix.rows),
    }
    template = resources.files("attnspec.conformance.matrix").joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], template)


def _kind(state: State) -> str:
    return str(state).replace(" ", "-")


def _anchor(row: Row) -> str:
    return f"row-{re.sub(r'[^a-z0-9]+', '-', row.name.lower()).strip('-')}"


def _head(matrix: Matrix) -> str:
    first = "".join(f'<th colspan="2" scope="colgroup">{escape(d)}</th>' for d in matrix.dtypes)
    second = "".join(f'<th scope="col">{d}</th>' for _ in matrix.dtypes for d in DIRECTIONS)
    return f'<tr><th rowspan="2" scope="col">row</th>{first}</tr><tr>{second}</tr>'


def _row(matrix: Matrix, row: Row) -> str:
    cells = "".join(_cell(row, row.cell(d, x)) for d in matrix.dtypes for x in DIRECTIONS)
    return f'<tr><th scope="row"><a href="#{_anchor(row)}">{escape(row.name)}</a></th>{cells}</tr>'


def _cell(row: Row, cell: Cell) -> str:
    where = f"#{_place(row, cell)}" if cell.violations else f"#{_anchor(row)}"
    label = f"{cell.dtype} {cell.direction}"
    return (
        f'<td class="{_kind(cell.state)}" data-label="{escape(label)}"><a href="{where}">{escape(mark(cell))}</a></td>'
    )


def _place(row: Row, cell: Cell) -> str:
    return f"{_anchor(row)}-{cell.dtype}-{cell.direction}"


def _violations(matrix: Matrix) -> list[str]:
    found = []
    for row in matrix.rows:
        for cell in row.cells:
            if cell.violations:
                shown = "".join(_violation(v) for v in cell.violations)
                names = ", ".join(cell.following)
                following = f"<p>These may hold once that is right: {escape(names)}.</p>" if names else ""
                title = escape(f"{row.name}, {cell.dtype}, {cell.direction}")
                found.append(f'<section id="{_place(row, cell)}"><h3>{title}</h3>{shown}{following}</section>')
    return found


def _violation(v: Violation) -> str:
    program = ""
    if v.program and len(v.program) <= MAX_PROGRAM:
        program = f"<details><summary>The program</summary><pre><code>{escape(v.program)}</code></pre></details>"
    elif v.program:
        program = f"<p>The program has {len(v.program):,} characters: it is in the JSON.</p>"
    arguments = escape("\n".join(inputs(v)))
    return (
        f"<article><h4><code>{escape(v.law)}</code> by <code>{escape(v.operation)}</code></h4>"
        f"<p>{escape(v.statement)}</p><p>{escape(seen(v))}</p><pre><code>{arguments}</code></pre>"
        f"<p>{escape(said(v))}</p>{program}</article>"
    )


def _remarks(matrix: Matrix, row: Row) -> str:
    items = "".join(
        f"<div><dt>{escape(title)}</dt><dd>{escape(text)}</dd></div>" for title, text in remarks(matrix, row)
    )
    return f'<section id="{_anchor(row)}"><h3>{escape(row.name)}</h3><dl>{items}</dl></section>'
