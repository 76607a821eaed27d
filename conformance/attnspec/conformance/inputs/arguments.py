"""The arguments of one call, as NumPy arrays: immutable, with named dimensions that can be cut and copied."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np

from attnspec.spec.contract.operation import OPERATIONS, Argument, Kind, Operation
from attnspec.spec.contract.shapes import Binding, bind

Numbers = np.ndarray[Any, Any]


class Arguments(Mapping[str, Any]):
    """Arguments of an operation by name. Arrays must not be written to: ``with_`` makes changed copies.

    ``memo`` keeps what was computed from exactly these arguments, so that laws share one call and one oracle.
    """

    def __init__(self, operation: Operation, values: Mapping[str, Any]) -> None:
        self.operation = operation
        self._values = {
            a.name: values.get(a.name, a.default if a.kind is Kind.FLAG else None) for a in operation.arguments
        }
        self.memo: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def array(self, name: str) -> Numbers:
        """An argument that is an array."""
        return cast(Numbers, self._values[name])

    @property
    def mask(self) -> Numbers | None:
        """The mask, if the operation takes one and it is given."""
        return cast("Numbers | None", self._values.get("mask"))

    @property
    def causal(self) -> bool:
        """Whether the operation takes ``causal`` and it is set."""
        return bool(self._values.get("causal", False))

    def with_(self, **changes: Any) -> "Arguments":
        """The same arguments but for these."""
        unknown = set(changes) - set(self._values)
        if unknown:
            raise KeyError(f"{self.operation.name} takes no {', '.join(sorted(unknown))}")
        return Arguments(self.operation, {**self._values, **changes})

    @property
    def arrays(self) -> dict[str, Numbers]:
        """The arrays among the arguments."""
        return {name: v for name, v in self._values.items() if isinstance(v, np.ndarray)}

    @property
    def binding(self) -> Binding:
        """The sizes that names stand for here."""
        if "binding" not in self.memo:
            self.memo["binding"] = _bound(self.operation.name, tuple(shapes(self.operation, self._values).items()))
        return cast(Binding, self.memo["binding"])

    def size(self, name: str) -> int:
        """The size that a name stands for here."""
        return self.binding.sizes[name]

    @property
    def batch(self) -> tuple[int, ...]:
        """The common batch."""
        return self.binding.batch

    def along(self, size: str, change: Callable[[Numbers, int], Numbers], *only: str) -> "Arguments":
        """Change every array (or only those named) along each of its dimensions of that name.

        ``change`` is called with an array and an axis. Dimensions that are broadcast, with size 1, are left alone
        unless the size itself is 1.
        """
        changed = {}
        for a in self.operation.arguments:
            x = self._values[a.name]
            if only and a.name not in only:
                continue
            if a.kind is Kind.SIZE and a.name == size:
                changed[a.name] = change(np.arange(cast(int, x)), 0).shape[0]
            if not isinstance(x, np.ndarray):
                continue
            for axis in self.axes(a, size):
                d = a.core[axis + len(a.core)]
                if d.broadcast and x.shape[axis] == 1 and self.size(size) != 1:
                    continue
                x = self._change_block(x, axis, d.factors, size, change)
            changed[a.name] = x
        return self.with_(**changed)

    def _change_block(
        self, x: Numbers, axis: int, factors: tuple[str, ...], size: str, change: Callable[[Numbers, int], Numbers]
    ) -> Numbers:
        if len(factors) == 1:
            return change(x, axis)
        # A product of sizes, such as h*p_v: unfold it, change the factor, fold it again.
        blocks = x.reshape(*x.shape[:axis], *(self.size(f) for f in factors), *x.shape[len(x.shape) + axis + 1 :])
        inner = axis - len(factors) + 1 + factors.index(size)
        changed = change(blocks, inner)
        return changed.reshape(*x.shape[:axis], -1, *x.shape[len(x.shape) + axis + 1 :])

    @staticmethod
    def axes(a: Argument, size: str) -> list[int]:
        """The axes, counted from the end, that carry a size in an argument."""
        return [i - len(a.core) for i, d in enumerate(a.core) if size in d.factors]


def shapes(operation: Operation, values: Mapping[str, Any]) -> dict[str, tuple[int, ...] | int | None]:
    """What :func:`attnspec.spec.contract.shapes.bind` takes, from arguments."""
    result: dict[str, tuple[int, ...] | int | None] = {}
    for a in operation.arguments:
        value = values.get(a.name)
        result[a.name] = value if value is None or isinstance(value, int) else np.shape(value)
    return result


@lru_cache(maxsize=1 << 14)
def _bound(operation: str, shapes: tuple[tuple[str, tuple[int, ...] | int | None], ...]) -> Binding:
    """Laws change numbers far more often than shapes."""
    return bind(OPERATIONS[operation], dict(shapes))


def take(indices: Any) -> Callable[[Numbers, int], Numbers]:
    """A change for :meth:`Arguments.along`: pick these indices."""
    return lambda x, axis: np.take(x, indices, axis=axis)


def keep(stop: int) -> Callable[[Numbers, int], Numbers]:
    """A change for :meth:`Arguments.along`: keep the first ``stop``."""
    return lambda x, axis: np.take(x, np.arange(min(stop, x.shape[axis])), axis=axis)
