"""The contract of one operation, read from its Protocol.

``@operation`` decorates a Protocol whose ``__call__`` has jaxtyping annotations. It reads the signature, takes as
arguments what annotations cannot say, and registers an :class:`Operation`, from which inputs, laws, reports and
documentation are made.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from attnspec.spec.contract.annotations import Misdeclared, names, read
from attnspec.spec.contract.axes import GLOSSARY, Axis, Role
from attnspec.spec.contract.sources import Citation
from attnspec.spec.contract.tree import Branch, Kind, Leaf, Node, Option, Reader, reader, walked

P = TypeVar("P", bound=type)

CHAPTERS = (
    "scoring",
    "normalization",
    "masking",
    "pooling",
    "attention",
    "multihead",
    "positional",
    "recurrent",
    "seq2seq",
    "transformer",
    "vision",
    "moments",
    "complexity",
)


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation, as :func:`operation` declares it."""

    name: str
    chapter: str
    formula: str
    sources: tuple[Citation, ...]
    protocol: type
    call: Branch
    """The arguments of a call, by name."""
    result: Node
    defaults: Mapping[str, Any]
    keyword_only: frozenset[str]
    reference_only: bool = False
    axes: Mapping[str, Axis] = field(default_factory=dict)
    pooled: str = ""
    linear: tuple[str, ...] = ()
    sharpened: Mapping[str, float] = field(default_factory=dict)
    causal: tuple[str, ...] = ()
    ordered: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    lengths: Mapping[str, str] = field(default_factory=dict)
    indices: Mapping[str, str] = field(default_factory=dict)
    tried: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    # What it takes and gives -----------------------------------------------------------------------------------------

    @property
    def statement(self) -> str:
        """The first line of the Protocol's docstring."""
        return (inspect.getdoc(self.protocol) or "").split("\n", 1)[0]

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of ``__call__`` without ``self``."""
        full = inspect.signature(self.protocol.__call__)
        return full.replace(parameters=list(full.parameters.values())[1:])

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The arrays among the arguments; those in a tuple of similar trees stand for all of its items, as ``[:]``."""
        return tuple(n for n in walked(self.call) if isinstance(n, Leaf))

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The arguments that are not arrays."""
        return tuple(n for n in self.call.nodes if isinstance(n, Option))

    @cached_property
    def outputs(self) -> tuple[Leaf, ...]:
        """The arrays of the result."""
        return tuple(n for n in walked(self.result) if isinstance(n, Leaf))

    @cached_property
    def floats(self) -> tuple[Leaf, ...]:
        """The float arrays among the arguments: those that have gradients."""
        return tuple(leaf for leaf in self.leaves if leaf.kind is Kind.FLOAT)

    @cached_property
    def float_result(self) -> bool:
        """Whether the result has an array of floating point."""
        return any(leaf.kind is Kind.FLOAT for leaf in self.outputs)

    @property
    def differentiable(self) -> bool:
        """Whether the operation has gradients: a float result of float arguments."""
        return self.float_result and bool(self.floats)

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The sizes of the arguments, in order of appearance."""
        found = (size for leaf in self.leaves for size in leaf.sizes)
        return tuple(dict.fromkeys([*found, *self.counts, *(o.path for o in self.numbers)]))

    @cached_property
    def counts(self) -> tuple[str, ...]:
        """The sizes that are numbers of items in a tuple, such as layers."""
        return tuple(n.count for n in walked(self.call) if isinstance(n, Branch) and n.count)

    @cached_property
    def readers(self) -> tuple[tuple[str, Reader | None], ...]:
        """For each argument, the compiled access to its arrays."""
        pairs = zip(self.call.names, self.call.nodes, strict=True)
        taken = ((name, node) for name, node in pairs if not isinstance(node, Option))
        return tuple((name, None if isinstance(node, Leaf) else reader(node)) for name, node in taken)

    @cached_property
    def numbers(self) -> tuple[Option, ...]:
        """The arguments that are sizes themselves."""
        return tuple(o for o in self.options if o.kind is Kind.SIZE)

    @cached_property
    def bindings(self) -> dict[Any, Any]:
        """Cache of :func:`~attnspec.spec.contract.shapes.bind`, by shapes."""
        return {}

    # Roles -----------------------------------------------------------------------------------------------------------

    def axis(self, size: str) -> Axis:
        """What a size counts; ``KeyError`` for a size that is not in the glossary and not declared."""
        if size in self.counts:
            return Axis.LAYER
        name = size.rsplit(".", 1)[-1]
        return self.axes[name] if name in self.axes else GLOSSARY[name]

    def sizes_of(self, kind: Axis) -> tuple[str, ...]:
        """The sizes of arguments that count this, possibly among other things."""
        return tuple(s for s in self.sizes if s not in self.counts and kind in self.axis(s))

    @cached_property
    def asking(self) -> str | None:
        """The size that counts queries; None for an operation without a query axis."""
        return next(iter(self.sizes_of(Axis.QUERY)), None)

    @cached_property
    def asked(self) -> str | None:
        """The size that counts keys, which are attended to or pooled. In self-attention it is that of the queries."""
        return next(iter(self.sizes_of(Axis.KEY)), None)

    @property
    def attends_to_itself(self) -> bool:
        """Whether the queries are the keys."""
        return self.asking is not None and self.asking == self.asked

    def role(self, leaf: Leaf) -> Role:
        """The role of an array; a weight with positions, such as relative positions, has both roles."""
        if leaf.kind is Kind.BOOL:
            return Role.MASK
        if leaf.kind is Kind.INT:
            return Role.LENGTHS if leaf.path in self.lengths else Role.INDICES
        rows = any(self.axis(size) & Axis.POSITION for size in leaf.sizes)
        found = Role.ROWS if rows else Role(0)
        return found if leaf.batched and rows else found | (Role.STATE if leaf.batched else Role.WEIGHT)

    def along(self, size: str | None, role: Role = Role.ROWS) -> tuple[Leaf, ...]:
        """The arguments of a role that have an axis of this size."""
        return tuple(x for x in self.leaves if size in x.sizes and self.role(x) & role)

    @cached_property
    def attended(self) -> tuple[Leaf, ...]:
        """The arguments with a row for every key: keys, values, memories."""
        return self._rows(self.asked)

    @cached_property
    def queries(self) -> tuple[Leaf, ...]:
        """The arguments with a row for every query; without a query axis, the states that query."""
        if self.asking is None and self.asked is not None:
            return tuple(x for x in self.leaves if self.role(x) is Role.STATE)
        return self._rows(self.asking)

    def _rows(self, size: str | None) -> tuple[Leaf, ...]:
        return tuple(x for x in self.leaves if x.batched and x.kind is Kind.FLOAT and size and -2 in x.axes(size))

    def hides(self, size: str | None) -> Leaf | None:
        """The argument that masks positions along an axis: lengths, or a mask."""
        lengths = [x for x in self.leaves if self.lengths.get(x.path) == size]
        masks = [x for x in self.leaves if x.kind is Kind.BOOL and x.core and x.core[-1].factors == (size,)]
        return next(iter(lengths + masks), None)

    @cached_property
    def mask(self) -> Leaf | None:
        """The mask of the keys."""
        found = self.hides(self.asked)
        return found if found is not None and found.kind is Kind.BOOL else None

    @cached_property
    def weighs_keys(self) -> bool:
        """Whether the result is summed over the keys that the mask allows, rather than having an entry for each key."""
        keys = self.asked
        if self.mask is None or keys is None:
            return False
        return not any(-1 in x.axes(keys) or (keys in x.sizes and not self.attends_to_itself) for x in self.outputs)

    @property
    def only_weighs_keys(self) -> bool:
        """Whether the result is the weighted sum alone, and hence 0 where no key is attendable."""
        return self.weighs_keys and bool(self.pooled or self.linear)

    @cached_property
    def flag(self) -> str | None:
        """The option that makes results causal."""
        return next((o.path for o in self.options if o.path in self.ordered and o.choices == (False, True)), None)

    def order_free(self, kind: Axis) -> tuple[str, ...]:
        """The sizes of this kind that can be permuted, once all options for which order matters are off."""
        fixed = () if self.flag else self.causal
        free = [s for s in self.sizes_of(kind) if s not in fixed and not self.axis(s) & Axis.TIME]
        return tuple(s for s in free if any(s in x.sizes and x.kind is Kind.FLOAT for x in self.leaves))


