"""The contract of one operation, and the registry of all: inputs, laws, reports and documentation are made from it.

``attnspec.spec.contract.registration`` reads it from a Protocol.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType, NoneType
from typing import Any

from attnspec.spec.contract.axes import GLOSSARY, Axis, Part, Role
from attnspec.spec.contract.sources import Citation
from attnspec.spec.contract.tree import Branch, Kind, Leaf, Node, Option, Reader, reader, short, walked

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
    "kernels",
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
    nonempty: tuple[str, ...] = ()
    ordered: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    lengths: Mapping[str, str] = field(default_factory=dict)
    indices: Mapping[str, str] = field(default_factory=dict)
    cumulative: Mapping[str, str] = field(default_factory=dict)
    drawn: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Part] = field(default_factory=dict)
    tried: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()

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
    def leading(self) -> Leaf:
        """The array of the result that laws look at which look at one: the first of floating point, if there is any."""
        return next((leaf for leaf in self.outputs if leaf.kind is Kind.FLOAT), self.outputs[0])

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
        """Whether the operation has gradients: a float result of float arguments, and nothing that is chosen."""
        return self.float_result and bool(self.floats) and not self.chosen

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

    @lru_cache(maxsize=64)  # noqa: B019 - operations live as long as the contract
    def without(self, lacking: frozenset[str]) -> "Operation":
        """The same operation without these features: no lengths hide positions, and None is in the place of results."""
        if not lacking & {*self.lengths, *(x.path for x in self.outputs)}:
            return self
        result = self.result
        if isinstance(result, Branch):
            nodes = (Branch(x.path, NoneType, (), ()) if x.path in lacking else x for x in result.nodes)
            result = replace(result, nodes=tuple(nodes))
        lengths = {path: size for path, size in self.lengths.items() if path not in lacking}
        return replace(self, result=result, lengths=lengths)

    # Roles -----------------------------------------------------------------------------------------------------------

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
    def axis(self, size: str) -> Axis:
        """What a size counts; ``KeyError`` for a size that is not in the glossary and not declared."""
        if size in self.counts:
            return Axis.LAYER
        name = short(size)
        return self.axes[name] if name in self.axes else GLOSSARY[name]

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
    def least(self, size: str) -> int:
        """The smallest number that a size may be: 0 for positions, layers and spare rows, or as declared; else 1."""
        return 0 if self.axis(size) & Axis.COUNTED and size not in self.nonempty else 1

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
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

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
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
        return self.rows(self.asked)

    @cached_property
    def queries(self) -> tuple[Leaf, ...]:
        """The arguments with a row for every query; without a query axis, the states that query."""
        if self.asking is None and self.asked is not None:
            return tuple(x for x in self.leaves if self.role(x) is Role.STATE)
        return self.rows(self.asking)

    def rows(self, size: str | None) -> tuple[Leaf, ...]:
        """The arguments with a vector for every position along an axis, none that may broadcast along it."""
        found = (x for x in self.leaves if x.batched and x.kind is Kind.FLOAT and size and -2 in x.axes(size))
        return tuple(x for x in found if not x.core[-2].broadcast)

    def hides(self, size: str | None) -> Leaf | None:
        """The argument that masks positions along an axis: lengths, or a mask."""
        lengths = [x for x in self.leaves if self.lengths.get(x.path) == size]
        return next(iter([*lengths, *self._masking(size)]), None)

    def _masking(self, size: str | None) -> list[Leaf]:
        """The masks of the positions along an axis."""
        return [x for x in self.leaves if x.kind is Kind.BOOL and x.core and x.core[-1].factors == (size,)]

    @cached_property
    def masks(self) -> dict[str, Leaf]:
        """The mask of each size that counts keys and has one; a decoder's are those of targets and memory."""
        return {keys: found[0] for keys in self.sizes_of(Axis.KEY) if (found := self._masking(keys))}

    @property
    def mask(self) -> Leaf | None:
        """The mask of the keys that are asked; of the first ones, where there are several kinds."""
        return self.masks.get(self.asked or "")

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
    def weighed(self, keys: str) -> tuple[Leaf, ...]:
        """The vectors of the result that are summed over the keys that a mask allows, and have no entry for each."""
        if keys not in self.masks:
            return ()
        itself = keys == self.asking
        numbers = {x for x in self.outputs if any(-1 in x.axes(size) for size in self.sizes_of(Axis.QUERY))}
        found = (x for x in self.outputs if -1 not in x.axes(keys) and (keys not in x.sizes or itself))
        return tuple(x for x in found if x not in numbers)

    @property
    def weighs_keys(self) -> bool:
        """Whether all results are summed over the keys that are asked."""
        return self.weighed(self.asked or "") == self.outputs

    @cached_property
    def separate_keys(self) -> tuple[str, ...]:
        """The sizes of keys that are weighed and are no queries: masked ones have no effect on any result."""
        return tuple(keys for keys in self.masks if keys != self.asking and self.weighed(keys))

    @cached_property
    def unordered_keys(self) -> tuple[str, ...]:
        """The sizes of keys of which every result is a weighted sum alone, whatever their order and their number."""
        free = [keys for keys in self.separate_keys if not self.axis(keys) & Axis.TIME]
        return tuple(keys for keys in free if self.weighed(keys) == self.outputs)

    @property
    def only_weighs_keys(self) -> bool:
        """Whether the result is the weighted sum alone, and hence 0 where no key is attendable."""
        return self.weighs_keys and bool(self.pooled or self.linear)

    @cached_property
    def flag(self) -> str | None:
        """The option that makes results causal."""
        return next((o.path for o in self.options if o.path in self.ordered and o.choices == (False, True)), None)

    def part(self, wanted: Part) -> str:
        """The option or optional array that does this to scores; an empty path if there is none."""
        return next((path for path, part in self.parts.items() if part is wanted), "")

    @cached_property
    def window(self) -> str | None:
        """The option that says how far from a query its keys may be."""
        return next((o.path for o in self.options if o.kind is Kind.WINDOW), None)

    def order_free(self, kind: Axis) -> tuple[str, ...]:
        """The sizes of this kind that can be permuted, once all options for which order matters are off."""
        fixed = () if self.flag else self.causal
        free = [s for s in self.sizes_of(kind) if s not in fixed and not self.axis(s) & Axis.TIME]
        return tuple(s for s in free if any(s in x.sizes and x.kind is Kind.FLOAT for x in self.leaves))


_OPERATIONS: dict[str, Operation] = {}
OPERATIONS: Mapping[str, Operation] = MappingProxyType(_OPERATIONS)
"""Every operation of the contract, by name, in the order of the chapters."""


def register(made: Operation) -> None:
    """Enter an operation, in the place of its chapter."""
    _OPERATIONS[made.name] = made
    for known in sorted(_OPERATIONS, key=lambda name: CHAPTERS.index(_OPERATIONS[name].chapter)):
        _OPERATIONS[known] = _OPERATIONS.pop(known)
