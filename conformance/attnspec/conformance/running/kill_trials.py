"""The trials behind the page of kills, and what became of them, as the data of the page."""

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.mutants.one_weight import ONE_WEIGHT, OneWeight
from attnspec.conformance.reporting.kill_report import Row
from attnspec.conformance.running.kept_trials import digest
from attnspec.conformance.running.trial_run import SECONDS, TrialRun
from attnspec.conformance.running.trials import Key, Outcome, Task
from attnspec.conformance.variants import VARIANTS, Variant

SCHEMA = "attnspec-kills/1"

LIMIT = SECONDS["full"]

OF_AVX512 = {"SkylakeX", "Cooperlake", "SapphireRapids"}
"""Kernels of OpenBLAS whose results have the same last bits. Processors that it does not know get others."""


@dataclass(frozen=True)
class Extent:
    """What is judged: at how many seeds of each profile, and by how many checks of honest variants."""

    quick: int = 20
    full: int = 3
    checks: int = 1_000_000
    mutants: Mapping[str, Mutant] = field(default_factory=lambda: MUTANTS)
    variants: Mapping[str, Variant] = field(default_factory=lambda: VARIANTS)
    weights: Sequence[OneWeight] = tuple(ONE_WEIGHT)

    @property
    def seeds(self) -> dict[str, int]:
        """At how many seeds of each profile mutants are judged."""
        return {"quick": self.quick, "full": self.full}


def matrix_tasks(mutants: Iterable[Mutant]) -> list[Task]:
    """Every mutant by every law, once."""
    return [Task(m, "quick", 0, every=True) for m in mutants]


def seed_tasks(mutants: Iterable[Mutant], seeds: Mapping[str, int]) -> list[Task]:
    """Mutants at so many seeds of each profile, up to the first violation."""
    return [Task(m, profile, seed) for m in mutants for profile, count in seeds.items() for seed in range(count)]


def kill_data(extent: Extent, run: TrialRun) -> dict[str, Any]:
    """Run every trial that is not kept, and say what became of all; ``TimeUp`` where the time does not suffice."""
    mutants, seeds = extent.mutants.values(), extent.seeds
    found = run.outcomes(matrix_tasks(mutants), LIMIT, "mutants by every law")
    found |= run.outcomes(seed_tasks(mutants, seeds), LIMIT, "trials of mutants at all seeds")
    found |= run.outcomes(seed_tasks(extent.weights, {"full": extent.full}), LIMIT, "errors of one weight")
    tried = [v for v in extent.variants.values() if not v.lacking()]
    count, outcomes = _variant_outcomes(tried, extent.checks, run)
    return {
        "schema": SCHEMA,
        "digest": digest(),
        "made_with": made_with(),
        "seeds": seeds,
        "variant_seeds": count,
        "mutants": {m.name: _mutant_data(m, found, seeds) for m in mutants},
        "variants": {v.name: _variant_data(v, outcomes, count) for v in tried},
        "not_tried": {v.name: v.lacking() for v in extent.variants.values() if v.lacking()},
        "one_weight": _weight_data(extent.weights, found, extent.full),
    }


def _variant_outcomes(variants: Sequence[Variant], checks: int, run: TrialRun) -> tuple[int, dict[Key, Outcome]]:
    """At how many seeds variants were judged, until there were enough checks, and what became of them."""
    found: dict[Key, Outcome] = {}
    seeds, wanted = 0, 1 if variants and checks else 0
    while seeds < wanted:
        tasks = [Task(v, "quick", seed) for seed in range(seeds, wanted) for v in variants]
        found |= run.outcomes(tasks, LIMIT, f"trials of honest variants up to seed {wanted - 1}")
        done, seeds = sum(o.evaluations for o in found.values()), wanted
        if not done:
            break
        wanted = math.ceil(seeds * checks / done)
    return seeds, found


def _mutant_data(m: Mutant, found: Mapping[Key, Outcome], seeds: Mapping[str, int]) -> dict[str, Any]:
    """The laws that kill a mutant, and the seeds of each profile at which it survives."""
    missed = {
        profile: [seed for seed in range(count) if not found[m.name, profile, seed, False].convicts]
        for profile, count in seeds.items()
    }
    return {"laws": sorted(Row(m, [found[m.name, "quick", 0, True]]).laws), **missed}


def _variant_data(v: Variant, found: Mapping[Key, Outcome], seeds: int) -> dict[str, Any]:
    row = Row(v, [found[v.name, "quick", seed, False] for seed in range(seeds)])
    return {"checks": row.evaluations, "harmed": row.kills, "laws": row.laws, "largest": round(row.largest, 3)}


def _weight_data(weights: Sequence[OneWeight], found: Mapping[Key, Outcome], seeds: int) -> dict[str, float | None]:
    """The smallest error by dtype such that it and every greater one are convicted at all seeds; None if none is."""
    smallest: dict[str, float | None] = {}
    for dtype in dict.fromkeys(w.dtype for w in weights):
        smallest[dtype] = None
        for w in sorted((w for w in weights if w.dtype == dtype), key=lambda w: w.power):
            if not all(found[w.name, "full", seed, False].convicts for seed in range(seeds)):
                break
            smallest[dtype] = w.error
    return smallest


def made_with() -> dict[str, str]:
    """What the last bits of results and the drawn examples depend on, beside the suite: processor and packages."""
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    fused = {"X86_V3", "FMA3"} & {*simd["baseline"], *simd["found"]}
    processor = f"{platform.machine()} with fused multiply-adds" if fused else platform.machine()
    if {library.get("architecture") for library in threadpool_info()} & OF_AVX512:
        processor += ", in OpenBLAS those of AVX-512"
    return {"processor": processor, "numpy": version("numpy"), "hypothesis": version("hypothesis")}
