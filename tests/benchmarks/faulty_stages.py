"""Stages of the checks on a GPU with made-up faults: a wrong kernel, a lost device, an ended and an endless process."""

import os
import time
from typing import Any
from unittest.mock import patch

import torch

from attnspec.backends.pytorch import additive
from benchmarks.gpu.check import Check, Context, Outcome, outcome
from benchmarks.gpu.kernels import smoke_calls


def ok() -> Outcome:
    return outcome(True, 0.5, 1.0)


def wrong_kernel(context: Context) -> list[Check]:
    step = additive.step

    def larger(*arguments: Any, **options: Any) -> torch.Tensor:
        return 1.001 * step(*arguments, **options)

    additive.step = larger
    return [check for check in smoke_calls(context) if check.name.startswith("decoding step")]


def lost_device(context: Context) -> list[Check]:
    def lose() -> Outcome:
        error = RuntimeError("CUDA error: an illegal memory access was encountered")
        patch.object(torch, "ones", side_effect=error).start()  # as every later call on a device
        raise error

    return [Check("before", ok), Check("illegal", lose), Check("after", ok), Check("later", ok)]


def ended_process(context: Context) -> list[Check]:
    return [Check("before", ok), Check("segfault", lambda: os._exit(139)), Check("after", ok)]


def endless(context: Context) -> list[Check]:
    def sleep() -> Outcome:
        time.sleep(600)
        return ok()

    return [Check("before", ok), Check("endless", sleep), Check("after", ok)]


def refusing(context: Context) -> list[Check]:
    raise LookupError("no checks")
