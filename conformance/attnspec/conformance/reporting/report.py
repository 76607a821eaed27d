"""The report of a run as data, for tables, pages and the JSON."""

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attnspec.conformance.explaining.declaration import Declaration, declaration
from attnspec.conformance.explaining.explanations import Diagnosis, Explanation
from attnspec.conformance.judging.cases import dtypes_of
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.extent import BATCH, ORDER, Extent, widest
from attnspec.conformance.judging.foreign_calls import printable
from attnspec.conformance.judging.own_errors import contained
from attnspec.conformance.judging.results import INTERRUPTED, TIME_LIMIT, Result, Status, json_number
from attnspec.conformance.remote.command import PREFIX
from attnspec.conformance.remote.sandbox import sandbox_error
from attnspec.conformance.reporting.limits import excluded_inputs
from attnspec.conformance.reporting.processor import processor
from attnspec.conformance.running.expectations import (
    Expectation,
    expectations,
    expected,
    unexpected_passes,
    unmatched_lines,
)
from attnspec.conformance.running.messages import paste_text, proposal_lines
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.selection import selected_laws
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import Verdicts
from attnspec.spec import VERSION
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS, DeclaredPrecision
from attnspec.spec.contract.semantics import QUESTIONS, DeclaredSemantics, spelled
from attnspec.spec.laws.attention import UNBIASED_SCALE
from attnspec.spec.laws.pooling import NO_LOST_OR_EXTRA_KEYS, ROUNDING_SPREAD, UNBIASED_GAIN

SCHEMA = "attnspec-report/1"
EXIT_STATUS = {"conforms": 0, "violates": 1, "unusable": 2}
"""Exit status of each verdict."""

ENSEMBLE_LAWS = {x.id for x in (UNBIASED_GAIN, UNBIASED_SCALE, ROUNDING_SPREAD, NO_LOST_OR_EXTRA_KEYS)}
"""Laws that see errors of results below a rounding of their dtype."""

NEVER_TRIED = ("calls compiled by a framework",)
"""Kinds of calls that the suite never tries."""

PACKAGES = (
    *("numpy", "hypothesis", "pytest", "torch", "triton", "numba"),
    *("jax", "jaxlib", "onnx", "onnxruntime"),
)
"""Packages whose versions a report states."""


@dataclass(frozen=True)
class Answer:
    """Declared and observed choices of a backend for one question of semantics, by operation."""

    declared: Mapping[str, str]
    observed: Mapping[str, str]


