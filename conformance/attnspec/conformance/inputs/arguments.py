"""Immutable arguments of one call: NumPy arrays by path, changed along named sizes.

A path names an array inside trees of parameters, such as ``layers[0].w_q``. A size is a name from the Protocol, such as
``n``; a binding holds the numbers of all sizes in one call. A leaf describes the array at a path: its axes, and which
sizes these have.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any, TypeVar, cast

import numpy as np

from attnspec.conformance.inputs.quantization import element_of, exact_values
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.quantized import Quantized
from attnspec.spec.contract.shapes import Binding, bind
from attnspec.spec.contract.tree import (
    Branch,
    Kind,
    Leaf,
    Node,
    branches,
    dimension_value,
    field_names,
    flatten,
    pair_leaves,
)

Numbers = np.ndarray[Any, Any]
Change = Callable[[Numbers, int], Numbers]
ALL_ROLES = ~Role(0)
X = TypeVar("X")


class Arguments(Mapping[str, Any]):
    """The arguments of an operation: arrays and options by path.

    Arrays are never written to; changes make copies. ``values`` maps argument names to trees; a missing argument takes
    its default or is None. ``memo`` caches results, so that laws share one call and one oracle. ``quantized`` holds the
    operands that are passed as codes and scales, by path; the arrays at these paths are their exact values.
    """

    def __init__(self, operation: Operation, values: Mapping[str, Any]) -> None:
        self.operation = operation
        self.quantized: Mapping[str, Quantized] = {}
        template = {name: values.get(name, operation.defaults.get(name)) for name in operation.call.names}
        if unknown := set(values) - set(template):
            raise KeyError(f"{operation.name} takes no {', '.join(sorted(unknown))}")
        self.leaves: dict[str, Leaf] = {
            leaf.path: leaf for leaf, _ in pair_leaves(operation.call, template) if isinstance(leaf, Leaf)
        }
        self._flat = flatten(template)
        # Changed copies share the structure of the trees, so functions that rebuild them are made once.
        self._rebuilders = {name: _rebuilder(x, name) for name, x in template.items()}
        self.memo: dict[str, Any] = {}

    def _copy(self, changes: Mapping[str, Any]) -> "Arguments":
        copy = object.__new__(Arguments)
        copy.operation, copy.leaves, copy._rebuilders = self.operation, self.leaves, self._rebuilders
        copy._flat = {**self._flat, **changes}
        copy.quantized = {path: x for path, x in self.quantized.items() if path not in changes}
        copy.memo = {}
        return copy

    def once(self, name: str, compute: Callable[[], X]) -> X:
        """The result of ``compute``, cached under ``name``."""
        if name not in self.memo:
            self.memo[name] = compute()
        return cast(X, self.memo[name])

    def __getitem__(self, path: str) -> Any:
        return self._flat[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._flat)

    def __len__(self) -> int:
        return len(self._flat)

    # Contents --------------------------------------------------------------------------------------------------------

    @cached_property
    def values_by_name(self) -> dict[str, Any]:
        """The arguments by name, as trees."""
        return {name: rebuild(self._flat.__getitem__) for name, rebuild in self._rebuilders.items()}

    @property
    def operands_by_name(self) -> dict[str, Any]:
        """The arguments by name, with quantised operands as codes and scales."""
        values = {**self._flat, **self.quantized}
        return {name: rebuild(values.__getitem__) for name, rebuild in self._rebuilders.items()}

    @property
    def passed(self) -> dict[str, Any]:
        """The arguments by name, except keyword-only ones at their default."""
        return {name: x for name, x in self.values_by_name.items() if name not in self._defaults}

    def passed_as(self, at: Callable[[str], Any]) -> dict[str, Any]:
        """The arguments of :attr:`passed`, with ``at(path)`` for each array and option."""
        return {name: rebuild(at) for name, rebuild in self._rebuilders.items() if name not in self._defaults}

    @cached_property
    def _defaults(self) -> frozenset[str]:
        omitted = self.operation.keyword_only - self.operation.always_passed
        return frozenset(name for name in omitted if self._is_default(name))

    def _is_default(self, name: str) -> bool:
        x, default = self._flat.get(name, ...), self.operation.defaults.get(name, ...)
        return x is default or (x is not ... and not isinstance(x, np.ndarray) and x == default)

    def array(self, path: str) -> Numbers:
        """The array at a path."""
        return cast(Numbers, self._flat[path])

    @cached_property
    def leaf_arrays(self) -> list[tuple[Leaf, Numbers]]:
        """Pairs of a leaf and its array, for the arrays that are not None."""
        return [(leaf, self._flat[path]) for path, leaf in self.leaves.items() if self._flat.get(path) is not None]

    @property
    def arrays(self) -> dict[str, Numbers]:
        """The arrays that are not None, by path."""
        return {leaf.path: x for leaf, x in self.leaf_arrays}

    @property
    def floats(self) -> list[tuple[Leaf, Numbers]]:
        """Pairs of a leaf and its array, for floats only."""
        return [(leaf, x) for leaf, x in self.leaf_arrays if leaf.kind is Kind.FLOAT]

    @property
    def batched(self) -> list[tuple[Leaf, Numbers]]:
        """Pairs of a leaf and its array, for arrays that may have batch dimensions."""
        return [(leaf, x) for leaf, x in self.leaf_arrays if leaf.batched]

    @property
    def mask(self) -> Numbers | None:
        """The mask of the keys; None if absent."""
        leaf = self.operation.mask
        return None if leaf is None else cast("Numbers | None", self._flat[leaf.path])

    @property
    def causal(self) -> bool:
        """True if results are causal, always or by the flag."""
        flag = self.operation.flag
        return bool(self.operation.causal) if flag is None else bool(self._flat[flag])

    @cached_property
    def binding(self) -> Binding:
        """The sizes of this call, by name, and its batch."""
        return bind(self.operation, self.values_by_name)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name."""
        return self.binding.sizes

    def size(self, name: str) -> int:
        """The size of this name, or the product of several such as ``heads*p``."""
        return self.binding.number(name)

    @property
    def batch(self) -> tuple[int, ...]:
        """The broadcast shape of all batch dimensions."""
        return self.binding.batch

    @property
    def queries(self) -> int | None:
        """The number of queries; None for an operation without a query axis."""
        return None if self.operation.query_size is None else self.size(self.operation.query_size)

    @property
    def keys_count(self) -> int | None:
        """The number of keys; None for an operation without a key axis."""
        return None if self.operation.key_size is None else self.size(self.operation.key_size)

    # Changes ---------------------------------------------------------------------------------------------------------

    def replaced(self, changes: Mapping[str, Any]) -> "Arguments":
        """A copy with the values at these paths replaced; ``KeyError`` for unknown paths."""
        if unknown := set(changes) - set(self._flat):
            raise KeyError(f"{self.operation.name} takes no {', '.join(sorted(unknown))}")
        return self._copy(changes)

    def with_quantized(self, operands: Mapping[str, Quantized]) -> "Arguments":
        """A copy with these operands, of NumPy arrays, passed as codes and scales."""
        copy = self._copy({path: exact_values(x, f"{self.operation.name}: {path}") for path, x in operands.items()})
        copy.quantized = {**copy.quantized, **operands}
        return copy

    def with_mask(self, mask: Numbers | None, keys: str | None = None) -> "Arguments":
        """A copy with this mask, or without one; ``keys`` defaults to the attended keys."""
        return self._copy({self.operation.masks[keys or self.operation.key_size or ""].path: mask})

    def without_masks(self) -> "Arguments":
        """A copy without any mask."""
        return self._copy({leaf.path: None for leaf in self.operation.masks.values()})

    def unordered(self) -> "Arguments":
        """A copy with defaults for options that depend on the order of positions."""
        defaults = {path: self.operation.defaults[path] for path in self.operation.ordered}
        return self._copy(defaults) if any(self._flat[p] is not x for p, x in defaults.items()) else self

    def under_causal(self) -> "Arguments":
        """A copy with the causal flag set; unchanged if the operation is always causal."""
        flag = self.operation.flag
        return self if flag is None or self._flat[flag] else self._copy({flag: True})

    def along(self, size: str, change: Change, only: Role = ALL_ROLES) -> "Arguments":
        """A copy with ``change`` applied along every axis of this size.

        ``change`` is called with an array and an axis, such as :func:`take` and :func:`keep` return. ``only`` selects
        the arrays by role. A broadcast axis, which has 1 item where the size has more, stays as it is. An axis that is
        a product of sizes changes in blocks. If the size counts the items of a tuple, items are selected. A size that
        is itself an argument gets its new number. Where positions become fewer, lengths are cut, and so are the ends of
        packed sequences; the last sequence always ends where the axis does. Indices of
        selected positions follow these.
        """
        changed: dict[str, Any] = {}
        if size in self._flat:  # the size is an argument
            changed[size] = change(np.arange(cast(int, self._flat[size])), 0).shape[0]
        for leaf, x in self.leaf_arrays:
            if size in leaf.sizes and only & self.operation.role(leaf):
                changed[leaf.path] = along(x, leaf, size, self.binding, change)
            elif self.operation.lengths.get(leaf.path) == size:
                changed[leaf.path] = np.asarray(np.minimum(x, change(np.arange(self.size(size)), 0).shape[0]))
            elif self.operation.selections.get(leaf.path) == size:
                changed[leaf.path] = _renumbered(x, change(np.arange(self.size(size)), 0))
            elif self.operation.cumulative.get(leaf.path) == size:
                count = change(np.arange(self.size(size)), 0).shape[0]
                changed[leaf.path] = np.append(np.minimum(x[:-1], count), x.dtype.type(count))
        copy = self._copy(changed)
        if size not in self.operation.counts:
            return copy
        return Arguments(self.operation, _pick_items(self.operation.call, copy.values_by_name, size, change))

    def element(self, index: tuple[int, ...]) -> "Arguments":
        """One element of the batch."""
        copy = self._copy({leaf.path: element(x, len(leaf.core), index) for leaf, x in self.batched})
        operands = {path: element_of(x, len(self.leaves[path].core), index) for path, x in self.quantized.items()}
        return copy.with_quantized(operands) if operands else copy


