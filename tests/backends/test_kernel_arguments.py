"""The arguments of a compiled kernel: one declaration for its builder and its caller."""

from array import array
from collections.abc import Iterator

import numpy as np
import pytest
import torch

pytest.importorskip("llvmlite", reason="kernels need llvmlite")
from attnspec.backends.pytorch.kernels.dot.tiled_arguments import Operands, backward_scratch, forward_scratch
from attnspec.backends.pytorch.kernels.dot.tiled_backward import Backward, Scratch
from attnspec.backends.pytorch.kernels.dot.tiled_forward import Forward
from attnspec.backends.pytorch.kernels.llvm import arguments, threads
from attnspec.backends.pytorch.kernels.llvm.arguments import (
    Arguments,
    Flag,
    Integers,
    OptionalBooleans,
    Real,
    Reals,
    Result,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import IS_X86, register_bytes
from attnspec.backends.pytorch.kernels.llvm.threads import run


class Inner(Arguments):
    """A part that two kernels may share."""

    factor: Real
    index: Integers


class Outer(Arguments):
    """One argument of every kind."""

    count: Size
    doubled: Flag
    inner: Inner
    mask: OptionalBooleans
    scratch: arguments.Scratch
    x: Reals
    done: Result


@compiled
def picking(bits: int) -> Kernel[Outer]:
    """x[i] = factor, twice that if `doubled`, for every marked i of the index."""
    k = Kernel("picking", Outer, bits)
    g = k.argument
    own = g.scratch.of(k.thread)
    with k.loop(0, g.count) as i:
        place = k.load_int(g.inner.index, i)
        chosen = k.select(g.mask.is_null(), k.integer(1), k.integer(0))
        with k.when(g.mask.is_null()) as otherwise:
            k.store_first(k.full(1.0), own, 0)
        with otherwise():
            k.store_first(k.full(0.0), own, 0)
            with k.when(k.load_byte(g.mask, place).is_nonzero()):
                k.store_first(k.full(1.0), own, 0)
        with k.when(k.any(k.broadcast(own, 0).compare("!=", 0.0))):
            value = g.inner.factor.load()
            with k.when(g.doubled.is_nonzero()) as otherwise:
                k.store_first(value * 2.0, g.x, place)
            with otherwise():
                k.store_first(value, g.x + place, 0)
        k.store_int(chosen, g.done + 1, i * 0 - 1)
    return k


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kernel_reads_what_the_caller_gives(dtype: torch.dtype) -> None:
    x = torch.zeros(5, dtype=dtype)
    index, done = torch.tensor([3, 1, 4]), array("q", [7])
    inner = Inner(factor=1.5, index=index)
    kernel = picking(8 * x.element_size())
    assert picking(8 * x.element_size()) is kernel
    scratch = x.new_empty(1, 1)
    run(kernel, 1, Outer(count=3, doubled=True, inner=inner, mask=None, scratch=scratch, x=x, done=done))
    assert x.tolist() == [0, 3, 0, 3, 3]
    assert done[0] == 1
    mask = torch.tensor([True, True, True, False, False])
    run(kernel, 1, Outer(count=2, doubled=False, inner=inner, mask=mask, scratch=scratch, x=x, done=done))
    assert x.tolist() == [0, 1.5, 0, 3, 3]
    assert done[0] == 0


def test_slots_lie_in_the_order_of_the_fields() -> None:
    x = torch.zeros(2, 3)
    inner = Inner(factor=1.0, index=x)
    slots = Outer(count=9, doubled=True, inner=inner, mask=None, scratch=x, x=x, done=array("q", [0])).to_slots()
    assert len(slots) == Outer.slots == 9
    assert slots[Outer.count] == 9
    assert slots[Outer.doubled] == 1
    assert slots[Outer.inner + Inner.factor] == 0x3FF0 << 48  # the bits of 1.0
    assert slots[Outer.inner + Inner.index] == slots[Outer.x] == x.data_ptr()
    assert slots[Outer.mask] == 0
    assert slots[Outer.scratch : Outer.scratch + 2] == [x.data_ptr(), 3]


def test_a_derived_class_appends_its_slots() -> None:
    class More(Inner):
        count: Size

    x = torch.zeros(1)
    assert Inner(factor=1.0, index=x).to_slots() == More(factor=1.0, index=x, count=5).to_slots()[: Inner.slots]
    assert More(factor=1.0, index=x, count=5).to_slots()[More.count] == 5
    assert More.slots == Inner.slots + 1


def test_an_argument_that_is_missing_or_misspelt_is_refused() -> None:
    with pytest.raises(TypeError, match="Inner: expected factor, index; got factor"):
        Inner(factor=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="indices"):
        Inner(factor=1.0, index=torch.zeros(1), indices=None)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Inner(factor=1.0, index=None).to_slots()  # type: ignore[arg-type]


def test_both_kernels_of_attention_share_their_operands() -> None:
    assert Forward.operands == Backward.operands
    assert Forward.slots == Forward.operands + Operands.slots + 3


def test_scratch_memory_has_a_size_for_every_part() -> None:
    assert len(forward_scratch(32, 64, 96)) == 4
    assert len(backward_scratch(32, 64, 96)) == len(Scratch._fields)


class Multiplication(Arguments):
    count: Size
    x: Reals
    y: Reals


@compiled
def multiplying(bits: int) -> Kernel[Multiplication]:
    """The first lane of every register of x is multiplied by that of y; each register is a task."""
    k = Kernel("multiplying", Multiplication, bits)
    g = k.argument
    with k.tasks(g.count) as i:
        k.store_first(k.broadcast(g.x, i * k.lanes) * k.broadcast(g.y, i * k.lanes), g.x, i * k.lanes)
    return k


TASKS = 500


@pytest.fixture(params=[False, True], ids=["subnormal", "flushed"])
def flushed(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The calling thread keeps subnormal numbers, or flushes them."""
    torch.set_flush_denormal(request.param)
    yield request.param
    torch.set_flush_denormal(False)


@pytest.mark.skipif(not IS_X86, reason="kernels flush subnormal numbers where they are slow, which is on x86")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("team", [True, False], ids=["OpenMP", "Python"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("tasks", [0, TASKS])
def test_kernels_flush_subnormals_and_leave_the_caller_as_it_was(
    dtype: torch.dtype, team: bool, count: int, tasks: int, flushed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not team:
        monkeypatch.setattr(threads, "_team", lambda: None)
    smallest = torch.finfo(dtype).smallest_normal
    number = np.float32 if dtype is torch.float32 else np.float64
    # An operand is read as it is, unless the caller reads it as 0.
    of_half = 0.0 if flushed else smallest
    for x, y, product in ((smallest, 0.5, 0.0), (smallest / 2, 2.0, of_half), (smallest, 2.0, 2 * smallest)):
        # NumPy makes the numbers: PyTorch's fill would flush them
        left, right = (torch.from_numpy(np.full((TASKS, 16), number(value))) for value in (x, y))
        run(multiplying(number().nbytes * 8), count, Multiplication(count=tasks, x=left, y=right))
        lanes = register_bytes() // left.element_size()
        assert left.flatten()[: tasks * lanes : lanes].tolist() == [product] * tasks
        assert (number(smallest) * number(0.5) == 0) == flushed
