"""This machine's processor and instruction sets, which affect a library's last bits."""

import os
import platform
from pathlib import Path

INFORMATION = Path("/proc/cpuinfo")
"""The file in which Linux describes its processors."""

SETS = (
    *("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "asimd", "asimdhp", "bf16", "sve", "sve2", "sme"),
)
"""Instruction sets that choose a kernel or an order of summation, as Linux names them."""

FORCING = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that restrict the instruction sets of libraries."""


def processor() -> dict[str, str]:
    """Return the processor's name and instruction sets in use, with the variables that limit them."""
    lines = INFORMATION.read_text(encoding="utf-8").splitlines() if INFORMATION.exists() else []
    known = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    flags = set((known.get("flags") or known.get("Features") or "").split())
    found = [name for name in SETS if name in flags] + [f"{x}={os.environ[x]}" for x in FORCING if os.environ.get(x)]
    name = known.get("model name") or platform.processor() or platform.machine()
    return {"processor": name, "instructions": ", ".join(found) or "unknown"}
