"""Vision: images as sequences of patches, gates between feature maps, attention over feature maps.

Images, volumes and feature maps have their channels last and count slices, rows and columns from 0.
Edges: An empty batch gives an empty result.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypedDict

from jaxtyping import Float

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import BAHDANAU, DOSOVITSKIY, OKTAY, S3, S4, XU
from attnspec.spec.transformer import EncoderLayerParameters, LayerNormParameters

__all__ = [
    "AttentionGate",
    "AttentionGateParameters",
    "AttentionSkip",
    "Interpolate",
    "PatchEmbedding",
    "PatchEmbeddingParameters",
    "Patchify",
    "SpatialAttention",
    "VisionOperations",
    "VisionTable",
    "VitEncoder",
]


@operation(
    "patchify",
    chapter="vision",
    formula=r"x_{rC + c,\ (iP + j)K + k} = X_{rP + i,\ cP + j,\ k},\quad P \text{ the patch}, C \text{ columns},"
    r" K \text{ channels}",
    sources=[S4.passage("VIT Vision Transformer"), DOSOVITSKIY.passage("3.1")],
)
class Patchify(Protocol[Array]):
    """An image cut into square patches that do not overlap, each flattened to one vector.

    Where: Patches are ordered row by row. So are the pixels of a patch, with the channels of a pixel adjacent. The
    sizes `rows` and `columns` count patches. The result is in units of the image.
    Edges: A height or width that is no multiple of `patch` raises. NaN and ∞ stay in their patch.
    """

    def __call__(
        self,
        image: Annotated[
            Float[Array, "*batch height width channels"], sizes(height="rows*patch", width="columns*patch")
        ],
        patch: int,
    ) -> Annotated[
        Float[Array, "*batch patches features"], sizes(patches="rows*columns", features="patch*patch*channels")
    ]: ...


@dataclass(frozen=True)
class PatchEmbeddingParameters(Generic[Array]):
    """Weights of the patch projection, the class token, and the embedding of every position."""

    w: Float[Array, "d patch patch channels"]
    class_token: Float[Array, " d"]
    positions: Float[Array, "1+rows*columns d"]


@operation(
    "patch_embedding",
    chapter="vision",
    formula=r"Z_0 = [x_{\text{class}};\ W x_1;\ \dots;\ W x_N] + P,\quad x_i \text{ the patches of the image}",
    sources=[S4.passage("VIT Vision Transformer"), DOSOVITSKIY.passage("3.1, equation 1")],
    axes={"d": Axis.WIDTH},
)
class PatchEmbedding(Protocol[Array]):
    """Input of a vision transformer: class token and projected patches, plus position embeddings.

    Where: W is (out, in), with its inputs in the shape of a patch, as in a convolution; flattened, they have the order
    of `patchify`. The class token comes first and has the first position. Dosovitskiy 2021 writes no bias of the
    projection; to use a library's bias, add it to every position but the first. The result is in units of P, the
    position embeddings.
    Domain: No sum overflows.
    Edges: An image raises unless it consists of whole patches, as many as there are positions after the first.
    """

    def __call__(
        self,
        image: Annotated[
            Float[Array, "*batch height width channels"], sizes(height="rows*patch", width="columns*patch")
        ],
        parameters: PatchEmbeddingParameters[Array],
    ) -> Annotated[Float[Array, "*batch tokens d"], sizes(tokens="1+rows*columns")]: ...


@operation(
    "vit_encoder",
    chapter="vision",
    formula=r"y = \operatorname{LN}(Z_L)_0,\quad Z_l = f_l(Z_{l-1}) \text{ the pre-norm encoder layer } l,"
    r"\ Z_0 \text{ the patch embedding}",
    sources=[S4.passage("VIT Vision Transformer"), DOSOVITSKIY.passage("3.1, equations 1–4")],
    axes={"d": Axis.WIDTH},
)
class VitEncoder(Protocol[Array]):
    """A vision transformer: the encoded class token, by which an image is classified.

    Where: Z₀ is `patch_embedding`. f_l is `encoder_layer` with norm "pre", hence with ReLU where Dosovitskiy 2021 has
    GELU. LN is `layer_norm` after the last layer. The classifier on top of y is not included. The result is in units of
    gain and bias of the final normalization.
    Domain: No intermediate overflows in any layer.
    Edges: Without layers the result is the normalized class token with its position. An image raises unless it has as
    many patches as there are positions after the first.
    """

    def __call__(
        self,
        image: Annotated[
            Float[Array, "*batch height width channels"], sizes(height="rows*patch", width="columns*patch")
        ],
        embedding: PatchEmbeddingParameters[Array],
        layers: tuple[EncoderLayerParameters[Array], ...],
        final_norm: LayerNormParameters[Array],
    ) -> Float[Array, "*batch d"]: ...


@operation(
    "interpolate",
    chapter="vision",
    formula=r"y_i = (1 - \lambda)\, x_{\lfloor t \rfloor} + \lambda\, x_{\lfloor t \rfloor + 1},\quad"
    r" t = (i + \tfrac12) \tfrac{a}{b} - \tfrac12 \text{ within } 0..a-1,\ \lambda = t - \lfloor t \rfloor;\quad"
    r"\text{align\_corners: } t = i \tfrac{a - 1}{b - 1};\quad \text{along each axis, from } a \text{ to } b",
    sources=[S4.passage("Attention Unet"), OKTAY.passage("Attention Gates in U-Net Model")],
    linear="x",
    features="align_corners=True",  # a backend may lack this choice
)
class Interpolate(Protocol[Array]):
    """Linear, bilinear or trilinear interpolation of a feature map to another grid, axis by axis.

    Where: A map of one or two dimensions has size 1 along the other axes, in x and in the result. Values belong to the
    centres of equal cells, so that the borders of both grids agree; beyond the outermost centres values are constant.
    With `align_corners` the outermost centres of both grids agree instead. A smaller result is not smoothed. S4 and
    Oktay 2018 leave the alignment open. The result is in units of x.
    Edges: Along an axis of size 1 the value is repeated. To a size of 1, `align_corners` takes the first value. To the
    same size nothing changes.
    """

    def __call__(
        self,
        x: Float[Array, "*batch slices_from rows_from columns_from channels"],
        slices: int,
        rows: int,
        columns: int,
        *,
        align_corners: bool = False,
    ) -> Float[Array, "*batch {slices} {rows} {columns} channels"]: ...


@dataclass(frozen=True)
class AttentionGateParameters(Generic[Array]):
    """Projections of features and gating signal to hidden units, and on to one coefficient."""

    w_x: Float[Array, "h d_x"]
    w_g: Float[Array, "h d_g"]
    b_g: Float[Array, " h"]
    psi: Float[Array, " h"]
    b_psi: Float[Array, ""]


@operation(
    "attention_gate",
    chapter="vision",
    formula=r"\hat x_i = \alpha_i x_i,\quad"
    r" \alpha_i = \sigma(\psi^\top \max(0, W_x x_i + (W_g g)_i + b_g) + b_\psi),\quad"
    r" W_g g \text{ interpolated to the grid of } x",
    sources=[S4.passage("Attention Unet"), OKTAY.passage("Attention Gates for Image Analysis")],
    results="gated coefficients",
)
class AttentionGate(Protocol[Array]):
    """Gate of an attention U-Net: a signal from a coarser scale weights the features.

    Where: x are the features of the skip connection, the query g is the gating signal. Interpolation is `interpolate`
    with its default alignment; being linear, it may come before W_g or after it. S4 does not say what is interpolated.
    Here it is the gating signal, and α is computed on the grid of x. Oktay 2018 brings x to a coarser grid by a strided
    W_x, computes α there and interpolates α. For the same weights this gives other numbers, since σ and max do not
    commute with interpolation; with a stride of 1 both agree. Weights are (out, in), σ is the logistic function. α has
    no unit, the gated features are in units of x.
    Domain: No sum overflows.
    Edges: Saturated coefficients are 0 or 1.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch slices rows columns d_x"],
        gating: Float[Array, "*#batch slices_from rows_from columns_from d_g"],
        parameters: AttentionGateParameters[Array],
    ) -> tuple[Float[Array, "*batch slices rows columns d_x"], Float[Array, "*batch slices rows columns"]]: ...


