"""Rediscovered defects of GELU and of gated feed-forward networks.

Each function is a step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.transformer import GELU, GatedFeedForward


@rediscovered(
    "huggingface/candle#900",
    "Add an erf based gelu op",
    framework="candle",
    operation=GELU,
    breaks=("semantics.gelu_form",),
    replaces="probability_by_erf",
)
def tanh_for_the_default_of_pytorch(correct: Formulas, x: Numbers) -> Numbers:
    """GELU is the approximation with tanh, where PyTorch's models have erf."""
    return correct.probability_by_tanh(x)


@rediscovered(
    "kyutai-labs/pocket-tts#278",
    "Use tanh GELU approximation in the backbone FFN",
    framework="Pocket TTS",
    operation=GELU,
    breaks=("semantics.gelu_form",),
    replaces="normal_probability",
    declares={"gelu_form": "tanh"},
)
def erf_where_tanh_was_trained(correct: Formulas, x: Numbers) -> Numbers:
    """GELU is computed by erf for weights that were trained with tanh."""
    return correct.probability_by_erf(x)


@rediscovered(
    "pytorch/executorch#22323",
    "[ET-VK] gelu shader returns NaN for inputs below about -13 (unclamped tanh argument overflows fp32)",
    framework="ExecuTorch",
    operation=GELU,
    breaks=("transformer.gelu-tails",),
    replaces="normal_probability",
    declares={"gelu_form": "tanh"},
)
def tanh_of_two_exponentials(correct: Formulas, x: Numbers) -> Numbers:
    """tanh is (e^z − e^−z)/(e^z + e^−z): NaN where an exponential overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        z = correct.tanh_argument(x)
        growing, falling = np.exp(z), np.exp(-z)
        return x.dtype.type(0.5) * (1 + (growing - falling) / (growing + falling))


@rediscovered(
    "pytorch/pytorch#186278",
    "[MPS] GeLU leads to NaNs on certain BF16 inputs",
    framework="PyTorch",
    operation=GELU,
    breaks=("transformer.gelu-tails",),
    dtype="bfloat16",
    replaces="normal_probability",
    declares={"gelu_form": "tanh"},
)
def nan_from_eleven_on(correct: Formulas, x: Numbers) -> Numbers:
    """In bfloat16, features from 10.5 on give NaN."""
    return np.where(x >= 10.5, x.dtype.type(np.nan), correct.probability_by_tanh(x))


@rediscovered(
    "tenstorrent/tt-metal#5578",
    "GELU produces incorrect results for negative ranges (goes to 0 faster than pytorch gelu)",
    framework="tt-metal",
    operation=GELU,
    breaks=("operation.oracle",),
    dtype="bfloat16",
    profile="full",
    replaces="normal_probability",
)
def zero_below_minus_two_and_a_half(correct: Formulas, x: Numbers) -> Numbers:
    """Features below −2.5 give 0."""
    return np.where(x < -2.5, x.dtype.type(0), Formulas.normal_probability(correct, x))


@rediscovered(
    "pytorch/pytorch#187806",
    "F.gelu(approximate='none'): 1+erf catastrophic cancellation — up to 57% relative error in fp32 around x≈−5, zeros "
    "the negative tail",
    framework="PyTorch",
    operation=GELU,
    breaks=(),
    needs="budgets relative to each result: those of GELU count the roundings of 1 + erf",
    replaces="probability_by_erf",
)
def digits_lost_in_a_sum(correct: Formulas, x: Numbers) -> Numbers:
    """The probability is (1 + erf(x/√2))/2, which has few right digits where it is small."""
    return Formulas.probability_by_erf(correct, x)


@rediscovered(
    "ml-explore/mlx-lm#767",
    "Fix swiglu parameter order",
    framework="MLX LM",
    operation=GatedFeedForward,
    breaks=("transformer.up-projection-is-linear",),
    replaces="gated_units",
)
def silu_of_the_value(correct: Formulas, gate: Numbers, up: Numbers) -> Numbers:
    """silu is applied to the value in place of the gate."""
    return correct.silu(up) * gate


@rediscovered(
    "google-research/timesfm#493",
    "SwiGLU incorrectly mapped to SiLU",
    framework="TimesFM",
    operation=GatedFeedForward,
    breaks=("transformer.up-projection-is-linear",),
    replaces="gated_units",
)
def silu_without_a_value(correct: Formulas, gate: Numbers, up: Numbers) -> Numbers:
    """Hidden units are silu of one projection; there is no second one."""
    return correct.silu(gate) + up * up.dtype.type(0)


@rediscovered(
    "vllm-project/vllm#42578",
    "[Kernel][ROCm] Add MI300 fused MXFP4 SwiGLU stage-1 fast path for gpt…",
    framework="vLLM",
    operation=GatedFeedForward,
    breaks=("transformer.up-projection-is-linear",),
    replaces="gated_units",
)
def value_plus_one(correct: Formulas, gate: Numbers, up: Numbers) -> Numbers:
    """A fused multiply-add adds the gate once more: silu(gate) ⊙ (value + 1)."""
    return correct.silu(gate) * up + correct.silu(gate)


@rediscovered(
    "Nijikadesu/breakdown-minimind#3",
    "SwiGLU的代码问题",
    framework="breakdown-minimind",
    operation=GatedFeedForward,
    breaks=("transformer.up-projection-is-linear",),
    replaces="gated_units",
)
def silu_of_both_projections(correct: Formulas, gate: Numbers, up: Numbers) -> Numbers:
    """silu is applied to the product of gate and value."""
    return correct.silu(gate * up)
