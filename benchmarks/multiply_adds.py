"""Rate of fused multiply-adds with all operands in registers, the upper limit of CPU kernels."""

from collections.abc import Callable
from importlib.util import find_spec

import torch

CHAINS = 10
"""Independent sums: a processor starts two multiply-adds per cycle, which take four cycles, so that 8 keep it busy."""

STEPS = 4096
"""Multiply-adds per sum and task."""


def least_of_a_term(hidden: int, features: int) -> float:
    """Return the fewest multiply-adds per term of additive attention, sum of values included.

    The tanh of a term is 1 - 2/(1 + EF) with exponentials E of the query and F of the key. Three units share a
    division: three multiply-adds make 1 + EF, four make numerator and denominator, one adds the quotient.
    """
    return 8 / 3 + features / hidden


def limiting(device: str, hidden: int, features: int) -> tuple[str, float]:
    """Return the rate that limits additive attention, and its fewest units per term.

    Where multiply-adds are not measured, the rate is that of tanh, one per term.
    """
    return ("multiply-adds", least_of_a_term(hidden, features)) if device == "cpu" and available() else ("tanh", 1.0)


def available() -> bool:
    """Return whether kernels can be compiled: llvmlite is installed."""
    return find_spec("llvmlite") is not None


def call(tasks: int) -> tuple[Callable[[], object], int]:
    """Return a call that runs ``tasks`` on all threads, and its multiply-adds, counted by lane.

    It uses float32 in the widest registers.
    """
    from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals, Size
    from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
    from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
    from attnspec.backends.pytorch.kernels.llvm.threads import run
    from attnspec.backends.pytorch.kernels.llvm.values import Variable

    class Chains(Arguments):
        """Arguments of the kernel: numbers of tasks and steps, two factors, sums of tasks."""

        tasks: Size
        steps: Size
        factors: Reals
        sums: Reals

    @compiled
    def kernel() -> Kernel[Chains]:
        """Compile a kernel of ``CHAINS`` sums, with one multiply-add for each in every step."""
        k = Kernel("multiply_adds", Chains, 32)
        g = k.argument
        with k.tasks(g.tasks) as task:
            factor, addend = k.broadcast(g.factors, 0), k.broadcast(g.factors, 1)
            sums = [Variable(k, k.full(float(i))) for i in range(CHAINS)]
            with k.loop(0, g.steps):
                for total in sums:
                    total.set(k.fma(total.get(), factor, addend))
            total_of_sums = sums[0].get()
            for total in sums[1:]:
                total_of_sums = total_of_sums + total.get()
            k.store_first(k.sum(total_of_sums), g.sums, task)
        return k

    chains, lanes = kernel(), register_bytes() // 4
    factors, sums = torch.tensor([0.5, 1.0]), torch.empty(tasks)

    def compute() -> object:
        run(chains, torch.get_num_threads(), Chains(tasks=tasks, steps=STEPS, factors=factors, sums=sums))
        return sums

    return compute, tasks * STEPS * CHAINS * lanes
