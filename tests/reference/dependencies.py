"""Dependency graphs of layers: which states each state is computed from, as the layers define it.

A state is named by a letter and a position, ``("h", 3)``. Tokens are computed from no other state. The edges are those
of the unrolled drawings: in an RNN, token to state and state to state; in a convolution and in attention, token to
result.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import combinations
from typing import TypeAlias

State: TypeAlias = tuple[str, int]
Graph: TypeAlias = Mapping[State, Sequence[State]]
"""For every state that is computed, the states that it is computed from."""


def convolutions(t: int, taps: int, layers: int) -> Graph:
    """Stacked convolutions of t tokens: ``("0", i)`` are the tokens."""
    before = (taps - 1) // 2
    reached = {i: range(max(i - before, 0), min(i - before + taps, t)) for i in range(t)}
    return {
        (str(layer + 1), i): [(str(layer), j) for j in sources]
        for layer in range(layers)
        for i, sources in reached.items()
    }


def recurrent(t: int) -> Graph:
    """A recurrent network: each state h is computed from a token x and the state before it."""
    return {("h", i): [("x", i), ("h", i - 1)] if i else [("x", i)] for i in range(t)}


def self_attention(n: int, *, causal: bool = False) -> Graph:
    """Self-attention: each result y is computed from all tokens x, or from those up to its own."""
    return {("y", i): [("x", j) for j in range(i + 1 if causal else n)] for i in range(n)}


def cross_attention(n: int, m: int) -> Graph:
    """Cross-attention: each result y is computed from its token x and all rows of the memory z."""
    return {("y", i): [("x", i), *(("z", j) for j in range(m))] for i in range(n)}


def seq2seq(m: int, n: int, *, attention: bool = False) -> Graph:
    """Recurrent encoder h of tokens x and decoder s of tokens y; attention adds contexts c."""
    graph: dict[State, Sequence[State]] = dict(recurrent(m))
    for i in range(n):
        before = ("s", i - 1) if i else ("h", m - 1)
        graph["s", i] = [("y", i), before]
        if attention:
            graph["c", i] = [before, *(("h", j) for j in range(m))]
            graph["s", i] = [("y", i), before, ("c", i)]
    return graph


def decoder(n: int, rows: Sequence[State], *, generating: bool = False) -> Graph:
    """Causal self-attention a of the tokens y, then attention b to rows; generating, b is the next token."""
    inputs: list[State] = [("b", i - 1) if generating and i else ("y", i) for i in range(n)]
    attended: Graph = {("a", i): inputs[: i + 1] for i in range(n)}
    return {**attended, **{("b", i): [("a", i), *rows] for i in range(n)}}


def encoder_decoder(m: int, n: int, *, generating: bool = False) -> Graph:
    """Self-attention e of the tokens x, whose rows the decoder attends to."""
    encoder: Graph = {("e", i): [("x", j) for j in range(m)] for i in range(m)}
    return {**encoder, **decoder(n, list(encoder), generating=generating)}


# Searches -------------------------------------------------------------------------------------------------------------


def tokens(graph: Graph, letter: str) -> list[State]:
    """The states of this letter that are computed from no other state."""
    used = {source for sources in graph.values() for source in sources}
    return sorted(state for state in used - graph.keys() if state[0] == letter)


def distances(graph: Graph, token: State) -> dict[State, int]:
    """The fewest edges from a token to every state that depends on it, breadth first."""
    dependents: dict[State, list[State]] = {}
    for state, sources in graph.items():
        for source in sources:
            dependents.setdefault(source, []).append(state)
    lengths, queue = {token: 0}, deque([token])
    while queue:
        state = queue.popleft()
        for dependent in dependents.get(state, ()):
            if dependent not in lengths:
                lengths[dependent] = lengths[state] + 1
                queue.append(dependent)
    return lengths


def maximum_path_length(graph: Graph, pairs: Iterable[tuple[State, State]]) -> int | None:
    """Largest distance of a pair of tokens to their nearest common state; None without one."""
    pairs = list(pairs)
    reached = {token: distances(graph, token) for pair in pairs for token in pair}
    longest = 0
    for first, second in pairs:
        met = [max(d, reached[second][state]) for state, d in reached[first].items() if state in reached[second]]
        if not met:
            return None
        longest = max(longest, min(met))
    return longest


def pairs_among(states: Sequence[State]) -> list[tuple[State, State]]:
    return list(combinations(states, 2))


def longest_chain(graph: Graph) -> int:
    """The number of states that have to be computed one after another."""
    depth: dict[State, int] = {}
    for state in TopologicalSorter(graph).static_order():
        depth[state] = 1 + max(depth[s] for s in graph[state]) if state in graph else 0
    return max(depth.values(), default=0)
