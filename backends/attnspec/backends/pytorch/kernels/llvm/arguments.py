"""Arguments of a kernel, declared once for the code that builds it and its callers.

A declaration is a subclass of `Arguments`, whose fields are of the kinds below, or themselves `Arguments`::

    class Halving(Arguments):
        count: Size
        x: Reals

The caller writes ``Halving(count=len(x), x=x)``. In the kernel, ``k.argument.count`` is an integer `Value` and
``k.argument.x`` a `RealPointer`. Arguments travel in a buffer of 64-bit slots, and ``Halving.x`` is the number of the
slot where `x` begins. Type checkers know all three.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from inspect import get_annotations
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar, dataclass_transform, overload

from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.memory import Memory
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, IntPointer, Pointer, RealPointer, Value

Argument = TypeVar("Argument")
Loaded = TypeVar("Loaded")
AnyPointer = TypeVar("AnyPointer", bound=Pointer)
IntArray: TypeAlias = "array[int]"


class Kind(Generic[Argument, Loaded]):
    """Kind of an argument: the type a caller gives, and the type a kernel reads.

    The descriptor's methods are for type checkers alone: at run time the attributes of `Arguments` are ordinary ones.
    """

    slots: ClassVar[int] = 1
    expression: ClassVar[str] = "*{kind}.to_slots({argument})"
    """Python source of an argument's slots. It is compiled: slower code would take as long as a small kernel."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, arguments: None, owner: Any) -> int: ...
        @overload
        def __get__(self, arguments: object, owner: Any) -> Loaded: ...
        def __get__(self, arguments: Any, owner: Any) -> Any: ...
        def __set__(self, arguments: object, value: Argument) -> None: ...

    @staticmethod
    def to_slots(argument: Argument, /) -> Sequence[int]:
        """The contents of an argument's slots."""
        raise NotImplementedError

    @staticmethod
    def read(k: Memory, buffer: IntPointer, first: int, /) -> Loaded:
        """Emit loads of the slots from number `first` on."""
        raise NotImplementedError


class Size(Kind[int, Value]):
    """A size or another integer."""

    expression = "{argument}"

    @staticmethod
    def read(k: Memory, buffer: IntPointer, first: int) -> Value:
        """The integer."""
        return k.load_int(buffer, first)


class Flag(Kind[bool, Value]):
    """A condition that holds for the whole call: an integer, 0 or 1."""

    expression = "{argument}"
    read = Size.read


class RealSlot:
    """A real in a slot. It is loaded where it is used, so that it takes no register before."""

    def __init__(self, k: Memory, buffer: IntPointer, slot: int) -> None:
        self._k, self._buffer, self._slot = k, buffer, slot

    def load(self) -> Value:
        """The real in every lane."""
        return self._k.load_double(self._buffer, self._slot)


class Real(Kind[float, RealSlot]):
    """A real number."""

    read = staticmethod(RealSlot)

    @staticmethod
    def to_slots(real: float) -> tuple[int]:
        """The bits of a double."""
        slot: tuple[int] = unpack("q", pack("d", real))
        return slot


ADDRESS = "{argument}.data_ptr()"
OPTIONAL_ADDRESS = "0 if {argument} is None else {argument}.data_ptr()"


def _reader(kind: type[AnyPointer]) -> Callable[[Memory, IntPointer, int], AnyPointer]:
    return lambda k, buffer, first: kind(k.load_int(buffer, first))


class Reals(Kind[Tensor, RealPointer]):
    """Reals of the kernel's width."""

    expression = ADDRESS
    read = staticmethod(_reader(RealPointer))


class OptionalReals(Kind[Tensor | None, RealPointer]):
    """Reals of the kernel's width, or None."""

    expression = OPTIONAL_ADDRESS
    read = staticmethod(_reader(RealPointer))


class Integers(Kind[Tensor, IntPointer]):
    """64-bit integers."""

    expression = ADDRESS
    read = staticmethod(_reader(IntPointer))


