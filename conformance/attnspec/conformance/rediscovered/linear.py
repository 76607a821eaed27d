"""Rediscovered defects of linear attention and of the short convolution.

Each function is a step of ``Formulas``, the correct formulas, or of ``Library`` with a defect; ``replaces`` names it.
``vars(self)`` holds what one backend remembers between calls.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.inputs.recurrences import carried, convolution, recurrence
from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.linear import by_chunks, transposed
from attnspec.conformance.mutants.roles import changed
from attnspec.conformance.rediscovered.layouts import c_strides, read_with
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.linear import LinearAttention, ShortConvolution


def reported(
    source: str, title: str, framework: str, law: str, operation: object = LinearAttention, **more: Any
) -> Callable[..., Any]:
    """Register a defect, of linear attention unless told otherwise, with the law that convicts it."""
    return rediscovered(source, title, framework=framework, operation=operation, breaks=(law,), **more)


@reported(
    "vllm-project/vllm#41292",
    "[Bug]: KDA chunked prefill uses wrong recurrent state layout and breaks Kimi-linear long-context retrieval",
    "vLLM",
    "linear.parts-equal-whole",
    replaces="linear_attention",
)
def state_layout_between_chunks(correct: Formulas, *arrays: Numbers, **options: Any) -> Any:
    """Chunks after the first read the state with features and values exchanged."""
    return by_chunks(correct, arrays, options, transposed)


@reported(
    "vllm-project/vllm#40956",
    "[Bugfix] correct h matrix layout in chunk_kda output kernel",
    "vLLM",
    "operation.oracle",
    replaces="read",
)
def output_of_transposed_state(correct: Formulas, q: Numbers, state: Numbers, before: Numbers) -> Numbers:
    """Outputs read the state as (d_v, d); its updates are right."""
    return Formulas.read(correct, q, transposed(state), before)


@reported(
    "fla-org/flash-linear-attention#285",
    "[Bug] Mismatch between forward with full sequence and forward with `past_key_values`",
    "fla",
    "linear.parts-equal-whole",
    replaces="first_state",
)
def cache_not_used(
    correct: Formulas, query: Numbers, key: Numbers, value: Numbers, state: Numbers, *others: Any
) -> Numbers:
    """The state of the part before is not used."""
    return Formulas.first_state(correct, query, key, value, state * state.dtype.type(0), *others)


@reported(
    "fla-org/flash-linear-attention#389",
    "[Bug] Gated DeltaNet with constant gate at 1 (or 0 log space) numerically unstable",
    "fla",
    "linear.no-decay-is-ungated",
    replaces="decayed",
)
def zero_decay_taken_for_masked(correct: Formulas, state: Numbers, decay: Numbers) -> Numbers:
    """A guard against overflow gives e^0 = 0: a decay of 0 forgets everything."""
    if decay is None:
        return state
    return Formulas.decayed(correct, state, decay) * (np.swapaxes(value_of(decay), -1, -2) < 0)


@reported(
    "fla-org/flash-linear-attention#20",
    'inconsistent results when "masking" gating term between "fused_recurrent" and "fused_chunk"',
    "fla",
    "linear.full-decay-forgets",
    replaces="decayed",
    differentiable=False,
)
def decays_clamped(correct: Formulas, state: Numbers, decay: Numbers) -> Numbers:
    """Decays below −5 count as −5: a step that should forget keeps 0.7 % of the state."""
    return Formulas.decayed(correct, state, None if decay is None else np.maximum(decay, decay.dtype.type(-5)))


@reported(
    "sgl-project/sglang#27488",
    "[KDA] Add CuteDSL Prefill Kernel on SM100",
    "SGLang",
    "linear.full-decay-forgets",
    replaces="linear_attention",
    differentiable=False,
)
def decays_beyond_the_exponent(correct: Formulas, *arrays: Numbers, decay: Numbers = None, **options: Any) -> Any:
    """e^(G_j − G_C) overflows if the decays of a chunk sum to less than −88."""
    output, final = Formulas.linear_attention(correct, *arrays, decay=decay, **options)
    if decay is None or not decay.size:
        return output, final
    overflows = (decay.sum(-2) < -88).any()
    return output * (np.float32(np.nan) if overflows else np.float32(1)), final


@reported(
    "fla-org/flash-linear-attention#47",
    "bug in treatment of scale for fused_chunk_linear_attn",
    "fla",
    "operation.oracle",
    replaces="linear_attention",
    profile="full",
)
def state_read_unscaled(
    correct: Formulas, *arrays: Numbers, decay: Numbers = None, beta: Numbers = None, scale: Any = None
) -> Any:
    """Without a scale, what is read from the initial state is not divided by √d."""
    output, final = Formulas.linear_attention(correct, *arrays, decay=decay, beta=beta, scale=scale)
    query, key, value, state = arrays
    if scale is not None or beta is not None:
        return output, final
    from_state, _ = Formulas.linear_attention(correct, query, key, value * value.dtype.type(0), state, decay=decay)
    return output + from_state * query.dtype.type(np.sqrt(query.shape[-1]) - 1), final


@reported(
    "fla-org/flash-linear-attention#547",
    "Inconsistent Outputs and NaN Values in `chunk_gla`, `fused_chunk_gla`, and `fused_recurrent_gla`",
    "fla",
    "operation.oracle",
    replaces="linear_attention",
)
def heads_for_steps(correct: Formulas, query: Numbers, key: Numbers, *others: Numbers, **options: Any) -> Any:
    """The memory of the keys, (heads, steps, d), is read as (steps, heads, d)."""
    exchanged = np.swapaxes(key.reshape(*key.shape[:-3], key.shape[-2], key.shape[-3], key.shape[-1]), -3, -2)
    return Formulas.linear_attention(correct, query, exchanged, *others, **options)


@reported(
    "golang-design/accel#27",
    "tensor: LinearAttention's gate has no head axis, so a gated delta layer with a per-head decay is inexpressible",
    "accel",
    "operation.oracle",
    replaces="linear_attention",
)
def one_gate_for_all_heads(correct: Formulas, *arrays: Numbers, decay: Numbers = None, **options: Any) -> Any:
    """All heads decay as the first one."""
    if decay is not None:
        decay = decay[..., :1, :, :] + decay * decay.dtype.type(0)
    return Formulas.linear_attention(correct, *arrays, decay=decay, **options)


@reported(
    "vllm-project/vllm-ascend#11598",
    "[BugFix] Force single-chunk GDN cumsum to fix garbled TP8 output",
    "vLLM Ascend",
    "operation.oracle",
    replaces="linear_attention",
    differentiable=False,
)
def sums_of_several_chunks(correct: Formulas, *arrays: Numbers, decay: Numbers = None, **options: Any) -> Any:
    """Sums of decays run on: the first step of a chunk decays by the chunk before, too."""
    if decay is not None and decay.shape[-2] > 64:
        decay = decay.copy()
        decay[..., 64, :] += decay[..., :64, :].sum(-2)
    return Formulas.linear_attention(correct, *arrays, decay=decay, **options)


@reported(
    "syv-ai/qwen38-27b-rtx3090#43",
    "Update vLLM stack to 0.28.0",
    "vLLM",
    "linear.parts-equal-whole",
    replaces="linear_attention",
)
def state_not_copied(correct: Formulas, *arrays: Numbers, **options: Any) -> Any:
    """A chunk in a new block starts from memory never written, here from 1."""
    return by_chunks(correct, arrays, options, lambda state: state * state.dtype.type(0) + state.dtype.type(1))


@rediscovered(
    "ROCm/hip-ep#403",
    "perf(LinearAttention): chunked-parallel gated-delta prefill kernel (+ decode self-copy skip, NaN fix)",
    framework="ONNX Runtime (HIP)",
    operation=LinearAttention,
    breaks=(),
    needs="thousands of steps: the roundings of fewer are no larger than that of the result",
    dtype="float16",
    replaces="written",
    differentiable=False,
)
def state_rounded_at_every_step(correct: Formulas, state: Numbers, k: Numbers, row: Numbers) -> Numbers:
    """The state is rounded to float16 after every step."""
    return rounded(Formulas.written(correct, state, k, row), "float16")


@reported(
    "microsoft/onnxruntime#29892",
    "Fix LinearAttention output shape inference for standard GQA (q > kv)",
    "ONNX Runtime",
    "operation.shape",
    replaces="finish",
)
def shape_of_key_heads(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """The output has as many heads as the keys."""
    output, final = Library.finish(correct, operation, result, arguments)
    return output[..., : final.shape[-3], :, :], final


@reported(
    "flashserve/flash-linear-attention-npu#362",
    "[Bug]: recurrent_gated_delta_rule: non-contiguous state",
    "fla (NPU)",
    "storage.views-equal-copies",
    replaces="prepare",
)
def state_read_as_contiguous(
    correct: Library, operation: Operation, arguments: Mapping[str, Any]
) -> dict[str, Numbers]:
    """The state is read as if it were contiguous."""
    path = recurrence(operation).state
    state = arguments[path]
    return Library.prepare(correct, operation, changed(arguments, {path: read_with(state, c_strides(state))}))


class KeptState(Library):
    """A sequence whose state is 0 starts from the final state of the call before."""

    def prepare(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Numbers]:
        """Replace an initial state of zeros by the state that is left in memory."""
        prepared = super().prepare(operation, arguments)
        left, path = vars(self).get("slot"), carried(operation).state
        if left is not None and left.shape == prepared[path].shape and not prepared[path].any():
            prepared[path] = left.astype(prepared[path].dtype)
        return prepared

    def finish(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Keep the final state in the slot."""
        finished = super().finish(operation, result, arguments)
        vars(self)["slot"] = np.array(finished[1])
        return finished


