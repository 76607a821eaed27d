"""Trees of arrays: what an argument or a result may be, and how it is flattened and rebuilt.

A tree is an array; a record, that is a frozen dataclass of trees (as an argument also a NamedTuple); a tuple of fixed
length; or a tuple of any number of similar trees, such as layers. The place of an array in a tree is its path, written
as Python writes it: ``parameters.w_hf``, ``layers[1].attention.w_k``. In descriptions, ``[:]`` stands for any item.

Values are flattened by their own structure (:func:`flatten`, :func:`mapped`, :func:`as_source`). Descriptions
(:class:`Leaf`, :class:`Option`, :class:`Branch`) say what a value must be (:func:`described`) and make new ones
(:func:`built`).
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
"""The index in each tuple of similar trees on the path to a node."""


class Kind(StrEnum):
    """The kinds of leaves: three of arrays, five of options."""

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

    ``written`` is how the annotation writes it, ``factors`` are the sizes whose product it is (one in the ordinary
    case; digits are a number, ``1+rows*columns`` is a sum). ``variadic`` stands for any number of dimensions,
    ``broadcast`` for a size that may also be 1.
    """

    written: str
    factors: tuple[str, ...]
    variadic: bool = False
    broadcast: bool = False
    sizes: tuple[str, ...] = field(init=False, compare=False)
    """The sizes that it names: its factors and what they add up, but for digits; none if it is variadic."""
    plain: bool = field(init=False, compare=False)
    """Whether it is one size by itself."""

    def __post_init__(self) -> None:
        named = () if self.variadic else tuple(s for f in self.factors for s in re.split(r"[+*]", f))
        sizes = tuple(s for s in named if not s.isdigit())
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "plain", len(self.factors) == 1 and sizes == self.factors and not self.broadcast)


@dataclass(frozen=True, eq=False)
class Leaf:
    """An array of a tree: its path, the kind of its numbers, and its dimensions."""

    path: str
    kind: Kind
    dims: tuple[Dim, ...] = ()
    optional: bool = False
    batched: bool = field(init=False)
    """Whether leading batch dimensions are allowed."""
    core: tuple[Dim, ...] = field(init=False)
    """The dimensions after the batch."""
    sizes: tuple[str, ...] = field(init=False)
    """The sizes that its dimensions name, in order."""
    free: bool = field(init=False)
    """Whether the formula itself checks the shape: any number of dimensions that are not a batch."""

    def __post_init__(self) -> None:
        batched = bool(self.dims) and self.dims[0].variadic and self.dims[0].written == "batch"
        core = self.dims[batched:]
        object.__setattr__(self, "batched", batched)
        object.__setattr__(self, "core", core)
        object.__setattr__(self, "free", any(d.variadic for d in core))
        object.__setattr__(self, "sizes", tuple(size for d in core for size in d.sizes))

    @property
    def shape_text(self) -> str:
        """The shape as the Protocol writes it, such as ``(*batch, n, d)``."""
        return as_tuple([f"*{d.written}" if d.variadic else d.written for d in self.dims])

    def axes(self, size: str) -> list[int]:
        """The axes, counted from the end, that carry a size."""
        return [i - len(self.core) for i, d in enumerate(self.core) if size in d.sizes]

    @lru_cache(maxsize=4096)  # noqa: B019 - descriptions live as long as the contract
    def at(self, items: Items) -> "Leaf":
        """The same array of these items."""
        dims = tuple(replace(d, factors=tuple(with_items(f, items) for f in d.factors)) for d in self.dims)
        return replace(self, path=with_items(self.path, items), dims=dims)


@dataclass(frozen=True)
class Option:
    """An argument that is not an array: a size, a count, another number, a flag, one of several words, or a window."""

    path: str
    kind: Kind
    choices: tuple[Any, ...] = ()
    optional: bool = False

    def takes(self, value: Any) -> bool:
        """Whether a value is one of the choices, or a number of its kind."""
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
        """The expected values, in words."""
        if self.choices == (False, True):
            return "True or False"
        if self.kind is Kind.WINDOW:
            return "a tuple (left, right), each an integer of at least 0 or None"
        words = " or ".join(map(repr, self.choices))
        return words or ("a number" if self.kind is Kind.NUMBER else "an integer")


