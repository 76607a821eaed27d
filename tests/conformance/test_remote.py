"""A backend in its own process: the values sent, arrays that stay there, and exceptions."""

import builtins
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance.inputs.layouts import LAYOUTS, VIEW_ERRORS, spread_out, with_stride_0
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.client import PipelineFailed
from attnspec.conformance.remote.description import contract_from, described
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.remote.raised import MalformedReply, exception_as_json, exception_from_json
from attnspec.conformance.remote.wire import LENGTHS, Reader, Writer, dtype_named, header, records

# Values ---------------------------------------------------------------------------------------------------------------


def sent_and_received(x: Any, read: Callable[[Any], Any] | None = None) -> Any:
    """A value after writing and reading; an object that stays there becomes a description."""
    objects: list[Any] = []

    def keep(obj: Any) -> int:
        objects.append(obj)
        return len(objects)

    writer = Writer(keep, read)
    frame = writer.frame(writer.value(x))
    text, length = LENGTHS.unpack_from(frame)
    middle = LENGTHS.size + text
    assert len(frame) == middle + length
    payload = np.frombuffer(bytes(frame[middle:]), np.uint8).copy().data
    return Reader(payload, lambda letter, number, more: (letter, objects[number - 1], more)).value(
        header(frame[LENGTHS.size : middle])
    )


@pytest.mark.parametrize(
    "x", [None, True, False, 3, -1.5, float("inf"), "a text", "\udc80", (1, (2, "x")), [1], {"a": 1}]
)
def test_plain_values_are_received_unchanged(x: Any) -> None:
    received = sent_and_received(x)
    assert (received, type(received)) == (x, type(x))


def array(dtype: Any) -> Any:
    return np.arange(24).reshape(2, 3, 4).astype(dtype)


CUTS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "every second": lambda x: x[..., ::2],
    "exchanged": lambda x: x.swapaxes(0, -1),
    "backwards": lambda x: x[::-1, ::-2],
    "empty": lambda x: x[:0],
    "one": lambda x: x[0, 0, 0],
}


@pytest.mark.parametrize(
    "dtype",
    [
        bool,
        "i1",
        "u8",
        "<f2",
        "f4",
        "f8",
        np.longdouble,
        "c16",
        ">f8",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        "U2",
    ],
    ids=str,
)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_arrays_are_received_with_all_bits_and_strides(dtype: Any, cut: Callable[[Any], Any]) -> None:
    x = np.asarray(cut(array(dtype)))
    letter, _, (shape, numpy, name, numbers) = sent_and_received(x, lambda y: y)
    assert (letter, tuple(shape), numpy, name) == ("a", x.shape, True, "ndarray")
    writer = Writer(lambda _: 0)
    received = _read_value(writer, writer.array(x))
    assert (received.dtype, received.shape) == (x.dtype, x.shape)
    assert received.tobytes() == x.tobytes()
    assert not x.size or received.strides == x.strides
    assert received.flags.writeable
    assert numbers[0] == "v"


def _read_value(writer: Writer, value: Any) -> Any:
    frame = writer.frame(value)
    text, _ = LENGTHS.unpack_from(frame)
    middle = LENGTHS.size + text
    payload = np.frombuffer(bytes(frame[middle:]), np.uint8).copy().data
    return Reader(payload, lambda *_: None).value(header(frame[LENGTHS.size : middle]))


def test_distant_numbers_are_sent_without_the_memory_between() -> None:
    x = np.lib.stride_tricks.as_strided(np.zeros(1 << 20), (2, 2), (1 << 22, 8))
    writer = Writer(lambda _: 0)
    value = writer.array(x)
    assert writer.length == x.nbytes
    assert np.array_equal(_read_value(writer, value), x)


def test_scalars_of_numpy_keep_their_type() -> None:
    for x in (np.float32(1.5), np.int64(3), np.bool_(True), ml_dtypes.bfloat16(2)):
        received = sent_and_received(x)
        assert (received, type(received)) == (x, type(x))


def test_a_subclass_of_arrays_is_sent_by_its_memory() -> None:
    class Lying(np.ndarray):
        shape = property(lambda self: (7,))
        dtype = property(lambda self: np.dtype("f8"))
        tobytes = __array__ = __eq__ = __getitem__ = lambda *_, **__: 1 / 0  # type: ignore[assignment]

    x = np.arange(4.0, dtype="f4").reshape(2, 2)
    writer = Writer(lambda _: 0)
    received = _read_value(writer, writer.array(x.view(Lying)))
    assert (received.dtype, received.shape, received.tolist()) == (x.dtype, x.shape, x.tolist())


