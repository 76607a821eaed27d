"""Mutants of the convolution and the graph layer, which attention is compared with.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``value_of(x)``
is x without its record of gradients, so that no gradient flows through it.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.complexity import Convolution, GraphLayer


@mutant(
    "taps reversed",
    replaces="convolution",
    operations=(Convolution,),
    breaks=("operation.oracle", "operation.gradient"),
    source="numpy.convolve reverses the kernel, the layers of learning do not",
)
def reversed_taps(correct: Formulas, x: Numbers, w: Numbers) -> Numbers:
    """The taps are applied in reverse order."""
    return Formulas.convolution(correct, x, w[::-1])


@mutant(
    "sequence padded circularly",
    replaces="pad",
    operations=(Convolution,),
    breaks=("complexity.translation-equivariance", "complexity.locality", "operation.oracle"),
    source='padding_mode="circular"; a product of Fourier transforms without zeros',
)
def circular_padding(correct: Formulas, x: Numbers, before: int, after: int) -> Numbers:
    """The sequence is padded circularly: the first token follows the last one."""
    t = x.shape[-2]
    return x[..., np.arange(-before, t + after) % t, :] if t else Formulas.pad(correct, x, before, after)


@mutant(
    "tokens at the ends repeated",
    replaces="pad",
    operations=(Convolution,),
    breaks=("complexity.translation-equivariance", "operation.gradient"),
    source='padding_mode="replicate"',
)
def repeated_ends(correct: Formulas, x: Numbers, before: int, after: int) -> Numbers:
    """The sequence is padded with copies of its first and last token, not with zeros."""
    t = x.shape[-2]
    if not t:
        return Formulas.pad(correct, x, before, after)
    return x[..., np.clip(np.arange(-before, t + after), 0, t - 1), :]


@mutant(
    "results near the ends scaled up",
    replaces="convolution",
    operations=(Convolution,),
    breaks=("complexity.translation-equivariance", "operation.oracle"),
    source="partial convolutions, which divide by the share of taps inside",
)
def ends_scaled_up(correct: Formulas, x: Numbers, w: Numbers) -> Numbers:
    """Near the ends, results are multiplied by taps/(taps within the sequence)."""
    inside = np.ones((x.shape[-2], 1), x.dtype)
    seen = Formulas.convolution(correct, inside, np.ones((w.shape[0], 1, 1), x.dtype))
    return Formulas.convolution(correct, x, w) * (x.dtype.type(w.shape[0]) / seen)


@mutant(
    "causal taps",
    replaces="tap_range",
    operations=(Convolution,),
    breaks=("complexity.locality", "operation.oracle"),
    source="a causal convolution, as in WaveNet",
)
def causal_taps(correct: Formulas, taps: int) -> tuple[int, int]:
    """The taps reach back only: no tap reads a later token."""
    return taps - 1, 0


@mutant(
    "even taps reach one token further back",
    replaces="tap_range",
    operations=(Convolution,),
    breaks=("operation.oracle", "complexity.locality"),
    source="padding of half the taps, and the last result cut off",
)
def back_first(correct: Formulas, taps: int) -> tuple[int, int]:
    """An even number of taps reaches one token further back, not one further ahead."""
    return taps // 2, (taps - 1) // 2


@mutant(
    "convolution with ReLU",
    replaces="convolution",
    operations=(Convolution,),
    breaks=("pooling.linearity", "operation.oracle"),
    source="an activation fused into the layer",
)
def rectified_convolution(correct: Formulas, x: Numbers, w: Numbers) -> Numbers:
    """Negative results become 0."""
    return np.maximum(Formulas.convolution(correct, x, w), x.dtype.type(0))


@mutant(
    "no gradient of the last tap",
    replaces="convolution",
    operations=(Convolution,),
    breaks=("operation.gradient",),
    source="a loop over the taps that ends one too early, in the backward pass",
)
def constant_tap(correct: Formulas, x: Numbers, w: Numbers) -> Numbers:
    """The weights of the last tap get no gradient."""
    return Formulas.convolution(correct, x, np.concatenate([w[:-1], value_of(w)[-1:]], axis=0))


@mutant(
    "no gradient of the first token",
    replaces="pad",
    operations=(Convolution,),
    breaks=("operation.gradient",),
    source="tokens of the neighbouring tile are read, and get nothing back",
)
def constant_neighbours(correct: Formulas, x: Numbers, before: int, after: int) -> Numbers:
    """The first token of a sequence gets no gradient."""
    return Formulas.pad(correct, np.concatenate([value_of(x)[..., :1, :], x[..., 1:, :]], axis=-2), before, after)


@mutant(
    "edges reversed",
    replaces="adjacency",
    operations=(GraphLayer,),
    breaks=("complexity.edge-contributions-add", "operation.oracle"),
    source="PyTorch Geometric's flow: source_to_target or target_to_source",
)
def reversed_edges(correct: Formulas, mask: Numbers, n: int) -> Numbers:
    """Messages run against the edges: the adjacency matrix is transposed."""
    return np.swapaxes(Formulas.adjacency(correct, mask, n), -1, -2)


@mutant(
    "mean of the neighbours",
    replaces="edge_weights",
    operations=(GraphLayer,),
    breaks=("complexity.edge-contributions-add", "operation.oracle"),
    source='aggr="mean"',
)
def mean_of_neighbours(correct: Formulas, neighbours: Numbers) -> Numbers:
    """The sum over the neighbours is divided by their number."""
    return neighbours / np.maximum(neighbours.sum(-1, keepdims=True), 1)


@mutant(
    "messages divided by the root of both degrees",
    replaces="edge_weights",
    operations=(GraphLayer,),
    breaks=("complexity.edge-contributions-add", "operation.gradient"),
    source="the normalization of graph convolutional networks",
)
def divided_by_degrees(correct: Formulas, neighbours: Numbers) -> Numbers:
    """The message from node j to i is divided by √(degree i · degree j)."""
    degrees = (np.maximum(neighbours.sum(axis, keepdims=True), 1) for axis in (-1, -2))
    return neighbours / np.sqrt(np.prod(np.broadcast_arrays(*degrees), axis=0))


@mutant(
    "self-loops added",
    replaces="adjacency",
    operations=(GraphLayer,),
    breaks=("complexity.edge-contributions-add", "operation.oracle"),
    source="add_self_loops=True is a default",
)
def self_loops(correct: Formulas, mask: Numbers, n: int) -> Numbers:
    """Every node has an edge to itself."""
    return Formulas.adjacency(correct, mask, n) | np.eye(n, dtype=bool)


@mutant(
    "later neighbours count less",
    replaces="edge_weights",
    operations=(GraphLayer,),
    breaks=("attention.permutation-equivariance", "operation.oracle"),
    source="sums that depend on the order of nodes, such as lists of neighbours cut at a fixed length",
)
def decaying_messages(correct: Formulas, neighbours: Numbers) -> Numbers:
    """Messages from node j are multiplied by 0.95ʲ: a gradual cut, which shows in small graphs too."""
    return neighbours * 0.95 ** np.arange(neighbours.shape[-1])


@mutant(
    "no gradient of a node's message to itself",
    replaces="graph_layer",
    operations=(GraphLayer,),
    breaks=("operation.gradient",),
    source="a loop over other nodes, in the backward pass",
)
def no_gradient_of_own_message(correct: Formulas, x: Numbers, w: Numbers, *, mask: Numbers = None) -> Numbers:
    """The message of a node to itself gets no gradient."""
    edges, loops = Formulas.adjacency(correct, mask, x.shape[-2]), np.eye(x.shape[-2], dtype=bool)
    from_others = Formulas.graph_layer(correct, x, w, mask=edges & ~loops)
    from_itself = Formulas.graph_layer(correct, value_of(x), value_of(w), mask=edges & loops)
    return from_others + from_itself