_OPERATIONS: dict[str, Operation] = {}
OPERATIONS: Mapping[str, Operation] = MappingProxyType(_OPERATIONS)
"""Every operation of the contract, by name, in the order of the chapters."""


def operation(
    name: str,
    *,
    chapter: str,
    formula: str,
    sources: Sequence[Citation],
    reference_only: bool = False,
    axes: Mapping[str, Axis] | None = None,
    pooled: str = "",
    linear: str = "",
    sharpened: Mapping[str, float] | None = None,
    causal: str = "",
    ordered: str = "",
    features: str = "",
    results: str = "",
    lengths: Mapping[str, str] | None = None,
    indices: Mapping[str, str] | None = None,
    tried: Mapping[str, tuple[Any, ...]] | None = None,
) -> Callable[[P], P]:
    """Register a Protocol as the operation of that name, with what annotations cannot say.

    ``reference_only``: no backend provides it. ``axes``: what sizes count, where it is not what the glossary says.
    ``pooled``: the argument of which each result is an average. ``linear``: the arguments in each of which the
    first result is linear. ``sharpened``: exponents p by argument: multiplying each by cᵖ multiplies the scores by
    c. ``causal``: two sizes; results along the first do not depend on later positions along the last. It follows
    from a flag `causal`. ``ordered``: the options with which the order of positions matters. ``features``: keyword
    arguments, their choices (``norm=pre``) and results that a backend may lack. ``results``: names of the arrays of
    a tuple. ``lengths``: integer arrays, each with the size that it is a length along. ``indices``: integer arrays,
    each with the size that bounds it. ``tried``: values to try an option with.
    """
    if chapter not in CHAPTERS:
        raise ValueError(f"chapter {chapter!r} is none of {', '.join(CHAPTERS)}")
    words: dict[str, Any] = {
        "chapter": chapter,
        "formula": formula,
        "sources": tuple(sources),
        "reference_only": reference_only,
        "axes": axes or {},
        "pooled": pooled,
        "linear": tuple(linear.split()),
        "sharpened": sharpened or {},
        "causal": tuple(causal.split()),
        "ordered": tuple(ordered.split()),
        "features": tuple(features.split()),
        "results": tuple(results.split()),
        "lengths": lengths or {},
        "indices": indices or {},
        "tried": tried or {},
    }

    def register(protocol: P) -> P:
        try:
            made = _read_protocol(protocol, name, words)
            if not reference_only:
                _check(made)
        except Misdeclared as error:
            raise Misdeclared(f"{protocol.__name__}: {error}") from None
        _OPERATIONS[name] = made
        for known in sorted(_OPERATIONS, key=lambda n: CHAPTERS.index(_OPERATIONS[n].chapter)):
            _OPERATIONS[known] = _OPERATIONS.pop(known)
        return protocol

    return register


