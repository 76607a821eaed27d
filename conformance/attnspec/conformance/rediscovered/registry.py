"""What a rediscovered defect is: a mutant that does what a public report says a library did."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnspec.conformance.mutants.correct.altered import Alteration, Registry, names_of
from attnspec.conformance.mutants.registry import Mutant


def address_of(source: str) -> str:
    """Where a report is, of ``owner/repository#number``."""
    repository, _, number = source.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


@dataclass(frozen=True)
class Rediscovered(Mutant):
    """A defect that somebody reported; ``source`` is the report, as ``owner/repository#number``.

    ``title`` is the report's, ``framework`` where it was. ``needs`` says which input a conviction waits for; where one
    is certain, it is empty, and ``profile`` the least one that convicts.
    """

    title: str = ""
    framework: str = ""
    needs: str = ""

    @property
    def convicted(self) -> bool:
        """Whether its profile convicts it, whatever the seed."""
        return not self.needs

    @property
    def address(self) -> str:
        """Where the report is."""
        return address_of(self.source)


REDISCOVERED: Registry[Rediscovered] = Registry("rediscovered defects")
"""Every rediscovered defect, by its report, once :mod:`attnspec.conformance.rediscovered` is imported."""


def rediscovered(
    source: str,
    title: str,
    *,
    framework: str,
    operation: object,
    replaces: str = "",
    dtype: str = "float32",
    profile: str = "quick",
    needs: str = "",
    **more: Any,
) -> Callable[[Alteration], Rediscovered]:
    """Make a rediscovered defect of a function that takes the place of the step ``replaces``, or of a subclass.

    ``operation`` is a Protocol. ``ValueError`` for a step that does not exist, or a report that is taken.
    """

    def made(wrong: Alteration) -> Rediscovered:
        found = Rediscovered(
            source,
            names_of([operation]),
            wrong,
            replaces,
            (dtype,),
            source=source,
            title=title,
            framework=framework,
            profile=profile,
            needs=needs,
            **more,
        )
        REDISCOVERED.add(found)
        return found

    return made


class Waiting(NamedTuple):
    """A report that concerns an operation which the contract does not have."""

    source: str
    framework: str
    defect: str
    awaits: str

    @property
    def address(self) -> str:
        """Where the report is."""
        return address_of(self.source)


WAITING = (
    Waiting(
        "pytorch/pytorch#193893",
        "PyTorch (cuDNN, B200)",
        "Greedy decoding is silently corrupted in models with fewer than 8 heads of keys and values.",
        "grouped heads",
    ),
    Waiting(
        "pytorch/pytorch#174861",
        "PyTorch (MPS)",
        "The kernel in two passes reads beyond the keys of grouped heads.",
        "grouped heads",
    ),
    Waiting(
        "huggingface/candle#3388",
        "candle (Metal)",
        "A mask with n ≠ m gives NaN where heads share keys.",
        "grouped heads",
    ),
    Waiting(
        "pytorch/pytorch#162362",
        "PyTorch (CUDA)",
        "A mask of blocks of 64 over 97,220 positions gives wrong rows beyond 44,000.",
        "windows: as a mask it has 9·10⁹ elements",
    ),
    Waiting(
        "tenstorrent/tt-metal#41215",
        "ttnn",
        "A decoding step attends to positions of the cache beyond the present one, in blocks of 32.",
        "a decoding step on a padded cache without weights",
    ),
    Waiting(
        "flashinfer-ai/flashinfer#3716",
        "FlashInfer (CuTe DSL)",
        "Without a causal mask, lanes behind the end of a paged cache count in the denominator.",
        "paged caches",
    ),
    Waiting(
        "flashinfer-ai/flashinfer#4452",
        "FlashInfer",
        "Rows without keys have a finite log-sum-exp where there are more queries than keys.",
        "the log-sum-exp as a result",
    ),
    Waiting(
        "onnx/onnx#7865",
        "ONNX (Attention)",
        "Scores are masked before they are capped, so that a masked key keeps the score −cap.",
        "capped scores",
    ),
    Waiting(
        "vllm-project/vllm#50427",
        "vLLM (FlexAttention)",
        "Offsets into a large paged cache overflow 32 bits.",
        "paged caches",
    ),
    Waiting(
        "tenstorrent/tt-metal#33304",
        "ttnn",
        "A scale that the caller gives has no effect.",
        "a scale as an argument",
    ),
    Waiting(
        "pytorch/pytorch#107084",
        "PyTorch (nn.MultiheadAttention)",
        "A mask of numbers to add is read as a boolean one on the fast path.",
        "masks of numbers",
    ),
)
"""Reports that were read and wait for an operation or an argument."""
