"""Rediscovered defects of rotary embeddings: partial, with several axes, with scaled frequencies.

Each function is a step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.kernels import AxialRotaryEmbedding, RotaryFrequencies

# Several axes and parts of the features ------------------------------------------------------------------------------


@rediscovered(
    "sgl-project/sglang#34446",
    "[rotary] Fix the fused Qwen3.5 RoPE kernel discarding mrope height and width",
    framework="SGLang (Qwen3.5)",
    operation=AxialRotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="axial_angles",
)
def one_position_per_token(correct: Formulas, positions: Numbers, frequencies: Numbers) -> Numbers:
    """All axes are at the position of the first."""
    return Formulas.axial_angles(correct, np.broadcast_to(positions[..., :1], positions.shape), frequencies)


@rediscovered(
    "vllm-project/vllm-gaudi#1437",
    "Mrope accuracy fix for qwen",
    framework="vLLM (Gaudi)",
    operation=AxialRotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="axial_angles",
)
def sections_for_interleaved_axes(correct: Formulas, positions: Numbers, frequencies: Numbers) -> Numbers:
    """Alternating pairs of several axes are taken as one section for each axis."""
    axes, pairs = frequencies.shape
    order = np.argsort(np.arange(pairs) % axes, kind="stable")
    angles = Formulas.axial_angles(correct, positions, frequencies)
    return angles[..., order]


@rediscovered(
    "xLLM-AI/xllm#746",
    "bugfix: fix mrope calculation in the multimodal situation.",
    framework="xLLM",
    operation=AxialRotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="rotate",
)
def sines_of_the_first_half(
    correct: Formulas, first: Numbers, second: Numbers, cosine: Numbers, sine: Numbers
) -> tuple[Numbers, Numbers]:
    """The second feature of a pair gets factors of the pairs in the first half."""
    pairs = np.arange(cosine.shape[-1]) % max((cosine.shape[-1] + 1) // 2, 1)
    turned, _ = Formulas.rotate(correct, first, second, cosine, sine)
    return turned, first * sine[..., pairs] + second * cosine[..., pairs]


@rediscovered(
    "AI-Hypercomputer/maxtext#4742",
    "Honor partial_rotary_factor on the MRoPE path",
    framework="MaxText",
    operation=AxialRotaryEmbedding,
    breaks=("kernels.rotary-axes",),
    replaces="axial_rotary_embedding",
)
def all_features_rotated(correct: Formulas, x: Numbers, positions: Numbers, frequencies: Numbers) -> Numbers:
    """The whole row is rotated, by repeated frequencies."""
    pairs = x.shape[-1] // 2
    repeated = frequencies[:, np.arange(pairs) % frequencies.shape[-1]]
    return Formulas.axial_rotary_embedding(correct, x, positions, repeated)


@rediscovered(
    "apple/coreai-models#66",
    "Composite RoPE partial-rotary mode pairs contiguously — incompatible with transformers partial/proportional "
    "rotary (partial_rotary_factor models)",
    framework="Core AI models",
    operation=AxialRotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="axial_rotary_embedding",
    differentiable=False,
)
def partners_in_the_whole_row(correct: Formulas, x: Numbers, positions: Numbers, frequencies: Numbers) -> Numbers:
    """Feature i is turned with feature i + d/2 of the whole row."""
    pairs, half = frequencies.shape[-1], x.shape[-1] // 2
    angle = correct.axial_angles(positions, frequencies)[..., : max(half, 1)]
    count = min(pairs, half)
    first, second = x[..., :count], x[..., half : half + count]
    cosine, sine = np.cos(angle[..., :count]).astype(x.dtype), np.sin(angle[..., :count]).astype(x.dtype)
    turned = correct.rotate(first, second, cosine, sine)
    parts = (turned[0], x[..., count:half], turned[1], x[..., half + count :])
    shape = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return np.concatenate([np.broadcast_to(part, (*shape, part.shape[-1])) for part in parts], axis=-1)


@rediscovered(
    "vllm-project/vllm-omni#1784",
    "[bugfix] Add Interleaved 2D Rotary Embedding for HunyuanImage3",
    framework="vLLM-Omni",
    operation=AxialRotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="axial_angles",
)
def axes_in_sections(correct: Formulas, positions: Numbers, frequencies: Numbers) -> Numbers:
    """Each section of pairs is rotated along one axis, by the frequencies of all."""
    axes, pairs = frequencies.shape
    own = np.arange(axes)[:, None] == np.arange(pairs) * axes // max(pairs, 1)
    total = np.sum(frequencies, axis=0)
    return Formulas.axial_angles(correct, positions, own.astype(frequencies.dtype) * total)


@rediscovered(
    "huggingface/diffusers#12538",
    "Misallignment in Rotary Frequencies",
    framework="diffusers",
    operation=AxialRotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="axial_angles",
)
def tables_split_at_other_places(correct: Formulas, positions: Numbers, frequencies: Numbers) -> Numbers:
    """The table of frequencies is cut one pair away from where it was joined."""
    pairs = frequencies.shape[-1]
    return Formulas.axial_angles(correct, positions, frequencies[:, (np.arange(pairs) + 1) % max(pairs, 1)])


# Scaled frequencies --------------------------------------------------------------------------------------------------


@rediscovered(
    "jmaczan/tiny-vllm#1",
    "fix: implement Llama 3 RoPE frequency scaling",
    framework="tiny-vllm",
    operation=RotaryFrequencies,
    breaks=("operation.oracle",),
    replaces="mix_frequencies",
)
def no_regions(correct: Formulas, unscaled: Numbers, share: Numbers, factor: float) -> Numbers:
    """No frequency is scaled."""
    return unscaled


@rediscovered(
    "NVIDIA-NeMo/Automodel#2825",
    "fix(model): honor yarn/linear/dynamic RoPE in LlamaRotaryEmbedding",
    framework="NeMo Automodel",
    operation=RotaryFrequencies,
    breaks=("semantics.rotary_ramp",),
    replaces="ramp",
    declares={"rotary_ramp": "whole-indices"},
)
def schedule_of_llama_for_yarn(
    correct: Formulas, unscaled: Numbers, theta: float, length: float, low: float, high: float
) -> Numbers:
    """A model with YaRN's ramp gets that of Llama 3."""
    return (length * unscaled / (2 * np.pi) - low) / (high - low)


