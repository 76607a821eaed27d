"""Laws of vision."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import DOSOVITSKIY, OKTAY, S3, S4, XU
from attnspec.spec.vision import (
    AttentionGate,
    AttentionSkip,
    Interpolate,
    PatchEmbedding,
    Patchify,
    SpatialAttention,
    VitEncoder,
)

PATCHES_TILE_IMAGE = law(
    "vision.patches-tile-image",
    "Patches hold every number of the image exactly once. Side by side they are the image, bit for bit.",
    formula=r"x_{rC + c} = X_{rP \dots rP + P - 1,\ cP \dots cP + P - 1}",
    governs=of(Patchify),
    sources=[DOSOVITSKIY.passage("3.1")],
)
PATCH_PERMUTATION = law(
    "vision.patch-permutation",
    "Patches have no order but their positions: exchanging two patches and their position embeddings exchanges their "
    "results.",
    formula=r"x_i \leftrightarrow x_j,\ p_i \leftrightarrow p_j \Rightarrow z_i \leftrightarrow z_j,\ z'_0 = z_0",
    governs=of(PatchEmbedding, VitEncoder),
    sources=[DOSOVITSKIY.passage("3.1, equation 1")],
)
CLASS_TOKEN_FIRST = law(
    "vision.class-token-first",
    "The sequence begins with the class token. Without layers, the normalized class token is the whole result.",
    formula=r"z_0 = x_{\text{class}} + p_0,\quad L = 0 \Rightarrow y = \operatorname{LN}(x_{\text{class}} + p_0)",
    governs=of(PatchEmbedding, VitEncoder),
    sources=[DOSOVITSKIY.passage("3.1, equations 1 and 4")],
)
CORNER_ALIGNMENT = law(
    "vision.corner-alignment",
    "With aligned corners, a linear ramp stays a linear ramp on every grid. Without, a grid of twice as many points "
    "puts them at one quarter and three quarters between the old ones.",
    formula=r"x_i = \tfrac{i}{a - 1} \Rightarrow y_j = \tfrac{j}{b - 1};\quad"
    r" b = 2a \Rightarrow y_{2i} = \tfrac14 x_{i-1} + \tfrac34 x_i,\ y_{2i+1} = \tfrac34 x_i + \tfrac14 x_{i+1}",
    governs=of(Interpolate),
    sources=[S4.passage("Attention Unet")],
)
INTERPOLATION_WITHIN_RANGE = law(
    "vision.interpolation-within-range",
    "Interpolated numbers lie between the smallest and the largest of their channel: constants stay constant. "
    "Interpolating to the same grid changes nothing.",
    formula=r"\min_i x_i \le y_j \le \max_i x_i,\quad b = a \Rightarrow y = x",
    governs=of(Interpolate),
    sources=[S4.passage("Attention Unet")],
)
SEPARABLE_INTERPOLATION = law(
    "vision.separable-interpolation",
    "Interpolating slices, rows and columns one after another gives the same as interpolating all of them in one call.",
    formula=r"f_{s,r,c}(x) = f_s(f_r(f_c(x)))",
    governs=of(Interpolate),
    sources=[S4.passage("Attention Unet")],
)
GATE_IN_UNIT_INTERVAL = law(
    "vision.gate-in-unit-interval",
    "Gate coefficients lie in [0, 1], and the gated features are the features times their coefficients.",
    formula=r"0 \le \alpha_i \le 1,\quad \hat x_i = \alpha_i x_i",
    governs=of(AttentionGate),
    sources=[OKTAY.passage("Attention Gates for Image Analysis")],
)
OPEN_AND_CLOSED_GATE = law(
    "vision.open-and-closed-gate",
    "An open gate passes all features unchanged; a closed gate passes none.",
    formula=r"b_\psi = \pm\infty \Rightarrow \hat x = x \text{ or } 0",
    governs=of(AttentionGate, AttentionSkip),
    sources=[OKTAY.passage("Attention Gates for Image Analysis")],
)
SKIP_KEEPS_SIGNAL = law(
    "vision.skip-keeps-signal",
    "The last features of a skip connection are those of the signal, whatever the gate.",
    formula=r"g_i = c\ \forall i \Rightarrow f(x, g)_{d_x + 1 \dots} = c",
    governs=of(AttentionSkip),
    sources=[S4.passage("Attention UNet")],
)
SPATIAL_WEIGHTS_SUM_TO_ONE = law(
    "vision.spatial-weights-sum-to-one",
    "Weights are not negative and sum to 1 over the whole map; they weight the features in the context.",
    formula=r"\alpha_{rc} \ge 0,\quad \sum_{rc} \alpha_{rc} = 1,\quad c = \sum_{rc} \alpha_{rc} h_{rc}",
    governs=of(SpatialAttention),
    sources=[S3.passage("Attention for Caption Generation"), XU.passage("3.1.2")],
)
ROTATED_MAP_ROTATES_WEIGHTS = law(
    "vision.rotated-map-rotates-weights",
    "Attention does not know where a place lies: rotating the map by 180° rotates the weights and keeps the context.",
    formula=r"h'_{rc} = h_{R - 1 - r,\ C - 1 - c} \Rightarrow \alpha'_{rc} = \alpha_{R - 1 - r,\ C - 1 - c},\ c' = c",
    governs=of(SpatialAttention),
    sources=[S3.passage("Attention for Caption Generation")],
)
