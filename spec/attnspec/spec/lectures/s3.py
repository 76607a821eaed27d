"""S3: CSC413 Lecture 9, Attention Mechanism.

Each page, figure and formula is listed with the owners that specify it, or with the reason why it has none. Owners are
operations such as ``softmax``, laws, which have a dot, and errata or misprints such as ``S3-average``.
``tests/spec/test_lectures.py`` looks them up, and compares headings, captions, LaTeX and the first words of passages,
their second argument, with the lecture's text where it is at hand.
"""

from attnspec.spec.contract.sources import S3
from attnspec.spec.lectures.registry import Lecture, figure, formula, line, page, picture

_SECTION = "the title of a section"

_CONTEXT = formula(r"\mathbf{c}^{(i)} = \sum_j \alpha_{ij} \mathbf{h}^{(j)}", "bahdanau_context", "attention_pooling")
_ALIGNMENT = ("bahdanau_context", "additive_scores")
_SCORES = formula(r"e_{ij} = a(\mathbf{s}^{(i-1)}, \mathbf{h}^{(j)})", *_ALIGNMENT)
_WEIGHTS = formula(r"\alpha_{ij} = \frac{\exp(e_{ij})}{\sum_{j'} \exp(e_{ij'})}", "bahdanau_context", "softmax")

# Shared, since the lecture shows the vectors of its example six times.
_VECTOR = "a vector of the example; see the tests of worked examples"
_ANNOTATIONS = (
    formula(r"\mathbf{h}^{(1)} = [1 \quad 3 \quad 9]^T", reason=_VECTOR),
    formula(r"\mathbf{h}^{(2)} = [0 \quad 0 \quad 1]^T", reason=_VECTOR),
    formula(r"\mathbf{h}^{(3)} = [5 \quad -1 \quad 2]^T", reason=_VECTOR),
)
_UNKNOWN = formula(
    r"\mathbf{c}^{(t)} = [? \quad ? \quad ?]^T", reason="a question: the context of the example is not known yet"
)
_AVERAGE = formula(
    r"\begin{aligned}\mathbf{c}^{(t)} &= \text{average}(\mathbf{h}^{(1)}, \mathbf{h}^{(2)}, "
    r"\mathbf{h}^{(3)}) \\ &= [2 \quad 0.6 \quad 1]^T\end{aligned}",
    "average_pooling",
    "S3-average",
)
_STATE = formula(r"\mathbf{s}^{(t-1)} = [0 \quad 1 \quad 1]^T", reason=_VECTOR)
_SOFTMAX = formula(
    r"\alpha_t = \text{softmax} \left(\begin{bmatrix} f(\mathbf{s}^{(t-1)}, \mathbf{h}^{(1)}) \\"
    r" f(\mathbf{s}^{(t-1)}, \mathbf{h}^{(2)}) \\ f(\mathbf{s}^{(t-1)}, \mathbf{h}^{(3)}) "
    r"\end{bmatrix} \right) = \begin{bmatrix} \alpha_{t1} \\ \alpha_{t2} \\ \alpha_{t3} "
    r"\end{bmatrix}",
    "softmax",
)
_DOT = formula(
    r"\alpha_t = \text{softmax} \left(\begin{array}{c} \mathbf{s}^{(t-1)} \cdot \mathbf{h}^{(1)}"
    r" \\ \mathbf{s}^{(t-1)} \cdot \mathbf{h}^{(2)} \\ \mathbf{s}^{(t-1)} \cdot \mathbf{h}^{(3)}"
    r" \end{array} \right) = \begin{array}{c} \alpha_{t1} \\ \alpha_{t2} \\ \alpha_{t3} "
    r"\end{array}",
    "dot_scores",
    "softmax",
)
_DOT_IN_NUMBERS = formula(
    r"\alpha_t = \text{softmax} \left(\begin{pmatrix} [1 & 0 & 5]^T \\ [3 & 0 & -1]^T \\ [0 & 1 "
    r"& 2]^T \end{pmatrix} \begin{bmatrix} 0 \\ 1 \\ 1 \end{bmatrix} \right)",
    "dot_product_attention",
    "S3-score-matrix",
    "S3-transposes",
)
_POOLED = formula(
    r"\mathbf{c}^{(t)} = \alpha_{t1} \mathbf{h}^{(1)} + \alpha_{t2} \mathbf{h}^{(2)} + "
    r"\alpha_{t3} \mathbf{h}^{(3)}",
    "attention_pooling",
    "dot_product_attention",
)

