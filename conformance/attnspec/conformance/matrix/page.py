"""A matrix as one HTML page, which loads nothing from elsewhere."""

import re

from attnspec.conformance.matrix import showing
from attnspec.conformance.matrix.cells import DIRECTIONS, Matrix, Row
from attnspec.conformance.reporting.templating import filled


def as_page(matrix: Matrix) -> str:
    """Return the matrix as an HTML page."""
    return filled(
        "matrix.html", title=matrix.title, matrix=matrix, directions=DIRECTIONS, showing=showing, anchor=_anchor
    )


def _anchor(row: Row) -> str:
    return f"row-{re.sub(r'[^a-z0-9]+', '-', row.name.lower()).strip('-')}"
