"""Trees of arrays, the structures of arguments and results: descriptions, flattening and rebuilding.

A tree is an array, a record, a tuple of fixed length, or a tuple of any number of similar trees, such as layers. A
record is a frozen dataclass of trees; an argument may also be a NamedTuple. The path of an array in a tree is written
as in Python: ``parameters.w_hf``, ``layers[1].attention.w_k``. In descriptions, ``[:]`` stands for any item.

Values are flattened by their own structure (:func:`flatten`, :func:`map_tree`, :func:`as_source`). Descriptions, which
are :class:`Leaf`, :class:`Option` and :class:`Branch`, check values (:func:`pair_leaves`) and build them
(:func:`build_tree`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain, repeat
from math import prod
from operator import attrgetter
from types import NoneType
from typing import Any, TypeAlias

Shape: TypeAlias = tuple[int, ...]
Items: TypeAlias = tuple[int, ...]
"""Index in each tuple of similar trees on the path to a node."""


class Kind(StrEnum):
    """Kinds of leaves: three for arrays, five for options."""

    FLOAT = "float"
    BOOL = "bool"
    INT = "int"
    SIZE = "size"
    COUNT = "count"
    NUMBER = "number"
    CHOICE = "choice"
    WINDOW = "window"


@dataclass(frozen=True)
class Dim:
    """One dimension of a shape.

    ``written`` is its text in the annotation. ``factors`` are the sizes whose product it is, usually a single one; a
    factor may be a number in digits or a sum such as ``1+rows*columns``. A ``variadic`` Dim stands for any number of
    dimensions; a ``broadcast`` one may also be 1.
    """

    written: str
    factors: tuple[str, ...]
    variadic: bool = False
    broadcast: bool = False
    sizes: tuple[str, ...] = field(init=False, compare=False)
    """Size names in its factors and sums, without digits; empty if it is variadic."""
    plain: bool = field(init=False, compare=False)
    """True if it is a single size that does not broadcast."""

    def __post_init__(self) -> None:
        named = () if self.variadic else tuple(s for f in self.factors for s in re.split(r"[+*]", f))
        sizes = tuple(s for s in named if not s.isdigit())
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "plain", len(self.factors) == 1 and sizes == self.factors and not self.broadcast)


@dataclass(frozen=True, eq=False)
class Leaf:
    """Description of an array: its path, the kind of its numbers, and its dimensions."""

    path: str
    kind: Kind
    dims: tuple[Dim, ...] = ()
    optional: bool = False
    batched: bool = field(init=False)
    """True if leading batch dimensions are allowed."""
    core: tuple[Dim, ...] = field(init=False)
    """Dimensions after the batch."""
    sizes: tuple[str, ...] = field(init=False)
    """Size names in its dimensions, in order."""
    free: bool = field(init=False)
    """True if it has variadic dimensions besides the batch; the formula itself then checks the shape."""

    def __post_init__(self) -> None:
        batched = bool(self.dims) and self.dims[0].variadic and self.dims[0].written == "batch"
        core = self.dims[1:] if batched else self.dims
        object.__setattr__(self, "batched", batched)
        object.__setattr__(self, "core", core)
        object.__setattr__(self, "free", any(d.variadic for d in core))
        object.__setattr__(self, "sizes", tuple(size for d in core for size in d.sizes))

    @property
    def shape_text(self) -> str:
        """Shape as the Protocol writes it, such as ``(*batch, n, d)``."""
        return as_tuple([f"*{d.written}" if d.variadic else d.written for d in self.dims])

    def axes(self, size: str) -> list[int]:
        """Axes that carry a size, counted from the end."""
        return [i - len(self.core) for i, d in enumerate(self.core) if size in d.sizes]

    @lru_cache(maxsize=4096)  # noqa: B019 - descriptions live as long as the contract
    def at(self, items: Items) -> "Leaf":
        """Copy with these indices in place of ``[:]``."""
        dims = tuple(replace(d, factors=tuple(with_indices(f, items) for f in d.factors)) for d in self.dims)
        return replace(self, path=with_indices(self.path, items), dims=dims)


@dataclass(frozen=True)
class Option:
    """Description of an argument that is no array: a number, a flag, a choice or a window."""

    path: str
    kind: Kind
    choices: tuple[Any, ...] = ()
    optional: bool = False

    def takes(self, value: Any) -> bool:
        """True if a value is allowed: a choice, a number of the right kind, a valid window, or None if optional."""
        if value is None:
            return self.optional
        if self.kind is Kind.WINDOW:
            sides = value if type(value) is tuple else ()
            return len(sides) == 2 and all(x is None or (type(x) is int and x >= 0) for x in sides)
        if self.choices:
            return any(type(value) is type(c) and value == c for c in self.choices)
        kinds = (int, float) if self.kind is Kind.NUMBER else (int,)
        return isinstance(value, kinds) and not isinstance(value, bool)

    @property
    def expected(self) -> str:
        """Text of the expected values."""
        if self.choices == (False, True):
            return "True or False"
        if self.kind is Kind.WINDOW:
            return "a tuple (left, right), each an integer of at least 0 or None"
        choices_text = " or ".join(map(repr, self.choices))
        return choices_text or ("a number" if self.kind is Kind.NUMBER else "an integer")


@dataclass(frozen=True, eq=False)
class Branch:
    """Description of a record, a tuple of trees, or a call's arguments (``build`` is ``dict``).

    ``names`` are the fields of a record, empty for a tuple. If ``repeated``, it is a tuple of similar trees: ``nodes``
    describes the first and every other, ``count`` is the size that counts them. With ``NoneType`` as ``build`` the
    value is always None.
    """

    path: str
    build: type
    names: tuple[str, ...]
    nodes: tuple["Node", ...]
    repeated: bool = False
    count: str = ""
    optional: bool = False

    def node(self, number: int) -> "Node":
        """Description of the tree at an index."""
        return self.nodes[min(number, 1)] if self.repeated else self.nodes[number]

    def part_path(self, number: int, path: str) -> str:
        """Path of the tree at an index, where ``path`` is that of the branch."""
        name = self.names[number] if self.names else f"[{number}]"
        return f"{path}.{name}" if self.names and path else f"{path}{name}"

    def rebuilt(self, parts: list[Any]) -> Any:
        """Build a record or tuple from its parts; None where ``build`` is ``NoneType``."""
        if self.build is NoneType:
            return None
        return self.build(**dict(zip(self.names, parts, strict=True))) if self.names else tuple(parts)


Node: TypeAlias = Leaf | Option | Branch


class StructureError(ValueError):
    """Raised for a value that does not fit its description."""

    def __init__(self, path: str, expected: str, got: object) -> None:
        super().__init__(f"{path}: expected {expected}; got {got}")
        self.path, self.expected, self.got = path, expected, got


# Values ---------------------------------------------------------------------------------------------------------------


def branches(value: Any, path: str = "") -> list[tuple[str, Any]] | None:
    """Parts of a value with their paths; None for an array or an option, such as a window."""
    # A window such as (2, None) is one option, though a tuple.
    of_window = type(value) is tuple and any(isinstance(x, int) for x in value)
    if of_window or hasattr(value, "shape") or isinstance(value, type):
        return None
    if isinstance(value, dict):
        return [(f"{path}.{name}" if path else name, x) for name, x in value.items()]
    names = field_names(value)
    if names:
        return [(f"{path}.{name}" if path else name, getattr(value, name)) for name in names]
    return [(f"{path}[{i}]", x) for i, x in enumerate(value)] if isinstance(value, tuple) else None


def field_names(value: Any) -> tuple[str, ...]:
    """Field names of a record or NamedTuple; empty for any other value."""
    return tuple(getattr(value, "__dataclass_fields__", ())) or getattr(value, "_fields", ())


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Arrays and options of a tree by path, in order."""
    inner = branches(value, path)
    if inner is None:
        return {path: value}
    return {p: x for below, part in inner for p, x in flatten(part, below).items()}


