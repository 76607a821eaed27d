"""The page of libraries and conventions: complete, up to date, and measured where PyTorch is concerned."""

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from attnspec.spec import QUESTIONS

ROOT = Path(__file__).parents[1]
PAGE = runpy.run_path(str(ROOT / "docs" / "rosetta.py"))
CELLS: Mapping[str, Mapping[str, tuple[str, str]]] = PAGE["CELLS"]


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "rosetta.md").read_text(encoding="utf-8") == PAGE["table"]()


def test_the_page_has_every_question_with_every_choice() -> None:
    text = PAGE["table"]()
    for name, question in QUESTIONS.items():
        assert f"| `{name}` | `{question.normative}` |" in text
        assert [x for x in question.choices if f"| `{x}` |" not in text] == []


def test_libraries_make_choices_that_exist() -> None:
    assert set(CELLS) <= set(QUESTIONS)
    for question, cells in CELLS.items():
        assert {choice for choice, _ in cells.values()} <= set(QUESTIONS[question].choices), question


def test_at_least_twelve_libraries_are_compared() -> None:
    assert len({library for cells in CELLS.values() for library in cells}) >= 12


# PyTorch, measured --------------------------------------------------------------------------------------------------

torch: Any = pytest.importorskip("torch")


def attention(queries: int, keys: int, **options: Any) -> tuple[Any, Any]:
    """Values, and attention to them by scores of 0."""
    value = torch.arange(1.0, 1 + keys)[None, None, :, None].expand(1, 1, keys, 8)
    zeros = torch.zeros(1, 1, max(queries, keys), 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    return value, attend(zeros[..., :queries, :], zeros[..., :keys, :], options.pop("value", value), **options)


def fully_masked() -> str:
    value, result = attention(2, 3, attn_mask=torch.zeros(2, 3, dtype=torch.bool))
    return "zero" if not result.any() else "uniform" if torch.equal(result, value.mean(-2)) else "nan"


def no_keys() -> str:
    _, result = attention(2, 0)
    return "zero" if not result.any() else "nan"


def causal_alignment() -> str:
    value, result = attention(2, 4, is_causal=True)
    return "top-left" if torch.equal(result[0, 0, 0], value[0, 0, 0]) else "bottom-right"


def masked_nonfinite() -> str:
    value = torch.tensor([1.0, 2.0, torch.nan])[None, None, :, None].expand(1, 1, 3, 8)
    _, result = attention(2, 3, value=value, attn_mask=torch.tensor([[True, True, False]] * 2))
    return "propagates" if result.isnan().all() else "excluded"


def attendable_nan() -> str:
    value = torch.tensor([1.0, 2.0, torch.nan])[None, None, :, None].expand(1, 1, 3, 8)
    return "propagates" if attention(2, 3, value=value)[1].isnan().all() else "hidden"


def minus_infinity() -> str:
    weights = torch.softmax(torch.tensor([-torch.inf, -torch.inf]), -1)
    return "nan" if weights.isnan().all() else "zero" if not weights.any() else "uniform"


def gru(reset: tuple[float, float], update: float) -> Any:
    """Next state of a GRU from (1, 1); each candidate depends on the other unit of the state alone."""
    weights = torch.zeros(6, 2)
    weights[4:] = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    gates = torch.tensor([*reset, update, update, 0.0, 0.0])
    return torch.gru_cell(torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(6, 2), weights, gates, torch.zeros(6))[0]


def gru_reset() -> str:
    closed, open_ = -100.0, 100.0
    first, _ = gru((closed, open_), closed)  # the other unit is the open one
    return "before" if first > 0.5 else "after"


def gru_update() -> str:
    return "state" if torch.equal(gru((0.0, 0.0), 100.0), torch.ones(2)) else "candidate"


def lstm_forget_bias() -> str:
    zeros = torch.zeros(1, 1)
    _, cell = torch.lstm_cell(zeros, (zeros, zeros + 1), *[torch.zeros(4, 1)] * 2, *[torch.zeros(4)] * 2)
    return "as-given" if cell.item() == 0.5 else "plus-one"


def rms_weight() -> str:
    row = torch.nn.functional.rms_norm(torch.ones(1, 4), (4,), torch.ones(4))
    return "as-given" if row[0, 0].round() == 1 else "plus-one"


def gelu_form() -> str:
    return "erf" if torch.nn.functional.gelu(torch.ones(1)) > 0.8413 else "tanh"


def head_groups() -> str:
    query, key = torch.zeros(1, 4, 1, 8), torch.zeros(1, 2, 3, 8)
    value = torch.tensor([1.0, 2.0])[None, :, None, None].expand(1, 2, 3, 8)
    heads = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)[0, :, 0, 0]
    return {(1, 1, 2, 2): "blocks", (1, 2, 1, 2): "interleaved"}[tuple(heads.round().int().tolist())]


def rejection() -> str:
    try:
        attention(2, 3, value=torch.zeros(1, 1, 4, 8))
    except RuntimeError:
        return "raises"
    return "unchecked"


MEASUREMENTS: list[Callable[[], str]] = [
    fully_masked, no_keys, causal_alignment, masked_nonfinite, attendable_nan, minus_infinity,
    gru_reset, gru_update, lstm_forget_bias, rms_weight, gelu_form, head_groups, rejection,
]  # fmt: skip


@pytest.mark.parametrize("measure", MEASUREMENTS, ids=lambda x: x.__name__)
def test_pytorch_chooses_as_the_page_says(measure: Callable[[], str]) -> None:
    assert CELLS[measure.__name__]["PyTorch"] == (measure(), PAGE["MEASURED"])


def test_every_measured_choice_has_a_measurement() -> None:
    measured = {q for q, cells in CELLS.items() if cells.get("PyTorch", ("", ""))[1] == PAGE["MEASURED"]}
    assert measured == {measure.__name__ for measure in MEASUREMENTS}
