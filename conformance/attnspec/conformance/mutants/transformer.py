"""Mutants of transformer layers and encoder stacks.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.transformer import (
    AddRMSNorm,
    EncoderLayer,
    EncoderLayerParameters,
    EncoderStack,
    FeedForward,
    FeedForwardParameters,
    LayerNorm,
    LayerNormParameters,
    RMSNorm,
)


@mutant(
    "norm ignored",
    replaces="residual",
    operations=(EncoderLayer,),
    breaks=("operation.options-have-effect", "transformer.zero-sublayers-identity"),
    source="an option that is never passed on",
)
def always_post(
    correct: Formulas, x: Numbers, sublayer: Callable[[Numbers], Numbers], p: LayerNormParameters[Numbers], norm: str
) -> Numbers:
    """Layers are post-norm, whatever norm is chosen."""
    return correct.layer_norm(x + sublayer(x), p)


@mutant(
    "residual connection adds the normalized input",
    replaces="residual",
    operations=(EncoderLayer,),
    breaks=("transformer.zero-sublayers-identity", "operation.oracle"),
    source="x = norm(x); x = x + f(x)",
)
def normalized_residual(
    correct: Formulas, x: Numbers, sublayer: Callable[[Numbers], Numbers], p: LayerNormParameters[Numbers], norm: str
) -> Numbers:
    """With pre-norm, the residual connection adds the normalized input in place of the input."""
    if norm != "pre":
        return Formulas.residual(correct, x, sublayer, p, norm)
    y = correct.layer_norm(x, p)
    return y + sublayer(y)


@mutant(
    "unbiased variance",
    replaces="variance",
    operations=(EncoderLayer, LayerNorm),
    breaks=("operation.oracle", "operation.gradient"),
    source="torch.var and numpy.var differ in this",
)
def unbiased_variance(correct: Formulas, centred: Numbers) -> Numbers:
    """The variance is divided by d − 1 in place of d."""
    d = centred.shape[-1]
    return Formulas.variance(correct, centred) * centred.dtype.type(d / max(d - 1, 1))


@mutant(
    "mean of rows not subtracted in the encoder",
    replaces="layer_norm",
    operations=(EncoderLayer,),
    breaks=("transformer.layer-norm-moments", "operation.oracle"),
    source="RMSNorm for layer norm",
)
def root_mean_square(
    correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers], *, epsilon: float = 1e-5
) -> Numbers:
    """Rows become x/√(mean of x²): their mean is not subtracted."""
    return p.gain * x / np.sqrt(correct.variance(x) + x.dtype.type(correct.epsilon(epsilon))) + p.bias


@mutant(
    "variance 1 % too small",
    replaces="variance",
    operations=(EncoderLayer, LayerNorm),
    breaks=("transformer.layer-norm-moments",),
    source="a standard deviation that is estimated too small",
)
def small_variance(correct: Formulas, centred: Numbers) -> Numbers:
    """The variance is 1 % too small."""
    return Formulas.variance(correct, centred) * centred.dtype.type(0.99)


@mutant(
    "ε of 10⁻³",
    replaces="epsilon",
    operations=(EncoderLayer, LayerNorm),
    breaks=("operation.oracle",),
    source="Keras's default differs from PyTorch's",
)
def large_epsilon(correct: Formulas, epsilon: float = 1e-5) -> float:
    """ε is 10⁻³ in place of 10⁻⁵."""
    return 1e-3


@mutant(
    "ε of 10⁻⁶",
    replaces="epsilon",
    operations=(EncoderLayer, LayerNorm),
    breaks=("operation.oracle",),
    source="the default of other libraries",
)
def small_epsilon(correct: Formulas, epsilon: float = 1e-5) -> float:
    """ε is 10⁻⁶ in place of 10⁻⁵."""
    return 1e-6


@mutant(
    "ε outside of the root",
    replaces="layer_norm",
    operations=(EncoderLayer, LayerNorm),
    breaks=("operation.oracle",),
    source="(x − x̄)/(√v + ε), which guards against division by 0 as well",
)
def epsilon_outside(
    correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers], *, epsilon: float = 1e-5
) -> Numbers:
    """Rows are divided by √v + ε in place of √(v + ε)."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    deviation = np.sqrt(correct.variance(centred)) + x.dtype.type(correct.epsilon(epsilon))
    return p.gain * centred / deviation + p.bias


@mutant(
    "an eighth of the previous position's output added",
    replaces="feed_forward",
    operations=(EncoderLayer,),
    breaks=("transformer.position-wise", "attention.permutation-equivariance"),
    source="a convolution of width 3 in place of one of width 1",
)
def mixes_positions(correct: Formulas, x: Numbers, p: FeedForwardParameters[Numbers]) -> Numbers:
    """An eighth of the previous position's feed-forward output is added to each position, cyclically."""
    y = Formulas.feed_forward(correct, x, p)
    return y + np.roll(y, 1, axis=-2) * y.dtype.type(0.125)