@dataclass(frozen=True)
class Report:
    """All verdicts of a run, with the facts needed to read them.

    ``tried`` holds the largest tried sizes per operation. ``declaration`` lists what the backend could declare, as was
    observed; ``undeclared`` is an error message if that list could not be made, else empty. ``diagnoses`` explain
    violations, at most one per operation and dtype; they come from the ``explanations`` of cases. ``left`` names
    processes that the backend left running, ``repeated`` the cases judged again because their process ended. ``reason``
    says why the run ended early or judged nothing. ``as_declared`` is the report of judging everything again as if
    ``declaration`` had been pasted; it is made only if that explains all violations.
    """

    contract: Contract
    settings: Settings
    results: tuple[Result, ...]
    seconds: float
    tried: Mapping[str, Extent] = field(default_factory=dict)
    declaration: Declaration = field(default_factory=Declaration)
    diagnoses: tuple[Diagnosis, ...] = ()
    explanations: Mapping[str, Explanation] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    undeclared: str = ""
    repeated: tuple[str, ...] = ()
    reason: str | None = None
    as_declared: "Report | None" = None

    @classmethod
    def without_verdicts(cls, backend: str, settings: Settings, seconds: float, reason: str) -> "Report":
        """Return the report of a run that judged nothing, perhaps for lack of a backend."""
        semantics, precision = DeclaredSemantics.of(None, OPERATIONS), DeclaredPrecision.of(None, OPERATIONS)
        contract = Contract(
            printable(backend), operations=(), limits=Limits.of(None), semantics=semantics, precision=precision,
            differentiable=False, notes={}, origin=backend,
        )  # fmt: skip
        return cls(contract, settings, results=(), seconds=seconds, reason=printable(reason))

    @classmethod
    def of(
        cls, plan: Plan, verdicts: Verdicts, settings: Settings, seconds: float, *, early_end: str | None = None
    ) -> "Report":
        """Return the report of a run: verdicts, lost laws, and operations that the backend does not provide."""
        settings = settings.on_device_of(plan.contract.limits)
        results = (*planned_results(plan, verdicts, early_end), *missing_results(plan.contract, settings))
        explanations = verdicts.explanations
        observed, note = contained(
            "collecting what the backend could declare",
            lambda: declaration(plan.contract, results, {case: x.undeclared for case, x in explanations.items()}),
            Declaration(),
        )
        diagnosed = (explanations[c.id].diagnosis for c in plan.cases if c.id in explanations)
        diagnoses = tuple(x for x in diagnosed if x is not None)
        reason = next((r.message for r in results if r.interrupted), None)
        return cls(
            plan.contract, settings, results, seconds, tried=tried_by(plan, verdicts), declaration=observed,
            diagnoses=diagnoses, explanations=explanations, left=tuple(verdicts.left), undeclared=note,
            repeated=tuple(verdicts.repeated), reason=reason,
        )  # fmt: skip

    @property
    def sandboxed(self) -> bool:
        """True if the backend's processes ran in a sandbox; False also if a demanded sandbox was impossible."""
        return not self.settings.in_process and self.settings.sandbox in ("auto", "on") and sandbox_error() is None

    @cached_property
    def counts(self) -> dict[Status, int]:
        """Number of results per status."""
        return {status: sum(r.status is status for r in self.results) for status in Status}

    @property
    def verdict(self) -> str:
        """``conforms``, ``violates``, or ``unusable`` if nothing was judged or the run broke off.

        A backend that conforms only with the proposed declaration violates, unless the setting ``accept_observed`` says
        otherwise.
        """
        if self.violations:
            return "violates"
        if self.reason is not None or self.interrupted or any(r.unchecked for r in self.results):
            return "unusable"
        judged = self.counts[Status.PASSED] or self.expected or self.conforms_as_observed
        return "conforms" if judged else "unusable"

    @property
    def is_explained(self) -> bool:
        """True if there are violations, and the proposed declaration explains all of them."""
        explained = all(map(self.declaration.explains, self.violations))
        judged = self.reason is None and not any(r.unchecked for r in self.results)
        return bool(self.violations) and explained and judged

    @property
    def conforms_as_observed(self) -> bool:
        """True if the backend conforms once it declares what was observed: everything was judged again so."""
        return self.as_declared is not None and self.as_declared.exit_status == EXIT_STATUS["conforms"]

    @property
    def shown(self) -> "Report":
        """The report whose numbers are printed: that under the proposed declaration if the backend conforms with it."""
        return self.as_declared if self.as_declared is not None and self.conforms_as_observed else self

    @property
    def verdict_text(self) -> str:
        """The verdict as it is printed."""
        return "conforms as declared below" if self.conforms_as_observed else self.verdict

    @property
    def shown_diagnoses(self) -> tuple[Diagnosis, ...]:
        """The diagnoses to print: none if the backend conforms as observed."""
        return () if self.conforms_as_observed else self.diagnoses

    @property
    def proposal(self) -> list[str]:
        """Lines about the proposed declaration: its parts if the backend conforms with it, else what it explains."""
        return proposal_lines(self.declaration, conforms=self.conforms_as_observed)

    @property
    def pasted(self) -> str:
        """The attributes to paste: JSON for a program, else lines of Python."""
        return self.declaration.json_text if self.contract.origin.startswith(PREFIX) else self.declaration.text

    @property
    def paste_heading(self) -> str:
        """The text above the attributes to paste."""
        accepted = self.settings.accept_observed
        return paste_text(self.contract.place, conforms=self.conforms_as_observed, accepted=accepted)

    @cached_property
    def violations(self) -> list[Result]:
        """The violations that were neither expected nor accepted."""
        accepted = self.declaration.explained if self.conforms_as_observed and self.settings.accept_observed else {}
        return [r for r in self.results if r.violates and key(r) not in self.expected and key(r) not in accepted]

    @cached_property
    def expected(self) -> dict[tuple[str, str, str], Expectation]:
        """Lines of expected failures that match a failure, by its operation, law and dtype."""
        lines = expectations(self.settings.expect) if self.results else ()
        return {key(r): line for r in self.results if (line := expected(r, lines))}

    @cached_property
    def unmet(self) -> list[str]:
        """Stale expected failures: lines whose law holds, or that match nothing that was judged."""
        if self.interrupted or not self.results:
            return []
        lines = tuple(line for line in expectations(self.settings.expect) if line.selected(self.settings))
        passes = unexpected_passes(self.results, lines)
        held = [f"{line}: {r.law} by {r.operation} ({r.dtype}) holds" for line, r in passes]
        return held + [f"{line}: matches nothing that was judged" for line in unmatched_lines(self.results, lines)]

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Messages about errors of attnspec itself, laws without a verdict, and cases judged again."""
        messages = [*(r.message if r.unchecked else r.note for r in self.results), self.undeclared, *self.repeated]
        return tuple(dict.fromkeys(filter(None, messages)))

    @cached_property
    def interrupted(self) -> int:
        """Number of laws without a verdict because the run broke off."""
        return sum(r.interrupted for r in self.results)

    @property
    def exit_status(self) -> int:
        """Exit status of the verdict; 1 also if an expected failure passed."""
        return EXIT_STATUS[self.verdict] or int(bool(self.unmet))

    @property
    def examples(self) -> int:
        """Number of checks of a law on an example, over all laws."""
        return sum(r.examples for r in self.results)

    @property
    def not_judged(self) -> int:
        """Number of elements whose budget is too wide to judge, over all laws."""
        return sum(r.not_judged for r in self.results)

    @property
    def error_ratio(self) -> float:
        """The largest error ratio of all laws."""
        return max((r.error_ratio for r in self.results), default=0.0)

    @cached_property
    def semantics(self) -> dict[str, Answer]:
        """Answers to the questions that were judged, or for which a non-normative choice is declared."""
        provided = dict.fromkeys(r.operation for r in self.results if r.status != Status.NOT_PROVIDED)
        answers: dict[str, Answer] = {}
        for question in QUESTIONS.values():
            concerned = [name for name in provided if question.concerns(OPERATIONS[name])]
            declared = {name: spelled(getattr(self.contract.semantics[name], question.name)) for name in concerned}
            judged = [r for r in self.results if r.law == question.law and r.operation in declared]
            if judged or set(declared.values()) - {question.normative}:
                answers[question.name] = Answer(declared, self._observed(judged))
        return answers

    def _observed(self, judged: Iterable[Result]) -> dict[str, str]:
        """Return each operation's observed choice, over all dtypes."""
        observed: dict[str, str] = {}
        for r in judged:
            if r.observed is not None:
                earlier = observed.get(r.operation, r.observed)
                observed[r.operation] = earlier if earlier == r.observed else f"{earlier} and {r.observed}"
        return observed

    @property
    def deviations(self) -> dict[str, Mapping[str, str]]:
        """Declared choices by operation, for the questions with a non-normative one."""
        return {
            question: answer.declared
            for question, answer in self.semantics.items()
            if set(answer.declared.values()) != {QUESTIONS[question].normative}
        }

    @cached_property
    def not_tried(self) -> list[str]:
        """Inputs about which the verdict says nothing: larger sizes, other dtypes, excluded inputs, and more."""
        extent = widest(self.tried)
        largest = [f"{count:,} {size}" for size, count in extent.items() if size in ORDER]
        largest = ["1 element of a batch" if x == f"1 {BATCH}" else x for x in largest]
        values = ", ".join(f"{size} beyond {count:,}" for size, count in extent.items() if size not in ORDER)
        sizes = " or ".join(filter(None, (", ".join(largest[:-1]), *largest[-1:])))
        judged = {r.dtype for r in self.results if r.judged}
        dtypes = [dtype for dtype in DEFAULTS if dtype not in judged] if judged & set(DEFAULTS) else []
        gradients = not any(r.judged and LAWS[r.law].gradients for r in self.results)
        operations = (OPERATIONS[name] for name in dict.fromkeys(r.operation for r in self.results if r.judged))
        return [
            *([f"more than {sizes}"] if sizes else []),
            *([values] if values else []),
            *([", ".join(dtypes)] if dtypes else []),
            *(["gradients"] if gradients else []),
            *excluded_inputs(self.contract.limits, operations),
            *self._small_errors(),
            f"any device but {self.settings.device}",
            *NEVER_TRIED,
        ]

    def _small_errors(self) -> Iterator[str]:
        """Yield, by dtype of 16 bits, operations whose errors below a rounding are not seen."""
        for dtype in ("bfloat16", "float16"):
            judged = [r for r in self.results if r.judged and r.dtype == dtype and OPERATIONS[r.operation].float_result]
            seen = {r.operation for r in judged if r.law in ENSEMBLE_LAWS and r.status is not Status.LOST}
            names = [name for name in dict.fromkeys(r.operation for r in judged) if name not in seen]
            if names:
                yield f"errors below a rounding to {dtype} in {', '.join(names)}"

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain JSON, which ``report.schema.json`` describes."""
        contract, settings = self.contract, self.settings
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "exit_status": self.exit_status,
            "conforms_as_observed": self.conforms_as_observed,
            "accept_observed": settings.accept_observed,
            "reason": self.reason,
            "backend": {
                "name": contract.name,
                "origin": contract.origin,
                "notes": dict(contract.notes),
                "limits": asdict(contract.limits),
                "precision": {d: contract.precision.default.get(d, "default") for d in contract.limits.dtypes},
                "differentiable": contract.differentiable,
            },
            "semantics": {
                question: {"declared": in_common(answer.declared), "observed": in_common(answer.observed)}
                for question, answer in self.semantics.items()
            },
            "profile": settings.profile,
            "seed": settings.seed,
            "device": settings.device,
            "in_process": settings.in_process,
            "sandbox": "bubblewrap" if self.sandboxed else "none",
            "left_behind": list(self.left),
            "hang_after": settings.hang_after,
            "time_limit": settings.time_limit or None,
            "shard": settings.shard,
            "expect": settings.expect,
            "unmet": self.unmet,
            "selection": {name: list(getattr(settings, name)) for name in ("operations", "laws", "dtypes")},
            "seconds": round(self.seconds, 3),
            "versions": versions(),
            "summary": {
                **{str(status): count for status, count in self.counts.items()},
                "expected": len(self.expected),
                "examples": self.examples,
                "not_judged": self.not_judged,
                "error_ratio": json_number(self.error_ratio),
            },
            "tried": {operation: dict(extent) for operation, extent in self.tried.items()},
            "not_tried": self.not_tried,
            "declaration": dict(self.declaration.attributes) or None,
            "declaration_reasons": self.declaration.all_reasons,
            "diagnoses": [x.as_json() for x in self.diagnoses],
            "explanations": {case: x.as_json() for case, x in self.explanations.items()} if settings.shard else {},
            "notes": list(self.notes),
            "results": [
                {**r.as_json(), "expected": self._reason(r), "explained_by": self.declaration.explained.get(key(r))}
                for r in self.results
            ],
        }

    def _reason(self, result: Result) -> dict[str, str] | None:
        """Return the line that expects a failure and its reason; None for other results."""
        line = self.expected.get(key(result))
        return None if line is None else {"line": str(line), "reason": line.reason}

    def as_text(self) -> str:
        """Return the report as the text of a JSON document."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"


