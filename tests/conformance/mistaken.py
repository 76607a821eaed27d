"""Implementations with a typical mistake, written without code of the mutants, and their right diagnoses.

They measure the diagnosis. One that is not among the right diagnoses of an implementation or a rediscovered defect is
wrong; where that list is empty, every diagnosis is.
"""

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.shapes import bind

Numbers = Any


class Mistaken:
    """A backend of one operation, in NumPy, without gradients."""

    def __init__(self, name: str, operation: str, function: Callable[..., Numbers], dtype: str = "float32") -> None:
        self.name, self.operation, self.dtype = name, operation, dtype
        self.limits = {"dtypes": (dtype,)}

        def call(*arguments: Any, **options: Any) -> Numbers:
            bound = OPERATIONS[operation].signature.bind(*arguments, **options).arguments
            bind(OPERATIONS[operation], bound)
            with np.errstate(all="ignore"):
                return np.array(function(**bound))

        setattr(self, operation, call)


MISTAKEN: dict[str, Mistaken] = {}
RIGHT_DIAGNOSES: dict[str, tuple[str, ...]] = {}
"""Right diagnoses of each implementation: names of known defects, or how the sentence begins."""


def register(
    name: str, *diagnoses: str, operation: str = "scaled_dot_product_attention", dtype: str = "float32"
) -> Callable[[Callable[..., Numbers]], Callable[..., Numbers]]:
    """Register an implementation with its right diagnoses."""

    def register_function(function: Callable[..., Numbers]) -> Callable[..., Numbers]:
        MISTAKEN[name] = Mistaken(name, operation, function, dtype)
        RIGHT_DIAGNOSES[name] = diagnoses
        return function

    return register_function


def allowed(q: Numbers, k: Numbers, mask: Numbers, causal: bool) -> Numbers:
    pairs = np.ones((q.shape[-2], k.shape[-2]), bool)
    pairs = np.tril(pairs) if causal else pairs
    return pairs if mask is None else pairs & mask


def masked_softmax(scores: Numbers, pairs: Numbers) -> Numbers:
    """Softmax over the allowed pairs; rows without an allowed pair are 0."""
    hidden = np.where(pairs, scores, scores.dtype.type(-np.inf))
    top = hidden.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(hidden - np.where(np.isfinite(top), top, 0))
    s = e.sum(-1, keepdims=True)
    return (e / np.where(s > 0, s, 1)).astype(scores.dtype)


def scaled_scores(q: Numbers, k: Numbers) -> Numbers:
    return q @ np.swapaxes(k, -1, -2) / q.dtype.type(q.shape[-1]) ** q.dtype.type(0.5)


def with_scores(change: Callable[[Numbers, Numbers, Numbers], Numbers]) -> Callable[..., Numbers]:
    def attention(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None, causal: bool = False) -> Numbers:
        scores = change(scaled_scores(query, key), query, key).astype(query.dtype)
        return masked_softmax(scores, allowed(query, key, mask, causal)) @ value

    return attention


def with_mask(change: Callable[[int, int], Numbers], *, always: bool = False) -> Callable[..., Numbers]:
    """Attention with another causal mask; ``always`` masks without ``causal``, too."""

    def attention(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None, causal: bool = False) -> Numbers:
        pairs = allowed(query, key, mask, False)
        if causal or always:
            pairs = pairs & change(*pairs.shape[-2:])
        return masked_softmax(scaled_scores(query, key), pairs) @ value

    return attention


def with_weights(change: Callable[[Numbers, Numbers], Numbers]) -> Callable[..., Numbers]:
    """Attention whose weights are another function of the scores and the allowed pairs."""

    def attention(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None, causal: bool = False) -> Numbers:
        scores = scaled_scores(query, key)
        allowed_pairs = np.broadcast_to(allowed(query, key, mask, causal), scores.shape)
        return change(scores, allowed_pairs).astype(query.dtype) @ value

    return attention


def softmax(scores: Numbers) -> Numbers:
    """A softmax that knows of no mask."""
    e = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def width(x: Numbers) -> Numbers:
    return x.dtype.type(x.shape[-1])


