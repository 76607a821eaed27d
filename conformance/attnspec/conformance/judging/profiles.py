"""Profiles of effort: quick for every save, full before publishing, release for releases."""

from collections.abc import Mapping
from dataclasses import dataclass

from attnspec.conformance.inputs.dtypes import NARROW

FORMULA = "operation.oracle"
"""The law that results equal the formula; it is checked on every example."""

GRADIENT = "operation.gradient"
"""The law that gradients equal those of the formula."""

MACHINERY = frozenset({"operation", "sizes", "storage", "training"})
"""Chapters about how calls are made; their laws also fail where the formula is wrong."""

REMEMBERING = frozenset(
    {
        *("operation.no-memory", "operation.own-memory"),
        *("training.no-memory", "training.own-memory", "training.later-writes"),
    }
)
"""Laws about state that earlier calls leave, which can break otherwise correct plain calls."""

COSTLY = {GRADIENT, "operation.rejection"}
"""Slow laws: they compare all gradients, or try a wrong shape of every argument."""


@dataclass(frozen=True)
class Effort:
    """Number and size of examples for a group of dtypes.

    corners: rows of the covering array. drawn: examples that Hypothesis draws. stride: laws other than the formula are
    checked on every stride-th example. costly: the stride of slow laws. work: the most multiply-adds of an example.
    slow: run the checks that are too slow for ``quick``. ensemble: the batch elements over which a filter averages
    errors.
    """

    corners: int
    drawn: int
    stride: int
    costly: int
    work: float
    slow: bool = True
    ensemble: int = 512

    def due(self, law: str, index: int, place: int) -> bool:
        """Return whether the law at ``place`` is checked on example number ``index``."""
        if law == FORMULA:
            return True
        if law in COSTLY:
            return index % self.costly == 0
        return (index + place) % self.stride == 0


@dataclass(frozen=True)
class Profile:
    """The efforts of a run: at float32, at float64, and at the 16-bit dtypes.

    The float64 oracle computes in long double without BLAS, hence on smaller examples. A wrong index or shape shows at
    any dtype, hence fewer examples at dtypes other than float32.
    """

    single: Effort
    double: Effort
    narrow: Effort

    def at(self, dtype: str) -> Effort:
        """The effort at a dtype; float32's for dtypes without their own."""
        return self.double if dtype == "float64" else self.narrow if dtype in NARROW else self.single


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(
        Effort(12, 2, 3, 4, 2.0**14, slow=False),
        Effort(6, 0, 3, 3, 2.0**12, slow=False, ensemble=256),
        Effort(6, 0, 4, 4, 2.0**14, slow=False),
    ),
    "full": Profile(
        Effort(60, 16, 2, 4, 2.0**19, ensemble=4096),
        Effort(28, 6, 2, 5, 2.0**16, ensemble=1024),
        Effort(28, 6, 3, 4, 2.0**19, ensemble=4096),
    ),
    "release": Profile(
        Effort(400, 600, 1, 1, 2.0**22, ensemble=8192),
        Effort(400, 600, 1, 1, 2.0**19, ensemble=2048),
        Effort(400, 600, 1, 1, 2.0**22, ensemble=8192),
    ),
}
