"""Sources: the five lectures, the papers that they cite, the papers of kernels; and citations.

A citation names a numbered equation, ``S0.equation(4)``, or a passage, ``S2.passage("masked decoder")``.
Every numbered equation is cited by an operation.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Citation:
    """Citation of a numbered equation, or of a passage by its heading."""

    source: str
    equation: int | None = None
    passage: str | None = None

    def __str__(self) -> str:
        if self.equation is not None:
            return f"{self.source}({self.equation})"
        return f"{self.source} “{self.passage}”"


@dataclass(frozen=True)
class Source:
    """A lecture or paper; ``equations`` describes each numbered equation, ``url`` is needed without an arXiv number."""

    key: str
    title: str
    equations: Mapping[int, str] = field(default_factory=dict)
    url: str = ""

    @property
    def address(self) -> str:
        """URL of a paper; empty for a lecture."""
        arxiv = re.search(r"arXiv:(\d+\.\d+)", self.title)
        return f"https://arxiv.org/abs/{arxiv[1]}" if arxiv else self.url

    def equation(self, number: int) -> Citation:
        """Cite a numbered equation; raises ``KeyError`` for a number that the source does not have."""
        if number not in self.equations:
            raise KeyError(f"{self.key} has equations {sorted(self.equations)}, not {number}")
        return Citation(self.key, equation=number)

    def passage(self, heading: str) -> Citation:
        """Cite a passage by its heading."""
        return Citation(self.key, passage=heading)


S0 = Source(
    "S0",
    "Schönhuth, Attention Networks and Diffusion Models, Lecture 2 (Bielefeld 2023)",
    {
        1: "attention pooling: f = Σᵢ α(q, kᵢ) vᵢ",
        2: "attention weight: α = softmax(a(q, kᵢ))",
        3: "attention scoring function: a maps a query and a key to a scalar",
        4: "additive scoring: w_vᵀ tanh(W_q q + W_k k)",
        5: "scaled dot-product scoring: qᵀk/√d",
        6: "scaled dot-product attention on minibatches: softmax(QKᵀ/√d) V",
        7: "attention head: hᵢ = f(Wᵢ⁽q⁾ q, Wᵢ⁽k⁾ k, Wᵢ⁽v⁾ v)",
        8: "attention head, repeated",
        9: "attention head, repeated",
        10: "multi-head output: W_o [h₁; …; h_h]",
        11: "multi-head output: W_o [h₁ᵀ, …, h_hᵀ]ᵀ",
        12: "encoder state: f(x_t, h_{t−1})",
        13: "context variable: c = q(h₁, …, h_T)",
        14: "output distribution: P(y_{t'+1} | y₁, …, y_{t'}, c)",
        15: "decoder state: s_{t'} = g(y_{t'}, c, s_{t'−1})",
        16: "Bahdanau context: c_{t'} = Σ_t α(s_{t'−1}, h_t) h_t",
        17: "self-attention: yᵢ = Σⱼ α(xᵢ, xⱼ) xⱼ",
    },
)
S1 = Source("S1", "Wang, Attention Mechanism, Part 1")
S2 = Source("S2", "Zhang, CS 182/282A Spring 2022, Discussion 7")
S3 = Source("S3", "CSC413 Lecture 9, Attention Mechanism (2024)")
S4 = Source("S4", "He, Attention (2022)")

AINSLIE = Source(
    "Ainslie 2023",
    "GQA: training generalized multi-query transformer models from multi-head checkpoints (arXiv:2305.13245)",
)
BA = Source("Ba 2016", "Layer normalization (arXiv:1607.06450)")
BAHDANAU = Source(
    "Bahdanau 2015", "Neural machine translation by jointly learning to align and translate (arXiv:1409.0473)"
)
BELTAGY = Source("Beltagy 2020", "Longformer: the long-document transformer (arXiv:2004.05150)")
DAO = Source(
    "Dao 2022", "FlashAttention: fast and memory-efficient exact attention with IO-awareness (arXiv:2205.14135)"
)
DEEPSEEK = Source(
    "DeepSeek-AI 2024",
    "DeepSeek-V2: a strong, economical, and efficient mixture-of-experts language model (arXiv:2405.04434)",
)
DEEPSEEK_SPARSE = Source(
    "DeepSeek-AI 2025", "DeepSeek-V3.2: pushing the frontier of open large language models (arXiv:2512.02556)"
)
DEVLIN = Source(
    "Devlin 2019", "BERT: pre-training of deep bidirectional transformers for language understanding (arXiv:1810.04805)"
)
DOSOVITSKIY = Source(
    "Dosovitskiy 2021", "An image is worth 16x16 words: transformers for image recognition at scale (arXiv:2010.11929)"
)
GEMMA = Source("Gemma Team 2024", "Gemma 2: improving open language models at a practical size (arXiv:2408.00118)")
GU = Source("Gu 2023", "Mamba: linear-time sequence modeling with selective state spaces (arXiv:2312.00752)")
HENDRYCKS = Source("Hendrycks 2016", "Gaussian error linear units (GELUs) (arXiv:1606.08415)")
JIANG = Source("Jiang 2023", "Mistral 7B (arXiv:2310.06825)")
KATHAROPOULOS = Source(
    "Katharopoulos 2020",
    "Transformers are RNNs: fast autoregressive transformers with linear attention (arXiv:2006.16236)",
)
KIMI = Source("Kimi Team 2025", "Kimi Linear: an expressive, efficient attention architecture (arXiv:2510.26692)")
KRELL = Source("Krell 2021", "Efficient sequence packing without cross-contamination (arXiv:2107.02027)")
KWON = Source(
    "Kwon 2023", "Efficient memory management for large language model serving with PagedAttention (arXiv:2309.06180)"
)
LUONG = Source("Luong 2015", "Effective approaches to attention-based neural machine translation (arXiv:1508.04025)")
MIAO = Source(
    "Miao 2024",
    "SpecInfer: accelerating large language model serving with tree-based speculative inference and verification "
    "(arXiv:2305.09781)",
)
OPENAI = Source("OpenAI 2025", "gpt-oss-120b & gpt-oss-20b model card (arXiv:2508.10925)")
OKTAY = Source("Oktay 2018", "Attention U-Net: learning where to look for the pancreas (arXiv:1804.03999)")
ONNX = Source("ONNX", "Open Neural Network Exchange: operators", url="https://onnx.ai/onnx/operators/")
PENG = Source("Peng 2024", "YaRN: efficient context window extension of large language models (arXiv:2309.00071)")
PRESS = Source(
    "Press 2022",
    "Train short, test long: attention with linear biases enables input length extrapolation (arXiv:2108.12409)",
)
PYTORCH = Source(
    "PyTorch", "torch.nn", url="https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html"
)
QIU = Source(
    "Qiu 2025",
    "Gated attention for large language models: non-linearity, sparsity, and attention-sink-free (arXiv:2505.06708)",
)
RADFORD = Source(
    "Radford 2018",
    "Improving language understanding by generative pre-training",
    url="https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf",
)
SHAZEER = Source("Shazeer 2020", "GLU variants improve transformer (arXiv:2002.05202)")
RAFFEL = Source(
    "Raffel 2020",
    "Exploring the limits of transfer learning with a unified text-to-text transformer (arXiv:1910.10683)",
)
RAMAPURAM = Source(
    "Ramapuram 2025", "Theory, analysis, and best practices for sigmoid self-attention (arXiv:2409.04431)"
)
SRIVASTAVA = Source(
    "Srivastava 2014",
    "Dropout: a simple way to prevent neural networks from overfitting",
    url="https://jmlr.org/papers/v15/srivastava14a.html",
)
SU = Source("Su 2021", "RoFormer: enhanced transformer with rotary position embedding (arXiv:2104.09864)")
TRANSFORMERS = Source("Transformers", "Hugging Face Transformers", url="https://github.com/huggingface/transformers")
VASWANI = Source("Vaswani 2017", "Attention is all you need (arXiv:1706.03762)")
WANG_QWEN = Source(
    "Wang 2024",
    "Qwen2-VL: enhancing vision-language model's perception of the world at any resolution (arXiv:2409.12191)",
)
WANG = Source("Wang 2018", "Non-local neural networks (arXiv:1711.07971)")
YANG_DELTA = Source(
    "Yang 2024b", "Parallelizing linear transformers with the delta rule over sequence length (arXiv:2406.06484)"
)
YANG_GATED = Source(
    "Yang 2024a", "Gated linear attention transformers with hardware-efficient training (arXiv:2312.06635)"
)
YANG_GATED_DELTA = Source("Yang 2025", "Gated delta networks: improving Mamba2 with delta rule (arXiv:2412.06464)")
YUAN = Source(
    "Yuan 2025", "Native sparse attention: hardware-aligned and natively trainable sparse attention (arXiv:2502.11089)"
)
ZHANG = Source("Zhang 2019", "Root mean square layer normalization (arXiv:1910.07467)")
WU = Source(
    "Wu 2016",
    "Google's neural machine translation system: bridging the gap between human and machine translation "
    "(arXiv:1609.08144)",
)
XIAO = Source("Xiao 2024", "Efficient streaming language models with attention sinks (arXiv:2309.17453)")
XU = Source(
    "Xu 2015", "Show, attend and tell: neural image caption generation with visual attention (arXiv:1502.03044)"
)

PAPERS = (
    AINSLIE,
    BA,
    BAHDANAU,
    BELTAGY,
    DAO,
    DEEPSEEK,
    DEEPSEEK_SPARSE,
    DEVLIN,
    DOSOVITSKIY,
    GEMMA,
    GU,
    HENDRYCKS,
    JIANG,
    KATHAROPOULOS,
    KIMI,
    KRELL,
    KWON,
    LUONG,
    MIAO,
    OKTAY,
    ONNX,
    OPENAI,
    PENG,
    PRESS,
    PYTORCH,
    QIU,
    RADFORD,
    SHAZEER,
    RAFFEL,
    RAMAPURAM,
    SRIVASTAVA,
    SU,
    TRANSFORMERS,
    VASWANI,
    WANG,
    WANG_QWEN,
    WU,
    XIAO,
    XU,
    YANG_DELTA,
    YANG_GATED,
    YANG_GATED_DELTA,
    YUAN,
    ZHANG,
)
SOURCES: Mapping[str, Source] = {s.key: s for s in (S0, S1, S2, S3, S4, *PAPERS)}
