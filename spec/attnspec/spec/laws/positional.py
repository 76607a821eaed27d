"""Laws of positional encodings."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S2, S3, S4
from attnspec.spec.masking import CausalMask
from attnspec.spec.positional import AddPositions, SinusoidalPositionalEncoding

_SINUSOIDS = of(SinusoidalPositionalEncoding)

UNIT_PAIRS = law(
    "positional.unit-pairs",
    "Every pair of a sine and its cosine has length 1, no element exceeds 1, and position 0 is 0, 1, 0, 1, …",
    formula=r"P_{t,2i}^2 + P_{t,2i+1}^2 = 1,\quad |P_{t,i}| \le 1,\quad P_{0,2i} = 0,\ P_{0,2i+1} = 1",
    governs=_SINUSOIDS,
    sources=[S3.passage("Positional Encoding")],
)
ROTATION = law(
    "positional.rotation",
    "A shift of the position rotates every pair by an angle that does not depend on the position, so that inner "
    "products of positions depend on their distance alone.",
    formula=r"P_{t+s} = R_s P_t",
    governs=_SINUSOIDS,
    sources=[S2.passage("Machine Translation, solution 1"), S3.passage("Positional Encoding")],
)
DISTINCT = law(
    "positional.distinct",
    "No two positions have the same encoding.",
    formula=r"t \ne t' \Rightarrow P_t \ne P_{t'}",
    governs=_SINUSOIDS,
    sources=[S4.passage("Positional Encoding")],
)
PREFIX = law(
    "positional.prefix",
    "More positions leave the encodings of the first ones as they are; a causal mask of fewer positions is its corner.",
    formula=r"P(n') = P(n)_{<n'},\quad M(n', m') = M(n, m)_{<n', <m'}",
    governs=of(SinusoidalPositionalEncoding, CausalMask),
    sources=[S2.passage("Masked Decoder Self-Attention"), S3.passage("Positional Encoding")],
)
ADDED = law(
    "positional.added",
    "Embeddings of 0 become the encodings of their positions, and encodings of 0 change no embedding.",
    formula=r"f(0, P) = P,\quad f(X, 0) = X",
    governs=of(AddPositions),
    sources=[S2.passage("Input & Positional Embedding")],
)