@dataclass(frozen=True, eq=False)
class Branch:
    """A record or a tuple of trees, or (``dict``) the arguments of a call.

    ``names`` are the fields of a record, none for a tuple. For ``many`` similar trees, ``nodes`` describes the
    first and any other; ``count`` is the size that counts them. ``NoneType`` builds what there is none of.
    """

    path: str
    build: type
    names: tuple[str, ...]
    nodes: tuple["Node", ...]
    many: bool = False
    count: str = ""
    optional: bool = False

    def node(self, number: int) -> "Node":
        """The description of the tree with this number."""
        return self.nodes[min(number, 1)] if self.many else self.nodes[number]

    def part_path(self, number: int, path: str) -> str:
        """The path of the tree with this number, below the path of the branch itself."""
        name = self.names[number] if self.names else f"[{number}]"
        return f"{path}.{name}" if self.names and path else f"{path}{name}"

    def rebuilt(self, parts: list[Any]) -> Any:
        """A value of this form, from its trees; None where there is nothing."""
        if self.build is NoneType:
            return None
        return self.build(**dict(zip(self.names, parts, strict=True))) if self.names else tuple(parts)


Node: TypeAlias = Leaf | Option | Branch


class Misfit(ValueError):
    """A value that does not fit its description."""

    def __init__(self, path: str, expected: str, got: object) -> None:
        super().__init__(f"{path}: expected {expected}; got {got}")
        self.path, self.expected, self.got = path, expected, got


# Values ---------------------------------------------------------------------------------------------------------------


def branches(value: Any, path: str = "") -> list[tuple[str, Any]] | None:
    """The parts of a value with their paths; None for an array or option, such as a window."""
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
    """The fields of a record or NamedTuple, none for any other value."""
    return tuple(getattr(value, "__dataclass_fields__", ())) or getattr(value, "_fields", ())


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """The arrays and options of a tree by path, in order."""
    inner = branches(value, path)
    if inner is None:
        return {path: value}
    return {p: x for below, part in inner for p, x in flatten(part, below).items()}


