"""Rediscovered defects of heads, layers, recurrent networks, positions and beams.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. ``breaks`` holds one law
that must detect the defect alone; others may detect it, too. ``vjp`` is the backend's call for gradients.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.contract.tree import flatten
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.positional import SinusoidalPositionalEncoding
from attnspec.spec.recurrent import LSTM, StackedLSTM
from attnspec.spec.seq2seq import BeamDecode
from attnspec.spec.transformer import EncoderStack, LayerNorm


@rediscovered(
    "BobMcDear/attorch#14",
    "MultiheadAttention resolves every head to head 0: the kernels derive the head offset by dividing strides, "
    "which is wrong for the layout the layer passes them",
    framework="attorch",
    operation=MultiHeadAttention,
    breaks=("pooling.unbiased-gain",),
    replaces="attend_heads",
)
def head_zero(correct: Formulas, query: Numbers, key: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Every head reads the first one's queries, keys and values."""
    q, k, v = (np.repeat(x[..., :1, :, :], x.shape[-3], axis=-3) for x in (query, key, value))
    return Formulas.attend_heads(correct, q, k, v, mask, causal)


@rediscovered(
    "pytorch/pytorch#97111",
    "TransformerEncoder truncates output when some token positions are masked by `src_key_padding_mask` across batch",
    framework="PyTorch (nn.TransformerEncoder)",
    operation=EncoderStack,
    breaks=("operation.batch-invariance",),
    replaces="encoder_stack",
)
def truncated(correct: Formulas, x: Numbers, layers: Any, *, mask: Numbers = None, norm: str = "post") -> Numbers:
    """The result lacks the last positions if they are masked in the whole batch."""
    result = Formulas.encoder_stack(correct, x, layers, mask=mask, norm=norm)
    if mask is None:
        return result
    positions_in_use = np.flatnonzero(np.any(mask.reshape(-1, mask.shape[-1]), axis=0))
    return result[..., : positions_in_use[-1] + 1 if positions_in_use.size else 0, :]


@rediscovered(
    "pytorch/pytorch#80306",
    "LSTM Output Transposed w/MPS on 1.13 nightly build",
    framework="PyTorch (MPS)",
    operation=LSTM,
    breaks=("operation.oracle",),
    replaces="lstm",
)
def time_before_batch(
    correct: Formulas, x: Numbers, state: Any, parameters: Any, *, lengths: Numbers = None
) -> tuple[Numbers, Any]:
    """The axes of batch and time are exchanged in the states."""
    states, final = Formulas.lstm(correct, x, state, parameters, lengths=lengths)
    return (np.swapaxes(states, -3, -2) if states.ndim > 2 else states), final


@rediscovered(
    "pytorch/pytorch#95137",
    "[MPS] Fix LSTM backward and forward pass",
    framework="PyTorch (MPS)",
    operation=StackedLSTM,
    breaks=("operation.oracle",),
    replaces="initial_row",
)
def state_of_the_first_layer(correct: Formulas, layer: int) -> int:
    """Every layer starts from the initial state of the first; tests that start from zeros do not see it."""
    return 0  # the row of the initial states, not `layer`


