"""What stands for the objects of a backend in the process that judges it: handles, and what may be done with them.

They do what layouts and laws do with arrays: cut them, exchange their axes, write to them. Each of these is done in the
process of the backend; what it raises is raised here.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from attnspec.conformance.remote.objects import kept
from attnspec.conformance.remote.raised import type_name

ABSENT = object()


class Connection(Protocol):
    """The process of a backend, as its objects see it."""

    changes: int
    """How often anything was done that may have changed numbers."""

    def ask(self, what: str, *given: Any) -> Any:
        """Have something done, and return what comes of it."""
        ...

    def view(self, what: str, x: "RemoteArray", given: Any, like: Callable[["np.ndarray[Any, Any]"], Any]) -> Any:
        """What a step makes of an array; ``like`` does the same with an array of NumPy."""
        ...

    def library(self, x: "RemoteArray") -> Mapping[str, Any]:
        """The functions of an array's library that layouts need, as far as it has them."""
        ...

    def change(self, what: str, x: "RemoteArray", *given: Any) -> None:
        """Change an array, or a flag of it."""
        ...

    def forget(self, number: int) -> None:
        """Let go of an object, some time later."""
        ...


class RemoteObject:
    """An object of which nothing is known but the name of its class, which that of this class repeats."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection, self._number = connection, number

    def __del__(self) -> None:
        self._connection.forget(self._number)

    def __reduce__(self) -> Any:
        return kept, (self._number,)


class RemoteFunction(RemoteObject):
    """A function."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call it there."""
        return self._connection.ask("call", self, given, named)


class RemoteContext(RemoteFunction):
    """A context within which a backend may be called."""

    def __enter__(self) -> Any:
        return self._connection.ask("enter", self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return bool(self._connection.ask("exit", self, kind is not None))


class RemoteArray(RemoteObject):
    """An array. ``read`` is what it was seen to hold, as long as nothing was done that may have changed it."""

    def __init__(self, connection: Connection, number: int, shape: tuple[int, ...], read: Any = ABSENT) -> None:
        super().__init__(connection, number)
        self.shape = shape
        self._read, self._since = read, connection.changes

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def seen(self) -> Any:
        """What it was seen to hold just now, once; :data:`ABSENT` if that is not known."""
        found, self._read = self._read, ABSENT
        return found if self._since == self._connection.changes else ABSENT

    def __getitem__(self, key: Any) -> Any:
        return self._connection.view("item", self, (key,), lambda x: x[key])

    def __setitem__(self, key: Any, x: Any) -> None:
        self._connection.change("write", self, key, x)

    def swapaxes(self, one: int, other: int) -> Any:
        """The same numbers with two axes exchanged."""
        return self._connection.view("method", self, ("swapaxes", (one, other)), lambda x: x.swapaxes(one, other))

    def reshape(self, *shape: Any) -> Any:
        """The same numbers in another shape."""
        return self._connection.view("method", self, ("reshape", shape), lambda x: x.reshape(*shape))

    @property
    def dtype(self) -> Any:
        """Its dtype, as it is called there."""
        return self._connection.ask("attribute", self, "dtype")

    @property
    def device(self) -> Any:
        """Where it is, as that is called there."""
        return self._connection.ask("attribute", self, "device")

    @property
    def flags(self) -> "_Flags":
        """Whether it may be written to, of an array of NumPy."""
        return _Flags(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """A copy as an array of NumPy, of whatever NumPy understands."""
        return np.asarray(self._connection.ask("array", self), dtype)

    def __array_namespace__(self) -> Any:
        """The functions of its library that layouts need, as far as it has them."""
        return SimpleNamespace(**self._connection.library(self))


class _Flags:
    """The flags of an array of NumPy."""

    def __init__(self, array: RemoteArray) -> None:
        object.__setattr__(self, "_array", array)

    def __setattr__(self, name: str, value: bool) -> None:
        array = object.__getattribute__(self, "_array")
        array._connection.change("flag", array, name, value)


class RemoteNumpyArray(RemoteArray):
    """An array of NumPy, of which layouts ask whether it is one before they forbid writing."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """NumPy's."""
        return np.ndarray


KINDS = {"o": RemoteObject, "f": RemoteFunction, "c": RemoteContext, "a": RemoteArray, "n": RemoteNumpyArray}


@cache
def named_like(letter: str, name: str) -> type[Any]:
    """The class for objects of this kind whose class has this name."""
    return type(type_name(name), (KINDS[letter],), {})