def key(result: Result) -> tuple[str, str, str]:
    """Return the operation, law and dtype of a verdict."""
    return result.operation, result.law, result.dtype


def tried_by(plan: Plan, verdicts: Verdicts) -> dict[str, Extent]:
    """Return the largest tried sizes per operation, over all dtypes."""
    extents: dict[str, dict[str, Extent]] = {}
    for case in plan.cases:
        extents.setdefault(case.operation, {})[case.id] = verdicts.extents.get(case.id, {})
    return {name: extent for name in OPERATIONS if name in extents and (extent := widest(extents[name]))}


def planned_results(plan: Plan, verdicts: Verdicts, early_end: str | None = None) -> Iterable[Result]:
    """Return one result per law and case, in a fixed order; laws without a verdict are lost.

    ``early_end`` is the reason why the run ended early; None if it did not.
    """
    results: list[Result] = []
    for case in plan.cases:
        known = {r.law: r for r in verdicts.results.get(case.id, ())}
        early_reason = TIME_LIMIT if early_end == TIME_LIMIT else INTERRUPTED
        reason = early_reason if early_end else "the test ended without a verdict"
        message = early_end or verdicts.causes.get(case.id, reason)
        results += [
            known.get(law) or Result(case.operation, law, case.dtype, Status.LOST, reason=reason, message=message)
            for law in case.laws
        ]
    order = {name: i for i, name in enumerate(OPERATIONS)}
    return sorted(results, key=lambda r: (order[r.operation], r.law, r.dtype))


def missing_results(contract: Contract, settings: Settings) -> Iterable[Result]:
    """Return one result per law of every selected operation that is not provided."""
    dtypes = [d for d in contract.limits.dtypes if not settings.dtypes or d in settings.dtypes]
    only, laws = expectations(settings.only, "only"), selected_laws(settings.laws)
    return [
        Result(o.name, law.id, dtype, Status.NOT_PROVIDED, "the backend does not provide the operation")
        for o in OPERATIONS.values()
        if not o.reference_only and o.name not in contract.operations
        if not settings.operations or o.name in settings.operations
        for law in LAWS.values()
        if law.concerns(o) and (not settings.laws or law.id in laws)
        for dtype in dtypes_of(o, dtypes)
        if settings.only is None or any(line.concerns(o.name, law.id, dtype) for line in only)
    ]


def in_common(answers: Mapping[str, str]) -> str | dict[str, str] | None:
    """Return the choice that all operations share, else the choices by operation; None without choices."""
    choices = set(answers.values())
    return dict(answers) if len(choices) > 1 else next(iter(choices), None)


def versions() -> dict[str, str]:
    """Return the versions of attnspec, machine and packages."""
    facts = {
        "attnspec": VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **processor(),
    }
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts
