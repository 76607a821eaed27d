"""Mutants of GELU and of gated feed-forward networks. Conventions: ``mutants.transformer``."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.transformer import GELU, GatedFeedForward


@mutant(
    "GELU by tanh, undeclared",
    replaces="probability_by_erf",
    operations=(GELU,),
    breaks=("semantics.gelu_form", "operation.oracle"),
    source="huggingface/candle#900: JAX's default for PyTorch's",
)
def undeclared_tanh(correct: Formulas, x: Numbers) -> Numbers:
    """The probability is approximated with tanh."""
    return correct.probability_by_tanh(x)


@mutant(
    "GELU by erf, declared tanh",
    replaces="normal_probability",
    operations=(GELU,),
    declares={"gelu_form": "tanh"},
    breaks=("semantics.gelu_form", "operation.oracle"),
    source="kyutai-labs/pocket-tts#278: torch.nn.functional.gelu without its argument",
)
def erf_after_all(correct: Formulas, x: Numbers) -> Numbers:
    """The probability is computed by erf, but tanh is declared."""
    return correct.probability_by_erf(x)


@mutant(
    "GELU by the logistic function",
    replaces="normal_probability",
    operations=(GELU,),
    breaks=("operation.oracle", "operation.gradient"),
    source="quick GELU of CLIP",
)
def quick_gelu(correct: Formulas, x: Numbers) -> Numbers:
    """The probability is σ(1.702 x)."""
    half = x.dtype.type(0.5)
    return half * (1 + np.tanh(half * (x * x.dtype.type(1.702))))


@mutant(
    "erf of x in place of x/√2",
    replaces="probability_by_erf",
    operations=(GELU,),
    breaks=("operation.oracle", "operation.gradient"),
    source="erf taken for the distribution function of a standard normal variable",
)
def undivided_argument(correct: Formulas, x: Numbers) -> Numbers:
    """The argument of erf is not divided by √2."""
    return x.dtype.type(0.5) * (1 + correct.erf(x))


@mutant(
    "cube left out of GELU's tanh",
    replaces="normal_probability",
    operations=(GELU,),
    declares={"gelu_form": "tanh"},
    breaks=("operation.oracle", "operation.gradient"),
    source="an approximation that looks right when plotted",
)
def without_cube(correct: Formulas, x: Numbers) -> Numbers:
    """The argument of tanh is √(2/π) x."""
    return x.dtype.type(0.5) * (1 + np.tanh(x * x.dtype.type(np.sqrt(2 / np.pi))))


@mutant(
    "GELU's tanh of exponentials that overflow",
    replaces="normal_probability",
    operations=(GELU,),
    declares={"gelu_form": "tanh"},
    breaks=("transformer.gelu-tails",),
    source="pytorch/executorch#22323, pytorch/pytorch#186278: NaN from 11 or 13 on",
)
def overflowing_tanh(correct: Formulas, x: Numbers) -> Numbers:
    """tanh is (e^2z − 1)/(e^2z + 1), which is NaN where e^2z overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        squared = np.exp(2 * correct.tanh_argument(x))
        return x.dtype.type(0.5) * (1 + (squared - 1) / (squared + 1))


@mutant(
    "probability below −3 rounded to 0",
    replaces="normal_probability",
    operations=(GELU,),
    breaks=("transformer.gelu-odd-part", "operation.oracle"),
    source="tenstorrent/tt-metal#5578: a table that ends too early",
)
def no_tail(correct: Formulas, x: Numbers) -> Numbers:
    """The probability is 0 below −3, where it is up to 0.13 %."""
    return np.where(x < -3, x.dtype.type(0), Formulas.normal_probability(correct, x))


@mutant(
    "GELU of the first half of the features",
    replaces="gelu",
    operations=(GELU,),
    breaks=("transformer.gelu-of-each-feature", "operation.oracle"),
    source="GEGLU, whose other half is the value",
)
def half_of_the_features(correct: Formulas, x: Numbers) -> Numbers:
    """The second half of the features is returned as it is."""
    half = x.shape[-1] // 2
    return np.concatenate([Formulas.gelu(correct, x[..., :half]), x[..., half:]], axis=-1)


@mutant(
    "gate and up-projection exchanged",
    replaces="gated_units",
    operations=(GatedFeedForward,),
    breaks=("transformer.up-projection-is-linear", "operation.oracle"),
    source="ml-explore/mlx-lm#767: two arguments in the other order",
)
def gate_as_value(correct: Formulas, gate: Numbers, up: Numbers) -> Numbers:
    """silu is applied to the up-projection."""
    return correct.silu(up) * gate


@mutant(
    "logistic function in place of silu",
    replaces="silu",
    operations=(GatedFeedForward,),
    breaks=("transformer.closed-gate", "operation.oracle"),
    source="GLU, which SwiGLU was derived from",
)
def logistic_gate(correct: Formulas, x: Numbers) -> Numbers:
    """The gate is σ(z) in place of z σ(z)."""
    half = x.dtype.type(0.5)
    return half * (1 + np.tanh(half * x))


@mutant(
    "GELU in place of silu",
    replaces="silu",
    operations=(GatedFeedForward,),
    breaks=("operation.oracle", "operation.gradient"),
    source="GEGLU, the gate of Gemma",
)
def gelu_gate(correct: Formulas, x: Numbers) -> Numbers:
    """The gate is z Φ(z) in place of z σ(z)."""
    return x * correct.probability_by_erf(x)


@mutant(
    "silu of the gated product",
    replaces="gated_units",
    operations=(GatedFeedForward,),
    breaks=("transformer.up-projection-is-linear", "operation.oracle"),
    source="Nijikadesu/breakdown-minimind#3: a misplaced parenthesis",
)
def silu_of_product(correct: Formulas, gate: Numbers, up: Numbers) -> Numbers:
    """silu is applied to the product of both projections."""
    return correct.silu(gate * up)


@mutant(
    "up-projection left out",
    replaces="gated_units",
    operations=(GatedFeedForward,),
    breaks=("transformer.up-projection-is-linear", "operation.oracle"),
    source="google-research/timesfm#493: SwiGLU taken for silu",
)
def without_up_projection(correct: Formulas, gate: Numbers, up: Numbers) -> Numbers:
    """Hidden units are silu of the gate; the up-projection has no effect."""
    return correct.silu(gate) + up * up.dtype.type(0)


@mutant(
    "1 added to the up-projection",
    replaces="gated_units",
    operations=(GatedFeedForward,),
    breaks=("transformer.up-projection-is-linear", "operation.oracle"),
    source="vllm-project/vllm#42578: the activation of gpt-oss",
)
def up_projection_plus_one(correct: Formulas, gate: Numbers, up: Numbers) -> Numbers:
    """Hidden units are silu(W_g x) ⊙ (W_u x + 1)."""
    return correct.silu(gate) * (up + 1)
