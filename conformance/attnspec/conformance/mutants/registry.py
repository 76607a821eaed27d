"""What a mutant is: a correct backend with one step made wrong, what it must break, and where the bug is known from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.mutants.correct.altered import Alteration, Altered, Registry, names_of


@dataclass(frozen=True)
class Mutant(Altered):
    """A backend that is wrong in one way.

    Every law of ``breaks`` detects it by itself, at its first dtype. ``source`` says where the bug is known from, and
    ``profile`` the least one that has the laws which detect it.
    """

    breaks: tuple[str, ...] = ()
    source: str = ""
    profile: str = "quick"

    @property
    def dtype(self) -> str:
        """The dtype at which it is judged."""
        return self.dtypes[0]


MUTANTS: Registry[Mutant] = Registry("mutants")
"""Every mutant, by name, once :mod:`attnspec.conformance.mutants` is imported."""


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
    """Make a mutant of a function that takes the place of the step ``replaces``, or of a subclass.

    ``operations`` are Protocols. ``ValueError`` for a step that does not exist, or a name that is taken.
    """

    def made(wrong: Alteration) -> Mutant:
        found = Mutant(
            name, names_of(operations), wrong, replaces, (dtype,), breaks=tuple(breaks), source=source, **more
        )
        if register:
            MUTANTS.add(found)
        return found

    return made
