"""The format of answers: frames of plain JSON and array bytes.

A frame is the lengths of both parts, the JSON, and the bytes. A backend may send anything, so that the judge reads
answers with this module only: it creates numbers, texts, sequences, the specification's records, and arrays that own
their bytes; nothing else. Requests are pickles, since only the judge writes them.

In JSON, any value that is not plain is a list that begins with a letter: n is a NumPy array and g a NumPy scalar, with
the place of their bytes; d, r, t and l are a mapping, a record, a tuple and a list; a, f, c and o are an array, a
function, a context manager and another object that stay in the backend's process. The contents of an array a are v with
a value, or e with the exception of its conversion.
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

from attnspec.conformance.remote.raised import MalformedReply, exception_as_json, type_name
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import Branch, walk

LENGTHS = struct.Struct("<QQ")
"""Prefix of a frame: byte counts of its JSON and of its arrays."""

MAX_TEXT, MAX_BYTES = 1 << 26, 1 << 32
"""Largest byte counts of JSON and arrays."""

MAX_SMALL = 1 << 18
"""Most numbers of an array whose contents are sent before they are requested."""

MAX_DEPTH = 64
"""Largest depth of a value."""

ALIGNED = 64
"""Alignment of arrays in a frame, in bytes."""

MAX_GAPS = 4096
"""Most bytes of gaps, beyond an array's own bytes, sent to keep its strides."""

ENCODE = json.JSONEncoder(check_circular=False).encode
"""JSON encoder without a check for cycles: the encoded values contain none."""

PLAIN_KINDS = "biufcSU"
"""Kinds of NumPy's own dtypes whose numbers are plain bytes."""


@cache
def records() -> Mapping[str, type]:
    """Return the specification's records by name, the only classes that an answer may instantiate."""
    trees = (tree for o in OPERATIONS.values() for tree in (o.call, o.result))
    nodes = (node for tree in trees for node in walk(tree) if isinstance(node, Branch))
    # Of all branches only records, such as LSTMParameters, have names and a class; calls are dicts.
    classes = {node.build for node in nodes if isinstance(node.build, type) and node.names and node.build is not dict}
    return {f"{c.__module__}:{c.__qualname__}": c for c in classes}


@cache
def _record_of(kind: type) -> tuple[str, tuple[str, ...]] | None:
    """Return name and fields of a class's record; None for other classes."""
    for name, record in records().items():
        if issubclass(kind, record):
            return name, tuple(getattr(record, "__dataclass_fields__", ())) or record._fields  # type: ignore[attr-defined]
    return None


# Writing, in the process of the backend -------------------------------------------------------------------------------


class Writer:
    """Writer of one answer: JSON that refers to positions in the bytes of arrays.

    ``keep`` numbers an object that stays in this process. ``read`` converts a backend's array to a NumPy array; if
    given, the contents of small arrays are sent along.
    """

    def __init__(self, keep: Callable[[Any], int], read: Callable[[Any], Any] | None = None) -> None:
        self.keep, self.read = keep, read
        self.parts: list[Any] = []
        self.length = 0

    def value(self, x: Any, depth: int = 0) -> Any:
        """Return a value as JSON: plain values unchanged, others as a list with a kind.

        Arrays and unknown objects stay in this process: their numbers are sent.
        """
        if x is None or x is True or x is False or type(x) in (int, float, str):
            return x
        if isinstance(x, np.generic) and not isinstance(x, np.void):
            return ["g", self.array(np.asarray(x))]
        if isinstance(x, type) or depth > MAX_DEPTH:
            return ["f" if callable(x) else "o", self.keep(x), type(x).__name__]
        shape = _shape(x)
        if shape is not None:
            # A large array may have memory that was never touched: it is read only on request.
            content = None if self.read is None or not is_small(x) else self.content(x)
            return ["a", self.keep(x), shape, isinstance(x, np.ndarray), type(x).__name__, content]
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

    def content(self, x: Any) -> Any:
        """Return the contents of a backend's array, or the exception of its conversion."""
        read, self.read = self.read, None
        try:
            array = x if read is None else read(x)
            return ["v", self.array(array) if isinstance(array, np.ndarray) else self.value(array)]
        except BaseException as error:  # noqa: BLE001 - a backend's code may raise anything
            return ["e", exception_as_json(error)]
        finally:
            self.read = read

    def array(self, x: Any) -> Any:
        """Return the JSON of a NumPy array; memory with few gaps keeps its strides."""
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
        if high - low > 2 * x.nbytes + MAX_GAPS:
            x = np.array(x, order="C")
            return self._placed(x, kind, 0, x.nbytes)
        return self._placed(x, kind, x.__array_interface__["data"][0] - low, high - low)

    def _placed(self, x: Any, kind: str, first: int, length: int) -> Any:
        place = self.length + -self.length % ALIGNED
        self.parts.append((place, x, first, length))
        self.length = place + length
        return ["n", kind, x.shape, x.strides, first, place, length]

    def frame(self, answer: Any) -> bytearray:
        """Return the whole frame."""
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
    """Return whether a value has a shape of at most :data:`MAX_SMALL` numbers."""
    shape = _shape(x)
    return shape is not None and math.prod(shape) <= MAX_SMALL


