"""Vector kernels written in Python and compiled by LLVM in a tenth of a second (llvmlite; no compiler is needed).

`Kernel` builds one function of LLVM IR. A `Value` is an SSA value with arithmetic: a 64-bit integer, a vector of as
many reals as a register holds, or a vector of booleans. A kernel takes the address of an array of 64-bit words
(``LEADING`` of its own, then sizes, addresses and reals, by name), and any number of threads may run it on the same
words; ctypes releases the interpreter lock for the call.

Why explicit vectors and not loops for an automatic vectoriser (numba): register tiles share each load among rows,
which LLVM's loop vectoriser does not do. Scores alone, one Zen 4 core, n=m=512, one unit per reciprocal: 14.5 G
terms/s in tiles, 11 from a numba loop; with three units per division, not tried in numba, 20. The kernels of a forward
and a backward pass compile in one to two seconds altogether, so that nothing need be cached on a disk that might be
read-only. torch.compile and an extension built on the spot need a compiler; the plain formula through torch.compile
took 20 times as long forward, 33 times with backward.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.ir as ir

from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, register_bytes

INT = ir.IntType(64)
INT32 = ir.IntType(32)
BYTE = ir.IntType(8)
BIT = ir.IntType(1)
POINTER = ir.PointerType()

LEADING = 16
"""Words in front of the arguments, 0 at first: the tasks given out, and, eight words on, the threads begun."""


class Value:
    """One SSA value of a kernel; operators emit instructions."""

    def __init__(self, kernel: "Kernel", ssa: Any):
        self.kernel, self.ssa = kernel, ssa

    @property
    def is_int(self) -> bool:
        """Whether this is a 64-bit integer, not a vector."""
        return isinstance(self.ssa.type, ir.IntType)

    def _emit(self, other: "Value | float", integer: str, real: str, reverse: bool = False) -> "Value":
        b = self.kernel.builder
        left, right = self.ssa, self.kernel.constant(other, self).ssa
        if reverse:
            left, right = right, left
        return Value(self.kernel, getattr(b, integer if self.is_int else real)(left, right))

    def __add__(self, other: "Value | float") -> "Value":
        return self._emit(other, "add", "fadd")

    def __sub__(self, other: "Value | float") -> "Value":
        return self._emit(other, "sub", "fsub")

    def __rsub__(self, other: float) -> "Value":
        return self._emit(other, "sub", "fsub", reverse=True)

    def __mul__(self, other: "Value | float") -> "Value":
        return self._emit(other, "mul", "fmul")

    def __truediv__(self, other: "Value | float") -> "Value":
        return self._emit(other, "sdiv", "fdiv")

    def __floordiv__(self, other: "Value | int") -> "Value":
        return self._emit(other, "sdiv", "fdiv")

    def __mod__(self, other: "Value | int") -> "Value":
        return self._emit(other, "srem", "frem")

    def __and__(self, other: "Value") -> "Value":
        return Value(self.kernel, self.kernel.builder.and_(self.ssa, other.ssa))

    def __or__(self, other: "Value") -> "Value":
        return Value(self.kernel, self.kernel.builder.or_(self.ssa, other.ssa))

    def compare(self, operator: str, other: "Value | float") -> "Value":
        """`operator` is one of < <= > >= == != ; real comparisons with NaN are false (!= is true)."""
        b, right = self.kernel.builder, self.kernel.constant(other, self).ssa
        if self.is_int:
            return Value(self.kernel, b.icmp_signed(operator, self.ssa, right))
        if operator == "!=":
            return Value(self.kernel, b.fcmp_unordered(operator, self.ssa, right))
        return Value(self.kernel, b.fcmp_ordered(operator, self.ssa, right))


class Variable:
    """A mutable cell; LLVM keeps it in a register."""

    def __init__(self, kernel: "Kernel", initial: Value):
        self.kernel, self.type = kernel, initial.ssa.type
        with kernel.builder.goto_entry_block():
            self.cell = kernel.builder.alloca(self.type)
        self.set(initial)

    def get(self) -> Value:
        """The value now in the cell."""
        return Value(self.kernel, self.kernel.builder.load(self.cell, typ=self.type))

    def set(self, value: Value) -> None:
        """Replace the value."""
        self.kernel.builder.store(value.ssa, self.cell)

    def add(self, value: Value) -> None:
        """Add to the value."""
        self.set(self.get() + value)


class Kernel:
    """Builder of one function `name(words)`; `fields` names the 64-bit words behind the leading ones."""

    def __init__(self, name: str, fields: Sequence[str], bits: int):
        self.name, self.fields, self.bits = name, tuple(fields), bits
        self.size = bits // 8
        self.lanes = register_bytes() // self.size
        self.scalar = ir.FloatType() if bits == 32 else ir.DoubleType()
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self.word = ir.VectorType(ir.IntType(bits), self.lanes)
        self.suffix = f"v{self.lanes}f{bits}"
        self.module = ir.Module()
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [INT]), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.words = Value(self, self.function.args[0])
        self.thread = self._next_number(8)
        self.argument = {field: self.load_int(self.words, LEADING + i) for i, field in enumerate(self.fields)}
        body = self.function.append_basic_block()
        self.builder.branch(body)
        self.builder.position_at_end(body)

    def _next_number(self, word: int) -> Value:
        """A number that no other thread gets, from a leading word."""
        return Value(self, self.builder.atomic_rmw("add", self._address(self.words, word, 8), INT(1), "monotonic"))

    # values
    def integer(self, value: int) -> Value:
        """A constant integer."""
        return Value(self, INT(value))

    def full(self, value: float) -> Value:
        """The same constant in every lane."""
        return Value(self, ir.Constant(self.vector, [value] * self.lanes))

    def constant(self, value: "Value | float", like: Value) -> Value:
        """`value` itself, or a constant of the type of `like`."""
        if isinstance(value, Value):
            return value
        return Value(self, like.ssa.type(int(value))) if like.is_int else self.full(float(value))

    def lane_numbers(self) -> Value:
        """0, 1, ... in the lanes, 32-bit integers."""
        return Value(self, ir.Constant(ir.VectorType(INT32, self.lanes), list(range(self.lanes))))

    def lanes_below(self, count: Value) -> Value:
        """Booleans: lane number < count."""
        b = self.builder
        count32 = b.trunc(self.minimum(count, self.integer(self.lanes)).ssa, INT32)
        return Value(self, b.icmp_signed("<", self.lane_numbers().ssa, self._splat(count32)))

    def lanes_from(self, count: Value) -> Value:
        """Booleans: lane number >= count."""
        return self.negation(self.lanes_below(count))

    def _splat(self, scalar: Any) -> Any:
        kind = ir.VectorType(scalar.type, self.lanes)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, INT32(0))
        zeros = ir.Constant(ir.VectorType(INT32, self.lanes), None)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    # memory: a base address in bytes and an offset in elements
    def _address(self, base: Value, offset: "Value | int", size: int) -> Any:
        return self.builder.inttoptr((base + self.constant(offset, base) * size).ssa, POINTER)

    def load_int(self, base: Value, offset: "Value | int") -> Value:
        """A 64-bit integer at base + 8*offset."""
        return Value(self, self.builder.load(self._address(base, offset, 8), typ=INT, align=8))

    def real(self, field: str) -> Value:
        """An argument that is a real (a double among the words), in every lane."""
        word = self._address(self.words, LEADING + self.fields.index(field), 8)
        double = self.builder.load(word, typ=ir.DoubleType(), align=8)
        return Value(self, self._splat(double if self.bits == 64 else self.builder.fptrunc(double, self.scalar)))

    def store_int(self, value: Value, base: Value, offset: "Value | int") -> None:
        """Store a 64-bit integer at base + 8*offset."""
        self.builder.store(value.ssa, self._address(base, offset, 8), align=8)

    def load_byte(self, base: Value, offset: "Value | int") -> Value:
        """A byte, as an integer."""
        return Value(self, self.builder.zext(self.builder.load(self._address(base, offset, 1), typ=BYTE, align=1), INT))

    def load(self, base: Value, offset: "Value | int") -> Value:
        """Consecutive reals from an element on."""
        return Value(self, self.builder.load(self._address(base, offset, self.size), typ=self.vector, align=self.size))

    def broadcast(self, base: Value, offset: "Value | int") -> Value:
        """One real in every lane."""
        scalar = self.builder.load(self._address(base, offset, self.size), typ=self.scalar, align=self.size)
        return Value(self, self._splat(scalar))

    def store(self, value: Value, base: Value, offset: "Value | int") -> None:
        """Store all lanes from an element on."""
        self.builder.store(value.ssa, self._address(base, offset, self.size), align=self.size)

    def prefetch(self, base: Value, offset: "Value | int") -> None:
        """Ask for the cache line of an element that will be read or written soon."""
        signature = ir.FunctionType(ir.VoidType(), [POINTER, INT32, INT32, INT32])
        address = self._address(base, offset, self.size)
        self._call("llvm.prefetch.p0", signature, [address, INT32(0), INT32(3), INT32(1)])

    def store_first(self, value: Value, base: Value, offset: "Value | int") -> None:
        """Store the first lane only."""
        scalar = self.builder.extract_element(value.ssa, INT32(0))
        self.builder.store(scalar, self._address(base, offset, self.size), align=self.size)

    def gather(self, base: Value, offsets: Sequence[Value]) -> Value:
        """A vector of the elements at `offsets`, one for each lane."""
        vector = ir.Constant(self.vector, ir.Undefined)
        for lane, offset in enumerate(offsets):
            scalar = self.builder.load(self._address(base, offset, self.size), typ=self.scalar, align=self.size)
            vector = self.builder.insert_element(vector, scalar, INT32(lane))
        return Value(self, vector)

    def load_lanes(self, inside: Value, base: Value, offset: "Value | int") -> Value:
        """The lanes marked in `inside`; other lanes are 0 and are not read."""
        signature = ir.FunctionType(self.vector, [POINTER, INT32, ir.VectorType(BIT, self.lanes), self.vector])
        address = self._address(base, offset, self.size)
        arguments = [address, INT32(self.size), inside.ssa, self.full(0.0).ssa]
        return self._call(f"llvm.masked.load.{self.suffix}.p0", signature, arguments)

    def store_lanes(self, value: Value, inside: Value, base: Value, offset: "Value | int") -> None:
        """Store the lanes marked in `inside`."""
        signature = ir.FunctionType(ir.VoidType(), [self.vector, POINTER, INT32, ir.VectorType(BIT, self.lanes)])
        address = self._address(base, offset, self.size)
        self._call(f"llvm.masked.store.{self.suffix}.p0", signature, [value.ssa, address, INT32(self.size), inside.ssa])

    def bits_of_bytes(self, base: Value, offset: "Value | int", count: Value) -> Value:
        """One integer: bit i tells whether byte i from `offset` on is not 0, for i < count, and below 64."""
        bytes_, bits = ir.VectorType(BYTE, 64), ir.VectorType(BIT, 64)
        number = ir.Constant(bytes_, list(range(64)))
        b = self.builder
        limit = b.trunc(self.minimum(count, self.integer(64)).ssa, BYTE)
        one = b.insert_element(ir.Constant(bytes_, ir.Undefined), limit, INT32(0))
        zeros = ir.Constant(ir.VectorType(INT32, 64), [0] * 64)
        inside = b.icmp_unsigned("<", number, b.shuffle_vector(one, ir.Constant(bytes_, ir.Undefined), zeros))
        nothing = ir.Constant(bytes_, [0] * 64)
        signature = ir.FunctionType(bytes_, [POINTER, INT32, bits, bytes_])
        arguments = [self._address(base, offset, 1), INT32(1), inside, nothing]
        loaded = self._call("llvm.masked.load.v64i8.p0", signature, arguments)
        return Value(self, b.bitcast(b.icmp_unsigned("!=", loaded.ssa, nothing), INT))

    def store_words(self, bits: Value, base: Value, offset: "Value | int", step: int) -> None:
        """64 bits in words as wide as a real, the low ones first, `step` words apart."""
        for i in range(64 // self.bits):
            word = self.builder.lshr(bits.ssa, INT(i * self.bits))
            word = self.builder.trunc(word, ir.IntType(self.bits)) if self.bits < 64 else word
            address = self._address(base, self.constant(offset, base) + i * step, self.size)
            self.builder.store(word, address, align=self.size)

    def lanes_with_bit(self, base: Value, offset: "Value | int", bit: Value) -> Value:
        """Booleans: whether the lane's word, from `offset` on, has the bit."""
        b = self.builder
        words = b.load(self._address(base, offset, self.size), typ=self.word, align=self.size)
        chosen = b.shl(ir.IntType(self.bits)(1), bit.ssa if self.bits == 64 else b.trunc(bit.ssa, INT32))
        return Value(self, b.icmp_unsigned("!=", b.and_(words, self._splat(chosen)), ir.Constant(self.word, None)))

    def lowest_bit(self, bits: Value) -> Value:
        """The number of the lowest bit that is set; 64 if none is."""
        return self._call("llvm.cttz.i64", ir.FunctionType(INT, [INT, BIT]), [bits.ssa, BIT(0)])

    def bit_length(self, bits: Value) -> Value:
        """One more than the number of the highest bit that is set; 0 if none is."""
        return self._call("llvm.ctlz.i64", ir.FunctionType(INT, [INT, BIT]), [bits.ssa, BIT(0)]) * -1 + 64

    def load_bytes(self, base: Value, offset: Value, inside: Value) -> Value:
        """Booleans (byte != 0) of the lanes marked in `inside`; other lanes are false and their bytes are not read."""
        kind = ir.VectorType(BYTE, self.lanes)
        signature = ir.FunctionType(kind, [POINTER, INT32, ir.VectorType(BIT, self.lanes), kind])
        zero = ir.Constant(kind, [0] * self.lanes)
        address = self._address(base, offset, 1)
        loaded = self._call(f"llvm.masked.load.v{self.lanes}i8.p0", signature, [address, INT32(1), inside.ssa, zero])
        return Value(self, self.builder.icmp_unsigned("!=", loaded.ssa, zero))

    # arithmetic
    def _call(self, name: str, signature: ir.FunctionType, arguments: Sequence[Any]) -> Value:
        function = self.module.globals.get(name) or ir.Function(self.module, signature, name)
        return Value(self, self.builder.call(function, arguments))

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x*y + z, in one instruction where the machine has it."""
        signature = ir.FunctionType(self.vector, [self.vector] * 3)
        return self._call(f"llvm.fmuladd.{self.suffix}", signature, [x.ssa, y.ssa, z.ssa])

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """`yes` where the condition holds, else `no`."""
        return Value(self, self.builder.select(condition.ssa, yes.ssa, no.ssa))

    def negation(self, booleans: Value) -> Value:
        """True where false."""
        return Value(self, self.builder.not_(booleans.ssa))

    def minimum(self, x: Value, y: Value) -> Value:
        """x where x < y, else y (also where x is NaN)."""
        return self.select(x.compare("<", y), x, y)

    def maximum(self, x: Value, y: Value) -> Value:
        """x where x > y, else y (also where x is NaN)."""
        return self.select(x.compare(">", y), x, y)

    def magnitude(self, x: Value) -> Value:
        """|x|; NaN stays."""
        return self.maximum(x, self.full(0.0) - x)

    def any(self, booleans: Value) -> Value:
        """Whether any lane is true."""
        packed = self.builder.bitcast(booleans.ssa, ir.IntType(self.lanes))
        return Value(self, self.builder.icmp_unsigned("!=", packed, ir.IntType(self.lanes)(0)))

    def _fold(self, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
        step = self.lanes // 2
        while step:
            order = ir.Constant(ir.VectorType(INT32, self.lanes), [(i + step) % self.lanes for i in range(self.lanes)])
            undefined = ir.Constant(self.vector, ir.Undefined)
            value = combine(value, Value(self, self.builder.shuffle_vector(value.ssa, undefined, order)))
            step //= 2
        return value

    def sum(self, value: Value) -> Value:
        """Sum of the lanes, in every lane, in a fixed order."""
        return self._fold(value, lambda x, y: x + y)

    def max(self, value: Value) -> Value:
        """The largest lane, in every lane."""
        return self._fold(value, self.maximum)

    # control
    @contextmanager
    def loop(self, start: "Value | int", stop: Value, step: int = 1) -> Iterator[Value]:
        """The body runs for start, start + step, ... below stop."""
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
    def when(self, condition: Value) -> Iterator[None]:
        """The body runs if the condition holds."""
        with self.builder.if_then(condition.ssa):
            yield

    @contextmanager
    def subroutine(self, name: str, count: int) -> Iterator[list[Value]]:
        """The body becomes a function of integers, for `call`: what is needed twice is compiled once."""
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

    def call(self, name: str, *arguments: Value) -> None:
        """Call a subroutine."""
        self.builder.call(self.module.globals[name], [argument.ssa for argument in arguments])

    @contextmanager
    def tasks(self, count: Value) -> Iterator[Value]:
        """The numbers 0..count-1, each given to one of the threads that run the kernel."""
        b = self.builder
        test, body, end = (self.function.append_basic_block() for _ in range(3))
        b.branch(test)
        b.position_at_end(test)
        task = self._next_number(0)
        b.cbranch(task.compare("<", count).ssa, body, end)
        b.position_at_end(body)
        yield task
        b.branch(test)
        b.position_at_end(end)

    def compile(self) -> Compiled:
        """The machine code of the finished function."""
        self.builder.ret_void()
        return Compiled(self.name, self.fields, str(self.module))