def test_only_records_of_the_specification_keep_their_class() -> None:
    for record in records().values():
        count = len(getattr(record, "__dataclass_fields__", ())) or len(getattr(record, "_fields", ()))
        assert sent_and_received(record(*range(count))) == record(*range(count))

    class Other(tuple[int, ...]):
        pass

    received = sent_and_received(Other((1, 2)))
    assert (tuple(received), type(received).__name__) == ((1, 2), "Other")
    assert type(received) is not Other


MALFORMED: list[Any] = [
    {"a": 1},
    ["z", 1],
    ["n", "O", [1], [8], 0, 0, 8],
    ["n", "<f8", [2], [8], 0, 0, 8],
    ["n", "<f8", [-1], [8], 0, 0, 8],
    ["n", "<f8", [1], [8], 0, 0, 1 << 40],
    ["n", "<f8", [1 << 40, 1 << 40], [8, 8], 0, 0, 8],
    ["n", "<f8", [1], [8], -8, 0, 8],
    ["n", "float64", [1], [8], 0, 0, 8],
    ["n", "<f8" * 40, [1], [8], 0, 0, 8],
    ["n"],
    ["r", "builtins:eval", [1]],
    ["r", "subprocess:Popen", [["true"]]],
    ["a", "x", [1], True, "a", None],
    ["a", 1.5, [1], True, "a", None],
    ["d", 3],
    ["t", 3, [1]],
]


@pytest.mark.parametrize("value", MALFORMED, ids=str)
def test_a_malformed_value_is_refused(value: Any) -> None:
    with pytest.raises(MalformedReply):
        Reader(bytearray(8), lambda letter, number, more: None).value(value)


def test_deep_trees_and_long_headers_are_refused() -> None:
    value: Any = 1
    for _ in range(200):
        value = ["t", "tuple", [value]]
    with pytest.raises(MalformedReply):
        Reader(b"", lambda *_: None).value(value)
    for text in (b"[" * 100_000, b"nothing", b"\xff", b"1" * 5000):
        with pytest.raises(MalformedReply):
            header(text)


@pytest.mark.parametrize("text", ["O", "V8", "<M8[s]", "f8", "<f8,<f8", "generic", "finfo", "", "<f", 3, None])
def test_names_that_are_no_dtype_are_refused(text: Any) -> None:
    with pytest.raises(MalformedReply):
        dtype_named(text)


# Exceptions -----------------------------------------------------------------------------------------------------------

BUILTIN = [c for c in vars(builtins).values() if isinstance(c, type) and issubclass(c, BaseException)]


@pytest.mark.parametrize("base", BUILTIN, ids=lambda c: c.__name__)
def test_every_exception_can_be_sent(base: type[BaseException]) -> None:
    class Own(base):  # type: ignore[misc, valid-type]
        def __init__(self, *_: Any) -> None:
            pass

        def __str__(self) -> str:
            return "one\x1b[2J\ntwo"

    try:
        raise Own("g", [ValueError()]) if issubclass(base, BaseExceptionGroup) else Own()
    except BaseException as error:  # noqa: BLE001 - every one of them
        raised = Raised(error)
    received = Raised(exception_from_json(json.loads(json.dumps(exception_as_json(raised.error)))))
    assert received.message == raised.message
    assert r"\x1b" in received.message
    ends = (KeyboardInterrupt, SystemExit, GeneratorExit)
    if not issubclass(base, (*ends, BaseExceptionGroup)):
        assert isinstance(received.error, base)
    assert not isinstance(received.error, ends)


def test_an_exception_without_a_readable_message_is_sent() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert Raised(exception_from_json(exception_as_json(Mute()))).message == "Mute: its message cannot be read"


@pytest.mark.parametrize(
    "reply",
    [["a", "b"], [1, "Exception", "x", []], ["E", "Exception", 3, []], ["E", "Exception", "x", [["f", "1", "n"]]]],
)
def test_a_malformed_exception_is_refused(reply: Any) -> None:
    with pytest.raises((MalformedReply, ValueError)):
        exception_from_json(reply)


# Arrays ---------------------------------------------------------------------------------------------------------------

PLAIN = """
import numpy as np

name = "plain"
limits = {"dtypes": ("float64", "float32")}
notes = {"of": "a test"}

def dot_scores(query, key):
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise ValueError("sizes differ")
    return query @ np.swapaxes(key, -1, -2)

def softmax(scores, mask=None):
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    with np.errstate(all="ignore"):
        e = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e30))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total > 0, total, 1).astype(e.dtype)
"""


def start_backend(folder: Path, code: str, hang_after: float = 20.0) -> tuple[RemoteBackend, Contract]:
    (folder / "backend.py").write_text(code, encoding="utf-8")
    backend = RemoteBackend(str(folder / "backend.py"), "cpu", hang_after=hang_after)
    return backend, contract_from(dict(backend.await_declarations(60.0)), backend.origin)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteBackend]:
    backend, _ = start_backend(tmp_path_factory.mktemp("plain"), PLAIN)
    yield backend
    backend.close()


