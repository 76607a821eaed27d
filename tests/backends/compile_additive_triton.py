"""Machine code of every additive Triton kernel, compiled without a GPU, and counts from it.

Run as a program: `python compile_additive_triton.py CAPABILITY-DTYPE-SIZE[-masked] …`, such as
`90-fp32-usual-masked` (which is also causal), prints, as JSON by configuration, registers, spills and the hot loops of
each kernel; of sizes other than `usual` it compiles the kernels without reading them. The kernels' arguments are
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
# B, n, m, h, d_v: the usual case, everything as small as can be, and several chunks of wide values
SIZES = {"usual": (2, 512, 768, 64, 64), "small": (1, 1, 1, 1, 1), "wide": (2, 100, 300, 37, 300)}
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def record(dtype: torch.dtype, size: str, masked: bool) -> list[Launch]:
    """All launches of attention and scores, forward and backward, and of a decoding step."""
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


def compiled(launch: Launch, capability: int) -> bytes:
    """The binary, specialised on the arguments as Triton's launcher does: multiples of 16, and 1 as a constant."""
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
    result: bytes = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=chosen).asm["cubin"]
    return result


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


def report(binary: bytes) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        lines = tool("nvdisasm", "-c", file.name).splitlines()
        usage = tool("cuobjdump", "--dump-resource-usage", file.name)
    whole = count(instructions(lines))
    registers = re.search(r"REG:(\d+)", usage)
    return {
        "registers": int(registers.group(1)) if registers else 0,
        "instructions": whole["instructions"],
        "spills": whole["spills"],
        "loops": classified([count(loop) for loop in innermost_loops(lines)]),
    }


def main(configuration: str) -> dict[str, Any]:
    """Kernels by name; those of equal name differ in nothing that is compiled."""
    capability, short, size, *masked = configuration.split("-")
    dtype = next(dtype for dtype, name in SHORT.items() if name == short)
    launches = {name_of(launch[0], launch[2]): launch for launch in record(dtype, size, masked == ["masked"])}
    binaries = {name: compiled(launch, int(capability)) for name, launch in launches.items()}
    return {name: report(binary) for name, binary in binaries.items() if size == "usual"}


if __name__ == "__main__":
    print(json.dumps({configuration: main(configuration) for configuration in sys.argv[1:]}, indent=1))
