"""Scaled dot-product routing: every route gives the defining formula, whatever the kernel behind it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.backends.pytorch.kernels.dot import cuda_fused, path_choice, sdpa
from attnspec.backends.pytorch.kernels.dot.mask_structure import structure_of
from attnspec.backends.pytorch.kernels.dot.sdpa import attend, path_for
from attnspec.backends.pytorch.runtime.forcing import forcing
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.ranges import refuse_out_of_range
from attnspec.reference import REFERENCE
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHAPES = [((3, 1), (3, 1)), ((), ()), ((2,), (2,)), ((2,), (1,)), ((2, 3), (3,)), ((2, 1, 3), (4, 1)), ((0,), ())]


def masks(kind: str, batch: tuple[int, ...], n: int, m: int) -> Tensor | None:
    generator = torch.Generator().manual_seed(n * 1000 + m)
    lead = batch[:1] + (1,) * max(len(batch) - 1, 0)
    match kind:
        case "none":
            return None
        case "random":
            return torch.rand(*batch, n, m, generator=generator) > 0.6
        case "shared":
            return torch.rand(n, m, generator=generator) > 0.4
        case "causal":
            return causal_triangle(n, m, torch.device("cpu"))
        case "padding":
            lengths = torch.randint(0, m + 1, lead, generator=generator)
            return (torch.arange(m) < lengths.unsqueeze(-1)).unsqueeze(-2)
        case "padding-rows":
            lengths = torch.randint(0, m + 1, lead, generator=generator)
            return (torch.arange(m) < lengths.unsqueeze(-1)).unsqueeze(-2).expand(*lead, n, m).contiguous()
        case "nothing":
            return torch.zeros(1, 1, dtype=torch.bool)
        case _:
            return torch.ones(n, 1, dtype=torch.bool)


KINDS = ("none", "random", "shared", "causal", "padding", "padding-rows", "nothing", "everything")


@pytest.fixture(params=["llvm", "pytorch"])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    with forcing(request.param):
        yield request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_route_is_the_formula(dtype: torch.dtype, kind: str, causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = [(7, 5, 4, 6), (1, 9, 8, 3), (33, 33, 1, 1), (50, 70, 17, 33), (4, 0, 2, 2), (0, 4, 2, 2)]
    cases = [(shapes, (5, 7, 4, 4)) for shapes in SHAPES] + [(((2,), (1,)), size) for size in sizes]
    for (left, right), (n, m, d, d_v) in cases:
        query = torch.randn(*left, n, d, generator=generator).to(dtype)
        key = torch.randn(*right, m, d, generator=generator).to(dtype)
        value = torch.randn(*right, m, d_v, generator=generator).to(dtype)
        batch = tuple(np.broadcast_shapes(left, right))
        mask = masks(kind, batch, n, m)
        results = []
        for path in ("llvm", "pytorch"):
            with forcing(path):
                results.append(attend(query, key, value, mask=mask, causal=causal))
        assert all(got.dtype is dtype for got in results)
        assert_within_budgets(results, "scaled_dot_product_attention", query, key, value, mask=mask, causal=causal)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("threads", "heads", "n"),
    [  # every two of threads, heads and sizes meet once; tiles hold 64 keys
        (1, (1, 1), 16), (2, (4, 1), 16), (4, (3, 2), 16),
        (1, (4, 1), 64), (2, (3, 2), 64), (4, (1, 1), 64),
        (1, (3, 2), 130), (2, (1, 1), 130), (4, (4, 1), 130),
    ],
)  # fmt: skip
def test_results_and_gradients_agree_on_every_cpu_kernel(threads: int, heads: tuple[int, int], n: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(n)
        mask = torch.rand(n, n, generator=generator) > 0.3
        mask[n // 2] = False
        for chosen, causal in ((None, False), (None, True), (mask, False), (mask, True)):
            leaves = [
                torch.randn(*heads, n, 8, generator=generator, dtype=torch.float64, requires_grad=True)
                for _ in range(3)
            ]
            query, key, value = leaves
            cotangent = torch.randn(*heads, n, 8, generator=generator, dtype=torch.float64)
            got = attend(query, key, value, mask=chosen, causal=causal)
            with torch.no_grad():
                again = attend(query, key, value, mask=chosen, causal=causal)
            options: dict[str, Any] = {"mask": chosen, "causal": causal}
            assert_within_budgets([got, again], "scaled_dot_product_attention", *leaves, **options)
            gradients = torch.autograd.grad(got, leaves, cotangent)
            assert_gradients_within_budgets(gradients, cotangent, "scaled_dot_product_attention", *leaves, **options)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("same_operand", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_second_derivatives_are_the_formula_s_or_raise(kernel: str, causal: bool, same_operand: bool) -> None:
    """PyTorch's kernel raises, even where its gradients are added to differentiable ones."""
    leaves = [torch.randn(3, 20, 8, dtype=torch.float64, requires_grad=True) for _ in range(1 if same_operand else 3)]
    operands = leaves * 3 if same_operand else leaves
    assert path_for(*operands, causal=causal).split(": ")[1] == kernel
    total = attend(*operands, causal=causal).square().sum() + sum(x.pow(3).sum() for x in leaves)
    if kernel == "llvm":
        small = [x.detach()[:1, :4, :2].clone().requires_grad_() for x in leaves]

        def call(*inputs: Tensor) -> Tensor:
            return attend(*(inputs * 3 if same_operand else inputs), causal=causal)

        assert torch.autograd.gradgradcheck(call, small)
        return
    plain = torch.autograd.grad(total, leaves, retain_graph=True)
    gradients = torch.autograd.grad(total, leaves, create_graph=True)
    assert all(torch.equal(first, second) for first, second in zip(plain, gradients, strict=True))
    for gradient in gradients:
        for leaf in leaves:
            with pytest.raises(RuntimeError, match="not implemented"):
                torch.autograd.grad(gradient.square().sum(), leaf, retain_graph=True)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_finite_differences(kind: str) -> None:
    leaves = [torch.randn(2, *shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 3), (6, 3), (6, 2))]
    mask = masks(kind, (2,), 5, 6)
    for causal in (False, True):
        torch.autograd.gradcheck(lambda q, k, v, c=causal: attend(q, k, v, mask=mask, causal=c), leaves)


