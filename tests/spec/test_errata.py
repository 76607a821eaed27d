"""Every erratum: the right form is what the operation computes, the printed one is not."""

from typing import Any

import numpy as np
import pytest

from attnspec.reference import REFERENCE
from attnspec.reference.budget import judged
from attnspec.spec.contract.precision import CLASSES
from attnspec.spec.contract.sources import S0, SOURCES
from attnspec.spec.errata import ERRATA, MISPRINTS, Erratum
from tests.budgets import assert_within_budgets

every_erratum = pytest.mark.parametrize("erratum", ERRATA.values(), ids=lambda e: e.identifier)


def observe(erratum: Erratum) -> Any:
    return erratum.observed(REFERENCE[erratum.operation](**erratum.example))


def agrees(erratum: Erratum, form: Any) -> bool:
    """True if the numbers of a form are within the budgets of the operation; counts and flags must be equal."""
    computed, expected = (np.asarray(x) for x in (form(**erratum.example), observe(erratum)))
    if computed.shape != expected.shape or expected.dtype.kind != "f":
        return np.array_equal(computed, expected)
    inputs = {name: np.asarray(x) if isinstance(x, float) else x for name, x in erratum.example.items()}
    oracle = judged(REFERENCE[erratum.operation], inputs, CLASSES["ieee64"])
    return all(bool((np.abs(x - oracle.value) <= oracle.budget).all()) for x in (computed, expected))


@every_erratum
def test_right_form_is_the_reference(erratum: Erratum) -> None:
    assert agrees(erratum, erratum.right_form)


@every_erratum
def test_printed_form_is_not_the_reference(erratum: Erratum) -> None:
    assert not agrees(erratum, erratum.printed_form)


@every_erratum
def test_every_erratum_has_a_source_texts_and_a_note(erratum: Erratum) -> None:
    assert ERRATA[erratum.identifier] is erratum
    assert erratum.identifier.split("-")[0] == erratum.source.source
    assert erratum.source.source in SOURCES
    assert all(len(text) > 10 for text in (erratum.printed, erratum.right))
    assert erratum.note.endswith(".")


def test_every_misprint_has_a_source_and_texts() -> None:
    assert not {*MISPRINTS} & {*ERRATA}
    for identifier, misprint in MISPRINTS.items():
        assert identifier.split("-")[0] == misprint.source.source
        assert all(len(text) > 10 for text in (misprint.printed, misprint.right))


def test_arguments_that_the_operation_does_not_take_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^erratum S0-x: expected arguments among \['scores', 'mask'\]; got \['query'\]$"
    ):
        Erratum("S0-x", S0.equation(2), "softmax", "", "", "", len, len, {"query": np.ones(2)})


def test_vectors_that_are_not_centred_can_have_variance_d_too() -> None:
    """S0's variance d needs no centred vectors: 2σ²μᵀμ + dσ⁴ = d has others, such as μᵀμ = 15, σ = ½, d = 8."""
    assert REFERENCE["dot_product_variance"](np.array([3.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]), 0.5) == 8


def test_one_pair_gives_its_projected_value() -> None:
    erratum = ERRATA["S0-head-of-one-pair"]
    w_v, w_o, value = (erratum.example[name] for name in ("w_v", "w_o", "value"))
    head = np.concatenate([w @ value[0] for w in w_v])
    assert np.array_equal(erratum.printed_form(**erratum.example), np.tile(w_o @ head, (2, 1)))


def test_the_softmax_decides_for_the_nearest_key_far_away() -> None:
    assert observe(ERRATA["S4-kernel"]).tolist() == [[7.0]]


def test_variance_as_printed_holds_for_a_common_mean() -> None:
    """The reading under which S2 is right: μᵀμ stands for m²."""
    d, m, sigma = 5, 0.5, 1.5
    as_printed = 2 * d * sigma**2 * m**2 + d * sigma**4
    assert REFERENCE["dot_product_variance"](m, sigma, d=d) == as_printed


def test_printed_encoding_is_the_same_everywhere() -> None:
    """S4 wants every position to have a value of its own; as printed none has."""
    printed, right = (form(n=5, d=4) for form in (ERRATA["S4-position"].printed_form, ERRATA["S4-position"].right_form))
    assert len(np.unique(printed, axis=0)) == 1
    assert len(np.unique(right, axis=0)) == 5


def test_printed_causal_mask_hides_all_earlier_positions() -> None:
    printed = ERRATA["S2-masked-decoder"].printed_form(n=4, m=4)
    assert not np.tril(printed, -1).any()


def test_attention_with_a_causal_mask_can_reveal_positions() -> None:
    erratum = ERRATA["S2-no-way-to-know"]
    assert observe(erratum)[:, 0].tolist() == [1, 1 / 2, 1 / 3, 1 / 4]


def test_order_of_the_inputs_is_the_order_of_the_outputs() -> None:
    erratum = ERRATA["S3-order"]
    x = erratum.example["x"]
    results = [REFERENCE["self_attention"](x[::-1]), REFERENCE["self_attention"](x)[::-1]]
    assert_within_budgets(results, "self_attention", x[::-1])