_SCALED = formula(
    r"\mathbf{c}^{(t)} = \text{attention}(Q, K, V) = "
    r"\text{softmax}\left(\frac{QK^T}{\sqrt{d_K}}\right) V",
    "scaled_dot_product_attention",
    "scaled_dot_scores",
)
_RECALLED = formula(
    r"\alpha_t = \text{softmax} \left(\begin{pmatrix} [1 & 0 & 5]^T \\ [3 & 0 & -1]^T \\ [0 & 1 "
    r"& 2]^T \end{pmatrix} \begin{pmatrix} [0] \\ [1] \\ [1] \end{pmatrix} \right)",
    "dot_product_attention",
    "S3-score-matrix",
    "S3-transposes",
)
_SCALED_IN_NUMBERS = formula(
    r"\alpha_t = \text{softmax} \left(\frac{1}{\sqrt{3}} \begin{bmatrix} 1 & 0 & 5 \\ 3 & 0 & -1"
    r" \\ 0 & 1 & 2 \end{bmatrix}^T \begin{bmatrix} 0 \\ 1 \\ 1 \end{bmatrix} \right)",
    "scaled_dot_product_attention",
    "S3-score-matrix",
)
_HEAD = formula(r"\mathbf{c}_i = \text{attention}(QW_i^Q, KW_i^K, VW_i^V)", "multi_head_attention")
_HEADS = formula(
    r"\text{MultiHead}(Q, K, V) = \text{concat}(\mathbf{c}_1, \dots, \mathbf{c}_h)W^O", "multi_head_attention"
)

