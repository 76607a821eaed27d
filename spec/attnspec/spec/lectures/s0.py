"""S0: Schönhuth, Attention Networks and Diffusion Models, Lecture 2.

Each page, figure and formula is listed with the owners that specify it, or with the reason why it has none. Owners are
operations such as ``softmax``, laws, which have a dot, and errata or misprints such as ``S0-mean``.
``tests/spec/test_lectures.py`` looks them up, and compares headings, captions, LaTeX and the first words of passages,
their second argument, with the lecture's text where it is at hand.
"""

from attnspec.spec.contract.sources import S0
from attnspec.spec.lectures.registry import Lecture, formula, line, page, passage, picture

_SECTION = "the title of a section"
_WITHOUT_WORDS = "a picture without words, which the text of the lecture does not have"
_ILLUSTRATION = "an illustration of what the page says"
_COMPARED = ("convolution_complexity", "rnn_complexity", "self_attention_complexity")

LECTURE = Lecture(
    S0,
    (
        page(
            "Attention Networks and Diffusion Models",
            reason="the title of the lecture",
            items=[
                line("Lecture 2", reason="the number of the lecture"),
                line("Alexander Schönhuth", reason="the name of the lecturer"),
                picture(reason="a picture on the title page"),
            ],
        ),
        page("Attention Networks: Tutorial II", reason=_SECTION),
        page("Attention: Reminder", reason=_SECTION),
        page(
            "ATTENTION: NONVOLITIONAL CUES",
            reason="how people attend, from psychology: nothing is computed",
            items=[picture(reason=_ILLUSTRATION)],
        ),
        page(
            "ATTENTION: VOLITIONAL CUES",
            reason="how people attend, from psychology: nothing is computed",
            items=[picture(reason=_ILLUSTRATION)],
        ),
        page("Queries, Keys and Values", reason=_SECTION),
        page(
            "ATTENTION: QUERIES, KEYS AND VALUES I",
            reason="what queries are for, in words; no formula yet",
            items=[line("MOTIVATION", reason="a subtitle of the page"), picture("attention_pooling")],
        ),
        page(
            "ATTENTION: QUERIES, KEYS AND VALUES II",
            reason="what weights and inputs are in an ordinary neuron",
            items=[line("SOLUTION", reason="a subtitle of the page"), picture("attention_pooling")],
        ),
        page(
            "ATTENTION: QUERIES, KEYS AND VALUES III",
            "attention_pooling",
            items=[line("ATTENTION POOLING", "attention_pooling"), picture("attention_pooling")],
        ),
        page(
            "ATTENTION: QUERIES, KEYS AND VALUES IV",
            "attention_pooling",
            "attention.hardmax-limit",
            items=[line("ATTENTION POOLING", "attention_pooling"), picture("attention_pooling")],
        ),
        page("Attention Pooling", reason=_SECTION),
        page(
            "ATTENTION POOLING: FORMAL SUMMARY",
            "attention_pooling",
            "softmax",
            items=[
                formula(
                    r"f(\mathbf{q}, (\mathbf{k}_1, \mathbf{v}_1), \dots, (\mathbf{k}_m, \mathbf{v}_m)) = "
                    r"\sum_{i=1}^m \alpha(\mathbf{q}, \mathbf{k}_i) \mathbf{v}_i \in \mathbb{R}^v \quad (1)",
                    "attention_pooling",
                    "additive_attention",
                ),
                formula(
                    r"\alpha(\mathbf{q}, \mathbf{k}_i) = \text{softmax}(a(\mathbf{q}, \mathbf{k}_i)) = "
                    r"\frac{\exp(a(\mathbf{q}, \mathbf{k}_i))}{\sum_{j=1}^m \exp(a(\mathbf{q}, \mathbf{k}_j))} "
                    r"\quad (2)",
                    "softmax",
                    "additive_attention",
                    "S0-softmax-of-a-scalar",
                ),
                formula(
                    r"a : \mathbb{R}^q \times \mathbb{R}^k \longrightarrow \mathbb{R} \quad (3)",
                    "dot_scores",
                    "scaled_dot_scores",
                    "additive_scores",
                ),
            ],
        ),
        page(
            "ADDITIVE ATTENTION SCORING",
            "additive_scores",
            "scoring.additive-is-perceptron",
            items=[
                formula(
                    r"a(\mathbf{q}, \mathbf{k}) = \mathbf{w}_v^T \tanh(\mathbf{W}_q \mathbf{q} + \mathbf{W}_k "
                    r"\mathbf{k}) \in \mathbb{R} \quad (4)",
                    "additive_scores",
                    "additive_attention",
                    "multi_head_additive_attention",
                ),
            ],
        ),
        page(
            "SCALED DOT-PRODUCT ATTENTION SCORING I",
            "scaled_dot_scores",
            items=[
                formula(
                    r"a(\mathbf{q}, \mathbf{k}) = \mathbf{q}^T \mathbf{k} / \sqrt{d} \quad (5)",
                    "scaled_dot_scores",
                    "dot_product_variance",
                    "S0-mean",
                    "S0-variance",
                ),
                passage("note", "*Note:* Dot product", "dot_product_variance", "S0-mean", "S0-variance"),
            ],
        ),
        page(
            "SCALED DOT-PRODUCT ATTENTION SCORING II",
            "scaled_dot_product_attention",
            items=[
                formula(
                    r"\text{softmax}\left(\frac{\mathbf{Q}\mathbf{K}^T}{\sqrt{d}}\right)\mathbf{V} \in "
                    r"\mathbb{R}^{n \times v} \quad (6)",
                    "scaled_dot_product_attention",
                    "S0-distinct-queries",
                ),
                passage("different queries", "different queries yield", "S0-distinct-queries"),
            ],
        ),
        page("Multi-Head Attention", reason=_SECTION),
        page("MULTI-HEAD ATTENTION I", reason="why there are several heads: a motivation, no formula"),
        page("MULTI-HEAD ATTENTION II", "multi_head_attention"),
        page(
            "MULTI-HEAD ATTENTION III",
            "multi_head_attention",
            "multi_head_additive_attention",
            items=[
                formula(
                    r"\mathbf{h}_i = f(\mathbf{W}_i^{(q)} \mathbf{q}, \mathbf{W}_i^{(k)} \mathbf{k}, "
                    r"\mathbf{W}_i^{(v)} \mathbf{v}) \in \mathbb{R}^{p_v} \quad (7)",
                    "multi_head_attention",
                    "multi_head_additive_attention",
                    "S0-head-of-one-pair",
                ),
            ],
        ),
        page(
            "MULTI-HEAD ATTENTION IV",
            "multi_head_attention",
            items=[
                picture("multi_head_attention"),
                formula(
                    r"\mathbf{h}_i = f(\mathbf{W}_i^{(q)} \mathbf{q}, \mathbf{W}_i^{(k)} \mathbf{k}, "
                    r"\mathbf{W}_i^{(v)} \mathbf{v}) \in \mathbb{R}^{p_v} \quad (8)",
                    "multi_head_attention",
                ),
            ],
        ),
        page(
            "MULTI-HEAD ATTENTION V",
            "multi_head_attention",
            items=[
                formula(
                    r"\mathbf{h}_i = f(\mathbf{W}_i^{(q)} \mathbf{q}, \mathbf{W}_i^{(k)} \mathbf{k}, "
                    r"\mathbf{W}_i^{(v)} \mathbf{v}) \in \mathbb{R}^{p_v} \quad (9)",
                    "multi_head_attention",
                ),
                formula(
                    r"\mathbf{W}_o \begin{bmatrix} \mathbf{h}_1 \\ \vdots \\ \mathbf{h}_h \end{bmatrix} \in "
                    r"\mathbb{R}^{p_o} \quad (10)",
                    "multi_head_attention",
                    "multi_head_additive_attention",
                ),
            ],
        ),
        page(
            "MULTI-HEAD ATTENTION VI",
            "multi_head_attention",
            items=[
                picture("multi_head_attention"),
                formula(
                    r"\mathbf{W}_o[\mathbf{h}_1^T, \dots, \mathbf{h}_h^T]^T \in \mathbb{R}^{p_o} \quad (11)",
                    "multi_head_attention",
                ),
            ],
        ),
        page("Encoder-Decoder Architectures", reason=_SECTION),
        page("Motivation: Sequence-2-Sequence Models", reason=_SECTION),
        page("SEQUENCE-2-SEQUENCE MODELS I", reason="what translation is: a task, no formula"),
        page(
            "SEQUENCE-2-SEQUENCE MODELS II",
            reason="a picture of the task of translation",
            items=[picture(reason=_WITHOUT_WORDS)],
        ),
        page(
            "SEQUENCE-2-SEQUENCE MODELS III",
            reason="a picture of the task of translation",
            items=[picture(reason=_WITHOUT_WORDS)],
        ),
        page("Encoder-Decoder Architecture", reason=_SECTION),
        page(
            "ENCODER-DECODER ARCHITECTURE I",
            "encoder_context",
            "decoder_step",
            items=[picture("encoder_context", "decoder_step")],
        ),
        page(
            "ENCODER-DECODER ARCHITECTURE II",
            reason="a picture of encoder and decoder",
            items=[picture(reason=_WITHOUT_WORDS)],
        ),
        page(
            "ENCODER-DECODER ARCHITECTURE III",
            reason="a picture of encoder and decoder",
            items=[picture(reason=_WITHOUT_WORDS)],
        ),
        page("Encoder-Decoder using RNN's", reason=_SECTION),
        page("ENCODER-DECODER: RNN REMINDER", "rnn_cell", "rnn_output", items=[picture("rnn_cell", "rnn_output")]),
        page("ENCODER-DECODER RNN I", "rnn", "encoder_context", "decoder_step", items=[picture("rnn", "decoder_step")]),
        page("ENCODER-DECODER RNN II", "rnn", "greedy_decode", items=[picture("rnn", "greedy_decode")]),
        page(
            "ENCODER-DECODER: CONTEXT",
            "encoder_context",
            "S0-dimension-of-the-context",
            items=[picture("encoder_context")],
        ),
        page("ENCODER-DECODER: WORD EMBEDDING", "embed", items=[picture("embed")]),
        page(
            "RNN ENCODER: FORMAL DESCRIPTION",
            "rnn_cell",
            "rnn",
            "encoder_context",
            items=[
                formula(r"f(\mathbf{x}_t, \mathbf{h}_{t-1}) \quad (12)", "rnn_cell", "rnn"),
                formula(r"\mathbf{c} = q(\mathbf{h}_1, \dots, \mathbf{h}_T) \quad (13)", "encoder_context"),
            ],
        ),
        page(
            "RNN DECODER: FORMAL DESCRIPTION",
            "decoder_step",
            "output_distribution",
            items=[
                formula(r"\mathbf{P}(y_{t'+1} \mid y_1, \dots, y_{t'}, \mathbf{c}) \quad (14)", "output_distribution"),
                formula(r"\mathbf{s}_{t'} = g(y_{t'}, \mathbf{c}, \mathbf{s}_{t'-1}) \quad (15)", "decoder_step"),
            ],
        ),
        page("TRAINING: TEACHER FORCING", "teacher_forced_decode", items=[picture("teacher_forced_decode")]),
        page("PREDICTION: TOKEN BY TOKEN", "greedy_decode", "beam_decode", items=[picture("greedy_decode")]),
        page("Attention II", reason=_SECTION),
        page("Bahdanau Attention", reason=_SECTION),
        page("BAHDANAU ATTENTION: MOTIVATION", reason="why one context is too little for long sentences: history"),
        page(
            "BAHDANAU ATTENTION: FORMAL DEFINITION",
            "bahdanau_context",
            items=[
                formula(
                    r"\mathbf{c}_{t'} = \sum_{t=1}^T \alpha(\mathbf{s}_{t'-1}, \mathbf{h}_t) \mathbf{h}_t \quad "
                    "(16)",
                    "bahdanau_context",
                    "decoder_step",
                ),
            ],
        ),
        page(
            "BAHDANAU ATTENTION: SCHEMATIC",
            "bahdanau_context",
            items=[
                picture("bahdanau_context"),
                line("Schematic of Bahdanau Attention", "bahdanau_context"),
                picture("bahdanau_context"),
                passage(
                    "generated tokens",
                    "One can integrate already generated tokens",
                    reason="a variant that the lecture leaves to a paper; the attention itself remains (16)",
                ),
            ],
        ),
        page("Self-Attention", reason=_SECTION),
        page("SELF-ATTENTION: DEFINITION", "self_attention"),
        page(
            "SELF-ATTENTION: FORMAL SUMMARY",
            "self_attention",
            items=[
                formula(
                    r"\mathbf{y}_i := f(\mathbf{x}_i, ((\mathbf{x}_1, \mathbf{x}_1), \dots, (\mathbf{x}_n, "
                    r"\mathbf{x}_n))) = \sum_{j=1}^n \alpha(\mathbf{x}_i, \mathbf{x}_j) \mathbf{x}_j \in "
                    r"\mathbb{R}^d \quad (17)",
                    "self_attention",
                ),
            ],
        ),
        *[
            page(f"COMPUTATIONAL COMPLEXITY: COMPARISON {number}", *_COMPARED, items=[picture(*_COMPARED)])
            for number in ("I", "II", "III")
        ],
        page(
            "COMPUTATIONAL COMPLEXITY: CNN'S",
            "convolution",
            "convolution_complexity",
            "S0-path-of-convolutions",
            items=[picture("convolution_complexity")],
        ),
        page("COMPUTATIONAL COMPLEXITY: RNN'S", "rnn_complexity", items=[picture("rnn_complexity")]),
        page(
            "COMPUTATIONAL COMPLEXITY: SELF-ATTENTION",
            "self_attention_complexity",
            "scaled_dot_product_attention",
            "S0-projections",
            "S0-sequential-operations",
            items=[picture("self_attention_complexity")],
        ),
    ),
)
