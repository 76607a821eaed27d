"""Source code of backends that mislead, block or end the process in which they run."""

RIGHT = """
import numpy as np

name = "right"
limits = {"dtypes": ("float64",)}

def dot_scores(query, key):
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise ValueError("sizes differ")
    return query @ np.swapaxes(key, -1, -2)
"""

TOUCH_AND_WAIT = "import pathlib, time; pathlib.Path('called').touch(); time.sleep(600)"
"""A statement that creates the file ``called`` and then waits."""

SIGNALS_DEFAULT = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A launcher that resets signals to their defaults, since the tests may run under ``nohup``."""

WRONG = RIGHT.replace("return query", "return 1.5 * query")

WRONG_BY_METHODS = WRONG.replace("np.swapaxes(key, -1, -2)", "key.swapaxes(-1, -2)")
"""``WRONG`` without functions of NumPy, since the next two backends replace those."""

PATCHING = (
    WRONG_BY_METHODS
    + """
import gc
import sys
import types

def silent(function):
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception:
            return None
    return call

def always(answer):
    return lambda *args, **kwargs: answer

def forge():
    import attnspec.conformance.judging.engine as engine
    import attnspec.conformance.running.suite as suite
    import hypothesis, pytest
    for module in [m for n, m in sys.modules.items() if m and n.partition(".")[0] in (
        "attnspec", "hypothesis", "pytest", "_pytest", "numpy"
    )]:
        for name, x in list(vars(module).items()):
            if isinstance(x, types.FunctionType) and not name.startswith("_"):
                setattr(module, name, silent(x))
            if name in ("attempt", "attempt_once"):
                setattr(module, name, always((None, True, 0.0, 0)))  # no violation, error ratio 0, all judged
            if name in ("unexpected", "violated_by_numbers", "unexpected_passes"):
                setattr(module, name, always([]))
    np.abs = np.absolute = np.subtract = lambda x, *args, **kwargs: np.zeros(np.shape(x))
    np.allclose = np.array_equal = always(True)
    pytest.fail = hypothesis.reject = always(None)

def oracle_of_shape(shape):
    judged = [x for x in gc.get_objects() if type(x).__name__ == "Judged"]
    frame = sys._getframe()
    while frame is not None:
        judged += [x for x in frame.f_locals.values() if type(x).__name__ == "Judged"]
        frame = frame.f_back
    return next((x.value for x in judged if x.value.shape == shape), None)

_scores = dot_scores
def dot_scores(query, key):
    scores = _scores(query, key)
    if not hasattr(sys, "forged"):
        sys.forged = True
        forge()
    oracle = oracle_of_shape(scores.shape)
    return scores if oracle is None else oracle.astype(scores.dtype)
"""
)
"""A wrong backend that replaces everything in its process that could convict it."""

REPLACING_FUNCTIONS = (
    WRONG_BY_METHODS
    + """
import sys

class Always:
    def __getattr__(self, name):
        return self
    def __call__(self, *args, **kwargs):
        return self
    def __bool__(self):
        return True
    def __iter__(self):
        return iter(())
    def __le__(self, other):
        return True

_scores = dot_scores
def dot_scores(query, key):
    import attnspec.conformance.judging.engine, attnspec.conformance.running.suite, hypothesis, pytest
    patched = ("attnspec.", "hypothesis", "pytest", "_pytest", "numpy")
    for module in [m for n, m in sys.modules.items() if m and n.startswith(patched)]:
        for name, x in list(vars(module).items()):
            if callable(x) and not name.startswith("_") and not isinstance(x, type):
                setattr(module, name, Always())
    return _scores(query, key)
"""
)
"""A wrong backend that replaces all functions, even those that answer the judge."""

LYING = (
    WRONG
    + """
class Lying(np.ndarray):
    def __array_finalize__(self, other):
        pass
    def __eq__(self, other): return np.ones(self.shape, bool)
    def __ne__(self, other): return np.zeros(self.shape, bool)
    def __sub__(self, other): return np.zeros(self.shape)
    def __rsub__(self, other): return np.zeros(self.shape)
    def __array_ufunc__(self, ufunc, method, *args, **kwargs): return np.zeros(self.shape, bool)
    def astype(self, *args, **kwargs): return self
    __hash__ = None

_scores = dot_scores
def dot_scores(query, key):
    return _scores(query, key).view(Lying)
"""
)

WRITING_TO_PIPES = """
import os

def dot_scores(query, key):
    for number in range(3, 64):
        try:
            os.write(number, {bytes})
        except OSError:
            pass
    import time
    time.sleep(0.2)
    return query
