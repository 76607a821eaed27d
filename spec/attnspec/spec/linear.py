"""Linear attention: a matrix of state per head, and the short convolution before it.

Edges: An empty batch gives an empty result. Without steps, the final state is the initial one.
"""

from typing import Annotated, Generic, Protocol, TypedDict

from jaxtyping import Float

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.semantics import depends_on
from attnspec.spec.contract.sources import GU, KATHAROPOULOS, KIMI, ONNX, YANG_DELTA, YANG_GATED, YANG_GATED_DELTA

__all__ = ["LinearAttention", "LinearOperations", "LinearTable", "ShortConvolution"]


@depends_on("head_groups")
@operation(
    "linear_attention",
    chapter="linear",
    formula=r"o_{ri} = \lambda S_{hi}^\top q_{ri},\quad S_{hi} = D_i S_{h,i-1} + k_{hi} u_{hi}^\top,\quad"
    r" u_{hi} = \beta_{hi} (v_{hi} - (D_i S_{h,i-1})^\top k_{hi}),\quad D_i = \operatorname{diag}(e^{g_{hi}}),\quad"
    r" h = \lfloor r / g \rfloor",
    sources=[
        ONNX.passage("LinearAttention-27"),
        KATHAROPOULOS.passage("3.4 Transformers are RNNs"),
        YANG_GATED.passage("4 Gated linear attention"),
        YANG_DELTA.passage("2.2 DeltaNet"),
        YANG_GATED_DELTA.passage("3.1 Formulation: gated delta rule"),
        KIMI.passage("3 Kimi delta attention"),
    ],
    linear="query",
    causal="t",
    results="output final",
    features="decay beta scale",
    wider="state decay beta final",
    # With keys of norm 1 and β = 1 a step erases exactly: gradients then vanish to second order in the roundings.
    generated_within={"key": 0.75, "decay": (-8.0, 0.0), "beta": (0.0, 1.0)},
    trial_values={"scale": (0.25, -0.5)},
)
class LinearAttention(Protocol[Array]):
    """Linear attention by the linear, gated, delta or gated delta rule: outputs of all steps and the final state.

    Where: S₀ is `state`, one matrix (d, d_v) per key head; g is `decay`, in logarithms, either one number per step
    and head or one per feature of the key, as in Kimi delta attention (KDA); β is `beta`. Without `decay` D is the
    identity. Without `beta` nothing is corrected: u = v. So neither gives the linear rule, `decay` alone the gated
    one, `beta` alone the delta rule, both the gated delta rule. λ is `scale`; without one it is 1/√d. The first
    `group` query heads read the state of the first key head, and so on, or heads take turns (semantics
    `head_groups`). Queries and keys are not normalized here, nor mapped to positive features. Chunks may be
    computed together. The state is in units of key × value, the output in those of the state × query × λ.
    Domain: No step overflows; with the delta rule, keys of norm 1 and β from 0 to 2 never make the state grow.
        Decays of examples are at most 0.
    Edges: A decay of −∞ empties the state. With β = 0 nothing is written.
    """

    def __call__(
        self,
        query: Annotated[Float[Array, "*#batch heads t d"], sizes(heads="heads_k*group")],
        key: Float[Array, "*#batch heads_k t d"],
        value: Float[Array, "*#batch heads_k t d_v"],
        state: Float[Array, "*#batch heads_k d d_v"],
        *,
        decay: Float[Array, "*#batch heads_k t #d"] | None = None,
        beta: Float[Array, "*#batch heads_k t"] | None = None,
        scale: float | None = None,
    ) -> tuple[
        Annotated[Float[Array, "*batch heads t d_v"], sizes(heads="heads_k*group")],
        Float[Array, "*batch heads_k d d_v"],
    ]: ...


@operation(
    "short_convolution",
    chapter="linear",
    formula=r"y_{ic} = b_c + \sum_{j=0}^{k-1} w_{cj} x_{i-k+1+j,c},\quad (x_{1-k}, \dots, x_{-1}) = S",
    sources=[
        ONNX.passage("CausalConvWithState-27"),
        GU.passage("3.4 A simplified SSM architecture"),
    ],
    causal="t",
    results="output final",
    features="bias",
)
class ShortConvolution(Protocol[Array]):
    """Causal depthwise convolution of a sequence, as before linear attention: outputs and the final state.

    Where: k is 1 + `past`, the number of taps; the last one multiplies the current input (taps are not reversed). Every
    feature has its own weights. S is `state`, the k − 1 inputs before the first one, the latest last; zeros begin a
    sequence. The final state is the last k − 1 inputs, S included. b is `bias`, 0 if not given. No activation is
    applied. The output is in units of x × weight.
    Domain: Sums do not overflow.
    Edges: With one tap the state is empty.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        weight: Annotated[Float[Array, "d taps"], sizes(taps="1+past")],
        state: Float[Array, "*#batch past d"],
        *,
        bias: Float[Array, " d"] | None = None,
    ) -> tuple[Float[Array, "*batch t d"], Float[Array, "*batch past d"]]: ...


class LinearOperations(Generic[Array]):
    """The operations of linear attention as methods of a backend class."""

    linear_attention: LinearAttention[Array]
    short_convolution: ShortConvolution[Array]


class LinearTable(TypedDict, Generic[Array], total=False):
    """The operations of linear attention by name, as a typed dictionary."""

    linear_attention: LinearAttention[Array]
    short_convolution: ShortConvolution[Array]
