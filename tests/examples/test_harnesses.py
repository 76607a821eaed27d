"""The rules of public harnesses, what they accept, and the page about it."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from attnspec.conformance import judge
from examples.cli import app
from examples.harnesses import (
    backendbench,
    flash_attention,
    flashinfer_bench,
    gpu_mode,
    hugging_face,
    kernelbench,
    sglang,
    table,
    torchtitan,
)
from examples.harnesses.harness import Call, Harness, attention
from examples.harnesses.honest import HONEST, Honest, NotOffered
from examples.harnesses.table import HARNESSES, HarnessName, judge_setting
from examples.harnesses.wrong import WRONG, Wrong

ROOT = Path(__file__).parents[2]
SDPA = "scaled_dot_product_attention"

SMALL: dict[HarnessName, Callable[[], Call]] = {
    HarnessName.KERNELBENCH: lambda: kernelbench.inputs(torch.float16, 1, 2, 64, 128),
    HarnessName.FLASHINFER_BENCH: lambda: flashinfer_bench.inputs(1, 40, heads=4, heads_k=2, features=16),
    HarnessName.GPU_MODE: lambda: gpu_mode.inputs(2, 64, heads=4, features=24, values=16),
    HarnessName.HUGGING_FACE: lambda: hugging_face.inputs(1, 32, 2, 16, causal=True),
    HarnessName.TORCHTITAN: lambda: torchtitan.inputs(torch.bfloat16, 16, 4, 2, 16),
    HarnessName.FLASH_ATTENTION: lambda: flash_attention.inputs(torch.bfloat16, 31, 32, 1, 2, 16, causal=True),
    HarnessName.SGLANG: lambda: sglang.inputs(4, 4, 2, 1, 8, 32),
    HarnessName.BACKENDBENCH: backendbench.inputs,
}


def small(name: HarnessName) -> Harness:
    return replace(HARNESSES[name], settings={"small": SMALL[name]})


# Rules ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HarnessName)
def test_a_rule_accepts_right_attention_and_rejects_nan(name: HarnessName) -> None:
    harness, call = HARNESSES[name], SMALL[name]()
    reference = harness.reference(call)
    output = attention(call.query, call.key, call.value, call.allowed).to(call.query.dtype)
    assert harness.accepts(output, reference)
    verdict = harness.judged(output, call, None)
    assert verdict, verdict
    assert harness.within(output, call, None)
    assert not harness.accepts(torch.full_like(output, torch.nan), reference)
    assert not harness.judged(torch.full_like(output, torch.nan), call, None)
    assert not harness.within(torch.full_like(output, torch.nan), call, None)


@pytest.mark.parametrize(
    ("accepts", "reference", "largest"),
    [
        (kernelbench.accepts, torch.ones(10), 1.5e-4),
        (kernelbench.accepts, torch.ones(10, dtype=torch.float16), 1.5e-2),
        (kernelbench.accepts, torch.ones(10, dtype=torch.bfloat16), 1.5e-2),
        (hugging_face.accepts, torch.ones(10), 1e-2),
        (backendbench.accepts, torch.ones(10), 2e-2),
        (flashinfer_bench.accepts, torch.full((10,), 0.1), 1e-2),
        (flashinfer_bench.accepts, torch.full((10,), 10.0), 0.1),
        (flash_attention.accepts, (torch.zeros(10), 0.2), 0.2),
    ],
)
def test_one_wrong_number_is_accepted_only_up_to_the_limit(
    accepts: Callable[..., bool], reference: Tensor, largest: float
) -> None:
    exact = reference[0] if isinstance(reference, tuple) else reference
    for factor, rule_accepts in ((0.6, True), (1.4, False)):
        output = exact.clone()
        output[3] += factor * largest
        assert accepts(output, reference) is rule_accepts


def test_gpu_mode_lets_one_in_twenty_miss() -> None:
    reference = torch.zeros(100)
    assert gpu_mode.accepts((torch.arange(100) < 4).float(), reference)
    assert not gpu_mode.accepts((torch.arange(100) < 6).float(), reference)
    assert gpu_mode.accepts(torch.full((100,), 0.09), reference)


def test_rounding_to_8_bits_errs_by_at_most_a_step() -> None:
    x = torch.randn(1000, dtype=torch.bfloat16)
    rounded = gpu_mode.quantized(x)
    assert len(set(rounded.tolist())) < 256
    scale = x.float().abs().max() / torch.finfo(torch.float8_e4m3fn).max
    # at most a step of the format, of which the smallest is 2⁻⁹; half a step is its rounding, the scale's is far less
    assert ((rounded - x.float()).abs() <= torch.maximum(2**-3 * x.float().abs(), 2**-9 * scale)).all()


ACCEPTED: dict[HarnessName, tuple[str, Callable[[], Call]]] = {
    HarnessName.KERNELBENCH: ("all keys but the last", lambda: kernelbench.inputs(torch.float16, 1, 2, 128, 512)),
    HarnessName.FLASHINFER_BENCH: ("a scale 1 % too large", lambda: flashinfer_bench.inputs(1, 547)),
    HarnessName.GPU_MODE: ("the first half of the keys", lambda: gpu_mode.inputs(1, 1024)),
    HarnessName.HUGGING_FACE: ("a padding key is attended to", lambda: hugging_face.inputs(1, 128, 8, 64)),
    HarnessName.TORCHTITAN: ("a scale 1 % too large", lambda: torchtitan.inputs(torch.bfloat16)),
    HarnessName.SGLANG: ("a scale 5 % too large", lambda: sglang.inputs(16, 0)),
}
"""A wrong attention that a harness accepts, and the inputs."""


@pytest.mark.parametrize("name", ACCEPTED)
def test_tolerance_rejects_an_attention_that_the_rule_accepts(name: HarnessName) -> None:
    harness, (wrong_name, inputs) = HARNESSES[name], ACCEPTED[name]
    call = inputs()
    honest = attention(call.query, call.key, call.value, call.allowed).to(call.query.dtype)
    wrong = next(w for w in WRONG if w.name == wrong_name).output(call).to(call.query.dtype)
    reference = harness.reference(call)
    assert harness.accepts(honest, reference)
    assert harness.within(honest, call, None)
    assert harness.accepts(wrong, reference)
    assert not harness.within(wrong, call, None)


# Adapters ------------------------------------------------------------------------------------------------------------

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]


def honest(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attention(query, key, value).to(query.dtype)


def without_last_key(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return honest(query, key[..., :-1, :], value[..., :-1, :])


def zeroing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Zero all inputs, of which zeros are the right attention."""
    output = torch.zeros_like(honest(query, key, value))
    for x in (query, key, value):
        x.zero_()
    return output


