"""The backend that a pytest run judges: in its own process, or in this one for debugging."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.description import contract_from
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.remote.processes import adopt_orphans
from attnspec.conformance.remote.sandbox import resolved
from attnspec.conformance.running.contract_file import read_contract
from attnspec.conformance.running.keys import HOSTS, KEY
from attnspec.conformance.running.probe import IMPORT_SECONDS
from attnspec.conformance.running.settings import Settings

FAILED = 1
"""Exit status of a process that a backend ended with status 0."""


def guarded(say: Callable[[str], None]) -> Callable[[], None]:
    """Make :func:`os._exit`, ``execv`` and ``execve`` end this process with a failure.

    ``say`` prints the reason. The returned function undoes the change. Forked copies of this process are unaffected.
    """
    process, leave = os.getpid(), os._exit

    def ended(how: str, status: int) -> NoReturn:
        say(f"attnspec: the backend has ended this process {how}: what was not reported is not judged")
        leave(status or FAILED)

    def exit_(status: int = 0) -> NoReturn:
        if os.getpid() != process:
            leave(status)
        ended(f"with status {status}", status)

    def replaced(call: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def execute(path: Any, *given: Any) -> NoReturn:
            if os.getpid() != process:
                call(path, *given)
            ended(f"by running {path!s} in its place", FAILED)

        return execute

    changed = patch.multiple(os, _exit=exit_, execv=replaced(os.execv), execve=replaced(os.execve))
    changed.start()

    def undo() -> None:
        changed.stop()

    return undo


class Hosts:
    """Backends that this process judges, each in its own process, by name and device."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self._guarded = False
        self._loaded: dict[str, tuple[Any, Contract]] = {}
        self._backends: dict[tuple[str, str], RemoteBackend] = {}
        self._contracts: dict[tuple[str, str], Contract] = {}
        self._errors: dict[tuple[str, str], BackendError] = {}

    def start(self, name: str, settings: Settings, path: tuple[str, ...] = ()) -> RemoteBackend:
        """Begin to import a backend, unless that has begun."""
        key = name, settings.device
        if key not in self._backends:
            # A worker of attnspec has no other children; a user's pytest may have.
            ours = settings.shared_folder is not None
            if ours:
                adopt_orphans()
            self._backends[key] = RemoteBackend(
                name,
                settings.device,
                hang_after=settings.hang_after,
                path=path,
                adopted=ours,
                sandbox=resolved(settings.sandbox),
            )
        return self._backends[key]

    def ready(self, name: str, settings: Settings, path: tuple[str, ...] = ()) -> tuple[RemoteBackend, Contract]:
        """Return an imported backend and its contract; in a worker it must declare the admitted contract."""
        key = name, settings.device
        backend = self.start(name, settings, path)
        if key in self._errors:
            raise self._errors[key]
        if key not in self._contracts:
            known: Mapping[str, Any] | None = None
            if settings.shared_folder is not None:
                known = read_contract(Path(settings.shared_folder), IMPORT_SECONDS, self.key)
            try:
                said = backend.introduce(IMPORT_SECONDS, known)
            except BackendError as error:
                self._errors[key] = error
                raise
            self._contracts[key] = contract_from(dict(said), name)
        return backend, self._contracts[key]

    def loaded(self, name: str) -> tuple[Any, Contract]:
        """Load a backend into this process once; return it and its contract."""
        if name not in self._loaded:
            found = load(name)
            self._loaded[name] = (found, contract_of(found, name))
        return self._loaded[name]

    def guard(self, config: pytest.Config) -> None:
        """Give this process a non-zero exit status if a backend ends it during the run."""
        if not self._guarded and not hasattr(config, "workerinput"):
            self._guarded = True
            config.add_cleanup(guarded(lambda line: _say(config, line)))

    def close(self) -> list[str]:
        """End all backends, and return the processes that they left running."""
        for backend in self._backends.values():
            backend.close()
        return [title for backend in self._backends.values() for title in backend.left]


def hosts(config: pytest.Config) -> Hosts:
    """Return the backends that this process judges."""
    key = getattr(config, "workerinput", {}).get(KEY, "")
    found: Hosts = config.stash.setdefault(HOSTS, Hosts(key))
    return found


def _say(config: pytest.Config, line: str) -> None:
    """Print a line even while pytest captures output."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend()
    writer = config.get_terminal_writer()
    writer.line(f"\n{line}")
    writer.flush()
