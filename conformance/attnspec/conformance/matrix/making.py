"""Making of a matrix: rows are judged like any backend, and violations confirmed by programs.

A row is one way to call a library, such as one of its functions. A *tool* is what it needs besides, like a compiler.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

from rich.console import Console

from attnspec.conformance.judging.cases import BOOLEAN_DTYPE, DEFAULT_DTYPE
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import UNJUDGED, Result, Status, json_number
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.matrix.cells import DIRECTIONS, Cell, Matrix, Row, State, Violation
from attnspec.conformance.matrix.confirming import confirm
from attnspec.conformance.matrix.messages import without_places
from attnspec.conformance.matrix.repeats import LARGER_PROFILE, failed_by, laws_of, repeats, replaced
from attnspec.conformance.matrix.rows import Library, ProbedRow, probe_rows
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.report import Report, versions
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
    """Dtypes at which a row offers the same operations, all with gradients or all without."""

    dtypes: tuple[str, ...]
    operations: tuple[str, ...]
    gradients: bool


class Maker:
    """Maker of one matrix; every row is judged with ``settings``."""

    def __init__(self, library: Library, settings: Settings, workers: int, console: Console) -> None:
        self.library, self.settings, self.workers, self.console = library, settings, workers, console
        self.interrupted = False

    def make(self) -> Matrix:
        """Judge every row; after Ctrl-C, the rows judged so far remain.

        Errors: :class:`BackendError` for an unknown device.
        """
        started = time.monotonic()
        rows: list[Row] = []
        probed_rows: list[ProbedRow] = []
        count = len(self.library.rows)
        try:
            self._print(f"calling {count} rows of {self.library.name} once at every dtype")
            device, report = self.settings.device, lambda origin: self._print(f"called {origin}")
            probed_rows = probe_rows(self.library, device, self.workers, report)
            for number, row in enumerate(probed_rows, 1):
                name = row.contract.name if row.contract is not None else row.origin
                self._print(f"row {number} of {count}: {name}")
                rows.append(self._row(row))
                if self.interrupted:
                    break
        except KeyboardInterrupt:
            self.interrupted = True
        judged_rows = {row.origin for row in rows}
        not_started = probed_rows or [ProbedRow(origin, None, None, error=INTERRUPTED) for origin in self.library.rows]
        rows += [_unjudged(probed, INTERRUPTED) for probed in not_started if probed.origin not in judged_rows]
        declared = {d for probed in probed_rows if probed.contract is not None for d in probed.contract.limits.dtypes}
        known_versions = versions()
        names = ("attnspec", "python", "platform", "processor", "instructions", "numpy", self.library.package)
        return Matrix(
            library=self.library.name,
            device=self.settings.device,
            date=datetime.now(UTC).date().isoformat(),
            profile=self.settings.profile,
            seed=self.settings.seed,
            seconds=round(time.monotonic() - started, 1),
            interrupted=self.interrupted,
            versions={name: known_versions[name] for name in names if name in known_versions},
            dtypes=tuple(d for d in DEFAULTS if d in declared),
            rows=tuple(rows),
        )

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False)

    def _row(self, row: ProbedRow) -> Row:
        """Judge every cell of a row that the library offers, and return the row."""
        if row.contract is None:
            return _unjudged(row, row.error)
        results: list[Result] = []
        for group in _groups(row):
            try:
                results += self._group_results(row, group)
            except BackendError as error:
                return _unjudged(row, str(error))
            if self.interrupted:
                break
        judged = [self._cell_with_examples(row, d, x, results) for d in row.contract.limits.dtypes for x in DIRECTIONS]
        with ThreadPoolExecutor(self.workers) as pool:
            confirmations = [[pool.submit(self._violation, row, r) for r in causes] for _, causes in judged]
        violations = [tuple(v.result() for v in pending) for pending in confirmations]
        cells = [replace(cell, violations=violated) for (cell, _), violated in zip(judged, violations, strict=True)]
        return replace(_unjudged(row, ""), cells=tuple(cells))

    def _group_results(self, row: ProbedRow, group: Group) -> list[Result]:
        """Judge a group, and judge laws that failed because of a tool once more."""
        results = list(self._judged(row, group))
        for repeat in [] if self.interrupted else repeats(results, row.tools):
            self._print(f"judging {repeat.operation} ({repeat.dtype}) again, because a tool failed")
            single = Group((repeat.dtype,), (repeat.operation,), group.gradients)
            results = replaced(results, self._judged(row, single, laws=repeat.laws))
            if self.interrupted:
                break
        return results

    def _cell_with_examples(
        self, row: ProbedRow, dtype: str, direction: str, results: Sequence[Result]
    ) -> tuple[Cell, list[Result]]:
        """Return a cell and its violations. A larger profile is tried if the matrix's has no example."""
        cell, causes = self._cell(row, dtype, direction, [r for r in results if _concerns(r, dtype, direction)])
        profile = LARGER_PROFILE.get(self.settings.profile)
        if cell.reason != NO_EXAMPLE or profile is None or self.interrupted or row.contract is None:
            return cell, causes
        names = tuple(n for n in row.contract.operations if n not in cell.partly)
        self._print(f"judging {direction} {dtype} by {profile}, since {self.settings.profile} has no example for it")
        group = Group((dtype,), names, direction == "backward")
        larger = self._judged(row, group, laws=laws_of(direction), profile=profile)
        cell, causes = self._cell(row, dtype, direction, [r for r in larger if _concerns(r, dtype, direction)])
        return replace(cell, profile=profile), causes

    def _judged(
        self, row: ProbedRow, group: Group, *, laws: tuple[str, ...] = (), profile: str | None = None
    ) -> Sequence[Result]:
        contract = row.contract
        assert contract is not None
        laws = laws or (() if group.gradients else laws_of("forward"))  # an empty tuple stands for all laws
        # Laws that are named are checked even if the profile has no time for them, so slow ones are left out here.
        profile = profile or self.settings.profile
        effort = PROFILES[profile].single
        laws = tuple(law for law in laws if effort.slow or not all(check.slow for check in CHECKS[law]))
        # Rows only call a library, so that they need no sandbox, which would discard what the library compiles.
        settings = replace(
            self.settings, operations=group.operations, dtypes=group.dtypes, laws=laws, profile=profile,
            hang_after=row.hang_after, sandbox="off",
        )  # fmt: skip
        workers = max(1, min(self.workers, len(group.operations) * len(group.dtypes)))
        ended = run(
            row.origin, settings, workers=workers, console=self.console, make_plan=lambda: Plan.of(contract, settings)
        )
        self.interrupted |= ended.early_end is not None
        return Report.of(ended.plan, ended.verdicts, settings, 0.0, early_end=ended.early_end).results

    def _cell(self, row: ProbedRow, dtype: str, direction: str, results: Sequence[Result]) -> tuple[Cell, list[Result]]:
        """Return a cell from its verdicts and refusals, and the violations to confirm.

        A violation decides the state; next, any law without a verdict. Of several reasons for that, the cell has the
        first of: interrupted, stopped after crashes, a broken tool, attnspec's own error, no example.
        """
        contract = row.contract
        assert contract is not None
        refused = {} if row.offers is None else _refused(row.offers.get(dtype, {}), direction)
        offered = [name for name in contract.operations if name not in refused]
        cell = Cell(dtype, direction, State.NOT_OFFERED)
        if not offered:
            return replace(cell, reason=without_places("; ".join(dict.fromkeys(refused.values())))), []
        stopped = [r for r in results if r.message.startswith(UNJUDGED)]
        broken_by_tool = [r for r in results if failed_by(r, row.tools)]
        judged = [r for r in results if r.judged and r not in stopped and r not in broken_by_tool]
        causes, following = by_cause(r for r in judged if r.violates)
        unchecked = [r for r in results if r.unchecked]
        open_reason = ""
        if any(r.interrupted for r in results) or (self.interrupted and not results):
            open_reason = INTERRUPTED
        elif stopped:
            open_reason = stopped[0].message.removeprefix(UNJUDGED)
        elif broken_by_tool:
            open_reason = f"{', '.join(r.law for r in broken_by_tool)}: {without_places(broken_by_tool[0].message)}"
        elif unchecked:
            open_reason = without_places(unchecked[0].message)
        elif not judged:
            open_reason = NO_EXAMPLE
        passing = State.DEVIATES if _deviations(row, offered) else State.CONFORMS
        state = State.VIOLATES if causes else State.NOT_JUDGED if open_reason else passing
        judged_cell = replace(
            cell,
            state=state,
            reason=open_reason,
            partly={name: without_places(reason) for name, reason in refused.items()},
            following=tuple(dict.fromkeys(r.law for r in following)),
            held=sum(r.status is Status.PASSED for r in judged),
            examples=sum(r.examples for r in judged),
            error_ratio=json_number(max((r.error_ratio for r in judged), default=0.0)),
        )
        return judged_cell, causes

    def _violation(self, row: ProbedRow, r: Result) -> Violation:
        """Return a violation, after trying to confirm it by a program without attnspec."""
        self._print(f"confirming {r.law} by {r.operation} ({r.dtype})")
        title = f"{self.library.name} {versions().get(self.library.package, '')}".strip()
        confirmation = confirm(r, row, self.settings, title)
        arguments = confirmation.arguments if r.counterexample is None else r.counterexample["arguments"]
        return Violation(
            operation=r.operation,
            law=r.law,
            statement=LAWS[r.law].statement,
            reason=str(r.reason or r.status),
            message=without_places(r.message),
            arguments=arguments,
            confirmation=confirmation.confirmation,
            why=confirmation.why,
            program=confirmation.program,
        )


