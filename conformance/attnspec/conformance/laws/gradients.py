"""Comparison of a backend's gradients with expected gradients."""

from collections.abc import Mapping

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import smallest_normal

Gradients = Mapping[str, tuple[Numbers, Numbers]]
"""Expected gradients and their budgets, by path."""


def gradients_match(
    subject: Subject, found: Results, expected: Gradients, arguments: Arguments, what: str = "", scale: float = 1.0
) -> None:
    """Demand gradients within their budgets of ``expected`` times ``scale``; missing ones are skipped.

    ``what`` precedes their names in messages.
    """
    # Numbers that underflow in between are lost, whatever the scale.
    flushed = 2.0**10 * smallest_normal(subject) if scale != 1 else 0.0
    for path, (value, budget) in expected.items():
        if path in found:
            title = f"{what} the gradient of {path}".strip()
            subject.matches(found[path], scale * value, scale * budget + flushed, arguments, title)
