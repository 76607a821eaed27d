"""Expected failures, read from a file with one operation, law and dtype per line.

    # The kernel takes any shapes: checks are the caller's.
    scaled_dot_product_attention  operation.rejection  *
    softmax                       semantics.*          float32  # overflows where all is masked

Names may be patterns. A comment on a line is its reason; one above is that of the lines below, up to an empty line.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from attnspec.conformance.judging.cases import BOOLEAN_DTYPE, DEFAULT_DTYPE, governing_laws
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.running.selection import matching, selected_laws, unknown_name
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS

NAMES: dict[str, Collection[str]] = {
    "operation": [o.name for o in OPERATIONS.values() if not o.reference_only],
    "law": LAWS,
    "dtype": (*DEFAULTS, BOOLEAN_DTYPE, DEFAULT_DTYPE),
}
"""Allowed names for each part of a line."""


@dataclass(frozen=True)
class Expectation:
    """One line of a file of expected failures: names or patterns, and the reason."""

    operation: str
    law: str
    dtype: str
    reason: str
    place: str

    def concerns(self, operation: str, law: str, dtype: str) -> bool:
        """Return whether the line names this law of this operation at this dtype."""
        names = ((operation, self.operation), (law, self.law), (dtype, self.dtype))
        return all(fnmatchcase(name, pattern) for name, pattern in names)

    def among(self, results: Iterable[Result]) -> list[Result]:
        """Return the results that the line names."""
        return [r for r in results if self.concerns(r.operation, r.law, r.dtype)]

    def selected(self, settings: Settings) -> bool:
        """Return whether the run's selection includes anything that the line names."""
        # Operations without a dtype, such as those with boolean results, are judged whichever dtypes are selected.
        chosen = (
            (self.operation, settings.operations),
            (self.law, selected_laws(settings.laws)),
            (self.dtype, (*settings.dtypes, BOOLEAN_DTYPE, DEFAULT_DTYPE) if settings.dtypes else ()),
        )
        return all(not names or any(fnmatchcase(name, pattern) for name in names) for pattern, names in chosen)

    def __str__(self) -> str:
        return f"{self.place}: {self.operation} {self.law} {self.dtype}"


Expectations = tuple[Expectation, ...]


@lru_cache
def expectations(path: str | None, option: str = "expect") -> Expectations:
    """Return the lines of a file of expected failures; none without a file.

    Raises :class:`BackendError` for an unreadable file, and for a line that can never match. Each file is read once.
    """
    if path is None:
        return ()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BackendError(f"{option}: expected a file that can be read; got {path!r}: {why}") from error
    return tuple(_lines(text, Path(path).name))


def _lines(text: str, name: str) -> Iterator[Expectation]:
    comments: list[str] = []
    after_line = False
    for number, line in enumerate(text.splitlines(), 1):
        names, hash_, comment = (part.strip() for part in line.partition("#"))
        if names:
            yield _checked_line(names.split(), comment or " ".join(comments), f"{name}:{number}")
            after_line = True
        elif hash_:
            comments = [comment] if after_line else [*comments, comment]
            after_line = False
        else:
            comments, after_line = [], False


def _checked_line(names: Sequence[str], reason: str, place: str) -> Expectation:
    if len(names) != len(NAMES):
        raise BackendError(f"{place}: expected an operation, a law and a dtype; got {' '.join(names)!r}")
    for (what, known), name in zip(NAMES.items(), names, strict=True):
        if not matching([name], list(known)):
            raise BackendError(unknown_name(f"{place}: {what}", name, known))
    operation, law, dtype = names
    if not any(matching([law], governing_laws(OPERATIONS[o])) for o in matching([operation], list(NAMES["operation"]))):
        raise BackendError(f"{place}: expected a law that governs {operation}; got {law!r}")
    return Expectation(operation, law, dtype, reason, place)


def expected(result: Result, lines: Expectations) -> Expectation | None:
    """Return the line that expects this failure; None for any other result."""
    if result.status is not Status.FAILED:
        return None
    return next((line for line in lines if line.among([result])), None)


def unexpected(results: Iterable[Result], lines: Expectations) -> list[Result]:
    """Return the failures that no line expects."""
    return [r for r in results if r.status is Status.FAILED and expected(r, lines) is None]


def unexpected_passes(results: Iterable[Result], lines: Expectations) -> list[tuple[Expectation, Result]]:
    """Return the laws that hold although a line expects their failure, with the line."""
    held = [r for r in results if r.status is Status.PASSED]
    return [(line, r) for line in lines for r in line.among(held)]


def unmatched_lines(results: Collection[Result], lines: Expectations) -> list[Expectation]:
    """Return the lines that match no judged result."""
    judged = [r for r in results if r.judged]
    return [line for line in lines if not line.among(judged)]
