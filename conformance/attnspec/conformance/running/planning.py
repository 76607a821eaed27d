"""The plan of a run: the cases that its backend has and its settings select."""

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import attnspec.conformance.laws  # noqa: F401 - the modules of the laws register their checks
from attnspec.conformance.explaining.declaration import with_attributes
from attnspec.conformance.judging.cases import Case, cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.running.expectations import expectations
from attnspec.conformance.running.selection import selected_laws, unknown_name
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS


@dataclass(frozen=True)
class Plan:
    """The contract by which a backend is judged, and the cases to judge.

    ``own_contract`` is the backend's own; ``contract`` also has the attributes of the setting ``declared``.
    """

    contract: Contract
    cases: Sequence[Case]
    own_contract: Contract

    @classmethod
    def of(cls, contract: Contract, settings: Settings) -> "Plan":
        """Return the plan; :class:`BackendError` for an unknown name, or without any case."""
        check_names(settings)
        own_contract, contract = contract, judged_contract(contract, settings)
        _check_provided(contract, settings)
        laws = selected_laws(settings.laws)
        selected = cases(contract, operations=settings.operations, laws=laws, dtypes=settings.dtypes)
        if settings.only is not None:
            selected = _only(selected, settings.only)
        # A law that the user selected runs even if all its checks are slow, which ``quick`` otherwise skips.
        if settings.laws or settings.only is not None:
            selected = [replace(case, laws_selected=True) for case in selected]
        selected = _in_shard(selected, settings.shard)
        if not selected:
            raise BackendError("nothing to judge: no law of the selection governs an operation of the selection")
        return cls(contract, selected, own_contract)


def judged_contract(contract: Contract, settings: Settings) -> Contract:
    """Return the contract by which to judge: the backend's, with the attributes of the setting ``declared``."""
    return contract if settings.declared is None else with_attributes(contract, ast.literal_eval(settings.declared))


def _in_shard(cases_: list[Case], shard: str | None) -> list[Case]:
    """Return every N-th case for the shard ``I/N``; :class:`BackendError` for another text, or too many shards."""
    if shard is None:
        return cases_
    part, _, parts = shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise BackendError(f"--shard: expected I/N with 1 ≤ I ≤ N, such as 2/3; got {shard!r}")
    if int(parts) > len(cases_):
        raise BackendError(f"--shard: expected at most {len(cases_)} shards, one per operation and dtype; got {parts}")
    return shard_of(cases_, shard)


def shard_of(cases_: Sequence[Case], shard: str) -> list[Case]:
    """Return every N-th case for the shard ``I/N``."""
    part, _, parts = shard.partition("/")
    return [*cases_[int(part) - 1 :: int(parts)]]


def _only(cases_: Sequence[Case], path: str) -> list[Case]:
    """Keep the laws that a file lists, and the cases that still have a law."""
    lines = expectations(path, "only")
    left = (
        replace(case, laws=tuple(x for x in case.laws if any(e.concerns(case.operation, x, case.dtype) for e in lines)))
        for case in cases_
    )
    return [case for case in left if case.laws]


def check_names(settings: Settings, prefix: str = "") -> None:
    """Raise :class:`BackendError` for an unknown name; ``prefix`` precedes settings in messages."""
    known: dict[str, tuple[Collection[str], Sequence[str]]] = {
        "profile": (PROFILES, (settings.profile,)),
        "operation": ([o.name for o in OPERATIONS.values() if not o.reference_only], settings.operations),
        "law": (LAWS, settings.laws),
        "dtype": (DEFAULTS, settings.dtypes),
    }
    for what, (names, chosen) in known.items():
        for name in chosen:
            if name not in names and not (what == "law" and selected_laws([name])):
                raise BackendError(unknown_name(f"{prefix}{what}", name, names))
    expectations(settings.expect, f"{prefix}expect")  # read for its errors only


def _check_provided(contract: Contract, settings: Settings) -> None:
    limits = contract.limits
    device = limits.chosen_device(settings.device).partition(":")[0]
    provided: dict[str, tuple[Sequence[str], Sequence[str], str]] = {
        "device": (limits.devices, (device,), "the backend's limits"),
        "dtype": (limits.dtypes, settings.dtypes, "the backend's limits"),
        "operation": (contract.operations, settings.operations, "which the backend provides"),
    }
    for what, (names, chosen, why) in provided.items():
        for name in chosen:
            if name not in names:
                message = unknown_name(f"--{what}", name, names, f", {why}")
                if what != "operation":
                    message += f"; declare {limits.declaration_with(f'{what}s', name)} to try it"
                raise BackendError(message)
