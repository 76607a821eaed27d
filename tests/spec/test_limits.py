"""Limits: what a backend may declare, in which forms, and the errors for others."""

from typing import Any

import numpy as np
import pytest

from attnspec.spec import Limits
from attnspec.spec.contract.precision import DEFAULTS


def test_the_default_limits_are_two_dtypes_on_the_cpu() -> None:
    assert Limits.of(None) == Limits.of({}) == Limits()
    assert Limits() == Limits(dtypes=("float64", "float32"), devices=("cpu",), multiple_of=1, max_batch_dims=3)
    assert (Limits().head_sizes, Limits().max_length, Limits().features) == (None, None, None)
    assert not Limits().divided_heads


def test_forms_of_a_declaration() -> None:
    declared = Limits(dtypes=("float32",))
    assert Limits.of(declared) is declared
    assert Limits.of({"dtypes": ["float32"]}) == Limits.of({"dtypes": ("float32",)}) == declared


def test_every_dtype_has_a_precision() -> None:
    assert Limits(dtypes=tuple(DEFAULTS)).dtypes == tuple(DEFAULTS)


def test_a_dtype_or_device_named_twice_counts_once() -> None:
    declared = Limits(dtypes=("float32", "float64", "float32"), devices=("cpu", "cpu"))
    assert (declared.dtypes, declared.devices) == (("float32", "float64"), ("cpu",))


def test_numpy_integers_become_python_integers() -> None:
    numbers: dict[str, Any] = {"multiple_of": np.int64(8), "max_length": np.uint8(64), "max_batch_dims": np.int8(0)}
    declared = Limits(**numbers, head_sizes=(np.int32(64),))  # type: ignore[arg-type]  # at run time it may
    assert (declared.multiple_of, declared.max_length, declared.max_batch_dims) == (8, 64, 0)
    values = (declared.multiple_of, declared.max_length, declared.max_batch_dims, *(declared.head_sizes or ()))
    assert all(type(n) is int for n in values)


def test_some_operations_have_fewer_dtypes() -> None:
    declared = Limits.of({"dtypes_by_operation": {"layer_norm": ["float32"]}})
    assert declared.dtypes_for("layer_norm") == ("float32",)
    assert declared.dtypes_for("softmax") == ("float64", "float32")
    assert hash(declared) == hash(Limits(dtypes_by_operation=declared.dtypes_by_operation))


def test_features_are_all_or_those_that_are_listed() -> None:
    assert Limits().has("scale")
    some = Limits(features=("scale", "norm=pre"))
    assert some.has("scale")
    assert some.has("norm=pre")
    assert not some.has("norm=post")
    assert not some.has("window")
    assert not Limits(features=()).has("scale")
    assert Limits.of({"features": ["scale"]}).features == ("scale",)


def test_lengths_are_at_least_the_smallest_and_multiples() -> None:
    assert [Limits(min_length=3).length_from(n) for n in (0, 2, 3, 5)] == [3, 3, 3, 5]
    assert [Limits(min_length=3, multiple_of=4).length_from(n) for n in (0, 4, 5)] == [4, 4, 8]


def test_gradients_are_those_of_all_operations_or_of_some() -> None:
    assert Limits().gives_gradients("softmax")
    some = Limits.of({"gradients": ["softmax"]})
    assert (some.gives_gradients("softmax"), some.gives_gradients("layer_norm")) == (True, False)


def test_formats_of_operands_are_those_of_all_or_of_each() -> None:
    declared = Limits.of({"operand_formats": {"dot_scores": ["mxfp8", {"key": "int8-per-token"}]}})
    assert declared.formats_of("dot_scores") == ("mxfp8", (("key", "int8-per-token"),))
    assert declared.formats_of("softmax") == ()
    # As a backend's process sends them: mappings as pairs, tuples as lists.
    sent = {"operand_formats": [["dot_scores", ["mxfp8", [["key", "int8-per-token"]]]]]}
    assert Limits.of({name: tuple(x) for name, x in sent.items()}) == declared
    assert isinstance(hash(declared), int)


