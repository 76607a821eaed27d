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

PATCHES = law(
    "vision.patches",
    "Patches hold every number of the image once; put side by side they are the image, bit for bit.",
    formula=r"x_{rC + c} = X_{rP \dots rP + P - 1,\ cP \dots cP + P - 1}",
    governs=of(Patchify),
    sources=[DOSOVITSKIY.passage("3.1")],
)
PATCH_ORDER = law(
    "vision.patch-order",
    "Patches have no order but for their positions: exchanged together with these, they give the same, exchanged.",
    formula=r"x_i \leftrightarrow x_j,\ p_i \leftrightarrow p_j \Rightarrow z_i \leftrightarrow z_j,\ z'_0 = z_0",
    governs=of(PatchEmbedding, VitEncoder),
    sources=[DOSOVITSKIY.passage("3.1, equation 1")],
)
CLASS_TOKEN = law(
    "vision.class-token",
    "The sequence begins with the class token at its position, which without layers is all that is represented.",
    formula=r"z_0 = x_{\text{class}} + p_0,\quad L = 0 \Rightarrow y = \operatorname{LN}(x_{\text{class}} + p_0)",
    governs=of(PatchEmbedding, VitEncoder),
    sources=[DOSOVITSKIY.passage("3.1, equations 1 and 4")],
)
ALIGNMENT = law(
    "vision.alignment",
    "Aligned at the corners, what grows linearly from the first place to the last grows so on the other grid too; "
    "otherwise twice as many places lie at a quarter and at three quarters of the way.",
    formula=r"x_i = \tfrac{i}{a - 1} \Rightarrow y_j = \tfrac{j}{b - 1};\quad"
    r" b = 2a \Rightarrow y_{2i} = \tfrac14 x_{i-1} + \tfrac34 x_i,\ y_{2i+1} = \tfrac34 x_i + \tfrac14 x_{i+1}",
    governs=of(Interpolate),
    sources=[S4.passage("Attention Unet")],
)
INTERPOLATION_HULL = law(
    "vision.interpolation-hull",
    "No interpolated number is less than the least of its channel, or greater than the greatest: a constant stays a "
    "constant. On the grid that there is nothing changes.",
    formula=r"\min_i x_i \le y_j \le \max_i x_i,\quad b = a \Rightarrow y = x",
    governs=of(Interpolate),
    sources=[S4.passage("Attention Unet")],
)
SEPARABILITY = law(
    "vision.separability",
    "Slices, rows and columns interpolated one after another give what they give at once.",
    formula=r"f_{s,r,c}(x) = f_s(f_r(f_c(x)))",
    governs=of(Interpolate),
    sources=[S4.passage("Attention Unet")],
)
GATE_RANGE = law(
    "vision.gate-range",
    "Coefficients lie in [0, 1], and gated features are the features times these.",
    formula=r"0 \le \alpha_i \le 1,\quad \hat x_i = \alpha_i x_i",
    governs=of(AttentionGate),
    sources=[OKTAY.passage("Attention Gates for Image Analysis")],
)
SATURATED_GATE = law(
    "vision.saturated-gate",
    "A gate that is open lets the features pass, one that is shut none.",
    formula=r"b_\psi = \pm\infty \Rightarrow \hat x = x \text{ or } 0",
    governs=of(AttentionGate, AttentionSkip),
    sources=[OKTAY.passage("Attention Gates for Image Analysis")],
)
SKIPPED_SIGNAL = law(
    "vision.skipped-signal",
    "The last features of a skip connection are those of the signal, whatever the gate: constants stay constant.",
    formula=r"g_i = c\ \forall i \Rightarrow f(x, g)_{d_x + 1 \dots} = c",
    governs=of(AttentionSkip),
    sources=[S4.passage("Attention UNet")],
)
SPATIAL_WEIGHTS = law(
    "vision.spatial-weights",
    "Weights are not negative, sum to 1 over the whole map, and the context is the sum of features weighted by them.",
    formula=r"\alpha_{rc} \ge 0,\quad \sum_{rc} \alpha_{rc} = 1,\quad c = \sum_{rc} \alpha_{rc} h_{rc}",
    governs=of(SpatialAttention),
    sources=[S3.passage("Attention for Caption Generation"), XU.passage("3.1.2")],
)
PLACES = law(
    "vision.places",
    "Attention does not know where a place lies: a map turned upside down has its weights so, and the same context.",
    formula=r"h'_{rc} = h_{R - 1 - r,\ C - 1 - c} \Rightarrow \alpha'_{rc} = \alpha_{R - 1 - r,\ C - 1 - c},\ c' = c",
    governs=of(SpatialAttention),
    sources=[S3.passage("Attention for Caption Generation")],
)
