"""Heat maps of error over budget, for all judged rows and the worst batch element."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnspec.conformance.harness.parts import Part
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.reporting.heat_maps import MAX_RATIO, MIN_RATIO, over_budget

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Compared:
    """One array compared with the expected one; ``of`` names it, ``row`` is its axis of rows."""

    of: str
    got: Numbers
    expected: Numbers
    budget: Numbers
    part: Part
    row: int | None

    @property
    def ratios(self) -> Numbers:
        """Errors divided by their budgets, (batch elements, rows, features)."""
        ratios = over_budget(self.got, self.expected, self.budget)
        # Without places the array belongs to the whole call, not to a batch element: it is drawn as one element.
        depth = len(self.part.arguments.batch) if self.part.places else 0
        elements = prod(ratios.shape[:depth])
        if ratios.ndim == depth:
            return ratios.reshape(elements, 1, 1)
        rows = np.moveaxis(ratios, depth + (self.row or 0), depth)
        return rows.reshape(elements, rows.shape[depth], -1)  # heads, if any, become features


def figure(compared: Sequence[Compared], title: str) -> "Figure":
    """Return heat maps of error over budget, a pair for the result and each gradient.

    The left map shows the largest ratio of each row, for all batch elements; the right one all features of the worst.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(x.of for x in compared))
    plot = Figure(figsize=(10, 0.6 + 2.6 * len(names)), layout="constrained")
    plot.suptitle(title, fontsize=9, wrap=True)
    axes = plot.subplots(len(names), 2, squeeze=False)
    for (left, right), name in zip(axes, names, strict=True):
        ratios = np.concatenate([x.ratios for x in compared if x.of == name])
        clipped = np.clip(ratios, MIN_RATIO, MAX_RATIO)
        worst = int(np.argmax(ratios.reshape(len(ratios), -1).max(-1, initial=0.0)))
        for axis, image, labels in (
            (left, clipped.max(-1, initial=MIN_RATIO), ("judged rows", "elements of the batch")),
            (right, clipped[worst], ("features", f"judged rows of element {worst}")),
        ):
            norm = LogNorm(vmin=MIN_RATIO, vmax=MAX_RATIO)
            mesh = axis.imshow(image, cmap="coolwarm", interpolation="nearest", norm=norm, aspect="auto")
            axis.set(xlabel=labels[0], ylabel=labels[1], title=f"{name}: error / budget")
        plot.colorbar(mesh, ax=(left, right))
    return plot
