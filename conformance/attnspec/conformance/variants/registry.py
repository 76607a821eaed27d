"""What an honest variant is: a right implementation that rounds differently, or deviates as it declares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

from attnspec.conformance.mutants.correct import Formulas, Library

Right = type[Formulas] | type[Library]


@dataclass(frozen=True)
class Variant:
    """A right backend, judged by all laws of its operations at each of its dtypes; none may ever fail.

    ``declares`` are its semantics, ``precision`` its classes where they are not the default ones.
    """

    name: str
    operations: tuple[str, ...]
    right: Right
    dtypes: tuple[str, ...] = ("float32",)
    declares: Mapping[str, Any] = field(default_factory=dict)
    precision: Mapping[str, Any] | None = None
    differentiable: bool = True

    @property
    def chapter(self) -> str:
        """The module that it stands in."""
        return str(self.right.__module__).rpartition(".")[2]

    @property
    def statement(self) -> str:
        """How it computes, in a sentence."""
        return (self.right.__doc__ or "").strip().partition("\n")[0]

    def backend(self) -> Library:
        """A fresh backend."""
        given: dict[str, Any] = {
            "dtypes": self.dtypes,
            "semantics": dict(self.declares),
            "precision": self.precision,
            "differentiable": self.differentiable,
        }
        if issubclass(self.right, Formulas):
            return Library(self.name, self.right(), **given)
        return self.right(self.name, **given)

    def __reduce__(self) -> Any:
        return _named, (self.right.__module__, self.right.__qualname__)


def _named(module: str, attribute: str) -> Any:
    return getattr(import_module(module), attribute)


_VARIANTS: dict[str, Variant] = {}
VARIANTS: Mapping[str, Variant] = MappingProxyType(_VARIANTS)
"""Every honest variant, by name, once :mod:`attnspec.conformance.variants` is imported."""


def variant(name: str, *, operations: Sequence[str], register: bool = True, **more: Any) -> Callable[[Right], Variant]:
    """Make a variant of a subclass of the right formulas or library; ``ValueError`` for a name that is taken."""

    def made(right: Right) -> Variant:
        found = Variant(name, tuple(operations), right, **more)
        if register:
            if name in _VARIANTS:
                raise ValueError(f"two variants are named {name!r}")
            _VARIANTS[name] = found
        return found

    return made
