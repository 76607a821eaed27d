"""The rate of fused multiply-adds: what a kernel for CPUs reaches at most, with all of its operands in registers."""

from collections.abc import Callable
from importlib.util import find_spec

import torch

CHAINS = 10
"""Sums that do not wait for one another: a processor begins two multiply-adds a cycle, and ends them four later."""

STEPS = 4096
"""Multiply-adds of each sum in a task."""


def least_of_a_term(hidden: int, features: int) -> float:
    """Multiply-adds that a term of additive attention takes at least, with its share in the sum of values.

    The tanh of a term is 1 - 2/(1 + EF) with the exponentials E of the query and F of the key, and three units share a
    division: three multiply-adds make 1 + EF, four make numerator and denominator, one adds the quotient.
    """
    return 8 / 3 + features / hidden


def limiting(device: str, hidden: int, features: int) -> tuple[str, float]:
    """The rate that limits additive attention, and what a term takes of it at least.

    It is one tanh where multiply-adds are not measured.
    """
    return ("multiply-adds", least_of_a_term(hidden, features)) if device == "cpu" and available() else ("tanh", 1.0)


def available() -> bool:
    """Whether kernels can be compiled."""
    return find_spec("llvmlite") is not None


def call(tasks: int) -> tuple[Callable[[], object], int]:
    """A call by all threads of PyTorch, each of which takes tasks until none is left; and its multiply-adds, in lanes.

    float32, in the widest registers.
    """
    from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals, Size
    from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
    from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
    from attnspec.backends.pytorch.kernels.llvm.threads import run
    from attnspec.backends.pytorch.kernels.llvm.values import Variable

    class Chains(Arguments):
        """Arguments of the kernel: two numbers, and where the sum of every task goes."""

        tasks: Size
        steps: Size
        factors: Reals
        sums: Reals

    @compiled
    def kernel() -> Kernel[Chains]:
        """So many sums, each multiplied by one number and increased by another in every step."""
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
