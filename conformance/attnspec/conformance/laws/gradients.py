"""Gradients of a backend beside those that are expected of it."""

from collections.abc import Mapping

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import smallest_normal

Gradients = Mapping[str, tuple[Numbers, Numbers]]
"""Expected gradients and their budgets, by path."""


def gradients_match(
    subject: Subject, found: Results, expected: Gradients, arguments: Arguments, what: str = "", scale: float = 1.0
) -> None:
    """Gradients are within their budgets of those that are expected, times a scale; some may not have been asked for.

    ``what`` is said before their names.
    """
    # What underflows on the way is lost whatever the scale.
    flushed = 2.0**10 * smallest_normal(subject) if scale != 1 else 0.0
    for path, (value, budget) in expected.items():
        if path in found:
            title = f"{what} the gradient of {path}".strip()
            subject.matches(found[path], scale * value, scale * budget + flushed, arguments, title)
