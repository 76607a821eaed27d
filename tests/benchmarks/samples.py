"""A toy case, a measurement and a run, for the tests of the benchmarks."""

from dataclasses import replace

import torch

from benchmarks import ceilings
from benchmarks.case import Case, Subject, forward
from benchmarks.results import Measurement, Run


def case(*subjects: Subject) -> Case:
    x = torch.arange(8.0)
    return Case(
        "toy", "double", "forward", sizes={"n": 8}, size=8, work=8.0, unit="terms", ceiling="tanh", subjects=subjects,
        formula=lambda dtype: (2 * x.to(dtype),), comparable=lambda outputs: outputs, baseline="right",
    )  # fmt: skip


def doubled(factor: float) -> Subject:
    x = torch.arange(8.0)
    return Subject("right" if factor == 2 else "wrong", lambda: forward(lambda y: factor * y, (x,)))


def measurement(subject: str, seconds: float | None, **more: object) -> Measurement:
    template = Measurement(
        "additive", "additive attention", "forward", sizes={"n": 512}, size=512, threads=1, subject=subject,
        baseline="eager", work=1e6, unit="terms", ceiling="tanh", seconds=seconds,
        quartiles=None if seconds is None else (seconds, seconds), rounds=5,
    )  # fmt: skip
    return replace(template, **more)  # type: ignore[arg-type]  # fields by name


def run(*measurements: Measurement) -> Run:
    machine = {"device": "a machine", "cores": 4, "instructions": "AVX", "system": "s", "python": "3", "versions": {},
               "time": "now"}  # fmt: skip
    return Run(machine, "cpu", {"1": dict.fromkeys(ceilings.RATES, 1e9)}, measurements)
