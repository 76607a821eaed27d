"""Markdown entries for operations, laws, questions, errata and lecture pages."""

from collections.abc import Iterable

from attnspec.conformance.reporting.markup import cited, coded, displayed, literal, table
from attnspec.spec.contract.documentation import HEADINGS, sections, where_list, where_notes
from attnspec.spec.contract.law import LAWS, Law
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.precision import CLASSES, DEFAULTS, MODIFIERS
from attnspec.spec.contract.semantics import QUESTIONS, Question
from attnspec.spec.contract.sources import SOURCES, Citation
from attnspec.spec.contract.tree import Branch, Node
from attnspec.spec.errata import ERRATA, Erratum, Misprint
from attnspec.spec.lectures import LECTURES
from attnspec.spec.lectures.registry import Item, Kind, Page


def page_entry(page: Page) -> str:
    """Return a lecture page's contents as Markdown, each with its owners: operations or laws that implement it."""
    owned = f"{'Owned by' if page.heading.owners else 'No owner'}: {_owners(page.heading)}"
    rows = [(_kind(item), _shown(item), _owners(item)) for item in page.items]
    shown = table(["", "what the page shows", "implemented by (owners), or the reason why by none"], rows)
    return f"{owned}\n\n{shown}" if rows else owned


def places_of(name: str) -> str:
    """Return the lecture pages and equations that an operation or law owns, as text."""
    numbers_by_page: dict[str, list[str]] = {}
    for key, lecture in LECTURES.items():
        for page in lecture.pages:
            owned = [item for item in page if name in item.owners]
            if owned:
                equations = numbers_by_page.setdefault(f"`{key} “{page.title}”`", [])
                equations += [f"({i.number})" for i in owned if i.number]
    return "; ".join(" ".join([place, *equations]) for place, equations in numbers_by_page.items())


def _kind(item: Item) -> str:
    if item.kind is Kind.FIGURE and not item.text:
        return "picture"
    if item.number:
        return f"({item.number})"
    return {Kind.HEADING: "line", Kind.PASSAGE: "words"}.get(item.kind, item.kind.value)


def _shown(item: Item) -> str:
    if item.kind is Kind.FORMULA:
        latex = item.text.removesuffix(rf" \quad ({item.number})")
        return f"$`{latex}`$"
    if item.kind is Kind.PASSAGE:
        return literal(f"{item.name}: “{item.text} …”")
    return literal(item.text) or "–"


def _owners(item: Item) -> str:
    return coded(item.owners) if item.owners else item.reason


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def operation_entry(o: Operation) -> str:
    """Return an operation's entry, under the headings of its documentation."""
    entries = [(e.path, f"`{e.values}`" if e.values.startswith("(") else e.values, e.remarks) for e in where_list(o)]
    where = table(["argument", "shape or values", ""], [(f"`{p}`", v, ", ".join(remarks)) for p, v, remarks in entries])
    notes = [literal(note) for note in where_notes(o)]
    parts = {heading: f" {text}" for heading, text in sections(o).items()} | {
        "Formula": displayed(o.formula),
        "Where": "\n\n".join(["", where, *notes]),
        "Source": f" {cited(o.sources)}",
    }
    questions = [f"`{q.name}` (`{q.normative}`)" for q in QUESTIONS.values() if q.concerns(o)]
    places = places_of(o.name)
    errata = [e.identifier for e in ERRATA.values() if e.operation == o.name]
    return "\n\n".join(
        [
            o.statement,
            f"Call: `{_call(o)}`",
            *([f"Result: `{_nesting(o.result)}`"] if isinstance(o.result, Branch) else []),
            *(f"{heading}:{parts[heading]}" for heading in HEADINGS),
            f"Laws: {_laws(o)}",
            f"Open questions (normative choice): {', '.join(questions) if questions else 'none'}",
            *([f"Errata of its sources: {coded(errata)}"] if errata else []),
            *([f"In the lectures: {places}"] if places else []),
        ]
    )


def law_entry(x: Law) -> str:
    """Return a law's entry."""
    return "\n\n".join(
        [
            x.statement,
            f"Formula:{displayed(x.formula)}",
            f"Source: {cited(x.sources) if x.sources else 'the contract'}",
            f"Governs: {_governed(x)}",
            *(["Needs the backend's `vjp`."] if x.gradients else []),
        ]
    )


def choices(q: Question) -> str:
    """Return the choices of a question, and an example of a backend's declaration."""
    other = f'{{"{q.name}": "{q.choices[1]}"}}'
    operation = next(o.name for o in OPERATIONS.values() if not o.reference_only and q.concerns(o))
    return "\n\n".join(
        [
            f"Choices: `{q.normative}` (normative), {', '.join(f'`{c}`' for c in q.choices[1:])}",
            f"A backend declares another choice by its attribute `semantics = {other}`, or for a single operation by "
            f'`semantics = {{"{operation}": {other}}}`.',
        ]
    )