ATTENTION_MISTAKES: Mapping[str, tuple[Callable[..., Numbers], tuple[str, ...]]] = {
    "divided by d": (
        with_scores(lambda s, q, k: s / width(q) ** 0.5),
        ("attention scaled by d", "scores divided by d"),
    ),
    "no scale": (with_scores(lambda s, q, k: s * width(q) ** 0.5), ("attention without scale",)),
    "scores doubled": (with_scores(lambda s, q, k: 2 * s), ("The scores are multiplied by 2.",)),
    "scores in powers of 2": (
        with_scores(lambda s, q, k: s * 0.693147),
        ("exp2 without log₂e", "The scores are multiplied by 0.693147 = ln 2"),
    ),
    "scores a thousandth too large": (
        with_scores(lambda s, q, k: s * 1.001),
        ("attention scores 0.1 % too large", "The scores are multiplied by 1.001."),
    ),
    "scaled by keys": (with_scores(lambda s, q, k: s / max(k.shape[-2], 1) ** 0.5), ()),
    "capped at 50": (with_scores(lambda s, q, k: 50 * np.tanh(s / 50)), ()),
    "capped at 5": (with_scores(lambda s, q, k: 5 * np.tanh(s / 5)), ()),
    "cosines": (with_scores(lambda s, q, k: s / np.maximum(np.linalg.norm(q, axis=-1)[..., None], 1e-6)), ()),
    "ALiBi with slope ½": (
        with_scores(lambda s, q, k: s - abs(np.arange(s.shape[-2])[:, None] - np.arange(s.shape[-1])) / 2),
        (),
    ),
    "ALiBi with slope ⅛": (
        with_scores(lambda s, q, k: s - abs(np.arange(s.shape[-2])[:, None] - np.arange(s.shape[-1])) / 8),
        ("distance bias left on",),
    ),
    "absolute values of scores": (with_scores(lambda s, q, k: abs(s)), ("absolute scores",)),
    "causal without the diagonal": (
        with_mask(lambda n, m: np.tri(n, m, -1, bool)),
        ("causal mask leaves out the diagonal",),
    ),
    "causal with the next key": (
        with_mask(lambda n, m: np.tri(n, m, 1, bool)),
        ("causal mask allows one key too many",),
    ),
    "causal with two more keys": (with_mask(lambda n, m: np.tri(n, m, 2, bool)), ()),
    "future alone": (with_mask(lambda n, m: ~np.tri(n, m, -1, dtype=bool)), ("causal mask allows only the future",)),
    "causal from the end": (with_mask(lambda n, m: np.tri(n, m, m - n, bool)), ("causal_alignment bottom-right",)),
    "causal always": (with_mask(lambda n, m: np.tri(n, m, 0, bool), always=True), ("softmax always causal",)),
    "causal never": (with_mask(lambda n, m: np.ones((n, m), bool)), ("causal flag ignored",)),
    "window of 8": (with_mask(lambda n, m: abs(np.arange(n)[:, None] - np.arange(m)) <= 8, always=True), ()),
    "softmax along the wrong axis": (
        with_weights(lambda s, p: np.swapaxes(masked_softmax(np.swapaxes(s, -1, -2), np.swapaxes(p, -1, -2)), -1, -2)),
        ("softmax over the queries",),
    ),
    "exponentials as they are": (
        with_weights(lambda s, p: (e := np.exp(np.where(p, s, -np.inf))) / np.fmax(e.sum(-1, keepdims=True), 1e-38)),
        ("no maximum subtracted",),
    ),
    "filled with −10³⁰": (
        with_weights(lambda s, p: softmax(np.where(p, s, np.float32(-1e30)))),
        ("fully_masked uniform",),
    ),
    "rows without keys NaN": (
        with_weights(lambda s, p: softmax(np.where(p, s, -np.inf))),
        ("fully_masked nan", "no_keys nan"),
    ),
    "added −10⁴": (
        with_weights(lambda s, p: softmax(s + np.where(p, 0, np.float32(-1e4)))),
        ("−10⁴ added to masked scores", "−10⁴ added to masked scores in float16"),
    ),
    "mask added": (with_weights(lambda s, p: softmax(s + p)), ("mask added as 0 and 1",)),
    "mask multiplied": (
        with_weights(lambda s, p: softmax(s * p)),
        ("masked scores are 0", "masked scores filled with −10⁻⁹"),
    ),
    "mask after the softmax": (with_weights(lambda s, p: softmax(s) * p), ("masked after the softmax",)),
    "mask of the other polarity": (with_weights(lambda s, p: masked_softmax(s, ~p)), ()),
    "no mask at all": (with_weights(lambda s, p: softmax(s)), ()),
    "best key alone": (
        with_weights(lambda s, p: (masked_softmax(s, p) == masked_softmax(s, p).max(-1, keepdims=True)) & p),
        ("hard attention",),
    ),
    "even weights": (
        with_weights(lambda s, p: p / np.maximum(p.sum(-1, keepdims=True), 1)),
        ("equal weights for all attendable keys",),
    ),
    "logistic weights": (with_weights(lambda s, p: p / (1 + np.exp(-s))), ()),
    "a sink": (with_weights(lambda s, p: (e := np.exp(s) * p) / (1 + e.sum(-1, keepdims=True))), ()),
    "dropout of a tenth": (
        with_weights(lambda s, p: masked_softmax(s, p) * 0.9),
        ("The results are multiplied by 0.9.",),
    ),
    "squared weights": (
        with_weights(lambda s, p: (w := masked_softmax(s, p) ** 2) / np.fmax(w.sum(-1, keepdims=True), 1e-38)),
        ("The scores are multiplied by 2.",),
    ),
}
for _name, (_function, _diagnoses) in ATTENTION_MISTAKES.items():
    register(_name, *_diagnoses)(_function)


