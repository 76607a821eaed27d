"""Perform trials that are named on the standard input, and say on the standard output which laws failed.

Hypothesis draws constants of all modules that are loaded and not installed. Here those are loaded that a worker of
``attnspec mutants`` has, the command among them, so that the examples are the same.
"""

import json
import sys

import attnspec.conformance.cli
import attnspec.conformance.running.trial_pool  # noqa: F401
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.running.trials import Task, perform
from attnspec.conformance.variants import VARIANTS

if __name__ == "__main__":
    found = []
    for name, profile, seed, every in json.load(sys.stdin):
        subject = MUTANTS[name] if name in MUTANTS else VARIANTS[name]
        found.append(sorted({f.law for f in perform(Task(subject, profile, seed, every=every)).failures}))
    json.dump(found, sys.stdout)