def mean(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return honest(torch.zeros_like(query), key, value)


def raises_nothing(run: Callable[[], object]) -> bool:
    """Return whether a run raises no verdict."""
    try:
        run()
    except AssertionError as error:
        if " is wrong: " not in str(error):
            raise
        return False
    return True


def run_kernelbench(kernel: Kernel) -> bool:
    class ModelNew(torch.nn.Module):
        forward = staticmethod(kernel)

    call = kernelbench.inputs(torch.float16, 1, 2, 64, 128)
    return raises_nothing(lambda: kernelbench.Judged(ModelNew())(call.query, call.key, call.value))


def run_flashinfer_bench(kernel: Kernel, *, in_place: bool) -> bool:
    """Call an evaluator with three sequences, in pages of one key."""

    class DefaultEvaluator:
        @classmethod
        def check_correctness(cls, *, sol_runnable: Any, inputs: list[Any]) -> bool:
            outputs = [torch.empty_like(inputs[0])] if sol_runnable.metadata.destination_passing_style else []
            returned = sol_runnable(*inputs, *outputs)
            return bool((outputs or returned)[0].isfinite().all())

    class JudgedEvaluator(flashinfer_bench.Judged, DefaultEvaluator):
        pass

    def solution(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, pages: Tensor, _: float, *outputs: Tensor) -> Any:
        parts = zip(q, torch.split(pages, starts.diff().tolist()), strict=True)
        rows = [
            kernel(x[None, :, None], *(y[used, 0].mT.mT.transpose(0, 1)[None] for y in (k, v))) for x, used in parts
        ]
        output = torch.cat(rows).squeeze(2)
        return outputs[0].copy_(output) if in_place else (output,)

    solution.metadata = SimpleNamespace(destination_passing_style=in_place)  # type: ignore[attr-defined]
    torch.manual_seed(0)
    query, key, value = (torch.randn(n, *shape).bfloat16() for n, shape in ((3, (4, 16)), *[(50, (1, 2, 16))] * 2))
    cache = (key, value, torch.tensor([0, 5, 12, 40]), torch.randperm(50)[:40], 0.25)
    return bool(JudgedEvaluator.check_correctness(sol_runnable=solution, inputs=[query, *cache]))


def run_gpu_mode(kernel: Kernel) -> bool:
    call = gpu_mode.inputs(2, 64)
    caches, config = {"bf16": call.key.squeeze(1).flatten(0, 1)[:, None]}, {"batch_size": 2, "v_head_dim": 512}
    output = kernel(call.query.clone(), call.key.clone(), call.value.clone())
    accepted, message = gpu_mode.check_implementation(
        (call.query.squeeze(2), caches, None, None, config), output[:, :, 0]
    )
    assert accepted or " is wrong: " in message
    return accepted


def run_pygpubench(kernel: Kernel) -> bool:
    """Accept each seed by its rule: NaN is any number, others differ by at most a tolerance."""
    for seed in range(8):
        (_, *arguments), (expected, relative, absolute) = gpu_mode.generate_test_case(
            seed=seed, heads=8, keys=64, features=16
        )
        assert relative == 0
        output = kernel(*(x[None, None] for x in arguments))[0, 0]
        if not ((output.float() - expected.float()).abs() <= absolute)[expected.isfinite()].all():
            return False
    return True


def run_hugging_face(kernel: Kernel) -> bool:
    class FlashAttentionBenchmark:
        seed = 42
        out: Tensor
        verify_small = hugging_face.verify_small

        def setup_small(self) -> None:
            self.q, self.k, self.v = (torch.randn(2, 16, 4, 8).half() for _ in range(3))

    benchmark = FlashAttentionBenchmark()
    torch.manual_seed(benchmark.seed)
    benchmark.setup_small()
    benchmark.out = kernel(*(x.transpose(1, 2) for x in (benchmark.q, benchmark.k, benchmark.v))).transpose(1, 2)
    return raises_nothing(benchmark.verify_small)


def run_backendbench(kernel: Kernel) -> bool:
    call = backendbench.inputs()
    operator = backendbench.judged_operator(lambda query, key, value, attn_mask: kernel(query, key, value))
    return raises_nothing(lambda: operator(call.query, call.key, call.value))


def run_sglang(kernel: Kernel) -> bool:
    """Decode two requests of different lengths, with 4 heads of queries and 2 of keys."""
    torch.manual_seed(0)
    projections = [sglang.weights(16 * heads, 64) for heads in (4, 2, 2)]
    prefixes, states = [torch.randn(n, 64).half() for n in (2, 4)], torch.randn(2, 64).half()

    def heads_of(x: Tensor, w: Tensor) -> Tensor:
        return torch.unflatten(x @ w.mT, -1, (-1, 16)).transpose(0, 1)[None]

    class RadixAttention(torch.nn.Module):
        head_dim = 16

        def forward(self, q: Tensor, k: Tensor, v: Tensor, batch: None) -> Tensor:
            called = [torch.cat((prefix, x[None])) for prefix, x in zip(prefixes, states, strict=True)]
            rows = [
                kernel(heads_of(x[-1:], projections[0]), *(heads_of(x, w) for w in projections[1:])) for x in called
            ]
            return torch.cat(rows, 2)[0].transpose(0, 1).flatten(1)

    module = SimpleNamespace(attn=RadixAttention(), project_qkv=lambda x: [x @ w.mT for w in projections])
    case = SimpleNamespace(input_lens=(1, 1))
    fixture = SimpleNamespace(case=case, prefix_hidden=prefixes, actual_module=module, reference_module=module)
    sglang.judge_requests(fixture)
    return raises_nothing(lambda: module.attn(*module.project_qkv(states), None))


ADAPTERS: dict[str, Callable[[Kernel], bool]] = {
    "KernelBench": run_kernelbench,
    "FlashInfer-Bench, value returned": partial(run_flashinfer_bench, in_place=False),
    "FlashInfer-Bench, destination passed": partial(run_flashinfer_bench, in_place=True),
    "GPU MODE": run_gpu_mode,
    "pygpubench": run_pygpubench,
    "Hugging Face": run_hugging_face,
    "BackendBench": run_backendbench,
    "sglang": run_sglang,
}


@pytest.mark.parametrize("run", ADAPTERS.values(), ids=ADAPTERS)
def test_an_adapter_accepts_honest_kernels_and_rejects_cheats(run: Callable[[Kernel], bool]) -> None:
    assert run(honest)
    for cheat in (without_last_key, zeroing, mean):
        assert not run(cheat)


@pytest.mark.parametrize(
    "options",
    [{"is_causal": True}, {"attn_mask": torch.rand(3, 6) < 0.5}, {"attn_mask": torch.rand(3, 6).bfloat16()}],
    ids=["causal", "mask", "bias"],
)
def test_options_of_an_operator_are_judged(options: dict[str, Any]) -> None:
    call, sdpa = backendbench.inputs(), torch.ops.aten.scaled_dot_product_attention.default
    backendbench.judged_operator(sdpa)(call.query, call.key, call.value, **options)
    forgets = backendbench.judged_operator(lambda query, key, value, attn_mask, **_: sdpa(query, key, value))
    assert not raises_nothing(lambda: forgets(call.query, call.key, call.value, **options))


# Attentions -----------------------------------------------------------------------------------------------------------


def random_call(causal: bool = True, dtype: torch.dtype = torch.float32) -> Call:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 7, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 6)
    return Call(query.to(dtype), key.to(dtype), value.to(dtype), causal)


