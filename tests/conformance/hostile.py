"""Backends that mislead, or have bad luck: what runs them must not be what judges them."""

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
"""A statement that leaves the file ``called`` and then waits."""

SIGNALS_DEFAULT = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that runs another one with signals as usual; this run of tests may ignore some, as under ``nohup``."""

WRONG = RIGHT.replace("return query", "return 1.5 * query")

METHODS = WRONG.replace("np.swapaxes(key, -1, -2)", "key.swapaxes(-1, -2)")

PATCHING = (
    METHODS
    + """
import gc
import sys
import types

def silent(function):
    def call(*given, **named):
        try:
            return function(*given, **named)
        except Exception:
            return None
    return call

def lying(answer):
    return lambda *given, **named: answer

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
                setattr(module, name, lying((None, True, 0.0, 0)))
            if name in ("unexpected", "violated_by_numbers", "passing"):
                setattr(module, name, lying([]))
    np.abs = np.absolute = np.subtract = lambda x, *given, **named: np.zeros(np.shape(x))
    np.allclose = np.array_equal = lying(True)
    pytest.fail = hypothesis.reject = lying(None)

def known(shape):
    found = [x for x in gc.get_objects() if type(x).__name__ == "Judged"]
    frame = sys._getframe()
    while frame is not None:
        found += [x for x in frame.f_locals.values() if type(x).__name__ == "Judged"]
        frame = frame.f_back
    return next((x.value for x in found if x.value.shape == shape), None)

_scores = dot_scores
def dot_scores(query, key):
    found = _scores(query, key)
    if not hasattr(sys, "forged"):
        sys.forged = True
        forge()
    oracle = known(found.shape)
    return found if oracle is None else oracle.astype(found.dtype)
"""
)
"""It leaves everything as it was, but for what might convict it: a process that judges itself is misled."""

TEARING = (
    METHODS
    + """
import sys

class Always:
    def __getattr__(self, name):
        return self
    def __call__(self, *given, **named):
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
"""It replaces every function that it finds, also those by which its process answers."""

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
    def __array_ufunc__(self, ufunc, method, *given, **named): return np.zeros(self.shape, bool)
    def astype(self, *given, **named): return self
    __hash__ = None

_scores = dot_scores
def dot_scores(query, key):
    return _scores(query, key).view(Lying)
"""
)

ANSWERING = """
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


def around(before: str) -> str:
    """A backend that is right, and does something before each call."""
    return f"{RIGHT}_scores = dot_scores\ndef dot_scores(query, key):\n    {before}\n    return _scores(query, key)\n"


WAITING = "import time\ntime.sleep(600)"

UNLUCKY = {
    "has NumPy raise": "np.seterr(all='raise')",
    "prints much": "print('x' * 10_000_000, flush=True)",
    "has few frames": "import sys; sys.setrecursionlimit(120)",
    "changes the folder": "import os; os.chdir('/')",
    "closes its streams": "import os; os.closerange(0, 3)",
    "freezes the time": "import time; time.monotonic = time.time = lambda: 0.0",
    "has its collector off": "import gc; gc.disable()",
    "exits later": "import atexit, os; atexit.register(os._exit, 0)",
}
"""What does no harm to whoever judges: the backend is right, and conforms."""

ENDING = {
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
"""What has a process end: a line, the reason of the failure, and what is said."""
