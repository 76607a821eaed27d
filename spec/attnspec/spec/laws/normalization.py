"""Laws of normalization."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S0, S1
from attnspec.spec.kernels import AttentionWeights
from attnspec.spec.normalization import Softmax
from attnspec.spec.seq2seq import DecoderStep, OutputDistribution, TeacherForcedDecode
from attnspec.spec.transformer import DecoderOnly, EncoderDecoder, EncoderOnly

SUMS_TO_ONE = law(
    "normalization.sums-to-one",
    "Weights of a row with an attendable key and no sink, and probabilities of tokens, are not negative and sum to 1.",
    formula=r"\alpha_{ij} \ge 0,\quad \sum_j \alpha_{ij} = 1;\quad P_w \ge 0,\quad \sum_w P_w = 1",
    governs=of(
        *(Softmax, AttentionWeights, OutputDistribution, DecoderStep),
        *(EncoderDecoder, DecoderOnly, EncoderOnly, TeacherForcedDecode),
    ),
    sources=[S0.equation(2), S0.equation(14), S1.passage("Attention: in equations")],
)
MASKED_WEIGHT_IS_ZERO = law(
    "normalization.masked-weight-is-zero",
    "The weight of a masked key is exactly 0.",
    formula=r"j \notin A_i \Rightarrow \alpha_{ij} = 0",
    # masked operations whose results are weights: no result sums over the keys
    governs=lambda operation: operation.mask is not None and not operation.summed_over(str(operation.key_size)),
)
SHIFT_INVARIANCE = law(
    "normalization.shift-invariance",
    "Adding the same number to all scores of a row changes no weight.",
    formula=r"\operatorname{softmax}(e + t) = \operatorname{softmax}(e)",
    governs=of(Softmax),
    sources=[S0.equation(2)],
)
ORDER_PRESERVED = law(
    "normalization.order-preserved",
    "A greater score never has a smaller weight.",
    formula=r"e_{ij} > e_{ij'} \Rightarrow \alpha_{ij} \ge \alpha_{ij'}",
    governs=of(Softmax),
    sources=[S0.equation(2)],
)
EXTREME_SCORES_STAY_FINITE = law(
    "normalization.extreme-scores-stay-finite",
    "Scores up to the largest number of the dtype give finite weights.",
    formula=r"|e| \le \max \Rightarrow \alpha \text{ finite}",
    governs=of(Softmax),
    sources=[S0.equation(2)],
)
INFINITE_SCORES = law(
    "normalization.infinite-scores",
    "A score of −∞ has weight 0 and leaves the others as if its key were masked. A score of +∞ has weight NaN.",
    formula=r"e_{ij} = -\infty \Rightarrow \alpha_{ij} = 0,\quad e_{ij} = \infty \Rightarrow \alpha_{ij} = \text{NaN}",
    governs=of(Softmax),
    sources=[S0.equation(2)],
)
