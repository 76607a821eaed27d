"""Tensors checked against the Protocols: shapes (by one look-up for those that were seen before), dtypes, devices."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NoReturn

import torch
from torch import Tensor

from attnspec.backends.bases.autocast import is_on
from attnspec.spec import OPERATIONS, Kind
from attnspec.spec.contract.operation import Argument
from attnspec.spec.contract.shapes import Shape, bind


class Check:
    """Raises for arguments that violate the Protocol of one operation; returns the shape of the result.

    For backends whose library accepts shapes that it should not, or refuses them with an unclear message.
    """

    def __init__(self, operation: str) -> None:
        self.operation = OPERATIONS[operation]
        self.arguments = tuple(a for a in self.operation.arguments if a.kind is not Kind.FLAG)
        self._remembered = lru_cache(maxsize=4096)(self._bound)
        self._plan = tuple(
            (a.name, a.batched, tuple((d.name, d.factors, d.broadcast) for d in a.core)) for a in self.arguments
        )

    def __call__(self, *arguments: Tensor | int | None) -> Shape:
        """Take the arguments in the Protocol's order, flags left out.

        ``ShapeError`` names the first shape that does not fit; ``TypeError`` what is no tensor, floats that are not of
        one dtype (outside of autocast) and a mask that is not boolean; ``ValueError`` a tensor on another device.
        """
        self._check_tensors(arguments)
        shapes = [a.shape if isinstance(a, Tensor) else a for a in arguments]
        if torch.compiler.is_compiling():
            return self._traced(shapes)
        return self._remembered(*shapes)

    def _check_tensors(self, arguments: Sequence[Tensor | int | None]) -> None:
        device = dtype = None
        for declared, given in zip(self.arguments, arguments, strict=True):
            if isinstance(given, Tensor):
                kind = given.dtype
                if device is None:
                    device = given.device
                elif given.device != device:
                    self._refuse(ValueError, declared, f"a tensor on {device} as the others", given.device)
                if declared.kind is Kind.FLOAT and kind is not dtype:
                    if not kind.is_floating_point:
                        self._refuse(TypeError, declared, "a floating dtype", kind)
                    if dtype is not None and not is_on(given):
                        self._refuse(TypeError, declared, f"{dtype} as the others", kind)
                    dtype = kind
                elif declared.kind is Kind.BOOL and kind is not torch.bool:
                    self._refuse(TypeError, declared, "torch.bool, True = may attend", kind)
            elif declared.is_array and not (given is None and declared.optional):
                self._refuse(TypeError, declared, "a torch.Tensor", type(given).__name__)

    def _refuse(self, error: type[Exception], argument: Argument, expected: str, got: object) -> NoReturn:
        raise error(f"{self.operation.name}: {argument.name}: expected {expected}; got {got}")

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
