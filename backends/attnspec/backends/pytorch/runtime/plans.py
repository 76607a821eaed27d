"""Cached plans of calls: checks, broadcasting and path, computed once per kind of call."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar, dataclass_transform

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime.transforms import runs_plainly

Plan = TypeVar("Plan")
C = TypeVar("C")

REMEMBERED = 1024
"""Most plans kept per operation; when full, the cache is emptied."""

_SEEN = attrgetter("__class__", "shape", "dtype", "device", "requires_grad")


@dataclass_transform()
def plan_class(cls: type[C]) -> type[C]:
    """Make a dataclass without methods that plans never use. All methods would add two milliseconds to a first call."""
    return dataclass(eq=False, repr=False, slots=True)(cls)


def seen(x: Tensor | None) -> Any:
    """Properties of x that plans depend on; AttributeError or RuntimeError unless x is a sized tensor."""
    return None if x is None else _SEEN(x)


class Plans(Generic[Plan]):
    """Plans by key. Threads share them without waiting: two may compute the same plan."""

    def __init__(self) -> None:
        self._known: dict[Any, Plan] = {}
        self.get = self._known.get

    def remember(self, key: Any, plan: Plan) -> Plan:
        """Store a plan and return it."""
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = plan
        return plan


def ordinary(*tensors: Tensor | None) -> bool:
    """Return whether all are dense CPU tensors whose class leaves operations to PyTorch."""
    return all(x is None or (runs_plainly(x) and x.is_cpu and x.layout is torch.strided) for x in tensors)