def _rebuilder(value: Any, path: str) -> Callable[[Callable[[str], Any]], Any]:
    """A function that rebuilds a tree like ``value`` from a function of paths; it keeps the structure only."""
    parts = branches(value, path)
    if parts is None:
        return lambda value_at: value_at(path)
    rebuilders = [_rebuilder(part, part_path) for part_path, part in parts]
    names = tuple(value) if isinstance(value, dict) else field_names(value)
    if not names:
        return lambda value_at: tuple([rebuild(value_at) for rebuild in rebuilders])
    build = dict if isinstance(value, dict) else type(value)
    return lambda value_at: build(**dict(zip(names, [rebuild(value_at) for rebuild in rebuilders], strict=True)))


def _renumbered(indices: Numbers, kept: Numbers) -> Numbers:
    """Indices of positions after a change that keeps these positions, in this order; −1 for positions left out."""
    size = max(int(kept.max(initial=-1)), int(indices.max(initial=-1))) + 1
    new_index = np.full(size + 1, -1)  # the last entry, which −1 reads, stays −1
    new_index[kept[::-1]] = np.arange(len(kept))[::-1]
    return np.asarray(new_index[indices])


def _pick_items(node: Node, value: Any, size: str, change: Change) -> Any:
    """The tree with the items selected by ``change`` in tuples whose length has this name."""
    if not isinstance(node, Branch) or value is None:
        return value
    if node.repeated and node.count == size:
        return tuple(value[i] for i in change(np.arange(len(value)), 0))
    if not node.names and node.build is not dict:
        return tuple(_pick_items(node.node(i), part, size, change) for i, part in enumerate(value))
    fields = zip(node.names, node.nodes, strict=True)
    if node.build is dict:
        return {name: _pick_items(part, value[name], size, change) for name, part in fields}
    return node.rebuilt([_pick_items(part, getattr(value, name), size, change) for name, part in fields])


