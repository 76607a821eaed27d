"""What there is, printed from the registries: operations, laws, backends, mutants, and the whole specification."""

from collections.abc import Callable, Iterable, Mapping

from rich.console import RenderableType
from rich.markdown import Markdown
from rich.table import Column, Table

from attnspec.spec import SPEC_VERSION
from attnspec.spec.contract.documentation import HEADINGS, sections, where_list, where_notes
from attnspec.spec.contract.law import LAWS, Law
from attnspec.spec.contract.operation import CHAPTERS, OPERATIONS, Operation
from attnspec.spec.contract.semantics import QUESTIONS, Question
from attnspec.spec.contract.sources import SOURCES, Citation
from attnspec.spec.errata import ERRATA


def _table(*titles: str) -> Table:
    """A table on any terminal: what does not fit goes on in the next line."""
    return Table(*(Column(title, overflow="fold") for title in titles))


def operations() -> Table:
    """All operations by chapter."""
    table = _table("chapter", "operation", "what it computes", "laws")
    for o in OPERATIONS.values():
        count = "reference only" if o.reference_only else str(sum(o in x.operations for x in LAWS.values()))
        table.add_row(o.chapter, o.name, o.statement, count)
    return table


def laws() -> Table:
    """All laws."""
    table = _table("law", "statement", "operations")
    for x in LAWS.values():
        table.add_row(x.id, x.statement, str(len(x.operations)))
    return table


def backends() -> Table:
    """All registered backends."""
    from attnspec.conformance.running.loading import registered

    table = _table("name", "module")
    for name, module in registered().items():
        table.add_row(name, module)
    return table


def mutants() -> Table:
    """All mutants and honest variants."""
    from attnspec.conformance.mutants import MUTANTS
    from attnspec.conformance.variants import VARIANTS

    table = _table("kind", "name", "operations")
    for mutant in MUTANTS.values():
        table.add_row("mutant", mutant.name, ", ".join(mutant.operations))
    for variant in VARIANTS.values():
        table.add_row("honest variant", variant.name, ", ".join(variant.operations))
    return table


CATALOGUES: Mapping[str, Callable[[], RenderableType]] = {
    "operations": operations,
    "laws": laws,
    "backends": backends,
    "mutants": mutants,
}


def names() -> list[str]:
    """Everything that :func:`described` knows: operations, laws, chapters, and questions of semantics."""
    return [*OPERATIONS, *LAWS, *_chapters(), *QUESTIONS]


def described(name: str) -> Markdown:
    """One operation, law, chapter or question; ``KeyError`` for a name that is none of :func:`names`."""
    if name in OPERATIONS:
        return Markdown("\n\n".join([_operation(OPERATIONS[name]), *_sources(OPERATIONS[name].sources)]))
    if name in _chapters():
        return Markdown(_chapter(name))
    law = LAWS[f"semantics.{name}" if name in QUESTIONS else name]
    question = [_choices(q) for q in QUESTIONS.values() if law.id == f"semantics.{q.name}"]
    return Markdown("\n\n".join([_law(law), *question, *_sources(law.sources)]))


def _operation(o: Operation) -> str:
    """One operation, under the headings of its documentation."""
    listed = [(e.path, f"`{e.values}`" if e.values.startswith("(") else e.values, e.remarks) for e in where_list(o)]
    rows = "\n".join(f"| `{path}` | {values} | {', '.join(remarks)} |" for path, values, remarks in listed)
    notes = [note.replace("*", r"\*") for note in where_notes(o)]
    where = "\n\n".join([f"\n| argument | shape or values | |\n|---|---|---|\n{rows}", *notes])
    parts = {**sections(o), "Formula": f"`{o.formula}`", "Where": where}
    judged = [x.id for x in LAWS.values() if o in x.operations]
    open_ = [f"{q.name} ({q.normative})" for q in QUESTIONS.values() if q.concerns(o)]
    return "\n\n".join(
        [
            f"## {o.name}",
            o.statement,
            *(f"{heading}: {parts[heading]}" for heading in HEADINGS),
            f"Laws: {', '.join(judged) if judged else 'none: only the reference has it'}",
            f"Open questions (normative choice): {', '.join(open_) if open_ else 'none'}",
        ]
    )


def _law(x: Law) -> str:
    return "\n\n".join(
        [
            f"## {x.id}",
            x.statement,
            f"Formula: `{x.formula}`",
            f"Sources: {', '.join(map(str, x.sources)) if x.sources else 'the contract'}",
            f"Governs: {', '.join(o.name for o in x.operations)}",
            *(["Needs the backend's `vjp`."] if x.gradients else []),
        ]
    )


def _choices(q: Question) -> str:
    """The choices of a question, and how a backend declares another than the normative one."""
    other = f'{{"{q.name}": "{q.choices[1]}"}}'
    operation = next(o.name for o in OPERATIONS.values() if not o.reference_only and q.concerns(o))
    return "\n\n".join(
        [
            f"Choices: `{q.normative}` (normative), {', '.join(f'`{c}`' for c in q.choices[1:])}",
            f"Declared by the backend's attribute `semantics = {other}`, for one operation alone by "
            f'`semantics = {{"{operation}": {other}}}`.',
        ]
    )


def _chapters() -> list[str]:
    """The chapters that have operations or laws."""
    owners = [*(o.chapter for o in OPERATIONS.values()), *(x.chapter for x in LAWS.values())]
    return list(dict.fromkeys(owners))


def _chapter(name: str) -> str:
    parts = [f"## {name}"]
    for title, members in (
        ("Operations", [f"- `{o.name}`: {o.statement}" for o in OPERATIONS.values() if o.chapter == name]),
        ("Laws", [f"- `{x.id}`: {x.statement}" for x in LAWS.values() if x.chapter == name]),
    ):
        parts += [title, "\n".join(members)] if members else []
    return "\n\n".join(parts)


def _sources(citations: Iterable[Citation]) -> list[str]:
    """The titles of what is cited, as a list in Markdown; nothing if nothing is."""
    cited = {c.source for c in citations}
    lines = [f"- {s.key}: {s.title}" for s in SOURCES.values() if s.key in cited]
    return ["\n".join(lines)] if lines else []


def specification() -> str:
    """The whole specification as Markdown."""
    parts = [f"# attnspec {SPEC_VERSION}", "# Sources"]
    parts += ["`S0(4)` is the equation that S0 numbers (4), `S2 “…”` the passage of S2 under that heading."]
    parts += ["\n".join(f"- {s.key}: {s.title}" for s in SOURCES.values()), "# Operations"]
    parts += [_operation(o) for c in CHAPTERS for o in OPERATIONS.values() if o.chapter == c]
    parts += ["# Laws", *map(_law, LAWS.values()), "# Open questions"]
    parts += [f"## {q.name}\n\n{q.statement}\n\n{_choices(q)}" for q in QUESTIONS.values()]
    parts += ["# Errata of the sources"]
    parts += [
        f"## {e.identifier}\n\n{e.source}\n\nPrinted: {e.printed}\n\nRight: {e.right}\n\n{e.note}"
        for e in ERRATA.values()
    ]
    return "\n\n".join(parts) + "\n"
