"""Stage 6: occupancy and stalls of our kernels from hardware counters, by Nsight Compute (``ncu``)."""

import csv
import shutil
import subprocess
import sys
from functools import cache, partial

from benchmarks.gpu.check import NOT_TRIED, Check, Context, Outcome, outcome

KERNELS = (
    "weights_kernel", "factors_kernel", "forward_kernel", "delta_kernel", "gradient_kernel", "scores_kernel",
    "step_kernel", "combine_kernel",
)  # fmt: skip
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
STALL_PREFIX, STALL_SUFFIX = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
SECONDS = 400

Row = dict[str, str]


def checks(context: Context) -> list[Check]:
    """A check per kernel, all of one run of ``ncu``; they report, and demand nothing."""
    return [Check(f"occupancy and stalls of {name}", partial(_outcome, name), needs_gpu=True) for name in KERNELS]


def _outcome(kernel: str) -> Outcome:
    table, problem = profile()
    launches = [row for row in rows(table) if row["Kernel Name"].startswith(kernel)]
    if not launches:
        return Outcome(NOT_TRIED, remark=problem or "ncu reports no launch of it")
    return outcome(True, remark="; ".join(map(summary, launches)))


@cache
def profile() -> tuple[str, str]:
    """Run every kernel at a large size under ``ncu``; return its table as CSV, or an empty one and the reason."""
    program = shutil.which("ncu")
    if program is None:
        return "", "ncu is not installed"
    command = [
        program, "--csv", "--page", "raw", "--clock-control", "none", "--kernel-name", f"regex:{'|'.join(KERNELS)}",
        "--metrics", f"{OCCUPANCY},{ISSUED},regex:{STALL_PREFIX}.*{STALL_SUFFIX}",
        sys.executable, "-m", "benchmarks.gpu.calls", "large",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "", f"ncu takes more than {SECONDS} s"
    if '"Kernel Name"' not in done.stdout:
        return "", f"ncu cannot read the counters: {' '.join((done.stdout + done.stderr).split())[-150:]}"
    return done.stdout, ""


def rows(table: str) -> list[Row]:
    """Rows of launches in the output of ``ncu``: after messages, a header and a row of units."""
    lines = table.splitlines()
    start = next((i for i, line in enumerate(lines) if '"Kernel Name"' in line), len(lines))
    return list(csv.DictReader(lines[start:]))[1:]


def summary(row: Row) -> str:
    """Text of a launch: its occupancy, the share of cycles with an instruction, and the longest stall."""
    text = f"{row[OCCUPANCY]} % of the warps, {row[ISSUED]} % of the cycles issue"
    stalls = {name: float(x.replace(",", "")) for name, x in row.items() if name.startswith(STALL_PREFIX) and x}
    if stalls:
        longest = max(stalls, key=lambda name: stalls[name])
        reason = longest.removeprefix(STALL_PREFIX).removesuffix(STALL_SUFFIX)
        text += f", {stalls[longest]:.2g} warps wait for {reason}"
    return text
