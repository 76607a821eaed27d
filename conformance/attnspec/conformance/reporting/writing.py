"""Where reports are written: on the console, and in the files that the command line asks for."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from attnspec.conformance.judging.own_errors import own_error

if TYPE_CHECKING:
    from attnspec.conformance.reporting.report import Report


class UnwritableError(Exception):
    """A file that cannot be written; the message names the option, expected and got."""


@dataclass(frozen=True)
class OutputFile:
    """A file that an option of the command line asks for."""

    path: Path
    option: str

    def check(self) -> None:
        """:class:`UnwritableError` if it cannot be written, before any work is done."""
        existed = self.path.exists()
        try:
            self.path.open("a", encoding="utf-8").close()
        except OSError as error:
            got = f"{str(self.path)!r}: {error.strerror}"
            raise UnwritableError(f"{self.option}: expected a file that can be written; got {got}") from error
        if not existed:
            self.path.unlink()

    def write(self, text: str) -> None:
        """Replace the file; :class:`UnwritableError` if that fails."""
        try:
            self.path.write_text(text, encoding="utf-8")
        except OSError as error:
            message = f"{self.option}: {str(self.path)!r} could not be written: {error.strerror}"
            raise UnwritableError(message) from error


def write_report(report: "Report", junit: str | None, console: Console, files: Mapping[str, OutputFile]) -> None:
    """Print a report, and write it to the files that are asked for as ``json``, ``html`` and ``junit``.

    ``junit`` is the report of pytest as JUnit XML, None if the run was too short for one. An error of attnspec in one
    of them is printed on standard error, and leaves the others and the verdict as they are.
    """
    from attnspec.conformance.reporting.table import print_report
    from attnspec.conformance.reporting.verdict_page import as_html

    known = f"{report.contract.name} {report.verdict}"
    written("table", lambda: print_report(report, console), known)
    if "json" in files:
        written("json", lambda: files["json"].write(report.as_text()), known)
    if "html" in files:
        written("html", lambda: files["html"].write(as_html(report)), known)
    if "junit" in files and junit is not None:
        written("junit", lambda: files["junit"].write(junit), known)


def written(name: str, write: Callable[[], None], known: str) -> None:
    """Write one of several reports; an error of attnspec is printed on standard error, beside what is known already.

    Errors of the console or the disk come through.
    """
    try:
        write()
    except (OSError, UnwritableError):
        raise
    except Exception as error:  # noqa: BLE001 - the verdict is known, and the other reports are to be written
        said = own_error(f"writing the report as {name}", error)
        sys.stderr.write(f"attnspec: {said}; {known} all the same\n")
