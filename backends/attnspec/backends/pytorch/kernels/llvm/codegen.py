"""Vector kernels written in Python and compiled by LLVM in tenths of a second (llvmlite).

No compiler needs to be installed. `Kernel` builds one function of LLVM IR. Its instructions are emitted by operators of
`values`, by the methods of `Arithmetic` and `Memory`, and by the control flow here. The function takes the address of
a buffer of 64-bit slots (``LEADING`` of its own, then the `Arguments`), and any number of threads may run it on the
same buffer; ctypes releases the interpreter lock for the call.

Vectors are explicit because tiles of registers share each load among rows, which LLVM's loop vectoriser does not do.
The kernels of a forward and a backward pass compile in one to two seconds altogether; `code_cache` stores them on disk
for the next process.

On x86 kernels write subnormal results as 0, as the contract of `attnspec` allows: on many processors one subnormal
number makes an instruction a hundred times slower, also in matrix products that later read it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from threading import RLock
from typing import Any, Generic, ParamSpec, cast

import llvmlite.ir as ir
from typing_extensions import TypeVar

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments
from attnspec.backends.pytorch.kernels.llvm.code_cache import Code, cached_or_compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import IS_X86, Compiled, object_file
from attnspec.backends.pytorch.kernels.llvm.memory import Memory
from attnspec.backends.pytorch.kernels.llvm.values import INT, INT32, POINTER, IntPointer, Pointer, Value, Variable

LEADING = 16
"""Slots before the arguments, two cache lines; all are 0 if one thread runs the kernel."""

TASKS, THREADS, NUMBERING, COUNTERS, ARRIVALS = 0, 1, 2, 3, 8
"""Numbers of leading slots. ``TASKS`` counts the tasks begun if one thread runs the kernel. For several, ``THREADS`` is
their number, ``NUMBERING`` the address of the function that numbers them (or 0), ``COUNTERS`` the address of a task
counter per thread, each on its own cache line. ``ARRIVALS``, on the second line, counts the threads that arrived."""

LINE = 8
"""Slots per cache line."""

FLUSH_TO_ZERO = 0x8000
"""The bit of x86's register MXCSR that writes subnormal results as 0.

