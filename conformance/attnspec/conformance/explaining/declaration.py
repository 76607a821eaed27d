"""The declaration that a backend could paste: a run's observations over all operations and dtypes."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import lcm
from pprint import pformat
from typing import Any, Protocol, TypeVar

from attnspec.conformance.explaining.precision_classes import ONLY_IF
from attnspec.conformance.explaining.refusals import REFUSED
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.observations import ADVICE
from attnspec.conformance.judging.results import Result, Status
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS, DeclaredPrecision
from attnspec.spec.contract.semantics import ASKED_BY, QUESTIONS, DeclaredSemantics, Semantics, plain

MAX_SHOWN = 3
"""Most laws that a line names."""

Key = tuple[str, str, str]
"""An operation, a law and a dtype."""

Cases = Mapping[tuple[str, str], Mapping[str, Any]]
"""Explanations as plain JSON, by operation and dtype; empty for cases that nothing explains."""

LINE_WIDTH = 100

MAX_DECLARED = 3
"""Most judgements under a proposed declaration; each may show what the last one has hidden."""


@dataclass(frozen=True)
class Declaration:
    """Attributes that the backend could declare, and the violations that they explain.

    ``attributes`` holds only those that differ from the present ones, ``explained`` the explanation of each violation.
    ``reasons`` has, by attribute, a line for each proposed choice, class or limit, and for limits that are not
    proposed. ``on_device`` maps attributes that the backend's ``on_device`` replaces to the kind of device.
    """

    attributes: Mapping[str, Any] = field(default_factory=dict)
    explained: Mapping[Key, str] = field(default_factory=dict)
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on_device: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.attributes)

    @property
    def text(self) -> str:
        """The attributes as lines of Python to paste into the adapter, below its own."""
        return "\n".join(self._assignment(name, value) for name, value in self.attributes.items())

    @property
    def json_text(self) -> str:
        """The attributes as JSON, to paste into the first line of a program."""
        return json.dumps(self.attributes, default=list)[1:-1]

    def _assignment(self, name: str, value: Any) -> str:
        kind = self.on_device.get(name)
        if kind is None:
            return f"{name} = {_literal(value)}"
        return f'on_device = on_device | {{"{kind}": on_device["{kind}"] | {{"{name}": {_literal(value)}}}}}'

    @property
    def all_reasons(self) -> list[str]:
        """The reasons of all attributes."""
        return [line for lines_ in self.reasons.values() for line in lines_]

    def explains(self, result: Result) -> bool:
        """Return whether this explains a violation."""
        return (result.operation, result.law, result.dtype) in self.explained

    def followed_by(self, later: "Declaration") -> "Declaration":
        """Return the declaration with what a run under it has shown besides; what it explains stays."""
        names = dict.fromkeys((*self.reasons, *later.reasons))
        reasons = {x: tuple(dict.fromkeys((*self.reasons.get(x, ()), *later.reasons.get(x, ())))) for x in names}
        return replace(self, attributes={**self.attributes, **later.attributes}, reasons=reasons)


class Judgement(Protocol):
    """A judgement with the declaration that it proposes."""

    @property
    def declaration(self) -> Declaration:
        """The proposed declaration."""

    @property
    def is_explained(self) -> bool:
        """True if there are violations, and the declaration explains all of them."""


J = TypeVar("J", bound=Judgement)


def judged_as_declared(first: J, judge_again: Callable[[Mapping[str, Any]], J]) -> tuple[Declaration, J]:
    """Judge again as long as a proposed declaration explains all violations.

    ``judge_again`` judges as if these attributes had been pasted. Return all that was proposed, and the last judgement.
    """
    proposed, last = first.declaration, first
    for _ in range(MAX_DECLARED):
        if not last.is_explained:
            break
        proposed = proposed if last is first else proposed.followed_by(last.declaration)
        last = judge_again(proposed.attributes)
    return proposed, last


def with_attributes(contract: Contract, attributes: Mapping[str, Any]) -> Contract:
    """Return the contract of a backend with these attributes in place of its own."""
    read: dict[str, Callable[[Any], Any]] = {
        "semantics": lambda x: DeclaredSemantics.of(x, OPERATIONS),
        "precision": lambda x: DeclaredPrecision.of(x, OPERATIONS),
        "limits": Limits.of,
    }
    changes: dict[str, Any] = {name: read[name](value) for name, value in attributes.items()}
    return replace(contract, **changes)


def _literal(value: Any) -> str:
    return pformat(value, width=LINE_WIDTH, sort_dicts=False).replace("'", '"')


def declaration(
    contract: Contract, results: Iterable[Result], explanations: Mapping[str, Mapping[str, Any]]
) -> Declaration:
    """Combine the explanations of single cases into one declaration.

    A choice is left out, and explains nothing, if an operation was observed to choose otherwise at another dtype.
    """
    judged = [r for r in results if r.judged]
    cases = {(r.operation, r.dtype): explanations.get(f"{r.operation}-{r.dtype}", {}) for r in judged}
    contradictory = _conflicts(judged, cases)
    limits, refused = _limits(contract, cases, judged)
    usable = {case: x for case, x in cases.items() if x and not contradictory & {(case[0], q) for q in x["semantics"]}}
    usable = {case: x for case, x in usable.items() if REFUSED not in x["limits"] or case in refused}
    # Computed without and with the explanations: only attributes that these change are shown.
    present, attributes = (
        {"semantics": _semantics(contract, x), "precision": _precision(contract, x, cases)} for x in ({}, usable)
    )
    explained = {
        (operation, law, dtype): _change_as_text(kind, x)
        for (operation, dtype), x in usable.items()
        for law, kind in x["laws"].items()
        if _is_explained(operation, kind, x, usable)
    }
    attributes["limits"] = limits
    changed = {name: value for name, value in attributes.items() if value and value != present.get(name)}
    lines_of: dict[str, dict[str, None]] = {"semantics": {}, "precision": {}, "limits": {}}
    for name, line in _reasons(judged, cases, usable, limits):
        lines_of[name][line] = None
    reasons = {name: tuple(lines_) for name, lines_ in lines_of.items() if lines_}
    return Declaration(changed, explained, reasons, contract.on_device)


def _is_explained(operation: str, kind: str, explanation: Mapping[str, Any], usable: Cases) -> bool:
    """Return False for violations by calls in another dtype that nothing explains."""
    others = [usable.get((operation, dtype), {}) for dtype in explanation["other_dtypes"]]
    return kind != "other_dtypes" or all(x and (x["precision"] or REFUSED in x["limits"]) for x in others)


def _reasons(
    judged: Iterable[Result], observed: Cases, cases: Cases, limits: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield an attribute and a line for each choice, class and limit: its meaning, or what shows it.

    ``observed`` are all explanations, of which ``cases`` are used.
    """
    messages = {(r.operation, r.dtype, r.law): r.message for r in judged}
    for (operation, dtype), x in cases.items():
        for name, choice in x["semantics"].items():
            question = QUESTIONS[name]
            raised = messages.get((operation, dtype, question.law), "").partition("raised ")[2].partition(ADVICE)[0]
            shown = f" The backend raised {raised}" if choice == "error" and raised else ""
            yield "semantics", f"{name} = {choice}, not {question.normative}: {question.statement}{shown}"
        if x["precision"]:
            yield "precision", f"precision {x['precision']} at {dtype}: {ONLY_IF}"
        for name, message in x["evidence"].items():
            if message and (name in limits or name == REFUSED):
                yield "limits", f"limits {'dtypes' if name == REFUSED else name}: {operation} {message}"
    yield from (("limits", x["withdrawn"]) for x in observed.values() if x and x["withdrawn"])


