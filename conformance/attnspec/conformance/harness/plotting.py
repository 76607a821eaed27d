"""Plots of a judgement: error over budget, for all judged rows and the worst batch element."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnspec.conformance.harness.parts import Part
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.reporting.heat_maps import LEAST, MOST, over_budget

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Compared:
    """Numbers compared with the expected ones; ``of`` names the array, ``row`` is its axis of rows."""

    of: str
    got: Numbers
    expected: Numbers
    budget: Numbers
    part: Part
    row: int | None

    @property
    def ratios(self) -> Numbers:
        """Errors over their budgets, (elements of the batch, rows, features)."""
        found = over_budget(self.got, self.expected, self.budget)
        depth = len(self.part.arguments.batch) if self.part.places else 0
        elements = prod(found.shape[:depth])
        if found.ndim == depth:
            return found.reshape(elements, 1, 1)
        rows = np.moveaxis(found, depth + (self.row or 0), depth)
        return rows.reshape(elements, rows.shape[depth], -1)


def figure(compared: Sequence[Compared], title: str) -> "Figure":
    """Return heat maps of error over budget: a line for the result and one for every gradient.

    The left map shows each row's largest ratio for all batch elements, the right one all features of the worst element.
    Errors: ``ImportError`` without matplotlib, which the extra ``plot`` installs.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(x.of for x in compared))
    drawn = Figure(figsize=(10, 0.6 + 2.6 * len(names)), layout="constrained")
    drawn.suptitle(title, fontsize=9, wrap=True)
    axes = drawn.subplots(len(names), 2, squeeze=False)
    for (left, right), name in zip(axes, names, strict=True):
        ratios = np.concatenate([x.ratios for x in compared if x.of == name])
        shown = np.clip(ratios, LEAST, MOST)
        worst = int(np.argmax(ratios.reshape(len(ratios), -1).max(-1, initial=0.0)))
        for axis, image, words in (
            (left, shown.max(-1, initial=LEAST), ("judged rows", "elements of the batch")),
            (right, shown[worst], ("features", f"judged rows of element {worst}")),
        ):
            mesh = axis.imshow(
                image, cmap="coolwarm", interpolation="nearest", norm=LogNorm(vmin=LEAST, vmax=MOST), aspect="auto"
            )
            axis.set(xlabel=words[0], ylabel=words[1], title=f"{name}: error / budget")
        drawn.colorbar(mesh, ax=(left, right))
    return drawn
