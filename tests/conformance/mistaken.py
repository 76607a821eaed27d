"""Implementations as somebody would write them by himself, each with a mistake: none has anything of a mutant in it.

``RIGHT`` says which diagnosis of each is right, and of the rediscovered defects: the names of known defects, or the
beginning of a sentence. Of what is not in it any diagnosis is wrong.
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
            given = OPERATIONS[operation].signature.bind(*arguments, **options).arguments
            bind(OPERATIONS[operation], given)
            with np.errstate(all="ignore"):
                return np.array(function(**given))

        setattr(self, operation, call)


MISTAKEN: dict[str, Mistaken] = {}
RIGHT: dict[str, tuple[str, ...]] = {}
"""The right diagnoses by name: names of known defects, or how a sentence begins."""


def mistaken(
    name: str, *right: str, of: str = "scaled_dot_product_attention", dtype: str = "float32"
) -> Callable[[Callable[..., Numbers]], Callable[..., Numbers]]:
    """Enter an implementation, with its right diagnoses."""

    def entered(function: Callable[..., Numbers]) -> Callable[..., Numbers]:
        MISTAKEN[name] = Mistaken(name, of, function, dtype)
        RIGHT[name] = right
        return function

    return entered


def allowed(q: Numbers, k: Numbers, mask: Numbers, causal: bool) -> Numbers:
    pairs = np.ones((q.shape[-2], k.shape[-2]), bool)
    pairs = np.tril(pairs) if causal else pairs
    return pairs if mask is None else pairs & mask


def weigh(scores: Numbers, pairs: Numbers) -> Numbers:
    """A softmax over the allowed pairs that leaves rows without any at 0."""
    hidden = np.where(pairs, scores, scores.dtype.type(-np.inf))
    top = hidden.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(hidden - np.where(np.isfinite(top), top, 0))
    s = e.sum(-1, keepdims=True)
    return (e / np.where(s > 0, s, 1)).astype(scores.dtype)


def scored(q: Numbers, k: Numbers) -> Numbers:
    return q @ np.swapaxes(k, -1, -2) / q.dtype.type(q.shape[-1]) ** q.dtype.type(0.5)


def of_scores(change: Callable[[Numbers, Numbers, Numbers], Numbers]) -> Callable[..., Numbers]:
    """Attention with other scores."""

    def attention(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None, causal: bool = False) -> Numbers:
        scores = change(scored(query, key), query, key).astype(query.dtype)
        return weigh(scores, allowed(query, key, mask, causal)) @ value

    return attention


def of_pairs(change: Callable[[int, int], Numbers], *, always: bool = False) -> Callable[..., Numbers]:
    """Attention with another causal mask."""

    def attention(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None, causal: bool = False) -> Numbers:
        pairs = allowed(query, key, mask, False)
        if causal or always:
            pairs = pairs & change(*pairs.shape[-2:])
        return weigh(scored(query, key), pairs) @ value

    return attention


def of_weights(change: Callable[[Numbers, Numbers], Numbers]) -> Callable[..., Numbers]:
    """Attention with other weights, of scores and allowed pairs."""

    def attention(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None, causal: bool = False) -> Numbers:
        scores = scored(query, key)
        pairs = np.broadcast_to(allowed(query, key, mask, causal), scores.shape)
        return change(scores, pairs).astype(query.dtype) @ value

    return attention


def plain(scores: Numbers) -> Numbers:
    """A softmax that knows of no mask."""
    e = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def d(x: Numbers) -> Numbers:
    return x.dtype.type(x.shape[-1])


TABLE: Mapping[str, tuple[Callable[..., Numbers], tuple[str, ...]]] = {
    "divided by d": (of_scores(lambda s, q, k: s / d(q) ** 0.5), ("attention scaled by d", "scores divided by d")),
    "no scale": (of_scores(lambda s, q, k: s * d(q) ** 0.5), ("attention without scale",)),
    "scores doubled": (of_scores(lambda s, q, k: 2 * s), ("The scores are multiplied by 2.",)),
    "scores in powers of 2": (
        of_scores(lambda s, q, k: s * 0.693147),
        ("exp2 without log₂e", "The scores are multiplied by 0.693147."),
    ),
    "scores a thousandth too large": (
        of_scores(lambda s, q, k: s * 1.001),
        ("scores 0.1 % off", "The scores are multiplied by 1.001."),
    ),
    "scaled by keys": (of_scores(lambda s, q, k: s / max(k.shape[-2], 1) ** 0.5), ()),
    "capped at 50": (of_scores(lambda s, q, k: 50 * np.tanh(s / 50)), ()),
    "capped at 5": (of_scores(lambda s, q, k: 5 * np.tanh(s / 5)), ()),
    "cosines": (
        of_scores(lambda s, q, k: s / np.maximum(np.linalg.norm(q, axis=-1)[..., None], 1e-6)),
        (),
    ),
    "ALiBi with slope ½": (
        of_scores(lambda s, q, k: s - abs(np.arange(s.shape[-2])[:, None] - np.arange(s.shape[-1])) / 2),
        (),
    ),
    "ALiBi with slope ⅛": (
        of_scores(lambda s, q, k: s - abs(np.arange(s.shape[-2])[:, None] - np.arange(s.shape[-1])) / 8),
        ("a bias for distance left on",),
    ),
    "absolute values of scores": (of_scores(lambda s, q, k: abs(s)), ("absolute scores",)),
    "causal without the diagonal": (
        of_pairs(lambda n, m: np.tri(n, m, -1, bool)),
        ("causal leaves out the position itself",),
    ),
    "causal with the next key": (of_pairs(lambda n, m: np.tri(n, m, 1, bool)), ("causal sees one key too many",)),
    "causal with two more keys": (of_pairs(lambda n, m: np.tri(n, m, 2, bool)), ()),
    "future alone": (of_pairs(lambda n, m: ~np.tri(n, m, -1, dtype=bool)), ("causal sees only the future",)),
    "causal from the end": (of_pairs(lambda n, m: np.tri(n, m, m - n, bool)), ("causal_alignment bottom-right",)),
    "causal always": (of_pairs(lambda n, m: np.tri(n, m, 0, bool), always=True), ("softmax always causal",)),
    "causal never": (of_pairs(lambda n, m: np.ones((n, m), bool)), ("causal accepted and ignored",)),
    "window of 8": (
        of_pairs(lambda n, m: abs(np.arange(n)[:, None] - np.arange(m)) <= 8, always=True),
        (),
    ),
    "softmax along the wrong axis": (
        of_weights(lambda s, p: np.swapaxes(weigh(np.swapaxes(s, -1, -2), np.swapaxes(p, -1, -2)), -1, -2)),
        ("softmax over the queries",),
    ),
    "exponentials as they are": (
        of_weights(lambda s, p: (e := np.exp(np.where(p, s, -np.inf))) / np.fmax(e.sum(-1, keepdims=True), 1e-38)),
        ("no maximum subtracted",),
    ),
    "filled with −10³⁰": (of_weights(lambda s, p: plain(np.where(p, s, np.float32(-1e30)))), ("fully_masked uniform",)),
    "rows without keys NaN": (
        of_weights(lambda s, p: plain(np.where(p, s, -np.inf))),
        ("fully_masked nan", "no_keys nan"),
    ),
    "added −10⁴": (
        of_weights(lambda s, p: plain(s + np.where(p, 0, np.float32(-1e4)))),
        ("−10⁴ added to masked scores", "−10⁴ added to masked scores in float16"),
    ),
    "mask added": (of_weights(lambda s, p: plain(s + p)), ("mask added as 0 and 1",)),
    "mask multiplied": (
        of_weights(lambda s, p: plain(s * p)),
        ("masked scores are 0", "masked scores filled with −10⁻⁹"),
    ),
    "mask after the softmax": (of_weights(lambda s, p: plain(s) * p), ("masked after the softmax",)),
    "mask of the other polarity": (of_weights(lambda s, p: weigh(s, ~p)), ()),
    "no mask at all": (of_weights(lambda s, p: plain(s)), ()),
    "best key alone": (
        of_weights(lambda s, p: (weigh(s, p) == weigh(s, p).max(-1, keepdims=True)) & p),
        ("hard attention",),
    ),
    "even weights": (
        of_weights(lambda s, p: p / np.maximum(p.sum(-1, keepdims=True), 1)),
        ("weights from positions alone",),
    ),
    "logistic weights": (of_weights(lambda s, p: p / (1 + np.exp(-s))), ()),
    "a sink": (of_weights(lambda s, p: (e := np.exp(s) * p) / (1 + e.sum(-1, keepdims=True))), ()),
    "dropout of a tenth": (of_weights(lambda s, p: weigh(s, p) * 0.9), ("The results are multiplied by 0.9.",)),
    "squared weights": (
        of_weights(lambda s, p: (w := weigh(s, p) ** 2) / np.fmax(w.sum(-1, keepdims=True), 1e-38)),
        ("The scores are multiplied by 2.",),
    ),
}
for _name, (_function, _right) in TABLE.items():
    mistaken(_name, *_right)(_function)


def inside(narrow: Any, wide: Any) -> Callable[..., Numbers]:
    """Attention in one dtype, returned in another."""

    def attention(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None, causal: bool = False) -> Numbers:
        q, k, v = (x.astype(narrow).astype(np.float32) for x in (query, key, value))
        scores = scored(q, k).astype(narrow).astype(np.float32)
        weights = weigh(scores, allowed(q, k, mask, causal)).astype(narrow).astype(np.float32)
        return (weights @ v).astype(narrow).astype(wide)

    return attention


mistaken("float32 in float64", "float64 computed in float32", dtype="float64")(inside(np.float32, np.float64))
mistaken("float16 in float32", "It looks like float16 inside float32.")(inside(np.float16, np.float32))
mistaken("bfloat16 in float32", "It looks like bfloat16 inside float32.")(inside(ml_dtypes.bfloat16, np.float32))


def heads_of(merge: Callable[[Numbers], Numbers], scale: Callable[[Numbers, int], float]) -> Callable[..., Numbers]:
    """Attention with several heads."""

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
        return merge(weigh(scores, pairs) @ v) @ w_o.T

    return attention


def side_by_side(x: Numbers) -> Numbers:
    x = np.swapaxes(x, -2, -3)
    return x.reshape(*x.shape[:-2], -1) if x.size else np.zeros((*x.shape[:-2], x.shape[-2] * x.shape[-1]), x.dtype)


def in_memory(x: Numbers) -> Numbers:
    *batch, h, n, p = x.shape
    return np.ascontiguousarray(x).reshape(*batch, n, h * p)


OF_HEADS = "multi_head_attention"
mistaken("heads scaled by the model's width", of=OF_HEADS)(heads_of(side_by_side, lambda q, d: d**-0.5))
mistaken(
    "heads in the wrong order of axes",
    "heads merged without a transpose",
    "merged without exchanging axes",
    of=OF_HEADS,
)(heads_of(in_memory, lambda q, d: max(q.shape[-1], 1) ** -0.5))
mistaken("heads without scale", "attention without scale", of=OF_HEADS)(heads_of(side_by_side, lambda q, d: 1.0))


def normalized(x: Numbers, p: Numbers, variance: Numbers, eps: float = 1e-5) -> Numbers:
    return ((x - x.mean(-1, keepdims=True)) / np.sqrt(variance + np.float32(eps)) * p.gain + p.bias).astype(x.dtype)


@mistaken("variance over d − 1", "unbiased variance", of="layer_norm")
def over_one_less(x: Numbers, parameters: Numbers) -> Numbers:
    """Bessel's correction."""
    return normalized(x, parameters, ((x - x.mean(-1, keepdims=True)) ** 2).sum(-1, keepdims=True) / (x.shape[-1] - 1))


