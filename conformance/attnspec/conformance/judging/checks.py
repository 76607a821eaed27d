"""Registry of the checks of laws, filled by ``@checks`` in the modules of ``laws``."""

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

    The function raises :class:`~attnspec.conformance.judging.violation.Violation` where the law fails, and returns
    whether the law applies to the example. ``once``: runs once per case, not per example, and makes its own inputs with
    the arguments as a template. ``ensemble``: estimates an error from many elements; runs on every example in 16-bit
    dtypes, where rounding hides small errors. ``slow``: not in ``quick``. ``leading_dtype_only``: in ``quick``, runs
    only at one dtype, float32 if judged, to save time. ``name`` seeds the random draws. ``governs`` selects operations
    of the law; by default all.
    """

    law: Law
    function: Function
    once: bool = False
    ensemble: bool = False
    slow: bool = False
    leading_dtype_only: bool = False
    name: str = ""
    governs: Callable[[Operation], bool] | None = None

    def concerns(self, operation: Operation) -> bool:
        """Return whether the check applies to an operation that the law governs."""
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
    slow: bool = False,
    leading_dtype_only: bool = False,
    governs: Callable[[Operation], bool] | None = None,
) -> Callable[[Function], Function]:
    """Register a check of a law.

    A law may have several checks, which run at different rates; it holds if none finds a violation. A law concerns
    results or gradients, never both, so that its verdict says which of them is wrong. Options as in :class:`Check`.
    """

    def register(function: Function) -> Function:
        others = _CHECKS.get(law.id, ())
        name = f"{law.id}/{function.__name__}" if others else law.id
        check = Check(law, function, once, ensemble, slow, leading_dtype_only, name, governs)
        _CHECKS[law.id] = (*others, check)
        return function

    return register