def map_tree(value: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Apply ``change(path, value)`` to every array and option of a tree; the structure stays."""
    inner = branches(value, path)
    if inner is None:
        return change(path, value)
    parts = [map_tree(part, change, below) for below, part in inner]
    if isinstance(value, dict):
        return dict(zip(value, parts, strict=True))
    names = field_names(value)
    return type(value)(**dict(zip(names, parts, strict=True))) if names else tuple(parts)


def as_source(value: Any, show: Callable[[Any], str]) -> str:
    """Python expression for a tree; ``show`` prints arrays and options."""
    inner = branches(value)
    if inner is None:
        return show(value)
    parts = [as_source(part, show) for _, part in inner]
    names = field_names(value)
    if not names:
        return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    return f"{type(value).__name__}({', '.join(f'{n}={p}' for n, p in zip(names, parts, strict=True))})"


# Descriptions ---------------------------------------------------------------------------------------------------------


Described: TypeAlias = list[tuple[Leaf | Option, Any]]
Placed: TypeAlias = list[tuple[Leaf | Option, Items, Any]]
Counter: TypeAlias = Callable[[Branch, str, int], None]
"""Callback ``(branch, path, number)`` for each tuple of similar trees."""


def pair_leaves(node: Node, value: Any, path: str = "", counted: Counter | None = None) -> Described:
    """Arrays and options of a value with their descriptions; None stands for an optional part that is absent.

    :class:`StructureError` if the value has another structure.
    """
    places = place_leaves(node, value, path, counted)
    return [(inner.at(at) if at and isinstance(inner, Leaf) else inner, x) for inner, at, x in places]


def place_leaves(node: Node, value: Any, path: str = "", counted: Counter | None = None) -> Placed:
    """Like :func:`pair_leaves`, but with indices beside shared descriptions, so that PyTorch can trace it."""
    places: Placed = []
    _place(node, value, path, (), counted, places)
    return places


def _place(node: Node, value: Any, path: str, items: Items, counted: Counter | None, places: Placed) -> None:
    if not isinstance(node, Branch):
        places.append((node, items, value))
        return
    if node.build is NoneType:
        return
    if value is None and node.optional:
        places += [(replace(inner, optional=True), items, None) for inner in walk(node) if isinstance(inner, Leaf)]
        return
    parts = _parts(node, value, path)
    if node.repeated and counted is not None:
        counted(node, path, len(parts))
    for number, part in enumerate(parts):
        below = node.part_path(number, path) if isinstance(inner := node.node(number), Branch) else ""
        _place(inner, part, below, (*items, number) if node.repeated else items, counted, places)


def _parts(node: Branch, value: Any, path: str) -> tuple[Any, ...]:
    if node.build is dict:
        return tuple(value.get(name) for name in node.names)
    if not isinstance(value, node.build):
        expected = node.build.__name__
        raise StructureError(path, f"{'an' if expected[0] in 'AEIOU' else 'a'} {expected}", type(value).__name__)
    if node.names:
        return tuple(getattr(value, name) for name in node.names)
    parts: tuple[Any, ...] = tuple(value)  # type: ignore[arg-type]
    if not node.repeated and len(parts) != len(node.nodes):
        raise StructureError(path, f"a tuple of {len(node.nodes)}", f"one of {len(parts)}")
    return parts


def build_tree(
    node: Node, at: Callable[[Leaf | Option], Any], count: Callable[[Branch], int], items: Items = ()
) -> Any:
    """Build a value: ``at`` makes arrays and options (None omits one), ``count`` gives the numbers of similar trees."""
    if not isinstance(node, Branch):
        return at(node.at(items) if items and isinstance(node, Leaf) else node)
    if not node.repeated:
        return node.rebuilt([build_tree(inner, at, count, items) for inner in node.nodes])
    return tuple(build_tree(node.node(i), at, count, (*items, i)) for i in range(count(node)))


def walk(node: Node) -> Iterator[Node]:
    """Yield a description and all its parts; of similar trees the first and, if it differs, the other."""
    yield node
    for inner in dict.fromkeys(node.nodes) if isinstance(node, Branch) else ():
        yield from walk(inner)


Reader: TypeAlias = Callable[[Any, list[Any], list[Any]], None]


def reader(node: Node) -> Reader:
    """Compile the flattening of a tree: it appends arrays to one list, and lengths of tuples to another.

    ``TypeError`` for a value of another structure. Every call of an operation runs it, hence closures for speed.
    """
    if not isinstance(node, Branch):
        return lambda value, arrays, counts: arrays.append(value)
    read = _record_reader(node) if _is_record(node) else _tuple_reader(node)
    if not node.optional:
        return read
    absent = [None] * sum(isinstance(n, Leaf) for n in walk(node))
    return lambda value, arrays, counts: arrays.extend(absent) if value is None else read(value, arrays, counts)


def _is_record(node: Node) -> bool:
    """True if a tree has only records and arrays and no optional record: its paths are then attributes."""
    return not isinstance(node, Branch) or (
        bool(node.names) and all(not (isinstance(n, Branch) and n.optional) and _is_record(n) for n in node.nodes)
    )


def _record_reader(node: Branch) -> Reader:
    """Read all arrays of nested records with one ``attrgetter``."""
    below = [(n.path.removeprefix(f"{node.path}."), n) for n in walk(node)][1:]
    builds = [n.build for _, n in below if isinstance(n, Branch)]
    records = _attributes([path for path, n in below if isinstance(n, Branch)])
    arrays = _attributes([path for path, n in below if isinstance(n, Leaf)])

    def read(value: Any, collected: list[Any], counts: list[Any]) -> None:
        try:
            if not isinstance(value, node.build) or not all(map(isinstance, records(value), builds)):
                raise TypeError
        except AttributeError:  # something else stands in place of an inner record
            raise TypeError from None
        collected.extend(arrays(value))

    return read


def _attributes(paths: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Getter of the values at dotted paths, always as a tuple."""
    if not paths:
        return lambda value: ()
    get = attrgetter(*paths)
    return get if len(paths) > 1 else lambda value: (get(value),)


def _tuple_reader(node: Branch) -> Reader:
    """Read the arrays of a tuple, or of a record with tuples or optional records."""
    build, names, repeated, expected = node.build, node.names, node.repeated, len(node.nodes)
    inner = [reader(n) for n in node.nodes]

    def read(value: Any, collected: list[Any], counts: list[Any]) -> None:
        if not isinstance(value, build):
            raise TypeError
        parts: Any = [getattr(value, name) for name in names] if names else value
        if repeated:
            counts.append(len(parts))
        elif len(parts) != expected:
            raise TypeError
        for step, part in zip(chain(inner[:1], repeat(inner[-1])) if repeated else inner, parts, strict=False):
            step(part, collected, counts)

    return read


def with_indices(text: str, items: Items) -> str:
    """Replace each ``[:]`` of a path or size by an index, from the left. Every term or factor starts anew."""
    for sign in "+*":
        if sign in text:
            return sign.join([with_indices(part, items) for part in text.split(sign)])
    for i in items:
        text = text.replace("[:]", f"[{i}]", 1)
    return text


def without_indices(path: str) -> str:
    """Replace the indices of a path or size by ``[:]``, as descriptions write it."""
    return re.sub(r"\[\d+\]", "[:]", path) if "[" in path else path


def unscoped(size: str) -> str:
    """Name of a size without the path of its record."""
    return size.rpartition(".")[2]


def as_tuple(parts: Any) -> str:
    """Text of a shape, written as a tuple."""
    return "(" + ", ".join(map(str, parts)) + ("," if len(parts) == 1 else "") + ")"


def dimension_value(factors: tuple[str, ...], sizes: Mapping[str, int]) -> int | None:
    """Value of a dimension; None if one of its sizes is unknown."""
    if len(factors) > 1:
        # A list, since torch.compile traces no generators here.
        values = [dimension_value((f,), sizes) for f in factors]
        return None if None in values else prod([x for x in values if x is not None])
    (factor,) = factors
    if "+" in factor or "*" in factor:
        values = [dimension_value(tuple(term.split("*")), sizes) for term in factor.split("+")]
        return None if None in values else sum([x for x in values if x is not None])
    return int(factor) if factor.isdigit() else sizes.get(factor)
