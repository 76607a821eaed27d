"""Check that masked keys with scores of −10⁹ get no weight. Options of ``@checks``: see ``Check``."""

from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample, wide
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.laws import masking as law

FILLS = (1e4, 1e6, 1e9)
"""Magnitudes of negative fills that kernels use for −∞ if the dtype holds them."""


@checks(law.NO_FINITE_FILL, once=True)
def no_finite_fill(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Give every query one key, with scores of both signs around each fill."""
    batch = (4,) if subject.limits.max_batch_dims else ()
    sampled = sample(subject, rng, batch, queries=16, keys=8, features=8, heads=2)
    shape, operation = mask_shape(sampled), subject.operation
    exponents, scale = operation.scores_scale_with, operation.part(ScoreEffect.SCALE)
    if not sampled.keys_count or 0 in shape or (not exponents and not subject.limits.has(scale)):
        return False
    one_key = sampled.with_mask(np.arange(shape[-1]) == rng.integers(shape[-1], size=(*shape[:-1], 1)))
    tried = False
    for fill in FILLS:
        # Larger scores fall below the fill in more rows; the dtype may hold only smaller ones.
        for factor in (4 * fill, 2 * fill, fill, fill / 2):
            larger = {path: factor**exponent * wide(one_key.array(path)) for path, exponent in exponents.items()}
            changes: dict[str, Any] = {path: subject.exact(x) for path, x in larger.items()} or {scale: factor}
            scaled = one_key.replaced(changes)
            if fill < subject.precision.largest and _stays_finite(subject, scaled):
                subject.follows_formula(scaled, f"with one attendable key and scores of about {factor:g},")
                tried = True
                break
    return tried


def _stays_finite(subject: Subject, arguments: Arguments) -> bool:
    """Return whether inputs are finite, and no correct kernel's exponential overflows.

    Kernels compute exp(s − max) as 2^(s·log₂e − max·log₂e). If they fuse it, only the second product is rounded, and
    2 to the power of its rounding must stay below float32's largest number, about 2¹²⁸. 1.5 is a little above log₂e.
    """
    if not all(np.isfinite(wide(x)).all() for _, x in arguments.floats) or not subject.in_domain(arguments):
        return False
    return 1.5 * subject.precision.accumulation * subject.oracle(arguments).peak <= 126
