"""Documentation of an operation, composed from its Protocol and its chapter.

A Protocol's docstring holds the statement. Under the headings :data:`WRITTEN` it adds facts that neither annotations
nor decorator can express. Facts shared by a chapter stand under the same headings in the chapter's docstring. There,
a sentence with names in backticks applies only to operations that have those arguments, sizes or result fields. The
where-list and most errors come from the annotations. ``help()``, ``attnspec show`` and ``attnspec spec`` print the
composed text.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_origin

from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.tree import Branch, Dim, Kind, Leaf, Node, Option, as_tuple, unscoped

HEADINGS = ("Formula", "Where", "Source", "Edges", "Errors")
"""Headings of every operation, in this order."""

WRITTEN = ("Where", "Domain", "Edges", "Errors")
"""Optional headings of a Protocol's docstring."""

WIDTH = 100

MEANINGS = {
    Axis.SELF: "positions, each a query and a key",
    Axis.QUERY: "queries",
    Axis.KEY: "keys",
    Axis.TIME: "time steps",
    Axis.FEATURE: "features",
    Axis.WIDTH: "features",
    Axis.HIDDEN: "hidden units",
    Axis.HEAD: "attention heads",
    Axis.GROUP: "heads of the queries for each head of the keys",
    Axis.VOCABULARY: "tokens of the vocabulary",
    Axis.BEAM: "hypotheses of the beam",
    Axis.LAYER: "layers",
    Axis.SPARE: "rows or features that take no part",
    Axis.GRID: "places of a grid",
    Axis.LENGTH: "tokens",
    Axis.TAP: "taps of a filter or quarters of the buckets",
    Axis.HISTORY: "inputs that a state holds",
    Axis.PAGE: "pages of a cache, or rows of one",
    Axis.SEQUENCE: "sequences",
    Axis.BLOCK: "blocks",
    Axis.SELECTED: "selected keys",
}
"""Words for axes. A combined axis joins the words of its parts, in this order."""


@dataclass(frozen=True)
class Entry:
    """One line of a where-list: an array with its shape, an option with its values, or a record."""

    path: str
    values: str
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join([f"{self.path}{' ' if self.values.startswith('(') else ', '}{self.values}", *self.remarks])


def operation_of(protocol: Any) -> Operation | None:
    """Return the operation that a Protocol declares, with or without its array type; None if it declares none."""
    origin = get_origin(protocol) or protocol
    return next((o for o in OPERATIONS.values() if o.protocol is origin), None)


def documentation(operation: Operation, own: str | None = None, *, misfit: str = "an exception", kind: str = "") -> str:
    """Docstring for a function that computes an operation; ``own`` is the function's own text.

    ``misfit`` names the exception for wrong shapes and sizes, ``kind`` the exception for arguments of a wrong kind.
    """
    parts = sections(operation, misfit=misfit, kind=kind)
    indent = " " * len("Where: ")
    notes = [line for note in where_notes(operation) for line in _wrapped(note, WIDTH - len(indent))]
    where = [*map(str, where_list(operation)), *notes]
    lines = [f"Formula: {operation.formula}", "Where: " + f"\n{indent}".join(where)]
    lines += ["\n".join(_wrapped(f"{heading}: {parts[heading]}")) for heading in HEADINGS[2:]]
    return "\n\n".join([*filter(None, [operation.statement, inspect.cleandoc(own or "")]), "\n".join(lines)])


def sections(operation: Operation, *, misfit: str = "an exception", kind: str = "") -> dict[str, str]:
    """Text under each heading except `Where`, whose list comes from :func:`where_list` and :func:`where_notes`."""
    errors = f"{misfit[0].upper()}{misfit[1:]} for {_listed(_misfits(operation))}."
    kinds = f"{kind} for {_listed(_kinds(operation))}." if kind else ""
    return {
        "Formula": operation.formula,
        "Source": "; ".join(map(str, operation.sources)) + ".",
        "Edges": _text_under(operation, "Edges") or "none.",
        "Errors": " ".join(filter(None, [errors, kinds, _text_under(operation, "Errors")])),
    }


# Where ----------------------------------------------------------------------------------------------------------------


def where_list(operation: Operation) -> list[Entry]:
    """Entries for every argument, record field (by path) and array of the result."""
    entries = []
    for name, node in zip(operation.call.names, operation.call.nodes, strict=True):
        keyword = ("keyword-only",) if name in operation.keyword_only else ()
        default = operation.defaults.get(name)
        default_remark = (f"{default!r} if not given",) if default is not None else ()
        feature_remark = _feature_remark(operation, name)
        for inner, path in _inside(node, node.path):
            remarks = (*keyword, *default_remark, *feature_remark) if inner is node else ()
            entries.append(_entry(operation, inner, path, remarks))
    result_remark = ("result",) if len(operation.outputs) > 1 else ()
    for leaf in operation.outputs:
        entries.append(_entry(operation, leaf, leaf.path, (*result_remark, *_feature_remark(operation, leaf.path))))
    return entries


