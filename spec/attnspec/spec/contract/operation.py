"""The contract of one operation, read from its Protocol.

``@operation`` is put on a Protocol whose ``__call__`` carries jaxtyping annotations. It reads the signature
once and registers an :class:`Operation`, from which strategies, laws, reports and documentation are made.
"""

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from attnspec.spec.contract.sources import Citation

Array = TypeVar("Array")
Array_co = TypeVar("Array_co", covariant=True)
P = TypeVar("P", bound=type)

CHAPTERS = (
    "scoring",
    "normalization",
    "masking",
    "pooling",
    "attention",
    "multihead",
    "positional",
    "recurrent",
    "seq2seq",
    "transformer",
    "vision",
    "moments",
    "complexity",
)


class Kind(StrEnum):
    """What an argument or result is made of."""

    FLOAT = "float"
    BOOL = "bool"
    INT = "int"
    SIZE = "size"
    FLAG = "flag"


@dataclass(frozen=True)
class Dim:
    """One dimension of a shape annotation.

    ``name`` is the name of a size, ``factors`` the names whose product it is (one name in the ordinary case).
    ``variadic`` stands for any number of batch dimensions, ``broadcast`` for a size that may also be 1.
    """

    name: str
    variadic: bool = False
    broadcast: bool = False

    @property
    def factors(self) -> tuple[str, ...]:
        """The names whose product this size is."""
        return tuple(self.name.split("*"))


@dataclass(frozen=True)
class Argument:
    """One argument, or the result, of an operation."""

    name: str
    kind: Kind
    dims: tuple[Dim, ...] = ()
    optional: bool = False
    keyword_only: bool = False
    default: Any = inspect.Parameter.empty
    batched: bool = field(init=False)
    """Whether leading batch dimensions are allowed."""
    core: tuple[Dim, ...] = field(init=False)
    """The dimensions after the batch."""

    def __post_init__(self) -> None:
        # Properties would be computed a million times in a run of the suite.
        object.__setattr__(self, "batched", bool(self.dims) and self.dims[0].variadic)
        object.__setattr__(self, "core", self.dims[1:] if self.batched else self.dims)

    @property
    def is_array(self) -> bool:
        """Whether the argument is an array rather than a Python number."""
        return self.kind in (Kind.FLOAT, Kind.BOOL, Kind.INT)

    def shape_text(self) -> str:
        """The shape as the Protocol writes it, e.g. ``(*batch, n, d)``."""
        return "(" + ", ".join(f"*{d.name}" if d.variadic else d.name for d in self.dims) + ")"


@dataclass(frozen=True)
class Operation:
    """One operation of the contract."""

    name: str
    chapter: str
    formula: str
    sources: tuple[Citation, ...]
    arguments: tuple[Argument, ...]
    result: Argument
    protocol: type
    reference_only: bool = False

    @property
    def statement(self) -> str:
        """The first line of the Protocol's docstring."""
        return (inspect.getdoc(self.protocol) or "").split("\n", 1)[0]

    @property
    def signature(self) -> inspect.Signature:
        """The signature of ``__call__`` without ``self``."""
        full = inspect.signature(self.protocol.__call__)
        return full.replace(parameters=list(full.parameters.values())[1:])

    def takes(self, *names: str) -> bool:
        """Whether every name is an argument of this operation."""
        return set(names) <= {a.name for a in self.arguments}

    def argument(self, name: str) -> Argument:
        """The argument of that name; ``KeyError`` if there is none."""
        for a in self.arguments:
            if a.name == name:
                return a
        raise KeyError(f"{self.name} takes {', '.join(a.name for a in self.arguments)}; not {name}")

    @property
    def differentiable(self) -> bool:
        """Whether float arguments lead to a float result."""
        return self.result.kind is Kind.FLOAT and bool(self.float_arguments)

    @property
    def float_arguments(self) -> tuple[str, ...]:
        """Names of the float array arguments, in order."""
        return tuple(a.name for a in self.arguments if a.kind is Kind.FLOAT)

    @property
    def size_names(self) -> tuple[str, ...]:
        """Names of all sizes that occur, in order of appearance."""
        names: dict[str, None] = {}
        for a in self.arguments:
            if a.kind is Kind.SIZE:
                names.setdefault(a.name)
            for d in a.core:
                for f in d.factors:
                    names.setdefault(f)
        return tuple(names)


_OPERATIONS: dict[str, Operation] = {}
OPERATIONS: Mapping[str, Operation] = MappingProxyType(_OPERATIONS)
"""Every operation of the contract, by name, in the order of the chapters."""


def _sort_by_chapter() -> None:
    for name in sorted(_OPERATIONS, key=lambda n: CHAPTERS.index(_OPERATIONS[n].chapter)):
        _OPERATIONS[name] = _OPERATIONS.pop(name)


def parse_shape(text: str) -> tuple[Dim, ...]:
    """Dimensions of a jaxtyping shape string such as ``"*#batch n h*p_v"`` or ``"{n} {m}"``."""
    dims = []
    for token in text.split():
        match = re.fullmatch(r"([*#]*)(.+)", token)
        assert match
        marks, name = match.groups()
        dims.append(Dim(name.strip("{}"), "*" in marks, "#" in marks))
    return tuple(dims)


def _argument(name: str, annotation: Any, parameter: inspect.Parameter | None = None) -> Argument:
    members = typing.get_args(annotation)
    optional = type(None) in members
    if optional:
        (annotation,) = (m for m in members if m is not type(None))
    keyword_only = parameter is not None and parameter.kind is parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if parameter is None else parameter.default
    if annotation is bool:
        return Argument(name, Kind.FLAG, (), optional, keyword_only, default)
    if annotation is int:
        return Argument(name, Kind.SIZE, (), optional, keyword_only, default)
    kinds = {"bool": Kind.BOOL, "int": Kind.INT}
    kind = next((k for prefix, k in kinds.items() if annotation.dtypes[0].startswith(prefix)), Kind.FLOAT)
    return Argument(name, kind, parse_shape(annotation.dim_str), optional, keyword_only, default)


def operation(
    *, chapter: str, formula: str, sources: Sequence[Citation], reference_only: bool = False
) -> Callable[[P], P]:
    """Register a Protocol as an operation of the contract.

    The operation's name is the class name in snake case. ``reference_only`` marks operations that no backend
    provides (closed formulas over moments or counts).
    """
    if chapter not in CHAPTERS:
        raise ValueError(f"chapter {chapter!r} is none of {', '.join(CHAPTERS)}")

    def register(protocol: P) -> P:
        if not protocol.__doc__:
            raise ValueError(f"{protocol.__name__} needs a docstring that gives shapes, domain and edges")
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", protocol.__name__).lower()
        signature = inspect.signature(protocol.__call__)
        arguments = tuple(_argument(p.name, p.annotation, p) for p in list(signature.parameters.values())[1:])
        result = _argument("result", signature.return_annotation)
        _OPERATIONS[name] = Operation(
            name, chapter, formula, tuple(sources), arguments, result, protocol, reference_only
        )
        _sort_by_chapter()
        return protocol

    return register
