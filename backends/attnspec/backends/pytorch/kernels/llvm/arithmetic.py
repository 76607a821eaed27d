"""Arithmetic of a kernel beyond its values' operators: selection, reductions over lanes, bits."""

from collections.abc import Callable
from typing import TypeVar

import llvmlite.ir as ir

from attnspec.backends.pytorch.kernels.llvm.values import BIT, INT, INT32, Builder, RealPointer, Value

Choice = TypeVar("Choice", Value, RealPointer)


class Bfloat16(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bfloat16)

    def __hash__(self) -> int:
        return hash(Bfloat16)


class Arithmetic(Builder):
    """Builder of a function with arithmetic."""

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x*y + z, in one instruction where the machine has it."""
        signature = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.intrinsic(f"llvm.fmuladd.{self.suffix}", signature, [x.ssa, y.ssa, z.ssa])

    def add_products_of_pairs(self, x: Value, y: Value, z: Value) -> Value:
        """z + x₀y₀ + x₁y₁ per lane, where x and y hold pairs of bfloat16. Needs `multiplies_bfloat16`."""
        b, pairs = self.builder, ir.VectorType(Bfloat16(), 2 * self.lanes)
        signature = ir.FunctionType(self.vector, [self.vector, pairs, pairs])
        operands = [z.ssa, b.bitcast(x.ssa, pairs), b.bitcast(y.ssa, pairs)]
        return self.intrinsic(f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}", signature, operands)

    def select(self, condition: Value, yes: Choice, no: Choice) -> Choice:
        """`yes` where the condition holds, else `no`."""
        if isinstance(yes, RealPointer):
            return RealPointer(self.select(condition, yes.address, no.address))
        return Value(self, self.builder.select(condition.ssa, yes.ssa, no.ssa))

    def negation(self, booleans: Value) -> Value:
        """Logical not of booleans."""
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

    def lane_numbers(self) -> Value:
        """0, 1, ... in the lanes, 32-bit integers."""
        return Value(self, ir.Constant(ir.VectorType(INT32, self.lanes), list(range(self.lanes))))

    def reals_from(self, first: Value) -> Value:
        """first, first + 1, ... in the lanes, as reals; `first` within 32 bits."""
        b = self.builder
        numbers = b.add(self.splat(b.trunc(first.ssa, INT32)), self.lane_numbers().ssa)
        return Value(self, b.sitofp(numbers, self.vector))

    def lanes_below(self, count: Value) -> Value:
        """Booleans: lane number < count."""
        b = self.builder
        count32 = b.trunc(self.minimum(count, self.integer(self.lanes)).ssa, INT32)
        return Value(self, b.icmp_signed("<", self.lane_numbers().ssa, self.splat(count32)))

    def lanes_of_segments_below(self, count: Value, segment: int) -> Value:
        """Booleans: lane number within its segment of ``segment`` lanes < count."""
        b = self.builder
        count32 = b.trunc(self.minimum(count, self.integer(segment)).ssa, INT32)
        numbers = ir.Constant(ir.VectorType(INT32, self.lanes), [i % segment for i in range(self.lanes)])
        return Value(self, b.icmp_signed("<", numbers, self.splat(count32)))

    def lanes_from(self, count: Value) -> Value:
        """Booleans: lane number >= count."""
        return self.negation(self.lanes_below(count))

    def any(self, booleans: Value) -> Value:
        """Boolean: any lane is true."""
        packed = self.builder.bitcast(booleans.ssa, ir.IntType(self.lanes))
        return Value(self, self.builder.icmp_unsigned("!=", packed, ir.IntType(self.lanes)(0)))

    def _fold(self, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Combine all lanes by rotations; in `of_segments` these would mix segments."""
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

    def of_segments(self, value: Value, segment: int, combine: Callable[[Value, Value], Value]) -> Value:
        """Combine the lanes of each segment (a power of two); every lane holds the result."""
        step = segment // 2
        while step:
            order = ir.Constant(ir.VectorType(INT32, self.lanes), [i ^ step for i in range(self.lanes)])
            undefined = ir.Constant(self.vector, ir.Undefined)
            value = combine(value, Value(self, self.builder.shuffle_vector(value.ssa, undefined, order)))
            step //= 2
        return value

    def lowest_bit(self, bits: Value) -> Value:
        """The number of the lowest bit that is set; 64 if none is."""
        return self.intrinsic("llvm.cttz.i64", ir.FunctionType(INT, [INT, BIT]), [bits.ssa, BIT(0)])

    def bit_length(self, bits: Value) -> Value:
        """One more than the number of the highest bit that is set; 0 if none is."""
        return self.intrinsic("llvm.ctlz.i64", ir.FunctionType(INT, [INT, BIT]), [bits.ssa, BIT(0)]) * -1 + 64
