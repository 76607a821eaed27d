"""Laws of linear attention."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import GU, KATHAROPOULOS, KIMI, ONNX, YANG_DELTA, YANG_GATED, YANG_GATED_DELTA
from attnspec.spec.linear import LinearAttention, ShortConvolution

_governed = of(LinearAttention)

PARTS_EQUAL_WHOLE = law(
    "linear.parts-equal-whole",
    "A sequence cut anywhere, also into single steps or empty parts, gives the outputs and the final state of the "
    "whole, if each part starts from the final state of the one before.",
    formula=r"f(X, S_0)_{> s} = f(X_{> s}, S_s)",
    governs=of(LinearAttention, ShortConvolution),
    sources=[
        ONNX.passage("LinearAttention-27"),
        ONNX.passage("CausalConvWithState-27"),
        YANG_GATED.passage("2.2 Chunkwise form"),
    ],
)
LINEAR_RULE_IS_CAUSAL_ATTENTION = law(
    "linear.linear-rule-is-causal-attention",
    "From an empty state and without decay and correction, the output is causal attention with the scores as weights, "
    "and the final state the sum of all products of keys and values.",
    formula=r"O = \lambda (Q K^\top \circ [j \le i]) V,\quad S = K^\top V",
    governs=_governed,
    sources=[KATHAROPOULOS.passage("3.3 Causal masking")],
)
ZERO_RATE_WRITES_NOTHING = law(
    "linear.zero-rate-writes-nothing",
    "With β = 0 the state only decays; without decay it stays, bit for bit, and queries read the initial state.",
    formula=r"\beta = 0 \Rightarrow S_i = D_i S_{i-1}",
    governs=_governed,
    sources=[YANG_DELTA.passage("2.2 DeltaNet")],
)
FULL_RATE_STORES_VALUE = law(
    "linear.full-rate-stores-value",
    "With β = 1 and a key of norm 1, reading with the key that was just written gives its value, whatever was stored "
    "before.",
    formula=r"\beta_i = 1,\ \lVert k_i \rVert = 1 \Rightarrow S_i^\top k_i = v_i",
    governs=_governed,
    sources=[YANG_DELTA.passage("2.2 DeltaNet"), YANG_GATED_DELTA.passage("3.1 Formulation: gated delta rule")],
)
NO_DECAY_IS_UNGATED = law(
    "linear.no-decay-is-ungated",
    "A decay of 0 is no decay. One decay per head equals the same decay for every feature of the key.",
    formula=r"g = 0 \Rightarrow D = I",
    governs=_governed,
    sources=[YANG_GATED.passage("4 Gated linear attention"), KIMI.passage("3 Kimi delta attention")],
)
FULL_DECAY_FORGETS = law(
    "linear.full-decay-forgets",
    "A step whose decay is −10⁴ or −∞ forgets all steps before it: the rest is as if the sequence began there with an "
    "empty state.",
    formula=r"g_s = -\infty \Rightarrow f(X, S_0)_{\ge s} = f(X_{\ge s}, 0)",
    governs=_governed,
    sources=[YANG_GATED.passage("4 Gated linear attention")],
)
DECAY_IS_EXPONENTIAL = law(
    "linear.decay-is-exponential",
    "Without keys the state is multiplied by the exponential of the sum of the decays, feature by feature.",
    formula=r"K = 0 \Rightarrow S_n = \operatorname{diag}(e^{\sum_i g_i}) S_0",
    governs=_governed,
    sources=[ONNX.passage("LinearAttention-27")],
)
TAPS_ARE_DELAYS = law(
    "linear.taps-are-delays",
    "With weight 1 at one tap and 0 at the others, the output is the input that many steps before, at first from the "
    "state, bit for bit; the last tap changes nothing.",
    formula=r"w = e_j \Rightarrow y_i = x_{i-k+1+j}",
    governs=of(ShortConvolution),
    sources=[ONNX.passage("CausalConvWithState-27"), GU.passage("3.4 A simplified SSM architecture")],
)
STATE_IS_LAST_INPUTS = law(
    "linear.state-is-last-inputs",
    "The final state of a convolution is its last inputs, bit for bit. After fewer inputs than it holds, the latest "
    "rows of the initial state come first.",
    formula=r"S_t = (x_{t-k+1}, \dots, x_{t-1})",
    governs=of(ShortConvolution),
    sources=[ONNX.passage("CausalConvWithState-27")],
)
