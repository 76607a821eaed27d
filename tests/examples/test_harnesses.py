"""The rules of public harnesses, what they accept, and the page about it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from attnspec.conformance import judge
from examples.cli import app
from examples.harnesses import flash_attention, flashinfer_bench, gpu_mode, hugging_face, kernelbench, table, torchtitan
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
}


def small(name: HarnessName) -> Harness:
    return replace(HARNESSES[name], settings={"small": SMALL[name]})


# Rules ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HarnessName)
def test_a_rule_accepts_what_is_right_and_nothing_that_is_not_a_number(name: HarnessName) -> None:
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
}
"""A wrong attention that a harness accepts, and the inputs."""


@pytest.mark.parametrize("name", ACCEPTED)
def test_tolerance_rejects_an_attention_that_the_rule_accepts(name: HarnessName) -> None:
    harness, (wrong_name, inputs) = HARNESSES[name], ACCEPTED[name]
    of = inputs()
    honest = attention(of.query, of.key, of.value, of.allowed).to(of.query.dtype)
    wrong = next(w for w in WRONG if w.name == wrong_name).output(of).to(of.query.dtype)
    reference = harness.reference(of)
    assert harness.accepts(honest, reference)
    assert harness.within(honest, of, None)
    assert harness.accepts(wrong, reference)
    assert not harness.within(wrong, of, None)


# Attentions -----------------------------------------------------------------------------------------------------------


def call(causal: bool = True, dtype: torch.dtype = torch.float32) -> Call:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 7, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 6)
    return Call(query.to(dtype), key.to(dtype), value.to(dtype), causal)


def judged(output: Tensor, of: Call, precision: str | None = None) -> bool:
    arguments = (of.query, *(x.repeat_interleave(2, 1) for x in (of.key, of.value)))
    semantics = {"causal_alignment": "bottom-right"}
    return bool(judge(SDPA, output, *arguments, causal=of.causal, semantics=semantics, precision=precision))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.name)
def test_the_judge_rejects_every_wrong_attention(wrong: Wrong, causal: bool) -> None:
    if wrong.fits(of := call(causal)):
        assert not judged(wrong.output(of), of)


@pytest.mark.parametrize("wrong", [w for w in WRONG if w.name == "a causal mask shifted by one"])
def test_a_mask_is_wrong_where_there_is_one(wrong: Wrong) -> None:
    assert wrong.fits(call(causal=True))
    assert not wrong.fits(call(causal=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("honest", HONEST, ids=lambda h: h.name)
def test_the_judge_accepts_every_honest_attention(honest: Honest, causal: bool, dtype: torch.dtype) -> None:
    of = call(causal, dtype)
    try:
        output = honest.output(of)
    except NotOffered:
        assert honest.name in ("PyTorch, flash", "PyTorch, memory-efficient")
        return
    assert output.dtype == dtype
    assert judged(output, of, "eager-bfloat16" if honest.precision_prefix and dtype == torch.bfloat16 else None)


@pytest.mark.parametrize("causal", [False, True])
def test_operations_are_counted(causal: bool) -> None:
    of = call(causal)
    heads, pair = 2 * 4, 8 + 6
    allowed = [min(9, 3 + i) if causal else 9 for i in range(7)]
    counted = {w.name: w.work(of) for w in WRONG}
    assert of.work == heads * pair * sum(allowed)
    assert counted == {
        "zeros": 0,
        "the mean of the values": of.value.numel(),
        "the first head for all heads": of.work // 4,
        "the mean of the values in the second half of the rows": heads * pair * sum(allowed[:3]) + of.value.numel(),
        "the first half of the keys": heads * pair * sum(min(4, x) for x in allowed),
        "the last row is that before it": heads * pair * sum(allowed[:-1]),
        "all keys but the last": heads * pair * sum(min(8, x) for x in allowed),
        "a scale of 1/d": of.work,
        "a scale 5 % too large": of.work,
        "a scale 1 % too large": of.work,
        "a padding key is attended to": heads * pair * sum(x + 1 for x in allowed),
        "a causal mask shifted by one": heads * pair * (sum(allowed) + 6),
    }


# Findings -------------------------------------------------------------------------------------------------------------


def test_gpu_mode_takes_an_output_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "WRONG", WRONG[:2])
    monkeypatch.setattr(table, "HONEST", HONEST[:1])
    finding = judge_setting(HARNESSES[HarnessName.GPU_MODE], "one sequence", gpu_mode.inputs(1, 4096, heads=4))
    assert finding.cheapest is not None
    assert finding.cheapest.name == "zeros"
    assert not finding.cheapest.judge_accepts
    assert all(h.rule_accepts and h.judge_accepts for h in finding.honest.values())


def test_hugging_face_takes_a_padding_key() -> None:
    finding = judge_setting(HARNESSES[HarnessName.HUGGING_FACE], "small", hugging_face.inputs(1, 128, 8, 64))
    assert finding.cheapest is not None
    assert finding.cheapest.name == "a padding key is attended to"
    assert not finding.cheapest.judge_accepts
    assert all(h.rule_accepts and h.judge_accepts for h in finding.honest.values())


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
        cells = re.findall(rf"^\| {re.escape(honest.name)} \| (accepted|not offered)", done.stdout, re.M)
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


def test_where_nothing_wrong_is_accepted_the_page_says_so() -> None:
    assert table.cheapest(None) == ("none of them", "", "")
    assert [table.share(x) for x in (0, 0.0005, 0.123, 1)] == ["none", "0.05 %", "12 %", "all"]
