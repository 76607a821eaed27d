"""Violations of laws, with the numbers that show them."""

from enum import StrEnum
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments


class Reason(StrEnum):
    """The kind of a violation."""

    VALUE = "value"
    SHAPE = "shape"
    DTYPE = "dtype"
    TYPE = "type"
    RAISED = "raised"
    ACCEPTED = "accepted"  # an input that the Protocol forbids raised nothing
    MUTATED_INPUT = "mutated-input"
    DECLARED = "declared"  # the observed choice is not the declared one
    CRASHED = "crashed"
    HUNG = "hung"


class OutsideDeclaration(Exception):
    """A call outside the backend's declaration; the message names the declaration."""


class Violation(Exception):
    """A violated law, with the arguments, both results, and the index of the worst element.

    ``lasting``: the backend raised, and then raised in a call, too, that had worked before.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: Reason = Reason.VALUE,
        arguments: Arguments | None = None,
        expected: Any = None,
        got: Any = None,
        budget: Any = None,
        index: tuple[int, ...] | None = None,
        lasting: bool = False,
    ) -> None:
        super().__init__(message)
        self.message, self.reason, self.arguments = message, reason, arguments
        self.expected, self.got, self.budget, self.index = expected, got, budget, index
        self.lasting = lasting

    @property
    def numbers_at_index(self) -> tuple[Any, Any, Any] | None:
        """Got, expected and budget at the violation's index; None if any of them is missing."""
        if any(x is None for x in (self.expected, self.got, self.budget, self.index)):
            return None
        shape = np.shape(self.got)
        got, expected, budget = (np.broadcast_to(x, shape)[self.index] for x in (self.got, self.expected, self.budget))
        return np.longdouble(got), np.longdouble(expected), float(budget)

    @property
    def ratio(self) -> float:
        """The error ratio at the violation's index; 0 without numbers."""
        if self.numbers_at_index is None or self.numbers_at_index[0] == self.numbers_at_index[1]:
            return 0.0
        got, expected, budget = self.numbers_at_index
        with np.errstate(all="ignore"):
            ratio = float(abs(got - expected) / budget) if budget else np.inf
        return ratio if np.isfinite(got) and np.isfinite(expected) else np.inf

    @property
    def difference(self) -> float:
        """The error at the violation's index, relative to the larger number; at most 1."""
        if self.numbers_at_index is None or self.numbers_at_index[0] == self.numbers_at_index[1]:
            return 0.0
        got, expected, _ = self.numbers_at_index
        if not (np.isfinite(got) and np.isfinite(expected)):
            return 1.0
        return float(min(abs(got - expected) / max(abs(got), abs(expected)), 1.0))
