"""Laws of convolutions and graph layers, with which attention is compared."""

from attnspec.spec.complexity import Convolution, GraphLayer
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S1, S4

TRANSLATION_EQUIVARIANCE = law(
    "complexity.translation-equivariance",
    "Zeros before the tokens move the results of a convolution by as many places.",
    formula=r"f([0_s; X])_{i+s} = f(X)_i",
    governs=of(Convolution),
    sources=[S4.passage("Inductive Bias")],
)
LOCALITY = law(
    "complexity.locality",
    "The result for a token does not depend on tokens that the convolution's taps do not reach.",
    formula=r"j - i \notin [-\lfloor (k-1)/2 \rfloor, \lfloor k/2 \rfloor]:\ \partial y_i / \partial x_j = 0",
    governs=of(Convolution),
    sources=[
        S1.passage("Self-Attention: comparison with convolution and fully-connected layer"),
        S4.passage("Inductive Bias"),
    ],
)
EDGE_CONTRIBUTIONS_ADD = law(
    "complexity.edge-contributions-add",
    "If the edges of a graph are divided between two graphs, the results of both add up to the result of the whole. "
    "A node with a single edge receives what the node at its other end would get from an edge to itself.",
    formula=r"\text{edges } A \cap B = \emptyset:\ f(X; A \cup B) = f(X; A) + f(X; B);"
    r"\quad \{j' \mid (i, j') \in A\} = \{j\} \Rightarrow f(X; A)_i = f(X; \{(j, j)\})_j",
    governs=of(GraphLayer),
    sources=[S4.passage("Inductive Bias")],
)
