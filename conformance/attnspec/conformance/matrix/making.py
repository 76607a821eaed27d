"""Making a matrix: each row is judged like any backend, and each violation confirmed by a program."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

from rich.console import Console

from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.engine import BOOLEAN, DEFAULT
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import UNJUDGED, Result, Status, json_number
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.matrix.again import MORE, failed_by, laws_of, repeats, replaced
from attnspec.conformance.matrix.cells import DIRECTIONS, Cell, Matrix, Row, State, Violation
from attnspec.conformance.matrix.confirming import confirmed
from attnspec.conformance.matrix.messages import without_places
from attnspec.conformance.matrix.rows import Library, Probed, probed
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.report import Report, in_common, versions
from attnspec.conformance.running.checking import run
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.semantics import QUESTIONS, spelled

INTERRUPTED = "interrupted"
NO_EXAMPLE = "the profile has no example for it"


@dataclass(frozen=True)
class Group:
    """Dtypes at which a row offers the same operations, with their gradients or without."""

    dtypes: tuple[str, ...]
    operations: tuple[str, ...]
    gradients: bool


class Maker:
    """Makes one matrix; ``settings`` are those of every row."""

    def __init__(self, library: Library, settings: Settings, workers: int, console: Console) -> None:
        self.library, self.settings, self.workers, self.console = library, settings, workers, console
        self.interrupted = False

    def make(self) -> Matrix:
        """Judge every row; Ctrl-C keeps the rows judged so far. :class:`BackendError` for an unknown device."""
        started = time.monotonic()
        rows: list[Row] = []
        found: list[Probed] = []
        count = len(self.library.rows)
        try:
            self.console.print(f"calling {count} rows of {self.library.name} once at every dtype", highlight=False)
            found = probed(self.library, self.settings.device, self.workers, self._told)
            for number, row in enumerate(found, 1):
                name = row.contract.name if row.contract is not None else row.origin
                self.console.print(f"row {number} of {count}: {name}", highlight=False, markup=False)
                rows.append(self._row(row))
                if self.interrupted:
                    break
        except KeyboardInterrupt:
            self.interrupted = True
        known = {row.origin for row in rows}
        rest = found or [Probed(origin, None, None, error=INTERRUPTED) for origin in self.library.rows]
        rows += [_unjudged(p, INTERRUPTED) for p in rest if p.origin not in known]
        stated = versions()
        shown = ("spec", "python", "platform", "processor", "instructions", "attnspec", "numpy", self.library.package)
        return Matrix(
            self.library.name,
            self.settings.device,
            datetime.now(UTC).date().isoformat(),
            self.settings.profile,
            self.settings.seed,
            round(time.monotonic() - started, 1),
            self.interrupted,
            {name: stated[name] for name in shown if name in stated},
            tuple(d for d in DEFAULTS if any(d in p.contract.limits.dtypes for p in found if p.contract is not None)),
            tuple(rows),
        )

    def _told(self, origin: str) -> None:
        self.console.print(f"called {origin}", highlight=False, markup=False)

    def _row(self, p: Probed) -> Row:
        """Return a row with every cell that the library offers judged."""
        if p.contract is None:
            return _unjudged(p, p.error)
        results: list[Result] = []
        for group in _groups(p):
            try:
                results += self._settled(p, group)
            except BackendError as error:
                return _unjudged(p, str(error))
            if self.interrupted:
                break
        found = [self._exemplified(p, d, x, results) for d in p.contract.limits.dtypes for x in DIRECTIONS]
        with ThreadPoolExecutor(self.workers) as pool:
            confirming = [[pool.submit(self._violation, p, r) for r in causes] for _, causes in found]
        violations = [tuple(v.result() for v in those) for those in confirming]
        cells = [replace(cell, violations=those) for (cell, _), those in zip(found, violations, strict=True)]
        return replace(_unjudged(p, ""), cells=tuple(cells))

    def _settled(self, p: Probed, group: Group) -> list[Result]:
        """Return a group's verdicts; laws that failed because of a tool are judged once more."""
        results = list(self._judged(p, group))
        for part in [] if self.interrupted else repeats(results, p.tools):
            told = f"judging {part.operation} ({part.dtype}) again: a tool has failed"
            self.console.print(told, highlight=False, markup=False)
            alone = Group((part.dtype,), (part.operation,), group.gradients)
            results = replaced(results, self._judged(p, alone, laws=part.laws))
            if self.interrupted:
                break
        return results

    def _exemplified(
        self, p: Probed, dtype: str, direction: str, results: Sequence[Result]
    ) -> tuple[Cell, list[Result]]:
        """Return a cell and its violations; the larger profile judges it if the matrix's has no example."""
        cell, causes = self._cell(p, dtype, direction, [r for r in results if _concerns(r, dtype, direction)])
        profile = MORE.get(self.settings.profile)
        if cell.reason != NO_EXAMPLE or profile is None or self.interrupted or p.contract is None:
            return cell, causes
        names = tuple(n for n in p.contract.operations if n not in cell.partly)
        told = f"judging {direction} {dtype} by the profile {profile}: {NO_EXAMPLE}"
        self.console.print(told, highlight=False, markup=False)
        group = Group((dtype,), names, direction == "backward")
        more = self._judged(p, group, laws=laws_of(direction), profile=profile)
        cell, causes = self._cell(p, dtype, direction, [r for r in more if _concerns(r, dtype, direction)])
        return replace(cell, profile=profile), causes

    def _judged(
        self, p: Probed, group: Group, *, laws: tuple[str, ...] = (), profile: str | None = None
    ) -> Sequence[Result]:
        """Return a group's verdicts, from an ordinary run of the suite."""
        contract = p.contract
        assert contract is not None
        laws = laws or (() if group.gradients else laws_of("forward"))
        # A named law is always checked, so only laws that the profile has time for are named.
        effort = PROFILES[profile or self.settings.profile].single
        laws = tuple(law for law in laws if effort.slow or not all(check.slow for check in CHECKS[law]))
        # No sandbox: rows only call a library, and a sandbox would discard what the library compiles.
        settings = replace(
            self.settings,
            operations=group.operations,
            dtypes=group.dtypes,
            laws=laws,
            profile=profile or self.settings.profile,
            hang_after=p.hang_after,
            sandbox="off",
        )
        cases = len(group.operations) * len(group.dtypes)
        done = run(
            p.origin,
            settings,
            workers=max(1, min(self.workers, cases)),
            console=self.console,
            make_plan=lambda: Plan.of(contract, settings),
        )
        self.interrupted |= done.broken_off is not None
        return Report.of(done.plan, done.verdicts, settings, 0.0, broken_off=done.broken_off).results

    def _cell(self, p: Probed, dtype: str, direction: str, results: Sequence[Result]) -> tuple[Cell, list[Result]]:
        """Return a cell from its verdicts and refusals, and the violations to confirm."""
        contract = p.contract
        assert contract is not None
        refused = {} if p.offers is None else _refused(p.offers.get(dtype, {}), direction)
        offered = [name for name in contract.operations if name not in refused]
        cell = Cell(dtype, direction, State.NOT_OFFERED)
        if not offered:
            return replace(cell, reason=without_places("; ".join(dict.fromkeys(refused.values())))), []
        stopped = [r for r in results if r.message.startswith(UNJUDGED)]
        broken = [r for r in results if failed_by(r, p.tools)]
        judged = [r for r in results if r.judged and r not in stopped and r not in broken]
        causes, following = by_cause(r for r in judged if r.violates)
        lost = any(r.interrupted for r in results) or (self.interrupted and not results)
        why = INTERRUPTED if lost else stopped[0].message.removeprefix(UNJUDGED) if stopped else ""
        if broken and not why:
            why = f"{', '.join(r.law for r in broken)}: {without_places(broken[0].message)}"
        unchecked = [r for r in results if r.unchecked]
        if unchecked and not why:
            why = without_places(unchecked[0].message)
        if not judged and not why:
            why = NO_EXAMPLE
        found = replace(
            cell,
            state=self._state(p, bool(causes), bool(why), offered),
            reason=why,
            partly={name: without_places(reason) for name, reason in refused.items()},
            following=tuple(dict.fromkeys(r.law for r in following)),
            held=sum(r.status is Status.PASSED for r in judged),
            examples=sum(r.examples for r in judged),
            error_ratio=json_number(max((r.error_ratio for r in judged), default=0.0)),
        )
        return found, causes

    @staticmethod
    def _state(p: Probed, violates: bool, lacking: bool, offered: Sequence[str]) -> State:
        if violates:
            return State.VIOLATES
        if lacking:
            return State.NOT_JUDGED
        return State.DEVIATES if _differing(p, offered) else State.CONFORMS

    def _violation(self, p: Probed, r: Result) -> Violation:
        """Return a violation, after running a program without attnspec to confirm it."""
        self.console.print(f"confirming {r.law} by {r.operation} ({r.dtype})", highlight=False, markup=False)
        title = f"{self.library.name} {versions().get(self.library.package, '')}".strip()
        told = confirmed(r, p, self.settings, title)
        shown = told.arguments if r.counterexample is None else r.counterexample["arguments"]
        return Violation(
            r.operation,
            r.law,
            LAWS[r.law].statement,
            str(r.reason or r.status),
            without_places(r.message),
            shown,
            told.confirmation,
            told.why,
            told.program,
        )


