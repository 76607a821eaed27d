"""One declaration to paste: the observations of a run over all operations and dtypes."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import lcm
from pprint import pformat
from typing import Any

from attnspec.conformance.explaining.refusals import REFUSED
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.results import Result, Status
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.semantics import ASKED_BY, QUESTIONS, Semantics, plain

Key = tuple[str, str, str]
"""An operation, a law and a dtype."""

WIDTH = 100


@dataclass(frozen=True)
class Declaration:
    """Attributes to paste, only those that differ from the present ones, and each violation's explanation."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    explained: Mapping[Key, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.attributes)

    @property
    def text(self) -> str:
        """The attributes as lines of Python."""
        return "\n".join(f"{name} = {_literal(value)}" for name, value in self.attributes.items())


def _literal(value: Any) -> str:
    return pformat(value, width=WIDTH, sort_dicts=False).replace("'", '"')


def declaration(
    contract: Contract, results: Iterable[Result], explanations: Mapping[str, Mapping[str, Any]]
) -> Declaration:
    """Combine the explanations of single cases.

    A choice on which operations or dtypes contradict each other is left out and explains nothing.
    """
    judged = [r for r in results if r.judged]
    cases = {(r.operation, r.dtype): explanations.get(f"{r.operation}-{r.dtype}", {}) for r in judged}
    torn = _torn(judged, cases)
    limits, refused = _limits(contract, cases, judged)
    kept = {case: x for case, x in cases.items() if x and not torn & {(case[0], q) for q in x["semantics"]}}
    kept = {case: x for case, x in kept.items() if REFUSED not in x["limits"] or case in refused}
    attributes = {
        "semantics": _semantics(contract, kept),
        "precision": _precision(contract, kept, cases),
        "limits": limits,
    }
    present = {"semantics": _semantics(contract, {}), "precision": _precision(contract, {}, cases)}
    explained = {
        (operation, law, dtype): _cause(kind, x)
        for (operation, dtype), x in kept.items()
        for law, kind in x["laws"].items()
    }
    changed = {name: value for name, value in attributes.items() if value and value != present.get(name)}
    return Declaration(changed, explained)


def _cause(kind: str, explanation: Mapping[str, Any]) -> str:
    """Return a change of the declaration as text."""
    if kind == "precision":
        return f"precision {explanation[kind]}"
    if REFUSED in explanation[kind]:
        return "limits: the dtype"
    shown = {
        k: ", ".join(map(str, x)) or "none" if isinstance(x, list | tuple) else x for k, x in explanation[kind].items()
    }
    words = (f"{name} = {value}" for name, value in shown.items())
    return f"{kind} {' and '.join(words)}"


# Semantics ------------------------------------------------------------------------------------------------------------


def _torn(judged: Iterable[Result], cases: Mapping[tuple[str, str], Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the questions that an operation answers differently at different dtypes."""
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (operation, _), x in cases.items():
        for question, choice in x.get("semantics", {}).items():
            seen[operation, question].add(choice if isinstance(choice, str) else json.dumps(choice))
    for r in judged:
        question = ASKED_BY[r.law].name if r.law in ASKED_BY else ""
        if question and r.status is Status.PASSED and r.observed is not None:
            seen[r.operation, question].add(r.observed)
    return {key for key, choices in seen.items() if len(choices) > 1 and QUESTIONS[key[1]].allowing not in choices}


def _semantics(contract: Contract, cases: Mapping[tuple[str, str], Mapping[str, Any]]) -> Any:
    """Return the non-default choices: for all operations if they agree, else by operation."""
    chosen = {name: contract.semantics[name] for name in contract.operations}
    for (operation, _), x in cases.items():
        chosen[operation] = Semantics.of({**vars(chosen[operation]), **x["semantics"]})
    common: dict[str, str] = {}
    for question in QUESTIONS.values():
        words = {getattr(s, question.name) for name, s in chosen.items() if question.concerns(OPERATIONS[name])}
        if len(words) == 1 and words != {question.normative}:
            common |= {question.name: plain(words.pop())}
    own = {name: _deviating(name, s) for name, s in chosen.items()}
    differing = {name: choices for name, choices in own.items() if not choices.items() <= common.items()}
    if not differing:
        return common
    return {**differing, **({"*": common} if common else {})}


def _deviating(operation: str, chosen: Semantics) -> dict[str, str]:
    """Return an operation's non-default choices, for the questions that concern it."""
    return {
        q.name: plain(getattr(chosen, q.name))
        for q in QUESTIONS.values()
        if q.concerns(OPERATIONS[operation]) and getattr(chosen, q.name) != q.normative
    }


# Precision ------------------------------------------------------------------------------------------------------------


def _precision(
    contract: Contract, kept: Mapping[tuple[str, str], Mapping[str, Any]], cases: Iterable[tuple[str, str]]
) -> Any:
    """Return the non-default classes: by dtype if all operations agree, else by operation and dtype."""
    classes: dict[str, dict[str, str]] = defaultdict(dict)
    for operation, dtype in cases:
        if dtype in DEFAULTS:
            observed = kept.get((operation, dtype), {}).get("precision")
            classes[dtype][operation] = observed or contract.precision.name(operation, dtype)
    shared = {dtype: set(names.values()) for dtype, names in classes.items()}
    common = {d: next(iter(names)) for d, names in shared.items() if len(names) == 1 and names != {DEFAULTS[d]}}
    own: dict[str, dict[str, str]] = defaultdict(dict)
    for dtype, names in classes.items():
        for operation, name in names.items():
            if len(shared[dtype]) > 1 and name != DEFAULTS[dtype]:
                own[operation][dtype] = name
    if not own:
        return common
    return {**own, **({"*": common} if common else {})}


# Limits ---------------------------------------------------------------------------------------------------------------


def _limits(
    contract: Contract, cases: Mapping[tuple[str, str], Mapping[str, Any]], judged: Iterable[Result]
) -> tuple[dict[str, Any], set[tuple[str, str]]]:
    """Return the combined non-default limits, and the cases whose dtype is not supported."""
    found = [{k: v for k, v in x["limits"].items() if k != "dtypes"} for x in cases.values() if x]
    limits = contract.limits
    for change in (x for x in found if REFUSED not in x):
        limits = replace(limits, **{name: _narrower(name, getattr(limits, name), x) for name, x in change.items()})
    working = {r.operation for r in judged if r.status is Status.PASSED}
    refused = {case for case, x in cases.items() if x and REFUSED in x["limits"] and case[0] in working}
    refused = {case for case in refused if any(o == case[0] and (o, d) not in refused for o, d in cases)}
    limits = _without(limits, refused, set(cases))
    if limits == contract.limits:
        return {}, refused
    if limits.features is not None:
        own = {f for name in contract.operations for f in OPERATIONS[name].features}
        limits = replace(limits, features=tuple(f for f in limits.features if f in own))
    return {
        f.name: _plain(getattr(limits, f.name)) for f in fields(limits) if getattr(limits, f.name) != f.default
    }, refused


def _narrower(name: str, declared: Any, observed: Any) -> Any:
    """Return the narrower of two limits."""
    if name == "multiple_of":
        return lcm(declared, observed)
    if name in ("divided_heads", "contiguous_only"):
        return declared or observed
    if name in ("min_length", "min_batch"):
        return max(declared, observed)
    if isinstance(observed, list | tuple):
        return tuple(observed) if declared is None else tuple(x for x in declared if x in observed)
    return observed if declared is None else min(declared, observed)


def _without(limits: Limits, refused: set[tuple[str, str]], cases: set[tuple[str, str]]) -> Limits:
    """Remove unsupported dtypes from the limits: for all operations, or for single ones."""
    by_dtype = {d: {o for o, x in cases if x == d} for d in limits.dtypes}
    everywhere = {d for d, operations in by_dtype.items() if operations and all((o, d) in refused for o in operations)}
    dtypes = tuple(d for d in limits.dtypes if d not in everywhere)
    own = {name: tuple(d for d in ds if d in dtypes) for name, ds in dict(limits.dtypes_by_operation).items()}
    for operation in {o for o, d in refused if d in dtypes}:
        supported = own.get(operation, dtypes)
        own[operation] = tuple(d for d in supported if (operation, d) not in refused)
    return replace(limits, dtypes=dtypes, dtypes_by_operation=own)


def _plain(value: Any) -> Any:
    """Return a tuple of pairs by operation as a mapping; other values unchanged."""
    return dict(value) if value and isinstance(value, tuple) and isinstance(value[0], tuple) else value


def lines(explained: Mapping[Key, str]) -> Iterator[str]:
    """Yield a line per cause, with the number of laws that it explains."""
    causes: dict[str, list[str]] = defaultdict(list)
    for (operation, _, _), cause in explained.items():
        causes[cause].append(operation)
    for cause, operations in causes.items():
        count = len(operations)
        yield f"explained by {cause}: {count} law{'s' * (count > 1)} of {', '.join(dict.fromkeys(operations))}"