class OptionalIntegers(Kind[Tensor | None, IntPointer]):
    """64-bit integers, or None."""

    expression = OPTIONAL_ADDRESS
    read = staticmethod(_reader(IntPointer))


class Bytes(Kind[Tensor, BytePointer]):
    """Numbers of any dtype, addressed in bytes."""

    expression = ADDRESS
    read = staticmethod(_reader(BytePointer))


class OptionalBytes(Kind[Tensor | None, BytePointer]):
    """Numbers of any dtype, addressed in bytes, or None."""

    expression = OPTIONAL_ADDRESS
    read = staticmethod(_reader(BytePointer))


class OptionalBooleans(OptionalBytes):
    """Booleans, a byte each, or None."""


class Result(Kind[IntArray, IntPointer]):
    """A single integer that the kernel may write, given as ``array("q", [0])``."""

    expression = "{argument}.buffer_info()[0]"
    read = staticmethod(_reader(IntPointer))


class ThreadMemory:
    """Scratch memory, with a part for each thread."""

    def __init__(self, k: Memory, buffer: IntPointer, first: int) -> None:
        self._base, self._size = Reals.read(k, buffer, first), k.load_int(buffer, first + 1)

    def of(self, thread: Value) -> RealPointer:
        """The part of a thread."""
        return self._base + thread * self._size


class Scratch(Kind[Tensor, ThreadMemory]):
    """Scratch memory of reals (threads, size)."""

    slots = 2
    expression = "{argument}.data_ptr(), {argument}.size(1)"
    read = staticmethod(ThreadMemory)


@dataclass_transform(kw_only_default=True)
class Arguments:
    """Arguments of a kernel, or part of them.

    Type checkers see a dataclass. At run time it is not one: creating it would add a millisecond to the first call.
    """

    if TYPE_CHECKING:

        @overload
        def __get__(self, arguments: None, owner: Any) -> int: ...
        @overload
        def __get__(self, arguments: object, owner: Any) -> Self: ...
        def __get__(self, arguments: Any, owner: Any) -> Any: ...

    kinds: ClassVar[Mapping[str, Any]] = {}
    slots: ClassVar[int] = 0
    expression: ClassVar[str] = "*{argument}.to_slots()"

    def __init_subclass__(cls) -> None:
        """Number the slots; those of a base class come first."""
        cls.kinds = {**cls.kinds, **get_annotations(cls)}
        cls.to_slots = Arguments.to_slots  # type: ignore[method-assign]  # a base class may have compiled its own
        cls.slots = 0
        for name, kind in cls.kinds.items():
            setattr(cls, name, cls.slots)
            cls.slots += kind.slots

    def __init__(self, **fields: Any) -> None:
        if fields.keys() != self.kinds.keys():
            expected, got = (", ".join(names) for names in (self.kinds, fields))
            raise TypeError(f"{type(self).__name__}: expected {expected}; got {got}")
        vars(self).update(fields)

    def to_slots(self) -> list[int]:
        """Contents of all slots, in the order of the fields; compiled at the first call.

        Tensors and arrays must outlive the kernel's call, because slots hold only their addresses.
        """
        kinds = self.kinds
        expressions = [kind.expression.format(argument=f"self.{x}", kind=f"kinds['{x}']") for x, kind in kinds.items()]
        compiled = eval(f"lambda self: [{', '.join(expressions)}]", {"kinds": kinds})
        type(self).to_slots = compiled  # type: ignore[method-assign]
        slots: list[int] = compiled(self)
        return slots

    @classmethod
    def read(cls, k: Memory, buffer: IntPointer, first: int) -> Self:
        """Emit loads of all fields; the result's attributes have their names."""
        arguments = cls.__new__(cls)
        for name, kind in cls.kinds.items():
            vars(arguments)[name] = kind.read(k, buffer, first)
            first += kind.slots
        return arguments
