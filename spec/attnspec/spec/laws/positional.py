"""Laws of positional encodings."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S2, S3, S4
from attnspec.spec.positional import AddPositions, ConcatPositions, LearnedPositions, SinusoidalPositionalEncoding

_SINUSOIDS = of(SinusoidalPositionalEncoding)

BOUNDS = law(
    "positional.bounds",
    "No element exceeds 1; position 0 is 0, 1, 0, 1, …",
    formula=r"|P_{t,i}| \le 1,\quad P_{0,2i} = 0,\ P_{0,2i+1} = 1",
    governs=_SINUSOIDS,
    sources=[S3.passage("Positional Encoding")],
)
UNIT_PAIRS = law(
    "positional.unit-pairs",
    "Every pair of a sine and its cosine has length 1.",
    formula=r"P_{t,2i}^2 + P_{t,2i+1}^2 = 1",
    governs=_SINUSOIDS,
    sources=[S3.passage("Positional Encoding")],
)
ROTATION = law(
    "positional.rotation",
    "A shift of the position rotates every pair by an angle that does not depend on the position.",
    formula=r"P_{t+s} = R_s P_t",
    governs=_SINUSOIDS,
    sources=[S3.passage("Positional Encoding")],
)
DISTANCE = law(
    "positional.distance",
    "The inner product of two positions is a function of their distance.",
    formula=r"P_t^\top P_{t+s} = P_0^\top P_s",
    governs=_SINUSOIDS,
    sources=[S2.passage("Machine Translation, solution 1")],
)
DISTINCT = law(
    "positional.distinct",
    "No two positions have the same encoding.",
    formula=r"t \ne t' \Rightarrow P_t \ne P_{t'}",
    governs=_SINUSOIDS,
    sources=[S4.passage("Positional Encoding")],
)
POSITION_PREFIX = law(
    "positional.prefix",
    "More positions leave the first ones as they are.",
    formula=r"P(n') = P(n)_{<n'}",
    governs=_SINUSOIDS,
    sources=[S3.passage("Positional Encoding")],
)
TABLE_ROWS = law(
    "positional.table-rows",
    "The encodings are the first rows of the table, bit for bit, and no other row counts.",
    formula=r"P_t = T_t",
    governs=of(LearnedPositions),
    sources=[S2.passage("Machine Translation, solution 1")],
)
TABLE_RANGE = law(
    "positional.table-range",
    "More positions than rows of the table raise.",
    formula=r"n > \operatorname{rows}(T) \Rightarrow \text{raises}",
    governs=of(LearnedPositions),
)
ADDED = law(
    "positional.added",
    "Embeddings of 0 become the encodings of their positions, and encodings of 0 change no embedding.",
    formula=r"f(0, P) = P,\quad f(X, 0) = X",
    governs=of(AddPositions),
    sources=[S2.passage("Input & Positional Embedding")],
)
BESIDE = law(
    "positional.beside",
    "Every position keeps its embedding, and has its encoding after it, bit for bit.",
    formula=r"Y_{t,1 \dots d} = X_t,\quad Y_{t,d+1 \dots} = P_t",
    governs=of(ConcatPositions),
    sources=[S3.passage("Positional Encoding")],
)
