"""S4: He, Attention. The title pages between its parts are not in the text.

Each page, figure and formula is listed with the owners that specify it, or with the reason why it has none. Owners are
operations such as ``softmax``, laws, which have a dot, and errata or misprints such as ``S4-kernel``.
``tests/spec/test_lectures.py`` looks them up, and compares headings, captions, LaTeX and the first words of passages,
their second argument, with the lecture's text where it is at hand.
"""

from attnspec.spec.contract.sources import S4
from attnspec.spec.lectures.registry import Lecture, formula, line, page, passage, picture, table

LECTURE = Lecture(
    S4,
    (
        page("Attention", reason="the title of the lecture"),
        page("Table of Contents", reason="the titles of the parts"),
        page(
            "RNN",
            "rnn_cell",
            "rnn",
            "rnn_output",
            items=[
                picture("rnn_cell"),
                formula(r"H_t = \phi \left( X_t W_{xh} + H_{t-1} W_{hh} + b_h \right)", "rnn_cell"),
                formula("O_t = H_t W_{hq} + b_q", "rnn_output"),
                formula(r"X_t \in \mathbb{R}^{n \times d}", "rnn_cell", "rnn_output"),
            ],
        ),
        page("GRU Gated Recurrent Unit", "gru_cell", "gru", items=[picture("gru_cell")]),
        page(
            "GRU Gated Recurrent Unit",
            "gru_cell",
            "gru",
            items=[
                formula(r"R_t = \sigma \left( X_t W_{xr} + H_{t-1} W_{hr} + b_r \right)", "gru_cell"),
                formula(r"Z_t = \sigma \left( X_t W_{xz} + H_{t-1} W_{hz} + b_z \right)", "gru_cell"),
                formula(
                    r"\tilde{H}_t = \tanh \left( X_t W_{xh} + \left( R_t \odot H_{t-1} \right) W_{hh} + b_h "
                    r"\right)",
                    "gru_cell",
                ),
                formula(r"H_t = Z_t \odot H_{t-1} + \left( 1 - Z_t \right) \odot \tilde{H}_t", "gru_cell"),
            ],
        ),
        page("LSTM", "lstm_cell", "lstm", items=[picture("lstm_cell")]),
        page(
            "LSTM",
            "lstm_cell",
            "lstm",
            items=[
                formula(r"I_{t} = \sigma \left( X_{t} W_{xi} + H_{t-1} W_{hi} + b_{i} \right)", "lstm_cell"),
                formula(r"F_{t} = \sigma \left( X_{t} W_{xf} + H_{t-1} W_{hf} + b_{f} \right)", "lstm_cell"),
                formula(r"O_{t} = \sigma \left( X_{t} W_{xo} + H_{t-1} W_{ho} + b_{o} \right)", "lstm_cell"),
                formula(r"\tilde{C}_{t} = \tanh \left( X_{t} W_{xc} + H_{t-1} W_{hc} + b_{c} \right)", "lstm_cell"),
                formula(r"C_{t} = F_{t} \odot C_{t-1} + I_{t} \odot \tilde{C}_{t}", "lstm_cell"),
                formula(r"H_{t} = O_{t} \odot \tanh(C_{t})", "lstm_cell"),
                picture("lstm_cell"),
            ],
        ),
        page("Encoder-Decoder", "encoder_context", "decoder_step", items=[picture("encoder_context", "decoder_step")]),
        page(
            "Encoder-Decoder",
            "encoder_context",
            "decoder_step",
            "output_distribution",
            "S4-two-functions",
            items=[picture("encoder_context", "decoder_step")],
        ),
        page(
            "Attention Prompt",
            "average_pooling",
            "attention_pooling",
            "S4-function",
            items=[
                formula(r"f(x) = \frac{1}{n} \sum_{i=1}^{n} y_i", "average_pooling"),
                formula(r"f(x) = \sum_{i=1}^{n} \alpha(x, x_i) y_i", "attention_pooling"),
            ],
        ),
        page(
            "Attention Prompt",
            "nadaraya_watson",
            "gaussian_scores",
            items=[
                formula(r"\alpha(x, x_i) = \frac{K(x - x_i)}{\sum_j K(x - x_j)}", "nadaraya_watson", "S4-kernel"),
                formula(
                    r"K(u) = \frac{1}{\sqrt{2\pi}} \exp\left(-\frac{u^2}{2}\right)",
                    "nadaraya_watson",
                    "gaussian_scores",
                ),
                passage("parametric", "• parametric: learnable", "additive_scores", "general_scores"),
                picture("nadaraya_watson"),
            ],
        ),
        page("Transformer", "encoder_decoder"),
        page(
            "Architecture",
            "encoder_decoder",
            items=[
                picture("encoder_decoder"),
                line("Encoder:", "encoder_layer", "encoder_stack", "feed_forward", name="Encoder"),
                line("Decoder:", "decoder_layer", "decoder_stack", name="Decoder"),
                line("Others:", "layer_norm", "add_positions", name="Others"),
            ],
        ),
        page(
            "Scoring Function",
            "scaled_dot_scores",
            "scaled_dot_product_attention",
            items=[
                line("Scaled Dot-Product Attention", "scaled_dot_product_attention"),
                formula(
                    r"Attention(Q, K, V) = \operatorname{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)V",
                    "scaled_dot_product_attention",
                ),
                formula(
                    r"Q \in \mathbb{R}^{n \times d_k} \quad K \in \mathbb{R}^{m \times d_k} \quad V \in "
                    r"\mathbb{R}^{m \times d_v}",
                    "scaled_dot_product_attention",
                ),
            ],
        ),
        page(
            "Multi-Head Attention",
            "multi_head_attention",
            items=[
                formula(
                    "Multihead(Q, K, V) = Concat(head_1, ..., head_n) W^O", "multi_head_attention", "S4-number-of-heads"
                ),
                picture("multi_head_attention"),
            ],
        ),
        page(
            "Self-Attention",
            "self_attention",
            "S4-function-of-itself",
            items=[formula(r"\{f(x_i), 1 \leq i \leq n\}", "self_attention")],
        ),
        page(
            "Positional Encoding",
            "sinusoidal_positional_encoding",
            "add_positions",
            "positional.distinct-positions",
            "S4-unique-values",
            items=[
                formula(
                    r"p_{pos,2i} = \sin\left(\frac{i}{10000^{2i/d}}\right)",
                    "sinusoidal_positional_encoding",
                    "S4-position",
                ),
                formula(
                    r"p_{pos,2i+1} = \cos\left(\frac{i}{10000^{2i/d}}\right)",
                    "sinusoidal_positional_encoding",
                    "S4-position",
                ),
                picture("sinusoidal_positional_encoding"),
            ],
        ),
        page(
            "Recap",
            reason="a recapitulation without words",
            items=[picture(reason="a picture without words, which the text of the lecture does not have")],
        ),
        page("VIT Vision Transformer", "patchify", "patch_embedding", "vit_encoder", items=[picture("vit_encoder")]),
        page("Attention UNet", "attention_skip", "attention_gate", items=[picture("attention_skip")]),
        page("Attention Unet", "attention_gate", "attention_skip", "interpolate", items=[picture("attention_gate")]),
        page(
            "Inductive Bias",
            "convolution",
            "graph_layer",
            "S4-invariance",
            items=[
                table(
                    "Component Entities Relations Rel. inductive bias Invariance",
                    "convolution",
                    "graph_layer",
                    "complexity.translation-equivariance",
                    "complexity.locality",
                    "recurrent.resumes-from-state",
                    "attention.permutation-equivariance",
                    "S4-invariance",
                ),
            ],
        ),
    ),
)
