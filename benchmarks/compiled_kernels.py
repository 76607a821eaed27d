"""Machine code of every additive Triton kernel, compiled without a GPU, and counts from it.

The kernels' arguments are recorded from the operations themselves, run on CPU tensors with the launches intercepted, so
that what is compiled is what would be launched. Everything that this needs comes with Triton: its compiler, `ptxas`,
`cuobjdump` and `nvdisasm`. TRITON_INTERPRET must not be set.
"""

import math
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attnspec.backends.pytorch.kernels.additive.triton import decoding, operators
from attnspec.backends.pytorch.kernels.additive.triton import launch as triton_launch

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
POINTERS = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages")
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
Sizes = tuple[int, int, int, int, int]
"""B, n, m, h and d_v."""


@dataclass(frozen=True)
class Device:
    """A GPU: its multiprocessors, clock rate, float32 lanes of a multiprocessor, and most shared memory of a block."""

    name: str
    capability: int
    multiprocessors: int
    gigahertz: float
    lanes: int
    shared_bytes: int


DEVICES = (
    Device("A100", 80, 108, 1.41, 64, 166_912),
    Device("RTX 3090", 86, 82, 1.695, 128, 101_376),
    Device("H100 SXM", 90, 132, 1.98, 128, 232_448),
    Device("B200", 100, 148, 1.965, 128, 232_448),
    Device("RTX 5090", 120, 170, 2.407, 128, 101_376),
)
"""A GPU of each architecture: boost clocks of NVIDIA's data sheets, the rest from the CUDA C++ Programming Guide."""


class Launch(NamedTuple):
    """Arguments of one launch."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The kernel and what distinguishes its launches: of which factors, of which operation."""
        side = {True: " queries", False: " keys", None: ""}[self.options.get("SCALED")]
        both = " both" if self.options.get("SCALED") and self.options.get("UNSCALED") else ""
        values = " and values" if self.options.get("PARTS") and "SCALED" in self.options else ""
        of = " of scores" if self.options.get("SCORES") else ""
        return str(self.kernel.__name__).removesuffix("_kernel") + side + both + values + of

    @property
    def programs(self) -> int:
        """Number of programs of the grid."""
        return math.prod(self.grid)

    @property
    def warps(self) -> int:
        """Warps of a program; 4 is Triton's default."""
        return int(self.options.get("num_warps", 4))


def record(dtype: torch.dtype, sizes: Sizes, masked: bool, device: Device) -> list[Launch]:
    """All launches of attention and scores, forward and backward, and of a decoding step; masked is also causal."""
    triton_launch.shared_bytes = lambda _: device.shared_bytes  # type: ignore[assignment]
    launches: list[Launch] = []

    def take(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        launches.append(Launch(kernel, grid, arguments, options))

    triton_launch.launch = take
    for module in (operators, decoding):
        module.launch = take  # type: ignore[attr-defined]
        module.multiprocessors = lambda _: device.multiprocessors  # type: ignore[attr-defined]
    batch, n, m, h, d_v = sizes
    shapes = ((batch, n, h), (batch, m, h), (h,), (batch, m, d_v))
    a, b, w_v, value = (torch.zeros(shape, dtype=dtype) for shape in shapes)
    mask = torch.ones(batch, n, m, dtype=torch.bool) if masked else None
    leaves = [x.requires_grad_() for x in (a, b, w_v, value)]
    torch.autograd.backward(operators.attention(*leaves, mask=mask, causal=masked).sum())
    torch.autograd.backward(operators.scores(*leaves[:3]).sum())
    row = None if mask is None else mask[:, 0]
    with torch.no_grad():
        decoding.step(decoding.cache(b, w_v, value), a[:, 0], row)
    return launches


def compiled(launch: Launch, device: Device) -> Any:
    """The kernel, specialised on the arguments as Triton's launcher does: multiples of 16, and 1 as a constant."""
    kernel, _, arguments, options = launch
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {name: value for name, value in options.items() if name not in OPTIONS}
    attributes = {}
    for index, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=False)):
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        elif value == 1:
            constants[name] = 1
        else:
            signature[name] = "i32"
        if name in signature and (isinstance(value, torch.Tensor) or value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]
    missing = [name for name in kernel.arg_names if name not in signature and name not in constants]
    if missing:
        raise TypeError(f"{kernel.__name__} is launched without {missing}")
    signature = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constants, attributes)
    chosen = {name: value for name, value in options.items() if name in OPTIONS}
    return triton.compile(source, target=GPUTarget("cuda", device.capability, 32), options=chosen)