@mutant(
    "activation left out",
    replaces="relu",
    operations=(EncoderLayer, FeedForward),
    breaks=("operation.oracle", "operation.gradient"),
    source="two linear maps in a row",
)
def no_activation(correct: Formulas, x: Numbers) -> Numbers:
    """The ReLU is left out."""
    return x


@mutant(
    "rows not divided by their standard deviation",
    replaces="layer_norm",
    operations=(LayerNorm,),
    breaks=("transformer.layer-norm-moments", "operation.oracle"),
    source="centred, and not scaled",
)
def centred_only(
    correct: Formulas, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5
) -> Numbers:
    """Rows are centred but not divided by their standard deviation."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return parameters.gain * centred + parameters.bias


@mutant(
    "root mean square in place of layer norm",
    replaces="layer_norm",
    operations=(LayerNorm,),
    breaks=("transformer.layer-norm-ignores-shift", "transformer.layer-norm-moments"),
    source="RMSNorm for layer norm",
)
def shifts_count(correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers], *, epsilon: float = 1e-5) -> Numbers:
    """Rows become x/√(mean of x²): their mean is not subtracted."""
    return p.gain * x / np.sqrt(correct.variance(x) + x.dtype.type(correct.epsilon(epsilon))) + p.bias


@mutant(
    "gain and bias exchanged",
    replaces="layer_norm",
    operations=(LayerNorm,),
    breaks=("transformer.layer-norm-moments", "operation.gradient"),
    source="beta and gamma, in the order of their letters",
)
def exchanged_gain(correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers], *, epsilon: float = 1e-5) -> Numbers:
    """Gain g and bias b are exchanged: b ⊙ x̂ + g in place of g ⊙ x̂ + b."""
    return Formulas.layer_norm(correct, x, LayerNormParameters(p.bias, p.gain), epsilon=epsilon)


@mutant(
    "rows centred before RMS normalization",
    replaces="rms_norm",
    operations=(RMSNorm, AddRMSNorm),
    breaks=("transformer.rms-norm-mean-square", "operation.oracle"),
    source="layer norm without a bias",
)
def centred_rows(correct: Formulas, x: Numbers, weight: Numbers, *, epsilon: float = 1e-6) -> Numbers:
    """The mean of a row is subtracted, but not from the mean square."""
    return correct.rms_factor(weight) * (x - np.mean(x, axis=-1, keepdims=True)) / correct.root_mean_square(x, epsilon)


@mutant(
    "ε outside of the root mean square",
    replaces="root_mean_square",
    operations=(RMSNorm, AddRMSNorm),
    breaks=("transformer.rms-norm-ignores-scale", "operation.oracle"),
    source="allenai/OLMo#281: x/(rms + ε)",
)
def epsilon_outside_of_rms(correct: Formulas, x: Numbers, epsilon: float) -> Numbers:
    """Rows are divided by √s + ε in place of √(s + ε)."""
    return np.sqrt(correct.variance(x)) + x.dtype.type(epsilon)


@mutant(
    "sum of squares in place of their mean",
    replaces="root_mean_square",
    operations=(RMSNorm, AddRMSNorm),
    breaks=("transformer.rms-norm-mean-square", "operation.oracle"),
    source="an L2 norm, as linear attention has for queries and keys",
)
def sum_of_squares(correct: Formulas, x: Numbers, epsilon: float) -> Numbers:
    """Rows are divided by √(Σx² + ε)."""
    return np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + x.dtype.type(epsilon))


@mutant(
    "RMS ε ignored",
    replaces="root_mean_square",
    operations=(RMSNorm, AddRMSNorm),
    breaks=("operation.options-have-effect", "transformer.rms-norm-mean-square"),
    source="a constant of the model it was written for",
)
def fixed_epsilon(correct: Formulas, x: Numbers, epsilon: float) -> Numbers:
    """ε is 10⁻⁶, whatever is chosen."""
    return Formulas.root_mean_square(correct, x, 1e-6)


@mutant(
    "layer norm's ε ignored",
    replaces="epsilon",
    operations=(LayerNorm,),
    breaks=("operation.options-have-effect", "transformer.layer-norm-moments"),
    source="a constant of the model it was written for",
)
def fixed_epsilon_of_layer_norm(correct: Formulas, epsilon: float = 1e-5) -> float:
    """ε is 10⁻⁵, whatever is chosen."""
    return 1e-5


@mutant(
    "factor rounded to the dtype after 1 is added",
    replaces="rms_factor",
    operations=(RMSNorm,),
    dtype="bfloat16",
    declares={"rms_weight": "plus-one"},
    breaks=("transformer.rms-norm-unbiased-factor",),
    source="vllm-project/vllm#53203, vllm-project/vllm#29810: 1.05 becomes 1.046875",
    differentiable=False,
)
def rounded_factor(correct: Formulas, weight: Numbers) -> Numbers:
    """1 + w is rounded to bfloat16: a feature changes by up to 0.4 %."""
    return rounded(weight + 1, "bfloat16")


@mutant(
    "residual not normalized",
    replaces="add_rms_norm",
    operations=(AddRMSNorm,),
    breaks=("transformer.residual-is-added", "operation.oracle"),
    source="the sum computed for the next layer only",
)
def residual_not_normalized(
    correct: Formulas, x: Numbers, residual: Numbers, weight: Numbers, *, epsilon: float = 1e-6
) -> tuple[Numbers, Numbers]:
    """The output is the norm of x alone; the sum is right."""
    total = x + residual
    return correct.rms_norm(x + residual * residual.dtype.type(0), weight, epsilon=epsilon), total


@mutant(
    "normalized rows returned as the sum",
    replaces="add_rms_norm",
    operations=(AddRMSNorm,),
    breaks=("transformer.residual-is-added", "operation.oracle"),
    source="GeeeekExplorer/nano-vllm#170: the norm overwrites the rows that the next layer adds to",
)
def output_as_sum(
    correct: Formulas, x: Numbers, residual: Numbers, weight: Numbers, *, epsilon: float = 1e-6
) -> tuple[Numbers, Numbers]:
    """The output is returned twice."""
    output = correct.rms_norm(x + residual, weight, epsilon=epsilon)
    return output, output


@mutant(
    "squareplus in place of ReLU",
    replaces="relu",
    operations=(FeedForward,),
    breaks=("transformer.relu-homogeneity", "operation.oracle"),
    source="a smooth activation",
)
def squareplus(correct: Formulas, x: Numbers) -> Numbers:
    """The activation is (x + √(x² + ¼))/2 in place of max(0, x)."""
    return (x + np.sqrt(x * x + x.dtype.type(0.25))) * x.dtype.type(0.5)


@mutant(
    "leaky ReLU",
    replaces="relu",
    operations=(FeedForward,),
    breaks=("operation.oracle", "operation.gradient"),
    source="another activation",
)
def leaky_relu(correct: Formulas, x: Numbers) -> Numbers:
    """The activation is max(x/100, x) in place of max(0, x)."""
    return np.maximum(x, x * x.dtype.type(0.01))


@mutant(
    "second bias left out",
    replaces="feed_forward",
    operations=(FeedForward,),
    breaks=("operation.oracle", "operation.gradient"),
    source="a fused kernel without the second bias",
)
def one_bias(correct: Formulas, x: Numbers, p: FeedForwardParameters[Numbers]) -> Numbers:
    """The second bias b₂ is left out."""
    return Formulas.feed_forward(correct, x, FeedForwardParameters(p.w_1, p.b_1, p.w_2, p.b_2 * p.b_2.dtype.type(0)))


@mutant(
    "layers in reverse order",
    replaces="numbered_layers",
    operations=(EncoderStack,),
    breaks=("operation.oracle",),
    source="a stack that is popped",
)
def last_layer_first(
    correct: Formulas, layers: tuple[EncoderLayerParameters[Numbers], ...]
) -> list[tuple[int, EncoderLayerParameters[Numbers]]]:
    """Layers are applied from the last to the first."""
    return Formulas.numbered_layers(correct, layers)[::-1]


@mutant(
    "first layer's weights used for all",
    replaces="numbered_layers",
    operations=(EncoderStack,),
    breaks=("operation.oracle", "operation.gradient"),
    source="[layer] * N, which is one layer N times",
)
def one_layer(
    correct: Formulas, layers: tuple[EncoderLayerParameters[Numbers], ...]
) -> list[tuple[int, EncoderLayerParameters[Numbers]]]:
    """Every layer uses the weights of the first."""
    return [(number, layers[0]) for number, _ in Formulas.numbered_layers(correct, layers)]


@mutant(
    "mask in the first layer only",
    replaces="encoder_layer_of_stack",
    operations=(EncoderStack,),
    breaks=("operation.oracle", "masking.masked-keys-ignored"),
    source="a mask that is not passed on",
)
def masked_once(
    correct: Formulas, number: int, x: Numbers, parameters: EncoderLayerParameters[Numbers], mask: Numbers, norm: str
) -> Numbers:
    """The mask applies to the first layer only."""
    return Formulas.encoder_layer_of_stack(correct, number, x, parameters, None if number else mask, norm)


@mutant(
    "normalization after the last layer",
    replaces="encoder_stack",
    operations=(EncoderStack,),
    breaks=("transformer.stack-is-composition", "operation.oracle"),
    source="GPT-2's ln_f, in a stack that has none",
)
def final_normalization(
    correct: Formulas, x: Numbers, layers: tuple[EncoderLayerParameters[Numbers], ...], **options: Any
) -> Numbers:
    """The rows of the stack's result are normalized again, to mean 0 and variance 1."""
    y = Formulas.encoder_stack(correct, x, layers, **options)
    centred = y - np.mean(y, axis=-1, keepdims=True)
    return centred / np.sqrt(correct.variance(centred) + y.dtype.type(correct.epsilon()))
