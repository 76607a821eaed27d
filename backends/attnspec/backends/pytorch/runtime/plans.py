"""Cached plans: checks, broadcasting and choice of path, computed once per kind of call."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar, dataclass_transform

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime.transforms import has_default_dispatch

Plan = TypeVar("Plan")
C = TypeVar("C")

REMEMBERED = 1024
"""Most plans kept per operation; when full, the cache is emptied."""

_PROPERTIES = attrgetter("__class__", "shape", "dtype", "device", "requires_grad")


@dataclass_transform()
def plan_class(cls: type[C]) -> type[C]:
    """Make a dataclass without comparison and repr, which would slow first calls by 2 ms."""
    return dataclass(eq=False, repr=False, slots=True)(cls)


def plan_properties(x: Tensor | None) -> Any:
    """Return x's part of a plan's key; AttributeError or RuntimeError unless a sized tensor."""
    return None if x is None else _PROPERTIES(x)


class Plans(Generic[Plan]):
    """Plans by key, shared by threads without a lock: two may compute the same plan."""

    def __init__(self) -> None:
        self._plans: dict[Any, Plan] = {}
        self.get = self._plans.get

    def remember(self, key: Any, plan: Plan) -> Plan:
        """Store a plan and return it."""
        if len(self._plans) >= REMEMBERED:
            self._plans.clear()
        self._plans[key] = plan
        return plan


def all_dense_cpu(*tensors: Tensor | None) -> bool:
    """Return whether all are None or dense CPU tensors with PyTorch's own dispatch."""
    return all(x is None or (has_default_dispatch(x) and x.is_cpu and x.layout is torch.strided) for x in tensors)
