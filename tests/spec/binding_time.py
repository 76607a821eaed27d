"""Times of `bind`, in microseconds: ``python -m tests.spec.binding_time``.

Binding checks a call's shapes against its Protocol and reads the sizes. It is measured for shapes seen before (flat
operations, and an encoder stack of 73 arrays), and for new shapes.
"""

import timeit
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Generic, Protocol

import numpy as np
from jaxtyping import Float

from attnspec.spec import OPERATIONS, Array, Axis, Leaf, Operation, Option, bind
from attnspec.spec.contract.annotations import sizes
from attnspec.spec.contract.tree import build_tree, flatten
from tests.spec.test_operation import declared

FLAT = ("attention_pooling", "scaled_dot_product_attention", "bahdanau_context", "multi_head_attention")
LAYERS = 6
SEEN, NEW, REPEATS = 1000, 200, 50


@dataclass(frozen=True)
class SelfAttention(Generic[Array]):
    """The projections of multi-head attention."""

    w_q: Float[Array, "heads p_q d_x"]
    w_k: Float[Array, "heads p_q d_x"]
    w_v: Float[Array, "heads p_v d_x"]
    w_o: Float[Array, "d_x heads*p_v"]


@dataclass(frozen=True)
class Norm(Generic[Array]):
    gain: Float[Array, " d_x"]
    bias: Float[Array, " d_x"]


@dataclass(frozen=True)
class FeedForward(Generic[Array]):
    w_1: Float[Array, "f d_x"]
    b_1: Float[Array, " f"]
    w_2: Float[Array, "d_x f"]
    b_2: Float[Array, " d_x"]


@dataclass(frozen=True)
class EncoderLayer(Generic[Array]):
    """One layer: 12 arrays."""

    attention: SelfAttention[Array]
    norm_1: Norm[Array]
    feed_forward: FeedForward[Array]
    norm_2: Norm[Array]


class EncoderStack(Protocol[Array]):
    """An encoder of layers."""

    def __call__(
        self, x: Float[Array, "*batch n d_x"], layers: Annotated[tuple[EncoderLayer[Array], ...], sizes(count="depth")]
    ) -> Float[Array, "*batch n d_x"]:
        """The rows after the last layer."""
        ...


class ElevenArrays(Protocol[Array]):
    """Multi-head attention with biases; no operation without records has more arrays."""

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w_q: Float[Array, "heads p_q d_q"],
        w_k: Float[Array, "heads p_q d_k"],
        w_v: Float[Array, "heads p_v d_v"],
        w_o: Float[Array, "p_o heads*p_v"],
        b_q: Float[Array, "heads p_q"],
        b_k: Float[Array, "heads p_q"],
        b_v: Float[Array, "heads p_v"],
        b_o: Float[Array, " p_o"],
    ) -> Float[Array, "*batch n p_o"]:
        """The projected heads of every query."""
        ...


def arguments(op: Operation, rows: int = 5) -> dict[str, Any]:
    """Arrays for all arguments: a batch of 2, ``rows`` queries and keys, every other size is 4."""

    def at(node: Leaf | Option) -> Any:
        if isinstance(node, Option):
            return None
        lengths = [prod(rows if op.axis(size) & Axis.POSITION else 4 for size in d.factors) for d in node.core]
        return np.zeros((2, *lengths) if node.batched else lengths)

    return {name: value for name, value in build_tree(op.call, at, lambda layers: LAYERS).items() if value is not None}


def microseconds(run: Callable[[], Any], number: int) -> float:
    """The time of one call, the least of several repeats: what else runs on the machine only adds to it."""
    return min(timeit.repeat(run, number=number, repeat=REPEATS)) / number * 1e6


def seen_before(op: Operation) -> tuple[int, float]:
    """The number of arrays, and the time to bind them."""
    inputs = arguments(op)
    bind(op, inputs)
    arrays = [x for x in flatten(inputs).values() if isinstance(x, np.ndarray)]
    return len(arrays), microseconds(lambda: bind(op, inputs), SEEN)


def new(op: Operation) -> float:
    """The time to bind shapes that were not seen before."""
    calls = [arguments(op, rows) for rows in range(1, NEW + 1)]

    def run() -> None:
        op.bindings.clear()
        for inputs in calls:
            bind(op, inputs)

    return microseconds(run, 1) / NEW


def main() -> None:
    tree = declared(EncoderStack, axes={"n": Axis.SELF})
    for op in (*(OPERATIONS[name] for name in FLAT), declared(ElevenArrays), tree):
        count, time = seen_before(op)
        print(f"{op.name:32} {count:3} arrays, seen before {time:8.2f} µs")
    for name in FLAT:
        print(f"{name:32} new shapes {new(OPERATIONS[name]):20.1f} µs")


if __name__ == "__main__":
    main()
