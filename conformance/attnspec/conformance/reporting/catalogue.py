"""Tables of operations, laws, backends and mutants, printed from the registries."""

import re
from collections.abc import Callable, Mapping

from rich.console import RenderableType
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Column, Table

from attnspec.conformance.reporting.entries import (
    choices,
    class_entry,
    law_entry,
    named_sources,
    operation_entry,
    roundings,
)
from attnspec.spec.contract.close_names import MAX_LISTED
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import CLASSES, MODIFIERS
from attnspec.spec.contract.semantics import QUESTIONS


def _table(*titles: str) -> Table:
    """Return a table that wraps long cells to fit any terminal."""
    return Table(*(Column(title, overflow="fold") for title in titles))


def operations() -> Table:
    """Table of all operations by chapter."""
    table = _table("chapter", "operation", "what it computes", "laws")
    judged = sum(not o.reference_only for o in OPERATIONS.values())
    reference_only = len(OPERATIONS) - judged
    table.caption = (
        f"{len(OPERATIONS)} operations: {judged} that a backend may provide, {reference_only} of the reference"
    )
    for o in OPERATIONS.values():
        count = "reference only" if o.reference_only else str(sum(x.concerns(o) for x in LAWS.values()))
        table.add_row(o.chapter, o.name, o.statement, count)
    return table


def laws() -> Table:
    """Table of all laws."""
    table = _table("law", "statement", "operations")
    for x in LAWS.values():
        table.add_row(x.id, x.statement, str(len(x.operations)))
    return table


def backends() -> Table:
    """Table of all registered backends."""
    from attnspec.conformance.remote.loading import registered

    table = _table("name", "module")
    for name, module in registered().items():
        table.add_row(name, module)
    return table


def mutants() -> Table:
    """Table of all mutants and honest variants."""
    from attnspec.conformance.mutants import MUTANTS
    from attnspec.conformance.variants import VARIANTS

    table = _table("kind", "chapter", "name", "what differs", "operations")
    for kind, entries in (("mutant", MUTANTS), ("honest variant", VARIANTS)):
        for x in entries.values():
            cells = (kind, x.chapter, x.name, x.statement, ", ".join(x.operations))
            table.add_row(*map(escape, cells))
    return table


def questions() -> Table:
    """Table of all questions of semantics, with the normative choice first."""
    table = _table("question", "what it asks", "choices")
    for q in QUESTIONS.values():
        table.add_row(q.name, q.statement, ", ".join(q.choices))
    return table


def precisions() -> Table:
    """Table of all precision classes, and of the modifiers that change them."""
    table = _table("class", "dtype", "what it rounds")
    for name, x in CLASSES.items():
        table.add_row(name, x.dtype, roundings(name))
    table.caption = f"modifiers, joined to a class by +: {', '.join(MODIFIERS)}"
    return table


CATALOGUES: Mapping[str, Callable[[], RenderableType]] = {
    "operations": operations,
    "laws": laws,
    "backends": backends,
    "mutants": mutants,
    "questions": questions,
    "precisions": precisions,
}


def mentioned(word: str) -> str:
    """Sentence that names operations whose text has a word, such as MLA; empty if none has it."""
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    mentioning = [name for name, op in OPERATIONS.items() if pattern.search(f"{op.protocol.__doc__} {op.features}")]
    return f"; it stands in the text of {', '.join(mentioning[:MAX_LISTED])}" if mentioning else ""


def names() -> list[str]:
    """Return all names that :func:`described` accepts: operations, laws, chapters, questions, precision classes."""
    return [*OPERATIONS, *LAWS, *_chapters(), *QUESTIONS, *CLASSES]


def described(name: str) -> Markdown:
    """Describe an operation, law, chapter, question or class; ``KeyError`` for a name outside :func:`names`."""
    if name in OPERATIONS:
        return _page(name, operation_entry(OPERATIONS[name]), named_sources(OPERATIONS[name].sources))
    if name in _chapters():
        return Markdown(_chapter(name))
    if name in CLASSES:
        return _page(name, class_entry(name))
    law = LAWS[QUESTIONS[name].law if name in QUESTIONS else name]
    question = [choices(q) for q in QUESTIONS.values() if law.id == q.law]
    return _page(law.id, law_entry(law), *question, named_sources(law.sources))


def _page(title: str, *parts: str) -> Markdown:
    return Markdown("\n\n".join([f"## {title}", *filter(None, parts)]))


def _chapters() -> list[str]:
    names = [*(o.chapter for o in OPERATIONS.values()), *(x.chapter for x in LAWS.values())]
    return list(dict.fromkeys(names))


def _chapter(name: str) -> str:
    parts = [f"## {name}"]
    for title, members in (
        ("Operations", [f"- `{o.name}`: {o.statement}" for o in OPERATIONS.values() if o.chapter == name]),
        ("Laws", [f"- `{x.id}`: {x.statement}" for x in LAWS.values() if x.chapter == name]),
    ):
        parts += [title, "\n".join(members)] if members else []
    return "\n\n".join(parts)
