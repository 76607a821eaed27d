"""Generator of ``docs/schedules.md``: ``python docs/schedules.py > docs/schedules.md``."""

from collections.abc import Iterator
from math import prod

from attnspec.backends.pytorch.distributed import contiguous, forward_seconds, zigzag

RANKS = 8, 32, 128, 512, 1024
TOKENS, FLOPS = 2**20, 400e12
BANDWIDTHS = (50e9, 5e9)
SIZES = {"heads": 64, "heads_k": 8, "d": 128, "d_v": 128}
COLUMNS = {
    "ring, contiguous": ("ring", contiguous),
    "ring, zig-zag": ("ring", zigzag),
    "all-gather, zig-zag": ("all-gather", zigzag),
    "heads": ("heads", zigzag),
}
PAGE = """# Schedules of many ranks

How long does causal attention of a [sharded sequence](distributed.md) take with 8 to 1,024 ranks? The tables are
simulated by `distributed.forward_seconds`, from counted pairs of queries and keys and counted bytes: no such machine
was at hand. Made by `python docs/schedules.py > docs/schedules.md`.

The example has {tokens:,} tokens, {heads} heads that share {heads_k} heads of keys, {d} features and bfloat16. A rank
computes {flops:.0f} TFLOP a second. In brackets: the part of that rate that all ranks reach together.
{tables}
## What is simulated

- A rank computes the pairs of its queries with every block of keys, with 4 operations per pair, head and feature.
  Masked pairs are skipped.
- In a ring, keys travel while the pairs of the block before are computed. A step ends when a rank has computed, sent
  and received, as in `distributed.grouped_query_attention`.
- With all-gather and heads, a rank waits for all data before it computes, and with heads for the results after that.
- Latencies, softmax, merges and the kernels' own efficiency are left out, so that real times are longer, most of all
  with many ranks.

## What it shows

- **Zig-zag.** With contiguous shards, some rank has a whole block at every step, while another has none: a ring is half
  as fast, as each step waits for the slowest. With an early and a late run per rank all steps are equal.
- **The ring hides its messages until pairs become too few.** A block of 1/R of the keys meets 1/R of the queries: R
  times as many ranks do R² times less work per step, but send only R times fewer bytes. Once sending takes longer, more
  ranks gain nothing: every rank still passes all keys on.
- **All-gather sends as much, and waits for it.** Its advantage is a single message, which only latencies would show.
- **Heads serve as many ranks as there are heads of keys.** Others have nothing to compute. Bytes of a rank fall with
  the number of ranks, but queries and results travel too: where heads share keys, they are most of the data.

To simulate your own machine:

```python
from attnspec.backends.pytorch.distributed import forward_seconds, zigzag

shards = zigzag(32_768, 4)
sizes = {{"heads": 8, "heads_k": 8, "d": 64, "d_v": 64, "causal": True}}
print(f"{{forward_seconds('ring', shards, shards, flops=1e12, bandwidth=1e9, **sizes):.3f}} s")  # {example:.3f} s
```
"""


def rows(bandwidth: float) -> Iterator[str]:
    """Yield a row for every number of ranks."""
    operations = 2.0 * prod((TOKENS, TOKENS + 1, SIZES["heads"], SIZES["d"]))
    for ranks in RANKS:
        cells = []
        for method, divide in COLUMNS.values():
            shards = divide(TOKENS, ranks)
            seconds = forward_seconds(
                method, shards, shards, flops=FLOPS, bandwidth=bandwidth, causal=True, itemsize=2, **SIZES
            )
            cells.append(f"{1e3 * seconds:,.0f} ({operations / (ranks * FLOPS * seconds):.0%})")
        yield f"| {ranks:,} | {' | '.join(cells)} |"


def page() -> str:
    """Return the page."""
    tables = ""
    for bandwidth in BANDWIDTHS:
        header = f"| ranks | {' | '.join(COLUMNS)} |\n|{'---|' * (1 + len(COLUMNS))}\n"
        title = f"\n## Milliseconds if a rank sends {bandwidth / 1e9:.0f} GB a second\n\n"
        tables += title + header + "\n".join(rows(bandwidth)) + "\n"
    shards = zigzag(32_768, 4)
    example = forward_seconds(
        "ring", shards, shards, flops=1e12, bandwidth=1e9, heads=8, heads_k=8, d=64, d_v=64, causal=True
    )
    return PAGE.format(tokens=TOKENS, flops=FLOPS / 1e12, tables=tables, example=example, **SIZES)


if __name__ == "__main__":
    print(page(), end="")
