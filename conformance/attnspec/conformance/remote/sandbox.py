"""The start of processes that run a backend, in a bubblewrap sandbox where it works."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attnspec.conformance.judging.foreign_calls import ending
from attnspec.conformance.remote.command import PREFIX, words
from attnspec.conformance.remote.environment import SAFE_PATH, own_folders
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.processes import MARK, end_all, new_mark

CHOICES = ("auto", "on", "off")
"""Values of ``--sandbox``."""

JUDGE_VARIABLES = ("ATTNSPEC_", "HYPOTHESIS_", "PYTEST_")
"""Prefixes of environment variables that are hidden from backends."""

DEVICES = ("nvidia*", "dri", "kfd", "accel", "dxg")
"""Patterns of accelerators in /dev."""

EMPTY_FOLDERS = ("/tmp", "/var/tmp", "/run/user")
"""Folders that are empty in a sandbox; the last holds sockets of the user's session."""

MEMORY_FOLDER = "/dev/shm"
"""Folder for temporary files if /tmp holds the backend's file, and is read-only."""

CACHES = {"TRITON_CACHE_DIR": "triton", "NUMBA_CACHE_DIR": "numba"}
"""Variables that move the caches of compilers, since the home is read-only."""

TRIAL_SECONDS = 10.0
"""Time limit of the trial run of bubblewrap."""


class Launched(subprocess.Popen[Any]):
    """A process that runs a backend. Its descendants inherit ``mark`` in their environment."""

    sandboxed = False
    mark = ""

    def end(self, *, ends_children: bool = False, has_program: bool = False) -> list[str]:
        """End the process and its descendants; return the titles of those left running."""
        left = end_all(
            self.pid, self.mark, ends_children=ends_children, sandboxed=self.sandboxed, has_program=has_program
        )
        self.wait()
        return left

    @property
    def ending(self) -> str:
        """Exit status or signal of the ended process, for messages."""
        status = self.returncode
        if self.sandboxed and status - 128 in signal.valid_signals():
            status = 128 - status  # bubblewrap exits with 128 + signal
        return ending(status)


def launch(module: str, *arguments: str, sandbox: bool, readable: Iterable[str] = (), **how: Any) -> Launched:
    """Start a module of attnspec that runs a backend, without the judge's environment variables.

    ``readable`` are paths that the backend must be able to read in a sandbox.
    """
    variables = {name: x for name, x in os.environ.items() if not name.startswith(JUDGE_VARIABLES)}
    command = [sys.executable, "-m", module, *arguments]
    if sandbox:
        command = [*bubblewrap(readable), *command]
        writable = MEMORY_FOLDER if EMPTY_FOLDERS[0] in {*_needed(readable)} else EMPTY_FOLDERS[0]
        variables |= {"TMPDIR": writable, **{name: f"{writable}/{folder}" for name, folder in CACHES.items()}}
    # The safe path keeps modules in the current folder from replacing standard ones.
    environment = {**variables, **SAFE_PATH, MARK: new_mark()}
    process = Launched(command, start_new_session=True, env=environment, **how)
    process.sandboxed, process.mark = sandbox, environment[MARK]
    return process


def bubblewrap(readable: Iterable[str] = ()) -> list[str]:
    """Command prefix for a sandbox: read-only files, own processes, no network; needed folders are never hidden."""
    needed = {*_needed(readable)}
    hidden = [folder for folder in EMPTY_FOLDERS if Path(folder).is_dir() and folder not in needed]
    shown = sorted(path for path in needed if any(path.startswith(f"{folder}/") for folder in hidden))
    devices = sorted(str(path) for pattern in DEVICES for path in Path("/dev").glob(pattern))
    return [
        *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *(argument for path in devices for argument in ("--dev-bind", path, path)),
        *(argument for folder in hidden for argument in ("--tmpfs", folder)),
        *(argument for path in shown for argument in ("--ro-bind", path, path)),
        *("--unshare-pid", "--unshare-ipc", "--unshare-net", "--die-with-parent", "--cap-drop", "ALL"),
        *("--chdir", str(Path.cwd()), "--"),
    ]


def _needed(readable: Iterable[str]) -> Iterable[str]:
    """Folders of Python, attnspec and the backend, each as named and with its links resolved."""
    own = (sys.prefix, sys.base_prefix, str(Path(sys.executable).parent), str(Path.cwd()), *own_folders())
    for name in (*own, *sys.path, *readable):
        if name and (path := Path(name)).exists():
            folder = path if path.is_dir() else path.parent
            yield from (str(folder.absolute()), str(folder.resolve()))


@cache
def sandbox_error() -> str | None:
    """Return why bubblewrap cannot be used here; None if it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    try:
        process = subprocess.run(
            [*bubblewrap(), sys.executable, "-S", "-c", ""],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap (bwrap) does not work here: {type(error).__name__}"
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    return f"bubblewrap (bwrap) does not work here: {(lines or ['no message'])[-1]}" if process.returncode else None


def use_sandbox(choice: str, option: str = "sandbox") -> bool:
    """Return whether to use a sandbox; :class:`BackendError` if it must be ``on`` and cannot work."""
    if choice not in CHOICES:
        raise BackendError(f"{option}: expected one of {', '.join(CHOICES)}; got {choice!r}")
    if choice == "off":
        return False
    reason = sandbox_error()
    if choice == "on" and reason is not None:
        raise BackendError(f"{option}: expected a sandbox; {reason}; 'off' judges without one")
    return reason is None


def files_of(name: str, path: Sequence[str] = ()) -> list[str]:
    """Return the paths that a backend needs: its file, module folders, and the words of its command."""
    target, _, command = name.partition(":")
    files = words(command) if name.startswith(PREFIX) else [target] if target.endswith(".py") else []
    return [*files, *path]
