"""Rate of fused multiply-adds with all operands in registers, the upper limit of CPU kernels."""

from collections.abc import Callable
from importlib.util import find_spec

import torch

CHAINS = 10
"""Independent sums; a processor starts two multiply-adds per cycle and finishes them four cycles later."""

STEPS = 4096
"""Multiply-adds per sum and task."""


def least_of_a_term(hidden: int, features: int) -> float:
    """Smallest number of multiply-adds per term of additive attention, including its share in the sum of values.

    The tanh of a term is 1 - 2/(1 + EF) with exponentials E of the query and F of the key. Three units share a
    division: three multiply-adds make 1 + EF, four make numerator and denominator, one adds the quotient.
    """
    return 8 / 3 + features / hidden


def limiting(device: str, hidden: int, features: int) -> tuple[str, float]:
    """Return the rate that limits additive attention, and its smallest use per term.

    Where multiply-adds are not measured, it is one tanh per term.
    """
    return ("multiply-adds", least_of_a_term(hidden, features)) if device == "cpu" and available() else ("tanh", 1.0)


def available() -> bool:
    """True if kernels can be compiled: llvmlite is installed."""
    return find_spec("llvmlite") is not None


def call(tasks: int) -> tuple[Callable[[], object], int]:
    """Return a call that runs ``tasks`` on all threads of PyTorch, and its number of multiply-adds, counted in lanes.

    It uses float32 in the widest registers.
    """
    from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals, Size
    from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
    from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
    from attnspec.backends.pytorch.kernels.llvm.threads import run
    from attnspec.backends.pytorch.kernels.llvm.values import Variable

    class Chains(Arguments):
        """Arguments of the kernel: numbers of tasks and steps, two factors, and the output for each task's sum."""

        tasks: Size
        steps: Size
        factors: Reals
        sums: Reals

    @compiled
    def kernel() -> Kernel[Chains]:
        """Compile a kernel with ``CHAINS`` sums; each step multiplies each by one number and adds another."""
        k = Kernel("multiply_adds", Chains, 32)
        g = k.argument
        with k.tasks(g.tasks) as task:
            by, more = k.broadcast(g.factors, 0), k.broadcast(g.factors, 1)
            sums = [Variable(k, k.full(float(i))) for i in range(CHAINS)]
            with k.loop(0, g.steps):
                for total in sums:
                    total.set(k.fma(total.get(), by, more))
            whole = sums[0].get()
            for total in sums[1:]:
                whole = whole + total.get()
            k.store_first(k.sum(whole), g.sums, task)
        return k

    made, lanes = kernel(), register_bytes() // 4
    factors, sums = torch.tensor([0.5, 1.0]), torch.empty(tasks)

    def compute() -> object:
        run(made, torch.get_num_threads(), Chains(tasks=tasks, steps=STEPS, factors=factors, sums=sums))
        return sums

    return compute, tasks * STEPS * CHAINS * lanes