@rediscovered(
    "pytorch/pytorch#96416",
    "Loss.backward() error when using MPS on M1",
    framework="PyTorch (MPS)",
    operation=LSTM,
    breaks=("training.linear-in-cotangent",),
    replaces="vjp",
)
def needs_all_cotangents(
    correct: Library, operation: str, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The backward pass raises if only the final state has a cotangent."""
    if next(iter(flatten(cotangent).values())) is None:
        raise RuntimeError("no gradient of the states")
    return Library.vjp(correct, operation, arguments, cotangent)


@rediscovered(
    "tensorflow/tensorflow#49738",
    "No description about forcing zero output for mask in Bidirectional",
    framework="TensorFlow",
    operation=LSTM,
    breaks=("masking.masked-gets-no-gradient",),
    replaces="zero_at_padding",
)
def last_state_repeated(correct: Formulas, hidden: Numbers, inside: Numbers) -> Numbers:
    """Padded steps repeat the last state in place of 0, and pass it their cotangents."""
    return hidden


@rediscovered(
    "tensorflow/tensorflow#36139",
    "Inconsistent crashing behavior with CuDNN, tensorflow RNNs, and padding",
    framework="TensorFlow (cuDNN)",
    operation=LSTM,
    breaks=("recurrent.resumes-from-state",),
    replaces="check_lengths",
)
def empty_sentence_refused(correct: Formulas, lengths: Numbers, m: int) -> None:
    """A sequence of length 0 raises if all others have no padding."""
    Formulas.check_lengths(correct, lengths, m)
    if np.any(lengths == 0) and np.all((lengths == 0) | (lengths == m)):
        raise RuntimeError("CUDNN_STATUS_BAD_PARAM")


@rediscovered(
    "tracel-ai/burn#5607",
    "burn-flex: fused f32 layer_norm loses precision for rows with large mean (E[x^2]-E[x]^2)",
    framework="Burn",
    operation=LayerNorm,
    breaks=("transformer.layer-norm-ignores-shift",),
    replaces="layer_norm",
    profile="full",
)
def cancelled_variance(correct: Formulas, x: Numbers, parameters: Any, *, epsilon: float = 1e-5) -> Numbers:
    """The variance is computed as E[x²] − E[x]², which cancels for a large mean."""
    mean = np.mean(x, axis=-1, keepdims=True)
    variance = np.maximum(np.mean(x * x, axis=-1, keepdims=True) - mean * mean, x.dtype.type(0))
    scaled = (x - mean) / np.sqrt(variance + x.dtype.type(correct.epsilon(epsilon)))
    return parameters.gain * scaled + parameters.bias


@rediscovered(
    "vllm-project/vllm#54620",
    "[Bugfix] Fix fp16 precision loss in FunASR position encoding",
    framework="vLLM (FunASR)",
    operation=SinusoidalPositionalEncoding,
    breaks=("operation.oracle",),
    replaces="frequencies",
)
def frequencies_in_half(correct: Formulas, d: int) -> Numbers:
    """Frequencies are rounded to float16."""
    return rounded(Formulas.frequencies(correct, d), "float16")


@rediscovered(
    "gc-os-ai/pyaptamer#607",
    "[BUG]Positional Encoding Shape Mismatch on Odd Dimensions",
    framework="pyaptamer",
    operation=SinusoidalPositionalEncoding,
    breaks=("semantics.odd_encoding",),
    replaces="sinusoidal_positional_encoding",
)
def odd_width_refused(correct: Formulas, n: int, d: int) -> Numbers:
    """An odd number of columns raises, undeclared: there is one cosine more than columns for it."""
    if d % 2:
        raise ValueError(f"could not broadcast {(n, (d + 1) // 2)} to {(n, d // 2)}")
    return Formulas.sinusoidal_positional_encoding(correct, n, d)


@rediscovered(
    "Kyubyong/transformer#81",
    "fix position encoding bug",
    framework="Kyubyong/transformer",
    operation=SinusoidalPositionalEncoding,
    breaks=("operation.oracle",),
    replaces="frequencies",
)
def integer_division(correct: Formulas, d: int) -> Numbers:
    """The exponent of 10000 is an integer quotient, thus 0: all frequencies are 1."""
    return np.ones((d + 1) // 2)


@rediscovered(
    "OpenNMT/OpenNMT-tf#456",
    "fix beam_search length penalty bug",
    framework="OpenNMT-tf",
    operation=BeamDecode,
    breaks=("operation.oracle",),
    replaces="lengths_after",
)
def lengths_of_the_step(correct: Formulas, lengths: Numbers, ended: Numbers, step: int) -> Numbers:
    """The length penalty counts the steps of the search for every hypothesis, ended ones too."""
    return np.full_like(lengths, step)


@rediscovered(
    "vllm-project/vllm#2606",
    "Beam Search Length Normalization Wrong",
    framework="vLLM",
    operation=BeamDecode,
    breaks=("seq2seq.score-sums-log-probabilities",),
    replaces="penalty",
)
def lengths_with_the_prompt(correct: Formulas, lengths: Numbers, exponent: float) -> Numbers:
    """The length penalty counts the token before the sentence, too."""
    return Formulas.penalty(correct, lengths + 1, exponent)
