"""Mutants: one wrong step each, the laws that detect it, and a source."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.mutants.correct.altered import Alteration, Altered, Registry, names_of


@dataclass(frozen=True)
class Mutant(Altered):
    """A backend with one defect.

    Each law of ``breaks`` detects it alone, at its first dtype. ``source`` says where the bug is known from,
    ``profile`` is the smallest profile with the laws that detect it.
    """

    breaks: tuple[str, ...] = ()
    source: str = ""
    profile: str = "quick"

    @property
    def dtype(self) -> str:
        """The dtype in which it is judged."""
        return self.dtypes[0]


MUTANTS: Registry[Mutant] = Registry("mutants")
"""All mutants by name; filled by the import of :mod:`attnspec.conformance.mutants`."""


def mutant(
    name: str,
    *,
    operations: Sequence[object],
    breaks: Sequence[str],
    source: str,
    replaces: str = "",
    dtype: str = "float32",
    register: bool = True,
    **more: Any,
) -> Callable[[Alteration], Mutant]:
    """Decorate a function that replaces the step ``replaces``, or a subclass, as a mutant.

    ``operations`` are Protocols. ``ValueError`` for an unknown step or a name in use.
    """

    def register_mutant(wrong: Alteration) -> Mutant:
        new = Mutant(
            name=name, operations=names_of(operations), alteration=wrong, replaces=replaces, dtypes=(dtype,),
            breaks=tuple(breaks), source=source, **more,
        )  # fmt: skip
        if register:
            MUTANTS.add(new)
        return new

    return register_mutant
