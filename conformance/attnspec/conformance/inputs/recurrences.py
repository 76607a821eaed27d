"""Arrays of operations that carry a state, recognised by their axes."""

from functools import lru_cache
from typing import NamedTuple

from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Kind


class Carried(NamedTuple):
    """Paths of initial state, output and final state, and the size that counts steps."""

    state: str
    output: str
    final: str
    steps: str


@lru_cache(maxsize=16)
def carried(operation: Operation) -> Carried:
    """Paths of an operation that begins with a state and returns the final one."""
    (steps,) = operation.sizes_of(Axis.TIME)
    (state,) = (x for x in operation.leaves if operation.role(x) is Role.STATE)
    (output,), (final,) = ([x for x in operation.outputs if (steps in x.sizes) is each] for each in (True, False))
    return Carried(state.path, output.path, final.path, steps)


class Convolution(NamedTuple):
    """Paths of the inputs, the weights and the bias."""

    x: str
    weight: str
    bias: str


@lru_cache(maxsize=16)
def convolution(operation: Operation) -> Convolution:
    """Paths of an operation like the short convolution."""
    (bias,) = (x for x in operation.leaves if x.optional)
    (weight,) = (x for x in operation.leaves if operation.role(x) is Role.WEIGHT and x is not bias)
    (x,) = (x for x in operation.leaves if carried(operation).steps in x.sizes)
    return Convolution(x.path, weight.path, bias.path)


class Recurrence(NamedTuple):
    """Paths of arguments and results, and the size that counts steps."""

    query: str
    key: str
    value: str
    state: str
    decay: str
    rate: str
    scale: str
    output: str
    final: str
    steps: str


@lru_cache(maxsize=16)
def recurrence(operation: Operation) -> Recurrence:
    """Paths of an operation like linear attention: query heads in groups, decays and rates that may be absent."""
    (steps,), (group,) = operation.sizes_of(Axis.TIME), operation.sizes_of(Axis.GROUP)
    rows = [x for x in operation.leaves if steps in x.sizes]
    (query,) = (x for x in rows if group in x.sizes)
    keys = [x for x in rows if x is not query and not x.optional]
    (key,) = (x for x in keys if x.core[-1].factors == query.core[-1].factors)
    (value,) = (x for x in keys if x is not key)
    (decay,), (rate,) = ([x for x in rows if x.optional and x.core[-1].broadcast is wide] for wide in (True, False))
    (scale,) = (x for x in operation.options if x.kind is Kind.NUMBER)
    paths, p = [x.path for x in (query, key, value, decay, rate, scale)], carried(operation)
    return Recurrence._make([*paths[:3], p.state, *paths[3:], p.output, p.final, steps])
