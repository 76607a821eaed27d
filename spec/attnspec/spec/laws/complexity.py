"""Laws of convolutions and graph layers, with which attention is compared."""

from attnspec.spec.complexity import Convolution, GraphLayer
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S1, S4

TRANSLATION = law(
    "complexity.translation",
    "A convolution is equivariant to translations: zeros before the tokens move the results with them.",
    formula=r"f([0_s; X])_{i+s} = f(X)_i",
    governs=of(Convolution),
    sources=[S4.passage("Inductive Bias")],
)
LOCALITY = law(
    "complexity.locality",
    "The result for a token does not depend on tokens beyond the reach of the taps.",
    formula=r"j - i \notin [-\lfloor (k-1)/2 \rfloor, \lfloor k/2 \rfloor]:\ \partial y_i / \partial x_j = 0",
    governs=of(Convolution),
    sources=[
        S1.passage("Self-Attention: comparison with convolution and fully-connected layer"),
        S4.passage("Inductive Bias"),
    ],
)
EDGES = law(
    "complexity.edges",
    "Where two graphs divide the edges of a third between them, their results add up; what comes along a single edge "
    "is what the node at its beginning would send to itself.",
    formula=r"A \cap B = \emptyset:\ f(X; A \cup B) = f(X; A) + f(X; B);"
    r"\quad A_i = \{j\} \Rightarrow y_i = f(X; I)_j",
    governs=of(GraphLayer),
    sources=[S4.passage("Inductive Bias")],
)
