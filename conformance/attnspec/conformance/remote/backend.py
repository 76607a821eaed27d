"""A backend whose calls run in a separate process, restarted when it ends."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.judging.foreign_calls import RemoteOperation
from attnspec.conformance.remote.arrays import RemoteArray, RemoteNumpyArray
from attnspec.conformance.remote.client import HostProcess
from attnspec.conformance.remote.description import DECLARED
from attnspec.conformance.remote.errors import RedeclaredError
from attnspec.conformance.remote.incidents import Incidents

CONVERSIONS = {"from_numpy", "to_numpy"}
"""Functions of a backend in whose place :class:`RemoteBackend` has methods."""


class RemoteBackend:
    """Backend for subjects and laws; the judging process never imports it.

    Its process begins to import the backend immediately. ``hang_after`` is the time limit of a check in seconds.
    ``path`` adds import folders. ``report_compiling`` is called with an operation that may be compiling, and with an
    empty text when it has ended. With ``ends_children``, closing ends all children of the judging process, not only the
    backend's.
    """

    def __init__(
        self,
        origin: str,
        device: str,
        *,
        hang_after: float,
        path: Sequence[str] = (),
        ends_children: bool = False,
        sandbox: bool = False,
    ) -> None:
        self.origin, self.device = origin, device
        self.left: list[str] = []
        self.incidents = Incidents()
        self._new_host = partial(
            HostProcess, origin, device, allowed=hang_after, path=[*path], ends_children=ends_children, sandbox=sandbox
        )
        self._declared: Mapping[str, Any] | None = None
        self._functions: set[str] = set()
        self._kind, self._to_numpy = RemoteArray, False
        self.report_compiling: Callable[[str], None] = lambda what: None
        self.host = self._new_host()

    def await_declarations(self, seconds: float, expected: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Wait for the declarations; :class:`RedeclaredError` if they differ from ``expected`` or earlier ones."""
        description = self.host.await_description(seconds)
        declared = {name: description.get(name) for name in DECLARED}
        earlier = self._declared if expected is None else {name: expected.get(name) for name in DECLARED}
        for name, value in declared.items():
            if earlier is not None and value != earlier[name]:
                self.close()
                raise RedeclaredError(
                    f"backend {self.origin!r}: {name}: expected what its first import declared, {earlier[name]!r}; "
                    f"got {value!r} in the process that is judged"
                )
        self._declared = declared
        self.host.shapes_are_expensive = (declared["limits"] or {}).get("new_shapes") == "expensive"
        self.host.report_compiling = self.report_compiling
        self._functions = {str(x) for key in ("operations", "optional") for x in description[key]} - CONVERSIONS
        self._kind = RemoteNumpyArray if description["numpy"] is True else RemoteArray
        self._to_numpy = "to_numpy" in description["optional"]
        return declared

    def restart(self, seconds: float) -> None:
        """Replace an ended process by a new one; its declarations must not change."""
        self.close()
        former, self.host = self.host, self._new_host()
        self.host.waits_for_steps, self.host.defers_conversions = former.waits_for_steps, former.defers_conversions
        self.await_declarations(seconds)

    def close(self) -> None:
        """End the process and its descendants; ``left`` names those left running."""
        self.left += [title for title in self.host.close() if title not in self.left]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._functions:
            raise AttributeError(f"backend {self.origin!r} has no {name}")

        # Looked up at every call: a restarted backend has another host.
        operation = RemoteOperation(name, lambda *request: self.host.ask(*request))
        self.__dict__[name] = operation
        return operation

    def from_numpy(self, x: "np.ndarray[Any, Any]", *, device: str) -> RemoteArray:
        """Return an array of the backend; the next request converts it."""
        return self.host.queue_array(x, self._kind)

    def to_numpy(self, x: Any) -> Any:
        """Return the content of a backend's array; an exception of the conversion is raised here."""
        # By its real type: the ``__class__`` of a :class:`RemoteNumpyArray` is NumPy's.
        if issubclass(type(x), RemoteArray):
            return self.host.read(x)
        return self.host.ask("read", x) if self._to_numpy else x