def test_the_remote_contract_is_that_of_the_backend(tmp_path: Path) -> None:
    backend, contract = start_backend(tmp_path, PLAIN)
    backend.close()
    assert contract == contract_of(load(backend.origin), backend.origin, "cpu")
    assert contract_from(json.loads(json.dumps(described(contract))), backend.origin) == contract


@pytest.mark.parametrize(
    "forged",
    [
        {},
        {"name": 3},
        {"operations": 3},
        {"operations": ["softmaxx"]},
        {"operations": [[]]},
        {"limits": []},
        {"limits": {"max_length": "long"}},
        {"semantics": None},
        {"semantics": {"default": {"no_keys": 3}, "per_operation": {}}},
        {"precision": {"default": [], "per_operation": {}}},
        {"precision": {"default": {"float32": {}}, "per_operation": {}}},
        {"notes": [1]},
    ],
)
def test_a_forged_description_is_an_error_of_the_backend(forged: dict[str, Any]) -> None:
    honest = described(Contract.of(SimpleNamespace(name="forged", softmax=np.exp)))
    with pytest.raises(BackendError, match=r"backend 'forged\.py': expected its declaration"):
        contract_from({**honest, **forged} if forged else {}, "forged.py")


def test_the_backends_process_loads_no_oracle_or_law(tmp_path: Path) -> None:
    code = "import sys\nnotes = {'loaded': ' '.join(m for m in sys.modules if m.startswith('attnspec'))}\n"
    backend, contract = start_backend(tmp_path, PLAIN + code)
    backend.close()
    loaded = set(contract.notes["loaded"].split())
    assert "attnspec.spec" in loaded
    knowing = ("attnspec.reference", "attnspec.conformance.laws", "attnspec.conformance.judging.engine", "hypothesis")
    assert not [m for m in loaded if m.startswith(knowing)]


@pytest.mark.parametrize("way", LAYOUTS, ids=lambda way: way.__name__)
def test_every_layout_is_made_in_the_backends_process(plain: RemoteBackend, way: Any) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    moved = way(x, lambda y: plain.from_numpy(np.array(y, order="C"), device="cpu"))
    assert np.array_equal(plain.to_numpy(moved), x)
    assert plain.to_numpy(moved).strides == way(x, lambda y: np.array(y, order="C")).strides
    assert isinstance(moved, np.ndarray)
    if way.__name__ == "read_only":
        with pytest.raises(ValueError, match="read-only"):
            moved[...] = 1


def test_distant_and_repeated_arrays_are_made_in_the_backends_process(plain: RemoteBackend) -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    far = spread_out(x, 0, lambda y: plain.from_numpy(y, device="cpu"))
    assert far is not None
    assert np.array_equal(plain.to_numpy(far), x)
    same = np.repeat(x[:1], 2, 0)
    assert np.array_equal(plain.to_numpy(with_stride_0(same, 0, lambda y: plain.from_numpy(y, device="cpu"))), same)


def test_writing_to_a_view_changes_its_array(plain: RemoteBackend) -> None:
    moved = plain.from_numpy(np.zeros((2, 3)), device="cpu")
    view = moved[:, 1]
    assert (view.shape, moved.ndim) == ((2,), 2)
    before = plain.to_numpy(moved)
    view[...] = plain.from_numpy(np.ones(2), device="cpu")
    assert plain.to_numpy(moved)[:, 1].tolist() == [1, 1]
    assert not before.any()


def test_exceptions_of_the_backend_are_raised_in_the_judge(plain: RemoteBackend) -> None:
    array = plain.from_numpy(np.zeros((2, 3)), device="cpu")
    with pytest.raises(ValueError, match="sizes differ"):
        plain.dot_scores(array, plain.from_numpy(np.zeros((2, 4)), device="cpu"))
    wrong: tuple[Callable[[], Any], ...] = (lambda: array["x"], lambda: array.reshape(7), lambda: array.swapaxes(0, 5))
    for call in wrong:
        with pytest.raises(VIEW_ERRORS):
            call()
    with pytest.raises(AttributeError):
        _ = array[0].reshape(3)[0].nothing
    assert not hasattr(plain, "vjp")
    assert not hasattr(plain, "lstm")


def test_results_are_read_again_after_a_change(plain: RemoteBackend) -> None:
    q = plain.from_numpy(np.ones((1, 2)), device="cpu")
    result = plain.dot_scores(q, q)
    assert plain.to_numpy(result).tolist() == [[2]]
    result[...] = 5
    assert plain.to_numpy(result).tolist() == [[5]]
    assert plain.to_numpy(result).tolist() == [[5]]


