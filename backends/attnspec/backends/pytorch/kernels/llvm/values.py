"""Integers, vectors, pointers and variables of a kernel; their operators emit instructions."""

from collections.abc import Sequence
from typing import Any, Self, TypeVar

import llvmlite.ir as ir

from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes

INT = ir.IntType(64)
INT32 = ir.IntType(32)
BYTE = ir.IntType(8)
BIT = ir.IntType(1)
POINTER = ir.PointerType()


class Builder:
    """Builder of an LLVM IR function on reals of 32 or 64 bits: types and constants."""

    def __init__(self, name: str, bits: int) -> None:
        self.name, self.bits = name, bits
        self.size = bits // 8
        self.lanes = register_bytes() // self.size
        self.scalar = ir.FloatType() if bits == 32 else ir.DoubleType()
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self.word = ir.VectorType(ir.IntType(bits), self.lanes)
        self.suffix = f"v{self.lanes}f{bits}"
        self.module = ir.Module()
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [INT]), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block())

    def integer(self, value: int) -> "Value":
        """A constant integer."""
        return Value(self, INT(value))

    def full(self, value: float) -> "Value":
        """One constant in every lane."""
        return Value(self, ir.Constant(self.vector, [value] * self.lanes))

    def constant(self, value: "Value | float", like: "Value") -> "Value":
        """`value` itself, or a constant of the type of `like`."""
        if isinstance(value, Value):
            return value
        return Value(self, like.ssa.type(int(value))) if like.is_int else self.full(float(value))

    def splat(self, scalar: Any) -> Any:
        """LLVM vector with an LLVM scalar in every lane."""
        kind = ir.VectorType(scalar.type, self.lanes)
        first_lane = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, INT32(0))
        zeros = ir.Constant(ir.VectorType(INT32, self.lanes), None)
        return self.builder.shuffle_vector(first_lane, ir.Constant(kind, ir.Undefined), zeros)

    def intrinsic(self, name: str, signature: ir.FunctionType, arguments: Sequence[Any]) -> "Value":
        """The result of a function that LLVM provides."""
        function = self.module.globals.get(name) or ir.Function(self.module, signature, name)
        return Value(self, self.builder.call(function, arguments))


class Value:
    """An SSA value: a 64-bit integer, a register of reals, or a vector of booleans."""

    def __init__(self, kernel: Builder, ssa: Any) -> None:
        self.kernel, self.ssa = kernel, ssa

    @property
    def is_int(self) -> bool:
        """True if this is a 64-bit integer, not a vector."""
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
        """Booleans of < <= > >= == or !=. With NaN, real comparisons are false (!= is true)."""
        b, right = self.kernel.builder, self.kernel.constant(other, self).ssa
        if self.is_int:
            return Value(self.kernel, b.icmp_signed(operator, self.ssa, right))
        if operator == "!=":
            return Value(self.kernel, b.fcmp_unordered(operator, self.ssa, right))
        return Value(self.kernel, b.fcmp_ordered(operator, self.ssa, right))

    def is_zero(self) -> "Value":
        """Boolean: an integer is 0, a flag off."""
        return self.compare("==", 0)

    def is_nonzero(self) -> "Value":
        """Boolean: an integer is not 0, a flag on."""
        return self.compare("!=", 0)


Extent = TypeVar("Extent", int, Value)
"""A size: a number for the caller of a kernel, a value in the kernel."""


class Pointer:
    """The address of an array in memory. As in C, adding and subtracting count elements."""

    def __init__(self, address: Value) -> None:
        self.address = address

    @property
    def size(self) -> int:
        """Bytes of an element."""
        raise NotImplementedError

    def __add__(self, elements: "Value | int") -> Self:
        return type(self)(self.address + elements * self.size)

    def __sub__(self, elements: "Value | int") -> Self:
        return type(self)(self.address - elements * self.size)

    def at(self, element: "Value | int") -> Any:
        """The address of an element, as an LLVM pointer."""
        kernel = self.address.kernel
        offset = kernel.constant(element, self.address) * self.size
        return kernel.builder.inttoptr((self.address + offset).ssa, POINTER)

    def is_null(self) -> Value:
        """Boolean: the caller passed None instead of an array."""
        return self.address.is_zero()

    def is_given(self) -> Value:
        """Boolean: there is an array."""
        return self.address.is_nonzero()


class RealPointer(Pointer):
    """The address of reals, of the width that the kernel computes in."""

    @property
    def size(self) -> int:
        """4 or 8."""
        return self.address.kernel.size


class IntPointer(Pointer):
    """The address of 64-bit integers."""

    size = 8


class BytePointer(Pointer):
    """The address of bytes."""

    size = 1


class Variable:
    """A mutable cell; LLVM keeps it in a register."""

    def __init__(self, kernel: Builder, initial: Value) -> None:
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