def _change_as_text(kind: str, explanation: Mapping[str, Any]) -> str:
    change = explanation[kind]
    if kind == "precision":
        return f"precision {change}"
    if kind == "other_dtypes":
        return f"what is declared for {' and '.join(change)}"
    if REFUSED in change:
        return "limits without this dtype"
    shown = {k: ", ".join(map(str, x)) or "none" if isinstance(x, list | tuple) else x for k, x in change.items()}
    return f"{kind} {' and '.join(f'{name} = {x}' for name, x in shown.items())}"


# Semantics ------------------------------------------------------------------------------------------------------------


def _conflicts(judged: Iterable[Result], cases: Cases) -> set[tuple[str, str]]:
    """Return the questions, with operations, that were answered differently at different dtypes."""
    observed: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (operation, _), x in cases.items():
        for question, choice in x.get("semantics", {}).items():
            observed[operation, question].add(choice if isinstance(choice, str) else json.dumps(choice))
    for r in judged:
        question = ASKED_BY[r.law].name if r.law in ASKED_BY else ""
        if question and r.status is Status.PASSED and r.observed is not None:
            observed[r.operation, question].add(r.observed)
    # An ``allowing`` choice contradicts no other: a backend whose NaN may be hidden may also propagate it.
    return {key for key, x in observed.items() if len(x) > 1 and QUESTIONS[key[1]].allowing not in x}


def _semantics(contract: Contract, cases: Cases) -> Any:
    """Return the non-normative choices, once for all operations if they agree, else by operation."""
    chosen = {name: contract.semantics[name] for name in contract.operations}
    for (operation, _), x in cases.items():
        chosen[operation] = Semantics.of({**vars(chosen[operation]), **x["semantics"]})
    common: dict[str, str] = {}
    for question in QUESTIONS.values():
        declared = {getattr(s, question.name) for name, s in chosen.items() if question.concerns(OPERATIONS[name])}
        if len(declared) == 1 and declared != {question.normative}:
            common |= {question.name: plain(declared.pop())}
    by_operation = {name: _deviating(name, s) for name, s in chosen.items()}
    differing = {name: choices for name, choices in by_operation.items() if not choices.items() <= common.items()}
    if not differing:
        return common
    return {**differing, **({"*": common} if common else {})}


