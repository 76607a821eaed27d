"""Check of the finite numbers that kernels store for masked scores."""

from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample, wide
from attnspec.spec.contract.axes import Part
from attnspec.spec.laws import masking as law

FILLS = (1e4, 1e6, 1e9)
"""Numbers that kernels store instead of −infinity, where the dtype holds them."""


@checks(law.FINITE_FILL, once=True)
def finite_fill(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Give every query one key, and scores of both signs around each fill."""
    batch = (4,) if subject.limits.max_batch_dims else ()
    base = sample(subject, rng, batch, queries=16, keys=8, features=8, heads=2)
    shape, exponents, scale = mask_shape(base), subject.operation.sharpened, subject.operation.part(Part.SCALE)
    if not base.keys_count or 0 in shape or (not exponents and not subject.limits.has(scale)):
        return False
    one = base.with_mask(np.arange(shape[-1]) == rng.integers(shape[-1], size=(*shape[:-1], 1)))
    tried = False
    for fill in FILLS:
        for factor in (4 * fill, 2 * fill, fill, fill / 2):
            larger = {path: factor**exponent * wide(one.array(path)) for path, exponent in exponents.items()}
            exact: dict[str, Any] = {path: subject.exact(x) for path, x in larger.items()} or {scale: factor}
            given = one.replaced(exact)
            if fill < subject.precision.largest and _judgeable(subject, given):
                subject.follows_formula(given, f"with one attendable key and scores of some {factor:g},")
                tried = True
                break
    return tried


def _judgeable(subject: Subject, given: Arguments) -> bool:
    """Return whether nothing overflows, nor does 2 to the rounding of max·log₂e.

    Kernels that fuse s·log₂e − max·log₂e round the second product alone.
    """
    if not all(np.isfinite(wide(x)).all() for _, x in given.floats) or not subject.in_domain(given):
        return False
    return 1.5 * subject.precision.accumulation * subject.oracle(given).peak <= 126
