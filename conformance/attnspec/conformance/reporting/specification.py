"""The whole specification as sections of Markdown, which ``page`` turns into HTML.

Formulas are blocks fenced as ``math``, or inline code between dollar signs. Names and citations are inline code.
"""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from attnspec.conformance.reporting.entries import (
    erratum_entry,
    law_entry,
    misprint_entry,
    operation_entry,
    page_entry,
    precision_entry,
    question_entry,
)
from attnspec.conformance.reporting.markup import table
from attnspec.spec import VERSION
from attnspec.spec.contract.axes import GLOSSARY
from attnspec.spec.contract.documentation import in_words
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import CHAPTERS, OPERATIONS
from attnspec.spec.contract.semantics import QUESTIONS
from attnspec.spec.contract.sources import SOURCES
from attnspec.spec.errata import ERRATA, MISPRINTS
from attnspec.spec.lectures import LECTURES
from attnspec.spec.lectures.registry import Lecture

TITLE = f"attnspec {VERSION}"

NOTATION = """\
An array `(*batch, n, d)` begins with any number of batch dimensions, or none. Vectors are rows. Masks are boolean: True
means that a query may attend to a key. With a mask and `causal`, both must allow a key. Weight matrices are (out, in),
except those of S4's recurrent cells, which are (in, out) as printed there. Lengths of sequences and batches may be 0;
every other size is at least 1. $`A_i`$ is the set of keys that query $`i`$ may attend to. S0 to S4 are the sources
listed below: `S0(4)` is equation (4) of S0, and `S2 “…”` the passage of S2 under that heading."""


@dataclass(frozen=True)
class Section:
    """A heading with its text in Markdown and its subsections; ``anchor`` is its link target."""

    anchor: str
    title: str
    text: str
    parts: tuple["Section", ...] = ()


def specification() -> list[Section]:
    """Return the parts of the specification, in order."""
    chapters = [c for c in CHAPTERS if any(o.chapter == c for o in OPERATIONS.values())]
    law_chapters = list(dict.fromkeys(x.chapter for x in LAWS.values()))
    errata = [Section(e.identifier, e.identifier, erratum_entry(e)) for e in ERRATA.values()]
    misprints = [Section(m.identifier, m.identifier, misprint_entry(m)) for m in MISPRINTS.values()]
    questions = [Section(q.name, q.name, question_entry(q)) for q in QUESTIONS.values()]
    return [
        Section("notation", "Notation", _notation()),
        *map(_chapter, chapters),
        *map(_laws, law_chapters),
        Section("questions", "Open questions of semantics", "Conventions on which libraries differ.", tuple(questions)),
        Section("precision", "Precision classes", precision_entry()),
        Section("errata", "Errata of the sources", "", tuple(errata)),
        Section("misprints", "Misprints", "Errors in print that change no calculation.", tuple(misprints)),
        *(_lecture(key, lecture) for key, lecture in LECTURES.items()),
    ]


def as_markdown(sections: list[Section]) -> str:
    """Return the whole specification as Markdown."""
    parts = [f"# {TITLE}"]
    for level, section in with_levels(sections):
        parts += [f"{'#' * level} {section.title}", *([section.text] if section.text else [])]
    return "\n\n".join(parts) + "\n"


def with_levels(sections: list[Section]) -> Iterator[tuple[int, Section]]:
    """Yield every section with its level, before its subsections."""
    for section in sections:
        yield 1, section
        yield from ((2, part) for part in section.parts)


def _notation() -> str:
    meanings: dict[str, list[str]] = {}
    for size, axis in GLOSSARY.items():
        meanings.setdefault(in_words(axis), []).append(f"`{size}`")
    sizes = table(["sizes", "what they count"], [(", ".join(names), meaning) for meaning, names in meanings.items()])
    sources = "\n".join(f"- {s.key}: {s.title}" for s in SOURCES.values())
    return f"{NOTATION}\n\n{sizes}\n\nSources:\n\n{sources}"


def _chapter(name: str) -> Section:
    operations = [o for o in OPERATIONS.values() if o.chapter == name]
    statement = inspect.cleandoc(sys.modules[operations[0].protocol.__module__].__doc__ or "").partition("\n\n")[0]
    parts = tuple(Section(o.name, o.name, operation_entry(o)) for o in operations)
    return Section(f"operations-{name}", f"Operations: {name}", " ".join(statement.split()), parts)


def _laws(chapter: str) -> Section:
    parts = tuple(Section(x.id, x.id, law_entry(x)) for x in LAWS.values() if x.chapter == chapter)
    return Section(f"laws-{chapter}", f"Laws: {chapter}", "", parts)


def _lecture(key: str, lecture: Lecture) -> Section:
    """Return a lecture's section; consecutive identical pages share one subsection."""
    parts, number = [], 1
    for page, same in groupby(lecture.pages):
        last = number + len(list(same)) - 1
        pages = f"page {number}" if last == number else f"pages {number}–{last}"
        parts.append(Section(f"{key}-{number}", f"{key}, {pages}: {page.heading.text}", page_entry(page)))
        number = last + 1
    text = (
        "The contents under each heading, with the operations or laws that implement them (owners). The text of the "
        "lecture has no page breaks, so that each heading counts as one page."
    )
    return Section(f"lecture-{key}", f"Lecture {key}: {lecture.source.title}", text, tuple(parts))
