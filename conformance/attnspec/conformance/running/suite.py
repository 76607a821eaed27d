"""The suite as pytest sees it: one test for each operation and dtype, all of whose laws are judged together.

A third party writes, in a test file of its own::

    class TestMine(ConformanceSuite):
        backend = MyBackend()
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from attnspec.conformance.judging.engine import Case, cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.subject import Contract
from attnspec.conformance.reporting.messages import consequences, ordered, repair, told
from attnspec.conformance.running.isolation import HANG_AFTER, STOP_AFTER, Casualties, Watch
from attnspec.conformance.running.loading import BackendError, contract_of, load
from attnspec.conformance.running.selection import misnamed
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS


@dataclass(frozen=True)
class Settings:
    """What is judged, and how much is tried. Empty selections select everything."""

    profile: str = "quick"
    seed: int = 0
    device: str = "cpu"
    operations: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    hang_after: float = HANG_AFTER
    crumbs: str | None = None


class ConformanceSuite:
    """Subclass it in a test file, as ``Test…``, and set ``backend`` to a backend or the name of one."""

    backend: ClassVar[Any] = None
    profile: ClassVar[str] = "quick"
    seed: ClassVar[int] = 0
    device: ClassVar[str] = "cpu"
    operations: ClassVar[Sequence[str]] = ()
    laws: ClassVar[Sequence[str]] = ()
    dtypes: ClassVar[Sequence[str]] = ()

    def test_conforms(self, attnspec_case: Case, record_property: Callable[[str, object], None]) -> None:
        """All laws of one operation at one dtype."""
        backend, contract = resolved(type(self).backend)
        run_case(backend, contract, attnspec_case, settings_of(type(self)), record_property)


def settings_of(suite: type[ConformanceSuite]) -> Settings:
    """The settings that a subclass chooses; :class:`BackendError` for a text where names are expected."""
    for name in ("operations", "laws", "dtypes"):
        if isinstance(getattr(suite, name), str):
            raise BackendError(f"{suite.__name__}.{name}: expected a tuple of names; got {getattr(suite, name)!r}")
    return Settings(
        suite.profile, suite.seed, suite.device, tuple(suite.operations), tuple(suite.laws), tuple(suite.dtypes)
    )


_loaded: dict[str, tuple[Any, Contract]] = {}


def resolved(backend: Any) -> tuple[Any, Contract]:
    """A backend, loaded if it was named, and its contract; named ones are loaded once."""
    if backend is None:
        raise pytest.UsageError("ConformanceSuite: expected a class attribute `backend`; got None")
    if not isinstance(backend, str):
        return backend, contract_of(backend, _importable_name(backend))
    if backend not in _loaded:
        found = load(backend)
        _loaded[backend] = (found, contract_of(found, backend))
    return _loaded[backend]


def _importable_name(backend: Any) -> str:
    """How a snippet can name the backend: its class in its module."""
    kind = backend if isinstance(backend, type) else type(backend)
    return f"{kind.__module__}:{kind.__qualname__}" if kind.__module__ != "builtins" else str(backend.__name__)


def cases_of(backend: Any, settings: Settings) -> list[Case]:
    """The cases that a backend has under these settings; :class:`BackendError` if there are none."""
    _, contract = resolved(backend)
    return planned(contract, settings)


def planned(contract: Contract, settings: Settings) -> list[Case]:
    """The cases to judge; :class:`BackendError` for a selection that the backend cannot meet, or that is misspelt."""
    known: dict[str, tuple[Collection[str], Sequence[str]]] = {
        "profile": (PROFILES, (settings.profile,)),
        "operation": (OPERATIONS, settings.operations),
        "law": (LAWS, settings.laws),
        "dtype": (DEFAULTS, settings.dtypes),
    }
    for what, (names, chosen) in known.items():
        for name in chosen:
            if name not in names:
                raise BackendError(misnamed(what, name, names))
    has: dict[str, tuple[Sequence[str], Sequence[str], str]] = {
        "device": (contract.limits.devices, (settings.device.partition(":")[0],), "its limits"),
        "dtype": (contract.limits.dtypes, settings.dtypes, "its limits"),
        "operation": (contract.operations, settings.operations, "which it provides"),
    }
    for what, (provided, chosen, why) in has.items():
        for name in chosen:
            if name not in provided:
                raise BackendError(f"--{what}: expected one of {', '.join(provided)}, {why}; got {name!r}")
    found = cases(contract, operations=settings.operations, laws=settings.laws, dtypes=settings.dtypes)
    if not found:
        raise BackendError("nothing to judge: no law of the selection governs an operation of the selection")
    return found


def run_case(
    backend: Any,
    contract: Contract,
    case: Case,
    settings: Settings,
    record_property: Callable[[str, object], None],
) -> None:
    """Judge a case, hand its verdicts on as a property of the test, and fail it if a law is violated."""
    results = _judged(backend, contract, case, settings)
    record_property("attnspec", [r.as_json() for r in results])
    failed = ordered(r for r in results if r.status is Status.FAILED)
    if failed:
        later = consequences(failed)
        parts = [told(r) for r in failed if r not in later]
        parts += [repair(later), *map(told, later)] if later else []
        pytest.fail("\n\n".join(parts), pytrace=False)


def _judged(backend: Any, contract: Contract, case: Case, settings: Settings) -> list[Result]:
    profile = PROFILES[settings.profile]
    if settings.crumbs is None:
        return judge(backend, contract, case, profile, seed=settings.seed, device=settings.device)
    folder = Path(settings.crumbs)
    casualties = Casualties(folder, settings.hang_after)
    known = casualties.known(case.operation, case.dtype)
    reason = casualties.stopped(case.operation)
    if reason is not None:
        return [known.get(law) or _given_up(case, law, reason) for law in case.laws]
    watch = Watch(folder, case.id, settings.hang_after)
    try:
        return judge(
            backend,
            contract,
            case,
            profile,
            seed=settings.seed,
            device=settings.device,
            mark=watch,
            skip={law: replace(result) for law, result in known.items() if law in LAWS},
        )
    finally:
        watch.close()


def _given_up(case: Case, law: str, reason: str) -> Result:
    message = f"not judged: the operation was stopped after it had {reason} {STOP_AFTER} times"
    return Result(case.operation, law, case.dtype, Status.FAILED, reason, message)
