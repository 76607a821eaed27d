"""Checks of a declared operation: sizes are defined, names exist, inputs can be generated."""

from collections.abc import Iterator

from attnspec.spec.contract.annotations import InvalidDeclaration
from attnspec.spec.contract.axes import GLOSSARY, Axis
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Branch, Kind, Leaf, Node, Option, short, walked


def check(made: Operation) -> None:
    """Raise :class:`InvalidDeclaration` for meaningless sizes, unknown names, and operations without examples."""
    results, sizes, top = [x.path for x in made.outputs], made.sizes, made.call.names
    meanings = {**GLOSSARY, **made.axes}
    bounded, options = {**made.lengths, **made.indices, **made.cumulative}, {o.path for o in made.options}
    for size in (*sizes, *(size for leaf in made.outputs for size in leaf.sizes)):
        if size not in made.counts and short(size) not in meanings:
            raise InvalidDeclaration(f"size {size}: expected one of the glossary, or `axes=` to say what it counts")
        if size not in sizes:
            raise InvalidDeclaration(f"result: expected sizes that arguments have; got {size}")
    choices = [f"{o.path}={c}" for o in made.options if o.path in made.defaults for c in o.choices]
    for word, used, allowed in (
        ("pooled", [made.pooled] if made.pooled else [], top),
        ("linear", made.linear, top),
        ("sharpened", made.sharpened, [x.path for x in made.leaves]),
        ("ordered", made.ordered, top),
        ("causal", made.causal, sizes),
        ("nonempty", made.nonempty, sizes),
        ("chosen", made.chosen, [x.path for x in made.outputs if x.kind is Kind.INT and made.float_result]),
        ("features", made.features, (*made.defaults, *choices, *results)),
        ("lengths, indices", bounded, (*(x.path for x in made.leaves), *options)),
        ("lengths, indices", [s for text in bounded.values() for s in text.split("*")], sizes),
        ("parts", made.parts, top),
        ("drawn", made.drawn, [x.path for x in made.leaves if x.kind is Kind.INT]),
        ("tried", made.tried, options),
        ("axes", made.axes, tuple(dict.fromkeys(map(short, sizes)))),
    ):
        if unknown := [u for u in used if u not in allowed]:
            raise InvalidDeclaration(f"{word}: expected among {', '.join(allowed) or 'nothing'}; got {unknown[0]}")
    bound = _bound(made)
    if unbound := [s for s in sizes if s not in bound]:
        wanted = "an axis of its own, or an argument, that binds it in every call"
        raise InvalidDeclaration(
            f"size {unbound[0]}: expected {wanted}; got only products, sums, broadcast axes or optional arrays"
        )
    for leaf in made.leaves:
        if leaf.free:
            raise InvalidDeclaration(f"{leaf.path}: expected *batch first, then sizes; got {leaf.shape_text}")
        if leaf.kind is Kind.INT and leaf.path not in {**bounded, **made.drawn}:
            raise InvalidDeclaration(f"{leaf.path}: expected `lengths=` or `indices=` to bound the integers")
        if leaf.kind is Kind.BOOL and not (leaf.core and leaf.core[-1].factors[0] in made.sizes_of(Axis.KEY)):
            raise InvalidDeclaration(f"{leaf.path}: expected a mask, whose last axis is attended to")
    for option in made.options:
        if option.kind in (Kind.COUNT, Kind.NUMBER, Kind.WINDOW) and option.path not in {**made.tried, **made.indices}:
            raise InvalidDeclaration(f"{option.path}: expected `tried=` with numbers to try it with")
        if option.path in made.defaults and option.choices and not option.takes(made.defaults[option.path]):
            raise InvalidDeclaration(f"{option.path}: expected a default among {option.choices}")
    missing = any(x.optional and x.path not in made.features for x in walked(made.result))
    if not results or missing or any(isinstance(x, Option) for x in walked(made.result)):
        raise InvalidDeclaration("result: expected an array or a tree of arrays, none of them missing but for features")
    if len(set(made.results)) < len(made.results):
        raise InvalidDeclaration(f"results: expected a name for each array; got {', '.join(made.results)}")
    if made.results and results != list(made.results):
        raise InvalidDeclaration(f"results: expected names of {len(results)} arrays; got {len(made.results)}")
    if len(results) > 1 and not made.results:
        raise InvalidDeclaration(f"results: expected a name for each of {len(results)} arrays; got none")


def _bound(made: Operation) -> set[str]:
    """Sizes that the required arguments always bind; layers bind their own sizes where there are layers."""
    given = [x for x in _required(made.call) if isinstance(x, Leaf)]
    dims = [d for x in given for d in x.core if not d.broadcast and "+" not in d.written]
    bound = {*made.counts, *(o.path for o in made.numbers)}
    while new := {s for d in dims for s in d.sizes if len({*d.sizes} - bound) == 1} - bound:
        bound |= new
    inside = {s for x in made.leaves for s in x.sizes if "[:]" in s}
    return bound | inside


def _required(node: Node) -> Iterator[Node]:
    """Yield a description and its parts present in every call: no options, no optional trees, no layers."""
    if isinstance(node, Option) or node.optional or (isinstance(node, Branch) and node.many):
        return
    yield node
    for inner in node.nodes if isinstance(node, Branch) else ():
        yield from _required(inner)
