"""Checks of a declared operation: sizes have meanings, names exist, inputs can be generated."""

from collections.abc import Iterator

from attnspec.spec.contract.annotations import InvalidDeclaration
from attnspec.spec.contract.axes import GLOSSARY, Axis
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Branch, Kind, Leaf, Node, Option, unscoped, walk


def check(op: Operation) -> None:
    """Raise :class:`InvalidDeclaration` for sizes without meaning, unknown names, and missing trial values."""
    results, sizes, top = [x.path for x in op.outputs], op.sizes, op.call.names
    meanings = {**GLOSSARY, **op.axes}
    bounded = {**op.lengths, **op.indices, **op.selections, **op.cumulative}
    options = {o.path for o in op.options}
    for size in (*sizes, *(size for leaf in op.outputs for size in leaf.sizes)):
        if size not in op.counts and unscoped(size) not in meanings:
            raise InvalidDeclaration(f"size {size}: expected a name in GLOSSARY, or `axes=` to say what it counts")
        if size not in sizes:
            raise InvalidDeclaration(f"result: expected sizes that arguments have; got {size}")
    choices = [f"{o.path}={c}" for o in op.options if o.path in op.defaults for c in o.choices]
    for keyword, used, allowed in (
        ("pooled", [op.pooled] if op.pooled else [], top),
        ("linear", op.linear, top),
        ("scores_scale_with", op.scores_scale_with, [x.path for x in op.leaves]),
        ("ordered", op.ordered, top),
        ("causal", op.causal, sizes),
        ("nonempty", op.nonempty, sizes),
        ("chosen", op.chosen, [x.path for x in op.outputs if x.kind is Kind.INT and op.float_result]),
        ("features", op.features, (*op.defaults, *choices, *results)),
        ("lengths, indices", bounded, (*(x.path for x in op.leaves), *options)),
        ("lengths, indices", [s for text in bounded.values() for s in text.split("*")], sizes),
        ("parts", op.parts, top),
        ("wider", op.wider, [x.path for x in (*op.floats, *op.outputs)]),
        ("generated_below", op.generated_below, [x.path for x in op.leaves if x.kind is Kind.INT]),
        ("generated_within", op.generated_within, [x.path for x in op.floats]),
        ("trial_values", op.trial_values, options),
        ("axes", op.axes, tuple(dict.fromkeys(map(unscoped, sizes)))),
    ):
        if unknown := [u for u in used if u not in allowed]:
            wanted = f"some of {', '.join(allowed)}" if allowed else "no names"
            raise InvalidDeclaration(f"{keyword}: expected {wanted}; got {unknown[0]}")
    bound = _bound(op)
    if unbound := [s for s in sizes if s not in bound]:
        wanted = "an axis or argument that has it in every call"
        got = "products, sums, broadcast axes or optional arrays"
        raise InvalidDeclaration(f"size {unbound[0]}: expected {wanted}; got only {got}")
    masked = {*(op.sizes_of(Axis.KEY) or op.sizes_of(Axis.TIME)), *op.sizes_of(Axis.BLOCK)}
    for leaf in op.leaves:
        if leaf.free:
            raise InvalidDeclaration(f"{leaf.path}: expected *batch first, then sizes; got {leaf.shape_text}")
        if leaf.kind is Kind.INT and leaf.path not in {**bounded, **op.generated_below}:
            raise InvalidDeclaration(f"{leaf.path}: expected `lengths=` or `indices=` to bound the integers")
        if leaf.kind is Kind.BOOL and not (leaf.core and leaf.core[-1].factors[0] in masked):
            raise InvalidDeclaration(
                f"{leaf.path}: expected a mask, whose last axis counts keys, blocks or, without keys, steps"
            )
    for option in op.options:
        if option.kind in (Kind.COUNT, Kind.NUMBER, Kind.WINDOW) and option.path not in {*op.trial_values, *op.indices}:
            raise InvalidDeclaration(f"{option.path}: expected `trial_values=` with numbers to try it with")
        if option.path in op.defaults and option.choices and not option.takes(op.defaults[option.path]):
            raise InvalidDeclaration(
                f"{option.path}: expected a default among {option.choices}; got {op.defaults[option.path]!r}"
            )
    missing = any(x.optional and x.path not in op.features for x in walk(op.result))
    if not results or missing or any(isinstance(x, Option) for x in walk(op.result)):
        raise InvalidDeclaration("result: expected an array or a tree of arrays, none optional unless in `features=`")
    if len(set(op.results)) < len(op.results):
        raise InvalidDeclaration(f"results: expected a name for each array; got {', '.join(op.results)}")
    if op.results and results != list(op.results):
        raise InvalidDeclaration(f"results: expected names of {len(results)} arrays; got {len(op.results)}")
    if len(results) > 1 and not op.results:
        raise InvalidDeclaration(f"results: expected a name for each of {len(results)} arrays; got none")


def _bound(op: Operation) -> set[str]:
    """Sizes that required arguments bind in every call, and sizes that only layers have."""
    required = [x for x in _required(op.call) if isinstance(x, Leaf)]
    dims = [d for x in required for d in x.core if not d.broadcast and "+" not in d.written]
    bound = {*op.counts, *(o.path for o in op.numbers)}
    # A product such as heads*p binds a size once all its others are bound.
    while new := {s for d in dims for s in d.sizes if len({*d.sizes} - bound) == 1} - bound:
        bound |= new
    inside = {s for x in op.leaves for s in x.sizes if "[:]" in s}
    return bound | inside


def _required(node: Node) -> Iterator[Node]:
    """Yield the description's parts that every call has: no options, optional trees or layers."""
    if isinstance(node, Option) or node.optional or (isinstance(node, Branch) and node.repeated):
        return
    yield node
    for inner in node.nodes if isinstance(node, Branch) else ():
        yield from _required(inner)