Subnormal operands are read unchanged: zeroing an input is no rounding error, and a large scale may make it count.
"""


def buffer_slots(*slots: int) -> tuple[int, ...]:
    """Return the slots in the buffer of slots that count from the first argument."""
    return tuple(LEADING + slot for slot in slots)


A = TypeVar("A", bound=Arguments)
A_co = TypeVar("A_co", bound=Arguments, covariant=True, default=Arguments)
P = ParamSpec("P")


class Kernel(Memory, Generic[A_co]):
    """Builder of one function `name(buffer)`. A class declares its arguments, which are read as attributes."""

    def __init__(self, name: str, arguments: type[A_co], bits: int) -> None:
        super().__init__(name, bits)
        self._restored = self._flush_subnormals()
        self._buffer = IntPointer(Value(self, self.function.args[0]))
        self.thread = self._thread_number()
        self.argument = arguments.read(self, self._buffer, LEADING)
        body = self.function.append_basic_block()
        self.builder.branch(body)
        self.builder.position_at_end(body)

    def _flush_subnormals(self) -> Any:
        """Set this thread's MXCSR, and return the cell that holds its former content.

        Other architectures keep subnormal numbers: AArch64's processors compute with them at full speed.
        """
        if not IS_X86:
            return None
        b = self.builder
        former, flushing = b.alloca(INT32), b.alloca(INT32)
        self._move_mxcsr("st", former)
        b.store(b.or_(b.load(former, typ=INT32), INT32(FLUSH_TO_ZERO)), flushing)
        self._move_mxcsr("ld", flushing)
        # in a block of its own: loads of the body must not be scheduled above
        body = self.function.append_basic_block()
        b.branch(body)
        b.position_at_end(body)
        return former

    def _move_mxcsr(self, operation: str, cell: Any) -> None:
        self.intrinsic(f"llvm.x86.sse.{operation}mxcsr", ir.FunctionType(ir.VoidType(), [POINTER]), [cell])

    def _next_number(self, counter: IntPointer) -> Value:
        """Increment a counter atomically; return its former value, which no other thread gets."""
        return Value(self, self.builder.atomic_rmw("add", counter.at(0), INT(1), "monotonic"))

    def _thread_number(self) -> Value:
        """Number of this thread: in an OpenMP team the same for every kernel, elsewhere by arrival."""
        b, number = self.builder, Variable(self, self.integer(0))
        function = self.load_int(self._buffer, NUMBERING)
        with self.when(function.is_nonzero()) as otherwise:
            signature = ir.FunctionType(INT32, [])
            in_team = b.call(b.inttoptr(function.ssa, signature.as_pointer()), [])
            number.set(Value(self, b.zext(in_team, INT)))
        with otherwise():
            number.set(self._next_number(self._buffer + ARRIVALS))
        return number.get()

    @contextmanager
    def loop(self, start: "Value | int", stop: Value, step: "Value | int" = 1) -> Iterator[Value]:
        """Run the body for start, start + step, ... below stop."""
        b = self.builder
        counter = Variable(self, self.constant(start, stop))
        test, body, end = (self.function.append_basic_block() for _ in range(3))
        b.branch(test)
        b.position_at_end(test)
        index = counter.get()
        b.cbranch(index.compare("<", stop).ssa, body, end)
        b.position_at_end(body)
        yield index
        counter.set(index + step)
        b.branch(test)
        b.position_at_end(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Run the body if the condition holds, else the body of ``with otherwise():`` right below."""
        before = self.builder.basic_block
        with self.builder.if_then(condition.ssa) as end:
            yield lambda: self._otherwise(before.terminator, end)

    @contextmanager
    def _otherwise(self, branch: Any, end: Any) -> Iterator[None]:
        """Send the branch to this body if the condition is false."""
        body = self.function.append_basic_block()
        branch.operands[2] = body
        self.builder.position_at_end(body)
        yield
        self.builder.branch(end)
        self.builder.position_at_end(end)

    @contextmanager
    def subroutine(self, name: str, count: int) -> Iterator[list[Value]]:
        """Make the body a function of ``count`` integers, for `call`: code used twice is compiled once."""
        outside = self.function, self.builder
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [INT] * count), name)
        self.function.linkage = "internal"
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        body = self.function.append_basic_block()
        self.builder.branch(body)
        self.builder.position_at_end(body)
        yield [Value(self, argument) for argument in self.function.args]
        self.builder.ret_void()
        self.function, self.builder = outside

    def call(self, name: str, *arguments: Value | Pointer) -> None:
        """Call a subroutine."""
        values = [x.address.ssa if isinstance(x, Pointer) else x.ssa for x in arguments]
        self.builder.call(self.module.globals[name], values)

    @contextmanager
    def tasks(self, count: Value) -> Iterator[Value]:
        """Loop over tasks 0..count-1; each goes to one of the threads that run the kernel.

        Every thread begins with its own range of tasks, the same in all kernels: data that it wrote in one kernel is
        still in its core's cache when the next reads it. Then it takes tasks from the ranges of other threads.
        """
        b = self.builder
        team_size = self.load_int(self._buffer, THREADS)
        alone = team_size.is_zero()
        threads = self.select(alone, self.integer(1), team_size)
        counters = self.select(alone, (self._buffer + TASKS).address, self.load_int(self._buffer, COUNTERS))
        with self.loop(0, threads) as others:
            owner = (self.thread + others) % threads
            first, stop = owner * count // threads, (owner + 1) * count // threads
            counter = IntPointer(counters) + owner * LINE
            test, body, end = (self.function.append_basic_block() for _ in range(3))
            b.branch(test)
            b.position_at_end(test)
            task = first + self._next_number(counter)
            b.cbranch(task.compare("<", stop).ssa, body, end)
            b.position_at_end(body)
            yield task
            b.branch(test)
            b.position_at_end(end)

    def from_both_ends(self, position: Value, count: Value) -> Value:
        """Number at a position of the order last, first, last but one, second, ...

        Later tasks take longer under a causal mask; in this order, equal ranges of tasks take equally long.
        """
        half = position // 2
        return self.select((position % 2).is_zero(), count - half - 1, half)

    def code(self) -> Code:
        """Finish the function, whose only exit is here, and return its machine code."""
        if IS_X86:
            self._move_mxcsr("ld", self._restored)
        self.builder.ret_void()
        return Code(self.name, object_file(str(self.module)))


_compiling = RLock()


def _after_fork() -> None:
    global _compiling
    _compiling = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def compiled(build: Callable[P, Kernel[A]]) -> Callable[P, Compiled[A]]:
    """Decorate a builder of kernels to return machine code, cached or compiled at first use.

    Threads that need a kernel at the same time share one: its code is freed as soon as nothing refers to it.
    """

    def compile_kernel(*arguments: P.args, **options: P.kwargs) -> Compiled[A]:
        parameters = arguments, sorted(options.items())
        return Compiled(*cached_or_compiled(build, parameters, lambda: build(*arguments, **options).code()))

    compile_once = cast("Callable[P, Compiled[A]]", cache(compile_kernel))

    def kernel(*arguments: P.args, **options: P.kwargs) -> Compiled[A]:
        with _compiling:
            return compile_once(*arguments, **options)

    # this outer cache returns known kernels without the lock
    return cast("Callable[P, Compiled[A]]", wraps(build)(cache(kernel)))
