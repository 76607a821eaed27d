"""Questions: whom they concern, what a backend declares, and what is no declaration."""

from dataclasses import fields
from typing import Any, get_args

import pytest

from attnspec.spec import OPERATIONS, QUESTIONS, Semantics
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.semantics import DeclaredSemantics, depends_on
from attnspec.spec.contract.tree import Kind

JUDGED = [o for o in OPERATIONS.values() if not o.reference_only]


def test_a_question_is_declared_once() -> None:
    assert list(QUESTIONS) == [f.name for f in fields(Semantics)]
    for field in fields(Semantics):
        q = QUESTIONS[field.name]
        assert (q.name, q.choices, q.normative) == (field.name, get_args(field.type), field.default)
        assert q.normative in q.choices
        assert len(q.choices) >= 2
        assert q.statement.endswith("?")


def test_the_normative_choices_are_the_default() -> None:
    assert {q: getattr(Semantics(), q) for q in QUESTIONS} == {q.name: q.normative for q in QUESTIONS.values()}


def concerned(question: str) -> set[str]:
    return {o.name for o in JUDGED if QUESTIONS[question].concerns(o)}


def test_a_question_concerns_some_operations_and_not_all() -> None:
    for name in QUESTIONS:
        assert concerned(name)
        assert concerned(name) != {o.name for o in JUDGED}, name


def test_questions_of_masks_concern_operations_with_a_mask() -> None:
    masked = {o.name for o in JUDGED if o.sizes_of(Axis.KEY) and any(x.kind is Kind.BOOL for x in o.leaves)}
    masked -= {"block_mask"}
    assert concerned("fully_masked") == concerned("masked_nonfinite") == masked


def test_no_keys_concerns_operations_that_weigh_keys() -> None:
    others = {"softmax", "mean_normalization"}  # which give weights
    others |= {o.name for o in JUDGED if o.chapter == "transformer"}  # which add to what they attend to
    others |= {"biased_multi_head_attention"}  # whose rows without keys are the bias of the output
    others |= {"grouped_query_attention", "attention_weights", "dropout"}  # which give logarithms, and weights
    others |= {"decoder_step", "teacher_forced_decode", "greedy_decode", "beam_decode"}
    assert concerned("no_keys") == concerned("fully_masked") - others


def test_attendable_nan_concerns_operations_that_weigh_keys_or_normalise_scores() -> None:
    assert concerned("minus_infinity") == {"softmax"}
    assert concerned("attendable_nan") == concerned("no_keys") | concerned("minus_infinity")


def test_alignment_concerns_flags_of_two_sequences() -> None:
    flagged = {o.name for o in JUDGED if "causal" in o.call.names}
    of_their_own = {"paged_attention"}  # lengths say at which position the queries are
    assert concerned("causal_alignment") == flagged - {"self_attention", "projected_self_attention"} - of_their_own
    assert concerned("causal_alignment")


def test_an_odd_number_of_columns_concerns_encodings() -> None:
    assert concerned("odd_encoding") == {"sinusoidal_positional_encoding"}


def test_the_reset_gate_concerns_what_has_parameters_of_a_gru() -> None:
    assert concerned("gru_reset") == {o.name for o in JUDGED if any(leaf.path.endswith("w_hr") for leaf in o.leaves)}
    assert concerned("gru_update") == concerned("gru_reset")


def test_groups_of_heads_concern_what_has_heads_of_keys() -> None:
    assert concerned("head_groups") == {o.name for o in JUDGED if o.sizes_of(Axis.GROUP)}


def test_distances_concern_what_has_slopes() -> None:
    assert concerned("alibi_distances") == {o.name for o in JUDGED if o.part(ScoreEffect.SLOPES)}


def test_the_forget_gate_concerns_what_has_parameters_of_an_lstm() -> None:
    with_gate = {o.name for o in JUDGED if any(leaf.path.endswith("w_hf") for leaf in o.leaves)}
    assert concerned("lstm_forget_bias") == with_gate


def test_the_factor_concerns_rms_norms() -> None:
    assert concerned("rms_weight") == {"rms_norm", "add_rms_norm"}


def test_the_form_of_gelu_concerns_gelu() -> None:
    assert concerned("gelu_form") == {"gelu"}


def test_the_ramp_concerns_rotary_frequencies() -> None:
    assert concerned("rotary_ramp") == {"rotary_frequencies"}
    assert concerned("padding_positions") == {"positions_from_mask"}
    assert concerned("rotary_pairs") == {"rotary_embedding", "axial_rotary_embedding"}


