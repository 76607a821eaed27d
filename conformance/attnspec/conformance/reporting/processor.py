"""This machine's processor and instruction sets, on which the last bits of results depend."""

import os
import platform
from pathlib import Path

CPU_INFORMATION = Path("/proc/cpuinfo")
"""The file in which Linux describes its processors."""

INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "asimd", "asimdhp", "bf16", "sve", "sve2", "sme"),
)
"""Linux's names of the instruction sets by which libraries choose kernels or orders of summation."""

RESTRICTING_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that restrict the instruction sets of libraries."""


def processor() -> dict[str, str]:
    """Return the processor's name and instruction sets, with variables that restrict their use."""
    lines = CPU_INFORMATION.read_text(encoding="utf-8").splitlines() if CPU_INFORMATION.exists() else []
    fields = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    instructions = [name for name in INSTRUCTION_SETS if name in flags] + [
        f"{x}={os.environ[x]}" for x in RESTRICTING_VARIABLES if os.environ.get(x)
    ]
    name = fields.get("model name") or platform.processor() or platform.machine()
    return {"processor": name, "instructions": ", ".join(instructions) or "unknown"}
