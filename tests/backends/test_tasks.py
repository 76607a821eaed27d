"""Tasks of a kernel: each is done once by some thread; a thread's own come first."""

from array import array

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="kernels need llvmlite")
from attnspec.backends.pytorch.kernels.llvm import threads
from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Integers, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import COUNTERS, LEADING, LINE, THREADS, Kernel, compiled


class Counting(Arguments):
    """Counts of every task, and its place in the order from both ends."""

    tasks: Size
    done: Integers
    order: Integers


@compiled
def kernel() -> Kernel[Counting]:
    k = Kernel("counting", Counting, 32)
    g = k.argument
    with k.tasks(g.tasks) as task:
        k.store_int(k.load_int(g.done, task) + 1, g.done, task)
        k.store_int(k.from_both_ends(task, g.tasks), g.order, task)
    return k


def counted(tasks: int) -> tuple[Tensor, Tensor, Counting]:
    done, order = torch.zeros(tasks, dtype=torch.int64), torch.empty(tasks, dtype=torch.int64)
    return done, order, Counting(tasks=tasks, done=done, order=order)


@pytest.mark.parametrize("of_python", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("tasks", [0, 1, 2, 5, 1000])
def test_every_task_is_done_once(tasks: int, count: int, of_python: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if of_python:
        monkeypatch.setattr(threads, "_team", lambda: None)
    done, order, arguments = counted(tasks)
    threads.run(kernel(), count, arguments)
    assert torch.equal(done, torch.ones_like(done))
    assert torch.equal(order.sort().values, torch.arange(tasks))


def test_the_order_of_both_ends_is_fair_to_every_part() -> None:
    _, order, arguments = counted(64)
    threads.run(kernel(), 1, arguments)
    assert order[:5].tolist() == [63, 0, 62, 1, 61]
    assert {int(part.sum()) for part in order.view(4, 16)} == {63 * 8}


def test_one_thread_alone_does_all_tasks() -> None:
    done, _, arguments = counted(10)
    counters = array("q", bytes(8 * LINE * 3))
    slots = array("q", bytes(8 * LEADING))
    slots.extend(arguments.to_slots())
    slots[THREADS], slots[COUNTERS] = 3, counters.buffer_info()[0]
    kernel().call(slots.buffer_info()[0])
    assert torch.equal(done, torch.ones_like(done))
    assert [counters[i * LINE] for i in range(3)] == [4, 4, 5]  # each is asked once more than it has tasks
