"""A backend, as the suite sees it: any object with a name and some of the operations.

Only ``name`` is required. The optional attributes are ``from_numpy``, ``to_numpy``, ``vjp``, ``semantics``,
``precision``, ``limits`` and ``notes`` (a mapping of strings that reports print: which kernels run, what is missing).
"""

import inspect
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import FunctionType
from typing import Any, Generic, Protocol, TypeVar, get_origin, runtime_checkable

import numpy as np
from typing_extensions import TypeForm

from attnspec.spec.contract.operation import Array

F = TypeVar("F")


@runtime_checkable
class Backend(Protocol):
    """The least that a backend must have; its operations are checked one by one against their Protocols."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...


class Converts(Protocol[Array]):
    """A backend with arrays of its own. Both directions preserve dtype and shape.

    NumPy carries bfloat16 as ``ml_dtypes.bfloat16``.
    """

    def from_numpy(self, array: np.ndarray[Any, Any], *, device: str) -> Array:
        """The same numbers as an array of the backend on the device."""
        ...

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """The same numbers as a NumPy array."""
        ...


class Differentiates(Protocol[Array]):
    """A backend with gradients."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Array) -> Mapping[str, Array]:
        """Gradients of ⟨cotangent, operation(**arguments)⟩ with respect to every float argument.

        ``arguments`` holds the backend's arrays, by name; the cotangent has the shape of the result.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """Where a backend works. Inputs are generated inside the limits, and reports print them.

    dtypes: the float dtypes to judge. devices: the devices it runs on. head_sizes: the sizes of feature dimensions that
    it takes, None for all. multiple_of: n and m are multiples of this. max_length: the largest n and m.
    max_batch_dims: the most batch dimensions. broadcasting: whether batch dimensions of different inputs broadcast.
    """

    dtypes: tuple[str, ...] = ("float64", "float32")
    devices: tuple[str, ...] = ("cpu",)
    head_sizes: tuple[int, ...] | None = None
    multiple_of: int = 1
    max_length: int | None = None
    max_batch_dims: int = 3
    broadcasting: bool = True

    def __post_init__(self) -> None:
        known = ("float64", "float32", "bfloat16", "float16")
        for f in ("dtypes", "devices", "head_sizes"):
            value = getattr(self, f)
            if isinstance(value, list):
                object.__setattr__(self, f, tuple(value))
            elif not isinstance(value, tuple) and not (f == "head_sizes" and value is None):
                raise ValueError(f"limits {f}: expected a tuple; got {value!r}")
        for dtype in self.dtypes:
            if dtype not in known:
                raise ValueError(f"limits dtypes: expected among {', '.join(known)}; got {dtype!r}")
        if not self.dtypes or not self.devices:
            raise ValueError("limits: expected at least one dtype and one device; got none")
        for f in ("dtypes", "devices"):
            object.__setattr__(self, f, tuple(dict.fromkeys(getattr(self, f))))
        for f, least in (("multiple_of", 1), ("max_batch_dims", 0), ("max_length", 1)):
            value = getattr(self, f)
            if value is not None or f != "max_length":
                object.__setattr__(self, f, _integer(f, value, least))
        if self.head_sizes is not None:
            object.__setattr__(self, "head_sizes", tuple(_integer("head_sizes", h, 1) for h in self.head_sizes))
        if self.max_length is not None and self.max_length < self.multiple_of:
            raise ValueError(
                f"limits max_length: expected at least multiple_of = {self.multiple_of}; got {self.max_length}"
            )
        if self.head_sizes == ():
            raise ValueError("limits head_sizes: expected sizes of at least 1; got ()")

    @classmethod
    def of(cls, declared: "Limits | Mapping[str, Any] | None") -> "Limits":
        """Limits as given by a backend: an instance, a mapping of some fields, or nothing."""
        if declared is None:
            return cls()
        if isinstance(declared, cls):
            return declared
        if not isinstance(declared, Mapping):
            raise ValueError(f"limits: expected Limits or a mapping; got {type(declared).__name__}")
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(declared) - set(known))
        if unknown:
            raise ValueError(f"limits: expected fields among {', '.join(known)}; got {', '.join(unknown)}")
        return cls(**declared)


def _integer(field: str, value: Any, least: int) -> int:
    """An integer of any kind, as Python's."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        raise ValueError(f"limits {field}: expected an integer of at least {least}; got {value!r}")
    return operator.index(value)


class _Implements(Generic[F]):
    def __init__(self, protocol: Any) -> None:
        self.protocol = get_origin(protocol) or protocol

    def __call__(self, function: F) -> F:
        own, contract = inspect.getdoc(function) or "", inspect.getdoc(self.protocol) or ""
        if isinstance(function, FunctionType) and "Where:" not in own:
            function.__doc__ = f"{own}\n\n{contract}".strip()
        return function


def implements(protocol: TypeForm[F]) -> _Implements[F]:
    """Check at type-checking time that a function has an operation's signature: ``@implements(DotScores[Tensor])``.

    Returns what it is given; the Protocol's shapes, edges and errors join the docstring of a function that lacks them.
    mypy reports a wrong argument name, a missing keyword or a wrong array type.
    """
    return _Implements(protocol)
