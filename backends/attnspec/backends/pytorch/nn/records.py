"""Base of modules whose weights are the fields of a record, a dataclass of `spec`."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

Record = TypeVar("Record")
Module = TypeVar("Module", bound=nn.Module)


class Recorded(nn.Module, Generic[Record]):
    """A module with the arrays of a record as parameters, inner records as submodules.

    Names in ``state_dict`` are therefore the specification's paths: ``layers.1.attention.w_k`` is
    ``layers[1].attention.w_k``.
    """

    kind: ClassVar[Any]
    """The class of the record."""
    parts: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Module class of each field that is a record; of a tuple of layers, the class of one layer."""
    _names: ClassVar[tuple[str, ...]]
    beyond_record: str = ""
    """Settings that the record has no place for, such as biases of attention; empty if there are none."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            cls._names = tuple(f.name for f in fields(cls.kind))

    def record(self) -> Record:
        """Return the parameters as a record, without copies, so that gradients flow.

        ``ValueError`` for a module with settings that the record has no place for: only calls of it use them.
        """
        if self.beyond_record:
            expected = f"expected the settings of {self.kind.__name__}"
            raise ValueError(f"{type(self).__name__}.record: {expected}; got {self.beyond_record}: call the module")
        stored = self._parameters
        # Only submodules and parametrized weights need getattr; reading ``_parameters`` is ten times as fast.
        values = [stored[name] if name in stored else _record_value(getattr(self, name)) for name in self._names]
        record: Record = self.kind(*values)
        return record

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Return a module with a copy of a record's weights, of any sizes."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        for name in cls._names:
            setattr(module, name, _as_submodule(getattr(record, name), cls.parts.get(name)))
        return module

    def reset_parameters(self) -> None:
        """Draw new weights for all submodules."""
        for part in self.children():
            reset(part)


def _record_value(value: Any) -> Any:
    if isinstance(value, nn.ModuleList):
        return records(value)
    return value.record() if isinstance(value, Recorded) else value


def untyped(layers: nn.ModuleList) -> Iterable[Any]:
    """Return the layers as Any: PyTorch annotates them only as modules."""
    return layers


def records(layers: nn.ModuleList) -> tuple[Any, ...]:
    """Return the records of the layers."""
    return tuple([layer.record() for layer in untyped(layers)])


def _as_submodule(value: Any, part: Any) -> nn.Module | nn.Parameter:
    if part is None:
        return nn.Parameter(copied(value))
    if isinstance(value, tuple):
        return nn.ModuleList([part.from_record(layer) for layer in value])
    module: nn.Module = part.from_record(value)
    return module


def reset(part: nn.Module) -> None:
    """Draw new weights for a module, or for each layer of a list."""
    layers: Iterable[Any] = part if isinstance(part, nn.ModuleList) else (part,)
    for layer in layers:
        layer.reset_parameters()


def check_sizes(module: str, *, least: int = 1, **sizes: int) -> None:
    """Raise ``ValueError`` for a size below `least`, and ``TypeError`` unless it is an integer."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | torch.SymInt):
            raise TypeError(f"{module}: {name}: expected an integer; got {size!r}")
        if size < least:
            raise ValueError(f"{module}: {name}: expected at least {least}; got {size}")


def check_tensor(module: str, name: str, value: object) -> None:
    """Raise ``TypeError`` unless the value is a tensor, before any attribute is read."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{module}: {name}: expected a torch.Tensor; got {type(value).__name__}")


def copied(x: Tensor) -> Tensor:
    """Return a contiguous copy of x, detached from autograd."""
    return x.detach().clone(memory_format=torch.contiguous_format)