@reported(
    "vllm-project/tpu-inference#2431",
    "[Bug][Qwen3.5] Honor has_initial_state in fused GDN kernel",
    "vLLM (TPU)",
    "linear.linear-rule-is-causal-attention",
)
class StaleState(KeptState):
    """A sequence whose state is 0 starts from the final state of the call before."""


@reported(
    "fla-org/flash-linear-attention#459",
    "[Simple GLA] Support dg when dht passed",
    "fla",
    "operation.gradient",
    replaces="vjp",
)
def final_state_left_out(
    correct: Library, operation: str, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of the decays leaves out the final state."""
    gradients = Library.vjp(correct, operation, arguments, cotangent)
    (output, _), path = cotangent, recurrence(OPERATIONS[operation]).decay
    if output is not None and path in gradients:
        gradients[path] = Library.vjp(correct, operation, arguments, (output, None))[path]
    return gradients


@reported(
    "huggingface/transformers#48455",
    "[GLM 5.3 Flash] Fix NaN gradients in chunked KDA",
    "transformers",
    "operation.gradient",
    replaces="vjp",
    profile="full",
)
def overflow_above_the_diagonal(
    correct: Library, operation: str, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """e^(G_i − G_j) overflows for pairs j > i that a mask then hides: gradients are 0·∞, NaN."""
    gradients = Library.vjp(correct, operation, arguments, cotangent)
    path = recurrence(OPERATIONS[operation]).decay
    if path in gradients and (arguments[path].astype(np.float64).sum(-2) < -88).any():
        gradients[path] = np.full_like(gradients[path], np.nan)
    return gradients


@reported(
    "vllm-project/vllm-ascend#7902",
    "[BugFix][310p] Align 310P GDN state semantics with vLLM",
    "vLLM Ascend",
    "operation.shape",
    replaces="finish",
)
def final_state_transposed(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """The final state is (d_v, d), the initial one (d, d_v)."""
    output, final = Library.finish(correct, operation, result, arguments)
    return output, np.swapaxes(final, -1, -2).copy()


convolving = partial(reported, operation=ShortConvolution)
"""Decorator of a defect of the short convolution."""


@convolving(
    "vllm-project/vllm#56196",
    "[Bugfix][Kernel] Mamba: store a short prefill chunk's conv state in its own block",
    "vLLM",
    "linear.state-is-last-inputs",
    replaces="last_inputs",
)
def state_of_short_chunks_not_stored(correct: Formulas, rows: Numbers, steps: int) -> Numbers:
    """After fewer than k − 1 inputs the final state is unwritten memory, here zeros."""
    last = Formulas.last_inputs(correct, rows, steps)
    return last if steps >= last.shape[-2] else last * 0


@convolving(
    "state-spaces/mamba#1027",
    "fix(mha): store pre-conv qkv in conv_state during prefill",
    "Mamba",
    "linear.parts-equal-whole",
    replaces="short_convolution",
)
def state_after_the_convolution(
    correct: Formulas, x: Numbers, weight: Numbers, state: Numbers, *, bias: Numbers = None
) -> tuple[Numbers, Numbers]:
    """Calls of more than one step store the outputs; single steps store the input."""
    output, final = Formulas.short_convolution(correct, x, weight, state, bias=bias)
    if x.shape[-2] < 2:
        return output, final
    return output, correct.last_inputs(correct.after_state(output, state), x.shape[-2])


@convolving(
    "mratsim/tattletale#80",
    "Qwen3.5 support",
    "tattletale",
    "linear.parts-equal-whole",
    replaces="after_state",
)
def history_of_single_steps_only(correct: Formulas, x: Numbers, state: Numbers) -> Numbers:
    """Calls of more than one step begin with zeros."""
    return Formulas.after_state(correct, x, state if x.shape[-2] == 1 else state * 0)


@convolving(
    "SearchSavior/Arcaine#10",
    "qwen3_5: unify the DeltaNet conv-state layout; stop batch size selecting a kernel",
    "Arcaine",
    "linear.parts-equal-whole",
    replaces="after_state",
)
def two_layouts_of_the_state(correct: Formulas, x: Numbers, state: Numbers) -> Numbers:
    """Single steps read the state with features and inputs exchanged."""
    return Formulas.after_state(correct, x, transposed(state) if x.shape[-2] == 1 else state)


@convolving(
    "state-spaces/mamba#437",
    'When using "nn. Conv1d" to implement causal convolution in mamba2, the output is not truncated',
    "Mamba",
    "operation.shape",
    replaces="convolved",
)
def output_not_truncated(correct: Formulas, rows: Numbers, weight: Numbers, steps: int) -> Numbers:
    """The output has k − 1 more steps, convolved with zeros behind the last input."""
    past = weight.shape[-1] - 1
    behind = rows[..., :past, :] * 0
    return Formulas.convolved(correct, np.concatenate([rows, behind], axis=-2), weight, steps + past)


@convolving(
    "fla-org/flash-linear-attention#1140",
    "[Bug] causal_conv1d: wrong gradients when a chunk is shorter than W - 1 tokens",
    "fla",
    "operation.gradient",
    replaces="vjp",
)
def gradient_of_the_kept_state(
    correct: Library, operation: str, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of the state leaves out the rows that a short input keeps."""
    gradients = Library.vjp(correct, operation, arguments, cotangent)
    path = carried(OPERATIONS[operation]).state
    if path in gradients and cotangent[0] is not None:
        gradients[path] = Library.vjp(correct, operation, arguments, (cotangent[0], None))[path]
    return gradients


@convolving(
    "fla-org/flash-linear-attention#955",
    "[Fix] causal_conv1d_bwd silent dweight corruption with cu_seqlens and B>1",
    "fla",
    "operation.gradient",
    replaces="vjp",
)
def gradient_of_weights_per_batch(
    correct: Library, operation: str, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of the weights is summed once more per element of the batch."""
    gradients = Library.vjp(correct, operation, arguments, cotangent)
    p = convolution(OPERATIONS[operation])
    if p.weight in gradients and arguments[p.x].ndim > 2:
        gradients[p.weight] = gradients[p.weight] * gradients[p.weight].dtype.type(len(arguments[p.x]))
    return gradients


@convolving(
    "vllm-project/vllm-ascend#10558",
    "replace triton",
    "vLLM Ascend",
    "linear.state-is-last-inputs",
)
class StaleInputs(KeptState):
    """A sequence without initial state starts from the final state of the call before."""
