"""Laws of attention in kernels: grouped heads, caps, biases, sinks, packed and paged caches."""

from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import (
    AINSLIE,
    BELTAGY,
    DAO,
    DEEPSEEK,
    GEMMA,
    JIANG,
    KRELL,
    KWON,
    MIAO,
    ONNX,
    OPENAI,
    PENG,
    PRESS,
    QIU,
    RAFFEL,
    RAMAPURAM,
    SRIVASTAVA,
    SU,
    TRANSFORMERS,
    VASWANI,
    WANG_QWEN,
)
from attnspec.spec.kernels import (
    AlibiSlopes,
    AttentionWeights,
    AxialRotaryEmbedding,
    DocumentMask,
    Dropout,
    GatedOutput,
    GroupedQueryAttention,
    LatentAttention,
    MergeAttention,
    PagedAttention,
    PositionsFromMask,
    RelativePositionBias,
    RollingBufferPositions,
    RotaryEmbedding,
    RotaryFrequencies,
    SigmoidAttention,
    SlidingWindowMask,
    TreeMask,
    VariableLengthAttention,
)


def _in_groups(operation: Operation) -> bool:
    """True if heads of the queries share heads of the keys."""
    return bool(operation.sizes_of(Axis.GROUP))


GROUPED_HEADS_SHARE_KEYS = law(
    "kernels.grouped-heads-share-keys",
    "Each head of the queries attends to the head of the keys that its group shares. This holds for one group, for "
    "one group per head, and for any number between.",
    formula=r"f(q, k, v)_r = f(q_r, k_{\lfloor r / g \rfloor}, v_{\lfloor r / g \rfloor})",
    governs=_in_groups,
    sources=[AINSLIE.passage("2.2 Grouped-query attention")],
)
SCORE_CAP_LIMITS = law(
    "kernels.score-cap-limits",
    "A very large cap changes nothing. A very small one gives all attendable keys equal weights.",
    formula=r"c \to \infty:\ f(x; c) \to f(x),\quad c \to 0:\ f(x; c) \to f(x; \lambda = 0)",
    governs=lambda operation: bool(operation.part(ScoreEffect.CAP)),
    sources=[GEMMA.passage("2 Model architecture: logit soft-capping")],
)
SLOPES_AND_SINKS_ARE_BIASES = law(
    "kernels.slopes-and-sinks-are-biases",
    "Slopes equal a bias that falls with the distance between query and key. A sink equals one more key, with value "
    "0 and the sink as its bias: it adds its exponential to the denominator. Both hold for the output and for the "
    "log-sum-exp.",
    formula=r"f(x; m) = f(x; B_{rij} = -m_r |i - j|),\quad f(q, k, v; b) = f(q, [k; 0], [v; 0]; B = [0, b]),"
    r"\quad \ell(x; b) = \log(e^{\ell(x)} + e^b),\ o(x; b) = e^{\ell(x) - \ell(x; b)}\, o(x)",
    governs=lambda operation: bool(operation.part(ScoreEffect.SINK)),
    sources=[
        PRESS.passage("3 Attention with linear biases"),
        OPENAI.passage("Architecture: Attention"),
    ],
)
LOG_SUM_EXP = law(
    "kernels.log-sum-exp",
    "Repeating all keys adds log 2 to the log-sum-exp of a row and leaves its output; adding a number to all scores "
    "adds it to the log-sum-exp. A row without attendable keys has the output 0, and as its log-sum-exp its sink, or "
    "−∞ without one.",
    formula=r"\ell(q, [k; k]) = \ell(q, k) + \log 2,\quad \ell(s + c) = \ell(s) + c,"
    r"\quad A_i = \emptyset \Rightarrow o_i = 0,\ \ell_i = -\infty\ \text{or}\ b",
    governs=of(GroupedQueryAttention),
    sources=[DAO.passage("3.1 An efficient attention algorithm with tiling and recomputation")],
)
WEIGHTS_POOL_VALUES = law(
    "kernels.weights-pool-values",
    "Values pooled by attention weights are the output of grouped-query attention with the same options.",
    formula=r"\sum_j \alpha_{rij} v_{hj} = o_{ri}",
    governs=of(AttentionWeights),
    sources=[VASWANI.passage("3.2.1 Scaled dot-product attention"), ONNX.passage("Attention-25")],
)
PACKED_EQUALS_SEPARATE = law(
    "kernels.packed-equals-separate",
    "Packed sequences get the results that each of them gets alone, with the keys that it uses. Keys behind these have "
    "no effect, even if they hold NaN or ∞.",
    formula=r"f([q_1; q_2], [k_1; k_2], [v_1; v_2]) = [f(q_1, k_1, v_1); f(q_2, k_2, v_2)]",
    governs=of(VariableLengthAttention),
    sources=[KRELL.passage("Abstract")],
)
PAGED_EQUALS_CONTIGUOUS = law(
    "kernels.paged-equals-contiguous",
    "A paged cache gives the result of the same rows in one piece. Pages that no batch element uses, and rows behind "
    "the last one, have no effect, even if they hold NaN or ∞.",
    formula=r"f(q, K, V; t, \ell) = g(q, [K_t], [V_t]; \ell),"
    r"\quad j \ge \ell \Rightarrow f \text{ does not depend on } (k_j, v_j)",
    governs=of(PagedAttention),
    sources=[KWON.passage("4.1 PagedAttention")],
)
LATENT_WEIGHT_ABSORPTION = law(
    "kernels.latent-weight-absorption",
    "Latent attention has two equal forms: attention to keys and values projected for every head, and attention of "
    "projected queries to the latent vectors themselves, in one group.",
    formula=r"f = g([q; \hat q], [W^K c; \hat k], W^V c) = W^V g([{W^K}^\top q; \hat q], [c; \hat k], c)",
    governs=of(LatentAttention),
    sources=[DEEPSEEK.passage("2.1.2 Low-rank key-value joint compression")],
)
SIGMOIDS_OF_KEYS_ADD_UP = law(
    "kernels.sigmoids-of-keys-add-up",
    "Each key has its weight whatever the other keys are: results for two parts of the keys add up to the result for "
    "all, and repeated keys count twice. The weights for opposite queries and the opposite bias are what is left to 1.",
    formula=r"f(q, [k; k'], [v; v']; b) = f(q, k, v; b) + f(q, k', v'; b),"
    r"\quad f(q; b) + f(-q; -b) = \sum_{j \in A_i} v_j",
    governs=of(SigmoidAttention),
    sources=[RAMAPURAM.passage("2 Sigmoid attention")],
)
MERGED_PARTS_EQUAL_WHOLE = law(
    "kernels.merged-parts-equal-whole",
    "Attention to parts of the keys, merged by their log-sum-exps, equals attention to all keys. Empty parts have no "
    "effect; if all parts are empty, the output is 0 and the log-sum-exp −∞.",
    formula=r"\operatorname{merge}_p f(q, k_p, v_p) = f(q, k, v)",
    governs=of(MergeAttention),
    sources=[DAO.passage("3.1 An efficient attention algorithm with tiling and recomputation")],
)
ROTARY_RELATIVE_POSITION = law(
    "kernels.rotary-relative-position",
    "A rotary embedding keeps the length of every row and leaves position 0 unchanged. Inner products of embedded "
    "rows depend only on the distance between their positions.",
    formula=r"\|R_t x\| = \|x\|,\quad R_0 x = x,"
    r"\quad \langle R_s q, R_t k \rangle = \langle R_{s+c} q, R_{t+c} k \rangle",
    governs=of(RotaryEmbedding, AxialRotaryEmbedding),
    sources=[SU.passage("3.2.2 General form")],
)
ROTARY_AXES = law(
    "kernels.rotary-axes",
    "Rotating along one axis after another equals rotating along all axes at once. Features beyond the pairs are "
    "unchanged.",
    formula=r"R_{t_1 \omega_1} R_{t_2 \omega_2} x = R_{t_1 \omega_1 + t_2 \omega_2} x,"
    r"\quad i \ge 2p \Rightarrow y_i = x_i",
    governs=of(AxialRotaryEmbedding),
    sources=[WANG_QWEN.passage("2.1 Multimodal rotary position embedding (M-RoPE)")],
)
ROTARY_INTERPOLATION = law(
    "kernels.rotary-interpolation",
    "Every frequency is at most the unscaled one, and at least the unscaled one divided by the factor. The ratio of "
    "both does not rise from one pair to the next. A factor of 1 changes nothing.",
    formula=r"\theta_i / s \le \omega_i \le \theta_i,\quad \omega_{i+1} / \theta_{i+1} \le \omega_i / \theta_i,"
    r"\quad s = 1 \Rightarrow \omega = \theta",
    governs=of(RotaryFrequencies),
    sources=[PENG.passage("3.2 Loss of relative local information: the NTK-by-parts interpolation")],
)
GEOMETRIC_ALIBI_SLOPES = law(
    "kernels.geometric-alibi-slopes",
    "If the number of heads is a power of two, the slopes are the powers of the first one, down to 2⁻⁸. Otherwise, "
    "the heads beyond the largest power of two H have every other slope of 2H heads.",
    formula=r"m_{r+1} / m_r = m_0,\ m_{H-1} = 2^{-8};\quad m_{H+r}(h) = m_{2r}(2H)",
    governs=of(AlibiSlopes),
    sources=[PRESS.passage("3 Attention with linear biases")],
)
BUCKETS_OF_DISTANCES = law(
    "kernels.buckets-of-distances",
    "The bias depends only on the distance between positions: counting from elsewhere changes nothing. Distance 0 has "
    "the first row of the table; all distances from the largest on have the same bias. Later keys have buckets of "
    "their own if the bias is bidirectional, and the bias of distance 0 otherwise.",
    formula=r"B(s + a, t + a) = B(s, t),\quad t_j = s_i \Rightarrow B_{rij} = T_{0r},\quad"
    r" |x|, |y| \ge D \Rightarrow b(x) = b(y) \text{ for } x y > 0,"
    r"\quad x > 0 \Rightarrow b(x) \ge h \text{ or } b(x) = 0",
    governs=of(RelativePositionBias),
    sources=[RAFFEL.passage("2.1 Model: relative position embeddings")],
)
WINDOW_AND_DOCUMENT_MASKS = law(
    "kernels.window-and-document-masks",
    "A window is the intersection of its left and its right part. Without keys on either side it is the diagonal; "
    "unlimited to the left and without reach to the right, it is the causal mask. Renaming documents does not change "
    "their mask, and exchanging queries and keys transposes it.",
    formula=r"M_{l,r} = M_{l,\infty} \wedge M_{\infty,r},\quad M_{0,0} = I,\quad M_{\infty,0} = [j \le i];"
    r"\quad M(\pi D, \pi E) = M(D, E),\quad M(E, D) = M(D, E)^\top",
    governs=of(SlidingWindowMask, DocumentMask),
    sources=[BELTAGY.passage("3.1 Attention pattern: sliding window"), KRELL.passage("Abstract")],
)
ROLLING_BUFFER_KEEPS_LAST = law(
    "kernels.rolling-buffer-keeps-last",
    "Storing one position after another, each p in slot p mod w, leaves the positions that a rolling buffer has: the "
    "last w, or all if there are fewer. Slots never written have position −1.",
    formula=r"p_{\ell - 1 - a \bmod w} = \ell - 1 - a,\quad 0 \le a < \min(\ell, w)",
    governs=of(RollingBufferPositions),
    sources=[JIANG.passage("2 Architectural details: rolling buffer cache")],
)
PADDING_TAKES_NO_POSITION = law(
    "kernels.padding-takes-no-position",
    "Wherever a sequence is padded, its tokens have the positions 0, 1, 2, … that they have without padding.",
    formula=r"(p_i)_{i: M_i} = (0, 1, \dots)",
    governs=of(PositionsFromMask),
    sources=[TRANSFORMERS.passage("generation: position_ids from attention_mask")],
)
ROWS_OF_PARENTS = law(
    "kernels.rows-of-parents",
    "The mask of a path is the causal mask. In any tree, the row of a token is the row of its parent and the token "
    "itself; the row of a root is the root alone.",
    formula=r"p_i = i - 1 \Rightarrow M = [j \le i];\quad M_i = M_{p_i} \cup \{i\},"
    r"\quad p_i = -1 \Rightarrow M_i = \{i\}",
    governs=of(TreeMask),
    sources=[MIAO.passage("4.2 Tree-based parallel decoding: topology-aware causal mask")],
)
DROPOUT_KEEPS_MEAN = law(
    "kernels.dropout-keeps-mean",
    "Averaged over masks that keep every weight equally often, dropout returns the weights.",
    formula=r"\operatorname{E}[K] = 1 - p \Rightarrow \operatorname{E}[f(\alpha; K)] = \alpha",
    governs=of(Dropout),
    sources=[SRIVASTAVA.passage("4 Model description")],
)
OUTPUT_GATE = law(
    "kernels.output-gate",
    "Gates of 0 halve the output. Gated by g and by −g, outputs add up to the output itself. A gate that all features "
    "share equals the same gate for every feature.",
    formula=r"f(o; 0) = o / 2,\quad f(o; g) + f(o; -g) = o",
    governs=of(GatedOutput),
    sources=[QIU.passage("Abstract")],
)
