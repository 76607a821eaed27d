"""Base of mutants and variants: the correct library with one step altered."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, TypeAlias, TypeVar

from attnspec.conformance.mutants.correct.formulas import Formulas
from attnspec.conformance.mutants.correct.library import Library
from attnspec.spec.contract.operation import OPERATIONS

Alteration: TypeAlias = Callable[..., Any] | type[Formulas] | type[Library]
"""A function that replaces one step, or a subclass of :class:`Formulas` or :class:`Library`."""


@dataclass(frozen=True)
class Altered:
    """A backend that differs from the correct library in one way.

    ``operations`` differ at ``dtypes``; operations with a boolean result or without float inputs have no choice of
    dtype. ``alteration`` replaces the step ``replaces`` of :class:`Formulas` or :class:`Library`; if it is a subclass
    of one of them, ``replaces`` is empty. ``declares`` holds the semantics that the backend declares, ``precision``
    its accuracy classes if they are not the defaults, ``operand_formats`` the formats of quantised operands that its
    operations take.
    """

    name: str
    operations: tuple[str, ...]
    alteration: Alteration
    replaces: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    declares: Mapping[str, Any] = field(default_factory=dict)
    precision: Mapping[str, Any] | None = None
    operand_formats: tuple[Any, ...] = ()
    differentiable: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.alteration, type) and self.replaces not in _steps():
            near = difflib.get_close_matches(self.replaces, _steps(), n=5, cutoff=0.0)
            raise ValueError(
                f"{self.name!r}: expected a method of Formulas or Library, such as {', '.join(near)}; "
                f"got {self.replaces!r}"
            )

    @property
    def chapter(self) -> str:
        """Name of the module that defines it."""
        return str(self.alteration.__module__).rpartition(".")[2]

    @property
    def statement(self) -> str:
        """The difference in one sentence: first line of the alteration's docstring."""
        return (self.alteration.__doc__ or "").strip().partition("\n")[0]

    def backend(self) -> Library:
        """Build a new backend with the alteration."""
        altered: Any = self.alteration
        if not isinstance(altered, type):
            base = Formulas if hasattr(Formulas, self.replaces) else Library
            altered = type("Altered", (base,), {self.replaces: altered})
        settings: dict[str, Any] = {
            "dtypes": self.dtypes,
            "semantics": dict(self.declares),
            "precision": self.precision,
            "operand_formats": dict.fromkeys(self.operations, self.operand_formats) if self.operand_formats else None,
            "differentiable": self.differentiable,
        }
        if issubclass(altered, Formulas):
            return Library(self.name, altered(), **settings)
        backend: Library = altered(self.name, **settings)
        return backend

    def __reduce__(self) -> Any:
        return _named, (self.alteration.__module__, self.alteration.__qualname__)


A = TypeVar("A", bound=Altered)


class Registry(Mapping[str, A], Generic[A]):
    """Altered backends by name; messages call them by ``plural_noun``."""

    def __init__(self, plural: str) -> None:
        self.plural_noun = plural
        self._by_name: dict[str, A] = {}

    def add(self, altered: A) -> None:
        """Register an altered backend; ``ValueError`` if its name is in use."""
        if altered.name in self._by_name:
            raise ValueError(f"two {self.plural_noun} are named {altered.name!r}")
        self._by_name[altered.name] = altered

    def __getitem__(self, name: str) -> A:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


def names_of(protocols: Sequence[object]) -> tuple[str, ...]:
    """Names of the operations of Protocols; ``ValueError`` for anything else."""
    known = {operation.protocol: operation.name for operation in OPERATIONS.values()}
    if unknown := [p for p in protocols if p not in known]:
        raise ValueError(f"operations: expected Protocols of the contract; got {unknown[0]!r}")
    return tuple(known[p] for p in protocols)  # type: ignore[index]


def _steps() -> list[str]:
    """Names of the public methods of the correct formulas and library, which can be replaced."""
    return sorted({step for owner in (Formulas, Library) for step in dir(owner) if not step.startswith("_")})


def _named(module: str, attribute: str) -> Any:
    return getattr(import_module(module), attribute)
