"""The backends that a pytest process judges: in their own processes, or in this one."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.command import CommandBackend
from attnspec.conformance.remote.description import contract_from
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.remote.processes import adopt_orphans
from attnspec.conformance.remote.sandbox import use_sandbox
from attnspec.conformance.running.compiling import Notice
from attnspec.conformance.running.contract_file import read_contract
from attnspec.conformance.running.keys import CONTRACT_KEY, JUDGED_BACKENDS
from attnspec.conformance.running.probe import IMPORT_SECONDS
from attnspec.conformance.running.settings import Settings

FAILED = 1
"""Exit status if a backend ends the judging process with status 0."""


def guard_exit(print_line: Callable[[str], None]) -> Callable[[], None]:
    """Make :func:`os._exit`, ``execv`` and ``execve`` end this process with a failure; return the undo.

    A backend in this process could otherwise end the run with success. Forks of this process are unaffected.
    """
    process, exit_process = os.getpid(), os._exit

    def end_process(manner: str, status: int) -> NoReturn:
        print_line(f"attnspec: the backend has ended this process {manner}: what was not reported is not judged")
        exit_process(status or FAILED)

    def exit_(status: int = 0) -> NoReturn:
        if os.getpid() != process:
            exit_process(status)
        end_process(f"with status {status}", status)

    def guarded(original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def execute(path: Any, *args: Any) -> NoReturn:
            if os.getpid() != process:
                original(path, *args)
            end_process(f"by running {path!s} in its place", FAILED)

        return execute

    changed = patch.multiple(os, _exit=exit_, execv=guarded(os.execv), execve=guarded(os.execve))
    changed.start()
    return changed.stop


class JudgedBackends:
    """Backends that this process judges, by name and device. ``key`` signs the contract file."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self._guarded = False
        self._loaded: dict[str, Any] = {}
        self._backends: dict[tuple[str, str], RemoteBackend] = {}
        self._contracts: dict[tuple[str, str], Contract] = {}
        self._errors: dict[tuple[str, str], BackendError] = {}

    def start(self, name: str, settings: Settings, path: tuple[str, ...] = ()) -> RemoteBackend:
        """Begin to import a backend in its own process, unless that has begun."""
        key = name, settings.device
        if key not in self._backends:
            # A worker of attnspec has no other children; the pytest process of a user may have some.
            is_worker = settings.shared_folder is not None
            if is_worker:
                adopt_orphans()
            self._backends[key] = RemoteBackend(
                name,
                settings.device,
                hang_after=settings.hang_after,
                path=path,
                ends_children=is_worker,
                sandbox=use_sandbox(settings.sandbox),
            )
            if settings.shared_folder is not None:
                self._backends[key].report_compiling = Notice(Path(settings.shared_folder))
        return self._backends[key]

    def await_ready(self, name: str, settings: Settings, path: tuple[str, ...] = ()) -> tuple[RemoteBackend, Contract]:
        """Return an imported backend and its contract; in a worker it must declare the same as for the whole run."""
        key = name, settings.device
        backend = self.start(name, settings, path)
        if key in self._errors:
            raise self._errors[key]
        if key not in self._contracts:
            expected: Mapping[str, Any] | None = None
            if settings.shared_folder is not None:
                expected = read_contract(Path(settings.shared_folder), IMPORT_SECONDS, self.key)
            try:
                description = backend.await_declarations(IMPORT_SECONDS, expected)
            except BackendError as error:
                self._errors[key] = error
                raise
            self._contracts[key] = contract_from(dict(description), name)
        return backend, self._contracts[key]

    def load_here(self, name: str, device: str) -> tuple[Any, Contract]:
        """Load a backend into this process once; return it and its contract on a device."""
        if name not in self._loaded:
            self._loaded[name] = load(name)
        if (name, device) not in self._contracts:
            self._contracts[name, device] = contract_of(self._loaded[name], name, device)
        return self._loaded[name], self._contracts[name, device]

    def guard(self, config: pytest.Config) -> None:
        """Make the run fail if a backend in this process ends it."""
        if not self._guarded and not hasattr(config, "workerinput"):
            self._guarded = True
            config.add_cleanup(guard_exit(lambda line: _print_line(config, line)))

    def close(self) -> list[str]:
        """End all backends, and return the processes that they left running."""
        for backend in self._backends.values():
            backend.close()
        for loaded in self._loaded.values():
            if isinstance(loaded, CommandBackend):
                loaded.close()
        return [title for backend in self._backends.values() for title in backend.left]


def backends(config: pytest.Config) -> JudgedBackends:
    """Return the backends that this process judges."""
    key = getattr(config, "workerinput", {}).get(CONTRACT_KEY, "")
    judged: JudgedBackends = config.stash.setdefault(JUDGED_BACKENDS, JudgedBackends(key))
    return judged


def _print_line(config: pytest.Config, line: str) -> None:
    """Print a line even while pytest captures output."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend()
    writer = config.get_terminal_writer()
    writer.line(f"\n{line}")
    writer.flush()
