"""Hypothesis strategies for examples, from the Protocols and within the limits of a backend."""

from hypothesis import strategies as st

from attnspec.conformance.inputs.corners import Row, batches, example_from, factors, size_levels
from attnspec.conformance.inputs.examples import Example
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation


@st.composite
def examples(draw: st.DrawFn, operation: Operation, limits: Limits, *, work: float = 2.0**18) -> Example:
    """Examples with at most two large sizes; other choices are those of corner cases."""
    row: Row = {}
    levels = factors(operation, limits)
    large = {draw(st.sampled_from([None, *operation.sizes])) for _ in range(2)}
    for name, options in levels.items():
        kind, _, size = name.partition(":")
        is_size = kind == "size"
        row[name] = draw(_size(size, size in large, operation, limits) if is_size else st.sampled_from(list(options)))
    if "batch" in levels:
        row["batch"] = draw(st.sampled_from(batches(limits)))
    return example_from(row, operation, limits, seed=draw(st.integers(0, 2**32 - 1)), work=work)


def _size(name: str, large: bool, operation: Operation, limits: Limits) -> st.SearchStrategy[int]:
    options = size_levels(name, operation, limits)
    axis = operation.axis(name)
    is_position = bool(axis & Axis.POSITION)
    free = limits.multiple_of == 1 if is_position else not (axis & Axis.FEATURE and limits.head_sizes is not None)
    if not free or axis & (Axis.LAYER | Axis.SPARE):
        return st.sampled_from(options)
    least = limits.min_length if is_position else 1
    if large:
        return st.integers(max(least, 1), max(options))
    return st.integers(least, max(least, 5)).map(lambda x: min(x, max(options)))