BOXES = """
import numpy as np

name = "boxes"
limits = {"dtypes": ("float64",)}

class Box:
    def __init__(self, x):
        self.x = x
        self.shape = x.shape

def from_numpy(x, *, device):
    if x.ndim > 3:
        raise NotImplementedError("at most 3 axes")
    return Box(x.copy())

def to_numpy(box):
    return box.x

def dot_scores(query, key):
    return Box(query.x @ np.swapaxes(key.x, -1, -2))
"""


FICKLE_BOXES = (
    BOXES
    + """
def part(box, key):
    if box.x.shape[-1] == 5:
        raise ValueError("not of five")
    return Box(box.x[key])

Box.__getitem__ = part
"""
)


def test_a_pipelined_call_that_failed_is_repeated(tmp_path: Path) -> None:
    remote, _ = start_backend(tmp_path, FICKLE_BOXES)
    parts = [remote.from_numpy(np.ones((2, n)), device="cpu")[..., :2] for n in (3, 4, 5)]
    assert [x.shape for x in parts] == [(2, 2)] * 3
    with pytest.raises(PipelineFailed):
        remote.to_numpy(parts[0])
    assert remote.to_numpy(parts[1]).tolist() == [[1, 1]] * 2
    with pytest.raises(ValueError, match="not of five"):
        remote.from_numpy(np.ones((2, 5)), device="cpu")[..., :2]
    remote.close()


@pytest.mark.parametrize("size", [1, 100, 300_000])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.bool_])
def test_arrays_of_every_size_are_received(plain: RemoteBackend, size: int, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2, (3, size)).astype(dtype)
    sent = [plain.from_numpy(y, device="cpu") for y in (x, x[1:], np.asfortranarray(x), x[:, ::-1])]
    for moved, y in zip(sent, (x, x[1:], x, x[:, ::-1]), strict=True):
        received = plain.to_numpy(moved)
        assert (received.dtype, received.tobytes()) == (x.dtype, y.tobytes())


def test_a_failing_conversion_is_named(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(BOXES, encoding="utf-8")
    origin = str(tmp_path / "backend.py")
    own = load(origin)
    contract = contract_of(own, origin, "cpu")
    remote = RemoteBackend(origin, "cpu", hang_after=20.0)
    remote.await_declarations(60.0)
    (case,) = cases(contract, operations=["dot_scores"])
    results = [judge(x, contract, case, PROFILES["quick"]) for x in (own, remote)]
    remote.close()
    assert differences(*results) == []
    assert any("from_numpy raised NotImplementedError: at most 3 axes" in r.message for r in results[1])


def differences(results: list[Result], other_results: list[Result]) -> list[str]:
    return [
        f"{a.law} {name}: {x} and {b.as_json()[name]}"[:300]
        for a, b in zip(results, other_results, strict=True)
        for name, x in a.as_json().items()
        if x != b.as_json()[name]
    ]


@pytest.mark.parametrize("operation", ["dot_scores", "softmax"])
def test_remote_verdicts_are_those_of_one_process(tmp_path: Path, operation: str) -> None:
    backend, contract = start_backend(tmp_path, PLAIN.replace("e / np.where", "1.001 * e / np.where"))
    for case in cases(contract, operations=[operation]):
        results = [judge(x, contract, case, PROFILES["quick"]) for x in (load(backend.origin), backend)]
        assert differences(*results) == []
    backend.close()


def test_verdicts_on_records_gradients_and_modes_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    # Sums of several threads depend on their number, which an earlier test may have changed here.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    own = load("pytorch")
    contract = contract_of(own, "pytorch", "cpu")
    remote = RemoteBackend("pytorch", "cpu", hang_after=60.0)
    remote.await_declarations(120.0)
    (case,) = cases(contract, operations=["lstm_cell"], dtypes=["float32"])
    results = [judge(x, contract, case, PROFILES["quick"]) for x in (own, remote)]
    remote.close()
    torch.set_num_threads(threads)
    assert differences(*results) == []
    assert {r.law for r in results[1] if r.law.startswith("training.") and r.examples}


def test_a_declaration_that_changes_in_another_process_is_an_error(tmp_path: Path) -> None:
    code = (
        PLAIN + "import os\nlimits = {'dtypes': ('float64',), **({'max_length': 1} if os.path.exists(MARK) else {})}\n"
    )
    code = code.replace("MARK", repr(str(tmp_path / "mark")))
    backend, _ = start_backend(tmp_path, code)
    (tmp_path / "mark").touch()
    with pytest.raises(
        BackendError, match=r"limits: expected what its first import declared, .* in the process that is judged"
    ):
        backend.restart(60.0)