@pytest.mark.parametrize("name", ["repeatability", "gru"])
def test_records_depend_on_questions_that_formulas_ask(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^depends_on: expected one of .*gru_reset, .*rotary_pairs.*; got '{name}'$"):
        depends_on(name)


def test_repeatability_concerns_operations_with_float_results() -> None:
    assert {o.name for o in JUDGED} - concerned("repeatability") == {
        "causal_mask",
        "padding_mask",
        "sliding_window_mask",
        "document_mask",
        "rolling_buffer_positions",
        "positions_from_mask",
        "top_keys",
        "block_mask",
        "tree_mask",
    }


# Declarations ---------------------------------------------------------------------------------------------------------


def test_forms_of_a_declaration() -> None:
    declared = Semantics(no_keys="error")
    assert Semantics.of(None) == Semantics.of({}) == Semantics()
    assert Semantics.of(declared) is declared
    assert Semantics.of({"no_keys": "error"}) == declared


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"no_keys": "one"}, "semantics no_keys: expected one of zero, nan, error; got 'one'"),
        ({"fully_masked": 0}, "semantics fully_masked: expected one of zero, uniform, nan, error; got 0"),
        (
            {"fully_masked": {"no-batch": "zero"}},
            "semantics fully_masked: expected a choice for full, and for some of queries-alike, keys-alike, no-batch; "
            "got {'no-batch': 'zero'}",
        ),
        (
            {"fully_masked": {"full": "zero", "padding": "nan"}},
            "semantics fully_masked: expected a choice for full, and for some of queries-alike, keys-alike, no-batch; "
            "got {'full': 'zero', 'padding': 'nan'}",
        ),
        (
            {"fully_masked": ["zero", "nan"]},
            "semantics fully_masked: expected a choice for full, and for some of queries-alike, keys-alike, no-batch; "
            "got ['zero', 'nan']",
        ),
        (
            {"fully_masked": {"full": "zero", "no-batch": "none"}},
            "semantics fully_masked: no-batch: expected one of zero, uniform, nan, error; got 'none'",
        ),
        ({"no_key": "zero"}, "semantics: expected questions among no_keys, window_left, …; got no_key"),
        ({"b": 1, "a": 1}, f"semantics: expected questions among {', '.join([*QUESTIONS][:6])}, …; got a, b"),
        ("zero", "semantics: expected Semantics or a mapping; got str"),
        (["no_keys"], "semantics: expected Semantics or a mapping; got list"),
    ],
)
def test_an_invalid_declaration_is_refused(declared: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^semantics") as raised:
        Semantics.of(declared)
    assert str(raised.value) == message


def test_one_declaration_for_all_operations() -> None:
    declared = DeclaredSemantics.of({"no_keys": "nan"}, OPERATIONS)
    assert declared["softmax"] == declared["dot_scores"] == Semantics(no_keys="nan")
    assert (
        DeclaredSemantics.of(None, OPERATIONS)["softmax"]
        == DeclaredSemantics.of({}, OPERATIONS)["softmax"]
        == Semantics()
    )


def test_a_declaration_for_each_operation() -> None:
    declared = DeclaredSemantics.of({"softmax": {"fully_masked": "nan"}, "*": Semantics(no_keys="error")}, OPERATIONS)
    assert declared["softmax"] == Semantics(fully_masked="nan")
    assert declared["dot_scores"] == Semantics(no_keys="error")
    assert DeclaredSemantics.of({"softmax": None}, OPERATIONS)["dot_scores"] == Semantics()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"softmax": {"no_keys": "one"}}, "semantics no_keys: expected one of zero, nan, error; got 'one'"),
        (
            {"softmax": {}, "soft": {}},
            "semantics: expected questions among window_left, masked_nonfinite, …; got soft, softmax",
        ),
        (1, "semantics: expected Semantics or a mapping; got int"),
    ],
)
def test_an_invalid_declaration_by_operation_is_refused(declared: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^semantics") as raised:
        DeclaredSemantics.of(declared, OPERATIONS)
    assert str(raised.value) == message


READ_BY_GRU = "gru_reset, gru_update, repeatability, rejection"


def demand_read(declared: Any, *provided: str) -> None:
    DeclaredSemantics.of(declared, OPERATIONS).demand_read([OPERATIONS[name] for name in provided], OPERATIONS)


def test_an_operation_reads_what_it_declares() -> None:
    demand_read({"fully_masked": "nan"}, "softmax", "dot_scores")
    demand_read({"softmax": {"fully_masked": "nan"}, "*": {"gru_reset": "after"}}, "softmax", "gru")
    demand_read({"softmax": {"gru_reset": "before"}}, "softmax")  # the normative choice declares no difference
    demand_read({"gru_reset": "after"})  # a backend without operations is refused for that reason


@pytest.mark.parametrize(
    ("declared", "provided", "message"),
    [
        (
            {"fully_masked": "nan", "gru_reset": "after"},
            ["gru_cell"],
            f"semantics: expected questions that gru_cell reads, {READ_BY_GRU}; got fully_masked",
        ),
        (
            {"gru_cell": {"fully_masked": "nan"}},
            ["gru_cell", "softmax"],
            f"semantics: expected questions that gru_cell reads, {READ_BY_GRU}; got fully_masked",
        ),
        (
            {"causal_mask": {"gru_reset": "after", "no_keys": "nan"}},
            ["softmax"],
            "semantics: expected questions that causal_mask reads, rejection; got no_keys, gru_reset",
        ),
        (
            {"softmax": {"fully_masked": "nan"}, "*": {"no_keys": "nan"}},
            ["gru_cell", "gru"],
            f"semantics: expected questions that the backend's operations read, {READ_BY_GRU}; got no_keys",
        ),
    ],
)
def test_a_choice_that_no_operation_reads_is_refused(declared: Any, provided: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^semantics") as raised:
        demand_read(declared, *provided)
    assert str(raised.value) == message


def test_rows_without_keys_by_way_of_masking() -> None:
    declared = Semantics.of({"fully_masked": {"no-batch": "nan", "full": "zero"}})
    ways = {"full": "zero", "queries-alike": "zero", "keys-alike": "zero", "no-batch": "nan"}
    assert declared.without_keys == ways
    assert hash(declared) == hash(Semantics.of({"fully_masked": [list(pair) for pair in ways.items()]}))
    assert Semantics().without_keys == dict.fromkeys(ways, "zero")
    assert Semantics.of({"fully_masked": {"full": "nan", "no-batch": "nan"}}) == Semantics(fully_masked="nan")


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_choice_can_be_declared_wherever_its_law_judges(name: str) -> None:
    question = QUESTIONS[name]
    concerned = [o.name for o in OPERATIONS.values() if question.concerns(o)]
    assert concerned == [o.name for o in OPERATIONS.values() if LAWS[question.law].governs(o)]
