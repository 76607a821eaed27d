"""Mutants of transformer layers and encoder stacks.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.transformer import (
    EncoderLayer,
    EncoderLayerParameters,
    EncoderStack,
    FeedForward,
    FeedForwardParameters,
    LayerNorm,
    LayerNormParameters,
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
def root_mean_square(correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers]) -> Numbers:
    """Rows become x/√(mean of x²): their mean is not subtracted."""
    return p.gain * x / np.sqrt(correct.variance(x) + x.dtype.type(correct.epsilon())) + p.bias


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
def large_epsilon(correct: Formulas) -> float:
    """ε is 10⁻³ in place of 10⁻⁵."""
    return 1e-3


@mutant(
    "ε of 10⁻⁶",
    replaces="epsilon",
    operations=(EncoderLayer, LayerNorm),
    breaks=("operation.oracle",),
    source="the default of other libraries",
)
def small_epsilon(correct: Formulas) -> float:
    """ε is 10⁻⁶ in place of 10⁻⁵."""
    return 1e-6


@mutant(
    "ε outside of the root",
    replaces="layer_norm",
    operations=(EncoderLayer, LayerNorm),
    breaks=("operation.oracle",),
    source="(x − x̄)/(√v + ε), which guards against division by 0 as well",
)
def epsilon_outside(correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers]) -> Numbers:
    """Rows are divided by √v + ε in place of √(v + ε)."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    deviation = np.sqrt(correct.variance(centred)) + x.dtype.type(correct.epsilon())
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
def centred_only(correct: Formulas, x: Numbers, parameters: LayerNormParameters[Numbers]) -> Numbers:
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
def shifts_count(correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers]) -> Numbers:
    """Rows become x/√(mean of x²): their mean is not subtracted."""
    return p.gain * x / np.sqrt(correct.variance(x) + x.dtype.type(correct.epsilon())) + p.bias


@mutant(
    "gain and bias exchanged",
    replaces="layer_norm",
    operations=(LayerNorm,),
    breaks=("transformer.layer-norm-moments", "operation.gradient"),
    source="beta and gamma, in the order of their letters",
)
def exchanged_gain(correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers]) -> Numbers:
    """Gain g and bias b are exchanged: b ⊙ x̂ + g in place of g ⊙ x̂ + b."""
    return Formulas.layer_norm(correct, x, LayerNormParameters(p.bias, p.gain))


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