def _concerns(r: Result, dtype: str, direction: str) -> bool:
    return r.dtype in (dtype, BOOLEAN, DEFAULT) and LAWS[r.law].gradients == (direction == "backward")


def _refused(offers: Mapping[str, Mapping[str, str | None]], direction: str) -> dict[str, str]:
    return {name: reason for name, both in offers.items() if (reason := both[direction]) is not None}


def _groups(p: Probed) -> list[Group]:
    """Return the groups of a row to judge; all operations if its first calls did not finish."""
    contract = p.contract
    assert contract is not None
    found: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for dtype in contract.limits.dtypes:
        for name in contract.operations:
            if dtype not in contract.limits.dtypes_for(name):
                continue
            offer = None if p.offers is None else p.offers[dtype][name]
            if offer is None or offer["forward"] is None:
                found[name, offer is None or offer["backward"] is None].append(dtype)
    groups: dict[tuple[tuple[str, ...], bool], list[str]] = defaultdict(list)
    for (name, gradients), dtypes in found.items():
        groups[tuple(dtypes), gradients].append(name)
    return [Group(dtypes, tuple(names), gradients) for (dtypes, gradients), names in groups.items()]


def _differing(p: Probed, names: Sequence[str]) -> dict[str, str]:
    """Return declared non-default choices, for the questions that concern these operations."""
    assert p.contract is not None
    found = {}
    for question in QUESTIONS.values():
        concerned = [n for n in names if question.concerns(OPERATIONS[n])]
        declared = {n: spelled(getattr(p.contract.semantics[n], question.name)) for n in concerned}
        if set(declared.values()) - {question.normative}:
            choice = in_common(declared)
            found[question.name] = (
                choice if isinstance(choice, str) else ", ".join(f"{n}: {c}" for n, c in declared.items())
            )
    return found


def _limits(p: Probed) -> tuple[str, ...]:
    """Return the inputs that a row declares to exclude."""
    assert p.contract is not None
    limits = p.contract.limits
    own = [f for f in fields(limits) if f.name not in ("dtypes", "devices")]
    return tuple(
        f"{f.name.replace('_', ' ')}: {_plain(getattr(limits, f.name))}"
        for f in own
        if getattr(limits, f.name) != f.default
    )


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _unjudged(p: Probed, reason: str) -> Row:
    """Return a row without verdicts, with the reason."""
    if p.contract is None:
        cells = tuple(Cell(d, x, State.NOT_JUDGED, reason) for d in DEFAULTS for x in DIRECTIONS)
        return Row(p.origin.rpartition(".")[2], p.origin, (), (), {}, {}, {}, cells)
    contract = p.contract
    names = contract.operations
    return Row(
        contract.name,
        p.origin,
        names,
        _limits(p),
        _differing(p, names),
        {d: " and ".join(dict.fromkeys(contract.precision.name(n, d) for n in names)) for d in contract.limits.dtypes},
        dict(contract.notes),
        tuple(Cell(d, x, State.NOT_JUDGED, reason) for d in contract.limits.dtypes for x in DIRECTIONS),
    )
