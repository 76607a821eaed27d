"""Loads and stores of a kernel; an element is addressed by array pointer and number."""

from collections.abc import Sequence
from typing import TypeAlias

import llvmlite.ir as ir

from .arithmetic import Arithmetic
from .values import BIT, BYTE, INT, INT32, POINTER, BytePointer, IntPointer, RealPointer, Value

Index: TypeAlias = "Value | int"


class Memory(Arithmetic):
    """Builder of a function that reads and writes arrays."""

    def load(self, base: RealPointer, element: Index) -> Value:
        """Consecutive reals from an element on."""
        return Value(self, self.builder.load(base.at(element), typ=self.vector, align=self.size))

    def load_stored(self, base: BytePointer, byte: Index, stored: str) -> Value:
        """Consecutive reals from a byte on: ``real``, or ``bfloat16`` or ``float16``, which are widened."""
        b, place = self.builder, base.at(byte)
        if stored == "real":
            return Value(self, b.load(place, typ=self.vector, align=self.size))
        if stored == "float16":
            halves = b.load(place, typ=ir.VectorType(ir.HalfType(), self.lanes), align=2)
            return Value(self, b.fpext(halves, self.vector))
        words = b.load(place, typ=ir.VectorType(ir.IntType(16), self.lanes), align=2)
        wide = b.shl(b.zext(words, self.word), ir.Constant(self.word, [16] * self.lanes))
        return Value(self, b.bitcast(wide, self.vector))

    def load_stored_lanes(self, inside: Value, base: BytePointer, byte: Index, stored: str) -> Value:
        """The lanes of `load_stored` marked in `inside`; other lanes are 0 and are not read."""
        if stored == "real":
            return self.load_lanes(inside, RealPointer(base.address + byte), 0)
        b, kind = self.builder, ir.VectorType(ir.IntType(16), self.lanes)
        signature = ir.FunctionType(kind, [POINTER, INT32, ir.VectorType(BIT, self.lanes), kind])
        arguments = [base.at(byte), INT32(2), inside.ssa, ir.Constant(kind, None)]
        words = self.intrinsic(f"llvm.masked.load.v{self.lanes}i16.p0", signature, arguments).ssa
        if stored == "float16":
            return Value(self, b.fpext(b.bitcast(words, ir.VectorType(ir.HalfType(), self.lanes)), self.vector))
        wide = b.shl(b.zext(words, self.word), ir.Constant(self.word, [16] * self.lanes))
        return Value(self, b.bitcast(wide, self.vector))

    def store_stored_lanes(self, value: Value, inside: Value, base: BytePointer, byte: Index, stored: str) -> None:
        """Store the lanes marked in `inside` as `store_stored` does."""
        if stored == "real":
            self.store_lanes(value, inside, RealPointer(base.address + byte), 0)
            return
        halves, kind = self._as_stored(value, stored), ir.VectorType(ir.IntType(16), self.lanes)
        signature = ir.FunctionType(ir.VoidType(), [kind, POINTER, INT32, ir.VectorType(BIT, self.lanes)])
        arguments = [self.builder.bitcast(halves, kind), base.at(byte), INT32(2), inside.ssa]
        self.intrinsic(f"llvm.masked.store.v{self.lanes}i16.p0", signature, arguments)

    def load_stored_scalar(self, base: BytePointer, byte: Index, stored: str) -> Value:
        """One real, stored as in `load_stored`, in every lane."""
        b, place = self.builder, base.at(byte)
        if stored == "real":
            return Value(self, self.splat(b.load(place, typ=self.scalar, align=self.size)))
        if stored == "float16":
            return Value(self, self.splat(b.fpext(b.load(place, typ=ir.HalfType(), align=2), self.scalar)))
        word = b.zext(b.load(place, typ=ir.IntType(16), align=2), INT32)
        return Value(self, self.splat(b.bitcast(b.shl(word, INT32(16)), self.scalar)))

    def store_stored(self, value: Value, base: BytePointer, byte: Index, stored: str, *, lane_0: bool = False) -> None:
        """Store all lanes from a byte on, or only ``lane_0``, as `load_stored` reads them.

        Half dtypes are rounded to the nearest, ties to even.
        """
        b, place = self.builder, base.at(byte)
        lanes = self._as_stored(value, stored)
        stored_lanes = b.extract_element(lanes, INT32(0)) if lane_0 else lanes
        b.store(stored_lanes, place, align=2 if stored != "real" else self.size)

    def _as_stored(self, value: Value, stored: str) -> ir.Value:
        b = self.builder
        if stored == "real":
            return value.ssa
        if stored == "float16":
            return b.fptrunc(value.ssa, ir.VectorType(ir.HalfType(), self.lanes))

        def all_lanes(number: int) -> ir.Constant:
            return ir.Constant(self.word, [number] * self.lanes)

        bits = b.bitcast(value.ssa, self.word)
        odd = b.and_(b.lshr(bits, all_lanes(16)), all_lanes(1))
        rounded = b.lshr(b.add(bits, b.add(odd, all_lanes(0x7FFF))), all_lanes(16))
        # rounding up could turn a NaN into an infinity
        rounded = b.select(b.fcmp_unordered("!=", value.ssa, value.ssa), all_lanes(0x7FC0), rounded)
        return b.trunc(rounded, ir.VectorType(ir.IntType(16), self.lanes))

    def store(self, value: Value, base: RealPointer, element: Index) -> None:
        """Store all lanes from an element on."""
        self.builder.store(value.ssa, base.at(element), align=self.size)

    def broadcast(self, base: RealPointer, element: Index) -> Value:
        """One real in every lane."""
        return Value(self, self.splat(self.builder.load(base.at(element), typ=self.scalar, align=self.size)))

    def store_first(self, value: Value, base: RealPointer, element: Index) -> None:
        """Store the first lane only."""
        scalar = self.builder.extract_element(value.ssa, INT32(0))
        self.builder.store(scalar, base.at(element), align=self.size)

    def gather(self, base: RealPointer, elements: Sequence[Value]) -> Value:
        """A vector of these elements, one per lane."""
        vector = ir.Constant(self.vector, ir.Undefined)
        for lane, element in enumerate(elements):
            scalar = self.builder.load(base.at(element), typ=self.scalar, align=self.size)
            vector = self.builder.insert_element(vector, scalar, INT32(lane))
        return Value(self, vector)

    def load_strided(self, inside: Value, base: RealPointer, element: Value, stride: Value) -> Value:
        """Reals ``stride`` elements apart, in the lanes marked in `inside`; 0 in the others."""
        b = self.builder
        numbers = b.zext(self.lane_numbers().ssa, ir.VectorType(INT, self.lanes))
        steps = b.mul(numbers, self.splat((stride * self.size).ssa))
        places = b.add(self.splat((base + element).address.ssa), steps)
        pointers = b.inttoptr(places, ir.VectorType(POINTER, self.lanes))
        signature = ir.FunctionType(self.vector, [pointers.type, INT32, ir.VectorType(BIT, self.lanes), self.vector])
        arguments = [pointers, INT32(self.size), inside.ssa, self.full(0.0).ssa]
        return self.intrinsic(f"llvm.masked.gather.{self.suffix}.v{self.lanes}p0", signature, arguments)

    def load_lanes(self, inside: Value, base: RealPointer, element: Index) -> Value:
        """The lanes marked in `inside`; other lanes are 0 and are not read."""
        signature = ir.FunctionType(self.vector, [POINTER, INT32, ir.VectorType(BIT, self.lanes), self.vector])
        arguments = [base.at(element), INT32(self.size), inside.ssa, self.full(0.0).ssa]
        return self.intrinsic(f"llvm.masked.load.{self.suffix}.p0", signature, arguments)

    def store_lanes(self, value: Value, inside: Value, base: RealPointer, element: Index) -> None:
        """Store the lanes marked in `inside`."""
        signature = ir.FunctionType(ir.VoidType(), [self.vector, POINTER, INT32, ir.VectorType(BIT, self.lanes)])
        arguments = [value.ssa, base.at(element), INT32(self.size), inside.ssa]
        self.intrinsic(f"llvm.masked.store.{self.suffix}.p0", signature, arguments)

    def prefetch(self, base: RealPointer | BytePointer, element: Index) -> None:
        """Prefetch the cache line of an element that will be read or written soon."""
        signature = ir.FunctionType(ir.VoidType(), [POINTER, INT32, INT32, INT32])
        self.intrinsic("llvm.prefetch.p0", signature, [base.at(element), INT32(0), INT32(3), INT32(1)])

    def array(self, reals: int) -> RealPointer:
        """Memory on this thread's stack for ``reals`` reals."""
        with self.builder.goto_entry_block():
            memory = self.builder.alloca(ir.ArrayType(self.scalar, reals))
            memory.align = 64
            return RealPointer(Value(self, self.builder.ptrtoint(memory, INT)))

    # integers and bytes
    def load_int(self, base: IntPointer, element: Index) -> Value:
        """A 64-bit integer."""
        return Value(self, self.builder.load(base.at(element), typ=INT, align=8))

    def store_int(self, value: Value, base: IntPointer, element: Index) -> None:
        """Store a 64-bit integer."""
        self.builder.store(value.ssa, base.at(element), align=8)

    def load_double(self, base: IntPointer, element: Index) -> Value:
        """A double among integers, as a real in every lane."""
        double = self.builder.load(base.at(element), typ=ir.DoubleType(), align=8)
        return Value(self, self.splat(double if self.bits == 64 else self.builder.fptrunc(double, self.scalar)))

    def load_byte(self, base: BytePointer, element: Index) -> Value:
        """A byte, as an integer."""
        return Value(self, self.builder.zext(self.builder.load(base.at(element), typ=BYTE, align=1), INT))

    def load_eight_bytes(self, base: BytePointer, element: Index) -> Value:
        """Eight bytes, of any alignment, as one integer."""
        return Value(self, self.builder.load(base.at(element), typ=INT, align=1))

    def load_bytes(self, base: BytePointer, element: Value, inside: Value) -> Value:
        """Booleans (byte != 0) of the lanes marked in `inside`; other lanes are false and their bytes are not read."""
        kind = ir.VectorType(BYTE, self.lanes)
        signature = ir.FunctionType(kind, [POINTER, INT32, ir.VectorType(BIT, self.lanes), kind])
        zero = ir.Constant(kind, [0] * self.lanes)
        arguments = [base.at(element), INT32(1), inside.ssa, zero]
        loaded = self.intrinsic(f"llvm.masked.load.v{self.lanes}i8.p0", signature, arguments)
        return Value(self, self.builder.icmp_unsigned("!=", loaded.ssa, zero))

    # masks of 64 bits, in words as wide as a real
    def bits_of_bytes(self, base: BytePointer, element: Index, count: Value) -> Value:
        """Integer with bit i set where byte i from `element` on is not 0; i < min(count, 64)."""
        bytes_, bits = ir.VectorType(BYTE, 64), ir.VectorType(BIT, 64)
        number = ir.Constant(bytes_, list(range(64)))
        b = self.builder
        limit = b.trunc(self.minimum(count, self.integer(64)).ssa, BYTE)
        first_lane = b.insert_element(ir.Constant(bytes_, ir.Undefined), limit, INT32(0))
        zeros = ir.Constant(ir.VectorType(INT32, 64), [0] * 64)
        inside = b.icmp_unsigned("<", number, b.shuffle_vector(first_lane, ir.Constant(bytes_, ir.Undefined), zeros))
        nothing = ir.Constant(bytes_, [0] * 64)
        signature = ir.FunctionType(bytes_, [POINTER, INT32, bits, bytes_])
        loaded = self.intrinsic("llvm.masked.load.v64i8.p0", signature, [base.at(element), INT32(1), inside, nothing])
        return Value(self, b.bitcast(b.icmp_unsigned("!=", loaded.ssa, nothing), INT))

    def store_words(self, bits: Value, base: RealPointer, element: Index, step: int) -> None:
        """Store 64 bits in words as wide as a real, low first, `step` words apart."""
        for i in range(64 // self.bits):
            word = self.builder.lshr(bits.ssa, INT(i * self.bits))
            word = self.builder.trunc(word, ir.IntType(self.bits)) if self.bits < 64 else word
            place = self.constant(element, bits) + i * step
            self.builder.store(word, base.at(place), align=self.size)

    def lanes_with_bit(self, base: RealPointer, element: Index, bit: Value) -> Value:
        """Booleans: the lane's word, counted from `element`, has the bit."""
        b = self.builder
        words = b.load(base.at(element), typ=self.word, align=self.size)
        chosen = b.shl(ir.IntType(self.bits)(1), bit.ssa if self.bits == 64 else b.trunc(bit.ssa, INT32))
        return Value(self, b.icmp_unsigned("!=", b.and_(words, self.splat(chosen)), ir.Constant(self.word, None)))

    def parts(self, base: RealPointer, sizes: Sequence[Index]) -> list[RealPointer]:
        """Pointers to consecutive parts of memory, from `base` on, of these sizes in reals."""
        pointers = [base]
        for size in sizes[:-1]:
            pointers.append(pointers[-1] + size)
        return pointers
