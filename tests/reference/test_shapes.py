"""Shapes that violate a Protocol raise errors with operation, argument and both shapes."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from attnspec.reference import REFERENCE
from attnspec.spec import (
    OPERATIONS,
    AttentionDecoderParameters,
    Axis,
    Kind,
    Leaf,
    Operation,
    Option,
    RNNParameters,
    ShapeError,
)
from attnspec.spec.contract.tree import map_tree, pair_leaves

from .conftest import draw_arguments

Violation = tuple[str, str]
"""Argument, what is wrong with it."""


def drawn(operation: Operation) -> dict[str, Any]:
    return draw_arguments(operation.name, np.random.default_rng(0), batch=(2,), group=4)


@cache
def argument_nodes(operation: Operation) -> dict[str, Leaf | Option]:
    """The arguments that a call has, by path, with the arrays of every layer."""
    return {node.path: node for node, value in pair_leaves(operation.call, drawn(operation)) if value is not None}


def arrays(operation: Operation) -> list[Leaf]:
    return [node for node in argument_nodes(operation).values() if isinstance(node, Leaf) and not node.free]


def dimensions_fixed_elsewhere(operation: Operation, leaf: Leaf) -> Iterator[int]:
    """Positions of the dimensions whose sizes another argument fixes too."""
    fixed = {size for other in arrays(operation) if other is not leaf for size in other.sizes}
    fixed |= {path for path, node in argument_nodes(operation).items() if node.kind is Kind.SIZE}
    for place, d in enumerate(leaf.core):
        repeated = any(d.written == e.written for e in leaf.core[:place])
        spare = any(operation.axis(size) & Axis.SPARE for size in d.sizes)
        if repeated or (fixed & set(d.sizes) and not spare):
            yield place


def violations(operation: Operation) -> Iterator[Violation]:
    batched = [leaf for leaf in arrays(operation) if leaf.batched]
    for path, node in argument_nodes(operation).items():
        if node.kind is Kind.SIZE:
            yield path, "negative"
    for leaf in arrays(operation):
        if leaf.core:
            yield leaf.path, "rank too low"
        if not leaf.batched:
            yield leaf.path, "rank too high"
        for place in dimensions_fixed_elsewhere(operation, leaf):
            yield leaf.path, f"size {place}"
        for place, d in enumerate(leaf.core):
            positions = all(operation.axis(size) & Axis.POSITION for size in d.sizes)
            if not positions and not d.broadcast:
                yield leaf.path, f"empty {place}"
        if leaf in batched and len(batched) > 1:
            yield leaf.path, "batch"


def resized(x: np.ndarray, axis: int, size: int) -> np.ndarray:
    result: np.ndarray = np.take(x, np.arange(size) % x.shape[axis], axis=axis)
    return result


def violate(node: Leaf | Option, value: Any, what: str) -> Any:
    if isinstance(node, Option):
        return -1
    kind, _, place = what.partition(" ")
    if what == "batch":
        return resized(value, 0, 3)
    if what == "rank too low":
        return value[(0,) * (value.ndim - len(node.core) + 1)]
    if what == "rank too high":
        return value[None]
    axis = value.ndim - len(node.core) + int(place)
    return resized(value, axis, 0 if kind == "empty" else value.shape[axis] + 1)


def with_violation(operation: Operation, arguments: dict[str, Any], argument: str, what: str) -> dict[str, Any]:
    node = argument_nodes(operation)[argument]
    changed: dict[str, Any] = map_tree(arguments, lambda path, x: violate(node, x, what) if path == argument else x)
    return changed


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_violation_is_named(name: str, subtests: pytest.Subtests) -> None:
    operation = OPERATIONS[name]
    arguments = drawn(operation)
    REFERENCE[name](**arguments)
    for argument, what in violations(operation):
        wrong = with_violation(operation, arguments, argument, what)
        with subtests.test(argument=argument, what=what):
            with pytest.raises(ShapeError) as raised:
                REFERENCE[name](**wrong)
            error = raised.value
            assert error.operation == name
            assert error.argument in argument_nodes(operation)
            assert str(error) == f"{name}: {error.argument}: expected {error.expected}; got {error.got}"


def test_every_array_argument_of_every_operation_is_violated() -> None:
    for operation in OPERATIONS.values():
        violated = {argument for argument, _ in violations(operation)}
        assert not {x.path for x in arrays(operation) if x.core or not x.batched} - violated, operation.name


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape)


def decoder_parameters(vocabulary: int, inputs: int) -> AttentionDecoderParameters[np.ndarray]:
    cell = RNNParameters(zeros(inputs, 3), zeros(3, 3), zeros(3))
    return AttentionDecoderParameters(
        zeros(vocabulary, 2), zeros(5, 3), zeros(5, 4), zeros(5), cell, zeros(vocabulary, 3), zeros(vocabulary)
    )


def trues(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


@pytest.mark.parametrize(("name", "arguments", "message"), [
    ("dot_scores", (zeros(2, 3), zeros(2, 4)), "key: expected (*batch, m, d) with d = 3 (from query); got (2, 4)"),
    ("dot_scores", (zeros(3), zeros(2, 3)), "query: expected (*batch, n, d), rank 2 or more; got (3,)"),
    ("dot_scores", (zeros(2, 1, 3), zeros(4, 1, 3)), "key: expected a batch that broadcasts with (2,); got batch (4,)"),
    ("scaled_dot_scores", (zeros(2, 0), zeros(2, 0)), "query: expected d of at least 1; got (2, 0)"),
    ("additive_scores", (zeros(1, 2), zeros(1, 3), zeros(4, 2), zeros(5, 3), zeros(4)),
     "w_k: expected (h, d_k) with h = 4 (from w_q); got (5, 3)"),
    ("attention_pooling", (zeros(2, 3), zeros(4, 5)),
     "value: expected (*batch, m, d_v) with m = 3 (from weights); got (4, 5)"),
    ("multi_head_attention",
     (zeros(2, 3), zeros(2, 3), zeros(2, 3), zeros(4, 5, 3), zeros(4, 5, 3), zeros(4, 6, 3), zeros(7, 23)),
     "w_o: expected (p_o, heads*p_v) with heads*p_v = 24; got (7, 23)"),
    ("causal_mask", (-1, 2), "n: expected n of at least 0; got -1"),
    ("sinusoidal_positional_encoding", (3, 0), "d: expected d of at least 1; got 0"),
    ("padding_mask", (np.array([1, 4]), 3), "lengths: expected lengths in 0..3; got 4"),
    ("padding_mask", (np.array([1, -1]), 3), "lengths: expected lengths in 0..3; got -1"),
    ("encoder_context", (zeros(2, 3, 4), np.array([3, 4])), "lengths: expected lengths in 0..3; got 4"),
    ("decoder_step", (np.array(2), zeros(3), zeros(5, 4), decoder_parameters(vocabulary=2, inputs=6)),
     "token: expected token in 0..1; got 2"),
    ("decoder_step", (np.array(0), zeros(3), zeros(5, 4), decoder_parameters(vocabulary=2, inputs=7)),
     "parameters.cell.w_xh: expected (d, h) with d = 6; got (7, 3)"),
    ("greedy_decode", (np.array(0), zeros(3), zeros(5, 4), decoder_parameters(vocabulary=2, inputs=6), 3, 2),
     "eos: expected eos in 0..1; got 2"),
    ("beam_decode", (np.array(0), zeros(3), zeros(5, 4), decoder_parameters(vocabulary=2, inputs=6), 3, 1, 0),
     "beams: expected beams of at least 1; got 0"),
    ("dot_product_variance", (zeros(2), zeros(2)), "sigma: expected a number; got shape (2,)"),
])  # fmt: skip
def test_the_message_of_a_wrong_shape(name: str, arguments: tuple[Any, ...], message: str) -> None:
    keyword_only = sorted(OPERATIONS[name].keyword_only)
    positional = len(OPERATIONS[name].call.names) - len(keyword_only)
    with pytest.raises(ShapeError) as raised:
        REFERENCE[name](*arguments[:positional], **dict(zip(keyword_only, arguments[positional:], strict=False)))
    assert str(raised.value) == f"{name}: {message}"


@pytest.mark.parametrize(
    ("name", "arguments", "mask", "message"),
    [
        ("softmax", (zeros(2, 3),), trues(3), "expected (*batch, n, m), rank 2 or more; got (3,)"),
        ("softmax", (zeros(2, 3),), trues(2, 2), "expected (*batch, n, m) with m = 3 or 1; got (2, 2)"),
        ("self_attention", (zeros(2, 3),), trues(2, 3), "expected (*batch, n, n) with n = 2 or 1; got (2, 3)"),
        ("average_pooling", (zeros(2, 3),), trues(3), "expected (*batch, m) with m = 2 or 1; got (3,)"),
    ],
)
def test_the_message_of_a_wrong_mask(name: str, arguments: tuple[Any, ...], mask: np.ndarray, message: str) -> None:
    with pytest.raises(ShapeError) as raised:
        REFERENCE[name](*arguments, mask=mask)
    assert str(raised.value) == f"{name}: mask: {message}"