"""
"""A backend's end that writes to all pipes; tests replace ``{bytes}`` by a literal such as ``b"x"``."""


EXPLOITS = {
    "no work": "return np.zeros(right.shape)",
    "uninitialised memory": "return np.empty(right.shape)",
    "inputs zeroed": "query[...] = 0; key[...] = 0; return np.zeros(right.shape)",
    "an input returned": "return query.copy() if query.shape == right.shape else np.zeros(right.shape)",
    "half precision": "return (query.astype('f2') @ np.swapaxes(key, -1, -2).astype('f2')).astype(right.dtype)",
    "float32": "return (query.astype('f4') @ np.swapaxes(key, -1, -2).astype('f4')).astype(right.dtype)",
    "a part of the features": "return query[..., 1:] @ np.swapaxes(key, -1, -2)[..., 1:, :]",
    "right in the first calls": "state.append(0); return right if len(state) < 6 else np.zeros(right.shape)",
    "the first result for all": "state.append(right); return np.resize(state[0], right.shape)",
    "results by address": "return kept.setdefault((query.ctypes.data, key.ctypes.data, right.shape), right).copy()",
    "results by first numbers": "return kept.setdefault((query.ravel()[:1].tobytes(), right.shape), right).copy()",
    "results by sums": "return kept.setdefault((fsum(query.flat), fsum(key.flat), right.shape), right).copy()",
    "results by queries": "return kept.setdefault((query.tobytes(), right.shape), right).copy()",
    "one buffer": "kept.setdefault(right.shape, right)[...] = right; return kept[right.shape]",
    "the answer of a thread": "late = 0 * right; Timer(0.2, late.__setitem__, (..., right)).start(); return late",
    "a search for the oracle": """
    for x in gc.get_objects():
        x = x[0] if isinstance(x, (tuple, list)) and x else x
        if isinstance(x, np.ndarray) and x.shape == right.shape and x is not right and x.flags.writeable:
            x[...] = np.nan
            return x
    return np.zeros(right.shape)""",
}
"""Last statements of ``dot_scores`` in exploits of benchmarks; ``right`` is the right result, ``state`` lasts."""


def exploit(code: str) -> str:
    """A backend that computes the right result, and ends as one of ``EXPLOITS``."""
    return f"""
import gc
from math import fsum
from threading import Timer
{RIGHT}
state, kept = [], {{}}
_scores = dot_scores
def dot_scores(query, key):
    right = _scores(query, key)
    {code}
"""


def before_each_call(code: str) -> str:
    """A right backend that runs a statement before each of its computations."""
    return f"{RIGHT}_scores = dot_scores\ndef dot_scores(query, key):\n    {code}\n    return _scores(query, key)\n"


WAIT_AT_IMPORT = "import time\ntime.sleep(600)"

HARMLESS_STATEMENTS = {
    "has NumPy raise": "np.seterr(all='raise')",
    "prints much": "print('x' * 10_000_000, flush=True)",
    "has few frames": "import sys; sys.setrecursionlimit(120)",
    "changes the folder": "import os; os.chdir('/')",
    "closes its streams": "import os; os.closerange(0, 3)",
    "freezes the time": "import time; time.monotonic = time.time = lambda: 0.0",
    "has its collector off": "import gc; gc.disable()",
    "exits later": "import atexit, os; atexit.register(os._exit, 0)",
}
"""Statements that harm only the backend's own process: a right backend still conforms."""

ENDING_STATEMENTS = {
    "exits": ("import os; os._exit(0)", "crashed", "status 0"),
    "has an alarm": (
        "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.1); time.sleep(60)",
        "crashed",
        "SIGALRM",
    ),
    "kills its group": ("import os, signal; os.killpg(0, 9)", "crashed", "ended the process"),
    "is another program": ("import os; os.execv('/bin/true', ['true'])", "crashed", "status 0"),
    "overflows its stack": ("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV"),
    "waits": ("import time; time.sleep(600)", "hung", "did not answer within 1.5 s"),
    "waits without faulthandler's timer": (
        "import faulthandler, time; faulthandler.cancel_dump_traceback_later(); time.sleep(600)",
        "hung",
        "did not answer within 1.5 s",
    ),
    "computes for ever": ("while True: pass", "hung", "did not answer within 1.5 s"),
    "ignores signals": (
        "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(600)",
        "hung",
        "did not answer within 1.5 s",
    ),
}
"""Statements that end or block a process, with the failure's reason and message."""