CAUSAL = "causal"
"""The name of the causal flag in every operation that has one."""


def _read_protocol(protocol: Any, name: str, words: Mapping[str, Any]) -> Operation:
    """The operation that a Protocol describes; :class:`Misdeclared` says what is wrong with it."""
    if not getattr(protocol, "_is_protocol", False) or len(protocol.__parameters__) != 1 or not protocol.__doc__:
        raise Misdeclared("expected a Protocol[Array] with a docstring of domain and edges")
    if name in OPERATIONS or name != name.lower() or name.replace("_", "") != protocol.__name__.lower():
        raise Misdeclared(f"name: expected that of the class in small letters, and used once; got {name!r}")
    signature = inspect.signature(protocol.__call__)
    given = list(signature.parameters.values())[1:]
    annotations = {p.name: p.annotation for p in given} | {"result": signature.return_annotation}
    named = [n for top, a in annotations.items() for n in names(a, top, deep=top == "result")]
    meanings = {**GLOSSARY, **words["axes"]}
    scope = {n: n for n in (*named, *(p.name for p in given if p.name in meanings))}
    nodes = {n: read(a, n, scope) for n, a in annotations.items()}
    result = _named(nodes.pop("result"), iter(words["results"]))
    parts = [
        replace(n, kind=Kind.SIZE) if isinstance(n, Option) and n.kind is Kind.COUNT and n.path in meanings else n
        for n in nodes.values()
    ]
    made = Operation(
        name=name,
        protocol=protocol,
        call=Branch("", dict, tuple(nodes), tuple(parts)),
        result=result,
        defaults={p.name: p.default for p in given if p.default is not p.empty},
        keyword_only=frozenset(p.name for p in given if p.kind is p.KEYWORD_ONLY),
        **words,
    )
    if CAUSAL not in nodes:
        return made
    pair = made.causal or (*made.sizes_of(Axis.QUERY)[:1], *made.sizes_of(Axis.KEY)[-1:])
    return replace(made, causal=tuple(dict.fromkeys(pair)), ordered=(CAUSAL, *made.ordered))


