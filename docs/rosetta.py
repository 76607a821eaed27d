"""Generator of ``docs/rosetta.md``: ``python docs/rosetta.py > docs/rosetta.md``."""

from collections.abc import Mapping

from attnspec.spec import QUESTIONS

MEASURED = "measured"
"""Source of a cell that is measured: PyTorch by ``tests/test_rosetta.py``, JAX by the tests of its adapter."""

FILES: Mapping[str, tuple[str, str]] = {
    "Bloom": ("huggingface/transformers", "9d97831a1cbb420edac062c2e8454ce9ac1c4b79"),
    "cuDNN": ("NVIDIA/cudnn-frontend", "3929da2ef4c1dba1bb8acb68727b9134f26f40c0"),
    "fla": ("fla-org/flash-linear-attention", "bc3b101dcb713ddc5bd8924b66754eb68b5ccf89"),
    "flax": ("google/flax", "18f8f311c275d57f46d95e41b15aa97b454754c0"),
    "FlashAttention": ("Dao-AILab/flash-attention", "0251105a2fb19d2957484b7f023cd8c115286ced"),
    "FlashInfer": ("flashinfer-ai/flashinfer", "fb28d7242b3506a2348265962041acc1fb56cca4"),
    "Gemma": ("huggingface/transformers", "00c238bd242b4c6ddfb2c17d4573174ec2daaec8"),
    "gpt-oss": ("huggingface/transformers", "02b8f42b4240dddea1b27c45d2dc95fb2682f841"),
    "GPT-2": ("huggingface/transformers", "01ae98ae2414210efd0d9ac1ffe78ff21588f1f7"),
    "haiku": ("google-deepmind/dm-haiku", "f4d858a5cbb29140855d68f81f5fd625e078a5ae"),
    "JAX": ("jax-ml/jax", "cec06d116c05f0d52adfceee3d3b730fdbcb0ce5"),
    "Keras": ("keras-team/keras", "3422977a5e38fb2f7709aaa9a08e47f0c43d0f60"),
    "Llama 3": ("huggingface/transformers", "0044e3b3facff1a1ad60b235c69d5b45beae75a4"),
    "local-attention": ("lucidrains/local-attention", "af58e53f81e5e1d87a7d50cb193d5c26f3c0e03f"),
    "MLX": ("ml-explore/mlx", "846d176227a0ac13d2667e58d2bb68b322109ab0"),
    "MPT": ("huggingface/transformers", "4352620161a5f53911ddc19dbfa1bd76d92c93be"),
    "ONNX": ("onnx/onnx", "f7546912001bc31e92a238b17068a21b373d882e"),
    "TransformerEngine": ("NVIDIA/TransformerEngine", "d0067d0da6cb01811b8072a7d304f0e00344ce2b"),
    "transformers": ("huggingface/transformers", "00c238bd242b4c6ddfb2c17d4573174ec2daaec8"),
    "vLLM": ("vllm-project/vllm", "002d181a55a03803d7d69547846630069d2378b8"),
    "x-transformers": ("lucidrains/x-transformers", "9252ed7838021ee61e6c5be0930b3a9a88efdf06"),
    "xFormers": ("facebookresearch/xformers", "ca6d2aa0d43241fc8a8dcd872debc2406160160d"),
}
"""Repository and commit in which the files and lines of a library were read."""

# Addresses and a folder that are too long for the lines below.
TE_ATTENTION = "transformer_engine/pytorch/attention/dot_product_attention"
TENSORFLOW = "https://www.tensorflow.org/api_docs/java/org/tensorflow/op/core"
OPENVINO = "https://docs.openvino.ai/2024/documentation/openvino-ir-format/operation-sets/operation-specs/sequence"
JAX_GELU = "https://github.com/jax-ml/jax/blob/01c36571d74f43f0cabd807ca4271bafa26f1302/jax/_src/nn/functions.py"
MLX_ACTIVATIONS = "https://github.com/ml-explore/mlx/blob/0252bc64f1fef3bea40f18c4862be8343cf538b7/python/mlx/nn/layers"
CUDNN_GRU = "https://www.tensorflow.org/versions/r1.15/api_docs/python/tf/contrib/cudnn_rnn/CudnnCompatibleGRUCell"
TENSORRT = "https://docs.rs/trtx-sys/latest/trtx_sys/enum.CausalMaskKind.html"
TRANSFORMERS = "https://github.com/huggingface/transformers/blob"
LENS = "https://github.com/TransformerLensOrg/TransformerLens/blob/17122659a7a2e322c107146b3d18ec7d732b09c2"
MINDSPORE = "https://mindspore.cn/docs/zh-CN/r2.4.1/_sources/api_python/nn/mindspore.nn.GRUCell.rst.txt"

