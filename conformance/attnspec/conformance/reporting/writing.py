"""Output of reports to the console, and to files named on the command line."""

import errno
import io
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from attnspec.conformance.judging.own_errors import own_error

if TYPE_CHECKING:
    from rich.console import Console

    from attnspec.conformance.reporting.report import Report

T = TypeVar("T")

FOLDER_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""Errors of creating a file in a folder whose existing files may be writable."""


class UnwritableError(Exception):
    """A file that cannot be written; the message names its command-line option."""


@dataclass(frozen=True)
class OutputFile:
    """A file that a command-line option names."""

    path: Path
    option: str

    def check(self) -> None:
        """Raise :class:`UnwritableError` if the file cannot be written; called before any other work."""
        existed = self.path.exists()
        try:
            if not self._is_stream():
                self.path.open("a", encoding="utf-8").close()
        except OSError as error:
            got = f"{str(self.path)!r}: {error.strerror}"
            raise UnwritableError(f"{self.option}: expected a file that can be written; got {got}") from error
        if not existed:
            self.path.unlink()

    def write(self, text: str) -> None:
        """Replace the whole file; :class:`UnwritableError` if that fails.

        The old file is then unchanged, unless its folder allows no temporary file: then it is overwritten in place.
        """
        try:
            if self._is_stream():
                self.path.write_text(text, encoding="utf-8")
            else:
                self._replace(text)
        except OSError as error:
            message = f"{self.option}: {str(self.path)!r} could not be written: {error.strerror}"
            raise UnwritableError(message) from error

    def _is_stream(self) -> bool:
        """Return True for a pipe or device, which can be opened once and not replaced."""
        return self.path.exists() and not self.path.is_file() and not self.path.is_dir()

    def _replace(self, text: str) -> None:
        target = self.path.resolve()
        temporary = target.with_name(f".attnspec-{os.getpid()}.part")
        try:
            temporary.write_text(text, encoding="utf-8")
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if error.errno not in FOLDER_ERRORS or not target.exists():
                raise
            target.write_text(text, encoding="utf-8")


class StandardStream:
    """Standard output or error. Its errors, such as a full disk, do not end the run.

    ``error`` is the first error, None without one. A reader that closes its pipe early, as ``head`` does, is no error.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text; after an error, discard it."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush written text."""
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.error = error
            # The descriptor itself is redirected, so that buffered text and other writers cannot fail again.
            with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def open_standard_streams() -> None:
    """Replace standard streams by ones whose errors do not end the run: see :class:`StandardStream`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A new file gets the lowest free descriptor: in this order, closed streams get 0 to 2, which no other must.
        stream = getattr(sys, name) or Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - it stays open
        if isinstance(stream, io.TextIOWrapper) and mode == "w":
            # Replace characters that the terminal's encoding lacks, instead of raising an error.
            stream.reconfigure(errors="replace")
            stream = StandardStream(stream)
        setattr(sys, name, stream)


def write_report(report: "Report", files: Mapping[str, OutputFile], console: "Console") -> list[str]:
    """Write a report as ``json``, ``html`` and ``junit``, then print it; return error messages."""
    from attnspec.conformance.reporting.junit import as_junit
    from attnspec.conformance.reporting.report import Report
    from attnspec.conformance.reporting.table import print_report
    from attnspec.conformance.reporting.verdict_page import as_html

    verdict = f"{report.contract.name} {report.verdict}"
    # Files come first, since the console's reader may be gone.
    errors = write_files(report, {"json": Report.as_text, "html": as_html, "junit": as_junit}, files, verdict)
    return errors + (guarded("table", lambda: print_report(report, console), verdict) if report.results else [])


def write_files(
    document: T, formats: Mapping[str, Callable[[T], str]], files: Mapping[str, OutputFile], verdict: str
) -> list[str]:
    """Write a document to files in their formats; return error messages, which repeat ``verdict``."""
    return [
        error
        for name, file in files.items()
        for error in guarded(name, partial(_write, file, formats[name], document), verdict)
    ]


def _write(file: OutputFile, as_text: Callable[[T], str], document: T) -> None:
    file.write(as_text(document))


def guarded(name: str, write: Callable[[], None], verdict: str) -> list[str]:
    """Write one of several reports; return a list with the error message, empty on success.

    The message of an error of attnspec itself repeats ``verdict``. Such an error does not affect other reports.
    """
    try:
        write()
    except UnwritableError as error:
        return [str(error)]
    except Exception as error:  # noqa: BLE001 - the verdict is known, and the other reports are to be written
        return [f"{own_error(f'writing the report as {name}', error)}; {verdict} all the same"]
    return []
