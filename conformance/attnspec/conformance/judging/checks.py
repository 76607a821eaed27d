"""The registry of checks, which modules of ``laws`` fill by ``@checks``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.subject import Subject
from attnspec.spec.contract.law import Law
from attnspec.spec.contract.operation import Operation

Function = Callable[[Subject, Arguments, np.random.Generator], bool]


@dataclass(frozen=True)
class Check:
    """One way to check a law on one example.

    The function raises :class:`~attnspec.conformance.judging.violation.Violation` where the law does not hold, and
    returns whether the law says anything about the example. A check that runs ``once`` makes its own inputs, from the
    given arguments as a template. An ``ensemble`` estimates an error from many elements; in a narrow dtype, where
    rounding hides small errors, it runs on every example. A ``dear`` one belongs to the profiles
    that have time for it; one ``at_leading`` dtypes runs at all of them only there, and else at the leading one.
    ``name`` seeds what the check draws at random.
    """

    law: Law
    function: Function
    once: bool = False
    ensemble: bool = False
    dear: bool = False
    at_leading: bool = False
    name: str = ""
    governs: Callable[[Operation], bool] | None = None

    def concerns(self, operation: Operation) -> bool:
        """Whether the check has anything to say about an operation that the law governs."""
        if self.governs is not None and not self.governs(operation):
            return False
        return operation.differentiable or not self.law.gradients


_CHECKS: dict[str, tuple[Check, ...]] = {}
CHECKS: Mapping[str, tuple[Check, ...]] = MappingProxyType(_CHECKS)
"""The checks of every law, by its identifier."""


def checks(
    law: Law,
    *,
    once: bool = False,
    ensemble: bool = False,
    dear: bool = False,
    at_leading: bool = False,
    governs: Callable[[Operation], bool] | None = None,
) -> Callable[[Function], Function]:
    """Register a check of a law.

    A law may have several checks, which need not run equally often; it holds where all of them find no violation. It is
    one of results or one of gradients, never of both: its verdict says which of them is wrong.
    ``governs`` selects the operations of this check where they are fewer than those of the law.
    """

    def register(function: Function) -> Function:
        others = _CHECKS.get(law.id, ())
        name = f"{law.id}/{function.__name__}" if others else law.id
        check = Check(law, function, once, ensemble, dear, at_leading, name, governs)
        _CHECKS[law.id] = (*others, check)
        return function

    return register