def mapped(value: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """The same tree with every array and option changed; ``change`` is called with path and value."""
    inner = branches(value, path)
    if inner is None:
        return change(path, value)
    parts = [mapped(part, change, below) for below, part in inner]
    if isinstance(value, dict):
        return dict(zip(value, parts, strict=True))
    names = field_names(value)
    return type(value)(**dict(zip(names, parts, strict=True))) if names else tuple(parts)


def as_source(value: Any, show: Callable[[Any], str]) -> str:
    """A Python expression for a tree; ``show`` prints arrays and options."""
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
"""It is called with the number of similar trees."""


def described(node: Node, value: Any, path: str = "", counted: Counter | None = None) -> Described:
    """The arrays and options of a value with their descriptions, None for those that are not given.

    :class:`Misfit` if the value has another structure.
    """
    places = placed(node, value, path, counted)
    return [(inner.at(at) if at and isinstance(inner, Leaf) else inner, x) for inner, at, x in places]


def placed(node: Node, value: Any, path: str = "", counted: Counter | None = None) -> Placed:
    """What :func:`described` gives, with the items instead of a description of each: PyTorch can trace this one."""
    found: Placed = []
    _place(node, value, path, (), counted, found)
    return found


def _place(node: Node, value: Any, path: str, items: Items, counted: Counter | None, found: Placed) -> None:
    if not isinstance(node, Branch):
        found.append((node, items, value))
        return
    if node.build is NoneType:
        return
    if value is None and node.optional:
        found += [(replace(inner, optional=True), items, None) for inner in walked(node) if isinstance(inner, Leaf)]
        return
    parts = _parts(node, value, path)
    if node.many and counted is not None:
        counted(node, path, len(parts))
    for number, part in enumerate(parts):
        below = node.part_path(number, path) if isinstance(inner := node.node(number), Branch) else ""
        _place(inner, part, below, (*items, number) if node.many else items, counted, found)


def _parts(node: Branch, value: Any, path: str) -> tuple[Any, ...]:
    if node.build is dict:
        return tuple(value.get(name) for name in node.names)
    if not isinstance(value, node.build):
        expected = node.build.__name__
        raise Misfit(path, f"{'an' if expected[0] in 'AEIOU' else 'a'} {expected}", type(value).__name__)
    if node.names:
        return tuple(getattr(value, name) for name in node.names)
    parts: tuple[Any, ...] = tuple(value)  # type: ignore[arg-type]
    if not node.many and len(parts) != len(node.nodes):
        raise Misfit(path, f"a tuple of {len(node.nodes)}", f"one of {len(parts)}")
    return parts


def built(node: Node, at: Callable[[Leaf | Option], Any], count: Callable[[Branch], int], items: Items = ()) -> Any:
    """A new value: ``at`` makes arrays and options (None leaves one out), ``count`` the numbers of similar trees."""
    if not isinstance(node, Branch):
        return at(node.at(items) if items and isinstance(node, Leaf) else node)
    if not node.many:
        return node.rebuilt([built(inner, at, count, items) for inner in node.nodes])
    return tuple(built(node.node(i), at, count, (*items, i)) for i in range(count(node)))


def walked(node: Node) -> Iterator[Node]:
    """A description and everything inside; of many similar trees the first and, if it differs, any other."""
    yield node
    for inner in dict.fromkeys(node.nodes) if isinstance(node, Branch) else ():
        yield from walked(inner)


Reader: TypeAlias = Callable[[Any, list[Any], list[Any]], None]


def reader(node: Node) -> Reader:
    """A compiled flattening of one tree: it appends arrays to one list, and lengths of tuples to another.

    ``TypeError`` for a value of another structure. Every call is bound through it, hence the closures.
    """
    if not isinstance(node, Branch):
        return lambda value, found, counts: found.append(value)
    read = _record_reader(node) if _is_record(node) else _tuple_reader(node)
    if not node.optional:
        return read
    absent = [None] * sum(isinstance(n, Leaf) for n in walked(node))
    return lambda value, found, counts: found.extend(absent) if value is None else read(value, found, counts)


def _is_record(node: Node) -> bool:
    """Whether a tree is made of records and arrays alone, all of which are given: its paths are attributes."""
    return not isinstance(node, Branch) or (
        bool(node.names) and all(not (isinstance(n, Branch) and n.optional) and _is_record(n) for n in node.nodes)
    )


def _record_reader(node: Branch) -> Reader:
    """All arrays of nested records at once."""
    below = [(n.path.removeprefix(f"{node.path}."), n) for n in walked(node)][1:]
    builds = [n.build for _, n in below if isinstance(n, Branch)]
    records = _attributes([path for path, n in below if isinstance(n, Branch)])
    arrays = _attributes([path for path, n in below if isinstance(n, Leaf)])

    def read(value: Any, found: list[Any], counts: list[Any]) -> None:
        try:
            if not isinstance(value, node.build) or not all(map(isinstance, records(value), builds)):
                raise TypeError
        except AttributeError:  # of a record inside a record that is none
            raise TypeError from None
        found.extend(arrays(value))

    return read


def _attributes(paths: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The values at dotted paths."""
    if not paths:
        return lambda value: ()
    get = attrgetter(*paths)
    return get if len(paths) > 1 else lambda value: (get(value),)


def _tuple_reader(node: Branch) -> Reader:
    """The arrays of a tuple, or of a record that holds one."""
    build, names, many, expected = node.build, node.names, node.many, len(node.nodes)
    inner = [reader(n) for n in node.nodes]

    def read(value: Any, found: list[Any], counts: list[Any]) -> None:
        if not isinstance(value, build):
            raise TypeError
        parts: Any = [getattr(value, name) for name in names] if names else value
        if many:
            counts.append(len(parts))
        elif len(parts) != expected:
            raise TypeError
        for step, part in zip(chain(inner[:1], repeat(inner[-1])) if many else inner, parts, strict=False):
            step(part, found, counts)

    return read


def with_items(text: str, items: Items) -> str:
    """A path, size or sum of products of sizes with indices in place of ``[:]``, from the left."""
    for sign in "+*":
        if sign in text:
            return sign.join([with_items(part, items) for part in text.split(sign)])
    for i in items:
        text = text.replace("[:]", f"[{i}]", 1)
    return text


def schematic(path: str) -> str:
    """A path or size as descriptions write it, ``[:]`` for any item."""
    return re.sub(r"\[\d+\]", "[:]", path) if "[" in path else path


def short(size: str) -> str:
    """The name of a size without the path of the record that it belongs to."""
    return size.rpartition(".")[2]


def as_tuple(parts: Any) -> str:
    """Parts of a shape, written as a tuple."""
    return "(" + ", ".join(map(str, parts)) + ("," if len(parts) == 1 else "") + ")"


def number_of(factors: tuple[str, ...], sizes: Mapping[str, int]) -> int | None:
    """The size of a dimension; None if a size is not known."""
    if len(factors) > 1:
        # A list, since torch.compile traces no generators here.
        found = [number_of((f,), sizes) for f in factors]
        return None if None in found else prod([x for x in found if x is not None])
    (factor,) = factors
    if "+" in factor:
        found = [number_of(tuple(term.split("*")), sizes) for term in factor.split("+")]
        return None if None in found else sum([x for x in found if x is not None])
    return int(factor) if factor.isdigit() else sizes.get(factor)