def in_dtype(narrow: Any, wide: Any) -> Callable[..., Numbers]:
    """Attention computed in a narrow dtype and returned in a wide one."""

    def attention(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None, causal: bool = False) -> Numbers:
        q, k, v = (x.astype(narrow).astype(np.float32) for x in (query, key, value))
        scores = scaled_scores(q, k).astype(narrow).astype(np.float32)
        weights = masked_softmax(scores, allowed(q, k, mask, causal)).astype(narrow).astype(np.float32)
        return (weights @ v).astype(narrow).astype(wide)

    return attention


register("float32 in float64", "float64 computed in float32", dtype="float64")(in_dtype(np.float32, np.float64))
register("float16 in float32", "The errors look like float16 inside float32.")(in_dtype(np.float16, np.float32))
register("bfloat16 in float32", "The errors look like bfloat16 inside float32.")(
    in_dtype(ml_dtypes.bfloat16, np.float32)
)


def with_heads(merge: Callable[[Numbers], Numbers], scale: Callable[[Numbers, int], float]) -> Callable[..., Numbers]:
    """Multi-head attention with another merge of heads or another scale."""

    def attention(
        query: Numbers,
        key: Numbers,
        value: Numbers,
        w_q: Numbers,
        w_k: Numbers,
        w_v: Numbers,
        w_o: Numbers,
        mask: Numbers = None,
        causal: bool = False,
    ) -> Numbers:
        q, k, v = (np.einsum("...nd,hpd->...hnp", x, w) for x, w in ((query, w_q), (key, w_k), (value, w_v)))
        scores = (q @ np.swapaxes(k, -1, -2) * q.dtype.type(scale(q, query.shape[-1]))).astype(q.dtype)
        pairs = allowed(q, k, None if mask is None else mask[..., None, :, :], causal)
        return merge(masked_softmax(scores, pairs) @ v) @ w_o.T

    return attention


def concatenated_heads(x: Numbers) -> Numbers:
    x = np.swapaxes(x, -2, -3)
    return x.reshape(*x.shape[:-2], -1) if x.size else np.zeros((*x.shape[:-2], x.shape[-2] * x.shape[-1]), x.dtype)


