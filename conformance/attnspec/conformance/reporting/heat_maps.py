"""Heat maps of arrays as SVG text; all maps of error over budget share one colour scale."""

from collections.abc import Iterator
from html import escape
from math import log2

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.comparison import exactly_infinite, number_text

MIN_RATIO, MAX_RATIO = 2.0**-8, 2.0**8
"""Ratios of error to budget at the ends of the colour scale. The middle is 1."""

LEVELS = 8
"""Number of colours on each side of the middle; for ratios, one per factor of 2."""

COLD, MIDDLE, HOT = (59, 76, 192), (226, 226, 226), (180, 4, 38)
NOT_A_NUMBER = 255
"""Level that stands for NaN."""

MAX_WITH_TEXTS = (8, 12)
"""Largest numbers of columns and rows of a map that prints its values."""

MOST_MATRICES = 6
"""Largest number of matrices drawn per array, including the one with the marked element."""


def over_budget(got: Numbers, expected: Numbers, budget: Numbers) -> Numbers:
    """Return errors divided by their budgets.

    The ratio is infinite for a wrong NaN or infinity, and 0 for elements whose expected value is left open.
    """
    wide_dtype = np.result_type(expected.dtype, np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(expected.astype(wide_dtype) - got.astype(wide_dtype)).astype(np.float64)
        ratios = np.where(error == 0, 0.0, error / np.broadcast_to(budget, error.shape))
        infinite = np.where(exactly_infinite(expected, budget) & (got != expected), np.inf, 0.0)
    return np.where(np.isfinite(expected), np.nan_to_num(ratios, nan=np.inf, posinf=np.inf), infinite)


def levels_of_numbers(x: Numbers, largest: float) -> Numbers:
    """Return colour levels proportional to the numbers, up to ``largest``; True has a colour, False is blank."""
    if x.dtype == bool:
        return np.where(x, -LEVELS // 2, 0)
    with np.errstate(all="ignore"):
        share = np.clip(x / (largest or 1.0), -1, 1)
    levels: Numbers = np.where(np.isnan(x), NOT_A_NUMBER, np.round(LEVELS * np.nan_to_num(share))).astype(int)
    return levels


def levels_of_ratios(x: Numbers) -> Numbers:
    """Return colour levels, one per factor of 2: negative within the budget, positive beyond it."""
    powers = np.log2(np.clip(x, MIN_RATIO, MAX_RATIO)) * (LEVELS / log2(MAX_RATIO))
    levels: Numbers = np.where(x > 1, np.ceil(powers), np.floor(powers)).astype(int)
    return levels


def largest_of(*arrays: Numbers) -> float:
    """Return the largest finite absolute value among arrays."""
    finite = [x[np.isfinite(x)] for x in arrays]
    return max((float(np.abs(x).max()) for x in finite if x.size), default=0.0)


def heat_maps(x: Numbers, levels: Numbers, name: str, index: tuple[int, ...] | None = None) -> str:
    """Return HTML that shows an array's matrices side by side; the element at ``index`` gets a frame.

    The matrix with that element comes first; matrices of zeros come last.
    """
    rank = max(x.ndim, 2)
    x, levels = (a.reshape((1,) * (rank - a.ndim) + a.shape) for a in (x, levels))
    marked_index = None if index is None else (0,) * (rank - len(index)) + index
    batch = list(np.ndindex(x.shape[:-2]))
    marked_element = () if marked_index is None else marked_index[:-2]
    batch.sort(key=lambda element: (element != marked_element, not x[element].any()))
    drawn = batch[:MOST_MATRICES]
    maps = []
    for element in drawn:
        marked = marked_index[-2:] if marked_index is not None and marked_index[:-2] == element else None
        element_name = f"[{', '.join(map(str, element))}]" if element else ""
        title = f"<span>{element_name}</span>" if element_name else ""
        maps.append(f"<div>{title}{_svg(x[element], levels[element], f'{name}{element_name}', marked)}</div>")
    omitted = len(batch) - len(drawn)
    more = f"<p>and {omitted:,} more</p>" if omitted else ""
    return f'<div class="maps">{"".join(maps)}{more}</div>'


def _svg(x: Numbers, levels: Numbers, name: str, marked: tuple[int, ...] | None) -> str:
    rows, columns = x.shape
    has_texts = columns <= MAX_WITH_TEXTS[0] and rows <= MAX_WITH_TEXTS[1]
    width, height = (58, 24) if has_texts else (12, 12)
    cells = "".join(_cells(levels, width, height))
    texts = "".join(_texts(x, levels, width, height)) if has_texts else ""
    frame = ""
    if marked is not None:
        i, j = marked
        frame = (
            f'<rect class="here" x="{j * width + 1}" y="{i * height + 1}" width="{width - 2}" height="{height - 2}"/>'
        )
    size = f'width="{columns * width}" height="{rows * height}" viewBox="0 0 {columns * width} {rows * height}"'
    label = escape(f"{name}: {rows} by {columns}", quote=True)
    return f'<svg role="img" aria-label="{label}" {size}>{cells}{texts}{frame}</svg>'


def _cells(levels: Numbers, width: int, height: int) -> Iterator[str]:
    for level in np.unique(levels):
        places = np.argwhere(levels == level)
        squares = "".join(f"M{j * width} {i * height}h{width}v{height}h-{width}z" for i, j in places)
        yield f'<path fill="{colour(int(level))}" d="{squares}"/>'


def _texts(x: Numbers, levels: Numbers, width: int, height: int) -> Iterator[str]:
    for (i, j), value in np.ndenumerate(x):
        dark = ' class="on-dark"' if abs(int(levels[i, j])) > LEVELS // 2 else ""
        text = number_text(value, 3)
        yield f'<text{dark} x="{j * width + width // 2}" y="{i * height + height // 2}">{escape(text)}</text>'


def colour(level: int) -> str:
    """Return the colour of a level as HTML notation."""
    if level == NOT_A_NUMBER:
        return "#6a2b86"
    end, share = (HOT if level > 0 else COLD), abs(level) / LEVELS
    mixed = (round(m + share * (e - m)) for m, e in zip(MIDDLE, end, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
