"""Arrays of a recurrence over a matrix of state, recognised by their axes."""

from functools import lru_cache
from typing import NamedTuple

from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Kind


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
    (state,) = (x for x in operation.leaves if operation.role(x) is Role.STATE)
    (scale,) = (x for x in operation.options if x.kind is Kind.NUMBER)
    (output,), (final,) = ([x for x in operation.outputs if (steps in x.sizes) is each] for each in (True, False))
    arrays = (query, key, value, state, decay, rate, scale, output, final)
    return Recurrence._make([*(x.path for x in arrays), steps])
