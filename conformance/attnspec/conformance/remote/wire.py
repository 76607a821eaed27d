"""What the process of a backend may say, and how: frames of plain JSON and the bytes of arrays.

A frame is the lengths of both parts, the JSON, and the bytes. What comes from a backend's process is only ever read by
this module: it makes numbers, texts, tuples, records of the specification and arrays, whose every byte is copied, and
nothing else. Requests go the other way as pickles, since nobody but the judge writes them.
"""

import ctypes
import json
import math
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from attnspec.conformance.remote.raised import Breach, told, type_name
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import Branch, walked

LENGTHS = struct.Struct("<QQ")
"""Before each frame: the bytes of its JSON, and those of its arrays."""

MAX_TEXT, MAX_BYTES = 1 << 26, 1 << 32
"""The most that either part may have."""

EAGER = 1 << 18
"""The most numbers of an array that are sent before they are asked for."""

MAX_DEPTH = 64
"""Trees within trees."""

ALIGNED = 64
"""Arrays begin at multiples of so many bytes."""

SPARE = 4096
"""Bytes between the numbers of an array that are sent along, so that its strides are kept."""

ENCODE = json.JSONEncoder(check_circular=False).encode
"""Nothing of what is written down holds itself."""

PLAIN = "biufcSU"
"""The kinds of dtypes of NumPy's own whose numbers are bytes."""


@cache
def records() -> Mapping[str, type]:
    """The records of the specification, by name: the only classes of which an answer may hold instances."""
    trees = (tree for o in OPERATIONS.values() for tree in (o.call, o.result))
    nodes = (node for tree in trees for node in walked(tree) if isinstance(node, Branch))
    found = {node.build for node in nodes if isinstance(node.build, type) and node.names and node.build is not dict}
    return {f"{c.__module__}:{c.__qualname__}": c for c in found}


@cache
def _record_of(kind: type) -> tuple[str, tuple[str, ...]] | None:
    """The name and the fields of the record that a class is, or is derived from; None if it is none."""
    for name, record in records().items():
        if issubclass(kind, record):
            return name, tuple(getattr(record, "__dataclass_fields__", ())) or record._fields  # type: ignore[attr-defined]
    return None


# Writing, in the process of the backend -------------------------------------------------------------------------------


class Writer:
    """An answer in the making: JSON that names places in a list of bytes.

    ``keep`` gives an object that stays where it is a number. With ``read``, which makes an array of NumPy of one of the
    backend, or raises, the numbers of all arrays are sent along.
    """

    def __init__(self, keep: Callable[[Any], int], read: Callable[[Any], Any] | None = None) -> None:
        self.keep, self.read = keep, read
        self.parts: list[Any] = []
        self.length = 0

    def value(self, x: Any, depth: int = 0) -> Any:
        """The JSON of a value: numbers and texts as they are, all else as a list whose first element says what it is.

        Arrays, and all objects of which nothing is known, stay where they are and are handles.
        """
        if x is None or x is True or x is False or type(x) in (int, float, str):
            return x
        if isinstance(x, np.generic) and not isinstance(x, np.void):
            return ["g", self.array(np.asarray(x))]
        if isinstance(x, type) or depth > MAX_DEPTH:
            return ["f" if callable(x) else "o", self.keep(x), type(x).__name__]
        shape = _shape(x)
        if shape is not None:
            # A large array may be mere space, of which nothing is ever touched: it is read when it is asked for.
            seen = None if self.read is None or not is_small(x) else self.seen(x)
            return ["a", self.keep(x), shape, isinstance(x, np.ndarray), type(x).__name__, seen]
        if isinstance(x, dict) or (isinstance(x, Mapping) and depth == 0):
            return ["d", [[str(name), self.value(part, depth + 1)] for name, part in x.items()]]
        kind: Any = type(x)
        if (record := _record_of(kind)) is not None:
            return ["r", record[0], [self.value(getattr(x, name), depth + 1) for name in record[1]]]
        if isinstance(x, tuple | list):
            letter = "t" if isinstance(x, tuple) else "l"
            return [letter, type(x).__name__, [self.value(part, depth + 1) for part in x]]
        letter = "c" if hasattr(type(x), "__enter__") else "f" if callable(x) else "o"
        return [letter, self.keep(x), type(x).__name__]

    def seen(self, x: Any) -> Any:
        """What an array of the backend holds, or what the conversion raised."""
        read, self.read = self.read, None
        try:
            found = x if read is None else read(x)
            return ["v", self.array(found) if isinstance(found, np.ndarray) else self.value(found)]
        except BaseException as error:  # noqa: BLE001 - a backend's code may raise anything
            return ["e", told(error)]
        finally:
            self.read = read

    def array(self, x: Any) -> Any:
        """An array of NumPy with its numbers, as they lie in memory where that is dense."""
        x = np.ndarray.view(x, np.ndarray)
        kind = dtype_text(x.dtype)
        if kind is None:
            return ["n", None, list(x.shape)]
        if x.nbytes > MAX_BYTES:
            raise MemoryError(f"{x.nbytes} bytes of one array; at most {MAX_BYTES} are read")
        if not x.size:
            return ["n", kind, list(x.shape), None, 0, 0, 0]
        if x.flags.c_contiguous:
            return self._placed(x, kind, 0, x.nbytes)
        low, high = np.lib.array_utils.byte_bounds(x)
        if high - low > 2 * x.nbytes + SPARE:
            x = np.array(x, order="C")
            return self._placed(x, kind, 0, x.nbytes)
        return self._placed(x, kind, x.__array_interface__["data"][0] - low, high - low)

    def _placed(self, x: Any, kind: str, first: int, length: int) -> Any:
        place = self.length + -self.length % ALIGNED
        self.parts.append((place, x, first, length))
        self.length = place + length
        return ["n", kind, x.shape, x.strides, first, place, length]

    def frame(self, answer: Any) -> bytearray:
        """The whole frame."""
        text = ENCODE(answer).encode("ascii")
        start = LENGTHS.size + len(text)
        frame = bytearray(start + self.length)
        LENGTHS.pack_into(frame, 0, len(text), self.length)
        frame[LENGTHS.size : start] = text
        for place, x, first, length in self.parts:
            low = x.ctypes.data - first
            frame[start + place : start + place + length] = (ctypes.c_char * length).from_address(low)
        return frame


