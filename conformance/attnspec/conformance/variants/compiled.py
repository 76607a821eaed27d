"""Variant in C, compiled by the system's compiler with fused multiply-adds."""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import DotProductAttention, ScaledDotProductAttention

COMPILERS = ("cc", "gcc", "clang")
OPTIONS = ("-O2", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")

SOURCE = """
#include <math.h>
#include <stdint.h>

#define TILE 16

/* Query (batch, n, d), key (batch, m, d), value (batch, m, p), mask (batch, n, m) or NULL, result (batch, n, p): all
   contiguous. The factor is log2(e) times the scale. The compiler fuses s * factor - top, which is rounded once; top
   was rounded before. The largest weight is thus not exactly 1. */
void attend(const NUMBER *query, const NUMBER *key, const NUMBER *value, const uint8_t *mask, NUMBER *result,
            int64_t batch, int64_t n, int64_t m, int64_t d, int64_t p, NUMBER factor)
{
    for (int64_t row = 0; row < batch * n; row++) {
        const NUMBER *q = query + row * d;
        const NUMBER *k = key + row / n * m * d;
        const NUMBER *v = value + row / n * m * p;
        NUMBER *o = result + row * p;
        NUMBER highest = -INFINITY, total = 0;

        for (int64_t x = 0; x < p; x++) o[x] = 0;
        for (int64_t start = 0; start < m; start += TILE) {
            int64_t keys = m - start < TILE ? m - start : TILE;
            const uint8_t *allowed = mask ? mask + row * m + start : 0;
            NUMBER scores[TILE], top = -INFINITY;

            for (int64_t j = 0; j < keys; j++) {
                NUMBER s = 0;
                for (int64_t x = 0; x < d; x++) s += q[x] * k[(start + j) * d + x];
                scores[j] = s;
                if ((!allowed || allowed[j]) && s > top) top = s;
            }
            top = top * factor > highest ? top * factor : highest;

            NUMBER shift = top == -INFINITY ? 0 : top;
            NUMBER kept = EXP2(highest - shift);
            total *= kept;
            for (int64_t x = 0; x < p; x++) o[x] *= kept;
            for (int64_t j = 0; j < keys; j++) {
                if (allowed && !allowed[j]) continue;
                NUMBER weight = EXP2(scores[j] * factor - shift);
                total += weight;
                for (int64_t x = 0; x < p; x++) o[x] += weight * v[(start + j) * p + x];
            }
            highest = top;
        }
        NUMBER inverse = total == 0 ? 0 : 1 / total;
        for (int64_t x = 0; x < p; x++) o[x] *= inverse;
    }
}
"""


class NoCompilerError(RuntimeError):
    """The system cannot compile C or load the result; the message says why."""


@cache
def library(number: str, exp2: str) -> Any:
    """Compile ``attend`` for a C type, once per process, and load it; raises :class:`NoCompilerError`."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NoCompilerError(f"expected a C compiler among {', '.join(COMPILERS)}; got none on the path")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source, compiled = Path(folder, "attend.c"), Path(folder, "attend.so")
        source.write_text(SOURCE, encoding="utf-8")
        command = [compiler, *OPTIONS, f"-DNUMBER={number}", f"-DEXP2={exp2}", str(source), "-o", str(compiled), "-lm"]
        process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if process.returncode:
            message = (process.stderr.strip().splitlines() or ["nothing"])[0]
            raise NoCompilerError(f"expected {compiler} to compile C; got exit status {process.returncode}: {message}")
        try:
            attend = ctypes.CDLL(str(compiled)).attend
        except OSError as error:
            raise NoCompilerError(f"expected to load what {compiler} compiled; got {error}") from error
    c_number = ctypes.c_float if number == "float" else ctypes.c_double
    attend.argtypes = [*[ctypes.c_void_p] * 5, *[ctypes.c_int64] * 5, c_number]
    attend.restype = None
    return attend


def lacking() -> str:
    """Return why this system cannot compile, or an empty string."""
    try:
        library("float", "exp2f")
    except NoCompilerError as error:
        return str(error)
    return ""


@variant(
    "compiled from C with fused multiply-adds",
    operations=(ScaledDotProductAttention, DotProductAttention),
    dtypes=("float32", "float64", "bfloat16", "float16"),
    differentiable=False,
    lacking=lacking,
)
class Compiled(Formulas):
    """Online softmax by exp2(s·c − max·c) in machine code, with fused multiply-adds."""

    def scaled_dot_product_attention(
        self, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
    ) -> Numbers:
        """Compiled attention with the factor log₂e/√d."""
        factor = np.log2(np.e) / np.sqrt(query.shape[-1])
        return self._compiled(query, key, value, self.attendable(mask, causal, *self._lengths(query, key)), factor)

    def dot_product_attention(
        self, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
    ) -> Numbers:
        """Compiled attention with the factor log₂e."""
        allowed = self.attendable(mask, causal, *self._lengths(query, key))
        return self._compiled(query, key, value, allowed, np.log2(np.e))

    def _lengths(self, query: Numbers, key: Numbers) -> tuple[int, int]:
        return query.shape[-2], key.shape[-2]

    def _compiled(self, query: Numbers, key: Numbers, value: Numbers, mask: Numbers, factor: float) -> Numbers:
        """Call the compiled function with contiguous arrays, broadcast to the common batch.

        They are float32 or float64: `Library` converts 16-bit inputs to float32, and the result back.
        """
        n, m = self._lengths(query, key)
        batches = [x.shape[:-2] for x in (query, key, value, mask) if x is not None]
        batch = np.broadcast_shapes(*batches)
        whole = [np.ascontiguousarray(np.broadcast_to(x, (*batch, *x.shape[-2:]))) for x in (query, key, value)]
        allowed = None if mask is None else np.ascontiguousarray(np.broadcast_to(mask, (*batch, n, m)))
        result = np.empty((*batch, n, value.shape[-1]), query.dtype)
        attend = library(*{"float32": ("float", "exp2f"), "float64": ("double", "exp2")}[query.dtype.name])
        args = [*(x.ctypes.data for x in whole), None if allowed is None else allowed.ctypes.data, result.ctypes.data]
        count = int(np.prod(batch, dtype=np.int64))
        attend(*args, count, n, m, query.shape[-1], value.shape[-1], float(factor))
        return result
