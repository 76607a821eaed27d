"""What there is, printed from the registries: operations, laws, backends, mutants, and the whole specification."""

import inspect
from collections.abc import Callable, Mapping

from rich.console import RenderableType
from rich.markdown import Markdown
from rich.table import Table

from attnspec.spec import SPEC_VERSION
from attnspec.spec.errata import ERRATA
from attnspec.spec.law import LAWS, Law
from attnspec.spec.operation import CHAPTERS, OPERATIONS, Operation
from attnspec.spec.semantics import QUESTIONS
from attnspec.spec.sources import SOURCES


def operations() -> Table:
    """All operations by chapter."""
    table = Table("chapter", "operation", "what it computes", "laws")
    for o in OPERATIONS.values():
        count = "reference only" if o.reference_only else str(sum(o in x.operations for x in LAWS.values()))
        table.add_row(o.chapter, o.name, o.statement, count)
    return table


def laws() -> Table:
    """All laws."""
    table = Table("law", "statement", "operations")
    for x in LAWS.values():
        table.add_row(x.id, x.statement, str(len(x.operations)))
    return table


def backends() -> Table:
    """All registered backends."""
    from attnspec.conformance.loading import registered

    table = Table("name", "module")
    for name, module in registered().items():
        table.add_row(name, module)
    return table


def mutants() -> Table:
    """All mutants and honest variants."""
    from attnspec.conformance.mutants import MUTANTS
    from attnspec.conformance.variants import VARIANTS

    table = Table("kind", "name", "operations")
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


def described(name: str) -> Markdown:
    """One operation or law."""
    return Markdown(_law(LAWS[name]) if name in LAWS else _operation(OPERATIONS[name]))


def _operation(o: Operation) -> str:
    documented = inspect.getdoc(o.protocol) or ""
    arguments = "\n".join(
        f"| `{a.name}` | {a.kind} | {a.shape_text() if a.is_array else ''} | {'keyword' if a.keyword_only else ''} |"
        for a in (*o.arguments, o.result)
    )
    judged = [x.id for x in LAWS.values() if o in x.operations]
    open_ = [q.name for q in QUESTIONS.values() if q.concerns(o)]
    return "\n\n".join(
        [
            f"## {o.name}",
            f"Formula: `{o.formula}`",
            f"Sources: {', '.join(map(str, o.sources))}",
            documented,
            f"| argument | kind | shape | |\n|---|---|---|---|\n{arguments}",
            f"Laws: {', '.join(judged) if judged else 'none: only the reference has it'}",
            f"Open questions: {', '.join(open_) if open_ else 'none'}",
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


def specification() -> str:
    """The whole specification as Markdown."""
    parts = [f"# attnspec {SPEC_VERSION}", "# Operations"]
    parts += [_operation(o) for c in CHAPTERS for o in OPERATIONS.values() if o.chapter == c]
    parts += ["# Laws", *map(_law, LAWS.values()), "# Open questions"]
    parts += [
        f"## {q.name}\n\n{q.statement}\n\nNormative: `{q.normative}`; also: {', '.join(q.choices[1:])}"
        for q in QUESTIONS.values()
    ]
    parts += ["# Errata of the sources"]
    parts += [
        f"## {e.identifier}\n\n{e.source}\n\nPrinted: {e.printed}\n\nRight: {e.right}\n\n{e.note}"
        for e in ERRATA.values()
    ]
    parts += ["# Sources", *(f"- {s.key}: {s.title}" for s in SOURCES.values())]
    return "\n\n".join(parts) + "\n"