def _concerns(r: Result, dtype: str, direction: str) -> bool:
    """Return True for a verdict of a cell; those on operations without float arguments count at every dtype."""
    return r.dtype in (dtype, BOOLEAN_DTYPE, DEFAULT_DTYPE) and LAWS[r.law].gradients == (direction == "backward")


def _refused(offers: Mapping[str, Mapping[str, str | None]], direction: str) -> dict[str, str]:
    return {name: reason for name, both in offers.items() if (reason := both[direction]) is not None}


def _groups(row: ProbedRow) -> list[Group]:
    """Return a row's groups; they hold all operations if first calls did not finish."""
    contract = row.contract
    assert contract is not None
    dtypes_by_operation: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for dtype in contract.limits.dtypes:
        for name in contract.operations:
            if dtype not in contract.limits.dtypes_for(name):
                continue
            offer = None if row.offers is None else row.offers[dtype][name]
            if offer is None or offer["forward"] is None:
                dtypes_by_operation[name, offer is None or offer["backward"] is None].append(dtype)
    groups: dict[tuple[tuple[str, ...], bool], list[str]] = defaultdict(list)
    for (name, gradients), dtypes in dtypes_by_operation.items():
        groups[tuple(dtypes), gradients].append(name)
    return [Group(dtypes, tuple(names), gradients) for (dtypes, gradients), names in groups.items()]


