"""Suites, one per file: functions from settings to cases."""

from collections.abc import Callable, Iterator, Mapping

from benchmarks.case import Case
from benchmarks.suites import (
    additive,
    decoders,
    groups,
    language_models,
    layers,
    multihead,
    never_slower,
    recurrent,
    scaled_dot_product,
    scorers,
    sharded,
    step,
    vision,
)
from benchmarks.suites.settings import Settings

SUITES: Mapping[str, Callable[[Settings], Iterator[Case]]] = {
    "additive": additive.cases,
    "step": step.cases,
    "sdpa": scaled_dot_product.cases,
    groups.SUITE: groups.cases,
    "multihead": multihead.cases,
    "layers": layers.cases,
    "recurrent": recurrent.cases,
    "decoders": decoders.cases,
    "vision": vision.cases,
    "scorers": scorers.cases,
    language_models.SUITE: language_models.cases,
    sharded.SUITE: sharded.cases,
    never_slower.SUITE: never_slower.cases,
}
"""Suites by name. The name is a constant ``SUITE`` where several functions of a suite make cases."""

__all__ = ["SUITES", "Settings"]
