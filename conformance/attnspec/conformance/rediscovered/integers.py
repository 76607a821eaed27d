"""Rediscovered defects of narrow integers, rotary angles, variances and modes.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. A law in ``breaks`` must
detect the defect. ``call`` runs all steps of a call. ``vars(self)`` holds what one backend remembers between calls.
``value_of(x)`` is x without its record of gradients, so that no gradient flows through it.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.modes import ModeAware
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import flatten
from attnspec.spec.kernels import GroupedQueryAttention, PagedAttention, RotaryEmbedding
from attnspec.spec.transformer import LayerNorm, LayerNormParameters


@rediscovered(
    "NVIDIA/Megatron-LM#535",
    "[BUG] RoPE `seq` loses fraction bits with `fp16` enabled",
    framework="Megatron-LM",
    operation=RotaryEmbedding,
    breaks=("operation.options-have-effect",),
    replaces="angles",
)
def positions_of_the_model(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Positions are rounded to float16: beyond 2,048, neighbours become equal."""
    return Formulas.angles(correct, rounded(positions, "float16"), d, theta)


@rediscovered(
    "EleutherAI/gpt-neox#1003",
    "RotaryEmbedding computation is wrong for certain position/feature pairs in reduced precision (both fp16 and "
    "bfloat)",
    framework="GPT-NeoX",
    operation=RotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="angles",
)
def angles_in_half(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Frequencies, positions and angles are rounded to float16: angles beyond 1,024 lose their fraction."""
    frequencies = rounded(Formulas.angles(correct, np.ones(1), d, theta), "float16")
    return rounded(rounded(positions, "float16")[..., None] * frequencies, "float16")


@rediscovered(
    "huggingface/transformers#25681",
    "LlamaRotaryEmbedding (wrong cache value when casting model to float16/bfloat16)",
    framework="Transformers (Llama)",
    operation=RotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="angles",
)
def frequencies_of_the_model(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Positions, frequencies and angles are rounded to bfloat16."""
    frequencies = rounded(Formulas.angles(correct, np.ones(1), d, theta), "bfloat16")
    return rounded(rounded(positions, "bfloat16")[..., None] * frequencies, "bfloat16")


@rediscovered(
    "huggingface/candle#3520",
    "qwen2: build RoPE cos/sin tables in fp32 (fixes long-context divergence)",
    framework="candle (Qwen2)",
    operation=RotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="angles",
)
def noise_at_long_context(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Positions are rounded to bfloat16, which holds all integers up to 256 only."""
    return Formulas.angles(correct, rounded(positions, "bfloat16"), d, theta)


@rediscovered(
    "lucidrains/x-transformers#210",
    "rotary embedding issues when training in mixed precision",
    framework="x-transformers",
    operation=RotaryEmbedding,
    breaks=("operation.oracle",),
    replaces="angles",
)
def angles_under_autocast(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Angles, the products of positions and frequencies, are rounded to float16."""
    return rounded(Formulas.angles(correct, positions, d, theta), "float16")


@rediscovered(
    "tenstorrent/tt-metal#57364",
    "[ttnn][sdpa] 8 defects in SDPA, kv_cache, paged_cache and indexer_score",
    framework="ttnn",
    operation=PagedAttention,
    breaks=("operation.oracle",),
    replaces="gather_rows",
)
def pairs_of_entries(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """A page table of 16-bit entries is read as 32-bit entries: two page numbers become one."""
    narrow = np.ascontiguousarray(table.astype(np.uint16))
    if narrow.shape[-1] % 2:
        narrow = np.concatenate([narrow, narrow[..., -1:]], axis=-1)
    entries = narrow.view(np.uint32).astype(np.int64) % len(pages)
    return Formulas.gather_rows(correct, pages, np.repeat(entries, 2, axis=-1)[..., : table.shape[-1]])


@rediscovered(
    "vllm-project/vllm#54359",
    "[Bug][ROCm] GLM-5.3-Flash kpool indexer overwrites its own KV cache: backend advertises a kernel block size the "
    "kernels do not use",
    framework="vLLM (ROCm)",
    operation=PagedAttention,
    breaks=("operation.oracle",),
    replaces="gather_rows",
)
def pages_of_another_size(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Rows of a page are read modulo 128, the page size of the kernels."""
    return Formulas.gather_rows(correct, pages[..., np.arange(pages.shape[-2]) % 128, :], table)


@rediscovered(
    "NVIDIA/TensorRT-LLM#16219",
    "[None][fix] Derive DSA indexer tokens-per-block from the active KV cache manager",
    framework="TensorRT-LLM",
    operation=PagedAttention,
    breaks=("operation.oracle",),
    replaces="gather_rows",
)
def stale_rows_per_page(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Page 4·i is read in place of page i: by the page size of an earlier cache manager."""
    return Formulas.gather_rows(correct, pages, (4 * table) % len(pages))


@rediscovered(
    "jax-ml/jax#39576",
    "Fix cuDNN SDPA non-causal sliding window silently attending to the future",
    framework="JAX (cuDNN)",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="sliding_window_mask",
)
def open_to_the_right(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """A window (left, 0) loses its right end: queries attend to all later keys."""
    left, right = (None, None) if window is None else window
    lost = right == 0 and left is not None
    return Formulas.sliding_window_mask(correct, n, m, window=(left, None if lost else right))


def _one_pass_layer_norm(
    correct: Formulas, x: Numbers, p: LayerNormParameters[Numbers], dtype: str, epsilon: float
) -> Numbers:
    """Layer norm by the variance E[x²] − E[x]² with x² rounded to ``dtype``."""
    mean = np.mean(x, axis=-1, keepdims=True)
    squares = np.mean(rounded(value_of(x) * value_of(x), dtype), axis=-1, keepdims=True)
    variance = squares - value_of(mean) * value_of(mean)
    return p.gain * (x - mean) / np.sqrt(variance + value_of(x).dtype.type(correct.epsilon(epsilon))) + p.bias


@rediscovered(
    "microsoft/onnxruntime#28463",
    "LayerNormalization returns NaN for finite large float32 inputs",
    framework="ONNX Runtime",
    operation=LayerNorm,
    breaks=("transformer.layer-norm-ignores-shift",),
    replaces="layer_norm",
    differentiable=False,
)
def negative_variance(
    correct: Formulas, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5
) -> Numbers:
    """The variance E[x²] − E[x]² may be negative: rows with a large mean are NaN."""
    return _one_pass_layer_norm(correct, x, parameters, "float32", epsilon)


@rediscovered(
    "apache/tvm#19643",
    "[Fix] Stabilize layer_norm variance computation with two-pass reduction",
    framework="TVM",
    operation=LayerNorm,
    breaks=("transformer.layer-norm-ignores-shift",),
    dtype="float16",
    replaces="layer_norm",
    differentiable=False,
)
def one_pass_reduction(
    correct: Formulas, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5
) -> Numbers:
    """The variance is E[x²] − E[x]², with x² rounded to float16."""
    return _one_pass_layer_norm(correct, x, parameters, "float16", epsilon)


@rediscovered(
    "pytorch/pytorch#100977",
    "torch.compile can re-use an inference graph when it should run autograd",
    framework="PyTorch (torch.compile)",
    operation=ScaledDotProductAttention,
    breaks=("training.same-in-every-mode",),
)
class InferenceGraph(ModeAware):
    """A call compiled without gradients raises when gradients are recorded later."""

    mode = "no_grad"

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        """Record the mode of the first call of each shape."""
        graph = tuple(np.shape(x) for x in flatten(self.bind_arguments(operation, args, kwargs)).values())
        vars(self).setdefault("graphs", {}).setdefault((operation.name, graph), self.active)
        return super().call(operation, *args, **kwargs)

    def pullback(
        self, operation: str, arguments: Mapping[str, Any], paths: Collection[str]
    ) -> tuple[Any, Callable[[Any], dict[str, Numbers]]]:
        """Raise if the first call of these shapes was without gradients."""
        graph = tuple(np.shape(x) for x in flatten(dict(arguments)).values())
        if vars(self).get("graphs", {}).get((operation, graph)):
            raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
        return Library.pullback(self, operation, arguments, paths)
