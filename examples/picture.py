"""Picture of attention: a row per target character, a column per source character."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from torch import Tensor

SHOWN = {" ": "␣"}
"""Replacements for invisible characters."""


def draw(weights: Tensor, source: Sequence[str], spelled: Sequence[str], title: str, path: Path) -> None:
    """Draw the weights (target, source) to a PNG; ``OSError`` if it cannot be written."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    numbers = cast("np.ndarray[tuple[int, int], np.dtype[np.float32]]", weights.numpy())
    rows, columns = ([SHOWN.get(c, c) for c in characters] for characters in (spelled, source))
    figure, axis = pyplot.subplots(figsize=(1.5 + 0.3 * len(columns), 1.2 + 0.3 * len(rows)), layout="constrained")
    image = axis.imshow(numbers, vmin=0, vmax=1, cmap="Greys")
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_xlabel("source")
    axis.set_ylabel("spelled")
    axis.set_title(title)
    figure.colorbar(image, label="weight")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
