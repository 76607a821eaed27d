"""A backend whose calls run in a separate process, restarted when it ends."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnspec.conformance.judging.foreign_calls import OperationElsewhere
from attnspec.conformance.remote.arrays import RemoteArray, RemoteNumpyArray
from attnspec.conformance.remote.client import Host
from attnspec.conformance.remote.description import DECLARED
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.incidents import Incidents

CONVERSIONS = {"from_numpy", "to_numpy"}


class RemoteBackend:
    """Backend for subjects and laws; the judging process never imports it.

    Its process begins to import the backend immediately. ``hang_after`` is the time limit of a check in seconds,
    ``path`` adds import folders, and ``adopted`` means that this process has no children except those of backends.
    """

    def __init__(
        self,
        origin: str,
        device: str,
        *,
        hang_after: float,
        path: Sequence[str] = (),
        adopted: bool = False,
        sandbox: bool = False,
    ) -> None:
        self.origin, self.device = origin, device
        self.left: list[str] = []
        self.incidents = Incidents(hang_after)
        self._how: dict[str, Any] = {"allowed": hang_after, "path": [*path], "adopted": adopted, "sandbox": sandbox}
        self._declared: Mapping[str, Any] | None = None
        self._functions: set[str] = set()
        self._kind, self._to_numpy = RemoteArray, False
        self.host = Host(origin, device, **self._how)

    def introduce(self, seconds: float, admitted: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the imported backend's declarations; :class:`BackendError` if they differ from ``admitted``."""
        said = self.host.introduced(seconds)
        declared = {name: said.get(name) for name in DECLARED}
        known = self._declared if admitted is None else {name: admitted.get(name) for name in DECLARED}
        for name, value in declared.items():
            if known is not None and value != known[name]:
                self.close()
                raise BackendError(
                    f"backend {self.origin!r}: declares other {name} in the process that is judged than when it was "
                    f"admitted: expected {known[name]!r}; got {value!r}"
                )
        self._declared = declared
        self._functions = {str(x) for names in (said["operations"], said["optional"]) for x in names} - CONVERSIONS
        self._kind = RemoteNumpyArray if said["numpy"] is True else RemoteArray
        self._to_numpy = "to_numpy" in said["optional"]
        return declared

    def restart(self, seconds: float) -> None:
        """Start a new process in place of an ended one; it must declare the same."""
        self._end()
        self.host = Host(self.origin, self.device, **self._how)
        self.introduce(seconds)

    def close(self) -> None:
        """End the process, and every process that it left running."""
        self._end()

    def _end(self) -> None:
        self.left += [title for title in self.host.close() if title not in self.left]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._functions:
            raise AttributeError(f"backend {self.origin!r} has no {name}")

        # A restarted backend has another host.
        operation = OperationElsewhere(name, lambda *request: self.host.ask(*request))
        self.__dict__[name] = operation
        return operation

    def from_numpy(self, x: "np.ndarray[Any, Any]", *, device: str) -> RemoteArray:
        """Return an array of the backend on its device; it is converted with the next request."""
        return self.host.queued(x, self._kind)

    def to_numpy(self, x: Any) -> Any:
        """Return the content of a backend's array; errors of its conversion are raised here."""
        if issubclass(type(x), RemoteArray):
            return self.host.read(x)
        return self.host.ask("read", x) if self._to_numpy else x
