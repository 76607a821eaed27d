"""Generator of ``docs/complexity.md``: ``python docs/complexity.py > docs/complexity.md``."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from attnspec.reference import (
    REFERENCE,
    attention_pooling,
    convolution,
    graph_layer,
    rnn,
    rnn_cell,
    self_attention,
)
from attnspec.spec import OPERATIONS, RNNParameters
from attnspec.spec.contract.sources import S0, S2, S3, SOURCES, Citation

HEAD = """# Complexity

What layers cost and how far apart they leave their tokens: exact counts, and what the lectures say of them.
`tests/reference/test_complexity.py` finds the counts again by running the reference on arrays that count, and the path
lengths by a search in the graph of each layer. Made by `python docs/complexity.py > docs/complexity.md`.
"""

# Counts ---------------------------------------------------------------------------------------------------------------

EXAMPLE = 64
"""Numbers of tokens and of features in the example, which has three taps and eight heads."""

SMALLER = {"taps": 3, "heads": 8, "p_q": EXAMPLE // 8, "p_v": EXAMPLE // 8}
COUNTS = """## Counts

For {size} tokens in every sequence, {size} features of everything, three taps and eight heads. `attnspec show` has the
formulas.

| operation | multiply-adds | parameters | sequential operations | maximum path length |
|---|---|---|---|---|"""


def counts() -> Iterator[str]:
    """Yield a row for every layer with counts."""
    for operation in OPERATIONS.values():
        if operation.chapter == "complexity" and operation.reference_only:
            found = REFERENCE[operation.name](**{size: SMALLER.get(size, EXAMPLE) for size in operation.sizes})
            numbers = [found.multiply_adds, found.parameters, found.sequential_operations, found.maximum_path_length]
            yield f"| `{operation.name}` | {' | '.join(f'{int(x):,}' for x in numbers)} |"


# Claims of the lectures -----------------------------------------------------------------------------------------------

Sizes: TypeAlias = Mapping[str, int]


@dataclass(frozen=True)
class Claim:
    """An order of growth that a lecture claims for a count of an operation.

    ``order`` and ``arguments`` take the symbols of the lecture. ``where`` restricts them; ``domain`` says how.
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
        """Count divided by the printed order; ∞ where there is no count."""
        found = getattr(REFERENCE[self.operation](**self.arguments(**sizes)), self.field)
        return np.inf if found is None else int(found) / self.order(**sizes)

    def ratios(self, largest: int) -> tuple[float, float]:
        """Smallest and largest ratio over all powers of two up to 2**largest."""
        powers = [2**i for i in range(largest + 1)]
        grid = (dict(zip(self.symbols, sizes, strict=True)) for sizes in product(powers, repeat=len(self.symbols)))
        found = [self.ratio(sizes) for sizes in grid if self.where(**sizes)]
        return min(found), max(found)

    @property
    def holds(self) -> bool:
        """True if the ratio is bounded: an unbounded ratio of polynomials grows in proportion to some size."""
        (_, before), (_, after) = self.ratios(LARGEST - 1), self.ratios(LARGEST)
        return after < GROWN * before


LARGEST, GROWN = 8, 1.25
"""Sizes reach 2⁸; a ratio that grows by a quarter from 2⁷ to 2⁸ counts as unbounded."""


def square(d: int) -> dict[str, int]:
    """Arguments of projected attention whose widths are all d."""
    return {"d_x": d, "d_k": d, "d_v": d}


def one_head(n: int, m: int, k: int) -> dict[str, int]:
    """Arguments of attention with one head, all widths k; the number of heads changes no count."""
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

What the lectures say, of which operation, and the count in units of what they say: the least and the greatest over all
sizes that are powers of two up to {largest}. An order holds if the greatest stays as it is when sizes are doubled. What
does not hold is among the [errata](errata.md).

| where | said | of | sizes | least | greatest | holds |
|---|---|---|---|---|---|---|"""


def growth() -> Iterator[str]:
    """Yield a row for every claim."""
    for claim in CLAIMS:
        least, greatest = claim.ratios(LARGEST)
        what = f"`{claim.operation}`, {QUANTITIES[claim.field]}"
        numbers = " | ".join(f"{x:.3g}" if x < 1000 else f"{x:,.0f}" for x in (least, greatest))
        holds = "yes" if claim.holds else "**no**"
        yield f"| {claim.source} | {claim.printed} | {what} | {claim.domain or 'all'} | {numbers} | {holds} |"


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


def agree(left: Numbers, right: Numbers) -> bool:
    """True if two arrays are equal up to rounding."""
    return bool(np.allclose(left, right, rtol=1e-12, atol=1e-12))


def translated(name: str) -> bool:
    """True if shifting three tokens among zeros by one position shifts the results alike."""
    x, layer = np.zeros((N, D)), LAYERS[name]
    x[2:5] = _rng.uniform(-1, 1, (3, D))
    return agree(layer(np.roll(x, 1, 0)), np.roll(layer(x), 1, 0))


def later(name: str) -> bool:
    """True if dropping the first token keeps the other results; a recurrent layer starts from the state after it."""
    x, layer = _rng.uniform(-1, 1, (N, D)), LAYERS[name]
    following = rnn(x[1:], rnn_cell(x[0], _START, _CELL), _CELL)[0] if name == "recurrent" else layer(x[1:])
    return agree(following, layer(x)[1:])


def permuted(name: str) -> bool:
    """True if permuting the tokens permutes the results alike."""
    x, layer, order = _rng.uniform(-1, 1, (N, D)), LAYERS[name], np.array([3, 0, 6, 1, 5, 2, 4])
    return agree(layer(x[order]), layer(x)[order])


def permuted_with_edges(name: str) -> bool:
    """True if permuting the tokens and the edges of the graph permutes the results alike."""
    if name != "graph layer":
        return permuted(name)
    x, order = _rng.uniform(-1, 1, (N, D)), np.array([3, 0, 6, 1, 5, 2, 4])
    other = graph_layer(x[order], _MESSAGE, mask=_EDGES[order][:, order])
    return agree(other, LAYERS[name](x)[order])


CHANGES: Mapping[str, Callable[[str], bool]] = {
    "tokens moved among zeros": translated,
    "a later start": later,
    "tokens permuted": permuted,
    "tokens permuted with their edges": permuted_with_edges,
}
"""Changes of the input, each with a test whether a layer's results change alike."""

BIAS = """
## Inductive bias

S4's table of invariances, which are equivariances: with which changes of its input a layer's results change alike. That
tokens move among zeros is a permutation too. A later start takes the state before it along, if the layer has one.

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