Cells = Mapping[str, tuple[str, str]]
"""Choice and source of each library."""

CELLS: Mapping[str, Cells] = {
    "fully_masked": {
        "PyTorch": ("zero", MEASURED),
        "FlashAttention": ("zero", "README.md#L335"),
        "Keras": ("zero", "keras/src/layers/activations/softmax.py#L105"),
        "ONNX": ("zero", "docs/Operators.md?plain=1#L1871"),
        "JAX": ("uniform", MEASURED),
        "flax": ("uniform", "flax/linen/attention.py#L140"),
        "haiku": ("uniform", "haiku/_src/attention.py#L152"),
        "MLX": ("uniform", "mlx/fast.cpp#L761"),
    },
    "no_keys": {"PyTorch": ("zero", MEASURED)},
    "causal_alignment": {
        "PyTorch": ("top-left", MEASURED),
        "JAX": ("top-left", MEASURED),
        "Keras": ("top-left", "keras/src/layers/attention/multi_head_attention.py#L806"),
        "ONNX": ("top-left", "docs/Operators.md?plain=1#L1700"),
        "OpenVINO": ("top-left", f"{OPENVINO}/scaled-dot-product-attention.html"),
        "cuDNN": ("top-left", "include/cudnn_frontend/graph_properties.h#L1867"),
        "TransformerEngine": ("top-left", f"{TE_ATTENTION}/dot_product_attention.py#L1561"),
        "TensorRT": ("top-left", TENSORRT),
        "xFormers": ("top-left", "xformers/ops/fmha/attn_bias.py#L41"),
        "FlashAttention": ("bottom-right", "README.md#L423"),
        "FlashInfer": ("bottom-right", "flashinfer/prefill.py#L1323"),
        "MLX": ("bottom-right", "mlx/fast.cpp#L737"),
    },
    "length_alignment": {
        "FlashAttention": ("at-length", "README.md#L356"),
        "ONNX": ("at-length", "docs/Operators.md?plain=1#L1700"),
    },
    "window_left": {
        "FlashAttention": ("excludes-own", "README.md#L262"),
        "FlashInfer": ("excludes-own", "include/flashinfer/attention/variants.cuh#L89"),
        "JAX": ("excludes-own", "jax/_src/nn/functions.py#L890"),
        "local-attention": ("excludes-own", "local_attention/local_attention.py#L194"),
        "ONNX": ("excludes-own", "docs/Operators.md?plain=1#L1702"),
        "TransformerEngine": ("excludes-own", f"{TE_ATTENTION}/dot_product_attention.py#L570"),
        "Keras": ("includes-own", "keras/src/layers/attention/multi_head_attention.py#L825"),
        "fla": ("includes-own", "fla/layers/attn.py#L173"),
        "transformers": ("includes-own", "src/transformers/masking_utils.py"),
    },
    "logarithms": {
        "FlashAttention": ("natural", "csrc/flash_attn/src/softmax.h#L180"),
        "JAX": ("natural", "jax/_src/nn/functions.py#L997"),
        "FlashInfer": ("base-2", "include/flashinfer/attention/prefill.cuh#L2492"),
    },
    "masked_nonfinite": {"PyTorch": ("propagates", MEASURED), "JAX": ("propagates", MEASURED)},
    "attendable_nan": {"PyTorch": ("propagates", MEASURED)},
    "minus_infinity": {"PyTorch": ("nan", MEASURED)},
    "gru_reset": {
        "PyTorch": ("after", MEASURED),
        "cuDNN": ("after", CUDNN_GRU),
        "flax": ("after", "flax/linen/recurrent.py#L513"),
        "Keras": ("after", "keras/src/layers/rnn/gru.py#L103"),
        "MindSpore": ("after", MINDSPORE),
        "MLX": ("after", "python/mlx/nn/layers/recurrent.py#L109"),
        "haiku": ("before", "haiku/_src/recurrent.py#L544"),
        "ONNX": ("before", "onnx/defs/rnn/defs.cc#L235"),
        "OpenVINO": ("before", f"{OPENVINO}/gru-cell-3.html"),
        "TensorFlow": ("before", f"{TENSORFLOW}/GRUBlockCell"),
    },
    "gru_update": {
        "PyTorch": ("state", MEASURED),
        "cuDNN": ("state", CUDNN_GRU),
        "flax": ("state", "flax/linen/recurrent.py#L514"),
        "Keras": ("state", "keras/src/layers/rnn/gru.py#L296"),
        "MindSpore": ("state", MINDSPORE),
        "MLX": ("state", "python/mlx/nn/layers/recurrent.py#L110"),
        "ONNX": ("state", "docs/Changelog.md?plain=1#L1097"),
        "OpenVINO": ("state", f"{OPENVINO}/gru-cell-3.html"),
        "TensorFlow": ("state", f"{TENSORFLOW}/GRUBlockCell"),
        "haiku": ("candidate", "haiku/_src/recurrent.py#L593"),
    },
    "lstm_forget_bias": {
        "PyTorch": ("as-given", MEASURED),
        "flax": ("as-given", "flax/linen/recurrent.py#L89"),
        "Keras": ("as-given", "keras/src/layers/rnn/lstm.py#L39"),
        "MLX": ("as-given", "python/mlx/nn/layers/recurrent.py#L278"),
        "ONNX": ("as-given", "docs/Operators.md?plain=1#L18807"),
        "haiku": ("plus-one", "haiku/_src/recurrent.py#L343"),
        "TensorFlow": ("plus-one", f"{TENSORFLOW}/LSTMBlockCell"),
    },
    "rms_weight": {
        "PyTorch": ("as-given", MEASURED),
        "MLX": ("as-given", "python/mlx/nn/layers/normalization.py"),
        "transformers": ("as-given", "src/transformers/models/llama/modeling_llama.py"),
        "Gemma": ("plus-one", "src/transformers/models/gemma/modeling_gemma.py"),
    },
    "gelu_form": {
        "PyTorch": ("erf", MEASURED),
        "MLX": ("erf", f"{MLX_ACTIVATIONS}/activations.py"),
        "JAX": ("tanh", JAX_GELU),
        "GPT-2": ("tanh", "src/transformers/models/gpt2/configuration_gpt2.py"),
    },
    "rotary_pairs": {
        "xFormers": ("interleaved", "xformers/ops/rope_padded.py#L34"),
        "FlashAttention": ("halves", "flash_attn/layers/rotary.py#L45"),
        "FlashInfer": ("halves", "flashinfer/rope.py#L439"),
        "MLX": ("halves", "python/mlx/nn/layers/positional_encoding.py#L33"),
        "ONNX": ("halves", "onnx/defs/nn/defs.cc#L3115"),
        "TransformerEngine": ("halves", "transformer_engine/pytorch/attention/rope.py#L30"),
        "transformers": ("halves", "src/transformers/models/llama/modeling_llama.py"),
        "vLLM": ("halves", "vllm/model_executor/layers/rotary_embedding/__init__.py"),
    },
    "rotary_ramp": {
        "Llama 3": ("rotations", "src/transformers/modeling_rope_utils.py"),
        "gpt-oss": ("indices", "src/transformers/models/gpt_oss/configuration_gpt_oss.py"),
        "vLLM": ("whole-indices", "vllm/model_executor/layers/rotary_embedding/common.py"),
    },
    "padding_positions": {
        "nnsight": ("zero", "https://github.com/ndif-team/nnsight/pull/673"),
        "transformers": (
            "one",
            f"{TRANSFORMERS}/000034a44ef887621d9b36001a5eb7c46e64cb3f/src/transformers/generation/utils.py",
        ),
        "TransformerLens": ("previous", f"{LENS}/transformer_lens/utilities/tensors.py"),
        "OPT": (
            "minus-one",
            f"{TRANSFORMERS}/0184d2087e15afbd83ffa3cef25044a4f6c05047/src/transformers/models/opt/modeling_opt.py",
        ),
    },
    "head_groups": {
        "PyTorch": ("blocks", MEASURED),
        "FlashAttention": ("blocks", "README.md#L322"),
        "JAX": ("blocks", MEASURED),
        "Keras": ("blocks", "keras/src/layers/attention/grouped_query_attention.py#L307"),
        "MLX": ("blocks", "mlx/fast.cpp#L729"),
        "ONNX": ("blocks", "onnx/reference/ops/op_attention.py#L315"),
        "TransformerEngine": ("blocks", f"{TE_ATTENTION}/backends.py#L544"),
        "transformers": ("blocks", "src/transformers/integrations/sdpa_attention.py#L17"),
        "x-transformers": ("interleaved", "x_transformers/attend.py#L515"),
    },
    "alibi_distances": {
        "FlashAttention": ("absolute", "README.md#L274"),
        "TransformerEngine": ("absolute", f"{TE_ATTENTION}/utils.py#L1964"),
        "FlashInfer": ("signed", "include/flashinfer/attention/variants.cuh#L70"),
        "Bloom": ("signed", "src/transformers/models/bloom/modeling_bloom.py#L95"),
        "MPT": ("signed", "src/transformers/models/mpt/modeling_mpt.py#L54"),
    },
    "repeatability": {"FlashAttention": ("within-budget", "README.md#L246")},
    "rejection": {"PyTorch": ("unchecked", MEASURED)},
}
"""Choice of a library and its source, by question: a file at the commit of ``FILES``, an address, or a measurement."""