def question_entry(q: Question) -> str:
    """Return the entry of a question of semantics."""
    concerned = [o.name for o in OPERATIONS.values() if not o.reference_only and q.concerns(o)]
    return f"{q.statement}\n\n{choices(q)}\n\nConcerns: {coded(concerned)}"


def erratum_entry(e: Erratum) -> str:
    """Return the entry of an erratum, with its operation and example."""
    return f"{misprint_entry(e)}\n\n{literal(e.note)}\n\nShown by an example of: `{e.operation}`"


def misprint_entry(m: Misprint | Erratum) -> str:
    """Return source, printed text and correction."""
    return f"Source: {cited([m.source])}\n\nPrinted: {literal(m.printed)}\n\nRight: {literal(m.right)}"


ROUNDED = {
    "accumulation": "accumulation",
    "operand": "computed operand",
    "inputs": "given operand",
    "stored": "stored score",
    "weights": "weight",
    "output": "result",
}
"""Titles of what a precision class may round, by the field of its unit roundoff."""


def roundings(name: str) -> str:
    """Return the unit roundoffs of a precision class, as text."""
    powers = {title: _power(getattr(CLASSES[name], field)) for field, title in ROUNDED.items()}
    return ", ".join(f"{title} {power}" for title, power in powers.items() if power != "–")


def class_entry(name: str) -> str:
    """Return the entry of a precision class: what it rounds, and how a backend declares it."""
    dtype = CLASSES[name].dtype
    default = f"It is the default of {dtype}. " if DEFAULTS[dtype] == name else ""
    return "\n\n".join(
        [
            f"Precision class of {dtype}. A correct implementation may round, in unit roundoffs: {roundings(name)}.",
            f'{default}A backend declares it by its attribute `precision = {{"{dtype}": "{name}"}}`; `judge` and '
            f'`tolerance` take `precision="{name}"`.',
            f"Modifiers, joined to it by `+`: {coded(MODIFIERS)}",
        ]
    )


def precision_entry() -> str:
    """Return the entry of the precision classes and their modifiers."""
    defaults = dict.fromkeys(DEFAULTS.values(), "default")
    rows = [
        (f"`{name}`", p.dtype, *(_power(getattr(p, field)) for field in ROUNDED), defaults.get(name, ""))
        for name, p in CLASSES.items()
    ]
    return "\n\n".join(
        [
            "What a correct implementation may round, as unit roundoffs; – means not rounded. The error budget of "
            "every element follows from the precision class and the inputs.",
            table(["class", "dtype", *ROUNDED.values(), ""], rows),
            f"Modifiers, joined to a class by `+`: {coded(MODIFIERS)}",
        ]
    )


def named_sources(citations: Iterable[Citation]) -> str:
    """Return a list of the cited sources' titles; empty without citations."""
    keys = {c.source for c in citations}
    return "\n".join(f"- {s.key}: {s.title}" for s in SOURCES.values() if s.key in keys)


def _call(o: Operation) -> str:
    parameters = [f"{name}={o.defaults[name]!r}" if name in o.defaults else name for name in o.call.names]
    first_keyword = next((i for i, name in enumerate(o.call.names) if name in o.keyword_only), None)
    if first_keyword is not None:
        parameters.insert(first_keyword, "*")
    return f"{o.name}({', '.join(parameters)})"


def _nesting(node: Node) -> str:
    """Return a result as nested records and tuples of names, such as ``(states, (h, c))``."""
    if not isinstance(node, Branch):
        return node.path.removeprefix("result.")
    record = node.build.__name__ if node.names else ""
    return f"{record}({', '.join(map(_nesting, node.nodes))}{', …' if node.repeated else ''})"


def _governed(x: Law) -> str:
    judged = [o for o in OPERATIONS.values() if not o.reference_only]
    return "every operation" if len(x.operations) == len(judged) else coded(o.name for o in x.operations)


def _power(roundoff: float) -> str:
    exponent = roundoff.hex().partition("p")[2]
    return f"2{exponent.translate(_RAISED)}" if roundoff else "–"


def _laws(o: Operation) -> str:
    """Return the laws that govern an operation, with those that govern all operations last."""
    if o.reference_only:
        return "none: only the reference has it"
    judged = [x for x in LAWS.values() if x.concerns(o)]
    return coded(x.id for x in sorted(judged, key=lambda x: x.chapter == "operation"))
