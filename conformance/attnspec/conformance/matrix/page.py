"""A matrix as one self-contained HTML page."""

import re

from attnspec.conformance.matrix import rendering
from attnspec.conformance.matrix.cells import DIRECTIONS, Matrix, Row
from attnspec.conformance.reporting.templating import rendered


def as_page(matrix: Matrix) -> str:
    """Return the matrix as an HTML page."""
    return rendered(
        "matrix.html", title=matrix.title, matrix=matrix, directions=DIRECTIONS, rendering=rendering, anchor=_anchor
    )


def _anchor(row: Row) -> str:
    return f"row-{re.sub(r'[^a-z0-9]+', '-', row.name.lower()).strip('-')}"