def _shape(x: Any) -> list[int] | None:
    """Return the shape of a value that has one; None otherwise."""
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
    """Return the name of a dtype; None if its numbers are not plain bytes."""
    if dtype.kind in PLAIN_KINDS and dtype.type.__module__ == "numpy":
        return dtype.str
    return dtype.name if getattr(ml_dtypes, dtype.name, None) is dtype.type else None


# Reading, in the process of the judge ---------------------------------------------------------------------------------


def dtype_named(text: Any) -> "np.dtype[Any]":
    """Return the dtype of a name that was received."""
    if not isinstance(text, str) or len(text) > 32:
        raise MalformedReply("expected the name of a dtype")
    return _dtype(text)


@cache
def _dtype(text: str) -> "np.dtype[Any]":
    own = getattr(ml_dtypes, text, None) if text.isidentifier() else None
    if isinstance(own, type) and issubclass(own, np.generic):
        return np.dtype(own)
    if text[:1] not in "<>|" or text[1:2] not in PLAIN_KINDS or not text[2:].isdigit():
        raise MalformedReply("expected the name of a dtype")
    try:
        return np.dtype(text)
    except TypeError:
        raise MalformedReply("expected the name of a dtype") from None


class Reader:
    """Reader of one answer; ``make_handle`` represents objects that stay in the backend's process."""

    def __init__(self, payload: Any, make_handle: Callable[[str, int, list[Any]], Any]) -> None:
        self.payload, self.make_handle = payload, make_handle

    def value(self, x: Any, depth: int = 0) -> Any:
        """Return the value that JSON describes; :class:`MalformedReply` if it is malformed."""
        if not isinstance(x, list):
            if isinstance(x, dict):
                raise MalformedReply("expected no object of JSON")
            return x
        try:
            letter, *fields = x
            if depth > 2 * MAX_DEPTH:
                raise MalformedReply(f"expected at most {2 * MAX_DEPTH} nested values")
            if letter in ("a", "f", "c", "o"):
                number, *details = fields
                return self.make_handle(letter, _natural(number), details)
            if letter == "n":
                return self.array(fields)
            if letter == "g":
                return self.array(fields[0][1:])[()]
            if letter == "d":
                return {_text(name): self.value(part, depth + 1) for name, part in fields[0]}
            if letter == "r":
                return records()[fields[0]](*(self.value(part, depth + 1) for part in fields[1]))
            if letter in ("t", "l"):
                parts = (self.value(part, depth + 1) for part in fields[1])
                return _sequence(tuple if letter == "t" else list, _text(fields[0]))(parts)
        except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
            raise MalformedReply(f"{type(error).__name__}: {error}") from None
        raise MalformedReply("expected a known kind of value")

    def array(self, fields: Any) -> Any:
        """Return an array that owns its numbers."""
        if fields[0] is None:
            # Its numbers cannot be sent: empty objects take their place, in its shape unless that is large.
            shape = [_natural(n) for n in fields[1]]
            return np.empty(shape if math.prod(shape) <= MAX_GAPS else (), object)
        text, shape, strides, first, place, length = fields
        dtype, sizes = dtype_named(text), [_natural(n) for n in shape]
        if not math.prod(sizes):
            return np.zeros(sizes, dtype)
        start, end = _natural(place), _natural(place) + _natural(length)
        if end > len(self.payload):
            raise MalformedReply("expected the bytes of an array")
        return np.ndarray(sizes, dtype, self.payload[start:end], _natural(first), [int(n) for n in strides])


def _natural(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise MalformedReply("expected a natural number")
    return x


def _text(x: Any) -> str:
    if not isinstance(x, str):
        raise MalformedReply("expected a text")
    return x


@cache
def _sequence(base: type, name: str) -> type:
    return base if name == base.__name__ else type(type_name(name), (base,), {})


def header(text: bytes | bytearray | memoryview) -> Any:
    """Return the JSON of a frame."""
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"expected JSON: {type(error).__name__}") from None
