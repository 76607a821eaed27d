"""Comparison of a backend's gradients with expected gradients."""

from collections.abc import Mapping

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import smallest_normal

Gradients = Mapping[str, tuple[Numbers, Numbers]]
"""Expected gradients and their budgets, by path."""


def gradients_match(
    subject: Subject, got: Results, expected: Gradients, arguments: Arguments, prefix: str = "", scale: float = 1.0
) -> None:
    """Demand gradients of ``scale`` times ``expected``, within budgets; missing ones are skipped.

    ``prefix`` precedes their names in messages.
    """
    # Intermediate results may underflow to 0, and a factor does not bring them back.
    flushed = 2.0**10 * smallest_normal(subject) if scale != 1 else 0.0
    for path, (value, budget) in expected.items():
        if path in got:
            title = f"{prefix} the gradient of {path}".strip()
            subject.demand_match(got[path], scale * value, scale * budget + flushed, arguments, title)
