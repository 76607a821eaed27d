"""Shapes of tensors checked against the Protocols, at the cost of one look-up for shapes that were seen before."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from attnspec.spec import OPERATIONS, Kind
from attnspec.spec.shapes import Shape, bind


class Check:
    """Raises for arguments that violate the Protocol of one operation; returns the shape of the result.

    For backends whose library accepts shapes that it should not, or refuses them with an unclear message.
    """

    def __init__(self, operation: str) -> None:
        self.operation = OPERATIONS[operation]
        self.arguments = tuple(a for a in self.operation.arguments if a.kind is not Kind.FLAG)
        self.masked = self.arguments[-1].name == "mask"
        self._remembered = lru_cache(maxsize=4096)(self._bound)
        self._plan = tuple(
            (a.name, a.batched, tuple((d.name, d.factors, d.broadcast) for d in a.core)) for a in self.arguments
        )

    def __call__(self, *arguments: Tensor | int | None) -> Shape:
        """Take the arguments in the Protocol's order, flags left out.

        ``ShapeError`` names the first shape that does not fit; ``TypeError`` a mask that is not boolean.
        """
        mask = arguments[-1]
        if self.masked and isinstance(mask, Tensor) and mask.dtype is not torch.bool:
            raise TypeError(f"{self.operation.name}: mask: expected torch.bool, True = may attend; got {mask.dtype}")
        shapes = [a.shape if isinstance(a, Tensor) else a for a in arguments]
        if torch.compiler.is_compiling():
            return self._traced(shapes)
        return self._remembered(*shapes)

    def _bound(self, *shapes: Shape | int | None) -> Shape:
        values = {a.name: shape for a, shape in zip(self.arguments, shapes, strict=True)}
        return bind(self.operation, values).shape(self.operation.result.dims)

    def _traced(self, shapes: Sequence[Shape | int | None]) -> Shape:
        """The same where sizes may be symbols; ValueError, in ``torch.compile``'s own, if something does not fit."""
        name = self.operation.name
        sizes: dict[str, int] = {}
        batches = []
        for (argument, batched, core), shape in zip(self._plan, shapes, strict=True):
            if isinstance(shape, int):
                sizes[argument] = shape
            elif shape is not None:
                rank = len(shape) - len(core)
                if rank < 0 or (rank > 0 and not batched):
                    raise ValueError(f"{name}: {argument}: expected rank {len(core)}; got rank {len(shape)}")
                batches.append(shape[:rank])
                for (size_name, factors, broadcast), size in zip(core, shape[rank:], strict=True):
                    expected = (
                        sizes.setdefault(size_name, size) if len(factors) == 1 else prod([sizes[f] for f in factors])
                    )
                    if size != expected and not (broadcast and size == 1):
                        raise ValueError(f"{name}: {argument}: expected {size_name} = {expected}; got {size}")
        batch: Shape = torch.broadcast_shapes(*batches) if batches else ()  # type: ignore[no-untyped-call]
        return (*batch, *[sizes[d.name] for d in self.operation.result.core])
