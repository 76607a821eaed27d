"""Arguments of a kernel, declared once for the code that builds it and its callers.

A declaration is a subclass of `Arguments`, whose fields are of the kinds below, or themselves `Arguments`::

    class Halving(Arguments):
        count: Size
        x: Reals

The caller writes ``Halving(count=len(x), x=x)``. In the kernel, ``k.argument.count`` is an integer `Value` and
``k.argument.x`` a `RealPointer`. The caller passes an array of 64-bit words, and ``Halving.x`` is the number of the
word where `x` begins. Type checkers know all three.
"""

from array import array
from collections.abc import Mapping, Sequence
from inspect import get_annotations
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar, dataclass_transform, overload

from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.memory import Memory
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, IntPointer, RealPointer, Value

Given = TypeVar("Given")
Read = TypeVar("Read")
IntArray: TypeAlias = "array[int]"


class Kind(Generic[Given, Read]):
    """Kind of an argument: the type a caller gives, and the type a kernel reads.

    The descriptor's methods are for type checkers alone: at run time the attributes of `Arguments` are ordinary ones.
    """

    words: ClassVar[int] = 1
    expression: ClassVar[str] = "*{kind}.to_words({given})"
    """Python source of an argument's words. It is compiled: slower code would take as long as a small kernel."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, arguments: None, owner: Any) -> int: ...
        @overload
        def __get__(self, arguments: object, owner: Any) -> Read: ...
        def __get__(self, arguments: Any, owner: Any) -> Any: ...
        def __set__(self, arguments: object, value: Given) -> None: ...

    @staticmethod
    def to_words(given: Given, /) -> Sequence[int]:
        """The words of an argument."""
        raise NotImplementedError

    @staticmethod
    def read(k: Memory, words: IntPointer, first: int, /) -> Read:
        """Emit loads of the words from number `first` on."""
        raise NotImplementedError


class Size(Kind[int, Value]):
    """A size or another integer."""

    expression = "{given}"

    @staticmethod
    def read(k: Memory, words: IntPointer, first: int) -> Value:
        """The integer."""
        return k.load_int(words, first)


class Flag(Kind[bool, Value]):
    """A condition that holds for the whole call: an integer, 0 or 1."""

    expression = "{given}"

    @staticmethod
    def read(k: Memory, words: IntPointer, first: int) -> Value:
        """The integer."""
        return k.load_int(words, first)


class RealWord:
    """A real among the words. It is loaded where it is used, so that it takes no register before."""

    def __init__(self, k: Memory, words: IntPointer, number: int) -> None:
        self._k, self._words, self._number = k, words, number

    def load(self) -> Value:
        """The real in every lane."""
        return self._k.load_double(self._words, self._number)


class Real(Kind[float, RealWord]):
    """A real number."""

    read = staticmethod(RealWord)

    @staticmethod
    def to_words(given: float) -> tuple[int]:
        """The bits of a double."""
        word: tuple[int] = unpack("q", pack("d", given))
        return word


ADDRESS = "{given}.data_ptr()"
OPTIONAL_ADDRESS = "0 if {given} is None else {given}.data_ptr()"


class Reals(Kind[Tensor, RealPointer]):
    """Reals of the kernel's width."""

    expression = ADDRESS

    @staticmethod
    def read(k: Memory, words: IntPointer, first: int) -> RealPointer:
        """The address."""
        return RealPointer(k.load_int(words, first))


class OptionalReals(Kind[Tensor | None, RealPointer]):
    """Reals of the kernel's width, or None."""

    expression = OPTIONAL_ADDRESS
    read = Reals.read


class Integers(Kind[Tensor, IntPointer]):
    """64-bit integers."""

    expression = ADDRESS

    @staticmethod
    def read(k: Memory, words: IntPointer, first: int) -> IntPointer:
        """The address."""
        return IntPointer(k.load_int(words, first))


class OptionalIntegers(Kind[Tensor | None, IntPointer]):
    """64-bit integers, or None."""

    expression = OPTIONAL_ADDRESS
    read = Integers.read


class Bytes(Kind[Tensor, BytePointer]):
    """Numbers of any dtype, addressed in bytes."""

    expression = ADDRESS

    @staticmethod
    def read(k: Memory, words: IntPointer, first: int) -> BytePointer:
        """The address."""
        return BytePointer(k.load_int(words, first))


class OptionalBytes(Kind[Tensor | None, BytePointer]):
    """Numbers of any dtype, addressed in bytes, or None."""

    expression = OPTIONAL_ADDRESS
    read = Bytes.read


class OptionalBooleans(OptionalBytes):
    """Booleans, a byte each, or None."""


class Result(Kind[IntArray, IntPointer]):
    """A single integer that the kernel may write, given as ``array("q", [0])``."""

    expression = "{given}.buffer_info()[0]"
    read = Integers.read


class ThreadMemory:
    """Scratch memory, with a part for each thread."""

    def __init__(self, k: Memory, words: IntPointer, first: int) -> None:
        self._base, self._size = Reals.read(k, words, first), k.load_int(words, first + 1)

    def of(self, thread: Value) -> RealPointer:
        """The part of a thread."""
        return self._base + thread * self._size


class Scratch(Kind[Tensor, ThreadMemory]):
    """Scratch memory of reals (threads, size)."""

    words = 2
    expression = "{given}.data_ptr(), {given}.size(1)"
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
    words: ClassVar[int] = 0
    expression: ClassVar[str] = "*{given}.to_words()"

    def __init_subclass__(cls) -> None:
        """Number the words; those of a base come first."""
        cls.kinds = {**cls.kinds, **get_annotations(cls)}
        cls.to_words = Arguments.to_words  # type: ignore[method-assign]  # in place of what a base has compiled
        cls.words = 0
        for name, kind in cls.kinds.items():
            setattr(cls, name, cls.words)
            cls.words += kind.words

    def __init__(self, **given: Any) -> None:
        """Raise TypeError for missing and unknown fields."""
        if given.keys() != self.kinds.keys():
            expected, got = (", ".join(names) for names in (self.kinds, given))
            raise TypeError(f"{type(self).__name__}: expected {expected}; got {got}")
        vars(self).update(given)

    def to_words(self) -> list[int]:
        """The words, in the order of the fields. Tensors and arrays must outlive the kernel's call.

        Compiled at the first call.
        """
        kinds = self.kinds
        expressions = [kind.expression.format(given=f"self.{x}", kind=f"kinds['{x}']") for x, kind in kinds.items()]
        compiled = eval(f"lambda self: [{', '.join(expressions)}]", {"kinds": kinds})
        type(self).to_words = compiled  # type: ignore[method-assign]
        words: list[int] = compiled(self)
        return words

    @classmethod
    def read(cls, k: Memory, words: IntPointer, first: int) -> Self:
        """Emit loads of all fields; the result's attributes have their names."""
        found = cls.__new__(cls)
        for name, kind in cls.kinds.items():
            vars(found)[name] = kind.read(k, words, first)
            first += kind.words
        return found
