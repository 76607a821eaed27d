"""Kernels on threads of Python, used where PyTorch's are missing: no thread writes after an interruption."""

import _thread
import threading
import time
from typing import Any

import pytest
import torch

pytest.importorskip("llvmlite", reason="kernels need llvmlite")
from attnspec.backends.pytorch import additive
from attnspec.backends.pytorch.kernels.llvm import threads


@pytest.mark.parametrize("again", [False, True])
def test_an_interruption_waits_for_the_other_threads(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    class Interrupted:
        fields = ()

        def call(self, address: int) -> None:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            time.sleep(0.1)
            if again:
                _thread.interrupt_main()
            time.sleep(0.1)
            ended.append(address)

    kernel: Any = Interrupted()
    monkeypatch.setattr(threads, "_team", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        threads.launch(kernel, 4, [])
    assert len(ended) == 3
    assert not hasattr(threads._pools, "own")


def test_threads_of_python_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, w_v, value = torch.randn(3, 60, 32), torch.randn(3, 90, 32), torch.randn(32), torch.randn(3, 90, 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    expected = additive.attention(a, b, w_v, value)
    monkeypatch.setattr(threads, "_team", lambda: None)
    assert torch.equal(additive.attention(a, b, w_v, value), expected)
    assert threads._pools.own._threads