@rediscovered(
    "vllm-project/vllm#27722",
    "[Bug]: `yarn_find_correction_range` incorrect for GPT-OSS",
    framework="vLLM",
    operation=RotaryFrequencies,
    breaks=("semantics.rotary_ramp",),
    replaces="ramp",
    declares={"rotary_ramp": "indices"},
)
def ends_always_whole(
    correct: Formulas, unscaled: Numbers, theta: float, length: float, low: float, high: float
) -> Numbers:
    """The ends of the ramp are whole indices, but fractional ones are declared."""
    start, end = correct.ramp_ends(len(unscaled), theta, length, low, high)
    return correct.ramp_between(np.floor(start), np.ceil(end), len(unscaled))


@rediscovered(
    "keras-team/keras-hub#2981",
    "Match the reference YaRN implementation in RotaryEmbedding",
    framework="KerasHub",
    operation=RotaryFrequencies,
    breaks=("semantics.rotary_ramp",),
    replaces="ramp",
    declares={"rotary_ramp": "whole-indices"},
)
def ends_never_whole(
    correct: Formulas, unscaled: Numbers, theta: float, length: float, low: float, high: float
) -> Numbers:
    """The ends of the ramp are not rounded for models that leave `truncate` out."""
    return correct.ramp_between(*correct.ramp_ends(len(unscaled), theta, length, low, high), len(unscaled))


@rediscovered(
    "pytorch/torchtitan#3787",
    "Unify CosSinRoPE and ComplexRoPE YaRN computation",
    framework="torchtitan",
    operation=RotaryFrequencies,
    breaks=("operation.oracle",),
    replaces="ramp",
)
def exchanged_rotations(
    correct: Formulas, unscaled: Numbers, theta: float, length: float, low: float, high: float
) -> Numbers:
    """The most and the fewest rotations are exchanged."""
    return Formulas.ramp(correct, unscaled, theta, length, high, low)


@rediscovered(
    "rasbt/LLMs-from-scratch#940",
    "Fix Olmo3 YaRN RoPE implementation bug",
    framework="LLMs from scratch (Olmo 3)",
    operation=RotaryFrequencies,
    breaks=("operation.oracle",),
    replaces="mix_frequencies",
)
def positions_divided_for_all_pairs(correct: Formulas, unscaled: Numbers, share: Numbers, factor: float) -> Numbers:
    """Positions are divided by the factor, for all pairs alike."""
    return unscaled / factor


@rediscovered(
    "pie-project/pie#603",
    "rope_partial: rotate over the rotary width, not the head width (Metal + CUDA)",
    framework="Pie",
    operation=RotaryFrequencies,
    breaks=("operation.oracle",),
    replaces="unscaled_frequencies",
)
def exponents_over_the_head(correct: Formulas, pairs: int, theta: float) -> Numbers:
    """Exponents are i over the width of a head, of which a half is rotated."""
    return theta ** (-np.arange(pairs) / (2 * pairs))
