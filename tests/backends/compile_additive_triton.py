"""Machine code of every additive Triton kernel, compiled without a GPU, and counts from it.

Run as a program: `python compile_additive_triton.py CAPABILITY-DTYPE-SIZE[-masked] …`, such as
`90-fp32-usual-masked` (which is also causal), prints, as JSON by configuration, what each kernel takes of a GPU: shared
memory, stack and registers; for the size `usual` also spills and hot loops. The kernels' arguments are
recorded from the operations themselves, run on CPU tensors with the launches intercepted, so that what is
compiled is what would be launched. TRITON_INTERPRET must not be set.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

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
# B, n, m, h, d_v: the usual case, everything as small as can be, several chunks of wide values, and Bahdanau's model
SIZES = {
    "usual": (2, 512, 768, 64, 64),
    "small": (1, 1, 1, 1, 1),
    "wide": (2, 100, 300, 37, 300),
    "bahdanau": (1, 30, 30, 1000, 2000),
}
SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""The most shared memory of a block, by compute capability: CUDA C++ Programming Guide, technical specifications."""
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def record(dtype: torch.dtype, size: str, masked: bool, capability: int) -> list[Launch]:
    """All launches of attention and scores, forward and backward, and of a decoding step."""
    triton_launch.shared_bytes = lambda device: SHARED_BYTES[capability]  # type: ignore[assignment]
    launches: list[Launch] = []

    def take(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        launches.append((kernel, arguments, options))

    triton_launch.launch = take
    for module in (operators, decoding):
        module.launch = take  # type: ignore[attr-defined]
    decoding._splits = lambda *_: 4
    batch, n, m, h, d_v = SIZES[size]
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


def name_of(kernel: Any, options: dict[str, Any]) -> str:
    """The kernel and what distinguishes its launches: whose gradient, of which operation, of which factors."""
    side = {True: " queries", False: " keys", None: ""}[options.get("OWN_QUERY", options.get("SCALED"))]
    both = " both" if options.get("SCALED") and options.get("UNSCALED") else ""
    values = " and values" if options.get("PARTS") and "SCALED" in options else ""
    of = " of scores" if options.get("SCORES") else ""
    return str(kernel.__name__).removesuffix("_kernel") + side + both + values + of


def compiled(launch: Launch, capability: int) -> Any:
    """The kernel, specialised on the arguments as Triton's launcher does: multiples of 16, and 1 as a constant."""
    kernel, arguments, options = launch
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
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=chosen)


def tool(name: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


def instructions(lines: list[str]) -> list[str]:
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
    heads = Counter(operation.split(".")[0] for operation in operations)
    return {
        "instructions": len(operations),
        "reciprocals": operations.count("MUFU.RCP"),
        "arithmetic": heads["FFMA"] + heads["FMUL"] + heads["FADD"],
        "spills": heads["LDL"] + heads["STL"],
        "stores": heads["STG"],
        "exponentials": operations.count("MUFU.EX2"),
    }


def classified(loops: list[dict[str, int]]) -> dict[str, dict[str, int]]:
    """The loops over the hidden units: three terms to a reciprocal without stores, two with."""
    loops_by_kind: dict[str, dict[str, int]] = {}
    for loop in loops:
        reciprocals = loop["reciprocals"]
        if reciprocals < 8 or loop["exponentials"]:
            continue
        ratio = loop["arithmetic"] / reciprocals
        if 7.5 < ratio < 8.6 and not loop["stores"]:
            loops_by_kind["shared"] = loop | {"terms": 3 * reciprocals}
        elif ratio >= 8.6 and loop["stores"]:
            loops_by_kind["pair"] = loop | {"terms": 2 * reciprocals}
        elif 1.5 < ratio < 2.5:
            loops_by_kind["single"] = loop | {"terms": reciprocals}
    return loops_by_kind


def report(kernel: Any, loops: bool) -> dict[str, Any]:
    """Resources of a compiled kernel, per block or thread; with ``loops`` also instructions, spills and hot loops."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = dict(re.findall(r"\b(REG|STACK):(\d+)", tool("cuobjdump", "--dump-resource-usage", file.name)))
        lines = tool("nvdisasm", "-c", file.name).splitlines() if loops else []
    resources = {
        "shared": kernel.metadata.shared,
        "most_shared": SHARED_BYTES[kernel.metadata.target.arch],
        "stack": int(usage["STACK"]),
        "registers": int(usage["REG"]),
        "narrow_strides": narrow_strides(kernel.asm["ttir"]),
    }
    if not loops:
        return resources
    whole = count(instructions(lines))
    hot_loops = classified([count(loop) for loop in innermost_loops(lines)])
    return resources | {"instructions": whole["instructions"], "spills": whole["spills"], "loops": hot_loops}


def narrow_strides(code: str) -> list[str]:
    """List uses of ``part_stride`` in intermediate code other than its extension to 64 bits."""
    uses = [line.strip() for line in code.splitlines() if "%part_stride" in line and "tt.func" not in line]
    return [line for line in uses if "arith.extsi" not in line and "i64" not in line]


def main(configuration: str) -> dict[str, Any]:
    """Kernels by name; those of equal name differ in nothing that is compiled."""
    capability, short, size, *masked = configuration.split("-")
    dtype = next(dtype for dtype, name in SHORT.items() if name == short)
    launches = {
        name_of(launch[0], launch[2]): launch for launch in record(dtype, size, masked == ["masked"], int(capability))
    }
    return {name: report(compiled(launch, int(capability)), size == "usual") for name, launch in launches.items()}


if __name__ == "__main__":
    print(json.dumps({configuration: main(configuration) for configuration in sys.argv[1:]}, indent=1))
