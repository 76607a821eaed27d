"""Programs in any language as backends: right, wrong, crashing and hanging ones, and malformed messages."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnspec.conformance.remote.command import CommandBackend
from attnspec.conformance.remote.errors import BackendError
from attnspec.spec import OPERATIONS

from .test_cli import attnspec

EXAMPLES = Path(__file__).parents[2] / "examples" / "commands"
PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
COMPILERS = {
    "attention.c": ["cc", "-O2", "-Wall", "-Wextra", "-Werror"],
    "scores.rs": ["rustc", "-O", "--edition", "2021", "-D", "warnings"],
}

SCORES = """
import json, sys

import numpy as np

print(json.dumps({"attnspec": 1, "name": "mine", "operations": ["dot_scores"],
                  "limits": {"dtypes": ["float64"], "max_batch_dims": 0}}), flush=True)
for line in sys.stdin.buffer:
    request = json.loads(line)
    q, k = (
        np.frombuffer(sys.stdin.buffer.read(8 * int(np.prod(x["shape"]))), x["dtype"]).reshape(x["shape"])
        for x in request["arguments"].values()
    )
    error = {} if q.ndim == k.ndim == 2 and q.shape[1:] == k.shape[1:] else {"error": "ValueError", "message": "shapes"}
    scores = np.zeros((1, 1)) if error else q @ k.T
    print(json.dumps(error or {"result": {"result": {"dtype": "float64", "shape": scores.shape}}}), flush=True)
    if not error:
        sys.stdout.buffer.write(scores.tobytes())
        sys.stdout.buffer.flush()
"""


def compiled(example: str, folder: Path, *changes: tuple[str, str]) -> str:
    """Compile an example, after replacements in it, and return the command."""
    compiler, *options = COMPILERS[example]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    code = (EXAMPLES / example).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    (folder / example).write_text(code, encoding="utf-8")
    library = ["-lm"] if compiler == "cc" else []
    done = subprocess.run(
        [compiler, *options, "-o", "program", example, *library], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return "./program"


def written(code: str, folder: Path) -> str:
    """Write a program in Python and return its command."""
    (folder / "program.py").write_text(code, encoding="utf-8")
    return f"{sys.executable} program.py"


@pytest.mark.parametrize("example", COMPILERS)
def test_the_examples_conform(example: str, tmp_path: Path) -> None:
    done = attnspec("check", "--command", compiled(example, tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_scale_is_convicted(tmp_path: Path) -> None:
    command = compiled("attention.c", tmp_path, ("weights[j] /= sqrtf(d);", "weights[j] /= d;"))
    done = attnspec("check", "--command", command, folder=tmp_path)
    assert done.returncode == 1
    assert "operation.oracle is violated by scaled_dot_product_attention (float32)" in done.stdout


def test_a_crash_is_convicted_with_its_signal(tmp_path: Path) -> None:
    crash = (
        "    for (long i = 0; i < n; i++) {\n        float",
        "    if (m == 0) abort();\n    for (long i = 0; i < n; i++) {\n        float",
    )
    done = attnspec("check", "--command", compiled("attention.c", tmp_path, crash), folder=tmp_path)
    assert done.returncode == 1
    assert "operation.oracle is violated by scaled_dot_product_attention (float32)" in done.stdout
    assert "ended the process by SIGABRT" in done.stdout


def test_the_python_program_of_these_tests_conforms(tmp_path: Path) -> None:
    done = attnspec("check", "--command", written(SCORES, tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('{"result": {"result"', '{"results": {"result"', "expected an answer such as"),
        ("print(json.dumps(error or", "print('debug', json.dumps(error or", "got b'debug"),
        ('"shape": scores.shape', '"shape": [-1]', "expected an answer such as"),
        ('"shape": scores.shape', '"shape": [10**30]', "expected an answer such as"),
        ('"dtype": "float64", "shape": scores', '"dtype": "complex33", "shape": scores', "expected an answer such as"),
        ('{"result": {"result"', '{"result": {"scores"', "expected"),
        ("    scores = ", "    if q.shape[0] > 1: sys.exit(3)\n    scores = ", "ended the process with status 3"),
        ("    scores = ", "    while q.shape[0] > 1: pass\n    scores = ", "did not answer within"),
        ("    scores = ", "    while q.shape[0] > 1: sys.stdout.write('0' * 4096)\n    scores = ", "got b'000"),
    ],
)  # fmt: skip
def test_a_program_that_breaks_the_protocol_is_convicted(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in SCORES
    command = written(SCORES.replace(old, new), tmp_path)
    done = attnspec("check", "--command", command, "--law", "operation.oracle", "--hang-after", "2", folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("", "expected a first line such as"),
        ("{}", "expected a first line such as"),
        ('{"attnspec":2,"name":"mine","operations":["softmax"]}', "expected a first line such as"),
        ('{"attnspec":1,"name":"mine","operations":["sofmax"]}', "'attnspec list operations' prints; got 'sofmax'"),
        ('{"attnspec":1,"name":"mine","operations":["softmax"],"limit":{}}', "got 'limit'"),
        ('{"attnspec":1,"name":"mine","operations":[]}', "expected operations such as"),
        ('{"attnspec":1,"name":"mine","operations":["softmax"],"limits":{"dtypes":["float31"]}}', "got 'float31'"),
        ('{"attnspec":1,"name":"mine","operations":["softmax"],"limits":3}', "limits"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused(declaration: str, message: str, tmp_path: Path) -> None:
    done = attnspec("check", "--command", written(f"print({declaration!r})", tmp_path), folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_command_that_does_not_start_is_refused(tmp_path: Path) -> None:
    done = attnspec("check", "--command", "./absent", folder=tmp_path)
    assert done.returncode == 2
    assert "expected a command that starts; got FileNotFoundError" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["pytorch", "--command", "./mine"]])
def test_a_backend_or_a_command_is_needed_and_not_both(arguments: list[str], tmp_path: Path) -> None:
    done = attnspec("check", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert "expected a backend or --command; got" in done.stderr


def test_the_page_shows_the_messages_of_the_protocol(tmp_path: Path) -> None:
    declared, call, answer, refusal = (
        json.loads(block.partition("```")[0]) for block in PAGE.read_text(encoding="utf-8").split("```json\n")[1:]
    )
    (operation,) = declared["operations"]
    assert call["call"] == operation
    assert list(call["arguments"]) == list(OPERATIONS[operation].call.names)
    assert list(answer["result"]) == [leaf.path for leaf in OPERATIONS[operation].outputs]
    echo = f"""
