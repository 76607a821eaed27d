"""Sentences that PyTorch's decoder chooses: greedily, and by beam search."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.pytorch.runtime.decoder import LARGE
from attnspec.backends.pytorch.runtime.top_k import stable_top_k
from attnspec.spec import AttentionDecoderParameters, RNNParameters
from tests.budgets import assert_within_budgets

VOCABULARY, EOS, STEPS = 5, 2, 4
SCORER = {"w_q": (256, 4), "w_k": (256, 2), "w_v": (256,)}


def drawn(dtype: torch.dtype = torch.float64, batch: tuple[int, ...] = (3,), seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    cell = RNNParameters(normal(5, 4), normal(4, 4), normal(4))
    return {
        "token": torch.randint(VOCABULARY, batch, generator=generator),
        "state": normal(*batch, 4),
        "annotations": normal(*batch, 6, 2),
        "parameters": AttentionDecoderParameters(
            normal(VOCABULARY, 3),
            normal(7, 4),
            normal(7, 2),
            normal(7),
            cell,
            2 * normal(VOCABULARY, 4),
            normal(VOCABULARY),
        ),
        "mask": torch.arange(6) < torch.randint(1, 7, (*batch, 1), generator=generator),
    }


def every_sentence(inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """All sentences, and their scores for every element of the batch, by teacher forcing."""
    sentences = torch.cartesian_prod(*[torch.arange(VOCABULARY)] * STEPS)
    sources = {name: inputs[name].unsqueeze(0) for name in ("state", "annotations", "mask")}
    first = inputs["token"].expand(len(sentences), -1)
    tokens = sentences.unsqueeze(1).expand(-1, first.shape[1], -1)
    logarithms, _ = pytorch.teacher_forced_decode(
        torch.cat((first.unsqueeze(-1), tokens[..., :-1]), -1), parameters=inputs["parameters"], **sources
    )
    gains = logarithms.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    ends = tokens == EOS
    return tokens, torch.where(ends.cumsum(-1) - ends.long() == 0, gains, 0.0).sum(-1)


def ended(sentence: Tensor, end: int = EOS) -> Tensor:
    """The sentence with the end token in every place after its first end."""
    return torch.where((sentence == end).cumsum(-1) > 0, end, sentence)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.5])
def test_a_beam_as_wide_as_the_tree_finds_the_best_sentence(length_penalty: float) -> None:
    inputs = drawn()
    tokens, scores = every_sentence(inputs)
    options: dict[str, Any] = {"steps": STEPS, "eos": EOS, "beams": VOCABULARY**STEPS, "length_penalty": length_penalty}
    sentence, score = pytorch.beam_decode(**inputs, **options)
    ends = tokens == EOS
    best, place = (scores / ((5 + (ends.cumsum(-1) - ends.long() == 0).sum(-1).double()) / 6) ** length_penalty).max(0)
    assert_within_budgets([(sentence, score), (sentence, best)], "beam_decode", **inputs, **options)
    assert torch.equal(sentence, ended(tokens[place, torch.arange(3)]))


@pytest.mark.parametrize("seed", range(3))
def test_greedy_takes_the_best_token_after_those_before(seed: int) -> None:
    inputs = drawn(seed=seed)
    sentence, score = pytorch.greedy_decode(**inputs, steps=STEPS, eos=EOS)
    state, last, total = inputs["state"], inputs["token"], torch.zeros(3, dtype=torch.float64)
    for i in range(STEPS):
        p, state = pytorch.decoder_step(last, state, inputs["annotations"], inputs["parameters"], mask=inputs["mask"])
        unfinished = ~(sentence[:, :i] == EOS).any(-1)
        last = torch.where(unfinished, p.argmax(-1), EOS)
        assert torch.equal(sentence[:, i], last)
        total += torch.where(unfinished, p.amax(-1).log(), 0.0)
    beam_of_one = pytorch.beam_decode(**inputs, steps=STEPS, eos=EOS, beams=1)
    results = [(sentence, score), (sentence, total), beam_of_one]
    assert_within_budgets(results, "greedy_decode", **inputs, steps=STEPS, eos=EOS)


@pytest.mark.parametrize("beams", [None, 1, 3])
def test_sentences_that_have_ended_wait_for_the_others(beams: int | None) -> None:
    inputs = drawn(batch=(8,))
    often = int(pytorch.greedy_decode(**inputs, steps=9, eos=EOS)[0][:, 1:].mode().values.mode().values)
    options: dict[str, Any] = {"steps": 9, "eos": often} | ({} if beams is None else {"beams": beams})
    name = "greedy_decode" if beams is None else "beam_decode"
    decode: Any = getattr(pytorch, name)
    sentences, score = decode(**inputs, **options)
    assert torch.equal(sentences, ended(sentences, often))
    p = inputs["parameters"]
    for i in range(8):
        alone: dict[str, Any] = {name: x[i] for name, x in inputs.items() if isinstance(x, Tensor)}
        sentence, its_score = decode(**alone, parameters=p, **options)
        assert_within_budgets([(sentence, its_score), (sentences[i], score[i])], name, **alone, parameters=p, **options)
    longer, same = decode(**inputs, **{**options, "steps": 12})
    done = (sentences == often).any(-1)
    assert done.any()
    assert (longer[done, 9:] == often).all()
    assert_within_budgets((longer, same), name, **inputs, **{**options, "steps": 12})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("beams", [None, 4])
def test_scores_have_the_dtype_of_the_inputs_and_no_gradient(dtype: torch.dtype, beams: int | None) -> None:
    inputs = drawn(dtype)
    inputs["parameters"].b_o.requires_grad_()
    options: dict[str, Any] = {} if beams is None else {"beams": beams}
    decode: Any = pytorch.greedy_decode if beams is None else pytorch.beam_decode
    tokens, score = decode(**inputs, steps=STEPS, eos=EOS, **options)
    assert (tokens.dtype, score.dtype, score.requires_grad) == (torch.int64, dtype, False)
    assert tokens.shape == (3, STEPS)
    assert decode(**inputs, steps=0, eos=EOS, **options)[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("beams", [None, 2])
@pytest.mark.parametrize("steps", [0, STEPS])
def test_sentences_are_decoded_under_vmap(beams: int | None, steps: int) -> None:
    inputs = drawn()
    p = inputs.pop("parameters")
    options: dict[str, Any] = {"steps": steps, "eos": EOS} | ({} if beams is None else {"beams": beams})
    name = "greedy_decode" if beams is None else "beam_decode"
    decode: Any = getattr(pytorch, name)

    def decode_one(token: Tensor, state: Tensor, annotations: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        decoded: tuple[Tensor, Tensor] = decode(token, state, annotations, p, mask=mask, **options)
        return decoded

    results = [torch.vmap(decode_one)(*inputs.values()), decode(**inputs, parameters=p, **options)]
    assert_within_budgets(results, name, **inputs, parameters=p, **options)


@pytest.mark.parametrize("size", [7, 5000])
def test_the_first_of_equals_are_the_greatest(size: int) -> None:
    x = torch.randint(4, (3, 2, size), generator=torch.Generator().manual_seed(0)).double()
    x[0, 0, :3] = -math.inf
    x[1, 0, 1:5] = math.nan
    for count in (1, 5):
        # −1: NaN ranks below the numbers 0 to 3 of its row
        expected = x.nan_to_num(nan=-1).sort(dim=-1, descending=True, stable=True).indices[..., :count]
        assert torch.equal(stable_top_k(x, count), expected)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"eos": VOCABULARY}, "eos: expected eos in 0..4; got 5"),
        ({"eos": True}, "eos: expected an integer; got True"),
        ({"token": torch.tensor([0, 5, 1])}, "token: expected token in 0..4; got 5"),
        ({"beams": 0}, "beams: expected beams of at least 1; got 0"),
        ({"steps": -1}, "steps: expected steps of at least 0; got -1"),
        ({"length_penalty": math.inf}, "length_penalty: expected a finite number; got inf"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        pytorch.beam_decode(**{**drawn(), "steps": STEPS, "eos": EOS, "beams": 2, **wrong})
    assert str(raised.value) == f"beam_decode: {message}"


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")  # after a graph break
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"eos": True}, "eos: expected an integer; got True"),
        ({"beams": True}, "beams: expected an integer; got True"),
        ({"beams": 2.0}, "beams: expected an integer; got 2.0"),
        ({"beams": 0}, "beams: expected beams of at least 1; got 0"),
        ({"beams": -1}, "beams: expected beams of at least 1; got -1"),
        ({"steps": -1}, "steps: expected steps of at least 0; got -1"),
    ],
)
def test_wrong_arguments_are_refused_in_compiled_code(wrong: dict[str, Any], message: str) -> None:
    inputs = {**drawn(), "steps": STEPS, "eos": EOS, "beams": 2, **wrong}
    torch.compiler.reset()
    with pytest.raises((ValueError, TypeError)) as raised:
        torch.compile(pytorch.beam_decode, backend="eager")(**inputs)
    assert str(raised.value) == f"beam_decode: {message}"


@pytest.mark.parametrize("batch", [(4,), (2, 2)])
def test_kernels_and_operations_decode_alike(batch: tuple[int, ...]) -> None:
    inputs = drawn(batch=batch)
    normal = torch.Generator().manual_seed(1)
    m, h = 64, 256
    annotations = torch.randn((*batch, m, 2), generator=normal, dtype=torch.float64)
    mask = torch.arange(m) < torch.randint(0, m, (*batch, 1), generator=normal)
    mask[(0,) * len(batch)] = False
    annotations = annotations.masked_fill(~mask.unsqueeze(-1), math.nan)
    scorer = {name: torch.randn(shape, generator=normal, dtype=torch.float64) for name, shape in SCORER.items()}
    p = replace(inputs["parameters"], **scorer)
    tokens = torch.randint(VOCABULARY, (*batch, STEPS), generator=normal)
    assert math.prod(batch) * m * h >= LARGE
    by_kernel = pytorch.teacher_forced_decode(tokens, inputs["state"], annotations, p, mask=mask)
    p.b_o.requires_grad_()  # with gradients `Decoder` computes by PyTorch's operations in place of the kernel
    by_operations = pytorch.teacher_forced_decode(tokens, inputs["state"], annotations, p, mask=mask)
    arguments = (tokens, inputs["state"], annotations, p)
    assert_within_budgets([by_kernel, by_operations], "teacher_forced_decode", *arguments, mask=mask)
    assert all(x.isfinite().all() for x in by_kernel)
