"""Output of reports to the console and to the files of the command line."""

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

IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""Errors of a folder without permission for new files; a file in it may still be writable."""


class UnwritableError(Exception):
    """A file that cannot be written; the message names the option, expected and got."""


@dataclass(frozen=True)
class OutputFile:
    """A file that a command-line option names."""

    path: Path
    option: str

    def check(self) -> None:
        """Raise :class:`UnwritableError` if the file cannot be written, before any work is done."""
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
        """Replace the whole file; :class:`UnwritableError` if that fails, with the old file unchanged."""
        try:
            if self._is_stream():
                self.path.write_text(text, encoding="utf-8")
            else:
                self._replace(text)
        except OSError as error:
            message = f"{self.option}: {str(self.path)!r} could not be written: {error.strerror}"
            raise UnwritableError(message) from error

    def _is_stream(self) -> bool:
        """Return whether this is a pipe or device: its reader stops at the first end, and it cannot be replaced."""
        return self.path.exists() and not self.path.is_file() and not self.path.is_dir()

    def _replace(self, text: str) -> None:
        target = self.path.resolve()
        part = target.with_name(f".attnspec-{os.getpid()}.part")
        try:
            part.write_text(text, encoding="utf-8")
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
        except OSError as error:
            part.unlink(missing_ok=True)
            if error.errno not in IN_PLACE or not target.exists():
                raise
            target.write_text(text, encoding="utf-8")


class StandardStream:
    """Standard output or error that may be closed or full; the first error ends only the output.

    ``error`` is that error, None without one. A reader that has gone away, as ``head`` does, is no error.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text; discard it after an error."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.error = error
            # Buffered text, and text that others write to the same descriptor, is discarded too.
            with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def open_standard_streams() -> None:
    """Keep a closed or full output from ending the run: see :class:`StandardStream`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # Closed streams are opened in order, so that no other file gets their numbers.
        stream = getattr(sys, name) or Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - it stays open
        if isinstance(stream, io.TextIOWrapper) and mode == "w":
            # A terminal that lacks a character shows another one.
            stream.reconfigure(errors="replace")
            stream = StandardStream(stream)
        setattr(sys, name, stream)


def write_report(report: "Report", files: Mapping[str, OutputFile], console: "Console") -> list[str]:
    """Write a report as ``json``, ``html`` and ``junit``, then print it; return error messages."""
    from attnspec.conformance.reporting.junit import as_junit
    from attnspec.conformance.reporting.report import Report
    from attnspec.conformance.reporting.table import print_report
    from attnspec.conformance.reporting.verdict_page import as_html

    known = f"{report.contract.name} {report.verdict}"
    # Files come first: the console's reader may be gone.
    errors = write_files(report, {"json": Report.as_text, "html": as_html, "junit": as_junit}, files, known)
    return errors + (guarded("table", lambda: print_report(report, console), known) if report.results else [])


def write_files(
    made: T, formats: Mapping[str, Callable[[T], str]], files: Mapping[str, OutputFile], known: str
) -> list[str]:
    """Write an object to files in their formats; return error messages, which repeat ``known``."""
    return [
        error
        for name, file in files.items()
        for error in guarded(name, partial(_write, file, formats[name], made), known)
    ]


def _write(file: OutputFile, as_text: Callable[[T], str], made: T) -> None:
    file.write(as_text(made))


def guarded(name: str, write: Callable[[], None], known: str) -> list[str]:
    """Write one of several reports; return the error message in a list, empty on success.

    An error of attnspec itself is reported with ``known``, and does not affect the other reports.
    """
    try:
        write()
    except UnwritableError as error:
        return [str(error)]
    except Exception as error:  # noqa: BLE001 - the verdict is known, and the other reports are to be written
        return [f"{own_error(f'writing the report as {name}', error)}; {known} all the same"]
    return []