HEAD = """# Which library follows which convention?

Each question of [semantics](conventions.md#semantics), its choices with the normative one first, and libraries that
make this choice by default. Use it to declare the semantics of a kernel that was written after one of them, or to find
out why weights trained in one library give other results in another.

- A name links to the line, or to the page, that says so. **Bold** names are measured: PyTorch by
  `tests/test_rosetta.py`, JAX by `tests/backends/test_jax_native.py`. The outputs that ONNX's own node tests expect of
  Attention (opsets 23 to 25), CausalConvWithState, LinearAttention, RMSNormalization, GRU, LSTM and RNN are within our
  budgets (`tests/backends/test_onnx_nodes.py`); none of our operations has the peepholes of one test of LSTM.
- “–” means that no library is known to us that makes this choice by default. A library that is missing at a question
  has nothing of the kind, leaves it open, or was not read.
- Options change many of these defaults. Keras has `reset_after=False`, ONNX `linear_before_reset`, and rotary
  embeddings an argument for pairs. TransformerEngine and cuDNN align causal masks at either corner. ONNX counts
  positions from the end of a cache. xFormers has a class for each alignment.
- FlashAttention aligns at the bottom right since 2.1. Its forward pass repeats bit by bit; its backward pass does with
  `deterministic=True`. MLX's rows without keys are those of its unfused path. vLLM's pairs are those of Neox style,
  its default.
- A window of W reads W + 1 keys by `excludes-own`, and W by `includes-own`. local-attention's windows are exact in
  `LocalMHA`, or with `exact_windowsize`. fla passes W − 1 to FlashAttention.
- Bloom and MPT add slope × j to the score of key j: their weights are those of −slope × (i − j). Under a causal mask
  signed and absolute distances are the same.
- Keras initialises the bias of the forget gate to 1, and adds nothing to it when it computes.
- PyTorch refuses most wrong shapes, but takes more values than keys.

Made by `python docs/rosetta.py > docs/rosetta.md`.
"""


def link(library: str, source: str) -> str:
    """Return a library's name with a link to its source."""
    if source == MEASURED:
        return f"**{library}**"
    if "://" in source:
        return f"[{library}]({source})"
    repository, commit = FILES[library]
    return f"[{library}](https://github.com/{repository}/blob/{commit}/{source})"


def table() -> str:
    """Return the whole page."""
    rows = ["| question | choice | libraries |", "|---|---|---|"]
    for name, question in QUESTIONS.items():
        cells = CELLS.get(name, {})
        for i, choice in enumerate(question.choices):
            libraries = [link(library, source) for library, (chosen, source) in cells.items() if chosen == choice]
            rows.append(f"| {'' if i else f'`{name}`'} | `{choice}` | {', '.join(libraries) or '–'} |")
    return "\n".join([HEAD, *rows]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