LECTURE = Lecture(
    S3,
    (
        page(
            "CSC413 Neural Networks and Deep Learning",
            reason="the title of the course",
            items=[
                line("Lecture 9: Attention Mechanism", reason="the title of the lecture"),
                line("Lecture 9", reason="the number of the lecture"),
                line("March 12/14, 2024", reason="the date of the lecture"),
            ],
        ),
        page("Section 1", reason=_SECTION, items=[line("Recurrent Neural Networks with Attention", reason=_SECTION)]),
        page("Recurrent Neural Networks", reason="what other lectures and tutorials show"),
        page(
            "Sequence-to-sequence tasks",
            reason="what translation is: a task, no formula",
            items=[picture(reason="an illustration of what the page says")],
        ),
        page(
            "How Seq2Seq works", "encoder_context", "decoder_step", items=[picture("encoder_context", "decoder_step")]
        ),
        page("Attention-Based Machine Translation", reason="the paper of Bahdanau 2015 and its idea: history"),
        page("Encoder & Decoder Architectures", "bidirectional_rnn", "bahdanau_context"),
        page(
            "Encoder: Bidirectional RNN",
            "bidirectional_rnn",
            "bidirectional_lstm",
            "bidirectional_gru",
            "gru",
            "lstm",
            items=[picture("bidirectional_rnn")],
        ),
        page(
            "Decoder: RNN with attention",
            "decoder_step",
            "bahdanau_context",
            items=[picture("decoder_step", "bahdanau_context")],
        ),
        page(
            "Intuition behind “attending to the input”",
            reason="what a translator does, in words",
            items=[line("If you were programming a translator, you might", reason="what a translator does, in words")],
        ),
        page(
            "The math behind “attending to the input”",
            "bahdanau_context",
            "attention.permutation-equivariance",
            items=[_CONTEXT, _SCORES, _WEIGHTS],
        ),
        page(
            "Example: how to obtain a context vector?",
            reason="the question that the next pages answer",
            items=[*_ANNOTATIONS, _UNKNOWN],
        ),
        page("Example: average pooling is context independent", "average_pooling", items=[*_ANNOTATIONS, _AVERAGE]),
        page("Example: Attention", "softmax", items=[*_ANNOTATIONS, _STATE, _SOFTMAX]),
        page("Example: Dot-Product Attention", "dot_scores", items=[*_ANNOTATIONS, _STATE, _DOT]),
        page(
            "Example: Dot-Product Attention",
            "dot_product_attention",
            items=[*_ANNOTATIONS, _STATE, _DOT_IN_NUMBERS, _POOLED],
        ),
        page("Attention Demo Video", reason="a link to a film of the lecture"),
        page(
            "Visualization of Attention",
            reason="a picture of the weights of a trained model",
            items=[picture(reason="the weights of a trained model as a map")],
        ),
        page(
            "Attention Performance",
            reason="how well a trained model translates: measured, not computed",
            items=[picture(reason="the quality of translations by the length of sentences")],
        ),
        page("Attention-Based Caption Generation", reason="what captions are: a task, and the paper of Xu 2015"),
        page(
            "Attention for Caption Generation",
            "spatial_attention",
            items=[formula(_SCORES.text, "spatial_attention"), formula(_WEIGHTS.text, "spatial_attention")],
        ),
        page(
            "What Attention tells us",
            reason="examples of captions from a trained model",
            items=[
                picture(reason="photographs with captions"),
                line("A bird flying over a body of water •", reason="the caption of a photograph"),
                picture(reason="photographs with captions"),
            ],
        ),
        page(
            "What Attention tells us about mistakes",
            reason="examples of wrong captions from a trained model",
            items=[picture(reason="photographs with wrong captions")],
        ),
        page("Multi-Layer RNNs", "stacked_rnn", "stacked_gru", "stacked_lstm", items=[picture("stacked_rnn")]),
        page("RNN Disadvantage", "rnn_complexity", "seq2seq_complexity"),
        page("Section 2", reason=_SECTION, items=[line("Transformer", reason=_SECTION)]),
        page(
            "Transformer",
            "encoder_decoder",
            items=[
                figure(
                    "Figure 1: The Transformer - model architecture.",
                    "encoder_decoder",
                    "encoder_layer",
                    "decoder_layer",
                ),
                figure("Figure 1: typical encoder-decoder blocks of a transformer", "encoder_decoder"),
            ],
        ),
        page("Attention Mapping", "scaled_dot_product_attention", "scaled_dot_scores", items=[_SCALED]),
        page(
            "Attention Mapping in the decoder",
            "causal_mask",
            "masking.future-invariance",
            items=[picture("causal_mask")],
        ),
        page(
            "Recall: Dot-Product Attention", "dot_product_attention", items=[*_ANNOTATIONS, _STATE, _RECALLED, _POOLED]
        ),
        page(
            "Scaled Dot-Product Attention",
            "scaled_dot_product_attention",
            items=[
                *_ANNOTATIONS,
                _STATE,
                _SCALED_IN_NUMBERS,
                _POOLED,
                line("Q: Which values represent the Q, K, and V?", "scaled_dot_product_attention"),
            ],
        ),
        page(
            "Attending to the input (encoder)",
            "cross_attention",
            items=[figure("Figure 2: how the encoder contributes K and V", "cross_attention", "decoder_layer")],
        ),
        page(
            "Self-attention",
            "projected_self_attention",
            "decoder_layer",
            items=[
                figure(
                    "Figure 3: feeding to deeper layers and future hidden states",
                    "decoder_stack",
                    "masking.future-invariance",
                ),
            ],
        ),
        page(
            "Multi-headed Attention",
            "multi_head_attention",
            items=[
                line("But humans can attend to many things simultaneously", reason="a motivation for several heads"),
                _HEAD,
                _HEADS,
            ],
        ),
        page("Input Sequence Order", "attention.permutation-equivariance", "S3-order", items=[_HEAD, _HEADS]),
        page(
            "Positional Encoding",
            "sinusoidal_positional_encoding",
            "add_positions",
            "concat_positions",
            "S3-concatenated-positions",
            items=[
                formula(r"PE_{pos,2i} = \sin(pos/10000^{2i/d_{emb}})", "sinusoidal_positional_encoding"),
                formula(r"PE_{pos,2i+1} = \cos(pos/10000^{2i/d_{emb}})", "sinusoidal_positional_encoding"),
                figure("Figure 4: sinusoidal position encodings visualized", "sinusoidal_positional_encoding"),
            ],
        ),
        page(
            "Transformer Machine Translation",
            "encoder_layer",
            "encoder_stack",
            "encoder_decoder",
            "transformer.zero-sublayers-identity",
            items=[figure("Figure 5: typical encoder-decoder blocks of a transformer", "encoder_decoder")],
        ),
        page(
            "Visualizing Attention",
            reason="the weights of a trained model on one sentence",
            items=[figure("Figure 6: visualized attention on a sentence", reason="the weights of a trained model")],
        ),
        page(
            "Backprop",
            "seq2seq_complexity",
            "seq2seq_attention_complexity",
            items=[
                figure(
                    "Figure 7: backprop paths in RNNs vs transformers",
                    "seq2seq_complexity",
                    "seq2seq_attention_complexity",
                ),
            ],
        ),
        page("Transformer Tutorial", reason="a link to a film on the web"),
        page("Transformer Language Pre-Training", "decoder_only", items=[picture("decoder_only")]),
        page(
            "GPT-3: Generating an Article",
            reason="a text that a trained model wrote",
            items=[line("Title: United Methodists Agree to Historic Split", reason="the title of that text")],
        ),
        page("GPT-3: Correcting English Grammar", reason="sentences that a trained model wrote"),
        page("Large Language Models (LLMs)", "decoder_only", "encoder_only", "S3-GPT"),
    ),
)
