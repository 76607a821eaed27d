"""Perform trials that are named on the standard input, and say on the standard output what became of them.

Hypothesis draws constants of all modules that are loaded and not installed. Here those are loaded that a worker of
``attnspec mutants`` has, the command among them, so that the examples are the same.
"""

import json
import sys

import attnspec.conformance.cli
import attnspec.conformance.running.trial_pool  # noqa: F401
from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.mutants.one_weight import ONE_WEIGHT
from attnspec.conformance.running.trials import Task, perform
from attnspec.conformance.variants import VARIANTS, Variant

SUBJECTS: dict[str, Mutant | Variant] = {**MUTANTS, **VARIANTS, **{w.name: w for w in ONE_WEIGHT}}

if __name__ == "__main__":
    found = []
    for name, profile, seed, every in json.load(sys.stdin):
        outcome = perform(Task(SUBJECTS[name], profile, seed, every=every))
        laws = sorted({f.law for f in outcome.failures})
        found.append({"laws": laws, "checks": outcome.evaluations, "largest": outcome.largest})
    json.dump(found, sys.stdout)
