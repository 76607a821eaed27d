"""Messages about violations, likely causes first."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnspec.conformance.explaining.declaration import Declaration, lines
from attnspec.conformance.explaining.explanations import Diagnosis
from attnspec.conformance.judging.causes import ROOTS, by_cause
from attnspec.conformance.judging.results import Result
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import as_tuple

MAX_ARGUMENT = 160
"""Most characters of an argument in a message."""

MAX_SNIPPET = 4000
"""Most characters of a snippet in a message; longer ones are in the JSON report."""

PASTE = (
    "These attributes explain some of the violations, but not all. If what they say is intended, paste them {place}; "
    "the next run shows what is left:"
)
"""Text above attributes that do not explain all violations."""


JUDGED_AGAIN = (
    "If this behaviour is intended, paste these attributes {place}. Judged once more with them, {judged} conforms"
)
"""Text above attributes with which a case, or the backend, conforms."""


def paste_text(place: str, *, conforms: bool, accepted: bool) -> str:
    """Return the text above the attributes to paste at ``place``; ``conforms`` if the backend does with them."""
    if not conforms:
        return PASTE.format(place=place)
    status = "until then the exit status is 1 (0 with --accept-observed)"
    if accepted:
        status = "the exit status is 0 because of --accept-observed"
    return f"{JUDGED_AGAIN.format(place=place, judged='it')}; {status}:"


def proposal_lines(proposed: Declaration, *, conforms: bool) -> list[str]:
    """Return lines that explain a proposed declaration.

    If the backend conforms with it, they explain each of its parts; else they say what it explains, and show limits.
    """
    return proposed.all_reasons if conforms else [*lines(proposed.explained), *proposed.reasons.get("limits", ())]


def violation_message(result: Result) -> str:
    """Describe a violation: law, statement, error, smallest input, snippet."""
    lines = [
        f"{result.law} is violated by {result.operation} ({result.dtype})",
        f"  {LAWS[result.law].statement}",
        f"  {result.message}",
        *([f"  {result.note}"] if result.note else []),
    ]
    if result.counterexample is not None:
        lines += [f"  {line}" for line in argument_lines(result.operation, result.counterexample["arguments"])]
        snippet = result.counterexample["snippet"]
        if not snippet:
            pass  # the note says why
        elif len(snippet) > MAX_SNIPPET:
            lines += [f"  The snippet is long ({len(snippet) / 1000:.0f} kB): it is in the JSON report."]
        else:
            lines += ["", *(f"    {line}" for line in snippet.splitlines())]
    return "\n".join(lines)


def failure_message(failed: Iterable[Result], diagnosis: Diagnosis | None = None, proposal: Sequence[str] = ()) -> str:
    """Describe a case: diagnosis, lines of a proposed declaration, causes in full, consequences by line."""
    causes, following = by_cause(failed)
    parts = [] if diagnosis is None else diagnosis_lines([diagnosis])
    if proposal:
        parts.append("\n".join(proposal))
    parts += map(violation_message, causes)
    if following:
        lines_ = [consequences_heading(causes, following), *(f"  {r.law}: {r.message}" for r in following)]
        parts.append("\n".join(lines_))
    return "\n\n".join(parts)


def diagnosis_lines(diagnoses: Iterable[Diagnosis]) -> list[str]:
    """Return a line per diagnosis, with the operations and dtypes that it explains."""
    return [
        f"diagnosis of {', '.join(places)}: {sentence}" for sentence, places in diagnoses_by_place(diagnoses).items()
    ]


def diagnoses_by_place(diagnoses: Iterable[Diagnosis]) -> dict[str, list[str]]:
    """Return the operations, with dtypes, that each diagnosis explains."""
    dtypes: dict[tuple[str, str], list[str]] = {}
    for x in diagnoses:
        dtypes.setdefault((x.sentence, x.operation), []).append(x.dtype)
    places: dict[str, list[str]] = {}
    for (sentence, operation), names in dtypes.items():
        places.setdefault(sentence, []).append(f"{operation} ({', '.join(names)})")
    return places


def consequences_heading(causes: Iterable[Result], following: Iterable[Result]) -> str:
    """Return the heading above possible consequences."""
    names = dict.fromkeys(r.operation for r in following)
    roots = dict.fromkeys(r.law for r in causes if r.law in ROOTS and r.operation in names)
    hold = f"{' and '.join(roots)} {'hold' if len(roots) > 1 else 'holds'}"
    return f"Possible consequences, which may vanish once {hold} for {', '.join(names)}:"


def argument_lines(operation: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return a line per argument of a counterexample, as it was passed."""
    options = {option.path for option in OPERATIONS[operation].options}
    # JSON has no tuples, such as windows.
    passed = {k: tuple(x) if k in options and isinstance(x, list) else x for k, x in arguments.items()}
    return [f"{name} = {shortened(value)}" for name, value in passed.items()]


def shortened(value: object) -> str:
    """Return an argument as short Python; an array that the report omits, by its shape."""
    if isinstance(value, dict) and set(value) == {"shape", "dtype"}:
        return f"an array of shape {as_tuple(value['shape'])}, {value['dtype']}"
    text = repr(value)
    return text if len(text) <= MAX_ARGUMENT else text[:MAX_ARGUMENT] + " …"
