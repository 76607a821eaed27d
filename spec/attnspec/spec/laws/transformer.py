"""Laws of transformers."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import BA, GEMMA, HENDRYCKS, S2, S3, SHAZEER, VASWANI, ZHANG
from attnspec.spec.recurrent import StackedGRU, StackedLSTM, StackedRNN
from attnspec.spec.transformer import (
    GELU,
    AddRMSNorm,
    CachedDecoderStep,
    DecoderLayer,
    DecoderOnly,
    DecoderStack,
    EncoderDecoder,
    EncoderLayer,
    EncoderOnly,
    EncoderStack,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    RMSNorm,
)

_layers = of(EncoderLayer, DecoderLayer)
ZERO_SUBLAYERS_IDENTITY = law(
    "transformer.zero-sublayers-identity",
    "If attention and feed-forward network give 0, a pre-norm layer is the identity.",
    formula=r"W_o = 0,\ W_2 = 0,\ b_2 = 0 \Rightarrow f(X) = X",
    governs=_layers,
    sources=[S3.passage("Transformer Machine Translation")],
)
LAYER_NORM_MOMENTS = law(
    "transformer.layer-norm-moments",
    "With gain 1 and bias 0, layer normalization of a row with variance v gives mean 0 and variance v/(v + ε). Every "
    "result of a post-norm layer has mean 0 and a variance of at most 1.",
    formula=r"\tfrac1d \sum_i y_i = 0,\quad \tfrac1d \sum_i y_i^2 = \frac{v}{v + \varepsilon} \le 1",
    governs=of(EncoderLayer, DecoderLayer, LayerNorm),
    sources=[BA.passage("3"), VASWANI.passage("3.1")],
)
POSITION_WISE = law(
    "transformer.position-wise",
    "Without attention to other positions, every position is computed as if it were alone.",
    formula=r"W_v = 0 \Rightarrow f(X)_i = f(X_i)",
    governs=_layers,
    sources=[VASWANI.passage("3.3")],
)
LAYER_NORM_IGNORES_SHIFT = law(
    "transformer.layer-norm-ignores-shift",
    "Adding the same number to all features of a position changes nothing.",
    formula=r"\operatorname{LN}(x + c) = \operatorname{LN}(x)",
    governs=of(LayerNorm),
    sources=[BA.passage("5.1")],
)
RMS_NORM_MEAN_SQUARE = law(
    "transformer.rms-norm-mean-square",
    "With a factor of 1, RMS normalization of a row with mean square s gives the mean square s/(s + ε).",
    formula=r"w = 1 \Rightarrow \tfrac1d \sum_i y_i^2 = \frac{s}{s + \varepsilon}",
    governs=of(RMSNorm, AddRMSNorm),
    sources=[ZHANG.passage("3 RMSNorm")],
)
RMS_NORM_IGNORES_SCALE = law(
    "transformer.rms-norm-ignores-scale",
    "Multiplying all features by 2, and ε by 4, changes nothing. Changing all signs changes those of the result.",
    formula=r"f(2x; 4\varepsilon) = f(x; \varepsilon),\quad f(-x) = -f(x)",
    governs=of(RMSNorm, AddRMSNorm),
    sources=[ZHANG.passage("3.1 Invariance analysis")],
)
RMS_NORM_UNBIASED_FACTOR = law(
    "transformer.rms-norm-unbiased-factor",
    "Over many rows, the errors of a feature average to 0: its factor is that of all rows and is not rounded.",
    formula=r"\operatorname{E}[\hat y_i - y_i] = 0",
    governs=of(RMSNorm),
    sources=[GEMMA.passage("2 Model architecture: RMSNorm")],
)
RESIDUAL_IS_ADDED = law(
    "transformer.residual-is-added",
    "With a residual of 0, the sum is x, bit for bit. Exchanging x and the residual changes nothing.",
    formula=r"r = 0 \Rightarrow z = x,\quad f(x, r) = f(r, x)",
    governs=of(AddRMSNorm),
    sources=[VASWANI.passage("3.1")],
)
RELU_HOMOGENEITY = law(
    "transformer.relu-homogeneity",
    "Without biases, doubling the input of a ReLU network doubles its result.",
    formula=r"b_1 = b_2 = 0 \Rightarrow f(2x) = 2 f(x)",
    governs=of(FeedForward),
    sources=[VASWANI.passage("3.3")],
)
GELU_ODD_PART = law(
    "transformer.gelu-odd-part",
    "GELU of x less GELU of −x is x.",
    formula=r"f(x) - f(-x) = x",
    governs=of(GELU),
    sources=[HENDRYCKS.passage("2 GELU formulation")],
)
GELU_TAILS = law(
    "transformer.gelu-tails",
    "From 16 on, GELU is the identity; from −16 down it is 0.",
    formula=r"|x| \ge 16 \Rightarrow f(x) = \max(x, 0)",
    governs=of(GELU),
    sources=[HENDRYCKS.passage("2 GELU formulation")],
)
GELU_OF_EACH_FEATURE = law(
    "transformer.gelu-of-each-feature",
    "GELU of a feature depends on no other feature: features in reverse order have their results in reverse order.",
    formula=r"f(Px) = P f(x)",
    governs=of(GELU),
    sources=[HENDRYCKS.passage("2 GELU formulation")],
)
UP_PROJECTION_IS_LINEAR = law(
    "transformer.up-projection-is-linear",
    "Doubling the weights of the up-projection doubles the result of a gated network.",
    formula=r"f(x; W_g, 2 W_u, W_d) = 2 f(x; W_g, W_u, W_d)",
    governs=of(GatedFeedForward),
    sources=[SHAZEER.passage("2 Gated linear units (GLU) and variants")],
)
CLOSED_GATE = law(
    "transformer.closed-gate",
    "Where the gate's weights are 0, a gated network gives 0.",
    formula=r"W_g = 0 \Rightarrow f(x) = 0",
    governs=of(GatedFeedForward),
    sources=[SHAZEER.passage("2 Gated linear units (GLU) and variants")],
)
STACK_IS_COMPOSITION = law(
    "transformer.stack-is-composition",
    "A stack gives the result of its first layers, passed through the others. A stack that may have no layers is "
    "then the identity, bit for bit.",
    formula=r"f_{1 \dots N}(X) = f_{k+1 \dots N}(f_{1 \dots k}(X)),\quad N = 0 \Rightarrow Y = X",
    governs=of(EncoderStack, DecoderStack, StackedRNN, StackedGRU, StackedLSTM),
    sources=[S3.passage("Multi-Layer RNNs"), VASWANI.passage("3.1")],
)
DECODER_WITHOUT_MEMORY = law(
    "transformer.decoder-without-memory",
    "Without encoder memory, or if attention to it gives 0, a decoder is an encoder under the causal mask.",
    formula=r"W_o = 0 \Rightarrow f(X, Z; M) = \operatorname{Encoder}(X; M \wedge [j \le i])",
    governs=of(DecoderLayer, DecoderOnly),
    sources=[S2.passage("Masked Decoder Self-Attention"), VASWANI.passage("3.1")],
)
CACHE_EQUALS_FULL_DECODER = law(
    "transformer.cache-equals-full-decoder",
    "Decoding one position after another with a cache gives the rows of the whole decoder layer.",
    formula=r"(y_t, C_t) = f(x_t, C_{t-1}, Z) \Rightarrow Y = \operatorname{Decoder}(X, Z)",
    governs=of(CachedDecoderStep),
    sources=[S2.passage("Machine Translation, solution 4")],
)
POSITIONS_MATTER = law(
    "transformer.positions-matter",
    "If all position embeddings are equal, exchanging two tokens exchanges their results. If they differ, it does not.",
    formula=r"T = 0 \Rightarrow f(Px) = P f(x),\quad T \text{ random} \Rightarrow f(Px) \ne P f(x),"
    r"\quad T \text{ the learned position embeddings}",
    governs=of(EncoderOnly),
    sources=[S2.passage("Machine Translation, solution 1"), S3.passage("Input Sequence Order")],
)
ENCODER_SEES_NO_TARGET = law(
    "transformer.encoder-sees-no-target",
    "The encoder sees no target token and no padding of the source. So neither another last token of the target nor "
    "another padded token of the source changes an earlier prediction.",
    formula=r"f(x, y)_{<n-1} \text{ does not depend on } y_{n-1}, \text{ nor on } x_j \text{ where } M_j = 0",
    governs=of(EncoderDecoder),
    sources=[S2.passage("Machine Translation, solution 4"), S2.passage("Encoder Attention: padding")],
)
