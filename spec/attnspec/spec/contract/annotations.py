"""Reader of a Protocol's annotations, which it turns into descriptions of trees.

Size names have scopes, as variables do. A size that the signature names (in an argument, as a size argument or anywhere
in the result) belongs to the operation. Any other size belongs to the outermost record that names it and carries the
path of that record: ``layers[1].attention.heads``.
"""

import dataclasses
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from attnspec.spec.contract.tree import Branch, Dim, Kind, Leaf, Node, Option

Array = TypeVar("Array")
Array_co = TypeVar("Array_co", covariant=True)
Scope: TypeAlias = Mapping[str, str]
"""Full name of each size. A size may be renamed to a product such as ``2*h``, or to a sum of products."""

_SIZE = r"[a-z0-9]\w*"
"""Pattern of a size name or a number."""
_TRANSPARENT = (Annotated, Union, types.UnionType, tuple)


class InvalidDeclaration(TypeError):
    """Raised for a Protocol that cannot declare an operation."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Renamings that :func:`sizes` attaches to an annotation."""

    renamed: tuple[tuple[str, str | tuple[str, str]], ...] = ()
    count: str = ""


def sizes(*, count: str = "", **renamed: str | tuple[str, str]) -> Sizes:
    """Rename a record's sizes to those of the signature: ``Annotated[LSTMParameters[Array], sizes(d="h")]``.

    The new size may be a product or a sum, as in ``sizes(d="d_y+d_h")``. In a tuple of similar records, a pair gives
    the size in the first record and in all others; ``count`` names the number of records. In an array, a name may stand
    for a product or sum, which jaxtyping cannot annotate in arguments: ``Annotated[Float[Array, "n d"],
    sizes(d="heads*p")]``. Products and sums may introduce sizes that no other annotation names.
    """
    return Sizes(tuple(renamed.items()), count)


def read(annotation: Any, path: str, scope: Scope, renaming: Sizes = Sizes(), *, optional: bool = False) -> Node:
    """Return the tree that an annotation declares; :class:`InvalidDeclaration` if it declares none."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        own_renaming = next((m for m in members[1:] if isinstance(m, Sizes)), renaming)
        return read(members[0], path, scope, own_renaming, optional=optional)
    if origin in (Union, types.UnionType) and len(members) == 2 and types.NoneType in members:
        (member,) = (m for m in members if m is not types.NoneType)
        return read(member, path, scope, renaming, optional=True)
    if hasattr(annotation, "dim_str") and annotation.array_type is Any:
        kinds = (k for k in (Kind.BOOL, Kind.INT, Kind.FLOAT) if str(annotation.dtypes).startswith(f"('{k}"))
        kind = next(kinds, None)
        if kind is None:
            raise InvalidDeclaration(f"{path}: expected an array of Float, Int or Bool; got {annotation.__name__}")
        _check_renamed(annotation, path, renaming)
        return Leaf(path, kind, dims(annotation.dim_str, path, _renamed(scope, renaming, path, 1)), optional)
    if (origin is Literal or annotation in (bool, int, float)) and path.isidentifier():
        choices = members if origin is Literal else (False, True) if annotation is bool else ()
        kind = Kind.CHOICE if choices else Kind.COUNT if annotation is int else Kind.NUMBER
        return Option(path, kind, choices, optional)
    if origin is tuple and path.isidentifier() and [*map(get_args, members)] == [(int, types.NoneType)] * 2:
        return Option(path, Kind.WINDOW, (), optional)
    if origin is tuple and members[-1:] == (...,):
        return _similar(members[0], path, scope, renaming, optional)
    if origin is tuple and members:
        nodes = tuple(read(m, f"{path}[{i}]", scope, renaming) for i, m in enumerate(members))
        return Branch(path, tuple, (), nodes, optional=optional)
    return _record(annotation, path, scope, renaming, optional)


def _similar(item: Any, path: str, scope: Scope, renaming: Sizes, optional: bool) -> Branch:
    """Read a tuple of similar records; pairs of sizes differ between the first and all others."""
    _check_renamed(item, path, renaming)
    first = others = read(item, f"{path}[:]", _renamed(scope, renaming, path, 0))
    if any(isinstance(new, tuple) for _, new in renaming.renamed):
        others = read(item, f"{path}[:]", _renamed(scope, renaming, path, 1))
    return Branch(path, tuple, (), (first, others), True, renaming.count or path, optional)


def _record(annotation: Any, path: str, scope: Scope, renaming: Sizes, optional: bool) -> Branch:
    record = get_origin(annotation)
    fields, inner = _fields(record, annotation, path), _renamed(scope, renaming, path, 1)
    _check_renamed(annotation, path, renaming)
    own = {n: f"{path}.{n}" for field, a in fields.items() for n in names(a, f"{path}.{field}") if n not in inner}
    nodes = tuple(read(a, f"{path}.{n}", {**inner, **own}) for n, a in fields.items())
    return Branch(path, record, tuple(fields), nodes, optional=optional)


def names(annotation: Any, path: str, *, deep: bool = False) -> list[str]:
    """Size names in arrays and in their renamings; with ``deep``, also inside records."""
    if isinstance(annotation, Sizes):
        new = [text for _, text in annotation.renamed if isinstance(text, str)]
        return [size for text in new for size in (_parts(text) or [text] * deep)]
    # Annotated forwards attribute access to the array that it wraps.
    if hasattr(annotation, "dim_str") and get_origin(annotation) is not Annotated:
        return [size for d in dims(annotation.dim_str, path, {}) for size in d.sizes]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin not in _TRANSPARENT:
        parts = tuple(_fields(origin, annotation, path).values()) if deep and isinstance(origin, type) else ()
    return [n for part in parts for n in names(part, path, deep=deep)]


def dims(text: str, path: str, scope: Scope) -> tuple[Dim, ...]:
    """Parse a shape such as ``*#batch n heads*p_v`` or ``{n} {m}``; ``scope`` renames sizes."""
    dimensions = []
    for i, token in enumerate(text.split()):
        match = re.fullmatch(rf"([*#]*)\{{?({_SIZE}(?:[*+]{_SIZE})*)\}}?", token)
        if match is None or ("*" in match[1] and i > 0):
            wanted = "*batch first, then names, products or sums of these"
            raise InvalidDeclaration(f"{path}: expected {wanted}; got {token!r} in {text!r}")
        full = _in_scope(match[2], path, scope)
        factors = (full,) if "+" in full else tuple(full.split("*"))
        dimensions.append(Dim(match[2], factors, "*" in match[1], "#" in match[1]))
    return tuple(dimensions)


