"""Checks of tensors against the Protocols: shapes (cached), dtypes and devices."""

from collections.abc import Sequence
from operator import attrgetter, index
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.bases.autocast import autocast_enabled
from attnspec.spec import OPERATIONS, Branch, Dim, Kind, Leaf, Option, bind
from attnspec.spec.contract.shapes import REMEMBERED, in_words, unknown_of
from attnspec.spec.contract.tree import (
    Counter,
    Items,
    Shape,
    StructureError,
    as_tuple,
    dimension_value,
    place_leaves,
    reader,
    unscoped,
    walk,
    with_indices,
    without_indices,
)

_ArrayPlace: TypeAlias = tuple[Leaf, Items]
"""An array's description in the Protocol, and its indices in tuples such as layers."""

_INDEXING = (torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8)
"""Integer dtypes that PyTorch can compare and index with; it only stores wider unsigned ones."""

_PROPERTIES = attrgetter("shape", "dtype", "device", "layout")


def _is_integer(value: Any) -> bool:
    """Return whether a value is an integer, such as NumPy's or a symbolic size."""
    if isinstance(value, bool | Tensor | torch.SymInt):
        return isinstance(value, torch.SymInt)
    try:
        index(value)
    except TypeError:
        return False
    return True


class Check:
    """Check of an operation's arguments against its Protocol; a call returns the result's shape.

    For backends whose library accepts invalid shapes, or rejects them with an unclear message.
    """

    def __init__(self, operation: str) -> None:
        self.operation = OPERATIONS[operation]
        parameters = list(zip(self.operation.call.names, self.operation.call.nodes, strict=True))
        nodes = [(name, n) for name, n in parameters if not (isinstance(n, Option) and n.kind is Kind.CHOICE)]
        self.names = tuple(name for name, _ in nodes)
        self._nodes = tuple(n for _, n in nodes)
        self._readers = tuple(None if isinstance(n, Option) else reader(n) for n in self._nodes)
        self._options = tuple((i, n) for i, n in enumerate(self._nodes) if isinstance(n, Option))
        self._choice_options = {n.path: n for _, n in parameters if isinstance(n, Option) and n.kind is Kind.CHOICE}
        self._choices = {name: option.choices for name, option in self._choice_options.items()}
        varies = any(isinstance(n, Branch) and (n.repeated or n.optional) for n in walk(self.operation.call))
        self._leaves: list[_ArrayPlace] = [] if varies else [(leaf, ()) for leaf in self.operation.leaves]
        # Read now: torch.compile cannot trace the locks of cached properties and cached functions.
        self._result = self.operation.leading.core
        self._least = {size: self.operation.least(size) for size in self.operation.sizes}
        self._shapes: dict[Any, Shape] = {}

    def __call__(self, *arguments: Any, **choices: Any) -> Shape:
        """Check tensors, trees and sizes, in the Protocol's order, and flags and options by name.

        ``ShapeError`` names the first shape that does not fit. ``TypeError`` names a wrong type or tree, floats of
        several dtypes (except under autocast), a tensor that is not dense, a mask that is not boolean, a size that is
        no integer, or a flag or option outside its choices; ``ValueError`` a tensor on another device.
        """
        for name, value in choices.items():
            for choice in self._choices.get(name, ()):
                if value is choice:  # identity is the fastest test; equal values are accepted below
                    break
            else:
                self._check_choice(name, value)
        for place, option in self._options:
            if type(arguments[place]) is not int or option.kind is Kind.WINDOW:
                self._check_number(option, arguments[place])
        if torch.compiler.is_compiling():
            return self._traced(arguments)
        arrays: list[Any] = []
        numbers: list[Any] = []
        try:
            for read, argument in zip(self._readers, arguments, strict=True):
                if read is None:
                    numbers.append(argument)
                else:
                    read(argument, arrays, numbers)
        except TypeError:
            self._refuse_structure(arguments)
        key: tuple[Any, ...] | None = None
        shape = None
        try:
            key = (*numbers, *[None if x is None else _PROPERTIES(x) for x in arrays])
            shape = self._shapes.get(key)
        except (AttributeError, TypeError, RuntimeError):  # `_check_tensors` rejects the argument by name
            pass
        if shape is not None:
            return shape
        leaves = self._leaves or [place for place, _ in self._arrays(arguments)]
        mixed = self._check_tensors(leaves, arrays)
        shape = bind(self.operation, dict(zip(self.names, arguments, strict=True))).result
        if not mixed:  # several dtypes are valid only under autocast, which may be off at the next call
            if len(self._shapes) >= REMEMBERED:
                self._shapes.clear()
            self._shapes[key] = shape
        return shape

    def _arrays(self, arguments: Sequence[Any], counted: Counter | None = None) -> list[tuple[_ArrayPlace, Any]]:
        """Return every array with its place, those of layers included; None stands for omitted arrays."""
        parameters = list(zip(self._nodes, self.names, arguments, strict=True))
        leaves = [place for n, name, x in parameters for place in place_leaves(n, x, name, counted)]
        return [((leaf, items), x) for leaf, items, x in leaves if isinstance(leaf, Leaf)]

    def _check_number(self, option: Option, value: Any) -> None:
        if not option.takes(value) and (option.kind is Kind.WINDOW or not _is_integer(value)):
            got = repr(value) if type(value) is tuple else in_words(value)
            raise TypeError(f"{self.operation.name}: {option.path}: expected {option.expected}; got {got}")

    def _check_choice(self, name: str, value: Any) -> None:
        """Raise ``TypeError`` for a value outside an option's choices; flags may be symbolic."""
        option = self._choice_options.get(name)
        if option is None:
            expected = f"an option among {', '.join(self._choice_options) or 'none'}"
            raise TypeError(f"{self.operation.name}: expected {expected}; got {name!r}")
        flag = isinstance(value, (bool, torch.SymBool)) and option.takes(True)
        if not flag and not option.takes(value):
            raise TypeError(f"{self.operation.name}: {option.path}: expected {option.expected}; got {in_words(value)}")

    def _refuse_structure(self, arguments: Sequence[Any]) -> NoReturn:
        try:
            self._arrays(arguments)
        except StructureError as error:
            raise TypeError(f"{self.operation.name}: {error}") from None
        raise AssertionError(f"{self.operation.name}: its tree reader and its structure check disagree: report a bug")

    def _check_tensors(self, leaves: Sequence[_ArrayPlace], arrays: Sequence[Any]) -> bool:
        """Raise for a wrong tensor, dtype or device; return True if autocast allows mixed dtypes."""
        device, dtype, mixed = None, None, False
        for (leaf, items), x in zip(leaves, arrays, strict=True):
            if isinstance(x, Tensor):
                kind = x.dtype
                if x.is_nested or x.layout is not torch.strided:
                    self._refuse(TypeError, leaf, items, "a dense tensor", "a nested one" if x.is_nested else x.layout)
                if device is None:
                    device = x.device
                elif x.device != device:
                    self._refuse(ValueError, leaf, items, f"a tensor on {device} like the others", x.device)
                if leaf.kind is Kind.FLOAT and kind is not dtype:
                    if not kind.is_floating_point:
                        self._refuse(TypeError, leaf, items, "a floating dtype", kind)
                    if kind.itemsize < 2:
                        self._refuse(TypeError, leaf, items, "a floating dtype of at least 16 bits", kind)
                    if dtype is not None:
                        if not autocast_enabled(x):
                            self._refuse(TypeError, leaf, items, f"{dtype} like the others", kind)
                        mixed = True
                    dtype = kind
                elif leaf.kind is Kind.INT and kind not in _INDEXING:
                    self._refuse(TypeError, leaf, items, "torch.uint8 or a signed integer dtype", kind)
                elif leaf.kind is Kind.BOOL and kind is not torch.bool:
                    self._refuse(TypeError, leaf, items, "torch.bool, True = may attend", kind)
            elif not (x is None and leaf.optional):
                self._refuse(TypeError, leaf, items, "a torch.Tensor", type(x).__name__)
        return mixed

    def _refuse(self, error: type[Exception], leaf: Leaf, items: Items, expected: str, got: object) -> NoReturn:
        raise error(f"{self.operation.name}: {with_indices(leaf.path, items)}: expected {expected}; got {got}")

    def _check_least(self, size: str, number: int, path: str, got: Any, size_name: str = "") -> None:
        """Raise ``ValueError`` for a number below a size's minimum; unknown symbolic sizes pass."""
        least = self._least[size]
        if torch.fx.experimental.symbolic_shapes.guard_or_false(number < least):
            name, size_text = size_name or unscoped(size), as_tuple(got) if isinstance(got, tuple) else got
            raise ValueError(f"{self.operation.name}: {path}: expected {name} of at least {least}; got {size_text}")

    def _traced(self, arguments: Sequence[Any]) -> Shape:
        """Check under ``torch.compile``, where sizes may be symbols and errors get wrapped."""
        sizes: dict[str, int] = {}
        counts: list[tuple[Branch, str, int]] = []
        arrays = self._arrays(arguments, lambda *count: counts.append(count))
        self._check_tensors([place for place, _ in arrays], [x for _, x in arrays])
        for place, option in self._options:
            if option.kind is Kind.SIZE:
                sizes[option.path] = number = arguments[place]
                self._check_least(option.path, number, option.path, number)
        for branch, path, number in counts:
            self._check_least(branch.count, number, path, f"{number} of them")
        batches = []
        deferred: list[tuple[Leaf, Items, Dim, tuple[str, ...], int, Shape]] = []
        for (leaf, items), x in arrays:
            if x is None:
                continue
            shape = x.shape
            rank = len(shape) - len(leaf.core)
            if rank < 0 or (rank > 0 and not leaf.batched):
                self._refuse(ValueError, leaf, items, f"rank {len(leaf.core)}", f"rank {len(shape)}")
            batches.append(shape[:rank])
            for d, size in zip(leaf.core, shape[rank:], strict=True):
                factors = tuple(with_indices(f, items) for f in d.factors)
                if not d.plain:
                    deferred.append((leaf, items, d, factors, size, shape))
                    continue
                self._check_least(d.factors[0], size, with_indices(leaf.path, items), shape, d.written)
                if sizes.setdefault(factors[0], size) != size:
                    self._refuse(ValueError, leaf, items, f"{d.written} = {sizes[factors[0]]}", size)
        for leaf, items, d, factors, size, shape in deferred:
            unknown, known_product = unknown_of(factors, sizes)
            if unknown:
                sizes[unknown] = size // (known_product or 1) if len(factors) > 1 else max(size - known_product, 0)
                self._check_least(without_indices(unknown), sizes[unknown], with_indices(leaf.path, items), shape)
            expected = dimension_value(factors, sizes)
            if size != expected and not (d.broadcast and size == 1):
                self._refuse(ValueError, leaf, items, f"{d.written} = {expected}", size)
        batch: Shape = torch.broadcast_shapes(*batches) if batches else ()  # type: ignore[no-untyped-call]
        return (*batch, *[dimension_value(d.factors, sizes) or 0 for d in self._result])