import json, sys
print({json.dumps(declared)!r}, flush=True)
request = json.loads(sys.stdin.buffer.readline())
assert request == {call!r}, request
print({json.dumps(refusal)!r}, flush=True)
"""
    written(echo, tmp_path)
    backend = CommandBackend(f"{sys.executable} {tmp_path / 'program.py'}")
    query, key, value = (np.zeros(shape, np.float32) for shape in ((2, 4), (3, 4), (3, 5)))
    with pytest.raises(ValueError, match=r"^key: expected 4 features; got 5$"):
        getattr(backend, operation)(query, key, value)
    backend.close()


@pytest.mark.parametrize("command", ["true", "", "'", "cat /dev/zero"])
def test_an_unusable_command_is_named(command: str) -> None:
    with pytest.raises(
        BackendError, match=rf"^backend .*{command}.*: expected a (first line such as|command that starts)"
    ):
        CommandBackend(command)


VJP = """
import json, sys
print(json.dumps({"attnspec": 1, "name": "mine", "operations": ["grouped_query_attention"], "vjp": True}), flush=True)
request = json.loads(sys.stdin.buffer.readline())
message = json.dumps([list(request["arguments"]), request["arguments"]["window"], list(request["cotangents"])])
print(json.dumps({"error": "ValueError", "message": message}), flush=True)
"""


def test_gradients_have_arguments_in_the_order_of_a_call(tmp_path: Path) -> None:
    written(VJP, tmp_path)
    backend = CommandBackend(f"{sys.executable} {tmp_path / 'program.py'}")
    x = np.zeros((1, 2, 3), np.float32)
    arguments = {"mask": np.ones((2, 2), bool), "window": (None, None), "value": x, "query": x, "key": x}
    with pytest.raises(ValueError, match="query") as raised:
        backend.vjp("grouped_query_attention", arguments, (x, None))
    names = list(OPERATIONS["grouped_query_attention"].call.names)
    assert json.loads(str(raised.value)) == [names, [None, None], ["output", "log_sum_exp"]]
    backend.close()


def test_a_program_that_is_killed_is_convicted(tmp_path: Path) -> None:
    killed = SCORES.replace("    scores = ", "    if q.shape[0] > 1: import os; os.kill(os.getpid(), 9)\n    scores = ")
    done = attnspec("check", "--command", written(killed, tmp_path), "--law", "operation.oracle", folder=tmp_path)
    assert done.returncode == 1
    assert "ended the process by SIGKILL" in done.stdout, done.stdout