def _deviations(row: ProbedRow, names: Sequence[str]) -> dict[str, str]:
    """Return declared non-normative choices, for the questions that concern these operations."""
    assert row.contract is not None
    deviations = {}
    for question in QUESTIONS.values():
        concerned = [n for n in names if question.concerns(OPERATIONS[n])]
        declared = {n: spelled(getattr(row.contract.semantics[n], question.name)) for n in concerned}
        choices = set(declared.values())
        if choices - {question.normative}:
            each = ", ".join(f"{n}: {c}" for n, c in declared.items())
            deviations[question.name] = each if len(choices) > 1 else choices.pop()
    return deviations


def _limits(row: ProbedRow) -> tuple[str, ...]:
    assert row.contract is not None
    limits = row.contract.limits
    values = {f.name: getattr(limits, f.name) for f in fields(limits) if f.name not in ("dtypes", "devices")}
    defaults = {f.name: f.default for f in fields(limits)}
    return tuple(f"{name.replace('_', ' ')}: {_plain(x)}" for name, x in values.items() if x != defaults[name])


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _unjudged(row: ProbedRow, reason: str) -> Row:
    """Return a row without verdicts; for a judged row, the cells are then replaced."""
    if row.contract is None:
        cells = tuple(Cell(d, x, State.NOT_JUDGED, reason) for d in DEFAULTS for x in DIRECTIONS)
        name = row.origin.rpartition(".")[2]
        return Row(name, row.origin, operations=(), limits=(), deviations={}, precision={}, notes={}, cells=cells)
    contract, names, dtypes = row.contract, row.contract.operations, row.contract.limits.dtypes
    return Row(
        contract.name,
        row.origin,
        operations=names,
        limits=_limits(row),
        deviations=_deviations(row, names),
        precision={d: " and ".join(dict.fromkeys(contract.precision.name(n, d) for n in names)) for d in dtypes},
        notes=dict(contract.notes),
        cells=tuple(Cell(d, x, State.NOT_JUDGED, reason) for d in dtypes for x in DIRECTIONS),
    )
