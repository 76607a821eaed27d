"""Context-parallel attention as a program that ``attnspec check`` judges: every rank computes its rows of each call.

``attnspec check --command "torchrun --standalone --nproc-per-node 4 examples/commands/context_parallel.py ring"``

Rank 0 reads calls and writes answers. To judge another context-parallel attention, replace ``rows_of``. Arguments: the
method (ring, all-gather, heads), and how rows are divided (contiguous, zigzag).
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from attnspec.backends.bases.torch import from_numpy, gradients, to_numpy
from attnspec.backends.pytorch import distributed
from attnspec.backends.pytorch.distributed import Shards, contiguous, zigzag
from attnspec.spec import OPERATIONS, bind
from attnspec.spec.contract.tree import flatten

PROVIDED = (
    "grouped_query_attention",
    "variable_length_attention",
    "scaled_dot_product_attention",
    "additive_attention",
)


DIVISIONS = {"contiguous": contiguous, "zigzag": zigzag}


def rows_of(operation: str, method: str, divide: Callable[[int, int], Shards], **arguments: Any) -> Any:
    """Results of a whole call for this rank's queries."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    query, key, value = (arguments.pop(name) for name in ("query", "key", "value"))
    shards = {"query_shards": divide(query.shape[-2], ranks), "key_shards": divide(key.shape[-2], ranks)}
    of, to = (positions(x[rank]) for x in shards.values())
    function = getattr(distributed, operation)
    return function(query[..., of, :], key[..., to, :], value[..., to, :], method=method, **shards, **arguments)


def positions(shard: distributed.Shard) -> Tensor:
    """Positions of a shard, in the order of its rows."""
    return torch.tensor([i for run in shard for i in run], dtype=torch.int64)


def axis(path: str) -> int:
    """Axis of the queries in a result."""
    return -1 if path == "log_sum_exp" else -2


def answer(request: Mapping[str, Any], arrays: list[Any], method: str, division: str) -> dict[str, Any]:
    """Arrays of the answer by path, on rank 0."""
    operation = OPERATIONS[request.get("call") or request["vjp"]]
    tensors = iter([from_numpy(x, device="cpu") for x in arrays])
    arguments = {path: value(x, tensors) for path, x in request["arguments"].items()}
    cotangents = {path: value(x, tensors) for path, x in request.get("cotangents", {}).items()}
    bind(operation, arguments)  # raises if whole arguments do not fit together
    shards = DIVISIONS[division](arguments["query"].shape[-2], dist.get_world_size())
    computed = partial(rows_of, operation.name, method, DIVISIONS[division])
    paths = [leaf.path for leaf in operation.outputs]
    if "call" in request:
        results = dict(zip(paths, flatten(computed(**arguments)).values(), strict=True))
        parts = gathered({path: to_numpy(x) for path, x in results.items()})
        return {path: joined([part[path] for part in parts], shards, axis(path)) for path in paths if parts}
    own = positions(shards[dist.get_rank()])
    whole = {path: cotangents.get(path) for path in paths}
    weights = tuple(None if x is None else x.index_select(axis(path), own) for path, x in whole.items())
    of_rows = gradients(computed, arguments, weights if len(weights) > 1 else weights[0])
    parts = gathered({path: to_numpy(x) for path, x in of_rows.items()})
    sums = {path: sum(part[path].astype(np.float64) for part in parts) for path in of_rows if parts}
    return {path: x.astype(parts[0][path].dtype) for path, x in sums.items()}


def value(x: Any, tensors: Iterator[Tensor]) -> Any:
    """Argument that JSON describes; arrays are the next tensors."""
    return next(tensors) if isinstance(x, dict) else tuple(x) if isinstance(x, list) else x


def joined(parts: list[Any], shards: Shards, axis: int) -> Any:
    """Rows of all ranks in the order of their positions."""
    order = torch.cat([positions(shard) for shard in shards]).argsort().numpy()
    return np.take(np.concatenate(parts, axis), order, axis)


def gathered(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's arrays, on rank 0; nothing on others."""
    parts: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(part, parts)
    return parts or []


def requested() -> tuple[Any, list[Any]]:
    """Next request and its arrays; None at the end of the input."""
    line = sys.stdin.buffer.readline()
    if not line:
        return None, []
    request, arrays = json.loads(line), []
    for values in (request["arguments"], request.get("cotangents", {})):
        for x in values.values():
            if isinstance(x, dict):
                dtype = np.dtype(ml_dtypes.bfloat16 if x["dtype"] == "bfloat16" else x["dtype"])
                numbers = sys.stdin.buffer.read(prod(x["shape"]) * dtype.itemsize)
                arrays.append(np.frombuffer(numbers, dtype).reshape(x["shape"]).copy())
    return request, arrays


def write(message: dict[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a message and the bytes of its arrays."""
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n" + b"".join(x.tobytes() for x in arrays.values()))
    sys.stdout.buffer.flush()


def main(method: str = "ring", division: str = "zigzag") -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    # A rank that waits for one that died raises after this time.
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    idle = dist.new_group(timeout=timedelta(days=1))  # ranks wait here for the next request
    name = f"context parallel: {method}, {division}, {dist.get_world_size()} ranks"
    if dist.get_rank() == 0:
        dtypes = ["float64", "float32", "bfloat16", "float16"]
        declared = {"attnspec": 1, "name": name, "operations": PROVIDED, "vjp": True, "limits": {"dtypes": dtypes}}
        write(declared, {})
    while True:
        message: list[Any] = list(requested()) if dist.get_rank() == 0 else [None, None]
        dist.broadcast_object_list(message, group=idle)
        request, arrays = message
        if request is None:
            break
        reply: dict[str, Any]
        try:
            answers = answer(request, arrays, method, division)
            reply = {"result": {path: {"dtype": x.dtype.name, "shape": x.shape} for path, x in answers.items()}}
        except (ValueError, TypeError, IndexError, NotImplementedError) as error:  # raised on every rank
            kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
            reply, answers = {"error": kind, "message": str(error)}, {}
        if dist.get_rank() == 0:
            write(reply, answers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
