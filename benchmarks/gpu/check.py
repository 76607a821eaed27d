"""Checks of a stage, their outcomes, and the run of all of them on one device."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from attnspec.backends.pytorch.runtime.optional import HAS_TRITON

OK, FAIL, NOT_TRIED, NOT_REACHED = "ok", "FAIL", "not tried", "not reached"
STATUSES = OK, FAIL, NOT_TRIED, NOT_REACHED


@dataclass(frozen=True)
class Outcome:
    """Outcome of a check.

    ``used`` is the used share of what is allowed: error over budget, or smallest allowed speedup over the measured one.
    """

    status: str
    used: float | None = None
    milliseconds: float | None = None
    remark: str = ""

    def line(self, name: str) -> str:
        """Text such as ``ok   additive scores, float32  0.31  0.4 ms``."""
        if self.status in (NOT_TRIED, NOT_REACHED):
            return f"{self.status}: {self.remark}: {name}"
        used = "-" if self.used is None else f"{self.used:.3g}"
        duration = "-" if self.milliseconds is None else f"{self.milliseconds:.3g} ms"
        return f"{self.status:4} {name}  {used}  {duration}  {self.remark}".rstrip()


def outcome(passed: bool, used: float | None = None, milliseconds: float | None = None, remark: str = "") -> Outcome:
    """Return the outcome of a check that was tried to its end."""
    return Outcome(OK if passed else FAIL, used, milliseconds, remark)


@dataclass(frozen=True)
class Check:
    """A check by name; a dry run does not try those that need a GPU."""

    name: str
    run: Callable[[], Outcome]
    needs_gpu: bool = False


@dataclass(frozen=True)
class Context:
    """Device of a stage and its time limit in seconds; a ``dry`` run has small sizes and no GPU."""

    device: str
    dry: bool = False
    seconds: float = 530.0

    def size(self, real: int, dry: int) -> int:
        """Return the size of a run."""
        return dry if self.dry else real

    def synchronize(self) -> None:
        """Wait for the device, which raises errors of earlier kernels."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def answers(self) -> bool:
        """Return whether the device still computes; after an illegal access every later call raises."""
        try:
            return float(torch.ones(2, device=self.device).sum()) == 2.0
        except RuntimeError:
            return False

    def milliseconds(self, call: Callable[[], object]) -> float:
        """Time one call by the clock, from an idle device to an idle device."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return 1e3 * (time.perf_counter() - start)

    def lacks_memory(self, gibibytes: float) -> Outcome | None:
        """Return an outcome if the device has less free memory, else None."""
        if self.dry or torch.cuda.mem_get_info()[0] >= gibibytes * 2**30:
            return None
        return Outcome(NOT_TRIED, remark=f"needs {gibibytes:g} GiB of free memory on the device")


def _errors() -> tuple[type[Exception], ...]:
    """Errors of a kernel or its compiler; any other error ends the stage."""
    errors: tuple[type[Exception], ...] = RuntimeError, ValueError, TypeError, ImportError, AssertionError
    if HAS_TRITON:
        from triton.compiler.errors import CompilationError
        from triton.runtime.errors import OutOfResources

        errors = *errors, CompilationError, OutOfResources
    return errors


ERRORS = _errors()


def outcomes(checks: Sequence[Check], context: Context) -> Iterator[Outcome]:
    """Run the checks in order; end after a failure after which the device no longer answers."""
    for check in checks:
        result = _outcome_of(check, context)
        if result.status == FAIL and not context.answers():
            yield replace(result, remark=f"{result.remark}; the device answers no later call of this process")
            return
        yield result


def _outcome_of(check: Check, context: Context) -> Outcome:
    if context.dry and check.needs_gpu:
        return Outcome(NOT_TRIED, remark="needs a GPU")
    try:
        result = check.run()
        context.synchronize()
    except ERRORS as error:
        return outcome(False, remark=" ".join(f"{type(error).__name__}: {error}".split())[:300])
    return result
