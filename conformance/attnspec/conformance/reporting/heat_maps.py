"""Heat maps as SVG that loads nothing; errors over budget share one scale."""

from collections.abc import Iterator
from html import escape
from math import log2

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.comparison import exactly_infinite, number

LEAST, MOST = 2.0**-8, 2.0**8
"""Ratios of error to budget at the ends of the colour scale; its middle is 1."""

LEVELS = 8
"""Colours on each side of the middle; for ratios, one per factor of 2."""

COLD, MIDDLE, HOT = (59, 76, 192), (226, 226, 226), (180, 4, 38)
NOT_A_NUMBER = 255
"""Level that stands for NaN."""

WRITTEN = (8, 12)
"""Largest numbers of columns and rows of a map with printed values."""

MOST_MATRICES = 6
"""Largest number of matrices drawn per array, including the one with the marked element."""


def over_budget(got: Numbers, expected: Numbers, budget: Numbers) -> Numbers:
    """Errors over their budgets; infinite for a missing number or infinity, 0 where none is expected."""
    wide = np.result_type(expected.dtype, np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(expected.astype(wide) - got.astype(wide)).astype(np.float64)
        ratios = np.where(error == 0, 0.0, error / np.broadcast_to(budget, error.shape))
        infinite = np.where(exactly_infinite(expected, budget) & (got != expected), np.inf, 0.0)
    return np.where(np.isfinite(expected), np.nan_to_num(ratios, nan=np.inf, posinf=np.inf), infinite)


def levels_of_numbers(x: Numbers, largest: float) -> Numbers:
    """Levels proportional to numbers up to ``largest``; booleans are filled or blank."""
    if x.dtype == bool:
        return np.where(x, -LEVELS // 2, 0)
    with np.errstate(all="ignore"):
        share = np.clip(x / (largest or 1.0), -1, 1)
    levels: Numbers = np.where(np.isnan(x), NOT_A_NUMBER, np.round(LEVELS * np.nan_to_num(share))).astype(int)
    return levels


def levels_of_ratios(x: Numbers) -> Numbers:
    """Levels by powers of 2: below the middle within the budget, above it outside."""
    powers = np.log2(np.clip(x, LEAST, MOST)) * (LEVELS / log2(MOST))
    levels: Numbers = np.where(x > 1, np.ceil(powers), np.floor(powers)).astype(int)
    return levels


def largest_of(*arrays: Numbers) -> float:
    """Return the largest finite absolute value among arrays."""
    finite = [x[np.isfinite(x)] for x in arrays]
    return max((float(np.abs(x).max()) for x in finite if x.size), default=0.0)


def heat_maps(x: Numbers, levels: Numbers, of: str, index: tuple[int, ...] | None = None) -> str:
    """Draw the matrices of an array of any rank side by side; ``index`` is the marked element."""
    rank = max(x.ndim, 2)
    x, levels = (a.reshape((1,) * (rank - a.ndim) + a.shape) for a in (x, levels))
    place = None if index is None else (0,) * (rank - len(index)) + index
    batch = list(np.ndindex(x.shape[:-2]))
    if place is not None:
        batch.sort(key=lambda element: element != place[:-2])
    drawn = sorted(batch[:MOST_MATRICES])
    maps = []
    for element in drawn:
        here = place[-2:] if place is not None and place[:-2] == element else None
        name = f"[{', '.join(map(str, element))}]" if element else ""
        title = f"<span>{name}</span>" if name else ""
        maps.append(f"<div>{title}{_svg(x[element], levels[element], f'{of}{name}', here)}</div>")
    left = len(batch) - len(drawn)
    more = f"<p>and {left:,} more</p>" if left else ""
    return f'<div class="maps">{"".join(maps)}{more}</div>'


def _svg(x: Numbers, levels: Numbers, of: str, here: tuple[int, ...] | None) -> str:
    rows, columns = x.shape
    written = columns <= WRITTEN[0] and rows <= WRITTEN[1]
    width, height = (58, 24) if written else (12, 12)
    cells = "".join(_cells(levels, width, height))
    texts = "".join(_texts(x, levels, width, height)) if written else ""
    frame = ""
    if here is not None:
        i, j = here
        frame = (
            f'<rect class="here" x="{j * width + 1}" y="{i * height + 1}" width="{width - 2}" height="{height - 2}"/>'
        )
    size = f'width="{columns * width}" height="{rows * height}" viewBox="0 0 {columns * width} {rows * height}"'
    label = escape(f"{of}: {rows} by {columns}", quote=True)
    return f'<svg role="img" aria-label="{label}" {size}>{cells}{texts}{frame}</svg>'


def _cells(levels: Numbers, width: int, height: int) -> Iterator[str]:
    """Yield one path per colour."""
    for level in np.unique(levels):
        places = np.argwhere(levels == level)
        squares = "".join(f"M{j * width} {i * height}h{width}v{height}h-{width}z" for i, j in places)
        yield f'<path fill="{colour(int(level))}" d="{squares}"/>'


def _texts(x: Numbers, levels: Numbers, width: int, height: int) -> Iterator[str]:
    for (i, j), value in np.ndenumerate(x):
        dark = ' class="on-dark"' if abs(int(levels[i, j])) > LEVELS // 2 else ""
        text = number(value, 3)
        yield f'<text{dark} x="{j * width + width // 2}" y="{i * height + height // 2}">{escape(text)}</text>'


def colour(level: int) -> str:
    """Return the colour of a level, as HTML writes it."""
    if level == NOT_A_NUMBER:
        return "#6a2b86"
    end, share = (HOT if level > 0 else COLD), abs(level) / LEVELS
    mixed = (round(m + share * (e - m)) for m, e in zip(MIDDLE, end, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