def is_small(x: Any) -> bool:
    """Whether something has a shape, and not many numbers."""
    shape = _shape(x)
    return shape is not None and math.prod(shape) <= EAGER


def _shape(x: Any) -> list[int] | None:
    """The shape of whatever has one."""
    try:
        shape = x.shape
    except AttributeError:
        return None
    except Exception:  # noqa: BLE001 - a backend's array may raise anything
        return []
    try:
        return [int(size) for size in shape]
    except Exception:  # noqa: BLE001 - a backend's shape may be anything
        return []


@cache
def dtype_text(dtype: "np.dtype[Any]") -> str | None:
    """How a dtype is written; None for one whose numbers are no bytes."""
    if dtype.kind in PLAIN and dtype.type.__module__ == "numpy":
        return dtype.str
    return dtype.name if getattr(ml_dtypes, dtype.name, None) is dtype.type else None


# Reading, in the process of the judge ---------------------------------------------------------------------------------


def dtype_named(text: Any) -> "np.dtype[Any]":
    """The dtype that is written like this."""
    if not isinstance(text, str) or len(text) > 32:
        raise Breach("a dtype that is none")
    return _dtype(text)


@cache
def _dtype(text: str) -> "np.dtype[Any]":
    own = getattr(ml_dtypes, text, None) if text.isidentifier() else None
    if isinstance(own, type) and issubclass(own, np.generic):
        return np.dtype(own)
    if text[:1] not in "<>|" or text[1:2] not in PLAIN or not text[2:].isdigit():
        raise Breach("a dtype that is none")
    try:
        return np.dtype(text)
    except TypeError:
        raise Breach("a dtype that is none") from None


class Reader:
    """An answer as it came: ``made`` makes what stands for an object that has stayed where it is."""

    def __init__(self, payload: Any, made: Callable[[str, int, list[Any]], Any]) -> None:
        self.payload, self.made = payload, made

    def value(self, x: Any, depth: int = 0) -> Any:
        """The value that JSON describes; :class:`Breach` if it describes none."""
        if not isinstance(x, list):
            if isinstance(x, dict):
                raise Breach("an object")
            return x
        try:
            letter, *rest = x
            if depth > 2 * MAX_DEPTH:
                raise Breach("too many trees within trees")
            if letter in ("a", "f", "c", "o"):
                number, *more = rest
                return self.made(letter, _natural(number), more)
            if letter == "n":
                return self.array(rest)
            if letter == "g":
                return self.array(rest[0][1:])[()]
            if letter == "d":
                return {_text(name): self.value(part, depth + 1) for name, part in rest[0]}
            if letter == "r":
                return records()[rest[0]](*(self.value(part, depth + 1) for part in rest[1]))
            if letter in ("t", "l"):
                parts = (self.value(part, depth + 1) for part in rest[1])
                return _sequence(tuple if letter == "t" else list, _text(rest[0]))(parts)
        except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
            raise Breach(f"{type(error).__name__}: {error}") from None
        raise Breach("of no kind")

    def array(self, given: Any) -> Any:
        """An array with numbers of its own."""
        if given[0] is None:
            shape = [_natural(n) for n in given[1]]
            return np.empty(shape if math.prod(shape) <= SPARE else (), object)
        text, shape, strides, first, place, length = given
        dtype, sizes = dtype_named(text), [_natural(n) for n in shape]
        if not math.prod(sizes):
            return np.zeros(sizes, dtype)
        start, end = _natural(place), _natural(place) + _natural(length)
        if end > len(self.payload):
            raise Breach("bytes that have not come")
        return np.ndarray(sizes, dtype, self.payload[start:end], _natural(first), [int(n) for n in strides])


def _natural(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise Breach("a number that is none")
    return x


def _text(x: Any) -> str:
    if not isinstance(x, str):
        raise Breach("a text that is none")
    return x


@cache
def _sequence(base: type, name: str) -> type:
    """The class of a tuple or list that calls itself otherwise."""
    return base if name == base.__name__ else type(type_name(name), (base,), {})


def header(text: bytes | bytearray | memoryview) -> Any:
    """The JSON of a frame."""
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise Breach(f"no JSON: {type(error).__name__}") from None
