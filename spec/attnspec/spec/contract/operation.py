"""Contract of one operation, and the registry of all operations.

``attnspec.spec.contract.registration`` reads a contract from a Protocol. Inputs, laws, reports and documentation are
derived from it.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType, NoneType
from typing import Any

from attnspec.spec.contract.axes import GLOSSARY, Axis, Role, ScoreEffect
from attnspec.spec.contract.sources import Citation
from attnspec.spec.contract.tree import Branch, Kind, Leaf, Node, Option, Reader, reader, unscoped, walk

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
    "linear",
    "selected",
    "moments",
    "complexity",
)


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation, as ``registration.operation`` declares it; the fields are explained there."""

    name: str
    chapter: str
    formula: str
    sources: tuple[Citation, ...]
    protocol: type
    call: Branch
    """Descriptions of the arguments, by name."""
    result: Node
    defaults: Mapping[str, Any]
    keyword_only: frozenset[str]
    reference_only: bool = False
    axes: Mapping[str, Axis] = field(default_factory=dict)
    pooled: str = ""
    linear: tuple[str, ...] = ()
    scores_scale_with: Mapping[str, float] = field(default_factory=dict)
    causal: tuple[str, ...] = ()
    nonempty: tuple[str, ...] = ()
    ordered: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    lengths: Mapping[str, str] = field(default_factory=dict)
    indices: Mapping[str, str] = field(default_factory=dict)
    selections: Mapping[str, str] = field(default_factory=dict)
    cumulative: Mapping[str, str] = field(default_factory=dict)
    generated_below: Mapping[str, int] = field(default_factory=dict)
    generated_within: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)
    parts: Mapping[str, ScoreEffect] = field(default_factory=dict)
    wider: tuple[str, ...] = ()
    trial_values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    always_passed: frozenset[str] = frozenset()

    # Arguments and results -------------------------------------------------------------------------------------------

    @property
    def statement(self) -> str:
        """First line of the Protocol's docstring."""
        return (inspect.getdoc(self.protocol) or "").split("\n", 1)[0]

    @cached_property
    def signature(self) -> inspect.Signature:
        """Signature of ``__call__`` without ``self``."""
        full = inspect.signature(self.protocol.__call__)
        return full.replace(parameters=list(full.parameters.values())[1:])

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Arrays among the arguments; in a tuple of similar trees, ``[:]`` stands for every item."""
        return tuple(n for n in walk(self.call) if isinstance(n, Leaf))

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Arguments that are neither arrays nor trees: sizes, numbers, flags, choices, windows."""
        return tuple(n for n in self.call.nodes if isinstance(n, Option))

    @cached_property
    def outputs(self) -> tuple[Leaf, ...]:
        """Arrays of the result."""
        return tuple(n for n in walk(self.result) if isinstance(n, Leaf))

    @cached_property
    def leading(self) -> Leaf:
        """First float array of the result, else its first array; laws on one array judge this one."""
        return next((leaf for leaf in self.outputs if leaf.kind is Kind.FLOAT), self.outputs[0])

    @cached_property
    def floats(self) -> tuple[Leaf, ...]:
        """Float arrays among the arguments; these have gradients."""
        return tuple(leaf for leaf in self.leaves if leaf.kind is Kind.FLOAT)

    @cached_property
    def float_result(self) -> bool:
        """True if the result has a float array."""
        return any(leaf.kind is Kind.FLOAT for leaf in self.outputs)

    @property
    def differentiable(self) -> bool:
        """True if the operation has gradients: float arguments, a float result and no ``chosen`` results."""
        return self.float_result and bool(self.floats) and not self.chosen

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """Sizes of the arguments, in order of appearance."""
        array_sizes = (size for leaf in self.leaves for size in leaf.sizes)
        return tuple(dict.fromkeys([*array_sizes, *self.counts, *(o.path for o in self.numbers)]))

    @cached_property
    def counts(self) -> tuple[str, ...]:
        """Sizes that count the items of a tuple, such as layers; only models have any."""
        return tuple(n.count for n in walk(self.call) if isinstance(n, Branch) and n.count)

    @cached_property
    def readers(self) -> tuple[tuple[str, Reader | None], ...]:
        """Compiled reader of the arrays in each argument; None if the argument is an array."""
        pairs = zip(self.call.names, self.call.nodes, strict=True)
        argument_trees = ((name, node) for name, node in pairs if not isinstance(node, Option))
        return tuple((name, None if isinstance(node, Leaf) else reader(node)) for name, node in argument_trees)

    @cached_property
    def numbers(self) -> tuple[Option, ...]:
        """Arguments that are sizes, such as ``n`` of a positional encoding."""
        return tuple(o for o in self.options if o.kind is Kind.SIZE)

    @cached_property
    def bindings(self) -> dict[Any, Any]:
        """Cache of :func:`~attnspec.spec.contract.shapes.bind`, by shapes."""
        return {}

    @lru_cache(maxsize=64)  # noqa: B019 - operations live as long as the contract
    def without(self, lacking: frozenset[str]) -> "Operation":
        """Copy of the operation without these features: their lengths hide nothing, their results are None."""
        if not lacking & {*self.lengths, *(x.path for x in self.outputs)}:
            return self
        result = self.result
        if isinstance(result, Branch):
            nodes = (Branch(x.path, NoneType, (), ()) if x.path in lacking else x for x in result.nodes)
            result = replace(result, nodes=tuple(nodes))
        lengths = {path: size for path, size in self.lengths.items() if path not in lacking}
        return replace(self, result=result, lengths=lengths)

    @lru_cache(maxsize=64)  # noqa: B019 - operations live as long as the contract
    def with_always(self, choices: tuple[str, ...]) -> "Operation":
        """Copy of the operation whose calls make these choices, such as ``norm=pre``, and pass them."""
        values = {
            o.path: x for o in self.options for x in o.choices if f"{o.path}={x}" in {*choices} & {*self.features}
        }
        return replace(self, defaults={**self.defaults, **values}, always_passed=frozenset(values)) if values else self

    # Roles -----------------------------------------------------------------------------------------------------------

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
    def axis(self, size: str) -> Axis:
        """Meaning of a size; ``KeyError`` for a size that is neither declared nor in the glossary."""
        if size in self.counts:
            return Axis.LAYER
        name = unscoped(size)
        return self.axes[name] if name in self.axes else GLOSSARY[name]

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
    def least(self, size: str) -> int:
        """Smallest value of a size: 0 for positions, layers and spare rows not in ``nonempty``, else 1."""
        return 0 if self.axis(size) & Axis.COUNTED and size not in self.nonempty else 1

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
    def sizes_of(self, kind: Axis) -> tuple[str, ...]:
        """Sizes of arguments whose axis includes ``kind``."""
        return tuple(s for s in self.sizes if s not in self.counts and kind in self.axis(s))

    @cached_property
    def query_size(self) -> str | None:
        """Size that counts queries; None for an operation without a query axis."""
        return next(iter(self.sizes_of(Axis.QUERY)), None)

    @cached_property
    def key_size(self) -> str | None:
        """Size that counts keys; None without keys. In self-attention it equals ``query_size``."""
        return next(iter(self.sizes_of(Axis.KEY)), None)

    @property
    def attends_to_itself(self) -> bool:
        """True in self-attention: queries and keys share one size."""
        return self.query_size is not None and self.query_size == self.key_size

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
    def role(self, leaf: Leaf) -> Role:
        """Role of an array; a weight with a row for every position is both WEIGHT and ROWS."""
        if leaf.kind is Kind.BOOL:
            return Role.MASK
        if leaf.kind is Kind.INT:
            return Role.LENGTHS if leaf.path in self.lengths else Role.INDICES
        rows = any(self.axis(size) & Axis.POSITION for size in leaf.sizes)
        row_role = Role.ROWS if rows else Role(0)
        return row_role if leaf.batched and rows else row_role | (Role.STATE if leaf.batched else Role.WEIGHT)

    def along(self, size: str | None, role: Role = Role.ROWS) -> tuple[Leaf, ...]:
        """Arguments of a role that have an axis of this size."""
        return tuple(x for x in self.leaves if size in x.sizes and self.role(x) & role)

    @cached_property
    def attended(self) -> tuple[Leaf, ...]:
        """Arguments with a row for every key: keys, values, memories."""
        return self.rows(self.key_size)

    @cached_property
    def queries(self) -> tuple[Leaf, ...]:
        """Arguments with a row for every query; without a query axis, the states that act as the query."""
        if self.query_size is None and self.key_size is not None:
            return tuple(x for x in self.leaves if self.role(x) is Role.STATE)
        return self.rows(self.query_size)

    def rows(self, size: str | None) -> tuple[Leaf, ...]:
        """Float arguments with a vector per position of an axis, not broadcast along it."""
        row_arrays = (x for x in self.leaves if x.batched and x.kind is Kind.FLOAT and size and -2 in x.axes(size))
        return tuple(x for x in row_arrays if not x.core[-2].broadcast)

    def hiding_argument(self, size: str | None) -> Leaf | None:
        """Argument that hides positions along an axis: lengths, else a mask; None without either."""
        lengths = [x for x in self.leaves if self.lengths.get(x.path) == size]
        return next(iter([*lengths, *self._masking(size)]), None)

    def _masking(self, size: str | None) -> list[Leaf]:
        """Masks of the positions along an axis."""
        return [x for x in self.leaves if x.kind is Kind.BOOL and x.core and x.core[-1].factors == (size,)]

    @cached_property
    def masks(self) -> dict[str, Leaf]:
        """Mask by size of keys; a decoder has one for its targets and one for its memory."""
        return {keys: matches[0] for keys in self.sizes_of(Axis.KEY) if (matches := self._masking(keys))}

    @cached_property
    def emptying_masks(self) -> dict[str, Leaf]:
        """Masks that can leave a row without keys, by size of keys.

        A call that appends its own position to the keys always attends to it, as `cached_decoder_step` does.
        """
        factors = {factor for leaf in self.outputs for dim in leaf.core for factor in dim.factors}
        return {keys: leaf for keys, leaf in self.masks.items() if f"{keys}+1" not in factors}

    @property
    def mask(self) -> Leaf | None:
        """Mask of the keys that ``key_size`` counts; None without a mask."""
        return self.masks.get(self.key_size or "")

    @lru_cache(maxsize=4096)  # noqa: B019 - operations live as long as the contract
    def summed_over(self, keys: str) -> tuple[Leaf, ...]:
        """Results that sum over the keys a mask allows, without an entry per key.

        Numbers per query, such as `log_sum_exp` of `grouped_query_attention`, are left out: they are no weighted sums.
        """
        if keys not in self.masks:
            return ()
        is_self = keys == self.query_size
        per_query = {x for x in self.outputs if any(-1 in x.axes(size) for size in self.sizes_of(Axis.QUERY))}
        sums = (x for x in self.outputs if -1 not in x.axes(keys) and (keys not in x.sizes or is_self))
        return tuple(x for x in sums if x not in per_query)

    @property
    def weighs_keys(self) -> bool:
        """True if all results are sums over the keys that ``key_size`` counts."""
        return self.summed_over(self.key_size or "") == self.outputs

    @cached_property
    def separate_keys(self) -> tuple[str, ...]:
        """Sizes of masked keys that are summed over and are not queries: a masked key affects no result."""
        return tuple(keys for keys in self.masks if keys != self.query_size and self.summed_over(keys))

    @cached_property
    def unordered_keys(self) -> tuple[str, ...]:
        """Sizes of separate keys without time order, over which all results, unlike log-sum-exp, are sums."""
        free = [keys for keys in self.separate_keys if not self.axis(keys) & Axis.TIME]
        return tuple(keys for keys in free if self.summed_over(keys) == self.outputs)

    @property
    def only_weighs_keys(self) -> bool:
        """True if the result is only a weighted sum over keys; without attendable keys it is 0."""
        return self.weighs_keys and bool(self.pooled or self.linear)

    @cached_property
    def flag(self) -> str | None:
        """Boolean option that makes results causal; None if there is none."""
        return next((o.path for o in self.options if o.path in self.ordered and o.choices == (False, True)), None)

    def part(self, wanted: ScoreEffect) -> str:
        """Path of the option or optional array with this effect on scores; empty if there is none."""
        return next((path for path, part in self.parts.items() if part is wanted), "")

    @cached_property
    def window(self) -> str | None:
        """Option that bounds the distance between a query and its keys; None if there is none."""
        return next((o.path for o in self.options if o.kind is Kind.WINDOW), None)

    def order_free(self, kind: Axis) -> tuple[str, ...]:
        """Sizes of this kind that may be permuted while no ``ordered`` option is on."""
        # Without a flag, as in `rnn`, results are always causal.
        fixed = () if self.flag else self.causal
        free = [s for s in self.sizes_of(kind) if s not in fixed and not self.axis(s) & Axis.TIME]
        return tuple(s for s in free if any(s in x.sizes and x.kind is Kind.FLOAT for x in self.leaves))


_OPERATIONS: dict[str, Operation] = {}
OPERATIONS: Mapping[str, Operation] = MappingProxyType(_OPERATIONS)
"""All operations by name, in the order of the chapters."""


def register(declared: Operation) -> None:
    """Register an operation; ``OPERATIONS`` stays in the order of the chapters."""
    _OPERATIONS[declared.name] = declared
    for registered in sorted(_OPERATIONS, key=lambda name: CHAPTERS.index(_OPERATIONS[name].chapter)):
        _OPERATIONS[registered] = _OPERATIONS.pop(registered)