@mistaken("ε of 10⁻¹²", of="layer_norm")
def tiny_epsilon(x: Numbers, parameters: Numbers) -> Numbers:
    """BERT's ε."""
    return normalized(x, parameters, x.var(-1, keepdims=True), 1e-12)


@mistaken("ε beside the standard deviation", of="layer_norm")
def epsilon_outside(x: Numbers, parameters: Numbers) -> Numbers:
    """(x − x̄)/(s + ε)."""
    p, s = parameters, x.std(-1, keepdims=True)
    return ((x - x.mean(-1, keepdims=True)) / (s + np.float32(1e-5)) * p.gain + p.bias).astype(x.dtype)


@mistaken("sines before cosines", "halves instead of interleaved", of="sinusoidal_positional_encoding")
def halves(n: int, d: int) -> Numbers:
    """All sines, then all cosines."""
    angles = np.arange(n)[:, None] * 10000.0 ** (-2 * np.arange((d + 1) // 2) / d)
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)[:, :d].astype(np.float32)


@mistaken("no cosines", of="sinusoidal_positional_encoding")
def sines(n: int, d: int) -> Numbers:
    """Sines everywhere."""
    angles = np.arange(n)[:, None] * 10000.0 ** (-2 * (np.arange(d) // 2) / d)
    return np.sin(angles).astype(np.float32)


@mistaken("mean over masked keys as well", "padding in the mean", of="average_pooling")
def over_all(value: Numbers, mask: Numbers = None) -> Numbers:
    """A sum of what is attendable, over all."""
    kept = value if mask is None else np.where(mask[..., None], value, 0)
    return (kept.sum(-2) / max(value.shape[-2], 1)).astype(value.dtype)


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
        return weigh(activation(hidden).astype(query.dtype) @ w_v, allowed(query, key, mask, causal)) @ value

    return attention


OF_SUMS = "additive_attention"
mistaken("a perceptron with ReLU", "additive scores with a ReLU", of=OF_SUMS)(additive(lambda x: np.maximum(x, 0)))
mistaken("a perceptron with a logistic function", "additive scores with a sigmoid", of=OF_SUMS)(
    additive(lambda x: 1 / (1 + np.exp(-x)))
)
mistaken("a perceptron without activation", of=OF_SUMS)(additive(lambda x: x))


@mistaken("kernel without ½", "Gaussian scores without ½", "The scores are multiplied by 2.", of="nadaraya_watson")
def without_half(query: Numbers, key: Numbers, value: Numbers, mask: Numbers = None) -> Numbers:
    """exp(−‖q − k‖²)."""
    scores = -((query[..., :, None, :] - key[..., None, :, :]) ** 2).sum(-1)
    return weigh(scores, allowed(query, key, mask, False)) @ value


@mistaken("reset of the product", "gru_reset after", of="gru_cell")
def reset_of_the_product(x: Numbers, state: Numbers, parameters: Numbers) -> Numbers:
    """As cuDNN has it."""
    p = parameters
    r, z = (
        1 / (1 + np.exp(-(x @ a + state @ b + c))) for a, b, c in ((p.w_xr, p.w_hr, p.b_r), (p.w_xz, p.w_hz, p.b_z))
    )
    candidate = np.tanh(x @ p.w_xh + r * (state @ p.w_hh) + p.b_h)
    return (z * state + (1 - z) * candidate).astype(state.dtype)


@mistaken("update gate the other way round", "update gate inverted", of="gru_cell")
def gate_reversed(x: Numbers, state: Numbers, parameters: Numbers) -> Numbers:
    """(1 − z) h + z h̃."""
    p = parameters
    r, z = (
        1 / (1 + np.exp(-(x @ a + state @ b + c))) for a, b, c in ((p.w_xr, p.w_hr, p.b_r), (p.w_xz, p.w_hz, p.b_z))
    )
    candidate = np.tanh(x @ p.w_xh + (r * state) @ p.w_hh + p.b_h)
    return ((1 - z) * state + z * candidate).astype(state.dtype)


RIGHT |= {
    "NVIDIA/Megatron-LM#535": ("rotary positions in float16",),
    "huggingface/candle#3520": ("rotary positions in bfloat16",),
    "vllm-project/vllm#54359": ("rows of a page in seven bits",),
    "jax-ml/jax#39576": ("an end of a window that is 0 counts as none", "right end of a window forgotten"),
    "microsoft/onnxruntime#28463": ("variance as the mean of squares less the squared mean",),
    "tracel-ai/burn#5607": ("variance as the mean of squares less the squared mean",),
    "tenstorrent/tt-metal#33304": ("scale accepted and dropped",),
    "flashinfer-ai/flashinfer#3125": ("elements of a batch counted in 16 bits",),
    "pytorch/pytorch#177985": ("elements of a batch counted in 16 bits",),
    "ml-explore/mlx#2836": ("causal_alignment bottom-right",),
    "AI-Hypercomputer/maxtext#878": ("mask ignored where causal",),
    "huggingface/transformers#41966": ("causal ignored where masked",),
    "flashinfer-ai/flashinfer#4270": ("strides of the first call", "strides ignored"),
    "flagos-ai/FlagGems#5896": ("values by the strides of the keys", "strides ignored"),
    "pytorch/pytorch#187506": ("strides ignored",),
    "pytorch/pytorch#131750": ("offset into storage forgotten",),
    "onnx/onnx#8068": (),
    "pytorch/pytorch#101967": ("NaN under the mask leaks",),
    "Dao-AILab/flash-attention#1745": ("NaN under the mask leaks",),
    "pytorch/pytorch#141128": ("NaN turned into numbers", "weights that are not finite are 0"),
    "BobMcDear/attorch#14": ("every head is head 0",),
    "pytorch/pytorch#95137": ("every layer starts from the first state",),
    "tensorflow/tensorflow#49738": ("states behind the length not 0",),
    "vllm-project/vllm#54620": ("angles in float16",),
    "ml-explore/mlx#2395": ("fully_masked uniform", "fully masked rows are uniform"),
    "pytorch/pytorch#103749": ("fully_masked nan", "fully masked rows are NaN"),
    "pytorch/pytorch#41508": ("NaN gradients for a fully masked row",),
    "FluxML/NNlib.jl#43": ("running maximum starts at 0", "maximum of the scores not below 0"),
    "deeplearning4j/deeplearning4j#6039": ("no maximum subtracted",),
    "philipturner/metal-flash-attention#8": ("scores stored in float16, not declared",),
}
"""Those of the rediscovered defects, as far as any diagnosis of them can be right."""
