"""Stage 5: speed against PyTorch, medians of calls between CUDA events in interleaved rounds."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch

from benchmarks.case import FORWARD, OURS, WITH_BACKWARD, Case
from benchmarks.gpu.check import Check, Context, Outcome, outcome
from benchmarks.measuring import measure
from benchmarks.results import Measurement, fastest_other, speedup
from benchmarks.suites import Settings, additive, flexible, layers, scaled_dot_product, step
from benchmarks.table import duration, quantity
from benchmarks.timing import interleaved, time_once

MODES = FORWARD, WITH_BACKWARD
WIDTH = 1024
"""Features of the encoder layer."""


def checks(context: Context) -> list[Check]:
    """Checks of the speed of additive attention, dot-product attention and an encoder layer."""
    settings = Settings("cpu" if context.dry else "cuda", quick=context.dry)
    n, m = context.size(1024, 32), context.size(512, 32)
    tanh_rate = cache(partial(rate_of_tanh, settings.device))

    def encoder_layer(mode: str) -> Case:
        layer = layers.encoder_layer(settings.device, context.size(WIDTH, 64), torch.bfloat16)
        return layers.case(settings, n, "encoder layer", layer, mode)

    attention = [(f"additive attention, {mode}", 1.0, partial(additive.case, settings, n, mode)) for mode in MODES]
    others: list[tuple[str, float, Callable[[], Case]]] = [
        *((f"decoding step, d_v={width}", 1.0, partial(step.case, settings, m, width)) for width in (512, 64)),
        *((f"encoder layer, bfloat16, {mode}", 0.95, partial(encoder_layer, mode)) for mode in MODES),
        *(
            (f"dot-product attention, {mask}, {dtype}, {mode}".replace("torch.", ""), 0.97,
             partial(scaled_dot_product.case, settings, n, mask, mode, dtype))
            for dtype in (torch.bfloat16, torch.float32) for mask in scaled_dot_product.MASKS for mode in MODES
        ),
    ]  # fmt: skip
    if context.dry:
        others = others[:5]  # steps, layers, and one of the many cases of dot-product attention
    tanh = [
        Check(f"{name}, over the hardware's tanh", partial(_over_tanh, make, tanh_rate, settings), needs_gpu=True)
        for name, _, make in attention
    ]
    first, last = (
        [Check(name, partial(_speed, make, least, settings)) for name, least, make in timed]
        for timed in (attention, others)
    )
    return [*first, *tanh, *last]


def _measurements(case: Case, settings: Settings) -> list[Measurement]:
    """Measure the subjects of a case, except FlexAttention and, in a dry run, what compiles."""
    subjects = [
        s for s in case.subjects if s.name == OURS or not (s.name == flexible.NAME or (settings.quick and s.compiles))
    ]
    rounds, seconds = (3, 0.1) if settings.quick else (30, 4.0)
    return measure(replace(case, subjects=subjects), settings, rounds=rounds, seconds=seconds, memory=False)


def _speed(make: Callable[[], Case], least: float, settings: Settings) -> Outcome:
    """Compare our time with that of the fastest other subject."""
    group = _measurements(make(), settings)
    ours, best = next(m for m in group if m.subject == OURS), fastest_other(group, OURS)
    ratio = None if best is None else speedup(group, OURS, best.subject)
    if ours.seconds is None or best is None or ratio is None:
        return outcome(False, remark="; ".join(f"{m.subject}: {m.not_timed}" for m in group if m.not_timed))
    times = ", ".join(f"{m.subject} {duration(m.seconds)}" for m in group if m.seconds is not None)
    if settings.quick:  # small sizes on a processor: no speed is promised
        return outcome(True, None, 1e3 * ours.seconds, times)
    remark = f"{ratio:.3g} times {best.subject}, expected at least {least:g} ({times})"
    return outcome(ratio >= least, least / ratio, 1e3 * ours.seconds, remark)


def _over_tanh(make: Callable[[], Case], tanh_rate: Callable[[], float], settings: Settings) -> Outcome:
    """Report our rate of terms over that of the hardware's approximation of tanh; nothing is demanded."""
    case = make()
    alone = replace(case, subjects=[s for s in case.subjects if s.name == OURS])
    (ours,) = _measurements(alone, settings)
    if ours.seconds is None:
        return outcome(False, remark=ours.not_timed)
    rate, limit = ours.work / ours.seconds, tanh_rate()
    remark = f"{quantity(rate)}terms/s, {rate / limit:.3g} times the {quantity(limit)}tanh/s of tanh.approx.f32"
    return outcome(True, None, 1e3 * ours.seconds, remark)


def rate_of_tanh(device: str) -> float:
    """Measure how many hardware approximations of tanh the device computes per second."""
    from benchmarks.gpu.hardware_tanh import CHAIN, tanh_chain

    x = torch.randn(2**22, device=device)

    def call() -> None:
        tanh_chain(x)

    first = time_once(call, device)
    times = interleaved({"tanh": call}, {"tanh": first}, rounds=9, seconds=2, device=device)
    return CHAIN * x.numel() / times["tanh"].median
