"""What a call needs, found once for all calls of the same kind: checks, broadcasting, and the path to take."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar, dataclass_transform

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime.transforms import runs_plainly

Plan = TypeVar("Plan")
C = TypeVar("C")

REMEMBERED = 1024
"""How many plans are kept of an operation; then all are made anew."""

_SEEN = attrgetter("__class__", "shape", "dtype", "device", "requires_grad")


@dataclass_transform()
def plan_class(cls: type[C]) -> type[C]:
    """A dataclass without the methods that no plan needs: to make all takes two milliseconds of a first call."""
    return dataclass(eq=False, repr=False, slots=True)(cls)


def seen(x: Tensor | None) -> Any:
    """What plans depend on; AttributeError or RuntimeError for what is no tensor or has no sizes."""
    return None if x is None else _SEEN(x)


class Plans(Generic[Plan]):
    """Plans by all that they depend on. Threads may use them together: a plan is made anew rather than waited for."""

    def __init__(self) -> None:
        self._known: dict[Any, Plan] = {}
        self.get = self._known.get

    def remember(self, key: Any, plan: Plan) -> Plan:
        """Keep a plan, and give it."""
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = plan
        return plan


def ordinary(*tensors: Tensor | None) -> bool:
    """Whether all are dense tensors on the CPU without operations of their own."""
    return all(x is None or (runs_plainly(x) and x.is_cpu and x.layout is torch.strided) for x in tensors)