def heads_without_transpose(x: Numbers) -> Numbers:
    *batch, h, n, p = x.shape
    return np.ascontiguousarray(x).reshape(*batch, n, h * p)


MULTI_HEAD = "multi_head_attention"
register("heads scaled by the model's width", operation=MULTI_HEAD)(
    with_heads(concatenated_heads, lambda q, d: d**-0.5)
)
register(
    "heads in the wrong order of axes",
    "heads merged without a transpose",
    "merged without exchanging axes",
    operation=MULTI_HEAD,
)(with_heads(heads_without_transpose, lambda q, d: max(q.shape[-1], 1) ** -0.5))
register("heads without scale", "attention without scale", operation=MULTI_HEAD)(
    with_heads(concatenated_heads, lambda q, d: 1.0)
)


def normalized(x: Numbers, p: Numbers, variance: Numbers, eps: float = 1e-5) -> Numbers:
    return ((x - x.mean(-1, keepdims=True)) / np.sqrt(variance + np.float32(eps)) * p.gain + p.bias).astype(x.dtype)


@register("variance over d − 1", "unbiased variance", operation="layer_norm")
def variance_over_one_less(x: Numbers, parameters: Numbers) -> Numbers:
    """Bessel's correction."""
    return normalized(x, parameters, ((x - x.mean(-1, keepdims=True)) ** 2).sum(-1, keepdims=True) / (x.shape[-1] - 1))


@register("ε of 10⁻¹²", operation="layer_norm")
def epsilon_of_bert(x: Numbers, parameters: Numbers) -> Numbers:
    """BERT's ε."""
    return normalized(x, parameters, x.var(-1, keepdims=True), 1e-12)


@register("ε beside the standard deviation", "ε outside of the root", operation="layer_norm")
def epsilon_outside(x: Numbers, parameters: Numbers) -> Numbers:
    """(x − x̄)/(s + ε)."""
    p, s = parameters, x.std(-1, keepdims=True)
    return ((x - x.mean(-1, keepdims=True)) / (s + np.float32(1e-5)) * p.gain + p.bias).astype(x.dtype)


