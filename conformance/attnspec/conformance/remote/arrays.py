"""The judge's handles of a backend's objects.

Laws slice a backend's arrays, swap their axes and write to them. Each such step runs in the backend's process; an
exception there is raised here.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from attnspec.conformance.remote.objects import kept_object
from attnspec.conformance.remote.raised import type_name

ABSENT = object()


class Connection(Protocol):
    """The connection to a backend's process, as used by handles of its objects."""

    changes: int
    """Number of steps so far that may have changed an array's contents."""

    def ask(self, request: str, *args: Any) -> Any:
        """Run a request in the backend's process and return its result."""

    def view(self, request: str, x: "RemoteArray", args: Any, predict: Callable[["np.ndarray[Any, Any]"], Any]) -> Any:
        """Return the result of a step; ``predict`` does it on a NumPy array."""

    def library(self, x: "RemoteArray") -> Mapping[str, Any]:
        """Return the layout functions that the array's library has."""

    def change(self, request: str, x: "RemoteArray", *args: Any) -> None:
        """Change an array, or one of its flags."""

    def release(self, number: int) -> None:
        """Release an object, some time later."""


class RemoteObject:
    """Handle of an object. Its class has the name of the object's class, for messages."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection, self._number = connection, number

    def __del__(self) -> None:
        self._connection.release(self._number)

    def __reduce__(self) -> Any:
        return kept_object, (self._number,)


class RemoteFunction(RemoteObject):
    """Handle of a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function in the backend's process."""
        return self._connection.ask("call", self, args, kwargs)


class RemoteContext(RemoteFunction):
    """Handle of a context manager within which a backend may be called."""

    def __enter__(self) -> Any:
        return self._connection.ask("enter", self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return bool(self._connection.ask("exit", self, kind is not None))


class RemoteArray(RemoteObject):
    """Handle of an array, with its content if known and unchanged since."""

    def __init__(self, connection: Connection, number: int, shape: tuple[int, ...], content: Any = ABSENT) -> None:
        super().__init__(connection, number)
        self.shape = shape
        self._content, self._changes_seen = content, connection.changes

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def pop_content(self) -> Any:
        """Return the content and forget it; :data:`ABSENT` if it is unknown or may have changed."""
        content, self._content = self._content, ABSENT
        return content if self._changes_seen == self._connection.changes else ABSENT

    def __getitem__(self, key: Any) -> Any:
        return self._connection.view("item", self, (key,), lambda x: x[key])

    def __setitem__(self, key: Any, x: Any) -> None:
        self._connection.change("write", self, key, x)

    def swapaxes(self, first: int, second: int) -> Any:
        """Return the array with two axes exchanged."""
        return self._connection.view("method", self, ("swapaxes", (first, second)), lambda x: x.swapaxes(first, second))

    def reshape(self, *shape: Any) -> Any:
        """Return the array in another shape."""
        return self._connection.view("method", self, ("reshape", shape), lambda x: x.reshape(*shape))

    @property
    def dtype(self) -> Any:
        """The dtype object of the backend's library, as a handle."""
        return self._connection.ask("attribute", self, "dtype")

    @property
    def device(self) -> Any:
        """The device object of the backend's library, as a handle."""
        return self._connection.ask("attribute", self, "device")

    @property
    def flags(self) -> "_Flags":
        """Flags of a NumPy array, such as ``writeable``."""
        return _Flags(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return a copy as a NumPy array, if NumPy can convert the object."""
        return np.asarray(self._connection.ask("array", self), dtype)

    def __array_namespace__(self) -> Any:
        """Return the layout functions that the array's library has."""
        return SimpleNamespace(**self._connection.library(self))


class _Flags:
    def __init__(self, array: RemoteArray) -> None:
        object.__setattr__(self, "_array", array)

    def __setattr__(self, name: str, value: bool) -> None:
        array = object.__getattribute__(self, "_array")
        array._connection.change("flag", array, name, value)


class RemoteNumpyArray(RemoteArray):
    """Handle of a NumPy array: layouts check for this class before they forbid writing."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """NumPy's array class."""
        return np.ndarray


HANDLE_CLASSES = {"o": RemoteObject, "f": RemoteFunction, "c": RemoteContext, "a": RemoteArray, "n": RemoteNumpyArray}


@cache
def handle_class(letter: str, name: str) -> type[Any]:
    """Return a class of handles of this kind, with the name of the object's class."""
    return type(type_name(name), (HANDLE_CLASSES[letter],), {})