def _check(made: Operation) -> None:
    """Refuse sizes without a meaning, words that name nothing, and operations that no example can be made for."""
    results, sizes, top = [x.path for x in made.outputs], made.sizes, made.call.names
    meanings = {**GLOSSARY, **made.axes}
    bounded, options = {**made.lengths, **made.indices}, {o.path for o in made.options}
    for size in (*sizes, *(size for leaf in made.outputs for size in leaf.sizes)):
        if size not in made.counts and size.rsplit(".", 1)[-1] not in meanings:
            raise Misdeclared(f"size {size}: expected one of the glossary, or `axes=` to say what it counts")
        if size not in sizes:
            raise Misdeclared(f"result: expected sizes that arguments have; got {size}")
    choices = [f"{o.path}={c}" for o in made.options if o.path in made.defaults for c in o.choices]
    for word, used, allowed in (
        ("pooled", [made.pooled] if made.pooled else [], top),
        ("linear", made.linear, top),
        ("sharpened", made.sharpened, [x.path for x in made.leaves]),
        ("ordered", made.ordered, top),
        ("causal", made.causal, sizes),
        ("features", made.features, (*made.defaults, *choices, *results)),
        ("lengths, indices", bounded, (*(x.path for x in made.leaves), *options)),
        ("lengths, indices", bounded.values(), sizes),
        ("tried", made.tried, options),
        ("axes", made.axes, tuple(dict.fromkeys(s.rsplit(".", 1)[-1] for s in sizes))),
    ):
        if unknown := [u for u in used if u not in allowed]:
            raise Misdeclared(f"{word}: expected among {', '.join(allowed) or 'nothing'}; got {unknown[0]}")
    for leaf in made.leaves:
        if leaf.free:
            raise Misdeclared(f"{leaf.path}: expected *batch first, then sizes; got {leaf.shape_text}")
        if leaf.kind is Kind.INT and leaf.path not in bounded:
            raise Misdeclared(f"{leaf.path}: expected `lengths=` or `indices=` to bound the integers")
        if leaf.kind is Kind.BOOL and not (leaf.core and leaf.core[-1].factors[0] in made.sizes_of(Axis.KEY)):
            raise Misdeclared(f"{leaf.path}: expected a mask, whose last axis is attended to")
    for option in made.options:
        if option.kind in (Kind.COUNT, Kind.NUMBER) and option.path not in {**made.tried, **made.indices}:
            raise Misdeclared(f"{option.path}: expected `tried=` with numbers to try it with")
        if option.path in made.defaults and option.choices and not option.takes(made.defaults[option.path]):
            raise Misdeclared(f"{option.path}: expected a default among {option.choices}")
    missing = any(x.optional and x.path not in made.features for x in walked(made.result))
    if not results or missing or any(isinstance(x, Option) for x in walked(made.result)):
        raise Misdeclared("result: expected an array or a tree of arrays, none of them missing but for features")
    if len(set(made.results)) < len(made.results):
        raise Misdeclared(f"results: expected a name for each array; got {', '.join(made.results)}")
    if made.results and results != list(made.results):
        raise Misdeclared(f"results: expected names of {len(results)} arrays; got {len(made.results)}")
    if len(results) > 1 and not made.results:
        raise Misdeclared(f"results: expected a name for each of {len(results)} arrays; got none")


def _named(result: Node, given: Iterator[str]) -> Node:
    """The result with the given names for its arrays."""
    if isinstance(result, Leaf):
        return replace(result, path=next(given, result.path))
    if isinstance(result, Branch):
        return replace(result, nodes=tuple(_named(n, given) for n in result.nodes))
    return result