def _deviating(operation: str, chosen: Semantics) -> dict[str, str]:
    return {
        q.name: plain(getattr(chosen, q.name))
        for q in QUESTIONS.values()
        if q.concerns(OPERATIONS[operation]) and getattr(chosen, q.name) != q.normative
    }


# Precision ------------------------------------------------------------------------------------------------------------


def _precision(contract: Contract, usable: Cases, cases: Iterable[tuple[str, str]]) -> Any:
    """Return the non-default classes, by dtype if all operations agree, else by operation and dtype."""
    classes: dict[str, dict[str, str]] = defaultdict(dict)
    for operation, dtype in cases:
        if dtype in DEFAULTS:
            observed = usable.get((operation, dtype), {}).get("precision")
            classes[dtype][operation] = observed or contract.precision.name(operation, dtype)
    classes_in_use = {dtype: set(names.values()) for dtype, names in classes.items()}
    common = {d: next(iter(names)) for d, names in classes_in_use.items() if len(names) == 1 and names != {DEFAULTS[d]}}
    by_operation: dict[str, dict[str, str]] = defaultdict(dict)
    for dtype, names in classes.items():
        for operation, name in names.items():
            if len(classes_in_use[dtype]) > 1 and name != DEFAULTS[dtype]:
                by_operation[operation][dtype] = name
    if not by_operation:
        return common
    return {**by_operation, **({"*": common} if common else {})}


# Limits ---------------------------------------------------------------------------------------------------------------


def _limits(contract: Contract, cases: Cases, judged: Iterable[Result]) -> tuple[dict[str, Any], set[tuple[str, str]]]:
    """Return the combined non-default limits, and the cases whose dtype is not supported.

    A refused dtype counts only for operations that work at another dtype.
    """
    changes = [{k: v for k, v in x["limits"].items() if k != "dtypes"} for x in cases.values() if x]
    limits = contract.limits
    for change in (x for x in changes if REFUSED not in x):
        limits = replace(limits, **{name: _narrower(name, getattr(limits, name), x) for name, x in change.items()})
    working = {r.operation for r in judged if r.status is Status.PASSED}
    refused = {(o, d) for (o, d), x in cases.items() if x and REFUSED in x["limits"] and o in working}
    accepted = {o for o, d in cases if (o, d) not in refused}
    refused = {(o, d) for o, d in refused if o in accepted}
    limits = _without_refused_dtypes(limits, refused, set(cases))
    if limits == contract.limits:
        return {}, refused
    if limits.features is not None:
        features = {f for name in contract.operations for f in OPERATIONS[name].features}
        limits = replace(limits, features=tuple(f for f in limits.features if f in features))
    return {f.name: _plain(x) for f in fields(limits) if (x := getattr(limits, f.name)) != f.default}, refused


def _narrower(name: str, declared: Any, observed: Any) -> Any:
    if name == "multiple_of":
        return lcm(declared, observed)
    if name in ("divided_heads", "contiguous_only"):
        return declared or observed
    if name == "always":
        return tuple(dict.fromkeys((*declared, *observed)))
    if name in ("min_length", "min_batch"):
        return max(declared, observed)
    if isinstance(observed, list | tuple):
        return tuple(observed) if declared is None else tuple(x for x in declared if x in observed)
    return observed if declared is None else min(declared, observed)


def _without_refused_dtypes(limits: Limits, refused: set[tuple[str, str]], cases: set[tuple[str, str]]) -> Limits:
    """Remove unsupported dtypes from the limits: for all operations, or for single ones."""
    by_dtype = {d: {o for o, x in cases if x == d} for d in limits.dtypes}
    everywhere = {d for d, operations in by_dtype.items() if operations and all((o, d) in refused for o in operations)}
    dtypes = tuple(d for d in limits.dtypes if d not in everywhere)
    by_operation = {name: tuple(d for d in ds if d in dtypes) for name, ds in dict(limits.dtypes_by_operation).items()}
    for operation in {o for o, d in refused if d in dtypes}:
        supported = by_operation.get(operation, dtypes)
        by_operation[operation] = tuple(d for d in supported if (operation, d) not in refused)
    return replace(limits, dtypes=dtypes, dtypes_by_operation=by_operation)


def _plain(value: Any) -> Any:
    """Return a tuple of pairs as a mapping; other values unchanged."""
    return dict(value) if value and isinstance(value, tuple) and isinstance(value[0], tuple) else value


def lines(explained: Mapping[Key, str]) -> Iterator[str]:
    """Yield a line per explanation, with the laws that it explains."""
    causes: dict[str, list[Key]] = defaultdict(list)
    for key, cause in explained.items():
        causes[cause].append(key)
    for cause, keys in causes.items():
        operations, laws, _ = (list(dict.fromkeys(names)) for names in zip(*keys, strict=True))
        shown = ", ".join(laws[:MAX_SHOWN]) + ", …" * (len(laws) > MAX_SHOWN)
        warning = f"; {ONLY_IF}" if cause.startswith("precision") else ""
        count = f"{len(keys)} law{'s' * (len(keys) > 1)}"
        yield f"explained by {cause}: {count} of {', '.join(operations)} ({shown}){warning}"