@operation(
    "attention_skip",
    chapter="vision",
    formula=r"[\hat x; \tilde g],\quad \hat x \text{ gated by } g,\ \tilde g \text{ interpolated to the grid of } x",
    sources=[S4.passage("Attention UNet"), OKTAY.passage("Attention Gates in U-Net Model")],
)
class AttentionSkip(Protocol[Array]):
    """Skip connection of an attention U-Net: gated features concatenated with upsampled coarser ones.

    Where: x̂ is the result of `attention_gate`; g̃ comes from `interpolate` with its default alignment. The features of
    x come first, as in S4.
    Domain: No sum in the gate overflows.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch slices rows columns d_x"],
        gating: Float[Array, "*#batch slices_from rows_from columns_from d_g"],
        parameters: AttentionGateParameters[Array],
    ) -> Float[Array, "*batch slices rows columns d_x+d_g"]: ...


@operation(
    "spatial_attention",
    chapter="vision",
    formula=r"c = \sum_{rc} \alpha_{rc} h_{rc},\quad"
    r" \alpha = \operatorname{softmax}_{rc}(w_v^\top \tanh(W_q s + W_k h_{rc}))",
    sources=[
        S3.passage("Attention for Caption Generation"),
        XU.passage("3.1.2"),
        XU.passage("4.2"),
        BAHDANAU.passage("3.1"),
    ],
    results="context weights",
)
class SpatialAttention(Protocol[Array]):
    """Soft attention of a caption decoder from its state to a feature map.

    Where: s is the state before the word, S3's s⁽ⁱ⁻¹⁾; h is the feature map of a convolutional network, without
    positions. The scorer is additive, with weights (out, in). Xu 2015 multiplies the context by an additional gate,
    which is left out here as in S3. The context is in units of features, weights have no unit.
    Domain: W_q s and W_k h do not overflow. Scores are at most ‖w_v‖₁.
    """

    def __call__(
        self,
        state: Float[Array, "*#batch d_s"],
        features: Float[Array, "*#batch rows columns d_h"],
        w_q: Float[Array, "h d_s"],
        w_k: Float[Array, "h d_h"],
        w_v: Float[Array, " h"],
    ) -> tuple[Float[Array, "*batch d_h"], Float[Array, "*batch rows columns"]]: ...


class VisionOperations(Generic[Array]):
    """The operations of vision as methods of a backend class."""

    patchify: Patchify[Array]
    patch_embedding: PatchEmbedding[Array]
    vit_encoder: VitEncoder[Array]
    interpolate: Interpolate[Array]
    attention_gate: AttentionGate[Array]
    attention_skip: AttentionSkip[Array]
    spatial_attention: SpatialAttention[Array]


class VisionTable(TypedDict, Generic[Array], total=False):
    """The operations of vision by name, as a typed dictionary."""

    patchify: Patchify[Array]
    patch_embedding: PatchEmbedding[Array]
    vit_encoder: VitEncoder[Array]
    interpolate: Interpolate[Array]
    attention_gate: AttentionGate[Array]
    attention_skip: AttentionSkip[Array]
    spatial_attention: SpatialAttention[Array]