@pytest.mark.parametrize(("declared", "message"), [
    ({"dtypes": "float32"}, "limits dtypes: expected a tuple or a list; got 'float32'"),
    ({"dtypes": None}, "limits dtypes: expected a tuple or a list; got None"),
    ({"devices": {"cpu"}}, "limits devices: expected a tuple or a list; got {'cpu'}"),
    ({"head_sizes": 64}, "limits head_sizes: expected a tuple or a list; got 64"),
    ({"features": "scale"}, "limits features: expected a tuple or a list; got 'scale'"),
    ({"dtypes": ("float32", "int8")}, f"limits dtypes: expected some of {', '.join(DEFAULTS)}; got 'int8'"),
    ({"dtypes": ()}, "limits: expected at least one dtype and one device; got none"),
    ({"devices": []}, "limits: expected at least one dtype and one device; got none"),
    ({"gradients": "softmax"}, "limits gradients: expected a tuple or a list; got 'softmax'"),
    ({"mask": None}, "limits mask: expected True or False; got None"),
    ({"causal": 0}, "limits causal: expected True or False; got 0"),
    ({"contiguous_only": "yes"}, "limits contiguous_only: expected True or False; got 'yes'"),
    ({"min_length": -1}, "limits min_length: expected an integer of at least 0; got -1"),
    ({"min_length": None}, "limits min_length: expected an integer of at least 0; got None"),
    ({"min_batch": 0.5}, "limits min_batch: expected an integer of at least 0; got 0.5"),
    ({"min_length": 3, "multiple_of": 8, "max_length": 4},
     "limits max_length: expected at least 8, the smallest length by min_length and multiple_of; got 4"),
    ({"min_length": 9, "multiple_of": 8, "max_length": 12},
     "limits max_length: expected at least 16, the smallest length by min_length and multiple_of; got 12"),
    ({"multiple_of": 0}, "limits multiple_of: expected an integer of at least 1; got 0"),
    ({"multiple_of": 1.5}, "limits multiple_of: expected an integer of at least 1; got 1.5"),
    ({"multiple_of": True}, "limits multiple_of: expected an integer of at least 1; got True"),
    ({"multiple_of": None}, "limits multiple_of: expected an integer of at least 1; got None"),
    ({"max_length": 0}, "limits max_length: expected an integer of at least 1; got 0"),
    ({"max_length": 7, "multiple_of": 8},
     "limits max_length: expected at least 8, the smallest length by min_length and multiple_of; got 7"),
    ({"max_batch_dims": -1}, "limits max_batch_dims: expected an integer of at least 0; got -1"),
    ({"head_sizes": ()}, "limits head_sizes: expected at least one size, or None for all; got ()"),
    ({"head_sizes": (8, 0)}, "limits head_sizes: expected an integer of at least 1; got 0"),
    ({"divided_heads": 1}, "limits divided_heads: expected True or False; got 1"),
    ({"dtypes_by_operation": "layer_norm"},
     "limits dtypes_by_operation: expected a mapping from operations to dtypes; got 'layer_norm'"),
    ({"dtypes_by_operation": {"layer_norm": ("float16",)}},
     "limits dtypes_by_operation: layer_norm: expected some of float64, float32; got ('float16',)"),
    ({"operand_formats": ("mxfp8",)},
     "limits operand_formats: expected a mapping from operations to tuples of formats; got ('mxfp8',)"),
    ({"operand_formats": {"softmax": "mxfp8"}},
     "limits operand_formats: softmax: expected a tuple of formats; got 'mxfp8'"),
    ({"operand_formats": {"softmax": (8,)}},
     "limits operand_formats: expected a format, or a mapping from arguments to formats; got 8"),
    ({"operand_formats": {"softmax": ("mxfp9",)}},
     "limits operand_formats: operand format: expected e4m3, e5m2 or int8, with -per- and tensor, head, token or "
     "channel or such as 64-tokens; or mxfp8 or nvfp4, alone or with -along-tokens; got 'mxfp9'"),
    ({"dtype": ("float32",)}, "limits: expected fields among dtypes, dtypes_by_operation, …; got dtype"),
    ({"sizes": 1, "heads": 2},
     "limits: expected fields among head_sizes, divided_heads, features, …; got heads, sizes"),
    ("float32", "limits: expected Limits or a mapping; got str"),
    ([("dtypes", ())], "limits: expected Limits or a mapping; got list"),
])  # fmt: skip
def test_an_invalid_limit_is_refused(declared: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^limits") as raised:
        Limits.of(declared)
    assert str(raised.value) == message