def where_notes(operation: Operation) -> list[str]:
    """Meanings of the sizes, then the Protocol's own `Where` and `Domain` texts."""
    grouped: dict[str, list[str]] = {}
    for size, meaning in meanings(operation).items():
        grouped.setdefault(meaning, []).append(size)
    sizes = "; ".join(f"{', '.join(names)}: {meaning}" for meaning, names in grouped.items())
    domain = _text_under(operation, "Domain")
    return [note for note in (sizes, _text_under(operation, "Where"), domain and f"Domain: {domain}") if note]


def meanings(operation: Operation) -> dict[str, str]:
    """Meaning of every size that the where-list names."""
    meaning_by_size = {}
    arrays = [*operation.leaves, *operation.outputs]
    if any(leaf.batched for leaf in arrays):
        broadcasts = any(leaf.dims[0].broadcast for leaf in arrays if leaf.batched)
        meaning_by_size["*batch"] = "batch dimensions, which broadcast" if broadcasts else "batch dimensions"
    for size in (*operation.sizes, *(size for leaf in arrays for size in leaf.sizes)):
        meaning_by_size.setdefault(unscoped(size), _meaning(operation, size))
    return meaning_by_size


def _meaning(operation: Operation, size: str) -> str:
    axis = operation.axis(size)
    return "positions" if axis == Axis.QUERY and operation.key_size is None else in_words(axis)


@cache
def in_words(axis: Axis) -> str:
    """Meaning of an axis in words."""
    kinds = []
    for kind, word in MEANINGS.items():
        if kind in axis:
            kinds.append(word)
            axis &= ~kind
    return ", ".join(kinds)


def _entry(operation: Operation, node: Node, path: str, remarks: tuple[str, ...]) -> Entry:
    notes = list(remarks) + ["optional"] * node.optional
    if isinstance(node, Leaf):
        shape = as_tuple([f"*{d.written}" if d.variadic else _dimension(d) for d in node.dims])
        return Entry(path, shape, (*_contents(operation, node), *notes))
    if isinstance(node, Option):
        least = f" ≥ {operation.least(node.path)}" if node.kind is Kind.SIZE else ""
        window = "a window: " if node.kind is Kind.WINDOW else ""
        return Entry(path, f"{window}{node.expected}{least}", tuple(notes))
    if node.repeated:
        least = " ≥ 1" * operation.least(node.count)
        counted = "" if node.count == node.path else f" of length {node.count}{least}"
        return Entry(path, f"a tuple{counted}", tuple(notes))
    return Entry(path, f"record {node.build.__name__}" if node.names else f"a tuple of {len(node.nodes)}", tuple(notes))


def _feature_remark(operation: Operation, name: str) -> tuple[str, ...]:
    """Remark that a backend may lack an argument, some of its choices, or a result."""
    choices = [feature.partition("=")[2] for feature in operation.features if feature.startswith(f"{name}=")]
    whole = ("a backend may lack it",) if name in operation.features else ()
    return whole or ((f"a backend may lack {' and '.join(map(repr, choices))}",) if choices else ())


def _contents(operation: Operation, leaf: Leaf) -> Iterator[str]:
    """Yield remarks on the contents of an array; a float array needs no remark."""
    if leaf.kind is Kind.BOOL:
        mask = leaf in operation.leaves and operation.role(leaf) is Role.MASK
        yield "boolean, True = may attend" if mask else "boolean"
    if leaf.kind is Kind.INT:
        bounds = {p: f"0..{s}" for p, s in operation.lengths.items()}
        bounds |= {p: f"0..{unscoped(s)}−1" for p, s in operation.indices.items()}
        bounds |= {p: f"−1..{s}−1, where −1 is none" for p, s in operation.selections.items()}
        bounds |= {p: f"0..{s}, the first 0, the last {s}, never falling" for p, s in operation.cumulative.items()}
        yield f"integers in {bounds[leaf.path]}" if leaf.path in bounds else "integers"
    if any(d.broadcast for d in leaf.core):
        yield "sizes of 1 broadcast"


def _dimension(d: Dim) -> str:
    """Text of a dimension, its sizes without the paths of their records."""
    return "*".join(re.sub(r"[^+*]+", lambda size: unscoped(size[0]), factor) for factor in d.factors)


