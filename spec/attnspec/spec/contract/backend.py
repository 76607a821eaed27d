"""Protocols of a backend: any object with a name and some of the operations.

Only ``name`` is required. The optional attributes are ``from_numpy``, ``to_numpy``, ``default_device``,
``free_memory``, ``vjp``, ``pullback``, ``modes``, ``semantics``, ``precision``, ``limits``, ``on_device`` and
``notes``. Reports print ``notes``, a mapping of strings: the kernels that run, the parts that are missing.
"""

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any, Generic, Protocol, TypeVar, get_origin, runtime_checkable

import numpy as np
from typing_extensions import TypeForm

from attnspec.spec.contract.annotations import Array, Array_co
from attnspec.spec.contract.documentation import documentation, operation_of

F = TypeVar("F")


@runtime_checkable
class Backend(Protocol):
    """Base of every backend: a name. Each operation is checked against its own Protocol."""

    @property
    def name(self) -> str:
        """Name printed in reports."""
        ...


class Converts(Protocol[Array]):
    """A backend with its own array type. Both conversions preserve dtype and shape.

    NumPy carries bfloat16 as ``ml_dtypes.bfloat16``.
    """

    def from_numpy(self, array: np.ndarray[Any, Any], *, device: str) -> Array:
        """Convert to an array of the backend, on the device."""
        ...

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """Convert to a NumPy array."""
        ...


class Differentiates(Protocol[Array_co]):
    """A backend with gradients."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> Mapping[str, Array_co]:
        """Gradients of ⟨cotangent, operation(**arguments)⟩ with respect to every float array of the arguments.

        ``arguments`` maps names to arrays of the backend or trees of them. The cotangent has the structure of the
        result: an array or a tree of arrays, with None in place of arrays that are not float. The result maps paths
        (``key``, ``parameters.w_hf``) to gradients, each in the dtype of its array and in memory of its own.
        """
        ...


class _Implements(Generic[F]):
    def __init__(self, protocol: Any) -> None:
        self.protocol = get_origin(protocol) or protocol

    def __call__(self, function: F) -> F:
        own = function.__doc__ or ""
        if isinstance(function, FunctionType) and "Where:" not in own:
            operation = operation_of(self.protocol)
            contract = inspect.getdoc(self.protocol) or ""
            function.__doc__ = documentation(operation, own) if operation else f"{own}\n\n{contract}".strip()
        return function


def implements(protocol: TypeForm[F]) -> _Implements[F]:
    """Have mypy check a function against the signature of an operation: ``@implements(DotScores[Tensor])``.

    mypy reports a wrong argument name, a missing keyword or a wrong array type. At run time the same function is
    returned; its docstring is replaced by the operation's documentation, which includes it.
    """
    return _Implements(protocol)
