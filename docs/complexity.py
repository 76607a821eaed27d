"""Generator of ``docs/complexity.md``: ``python docs/complexity.py > docs/complexity.md``."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from attnspec.reference import REFERENCE, attention_pooling, convolution, graph_layer, rnn, rnn_cell, self_attention
from attnspec.spec import OPERATIONS, RNNParameters
from attnspec.spec.contract.sources import S0, S2, S3, SOURCES, Citation

HEAD = """# Complexity

Exact costs of layers, the longest path between two of their tokens, and the orders of growth that the lectures state.
`tests/reference/test_complexity.py` checks the counts by running the reference on arrays that count operations, and the
path lengths by a search in the graph of each layer. Made by `python docs/complexity.py > docs/complexity.md`.
"""

# Counts ---------------------------------------------------------------------------------------------------------------

EXAMPLE = 64
"""Numbers of tokens and of features in the example, which has three taps and eight heads."""

SMALLER = {"taps": 3, "heads": 8, "p_q": EXAMPLE // 8, "p_v": EXAMPLE // 8}
COUNTS = """## Counts

For sequences of {size} tokens, all widths {size}, three taps and eight heads. `attnspec show` prints the formulas of
the counts.

| operation | multiply-adds | parameters | sequential operations | maximum path length |
|---|---|---|---|---|"""


def counts() -> Iterator[str]:
    """Yield a row for every layer with counts."""
    for operation in OPERATIONS.values():
        if operation.chapter == "complexity" and operation.reference_only:
            costs = REFERENCE[operation.name](**{size: SMALLER.get(size, EXAMPLE) for size in operation.sizes})
            numbers = [costs.multiply_adds, costs.parameters, costs.sequential_operations, costs.maximum_path_length]
            yield f"| `{operation.name}` | {' | '.join(f'{int(x):,}' for x in numbers)} |"


# Claims of the lectures -----------------------------------------------------------------------------------------------

Sizes: TypeAlias = Mapping[str, int]


@dataclass(frozen=True)
class Claim:
    """An order of growth that a lecture claims for a count of an operation.

    ``order`` and ``arguments`` are functions of the lecture's symbols. ``where`` selects sizes, ``domain`` names them.
    """

    source: Citation
    printed: str
    operation: str
    field: str
    symbols: str
    order: Callable[..., float]
    arguments: Callable[..., Mapping[str, Any]]
    domain: str = ""
    where: Callable[..., bool] = lambda **sizes: True

    def ratio(self, sizes: Sizes) -> float:
        """Return the count divided by the printed order; ∞ if there is no count."""
        count = getattr(REFERENCE[self.operation](**self.arguments(**sizes)), self.field)
        return np.inf if count is None else int(count) / self.order(**sizes)

    def ratios(self, largest: int) -> tuple[float, float]:
        """Return the smallest and the largest ratio over all powers of two up to 2**largest."""
        powers = [2**i for i in range(largest + 1)]
        grid = (dict(zip(self.symbols, sizes, strict=True)) for sizes in product(powers, repeat=len(self.symbols)))
        ratios = [self.ratio(sizes) for sizes in grid if self.where(**sizes)]
        return min(ratios), max(ratios)

    @property
    def holds(self) -> bool:
        """True if the ratio is bounded; an unbounded ratio of polynomials grows when sizes double."""
        (_, ratio_of_half), (_, ratio_of_largest) = self.ratios(LARGEST - 1), self.ratios(LARGEST)
        return ratio_of_largest < BOUNDED_GROWTH * ratio_of_half


LARGEST, BOUNDED_GROWTH = 8, 1.25
"""Sizes reach 2⁸; a ratio that grows by a quarter from 2⁷ to 2⁸ counts as unbounded."""


def square(d: int) -> dict[str, int]:
    """Return arguments of projected attention whose widths are all d."""
    return {"d_x": d, "d_k": d, "d_v": d}


def one_head(n: int, m: int, k: int) -> dict[str, int]:
    """Return arguments of attention with one head and widths k; heads change no count."""
    return {"n": n, "m": m, "heads": 1, **dict.fromkeys(("d_q", "d_k", "d_v", "p_q", "p_v", "p_o"), k)}


CNN, RNN, ATTENTION = (
    S0.passage(f"Computational Complexity: {layer}") for layer in ("CNN's", "RNN's", "self-attention")
)
SOLUTION_3, SOLUTION_4 = (S2.passage(f"Machine Translation, solution {number}") for number in (3, 4))
BACKPROP = S3.passage("Backprop")

_filters = partial(
    Claim, CNN, operation="convolution_complexity", symbols="nkd",
    arguments=lambda n, k, d: {"t": n, "d_x": d, "p_o": d, "taps": k},
)  # fmt: skip
_recurrent = partial(Claim, operation="rnn_complexity", symbols="nd", arguments=lambda n, d: {"t": n, "d": d, "h": d})
_bare = partial(Claim, operation="self_attention_complexity", symbols="nd", arguments=lambda n, d: {"n": n, "d": d})
_projected = partial(
    Claim, ATTENTION, operation="projected_self_attention_complexity", symbols="nd",
    arguments=lambda n, d: {"n": n, **square(d)},
)  # fmt: skip
_crossed = partial(Claim, SOLUTION_3, operation="multi_head_attention_complexity", field="multiply_adds", symbols="MNk")
_decoded = partial(Claim, operation="decoder_attention_complexity")

MULTIPLY_ADDS, SEQUENTIAL, PATH = "multiply_adds", "sequential_operations", "maximum_path_length"

QUANTITIES = {MULTIPLY_ADDS: "multiply-adds", SEQUENTIAL: "sequential operations", PATH: "maximum path length"}

CLAIMS = (
    _filters("O(knd²)", field=MULTIPLY_ADDS, order=lambda n, k, d: k * n * d**2),
    _filters("O(1)", field=SEQUENTIAL, order=lambda n, k, d: 1),
    _filters("O(n/k)", field=PATH, order=lambda n, k, d: n / k, domain="2 ≤ k", where=lambda n, k, d: k >= 2),
    _filters("O(n/k)", field=PATH, order=lambda n, k, d: n / k, domain="2 ≤ k ≤ n", where=lambda n, k, d: 2 <= k <= n),
    _recurrent(RNN, "O(nd²)", field=MULTIPLY_ADDS, order=lambda n, d: n * d**2),
    _recurrent(RNN, "O(n)", field=SEQUENTIAL, order=lambda n, d: n),
    _recurrent(RNN, "O(n)", field=PATH, order=lambda n, d: n),
    _bare(ATTENTION, "O(n²d)", field=MULTIPLY_ADDS, order=lambda n, d: n**2 * d),
    _projected("O(n²d)", field=MULTIPLY_ADDS, order=lambda n, d: n**2 * d),
    _projected("O(n²d)", field=MULTIPLY_ADDS, order=lambda n, d: n**2 * d, domain="d ≤ n", where=lambda n, d: d <= n),
    _projected("O(1)", field=SEQUENTIAL, order=lambda n, d: 1),
    _decoded(
        ATTENTION, "O(1)", field=SEQUENTIAL, symbols="nd", order=lambda n, d: 1, domain="generating",
        arguments=lambda n, d: {"m": n, "n": n, "d": d, "generating": True},
    ),
    _projected("O(1)", field=PATH, order=lambda n, d: 1),
    _bare(
        SOLUTION_3, "(1) O(M²k)", field=MULTIPLY_ADDS, symbols="Mk", order=lambda M, k: M**2 * k,
        arguments=lambda M, k: {"n": M, "d": k},
    ),
    _bare(
        SOLUTION_3, "(3) O(N²k)", field=MULTIPLY_ADDS, symbols="Nk", order=lambda N, k: N**2 * k,
        arguments=lambda N, k: {"n": N, "d": k, "autoregressive": True},
    ),
    _crossed("(1) O(M²k)", order=lambda M, N, k: M**2 * k, arguments=lambda M, N, k: one_head(M, M, k)),
    _crossed("(2) O(MNk)", order=lambda M, N, k: M * N * k, arguments=lambda M, N, k: one_head(N, M, k)),
    _crossed(
        "(2) O(MNk)", order=lambda M, N, k: M * N * k, arguments=lambda M, N, k: one_head(N, M, k),
        domain="k ≤ M, N", where=lambda M, N, k: k <= min(M, N),
    ),
    _decoded(
        SOLUTION_4, "O(MN + N²)", field=MULTIPLY_ADDS, symbols="MNk", order=lambda M, N, k: M * N + N**2,
        arguments=lambda M, N, k: {"m": M, "n": N, "d": k},
    ),
    _decoded(
        SOLUTION_4, "O(MN + N²)", field=MULTIPLY_ADDS, symbols="MN", order=lambda M, N: M * N + N**2,
        arguments=lambda M, N: {"m": M, "n": N, "d": EXAMPLE}, domain="k = 64",
    ),
    _bare(
        S2.passage("Why Transformers"), "O(n²)", field=MULTIPLY_ADDS, symbols="n", order=lambda n: n**2,
        arguments=lambda n: {"n": n, "d": EXAMPLE}, domain="d = 64",
    ),
    _recurrent(S3.passage("RNN Disadvantage"), "one after another", field=SEQUENTIAL, order=lambda n, d: n),
    Claim(
        BACKPROP, "the number of time steps", "seq2seq_complexity", PATH, "MN", lambda M, N: M + N,
        lambda M, N: {"m": M, "n": N, "d": 1, "h": 1},
    ),
    Claim(
        BACKPROP, "constant", "seq2seq_attention_complexity", PATH, "MN", lambda M, N: 1,
        lambda M, N: {"m": M, "n": N, "d": 1, "h": 1, "s": 1},
    ),
)  # fmt: skip
"""All orders of growth that the lectures claim."""

GROWTH = """
## Orders of growth

