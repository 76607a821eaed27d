"""What the suite asks of a backend: any object with a name and some of the operations.

Only ``name`` is required. The optional attributes are ``from_numpy``, ``to_numpy``, ``vjp``, ``pullback``, ``modes``,
``semantics``, ``precision``, ``limits`` and ``notes`` (a mapping of strings that reports print: which kernels run, what
is missing).
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
    """What every backend has; its operations are checked one by one against their Protocols."""

    @property
    def name(self) -> str:
        """The name in reports."""
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


class Differentiates(Protocol[Array_co]):
    """A backend with gradients."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> Mapping[str, Array_co]:
        """Gradients of ⟨cotangent, operation(**arguments)⟩ with respect to every float array of the arguments.

        ``arguments`` holds the arguments by name: arrays of the backend, or trees of them. The cotangent is like the
        result: an array, or a tree of arrays, with None for those that are not of floating point. Gradients come back
        by path: ``key``, ``parameters.w_hf``, each in the dtype of its array and in memory of its own.
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
    """Have mypy check that a function has the signature of an operation: ``@implements(DotScores[Tensor])``.

    mypy reports a wrong argument name, a missing keyword or a wrong array type. At run time the function is returned as
    it is; its docstring is completed to the documentation of the operation.
    """
    return _Implements(protocol)