def _inside(node: Node, path: str) -> Iterator[tuple[Node, str]]:
    """Yield a description and all its parts with paths; ``[1:]`` where later items differ from the first."""
    yield node, path
    if not isinstance(node, Branch):
        return
    if not node.repeated:
        for number, inner in enumerate(node.nodes):
            yield from _inside(inner, node.part_path(number, path))
        return
    first, other = node.nodes[0], node.nodes[-1]
    for inner, items in ((first, "[:]"),) if first is other else ((first, "[0]"), (other, "[1:]")):
        yield from _inside(inner, f"{path}{items}")


# Texts of docstrings --------------------------------------------------------------------------------------------------


def _text_under(operation: Operation, heading: str) -> str:
    """Text under a heading for an operation: the chapter's relevant sentences, then the Protocol's.

    ``As in `chapter`.`` stands for the edges of that chapter in operations whose result is only a weighted sum, and for
    nothing in others.
    """
    module = sys.modules.get(operation.protocol.__module__)
    texts = [_parsed(doc).get(heading, "") for doc in (getattr(module, "__doc__", None), operation.protocol.__doc__)]
    text = " ".join(filter(None, texts))
    text = re.sub(r"As in `(\w+)`\.", lambda match: _edges_of(match[1], operation), text).strip()
    # A chapter's sentence is dropped where it names an argument, size or result that only other operations have.
    absent = {name for name in re.findall(r"`(\w+)`", text) if name not in _names(operation)}
    foreign = {name for o in OPERATIONS.values() for name in absent & _names(o)} if absent else set()
    sentences = re.split(r"(?<=[.])\s+(?=[A-Z`])", text)
    return " ".join(s for s in sentences if not any(f"`{name}`" in s for name in foreign))


def _edges_of(chapter: str, operation: Operation) -> str:
    """Edges of a chapter, for an operation whose result is only a weighted sum.

    Without a query axis there is a single query; the text then uses its name, such as `state` in `bahdanau_context`.
    """
    if not operation.only_weighs_keys:
        return ""
    module = next(o.protocol.__module__ for o in OPERATIONS.values() if o.chapter == chapter)
    edges = _parsed(sys.modules[module].__doc__)["Edges"]
    if operation.query_size is not None:
        return edges
    (query,) = operation.queries
    return re.sub(r"\bquery\b", query.path, edges.replace(" for query i", ""))


def _names(operation: Operation) -> set[str]:
    """Arguments, sizes and record fields of the result: the names in backticks that sentences may use."""
    fields = (leaf.path.rpartition(".")[2] for leaf in operation.outputs if "." in leaf.path)
    return {*operation.call.names, *operation.sizes, *fields}


def _misfits(operation: Operation) -> list[str]:
    """Wrong shapes and numbers that an operation rejects, in words."""
    arrays = [leaf for leaf in operation.leaves if not leaf.free]
    violations = ["shapes other than those above"] if arrays else []
    masks = [leaf for leaf in arrays if leaf.kind is Kind.BOOL]
    batched = [leaf for leaf in arrays if leaf.batched and leaf not in masks]
    if len(batched) > 1:
        violations.append("batches that do not broadcast")
    violations += [f"a {leaf.path} that does not broadcast" for leaf in masks]
    for option in operation.numbers:
        violations.append(f"{option.path} below 1" if operation.least(option.path) else f"a negative {option.path}")
    violations += [f"{path} outside of 0..{size}" for path, size in operation.lengths.items()]
    violations += [f"{path} outside of 0..{unscoped(size)}−1" for path, size in operation.indices.items()]
    violations += [f"{path} outside of −1..{size}−1" for path, size in operation.selections.items()]
    violations += [f"{path} that fall, or do not reach from 0 to {size}" for path, size in operation.cumulative.items()]
    return violations or ["shapes other than those above"]


def _kinds(operation: Operation) -> list[str]:
    """Kinds of arguments that an operation rejects whatever their shapes, in words."""
    trees = any(isinstance(node, Branch) for node in operation.call.nodes)
    wrong_kinds = ["arguments of another kind or structure" if trees else "arguments of another kind"]
    return wrong_kinds + [f"another {o.path}" for o in operation.options if o.choices not in ((), (False, True))]


# Text -----------------------------------------------------------------------------------------------------------------


def _parsed(text: str | None) -> dict[str, str]:
    """Paragraphs of a docstring that have a heading, each joined to one line."""
    paragraphs: dict[str, str] = {}
    for block in re.split(rf"\n(?=\s*\n|\s*(?:{'|'.join(WRITTEN)}):)", inspect.cleandoc(text or "")):
        heading, colon, text_after = block.strip().partition(":")
        if colon and heading in WRITTEN:
            paragraphs[heading] = " ".join(text_after.split())
    return paragraphs


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"


def _wrapped(text: str, width: int = WIDTH) -> list[str]:
    """Wrap a text at spaces. Importing a package wraps hundreds of texts, for which ``textwrap`` is slow."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) < width:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
        else:
            lines.append(word)
    return lines
