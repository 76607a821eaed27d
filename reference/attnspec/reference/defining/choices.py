"""The semantic choices in force, for formulas that libraries define differently under one name.

Formulas follow the normative choices by default, and other choices within ``choosing``. So the oracle of a backend can
follow the choices that the backend declares:

    with choosing(gru_reset="after"):
        state = gru_cell(x, state, parameters)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from attnspec.spec.contract.close_names import close_names
from attnspec.spec.contract.semantics import QUESTIONS, Semantics

_NORMATIVE = Semantics()
_CHOICES: ContextVar[Semantics] = ContextVar("choices", default=_NORMATIVE)


def choice(question: str) -> str:
    """Return the choice in force for a question of :class:`~attnspec.spec.contract.semantics.Semantics`."""
    chosen: str = getattr(_CHOICES.get(), question)
    return chosen


@contextmanager
def choosing(**choices: str) -> Iterator[None]:
    """Put choices in force within this context; ``ValueError`` for an unknown question or choice."""
    if unknown := [name for name in choices if name not in QUESTIONS]:
        raise ValueError(
            f"choosing: expected questions among {close_names(unknown[0], QUESTIONS)}; got {', '.join(unknown)}"
        )
    choice_by_question: dict[str, Any] = dict(choices)
    token = _CHOICES.set(replace(_CHOICES.get(), **choice_by_question))
    try:
        yield
    finally:
        _CHOICES.reset(token)
