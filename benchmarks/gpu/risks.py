"""Stage 2: views, batches and masks that PyTorch's kernels get wrong, graphs, streams, compilation, repeatability."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from benchmarks.gpu.check import Check, Context, Outcome, outcome
from benchmarks.gpu.kernels import DTYPES, KERNELS
from benchmarks.gpu.problems import Problem, additive_attention, decoding_step, dot_product_attention, grouped_attention

REPEATS = 20
REPEATABLE = ("additive attention", "additive attention, masked and causal", "additive scores", "decoding step")
CAPTURED = (*REPEATABLE, "dot-product attention", "dot-product attention, masked",
            "grouped attention, window and lengths", "paged attention")  # fmt: skip
COMPILED = (*REPEATABLE[:3], "dot-product attention, causal", "dot-product attention, masked")


def checks(context: Context) -> list[Check]:
    """Checks in the order of what they cost."""
    named: dict[str, Callable[[], Outcome]] = {}
    for short in ("float32", "bfloat16"):
        for name, make in {"dot-product": dot_product_attention, "grouped": grouped_attention}.items():
            problem = partial(make, context, DTYPES[short])
            named[f"{name} attention, {short}: misaligned views"] = partial(_changed, problem, misaligned, context)
        masked = partial(dot_product_attention, context, DTYPES[short], masked=True)
        named[f"dot-product attention, {short}: stride 0 under a mask"] = partial(_changed, masked, repeated, context)
    for name in REPEATABLE:
        named[f"{name}: equal bits in {REPEATS} calls"] = partial(_same_bits, name, context)
    on_gpu = {f"{name}: torch.compile": partial(_compiled, name, context) for name in COMPILED}
    on_gpu |= {f"{name}: second stream": partial(_on_second_stream, name, context) for name in CAPTURED}
    on_gpu |= {f"{name}: captured in a graph": partial(_captured, name, context) for name in CAPTURED}
    large = {
        "dot-product attention, bfloat16: 65,536 batch elements, masked": (4, _many_elements),
        "dot-product attention, bfloat16: a mask of more than 2^32 pairs": (60, _large_mask),
        "additive attention, float32: values beyond 2^30 elements": (40, _many_values),
        "decoding step, float32: values beyond 2^30 elements": (30, _long_cache),
    }
    return [
        *(Check(name, run) for name, run in named.items()),
        *(Check(name, run, needs_gpu=True) for name, run in on_gpu.items()),
        *(Check(name, partial(_large, gibibytes, run, context)) for name, (gibibytes, run) in large.items()),
    ]


def _large(gibibytes: float, run: Callable[[Context], Outcome], context: Context) -> Outcome:
    return context.lacks_memory(gibibytes) or run(context)


def misaligned(x: Tensor) -> Tensor:
    """Copy floats to an address that is one element off, as a view of a larger tensor may have."""
    if not x.is_floating_point():
        return x
    memory = x.new_empty(x.numel() + 1)[1:]
    return memory.copy_(x.flatten()).view(x.shape)


def repeated(x: Tensor) -> Tensor:
    """Expand the first batch element of floats over the batch, with stride 0."""
    return x[:1].expand(x.shape) if x.is_floating_point() else x


def _changed(make: Callable[[], Problem], change: Callable[[Tensor], Tensor], context: Context) -> Outcome:
    problem = make()
    arguments = {name: change(x) for name, x in problem.arguments.items()}
    return replace(problem, arguments=arguments).judged(context)


def _same_bits(name: str, context: Context) -> Outcome:
    """Compare the bits of results and gradients of several calls with those of the first."""
    problem = KERNELS[name](context, torch.float32)
    first, gradients = problem.results()
    for i in range(1, context.size(REPEATS, 2)):
        again, gradients_again = problem.results()
        pairs = [(first, again), *((gradients[name], gradients_again[name]) for name in gradients)]
        if not all(torch.equal(x, y) for x, y in pairs):
            return outcome(False, remark=f"call {i + 1} differs from the first")
    return outcome(True)


def _compiled(name: str, context: Context) -> Outcome:
    """Compile a call as one graph."""
    problem = KERNELS[name](context, torch.float32)
    compute = torch.compile(problem.compute, fullgraph=True, dynamic=False)
    return replace(problem, compute=compute).judged(context)


def _on_second_stream(name: str, context: Context) -> Outcome:
    """Call on a stream beside a busy one; a kernel on the wrong stream would run too late."""
    problem = replace(KERNELS[name](context, torch.float32), differentiated=())
    problem.results()  # compiles
    busy = torch.randn(8192, 8192, device=context.device)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(20):
        busy @ busy
    with torch.cuda.stream(stream):
        result, _ = problem.results()
        copied = tree_map(torch.Tensor.cpu, result)
    return problem.compared((copied, {}))


def _captured(name: str, context: Context) -> Outcome:
    """Capture a call in a graph, and replay it with other queries."""
    problem = replace(KERNELS[name](context, torch.float32), differentiated=())
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        problem.results()  # compiles
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = problem.results()
    next(iter(problem.arguments.values())).neg_()
    return problem.compared(results, context.milliseconds(graph.replay))


def _last_elements(problem: Problem, count: int) -> Outcome:
    """Call, and compare the last batch elements: all of them would take the formula hours."""

    def last(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: x if name.startswith("w_") else x[-count:] for name, x in arrays.items()}  # weights are shared

    output, gradients = problem.results()
    return replace(problem, arguments=last(problem.arguments)).compared((output[-count:], last(gradients)))


def _last_rows(problem: Problem, count: int) -> Outcome:
    """Call without gradients, and compare the last rows of queries."""
    output, _ = problem.results()
    rows = {name: problem.arguments[name][:, -count:] for name in ("query", "mask")}
    return replace(problem, arguments={**problem.arguments, **rows}).compared((output[:, -count:], {}))


def _many_elements(context: Context) -> Outcome:
    """More batch elements than a grid's second dimension has (pytorch#142228)."""
    problem = dot_product_attention(context, torch.bfloat16, batch=65_536, n=4, m=4, d=8, masked=True)
    return _last_elements(problem, 5)


def _large_mask(context: Context) -> Outcome:
    """More than 2^32 pairs of one query and one key (pytorch#187227); the last rows are compared."""
    n = context.size(66_000, 40)
    problem = dot_product_attention(context, torch.bfloat16, batch=1, n=n, m=n)
    mask = torch.ones(1, n, n, dtype=torch.bool, device=context.device)
    mask[:, ::2, 1::3] = mask[:, 1::2, ::5] = False
    problem = replace(problem, arguments={**problem.arguments, "mask": mask}, differentiated=())
    return _last_rows(problem, 4)


def _many_values(context: Context) -> Outcome:
    """More than 2^30 elements of values, of which kernels hold three parts; the last element is compared."""
    batch, m = context.size(1025, 3), context.size(16_384, 40)
    problem = additive_attention(context, torch.float32, batch=batch, n=1, m=m, h=8, d_v=64)
    return _last_elements(replace(problem, differentiated=("query", "key", "value")), 1)


def _long_cache(context: Context) -> Outcome:
    problem = decoding_step(context, torch.float32, batch=context.size(1025, 3), m=context.size(16_384, 40), h=64)
    return _last_elements(problem, 1)
