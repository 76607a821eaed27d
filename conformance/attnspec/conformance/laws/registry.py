"""The registry of checks: ``@checks`` makes a function the check of a law."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.subject import Subject
from attnspec.spec.contract.law import Law

Function = Callable[[Subject, Arguments, np.random.Generator], bool]


@dataclass(frozen=True)
class Check:
    """How a law is checked on one example.

    The function raises :class:`~attnspec.conformance.judging.violation.Violation` where the law does not hold, and
    returns whether the law says anything about the example. A check that runs ``once`` makes its own inputs, from the
    given arguments as a template. An ``ensemble`` estimates an error from many elements; in a narrow dtype, where
    rounding hides small errors, it runs on every example. A ``dear`` one belongs to the profiles
    that have time for it; one ``at_leading`` dtypes runs at all of them only there, and else at the leading one.
    """

    law: Law
    function: Function
    once: bool = False
    ensemble: bool = False
    dear: bool = False
    at_leading: bool = False


_CHECKS: dict[str, Check] = {}
CHECKS: Mapping[str, Check] = MappingProxyType(_CHECKS)
"""Every check, by the identifier of its law."""


def checks(
    law: Law, *, once: bool = False, ensemble: bool = False, dear: bool = False, at_leading: bool = False
) -> Callable[[Function], Function]:
    """Register the check of a law; every law has exactly one."""

    def register(function: Function) -> Function:
        if law.id in _CHECKS:
            raise ValueError(f"law {law.id} has two checks")
        _CHECKS[law.id] = Check(law, function, once, ensemble, dear, at_leading)
        return function

    return register