@register("sines before cosines", "halves instead of interleaved", operation="sinusoidal_positional_encoding")
def halves(n: int, width: int) -> Numbers:
    """All sines, then all cosines."""
    angles = np.arange(n)[:, None] * 10000.0 ** (-2 * np.arange((width + 1) // 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)[:, :width].astype(np.float32)


@register("no cosines", operation="sinusoidal_positional_encoding")
def sines(n: int, width: int) -> Numbers:
    """Sines everywhere."""
    angles = np.arange(n)[:, None] * 10000.0 ** (-2 * (np.arange(width) // 2) / width)
    return np.sin(angles).astype(np.float32)


@register("mean over masked keys as well", "padding in the mean", operation="average_pooling")
def mean_over_all_keys(value: Numbers, mask: Numbers = None) -> Numbers:
    """The sum over attendable keys, divided by the number of all keys."""
    attendable = value if mask is None else np.where(mask[..., None], value, 0)
    return (attendable.sum(-2) / max(value.shape[-2], 1)).astype(value.dtype)


def additive(activation: Callable[[Numbers], Numbers]) -> Callable[..., Numbers]:
    """Bahdanau's attention with another activation."""

    def attention(
        query: Numbers,
        key: Numbers,
        value: Numbers,
        w_q: Numbers,
        w_k: Numbers,
        w_v: Numbers,
        mask: Numbers = None,
        causal: bool = False,
    ) -> Numbers:
        hidden = (query @ w_q.T)[..., :, None, :] + (key @ w_k.T)[..., None, :, :]
        return masked_softmax(activation(hidden).astype(query.dtype) @ w_v, allowed(query, key, mask, causal)) @ value

    return attention


ADDITIVE = "additive_attention"
register("a perceptron with ReLU", "additive scores with a ReLU", operation=ADDITIVE)(
    additive(lambda x: np.maximum(x, 0))
)
register("a perceptron with a logistic function", "additive scores with a sigmoid", operation=ADDITIVE)(
    additive(lambda x: 1 / (1 + np.exp(-x)))
)
register("a perceptron without activation", operation=ADDITIVE)(additive(lambda x: x))


@register(
    "kernel without ½", "Gaussian scores without ½", "The scores are multiplied by 2.", operation="nadaraya_watson"
)
def without_half(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None) -> Numbers:
    """exp(−‖q − k‖²)."""
    scores = -((query[..., :, None, :] - key[..., None, :, :]) ** 2).sum(-1)
    return masked_softmax(scores, allowed(query, key, mask, False)) @ value


@register("reset of the product", "gru_reset after", operation="gru_cell")
def reset_of_the_product(x: Numbers, state: Numbers, parameters: Numbers) -> Numbers:
    """The reset gate multiplies the product, as in cuDNN."""
    p = parameters
    r, z = (
        1 / (1 + np.exp(-(x @ a + state @ b + c))) for a, b, c in ((p.w_xr, p.w_hr, p.b_r), (p.w_xz, p.w_hz, p.b_z))
    )
    candidate = np.tanh(x @ p.w_xh + r * (state @ p.w_hh) + p.b_h)
    return (z * state + (1 - z) * candidate).astype(state.dtype)


@register("update gate the other way round", "gru_update candidate", operation="gru_cell")
def gate_reversed(x: Numbers, state: Numbers, parameters: Numbers) -> Numbers:
    """(1 − z) h + z h̃."""
    p = parameters
    r, z = (
        1 / (1 + np.exp(-(x @ a + state @ b + c))) for a, b, c in ((p.w_xr, p.w_hr, p.b_r), (p.w_xz, p.w_hz, p.b_z))
    )
    candidate = np.tanh(x @ p.w_xh + (r * state) @ p.w_hh + p.b_h)
    return ((1 - z) * state + z * candidate).astype(state.dtype)


RIGHT_DIAGNOSES |= {
    "huggingface/transformers#44690": ("indexer without ReLU",),
    "sgl-project/sglang#30698": ("hidden keys selected to make up k",),
    "lablup/mlxcel#619": ("causal flag ignored",),
    "kuleshov-group/bd3lms#23": ("blocks of 128 positions, whatever their size",),
    "fla-org/flash-linear-attention#285": ("initial state of linear attention ignored",),
    # The decay of a whole chunk, applied twice, leaves nothing of the state.
    "vllm-project/vllm-ascend#11598": ("state lost between chunks",),
    "mratsim/tattletale#80": ("initial state of the convolution ignored",),
    "state-spaces/mamba#1027": ("outputs of the convolution for its state",),
    "ollama/ollama#14912": ("oldest position in the first slot",),
    "TransformerLensOrg/TransformerLens#1609": ("positions from 0 wherever the tokens begin",),
    "allenai/OLMo#281": ("ε outside of the root mean square",),
    "NeuraLegion/shainet#176": ("rms_weight as-given",),
    "huggingface/candle#900": ("gelu_form tanh",),
    "kyutai-labs/pocket-tts#278": ("gelu_form erf",),
    "pytorch/executorch#22323": ("GELU's tanh of exponentials that overflow",),
    "pytorch/pytorch#186278": ("GELU's tanh of exponentials that overflow",),
    "tenstorrent/tt-metal#5578": ("probability below −3 rounded to 0",),
    "ml-explore/mlx-lm#767": ("gate and up-projection exchanged",),
    "google-research/timesfm#493": ("up-projection left out",),
    "vllm-project/vllm#42578": ("1 added to the up-projection",),
    "Nijikadesu/breakdown-minimind#3": ("silu of the gated product",),
    "sgl-project/sglang#34446": ("all axes at the positions of the first",),
    "lucidrains/x-transformers#103": ("positions of a bias counted from the first key",),
    "huggingface/candle#727": ("half of the buckets for single distances, of both directions",),
    "PaddlePaddle/FastDeploy#3514": ("siblings attendable",),
    "dmlc/gluon-nlp#1470": ("distances from keys to queries",),
    "jmaczan/tiny-vllm#1": ("frequencies not scaled",),
    "NVIDIA-NeMo/Automodel#2825": ("rotary_ramp rotations",),
    "vllm-project/vllm#27722": ("rotary_ramp whole-indices",),
    "keras-team/keras-hub#2981": ("rotary_ramp indices",),
    "pytorch/torchtitan#3787": ("shares of both frequencies exchanged",),
    "rasbt/LLMs-from-scratch#940": ("all frequencies divided by the factor",),
    "pie-project/pie#603": ("frequencies of the first of two pairs",),
    "huggingface/text-generation-inference#1036": ("output bias added twice",),
    "sbryngelson/ANEForge#253": ("biases of projections left out",),
    "NVIDIA/Megatron-LM#535": ("rotary positions in float16",),
    "huggingface/candle#3520": ("rotary positions in bfloat16",),
    "vllm-project/vllm#54359": ("rows of a page read modulo 128",),
    "jax-ml/jax#39576": ("window end 0 taken for None", "right end of a window forgotten"),
    "microsoft/onnxruntime#28463": ("variance as the mean of squares less the squared mean",),
    "tracel-ai/burn#5607": ("variance as the mean of squares less the squared mean",),
    "tenstorrent/tt-metal#33304": ("scale accepted and dropped",),
    "flashinfer-ai/flashinfer#3125": ("batch elements counted modulo 65,536",),
    "pytorch/pytorch#177985": ("batch elements counted modulo 65,536",),
    "ml-explore/mlx#2836": ("causal_alignment bottom-right",),
    "AI-Hypercomputer/maxtext#878": ("mask ignored where causal",),
    "huggingface/transformers#41966": ("causal ignored where masked",),
    "flashinfer-ai/flashinfer#4270": ("arrays reversed if their strides change", "strides ignored"),
    "flagos-ai/FlagGems#5896": ("values reversed if their strides are not those of the keys", "strides ignored"),
    "pytorch/pytorch#187506": ("strides ignored",),
    "pytorch/pytorch#131750": ("offset of a view ignored",),
    "onnx/onnx#8068": (),
    "pytorch/pytorch#101967": ("NaN under the mask reaches the result",),
    "Dao-AILab/flash-attention#1745": ("NaN under the mask reaches the result",),
    "Dao-AILab/flash-attention#1973": ("no gradient for the sinks",),
    "pytorch/pytorch#141128": ("NaN in the result turned into 0", "NaN weights are 0"),
    "BobMcDear/attorch#14": ("every head is head 0",),
    "pytorch/pytorch#95137": ("every layer starts from the first state",),
    "tensorflow/tensorflow#49738": ("states at padding not 0",),
    "vllm-project/vllm#54620": ("frequencies rounded to float16",),
    "ml-explore/mlx#2395": ("fully_masked uniform", "fully masked rows are uniform"),
    "pytorch/pytorch#103749": ("fully_masked nan", "fully masked rows are NaN"),
    "pytorch/pytorch#41508": ("NaN gradients for a fully masked row",),
    "FluxML/NNlib.jl#43": ("running maximum starts at 0", "subtracted maximum at least 0"),
    "deeplearning4j/deeplearning4j#6039": ("no maximum subtracted",),
    "flashinfer-ai/flashinfer#4979": ("scales of quantised operands left out",),
    "sgl-project/sglang#20705": ("scales of quantised operands left out",),
    "sgl-project/sglang#18904": ("scales of quantised operands left out",),
    "vllm-project/vllm#42080": ("scales of quantised operands left out",),
    "vllm-project/vllm#53754": ("scales applied twice",),
    "facebookresearch/fairseq#3365": ("attention weights averaged over heads",),
    "Dao-AILab/flash-attention#902": ("attention weights relative to the largest",),
    "philipturner/metal-flash-attention#8": ("scores stored in float16, not declared",),
}
"""Right diagnoses of those rediscovered defects that can have one."""
