"""What a mutant is: a right backend with one step made wrong, what it must break, and where the bug is known from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

from attnspec.conformance.mutants.correct import Formulas, Library

Wrong = Callable[..., Any] | type[Formulas] | type[Library]


@dataclass(frozen=True)
class Mutant:
    """A backend that is wrong in one way.

    ``operations`` are those that it gets wrong, at ``dtype`` (operations whose result is boolean or that take no floats
    have no choice of one). Every law of ``breaks`` detects it by itself. ``source`` says where the bug is known from.
    ``wrong`` is what takes the place of a step (``replaces``) of :class:`Formulas` or :class:`Library`, or a subclass.
    """

    name: str
    operations: tuple[str, ...]
    breaks: tuple[str, ...]
    source: str
    wrong: Wrong
    replaces: str = ""
    dtype: str = "float32"
    declares: Mapping[str, Any] = field(default_factory=dict)
    precision: Mapping[str, Any] | None = None

    @property
    def chapter(self) -> str:
        """The module that it stands in."""
        return str(self.wrong.__module__).rpartition(".")[2]

    @property
    def statement(self) -> str:
        """What is wrong, in a sentence."""
        return (self.wrong.__doc__ or "").strip().partition("\n")[0]

    def backend(self) -> Library:
        """A fresh backend."""
        wrong: Any = self.wrong
        if not isinstance(wrong, type):
            base = Formulas if hasattr(Formulas, self.replaces) else Library
            wrong = type("Wrong", (base,), {self.replaces: wrong})
        given: dict[str, Any] = {"dtypes": (self.dtype,), "semantics": dict(self.declares), "precision": self.precision}
        if issubclass(wrong, Formulas):
            return Library(self.name, wrong(), **given)
        backend: Library = wrong(self.name, **given)
        return backend

    def __reduce__(self) -> Any:
        return _named, (self.wrong.__module__, self.wrong.__qualname__)


def _named(module: str, attribute: str) -> Any:
    return getattr(import_module(module), attribute)


_MUTANTS: dict[str, Mutant] = {}
MUTANTS: Mapping[str, Mutant] = MappingProxyType(_MUTANTS)
"""Every mutant, by name, once :mod:`attnspec.conformance.mutants` is imported."""


def mutant(
    name: str,
    *,
    operations: Sequence[str],
    breaks: Sequence[str],
    source: str,
    replaces: str = "",
    register: bool = True,
    **more: Any,
) -> Callable[[Wrong], Mutant]:
    """Make a mutant of a function that takes the place of the step ``replaces``, or of a subclass.

    ``ValueError`` for a step that does not exist, or a name that is taken.
    """

    def made(wrong: Wrong) -> Mutant:
        found = Mutant(name, tuple(operations), tuple(breaks), source, wrong, replaces, **more)
        if not isinstance(wrong, type) and not (hasattr(Formulas, replaces) or hasattr(Library, replaces)):
            steps = sorted(step for right in (Formulas, Library) for step in vars(right) if not step.startswith("_"))
            raise ValueError(f"mutant {name!r}: expected a step among {', '.join(steps)}; got {replaces!r}")
        if register:
            if name in _MUTANTS:
                raise ValueError(f"two mutants are named {name!r}")
            _MUTANTS[name] = found
        return found

    return made
