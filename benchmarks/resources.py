"""Table of the resources of additive attention's Triton kernels, compiled for GPUs that need not be present."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from attnspec.backends.pytorch.kernels.additive.triton.launch import BLOCK, NARROWEST, most_score_parts
from benchmarks.compiled_kernels import DEVICES, SHORT, Device, Launch, Sizes, compiled, record, report
from benchmarks.table import quantity

SIZES: dict[str, Sizes] = {
    "one query": (80, 1, 30, 1000, 2000),
    "translation": (80, 30, 30, 1000, 2000),
    "pointer": (128, 50, 50, 256, 256),
    "speech": (16, 100, 1000, 256, 512),
    "single": (1, 512, 512, 64, 64),
    "short": (8, 128, 128, 64, 64),
    "usual": (8, 512, 512, 128, 128),
    "long": (4, 4096, 4096, 64, 64),
}
"""B, n, m, h and d_v. The first two are Bahdanau's model: one step of the decoder, and a whole sentence."""

TEST_SIZES: dict[str, Sizes] = SIZES | {"least": (1, 1, 1, 1, 1), "odd": (2, 100, 300, 37, 300)}
"""The sizes of the table, and two more that tests compile."""

LOOPS = {"forward": ("shared",), "scores": ("shared",), "gradient": ("shared", "gradient")}
"""Loops over the hidden units that a kernel runs for every term, in the usual case that no factor overflows."""


def resources(device: Device, dtype: str, size: str, masked: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the resources of every kernel of a call; those of equal name differ in nothing that is compiled."""
    launches = record(next(d for d, name in SHORT.items() if name == dtype), TEST_SIZES[size], masked, device)
    for launch in {launch.name: launch for launch in launches}.values():
        yield {
            "device": device.name, "capability": device.capability, "dtype": dtype, "size": size,
            "kernel": launch.name, "programs": launch.programs, "warps": launch.warps,
            "warps_per_scheduler": launch.programs * launch.warps / (4 * device.multiprocessors),
            "most_warps_per_scheduler": most_warps(launch, TEST_SIZES[size]) / (4 * device.multiprocessors),
            "buffer_bytes": buffer_bytes(launch), "most_shared": device.shared_bytes,
        } | report(compiled(launch, device))  # fmt: skip


def most_warps(launch: Launch, sizes: Sizes) -> int:
    """Return the warps of a kernel in `LOOPS` if its work is divided as far as possible; 0 for other kernels.

    For the gradients that is a warp for each hidden unit of each tile. For the others it is a tile of `NARROWEST` keys,
    computed by 4 warps with 8 scores a thread, and for scores the most parts of the hidden units.
    """
    batch, n, m, hidden, _ = sizes
    kernel, wide = launch.name.split(" of ")[0], int(launch.options.get("WIDE", NARROWEST))
    tiles = batch * -(-n // BLOCK) * -(-m // (wide if kernel == "gradient" else NARROWEST))
    features = launch.grid[1] if kernel == "forward" else 1
    return {
        "forward": 4 * tiles * features,
        "scores": 4 * tiles * most_score_parts(n, m, hidden),
        "gradient": tiles * hidden,
    }.get(kernel, 0)


def buffer_bytes(launch: Launch) -> int:
    """Return the bytes of the buffers in which the programs of a call store their sums; 0 if they store results."""
    names: tuple[str, ...] = ("grad_query", "grad_key", "r_sum", "grad_value")
    if launch.options.get("SPLIT"):
        names = ("out", "lse", "denominator_out")
    if launch.kernel.__name__ == "scores_kernel" and launch.grid[1] > 1:
        names = ("out",)
    buffers = [x for name, x in zip(launch.kernel.arg_names, launch.arguments, strict=False) if name in names]
    return sum(x.numel() * x.element_size() for x in buffers)


def bound(device: Device, row: dict[str, Any]) -> float | None:
    """Return the most terms per second by instruction counts; None for kernels that sum no terms.

    Per clock, a multiprocessor issues 4 instructions of 32 lanes, has `lanes` of float32 arithmetic, and computes 16
    reciprocals.
    """
    loops = [row["loops"].get(kind) for kind in LOOPS.get(row["kernel"].split(" of ")[0], ())]
    if not any(loops):
        return None
    clocks = [
        sum(loop[counted] / loop["terms"] for loop in loops if loop) / lanes
        for counted, lanes in (("instructions", 128), ("arithmetic", device.lanes), ("reciprocals", 16))
    ]
    return device.multiprocessors * device.gigahertz * 1e9 / float(max(clocks))


def over_limits(row: dict[str, Any]) -> bool:
    """Return whether a block would not start on its device."""
    return bool(row["shared"] > row["most_shared"] or 32 * row["warps"] * row["registers"] > 65_536)


def kernel_table(rows: list[dict[str, Any]]) -> Table:
    """Table of each kernel on each GPU, in each dtype: the largest numbers of all sizes."""
    counts = ("registers", "shared", "most_shared", "stack", "spills")
    result = Table("GPU", "dtype", "kernel", *counts, title="Resources of additive attention's kernels")
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["device"], row["dtype"], row["kernel"]), []).append(row)
    for key, group in groups.items():
        largest = [str(max(row[name] for row in group)) for name in counts]
        result.add_row(*key, *largest, style="red" if any(map(over_limits, group)) else "")
    return result


def size_table(rows: list[dict[str, Any]]) -> Table:
    """Table of the kernels whose time counts, at each size: programs, warps per scheduler, and a bound of the rate.

    "at most" is the number of warps per scheduler if the work is divided as far as possible, see `most_warps`.
    """
    columns = (
        "GPU", "dtype", "size", "kernel", "programs", "warps", "warps a scheduler", "at most", "buffers MB",
        "terms/s below",
    )  # fmt: skip
    result = Table(*columns, title="Additive attention's kernels at each size")
    devices = {device.name: device for device in DEVICES}
    for row in rows:
        if row["kernel"] not in LOOPS:
            continue
        most = bound(devices[row["device"]], row)
        result.add_row(
            row["device"], row["dtype"], row["size"], row["kernel"], str(row["programs"]), str(row["warps"]),
            f"{row['warps_per_scheduler']:.2f}", f"{row['most_warps_per_scheduler']:.2f}",
            f"{row['buffer_bytes'] / 1e6:.1f}" if row["buffer_bytes"] else "", "" if most is None else quantity(most),
        )  # fmt: skip
    return result


def configuration(text: str) -> list[dict[str, Any]]:
    """Return the resources of `CAPABILITY-DTYPE-SIZE[-masked]`, such as `90-fp32-usual-masked`."""
    capability, dtype, size, *masked = text.split("-")
    device = next(device for device in DEVICES if device.capability == int(capability))
    return list(resources(device, dtype, size, masked == ["masked"]))


if __name__ == "__main__":
    print(json.dumps({text: configuration(text) for text in sys.argv[1:]}, indent=1))