@pytest.mark.parametrize("path", ["small", "llvm"])
@pytest.mark.parametrize("n", [8, 70])  # tiles hold 64 keys
def test_garbage_under_a_mask_stays_there_on_the_cpu(n: int, path: str) -> None:
    with forcing(path):
        garbage_stays_under_a_mask(n, path)


def garbage_stays_under_a_mask(n: int, path: str) -> None:
    allowed = torch.rand(n, n) > 0.5
    allowed[:, 3] = False
    allowed[2] = False
    for mask, causal in ((allowed, False), (allowed, True), (None, True)):
        spoilt = n - 1 if mask is None else 3
        for bad in (torch.nan, torch.inf, -torch.inf, 1e300):
            leaves = [torch.randn(2, 2, n, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
            query, key, value = leaves
            assert path_for(*leaves, mask=mask, causal=causal).split(": ")[1] == path
            clean = attend(query, key, value, mask=mask, causal=causal)
            with torch.no_grad():
                key, value = key.clone(), value.clone()
                key[..., spoilt, :] = bad
                value[..., spoilt, 0] = bad
            key.requires_grad_()
            value.requires_grad_()
            got = attend(query, key, value, mask=mask, causal=causal)
            # without a mask the last query attends to the spoilt key: its row is that of the clean call
            rows = slice(0, n - 1) if mask is None else slice(None)
            options: dict[str, Any] = {"mask": mask, "causal": causal}
            with torch.no_grad():
                filled = torch.cat((got[..., rows, :], clean[..., rows.stop or n :, :]), -2)
            assert_within_budgets([filled, clean], "scaled_dot_product_attention", *leaves, **options)
            weight = torch.zeros_like(got)
            weight[..., rows, :] = 1
            gradients = torch.autograd.grad(got, (query, key, value), weight)
            reference = torch.autograd.grad(clean, leaves, weight)
            # The last row of a causal call attends the bad key: its weights are NaN, and so are all keys' gradients.
            judged = 1 if mask is None else 3
            results = [reference, (*gradients[:judged], *[None] * (3 - judged))]
            if mask is None:
                gradients[0][..., spoilt, :] = reference[0][..., spoilt, :]
            assert_gradients_within_budgets(results, weight, "scaled_dot_product_attention", *leaves, **options)
    infinite = torch.ones(1, 3, 1, dtype=torch.float64)
    infinite[0, 1] = torch.inf
    got = attend(torch.ones(1, 2, 1).double(), torch.ones(1, 3, 1).double(), infinite, causal=True)
    assert got.flatten().tolist() == [1.0, torch.inf]


def test_the_mask_is_read_for_its_structure() -> None:
    n, m = 300, 520
    causal = causal_triangle(n, m, torch.device("cpu"))
    assert structure_of(causal[None, None]) == (None, True, None)
    assert structure_of(causal.mT.contiguous()[None, None])[1:] == (False, None)
    assert structure_of(causal_triangle(m, n, causal.device)[None, None]).causal
    assert structure_of(causal_triangle(m, n, causal.device).expand(2, 3, m, n)).causal
    for row, column in ((0, 0), (0, 1), (n - 1, n), (n - 1, n - 1), (257, 100), (100, 400), (256, 257)):
        broken = causal.clone()
        broken[row, column] ^= True
        assert structure_of(broken[None, None])[1:] == (False, None)
    lengths = torch.tensor([3, 0, m])
    padding = (torch.arange(m) < lengths[:, None])[:, None, None]
    assert structure_of(padding).lengths == (3, 0, m)
    assert structure_of(padding.expand(3, 1, n, m).contiguous()).lengths == (3, 0, m)
    assert structure_of(torch.ones(2, 1, n, m, dtype=torch.bool)) == (None, False, (m, m))
    gap = padding.clone()
    gap[0, 0, 0, 5] = True
    assert structure_of(gap).lengths is None
    uneven = padding.expand(3, 1, n, m).contiguous()
    uneven[1, 0, 270, 0] = True
    assert structure_of(uneven).lengths is None


def test_routes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    x, many = torch.randn(2, 4, 256, 16), torch.randn(2, 4, 600, 16)
    mask = torch.rand(256, 256) > 0.5
    assert path_for(x, x, x) == "all keys: llvm"
    assert path_for(x, x, x, causal=True) == "causal: llvm"
    assert path_for(x, x, x, mask=mask, causal=True) == "masked: llvm"
    assert path_for(x.half(), x.half(), x.half()) == "all keys: llvm"
    # which of two costs less for so few queries depends on the processor
    assert path_for(x[:, :, :1], many, many) in ("all keys: decode", "all keys: small")
    with forcing("decode"):
        assert path_for(x[:, :, :1], many, many) == "all keys: decode"
    with forcing("llvm"):
        assert path_for(x[:, :, :4], x, x, mask=mask[:4]) == "masked: llvm"
    assert path_for(x, x[:, :, :0], x[:, :, :0]) == "all keys: pytorch"
    with sdpa_kernel(SDPBackend.MATH):
        assert path_for(x, x, x) == "all keys: pytorch"
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert path_for(fake, fake, fake) == "all keys: pytorch"
        assert attend(fake, fake, fake, causal=True).shape == x.shape
    with forward_ad.dual_level():
        assert path_for(x, x, x) == "all keys: plain"
    monkeypatch.setattr(path_choice, "HAS_LLVMLITE", False)
    assert path_for(x, x, x) == "all keys: pytorch"


def on_cuda(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor without numbers that says it is on a GPU."""
    with FakeTensorMode():
        return torch.empty(shape, device="cuda:0", dtype=dtype)


def test_packed_calls_are_those_that_flash_kernels_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_fused, "capability", lambda device: (8, 0))
    x, wide = on_cuda(2, 4, 16, 64), on_cuda(2, 4, 16, 264)
    assert cuda_fused.worth_packing(x, x, False, (3, 9))
    assert not cuda_fused.worth_packing(x, x, True, (3, 9))
    assert not cuda_fused.worth_packing(x, x, False, (0, 9))
    assert not cuda_fused.worth_packing(x, wide, False, (3, 9))
    assert not cuda_fused.worth_packing(on_cuda(65_536, 1, 1, 64), x, False, (1,) * 65_536)
    single = on_cuda(2, 4, 16, 64, dtype=torch.float32)
    assert not cuda_fused.worth_packing(single, single, False, (3, 9))
    with sdpa_kernel(SDPBackend.MATH):
        assert not cuda_fused.worth_packing(x, x, False, (3, 9))
    monkeypatch.setattr(cuda_fused, "capability", lambda device: (7, 5))
    assert not cuda_fused.worth_packing(x, x, False, (3, 9))


def test_lengths_are_not_read_on_a_gpu() -> None:
    refuse_out_of_range("grouped_query_attention", "key_lengths", on_cuda(3, dtype=torch.int64), 5)
    with pytest.raises(ValueError, match=r"expected key_lengths in 0\.\.5; got 6"):
        refuse_out_of_range("grouped_query_attention", "key_lengths", torch.tensor([6]), 5)


def test_inputs_are_not_written_to_and_layouts_do_not_matter() -> None:
    x = torch.randn(2, 40, 3, 8)
    query, key, value = x.transpose(1, 2), x.transpose(1, 2).flip(-1), torch.randn(2, 3, 5, 40).mT
    copies = [t.clone() for t in (query, key, value)]
    mask = torch.rand(40, 80)[:, ::2] > 0.4
    got = attend(query, key, value, mask=mask)
    again = attend(*[t.contiguous() for t in copies], mask=mask.contiguous())
    assert_within_budgets([got, again], "scaled_dot_product_attention", *copies, mask=mask)
    for tensor, copy in zip((query, key, value), copies, strict=True):
        assert torch.equal(tensor, copy)


def test_scale_is_applied_and_wrong_arguments_are_refused() -> None:
    x = torch.randn(4, 6, dtype=torch.float64)
    heads = x[None]
    assert_within_budgets(
        (attend(heads, heads, heads, scale=2.0), None), "grouped_query_attention", *[heads] * 3, scale=2.0
    )
    with pytest.raises(ValueError, match="6 features"):
        attend(x, x[:, :5], x)
    with pytest.raises(ValueError, match="3 rows"):
        attend(x, x[:3], x)
    with pytest.raises(ValueError, match="broadcasts"):
        attend(x, x, x, mask=torch.ones(3, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match="bool"):
        attend(x, x, x, mask=torch.ones(4, 4))
    with pytest.raises(ValueError, match="two dimensions"):
        attend(x, x, x[0])
    with pytest.raises(ValueError, match=r"expected batches that broadcast; got \(2,\), \(3,\), \(3,\)"):
        attend(torch.randn(2, 4, 6), torch.randn(3, 4, 6), torch.randn(3, 4, 6))
    with pytest.raises(TypeError, match=r"one floating dtype; got torch.float64, torch.float64, torch.float32"):
        attend(x, x, x.float())
    with pytest.raises(TypeError, match=r"one floating dtype; got torch.int64, torch.int64, torch.int64"):
        attend(x.long(), x.long(), x.long())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("causal", [False, True])
def test_functional_transforms(causal: bool) -> None:
    x = torch.randn(3, 9, 4, dtype=torch.float64)
    mask = torch.rand(9, 9) > 0.5
    mapped = torch.vmap(lambda q: attend(q, q, q, mask=mask, causal=causal))(x)
    results = [mapped, attend(x, x, x, mask=mask, causal=causal)]
    assert_within_budgets(results, "scaled_dot_product_attention", x, x, x, mask=mask, causal=causal)
    gradient = torch.func.grad(lambda q: attend(q, q, q, mask=mask, causal=causal).sum())(x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("n", "m"), [(5, 5), (3, 7), (7, 3), (4, 1), (1, 4)])
@pytest.mark.parametrize("kind", ["none", "random", "padding"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_preparation_for_an_accelerator_gives_the_formula(n: int, m: int, kind: str, causal: bool) -> None:
    """Padded head sizes, opened rows and squared causal calls also work on the CPU."""
    leaves = [torch.randn(2, 3, *s, dtype=torch.float32, requires_grad=True) for s in ((n, 5), (m, 5), (m, 3))]
    mask = masks(kind, (2, 3), n, m)
    query, key, value = leaves
    got = cuda_fused.dense(query, key, value, mask, causal, 0.5)
    # A scale of ½ on 5 features.
    assert_within_budgets(got, "dot_product_attention", query / 2, key, value, mask=mask, causal=causal)
    assert all(g.isfinite().all() for g in torch.autograd.grad(got.sum(), leaves))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("path", ["llvm", "pytorch"])
def test_many_rows_in_float16_show_no_common_error(path: str, masked: bool) -> None:
    """Errors that are independent, times their results, sum to less than 8 standard deviations."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2**14, n, 8, generator=draw).half() for n in (1, 8, 8))
    mask = torch.rand(2**14, 1, 8, generator=draw) < (0.5 if masked else 1.0)
    mask[..., 0] = True
    scores = (query.double() @ key.double().mT * 8**-0.5).masked_fill(~mask, -torch.inf)
    expected = torch.softmax(scores, -1) @ value.double()
    with forcing(path):
        got = attend(query, key, value, mask=mask if masked else None)
    terms = ((got.double() - expected) * expected).flatten(1).sum(1)
    assert float(terms.sum().abs()) < 8 * float(terms.square().sum().sqrt())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["all keys", "causal", "masked"])
@pytest.mark.parametrize("keys", [4, 16, 40, 600])
@pytest.mark.parametrize(("where", "bad"), [("query", torch.nan), ("key", torch.inf), ("query", -torch.inf)])
@pytest.mark.parametrize("tracked", [False, True])
def test_scores_that_are_not_finite_give_nan(
    dtype: torch.dtype, kind: str, keys: int, where: str, bad: float, tracked: bool
) -> None:
    draw = torch.Generator().manual_seed(keys)
    query, key, value = (torch.randn(2, *s, generator=draw).to(dtype) for s in ((40, 8), (keys, 8), (keys, 3)))
    (query if where == "query" else key)[0, 1, 3] = bad
    allowed = torch.ones(2, 40, keys, dtype=torch.bool)
    if kind == "causal":
        allowed = allowed.tril()
    if kind == "masked":
        allowed[:, ::2, 1] = False
    inputs = (x.double().numpy() for x in (query, key, value))
    expected = np.isnan(REFERENCE["scaled_dot_product_attention"](*inputs, mask=allowed.numpy()))
    assert expected.any()
    with forcing("pytorch"):
        mask = allowed if kind == "masked" else None
        got = attend(query.requires_grad_(tracked), key, value, mask=mask, causal=kind == "causal")
    assert np.array_equal(got.isnan().numpy(), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_nan_over_few_keys_keep_the_dtype(dtype: torch.dtype, causal: bool) -> None:
    query, key, value = (torch.randn(2, n, 8, dtype=dtype) for n in (3, 4, 4))
    query[0, 1] = torch.nan
    with forcing("pytorch"):
        got = attend(query, key, value, causal=causal)
    assert got.dtype is dtype
    assert got.isnan().any(-1).tolist() == [[False, True, False], [False] * 3]


def test_no_kernel_of_an_accelerator_is_asked_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's kernels add 0·Σq without keys, which is NaN where the sum overflows."""
    monkeypatch.setattr(sdpa, "_on_accelerator", None)
    query, empty = torch.empty(2, 5, 4, device="meta"), torch.empty(2, 0, 4, device="meta")
    assert attend(query, empty, empty).shape == (2, 5, 4)