def judged(output: Tensor, call: Call, precision: str | None = None) -> bool:
    arguments = (call.query, *(x.repeat_interleave(2, 1) for x in (call.key, call.value)))
    semantics = {"causal_alignment": "bottom-right"}
    return bool(judge(SDPA, output, *arguments, causal=call.causal, semantics=semantics, precision=precision))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.name)
def test_the_judge_rejects_every_wrong_attention(wrong: Wrong, causal: bool) -> None:
    if wrong.fits(call := random_call(causal)):
        assert not judged(wrong.output(call), call)


@pytest.mark.parametrize("wrong", [w for w in WRONG if w.name == "a causal mask shifted by one"])
def test_a_mask_is_shifted_only_in_causal_calls(wrong: Wrong) -> None:
    assert wrong.fits(random_call(causal=True))
    assert not wrong.fits(random_call(causal=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("honest", HONEST, ids=lambda h: h.name)
def test_the_judge_accepts_every_honest_attention(honest: Honest, causal: bool, dtype: torch.dtype) -> None:
    call = random_call(causal, dtype)
    try:
        output = honest.output(call)
    except NotOffered:
        assert honest.name in ("PyTorch, flash", "PyTorch, memory-efficient")
        return
    assert output.dtype == dtype
    assert judged(output, call, "eager-bfloat16" if honest.precision_prefix and dtype == torch.bfloat16 else None)


@pytest.mark.parametrize("causal", [False, True])
def test_operations_are_counted(causal: bool) -> None:
    call = random_call(causal)
    heads, pair = 2 * 4, 8 + 6
    allowed = [min(9, 3 + i) if causal else 9 for i in range(7)]
    counted = {w.name: w.work(call) for w in WRONG}
    assert call.work == heads * pair * sum(allowed)
    assert counted == {
        "zeros": 0,
        "the mean of the values": call.value.numel(),
        "the first head for all heads": call.work // 4,
        "the mean of the values in the second half of the rows": heads * pair * sum(allowed[:3]) + call.value.numel(),
        "the first half of the keys": heads * pair * sum(min(4, x) for x in allowed),
        "the last row is that before it": heads * pair * sum(allowed[:-1]),
        "all keys but the last": heads * pair * sum(min(8, x) for x in allowed),
        "a scale of 1/d": call.work,
        "a scale 5 % too large": call.work,
        "a scale 1 % too large": call.work,
        "a padding key is attended to": heads * pair * sum(x + 1 for x in allowed),
        "a causal mask shifted by one": heads * pair * (sum(allowed) + 6),
    }


# Accepted mistakes ----------------------------------------------------------------------------------------------------


def test_the_rule_of_gpu_mode_accepts_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "WRONG", WRONG[:2])
    monkeypatch.setattr(table, "HONEST", HONEST[:1])
    setting = judge_setting(HARNESSES[HarnessName.GPU_MODE], "one sequence", gpu_mode.inputs(1, 4096, heads=4))
    assert setting.cheapest is not None
    assert setting.cheapest.name == "zeros"
    assert not setting.cheapest.judge_accepts
    assert all(h.rule_accepts and h.judge_accepts for h in setting.honest.values())


def test_the_rule_of_hugging_face_accepts_attention_to_a_padding_key() -> None:
    setting = judge_setting(HARNESSES[HarnessName.HUGGING_FACE], "small", hugging_face.inputs(1, 128, 8, 64))
    assert setting.cheapest is not None
    assert setting.cheapest.name == "a padding key is attended to"
    assert not setting.cheapest.judge_accepts
    assert all(h.rule_accepts and h.judge_accepts for h in setting.honest.values())


# The page -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HarnessName)
def test_the_page_of_a_harness_has_a_row_per_attention(name: HarnessName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HARNESSES, name, harness := small(name))
    done = CliRunner().invoke(app, ["harnesses", "--harness", name])
    assert done.exit_code == 0, done.output
    assert done.stderr == f"{harness.name}: small\n"
    assert done.stdout.count(f"\n| {harness.name} | small | ") >= 1
    for wrong in WRONG:
        cells = re.findall(rf"^\| {re.escape(wrong.name)} \| (accepted|rejected), [\d.,∞]+ \|$", done.stdout, re.M)
        assert bool(cells) == wrong.fits(SMALL[name]())
    for honest in HONEST:
        # BackendBench's tolerance is narrower than the roundings of a kernel that stores every step.
        rejected = (name, honest.name) == (HarnessName.BACKENDBENCH, "every step stored")
        rule = "rejected" if rejected else "accepted|not offered"
        cells = re.findall(rf"^\| {re.escape(honest.name)} \| ({rule})", done.stdout, re.M)
        assert len(cells) == 1, honest.name


def test_the_committed_page_is_about_all_harnesses() -> None:
    page = (ROOT / "examples" / "harnesses" / "table.md").read_text(encoding="utf-8")
    first = page.split("\n## ")[1]
    named = [tuple(line.split(" | ")[:2]) for line in first.splitlines() if line.startswith("| ")][1:]
    assert named == [(f"| {h.name}", title) for h in HARNESSES.values() for title in h.settings]
    assert [w.name for w in WRONG if f"\n| {w.name} | " not in page] == []
    assert [h.name for h in HONEST if f"\n| {h.name} | " not in page] == []


def test_sources_are_in_the_documentation() -> None:
    page = (ROOT / "examples" / "harnesses" / "README.md").read_text(encoding="utf-8")
    for harness in HARNESSES.values():
        assert re.fullmatch(r"[0-9a-f]{40}", harness.source.commit)
        assert [link for link in harness.source.links if link not in page] == []
        assert harness.rule in " ".join(page.split())


def test_cells_for_no_accepted_attention_and_for_shares() -> None:
    assert table.cheapest(None) == ("none of them", "", "")
    assert [table.share(x) for x in (0, 0.0005, 0.123, 1)] == ["none", "0.05 %", "12 %", "all"]
