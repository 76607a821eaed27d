"""Programs in any language as backends: right, wrong, crashing and hanging ones, and malformed messages."""

import json
import re
import shutil
import subprocess
import sys
import time
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
    ("old", "new", "message"),
    [
        ("print(json.dumps(error or", "print('debug', json.dumps(error or", "got b'debug"),
        ('"shape": scores.shape', '"shape": [-1]', "expected an answer such as"),
        ('"shape": scores.shape', '"shape": [10**30]', "expected an answer such as"),
        ('"dtype": "float64", "shape": scores', '"dtype": "complex33", "shape": scores', "expected an answer such as"),
        ('"shape": scores.shape', '"shape": ["1", "1"]', "expected an answer such as"),
        ('"shape": scores.shape', '"shape": [1, 1.0]', "expected an answer such as"),
        ('"shape": scores.shape', '"shape": [1, True]', "expected an answer such as"),
        ('"shape": scores.shape', '"shape": "11"', "expected an answer such as"),
        ('"shape": scores.shape', '"shape": [1] * 65', "expected an answer such as"),
        ('"float64", "shape": scores', '"float128", "shape": scores', "expected an answer such as"),
        ('"float64", "shape": scores', '"uint8", "shape": scores', "expected an answer such as"),
        ('"shape": scores.shape', '"shape": [10**9]', "expected arrays of at most 268435456 bytes; got b'{"),
        ("write(scores.tobytes())", "write(scores.tobytes()[:-3])", "result: expected 8 bytes from the program; got 5"),
        ("write(scores.tobytes())", "write(b'')", "result: expected 8 bytes from the program; got 0"),
        ("write(scores.tobytes())", "write(scores.tobytes() + b'12')", "got, unasked, b'12'"),
        ("    scores = ", "    import os, time; os.close(1); time.sleep(9)\n    scores = ", "closed its output"),
        ("for line in", "print('ready', flush=True)\nfor line in", "got, unasked, b'ready"),
        ('{"result": {"result"', '{"result": {"scores"', "expected results named result; got 'scores'"),
        ('print(json.dumps(error or', 'print(json.dumps({"error": 7} or', "expected an answer such as"),
    ],
)  # fmt: skip
def test_a_malformed_answer_is_told_and_the_next_call_starts_the_program_anew(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    assert old in SCORES
    written(SCORES.replace(old, new), tmp_path)
    backend = CommandBackend(f"{sys.executable} {tmp_path / 'program.py'}")
    x = np.ones((1, 1))
    if "ready" in new:
        time.sleep(1.0)
    with pytest.raises(RuntimeError) as raised:
        backend.dot_scores(x, x)  # type: ignore[attr-defined]
    assert message in str(raised.value)
    written(SCORES, tmp_path)
    assert backend.dot_scores(x, x) == x  # type: ignore[attr-defined]
    backend.close()


def test_a_program_that_pauses_within_an_answer_is_right(tmp_path: Path) -> None:
    pause = "write(scores.tobytes()[:3]); sys.stdout.flush(); import time; time.sleep(1); "
    written(
        SCORES.replace("write(scores.tobytes())", f"{pause}sys.stdout.buffer.write(scores.tobytes()[3:])"), tmp_path
    )
    backend = CommandBackend(f"{sys.executable} {tmp_path / 'program.py'}")
    x = np.full((1, 1), 3.0)
    assert [float(backend.dot_scores(x, x)[0, 0]) for _ in range(2)] == [9.0, 9.0]  # type: ignore[attr-defined]
    backend.close()


def test_another_declaration_after_a_malformed_answer_is_refused(tmp_path: Path) -> None:
    written(SCORES.replace("print(json.dumps(error or", "print('debug', json.dumps(error or"), tmp_path)
    backend = CommandBackend(f"{sys.executable} {tmp_path / 'program.py'}")
    x = np.ones((1, 1))
    with pytest.raises(RuntimeError):
        backend.dot_scores(x, x)  # type: ignore[attr-defined]
    written(SCORES.replace('"mine"', '"yours"'), tmp_path)
    with pytest.raises(BackendError, match="name: expected what its first start declared, 'mine'; got 'yours'"):
        backend.dot_scores(x, x)  # type: ignore[attr-defined]
    backend.close()


def test_another_declaration_makes_the_run_unusable(tmp_path: Path) -> None:
    again = 'import os\nagain = os.path.exists(os.environ.get("TMPDIR", ".") + "/again")\n'
    again += 'open(os.environ.get("TMPDIR", ".") + "/again", "w").close()\n'
    program = SCORES.replace('"name": "mine"', '"name": "mine", "notes": {"again": str(again)}')
    program = program.replace("print(json.dumps(error or", "print('debug', json.dumps(error or")
    command = written(again + program, tmp_path)
    done = attnspec("check", "--command", command, "--law", "operation.oracle", folder=tmp_path)
    if "no sandbox" in done.stdout:
        pytest.skip("without a sandbox, all processes have the same files")
    assert done.returncode == 2, done.stdout
    assert "notes: expected what its first start declared, {'again': 'False'}; got" in done.stderr


@pytest.mark.parametrize("options", [(), ("--in-process",)])
def test_a_program_that_ends_late_is_not_left_behind(options: tuple[str, ...], tmp_path: Path) -> None:
    command = written(f"{SCORES}\nimport time; time.sleep(0.4)\n", tmp_path)
    law = ("--law", "operation.shape", "--json", "r.json")
    done = attnspec("check", "--command", command, *law, *options, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["left_behind"] == []


def test_a_process_that_a_program_starts_and_leaves_is_named(tmp_path: Path) -> None:
    command = written(f"import subprocess; subprocess.Popen(['sleep', '77'])\n{SCORES}", tmp_path)
    law = ("--law", "operation.shape", "--json", "r.json")
    attnspec("check", "--command", command, *law, "--sandbox", "off", folder=tmp_path)
    left = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["left_behind"]
    assert left
    assert all(title.startswith("sleep (process ") for title in left), left


@pytest.mark.parametrize(
    ("ending", "message"), [("sys.exit(113)", "with status 113"), ("os.kill(os.getpid(), 40)", "by signal 40")]
)
def test_any_status_or_signal_is_told_with_the_smallest_input(ending: str, message: str, tmp_path: Path) -> None:
    code = SCORES.replace("    scores = ", f"    if q.shape[0] > 1: import os; {ending}\n    scores = ")
    law = ("--law", "operation.oracle", "--json", "r.json")
    done = attnspec("check", "--command", written(code, tmp_path), *law, folder=tmp_path)
    assert done.returncode == 1
    (result,) = (r for r in json.loads((tmp_path / "r.json").read_text())["results"] if r["status"] == "failed")
    assert result["message"] == f"the backend ended the process {message}"
    assert result["counterexample"]["arguments"]["query"] == [[0.0], [0.0]]


def test_a_program_without_a_first_line_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSPEC_IMPORT_SECONDS", "5")
    done = attnspec("check", "--command", written("import time; time.sleep(60)", tmp_path), folder=tmp_path)
    assert done.returncode == 2
    assert "expected a first line within 5 s; got none: does the program end its first line" in done.stderr


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit(7)", "got b''; the program ended with status 7: run it by hand to read its errors"),
        ("import os; os.kill(os.getpid(), 11)", "got b''; the program ended by SIGSEGV: run it by hand"),
        ("import os, time; os.close(1); time.sleep(9)", "got b''; the program closed its output"),
        ("print('{}')", "got b'{}\\n'"),
    ],
)
def test_a_program_that_ends_before_its_first_line_is_told(code: str, message: str, tmp_path: Path) -> None:
    written(code, tmp_path)
    with pytest.raises(BackendError, match=re.escape(message)):
        CommandBackend(f"{sys.executable} {tmp_path / 'program.py'}")


def test_a_command_of_this_folder_is_named_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attention").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendError, match=r"FileNotFoundError: .*: write \./attention"):
        CommandBackend("attention")


@pytest.mark.parametrize(
    ("command", "message"),
    [("./att'ention", "No closing quotation"), ("", "an empty command"), ("   ", "an empty command")],
)
def test_a_command_without_words_is_refused(command: str, message: str) -> None:
    with pytest.raises(BackendError, match=f"expected a command that starts; got {message}"):
        CommandBackend(command)


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("", "expected a first line such as"),
        ('{"attnspec":true,"name":"mine","operations":["softmax"]}', "expected a first line such as"),
        ('{"attnspec":1,"name":"mine","operations":"softmax"}', "expected a first line such as"),
        ('{"attnspec":1,"name":"mine","operations":["softmax"],"vjp":"yes"}', "vjp: expected true or false"),
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