def _parts(text: str) -> list[str]:
    """Size names in a product or sum; empty for a single size."""
    parts = re.split(r"[+*]", text)
    return [part for part in parts if not part.isdigit()] if len(parts) > 1 else []


def _in_scope(text: str, path: str, scope: Scope) -> str:
    """Rename the sizes in a product or sum; new names may be products or sums, but no factor a sum."""
    if "*" in text and (total := next((scope[s] for s in re.split(r"[+*]", text) if "+" in scope.get(s, "")), None)):
        raise InvalidDeclaration(f"{path}: expected products of sizes, and sums of these; got {total} in {text}")
    return re.sub(r"[^+*]+", lambda size: scope.get(size[0], size[0]), text)


def _fields(record: Any, annotation: Any, path: str) -> dict[str, Any]:
    """Annotations of a record's fields; :class:`InvalidDeclaration` says why a record is invalid."""
    shown = getattr(annotation, "__name__", annotation)
    dataclass = dataclasses.is_dataclass(record)
    if not dataclass and not (isinstance(record, type) and issubclass(record, tuple) and hasattr(record, "_fields")):
        wanted = "[Array] with its shape, a frozen dataclass or NamedTuple of [Array], a tuple of these, or an option"
        raise InvalidDeclaration(f"{path}: expected {wanted}; got {shown}")
    annotations = {f.name: f.type for f in dataclasses.fields(record)} if dataclass else dict(record.__annotations__)
    for wanted, holds in (
        ("a frozen dataclass", not dataclass or vars(record)["__dataclass_params__"].frozen),
        (f"{shown}[Array], generic in its arrays", any(isinstance(m, TypeVar) for m in get_args(annotation))),
        ("a record with fields", bool(annotations)),
        ("annotations that are not strings", not any(isinstance(a, str) for a in annotations.values())),
        ("no field named shape, which arrays have", "shape" not in annotations),
        ("fields that its constructor takes", not dataclass or all(f.init for f in dataclasses.fields(record))),
        ("fields without a leading underscore", not any(name.startswith("_") for name in annotations)),
    ):
        if not holds:
            raise InvalidDeclaration(f"{path}: expected {wanted}; got {shown}")
    return annotations


def _check_renamed(annotation: Any, path: str, renaming: Sizes) -> None:
    used = names(annotation, path, deep=True) if renaming.renamed else []
    if unknown := [name for name, _ in renaming.renamed if name not in used]:
        raise InvalidDeclaration(f"{path}: sizes: expected some of {', '.join(dict.fromkeys(used))}; got {unknown[0]}")


def _renamed(scope: Scope, renaming: Sizes, path: str, item: int) -> Scope:
    """Return the scope inside a record. A pair of sizes is for the first record (``item`` 0) and for all others (1)."""
    renamed_scope = dict(scope)
    for name, new in renaming.renamed:
        if not isinstance(new, str) and not (isinstance(new, tuple) and list(map(type, new)) == [str, str]):
            raise InvalidDeclaration(f"{path}: {name}: expected a size around the record, or a pair; got {new!r}")
        text = new if isinstance(new, str) else new[item]
        if unknown := [s for s in re.split(r"[+*]", text) if not s.isdigit() and s not in scope]:
            known = ", ".join(scope) or "none"
            raise InvalidDeclaration(f"{path}: {name}: expected a size around the record, {known}; got {unknown[0]}")
        renamed_scope[name] = _in_scope(text, path, scope)
    return renamed_scope