def tool(name: str, *arguments: str) -> str:
    """Output of one of the tools that come with Triton."""
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


def instructions(lines: list[str]) -> list[str]:
    """Names of the instructions in lines of disassembled code."""
    matches = (re.search(r"\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", line) for line in lines)
    return [match.group(1) for match in matches if match]


def innermost_loops(lines: list[str]) -> list[list[str]]:
    """The instructions of each loop that holds no other: from a label to the branch back to it."""
    labels: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for index, line in enumerate(lines):
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label.group(1)] = index
        if (branch := re.search(r"\bBRA\b.*\((\.L_x_\d+)\)", line)) and branch.group(1) in labels:
            spans.append((labels[branch.group(1)], index))
    inner = [s for s in spans if not any(s[0] <= t[0] and t[1] <= s[1] and s != t for t in spans)]
    return [instructions(lines[first : last + 1]) for first, last in inner]


def count(operations: list[str]) -> dict[str, int]:
    """Numbers of the kinds of instructions that bound a kernel."""
    heads = Counter(operation.split(".")[0] for operation in operations)
    return {
        "instructions": len(operations),
        "reciprocals": operations.count("MUFU.RCP"),
        "arithmetic": heads["FFMA"] + heads["FMUL"] + heads["FADD"],
        "spills": heads["LDL"] + heads["STL"],
        "loads": heads["LDG"],
        "stores": heads["STG"],
        "exponentials": operations.count("MUFU.EX2"),
    }


def classified(loops: list[dict[str, int]]) -> dict[str, dict[str, int]]:
    """Loops over the hidden units: of scores, three terms or one to a reciprocal; of gradients, with stores."""
    loops_by_kind: dict[str, dict[str, int]] = {}
    for loop in loops:
        reciprocals = loop["reciprocals"]
        if reciprocals < 4 or loop["exponentials"]:
            continue
        ratio = loop["arithmetic"] / reciprocals
        if 7.5 < ratio < 8.6 and not loop["stores"]:
            loops_by_kind["shared"] = loop | {"terms": 3 * reciprocals}
        elif loop["stores"]:
            loops_by_kind["gradient"] = loop | {"terms": reciprocals}
        elif 1.5 < ratio < 2.5:
            loops_by_kind["single"] = loop | {"terms": reciprocals}
    return loops_by_kind


def report(kernel: Any) -> dict[str, Any]:
    """Resources of a compiled kernel, per block or thread, and its instructions, spills and hot loops."""
    return disassembled(kernel.asm["cubin"]) | {
        "shared": kernel.metadata.shared, "narrow_strides": narrow_strides(kernel.asm["ttir"]),
    }  # fmt: skip


@cache
def disassembled(code: bytes) -> dict[str, Any]:
    """Counts from machine code; remembered, since several sizes share a kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        usage = dict(re.findall(r"\b(REG|STACK):(\d+)", tool("cuobjdump", "--dump-resource-usage", file.name)))
        lines = tool("nvdisasm", "-c", file.name).splitlines()
    whole = count(instructions(lines))
    return {
        "stack": int(usage["STACK"]),
        "registers": int(usage["REG"]),
        "instructions": whole["instructions"],
        "spills": whole["spills"],
        "loops": classified([count(loop) for loop in innermost_loops(lines)]),
    }


def narrow_strides(code: str) -> list[str]:
    """List uses of ``part_stride`` in intermediate code other than its extension to 64 bits."""
    uses = [line.strip() for line in code.splitlines() if "%part_stride" in line and "tt.func" not in line]
    return [line for line in uses if "arith.extsi" not in line and "i64" not in line]