A ratio is a count divided by the order that a lecture states for it. The table has the smallest and the largest ratio
over all sizes that are powers of two up to {largest}. An order holds if doubling the sizes does not increase the
largest ratio. Orders that do not hold are among the [errata](errata.md).

| source | stated order | operation and count | sizes | smallest ratio | largest ratio | holds |
|---|---|---|---|---|---|---|"""


def growth() -> Iterator[str]:
    """Yield a row for every claim."""
    for claim in CLAIMS:
        least, greatest = claim.ratios(LARGEST)
        count = f"`{claim.operation}`, {QUANTITIES[claim.field]}"
        numbers = " | ".join(f"{x:.3g}" if x < 1000 else f"{x:,.0f}" for x in (least, greatest))
        holds = "yes" if claim.holds else "**no**"
        yield f"| {claim.source} | {claim.printed} | {count} | {claim.domain or 'all'} | {numbers} | {holds} |"


# Equivariance ---------------------------------------------------------------------------------------------------------

Numbers: TypeAlias = np.ndarray[Any, Any]
Layer: TypeAlias = Callable[[Numbers], Numbers]
N, D = 7, 3
_rng = np.random.default_rng(0)
_EDGES = _rng.random((N, N)) < 0.5
_WEIGHTS = _rng.uniform(-1, 1, (N, N))
_TAPS, _MESSAGE = _rng.uniform(-1, 1, (3, D, D)), _rng.uniform(-1, 1, (D, D))
_CELL = RNNParameters(*(_rng.uniform(-1, 1, shape) for shape in ((D, D), (D, D), (D,))))
_START = _rng.uniform(-1, 1, D)


LAYERS: Mapping[str, Layer] = {
    "fully connected": lambda x: attention_pooling(_WEIGHTS[: len(x), : len(x)], x),
    "convolution": lambda x: convolution(x, _TAPS),
    "recurrent": lambda x: rnn(x, _START, _CELL)[0],
    "graph layer": lambda x: graph_layer(x, _MESSAGE, mask=_EDGES[: len(x), : len(x)]),
    "self-attention": self_attention,
}
"""Layers y = f(x) on N tokens with D features."""


def nearly_equal(left: Numbers, right: Numbers) -> bool:
    """Return whether two arrays are equal up to rounding."""
    return bool(np.allclose(left, right, rtol=1e-12, atol=1e-12))


def commutes_with_shift(name: str) -> bool:
    """Return whether shifting three tokens among zeros by one position shifts the results alike."""
    x, layer = np.zeros((N, D)), LAYERS[name]
    x[2:5] = _rng.uniform(-1, 1, (3, D))
    return nearly_equal(layer(np.roll(x, 1, 0)), np.roll(layer(x), 1, 0))


def commutes_with_later_start(name: str) -> bool:
    """Return whether dropping the first token, whose state a recurrent layer keeps, keeps other results."""
    x, layer = _rng.uniform(-1, 1, (N, D)), LAYERS[name]
    following = rnn(x[1:], rnn_cell(x[0], _START, _CELL), _CELL)[0] if name == "recurrent" else layer(x[1:])
    return nearly_equal(following, layer(x)[1:])


def commutes_with_permutation(name: str) -> bool:
    """Return whether permuting the tokens permutes the results alike."""
    x, layer, order = _rng.uniform(-1, 1, (N, D)), LAYERS[name], np.array([3, 0, 6, 1, 5, 2, 4])
    return nearly_equal(layer(x[order]), layer(x)[order])


def commutes_with_permutation_and_edges(name: str) -> bool:
    """Return whether permuting the tokens and the edges of the graph permutes the results alike."""
    if name != "graph layer":
        return commutes_with_permutation(name)
    x, order = _rng.uniform(-1, 1, (N, D)), np.array([3, 0, 6, 1, 5, 2, 4])
    other = graph_layer(x[order], _MESSAGE, mask=_EDGES[order][:, order])
    return nearly_equal(other, LAYERS[name](x)[order])


CHANGES: Mapping[str, Callable[[str], bool]] = {
    "tokens moved among zeros": commutes_with_shift,
    "a later start": commutes_with_later_start,
    "tokens permuted": commutes_with_permutation,
    "tokens permuted with their edges": commutes_with_permutation_and_edges,
}
"""Changes of the input, each with a test that a layer's results change alike."""

BIAS = """
## Inductive bias

S4's table of invariances, which are equivariances: changes of the input under which a layer's results change alike.
Moving tokens among zeros is a permutation, too. At a later start, a recurrent layer has the state of earlier tokens.

| layer | {changes} |
|---|{lines}|"""


def equivariances() -> Iterator[str]:
    """Yield a row for every layer."""
    for name in LAYERS:
        yield f"| {name} | {' | '.join('yes' if keeps(name) else 'no' for keeps in CHANGES.values())} |"


def table() -> str:
    """Return the whole page."""
    bias = BIAS.format(changes=" | ".join(CHANGES), lines="|".join(["---"] * len(CHANGES)))
    parts = [HEAD, COUNTS.format(size=EXAMPLE), *counts(), GROWTH.format(largest=2**LARGEST), *growth()]
    sources = [f"- {key}: {SOURCES[key].title}" for key in sorted({c.source.source for c in CLAIMS} | {"S4"})]
    return "\n".join([*parts, bias, *equivariances(), "", *sources]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
