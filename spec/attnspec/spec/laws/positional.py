"""Laws of positional encodings."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S2, S3, S4
from attnspec.spec.masking import CausalMask
from attnspec.spec.positional import AddPositions, SinusoidalPositionalEncoding

_SINUSOIDS = of(SinusoidalPositionalEncoding)

UNIT_LENGTH_PAIRS = law(
    "positional.unit-length-pairs",
    "Every pair of a sine and its cosine has length 1, no element exceeds 1, and position 0 is 0, 1, 0, 1, …",
    formula=r"P_{t,2i}^2 + P_{t,2i+1}^2 = 1,\quad |P_{t,i}| \le 1,\quad P_{0,2i} = 0,\ P_{0,2i+1} = 1",
    governs=_SINUSOIDS,
    sources=[S3.passage("Positional Encoding")],
)
SHIFT_IS_ROTATION = law(
    "positional.shift-is-rotation",
    "Shifting a position rotates every pair by an angle that is the same for all positions. So the inner product of "
    "two encodings depends only on the distance of their positions.",
    formula=r"P_{t+s} = R_s P_t",
    governs=_SINUSOIDS,
    sources=[S2.passage("Machine Translation, solution 1"), S3.passage("Positional Encoding")],
)
DISTINCT_POSITIONS = law(
    "positional.distinct-positions",
    "No two positions have the same encoding.",
    formula=r"t \ne t' \Rightarrow P_t \ne P_{t'}",
    governs=_SINUSOIDS,
    sources=[S4.passage("Positional Encoding")],
)
PREFIX_UNCHANGED = law(
    "positional.prefix-unchanged",
    "More positions leave the first encodings unchanged, and a smaller causal mask is the corner of a larger one.",
    formula=r"P(n') = P(n)_{<n'},\quad M(n', m') = M(n, m)_{<n', <m'}",
    governs=of(SinusoidalPositionalEncoding, CausalMask),
    sources=[S2.passage("Masked Decoder Self-Attention"), S3.passage("Positional Encoding")],
)
ADDING_ZERO = law(
    "positional.adding-zero",
    "Embeddings of 0 become the encodings of their positions, and encodings of 0 change no embedding.",
    formula=r"f(0, P) = P,\quad f(X, 0) = X",
    governs=of(AddPositions),
    sources=[S2.passage("Input & Positional Embedding")],
)