def along(x: Numbers, leaf: Leaf, size: str, binding: Binding, change: Change) -> Numbers:
    """The array with ``change`` applied along each non-broadcast axis of this size."""
    for axis in leaf.axes(size):
        d = leaf.core[axis]
        if d.broadcast and x.shape[axis] == 1 and dimension_value(d.factors, binding.sizes) != 1:
            continue
        position = x.ndim + axis
        if len(d.factors) == 1 and "+" in d.factors[0]:
            x = _along_sum(x, position, d.factors[0], size, binding, change)
        else:
            x = _along_product(x, position, d.factors, size, binding, change)
    return x


def _along_product(
    x: Numbers, axis: int, factors: tuple[str, ...], size: str, binding: Binding, change: Change
) -> Numbers:
    """Apply ``change`` to the blocks of an axis that is a product such as heads*p_v."""
    if factors == (size,):
        return change(x, axis)
    leading, trailing = x.shape[:axis], x.shape[axis + 1 :]
    x = x.reshape(*leading, *(dimension_value((f,), binding.sizes) or 0 for f in factors), *trailing)
    for i in [i for i, f in enumerate(factors) if f == size]:
        x = change(x, axis + i)
    return x.reshape(*leading, prod(x.shape[axis : axis + len(factors)]), *trailing)


def _along_sum(x: Numbers, axis: int, total: str, size: str, binding: Binding, change: Change) -> Numbers:
    """Apply ``change`` to the parts of an axis that is a sum such as d_s+d_h."""
    terms = [tuple(term.split("*")) for term in total.split("+")]
    ends = np.cumsum([dimension_value(term, binding.sizes) or 0 for term in terms])
    parts = np.split(x, ends[:-1], axis=axis)
    changed = [
        _along_product(part, axis, term, size, binding, change) if size in term else part
        for term, part in zip(terms, parts, strict=True)
    ]
    return np.concatenate(changed, axis=axis)


def element(x: Numbers, core: int, index: tuple[int, ...]) -> Numbers:
    """One batch element; ``core`` counts the dimensions behind the batch.

    Batch dimensions may be absent or of size 1, as in broadcasting.
    """
    batch_dims = x.ndim - core
    own_index = index[len(index) - batch_dims :]
    return np.asarray(x[tuple(0 if x.shape[i] == 1 else j for i, j in enumerate(own_index))])


def take(indices: Any) -> Change:
    """A change for :meth:`Arguments.along` that selects these indices."""
    return lambda x, axis: np.take(x, indices, axis=axis)


def keep(stop: int) -> Change:
    """A change for :meth:`Arguments.along` that keeps the first ``stop`` indices."""
    return lambda x, axis: np.take(x, np.arange(min(stop, x.shape[axis])), axis=axis)
