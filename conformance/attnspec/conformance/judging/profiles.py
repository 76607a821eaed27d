"""Profiles of effort: ``quick`` at every change, ``full`` before publishing, ``release`` for releases."""

from collections.abc import Mapping
from dataclasses import dataclass

from attnspec.conformance.inputs.dtypes import NARROW

FORMULA = "operation.oracle"
"""The law that results equal the formula; it is checked on every example."""

GRADIENT = "operation.gradient"
"""The law that gradients equal those of the formula."""

CALLING_CHAPTERS = frozenset({"operation", "sizes", "storage", "training"})
"""Chapters about how calls are made. Their laws may fail because the formula is wrong."""

STATE_LAWS = {
    "operation.independent-of-other-calls",
    "operation.result-owns-memory",
    "training.independent-of-other-passes",
    "training.gradients-own-memory",
    "training.later-writes-have-no-effect",
}
"""Laws about state left by earlier calls, which may spoil a right formula."""

SLOW_LAWS = {GRADIENT, "operation.rejection"}
"""Slow laws: they compare all gradients, or try a wrong shape of every argument."""


@dataclass(frozen=True)
class Effort:
    """Number and size of examples for a group of dtypes.

    ``corners``: rows of the covering array. ``drawn``: examples that Hypothesis draws. ``stride``: laws other than the
    formula are checked on every stride-th example. ``slow_stride``: the stride of :data:`SLOW_LAWS`. ``work``: most
    multiply-adds of an example. ``slow``: run checks that are too slow for ``quick``. ``ensemble``: batch elements over
    which a filter averages errors.
    """

    corners: int
    drawn: int
    stride: int
    slow_stride: int
    work: float
    slow: bool = True
    ensemble: int = 512

    def due(self, law: str, index: int, position: int) -> bool:
        """Return whether the law at ``position`` is checked on example number ``index``."""
        if law == FORMULA:
            return True
        if law in SLOW_LAWS:
            return index % self.slow_stride == 0
        return (index + position) % self.stride == 0  # positions distribute the laws over the examples


@dataclass(frozen=True)
class Profile:
    """The efforts of a run: at float32, at float64, and at the 16-bit dtypes.

    At float64 examples are smaller: the oracle computes in long double, without BLAS. Dtypes other than float32 have
    fewer examples: a wrong index or shape shows at any dtype.
    """

    single: Effort
    double: Effort
    narrow: Effort

    def at(self, dtype: str) -> Effort:
        """The effort at a dtype; float32's for dtypes without their own."""
        return self.double if dtype == "float64" else self.narrow if dtype in NARROW else self.single


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(
        single=Effort(corners=12, drawn=2, stride=3, slow_stride=4, work=2.0**14, slow=False),
        double=Effort(corners=6, drawn=0, stride=3, slow_stride=3, work=2.0**12, slow=False, ensemble=256),
        narrow=Effort(corners=6, drawn=0, stride=4, slow_stride=4, work=2.0**14, slow=False),
    ),
    "full": Profile(
        single=Effort(corners=60, drawn=16, stride=2, slow_stride=4, work=2.0**19, ensemble=4096),
        double=Effort(corners=28, drawn=6, stride=2, slow_stride=5, work=2.0**16, ensemble=1024),
        narrow=Effort(corners=28, drawn=6, stride=3, slow_stride=4, work=2.0**19, ensemble=4096),
    ),
    "release": Profile(
        single=Effort(corners=400, drawn=600, stride=1, slow_stride=1, work=2.0**22, ensemble=8192),
        double=Effort(corners=400, drawn=600, stride=1, slow_stride=1, work=2.0**19, ensemble=2048),
        narrow=Effort(corners=400, drawn=600, stride=1, slow_stride=1, work=2.0**22, ensemble=8192),
    ),
}
