"""The meter says which kernel ran, on how much it worked, and with a clock how long it took."""

import importlib
import inspect
import itertools
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

import gcsim.compressors
from gcsim.compressors.coding.indices.index_coding import Coder
from gcsim.compressors.kernels import total
from gcsim.compressors.meter import count_random, kernel, kernel_name, segment, unpriced
from tests.compressors.shared import encode_indices


def names(call: Callable[[], object]) -> list[str]:
    with segment() as recorder:
        call()
    return [cost.name for cost in recorder.fixed]


def test_an_own_kernel_is_called_by_file_and_function_with_its_variant() -> None:
    indices = torch.tensor([1, 5, 9])
    assert names(lambda: encode_indices(indices, 100, Coder.RICE)) == [
        "index_coding.encode_indices:rice"
    ]


def test_a_users_kernel_keeps_its_whole_path() -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        return x

    assert kernel_name(mine).startswith(f"{__name__}.")


KERNELS = {
    "adacomp": "_add _add_words _take",
    "adaptive_levels": "bucket_sums",
    "binary": "add_chosen bits_above random_bits",
    "bingrad_b": "class_means",
    "bingrad_pb": "optimal_bounds",
    "bitmap": "add_at_bits at_bits unite",
    "bloom": "bloom_filter bloom_positives",
    "bucket_levels": "_add_from_tables clip_to_spread round_between search_levels",
    "ce_sgd": "inner_product",
    "ce_sgd_selection": "_choose",
    "ce_sgd_speculation": "find level_of",
    "columns": "add_and_sum_columns add_columns column_bits column_sums",
    "cser": "local_step",
    "dgc": "_next_velocity add_momentum",
    "dryden": "_add_and_count _largest_of_each_sign _means",
    "dynamic_8bit": "nearest_codes",
    "index_coding": "decode_indices encode_indices",
    "level_words": "decode_sparse encode_sparse",
    "levels": "add_packed_levels bucket_norms encode_levels",
    "marks": "add_and_mark at_least mark take",
    "narrow_floats": "add_looked_up largest_magnitude narrow",
    "natural": "add_powers to_powers",
    "packing": "pack_bits pack_signs unpack_bits unpack_signs",
    "pairs": "merged_pairs",
    "powersgd": "gaussian",
    "qsparse_local_sgd": "last_step local_step",
    "qsparse_messages": "from_sign_magnitude to_sign_magnitude",
    "rotated": "rotate",
    "sampling": "_saturation block_sums draw draw_and_lower lift",
    "selection": "_sum kth_magnitude largest take_largest",
    "sidco": "excess",
    "signs": "add_signs fold fold_average fold_nesterov scaled_sign_bits write_signs",
    "sparse": "_add_checked _add_set _add_signs signed_words",
    "subsets": "distinct_positions",
    "table": "estimate sketch take_off",
    "tables": "add_table encode_table rounding_error",
    "terngrad": "magnitude_and_spread",
    "tk_ccd": "deal group_positions",
    "truncated": "add_cut cut",
    "variance": "_add_and_find",
    "variance_hybrid": "_add_and_send",
    "variance_words": "_add_words take_out",
    "votes": "add_votes more_than",
}
"""Functions by file. Calibrated device files hold these names: none may change or go."""


def test_kernels_keep_the_names_that_device_files_hold() -> None:
    wanted = {f"{file}.{name}": 1 for file in KERNELS for name in KERNELS[file].split()}
    found: Counter[str] = Counter()
    said: set[str] = set()
    for module in pkgutil.walk_packages(gcsim.compressors.__path__, "gcsim.compressors."):
        loaded = importlib.import_module(module.name)
        for value in vars(loaded).values():
            if inspect.isfunction(value) and value.__module__ == module.name:
                name = inspect.getclosurevars(value).nonlocals.get("running")
                found.update([name] if name else [])  # else nothing that `kernel` counts
        # a primitive's entry names kernels: those of a function, too, count once
        said.update(re.findall(r"\"(\w+\.\w+)[:\"]", inspect.getsource(loaded)))
    found.update(said & wanted.keys() - found.keys())
    assert found == wanted


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: x + 1, "aten.add"),
        (lambda x: x.half(), "aten._to_copy:float32_to_float16"),
        (lambda x: x.view(4, 4).sum(0), "aten.sum:some_dimensions"),
        (lambda x: x.sum(), "aten.sum"),
        (lambda x: x[torch.tensor([1, 2, 9])], "aten.index:2^4"),
        (lambda x: x[torch.tensor([9, 1, 2])], "aten.index:jumping:2^4"),
        # 16 numbers and a vector of 4 to 4: 32 FLOPs, 96 bytes, a third of a FLOP each
        (lambda x: x.view(4, 4) @ x[:4].view(4, 1), "aten.mm.along_0.25_flop_per_byte"),
        (lambda x: x.view(4, 4).t() @ x[:4].view(4, 1), "aten.mm.across_0.25_flop_per_byte"),
        (lambda x: x[:4].view(4, 1) @ x[:4].view(1, 4), "aten.mm.out_0.25_flop_per_byte"),
        (lambda x: torch.linalg.qr(x.view(8, 2)), "aten.linalg_qr.2_columns"),
    ],
)
def test_torchs_kernels_are_named_by_what_decides_on_their_speed(
    call: Callable[[torch.Tensor], object], name: str
) -> None:
    x = torch.arange(16, dtype=torch.float32)
    assert names(lambda: call(x))[-1] == name


def test_what_a_kernel_draws_belongs_to_it() -> None:
    @kernel("streaming")
    def noisy(x: torch.Tensor) -> None:
        count_random(8, 16)

    x = torch.zeros(10)
    with segment() as recorder:
        noisy(x)
        count_random(8, 16)
    own = kernel_name(noisy)
    assert [(c.kind, c.name, c.part, c.launches, c.nbytes) for c in total(recorder.fixed)] == [
        ("streaming", own, False, 1, 40),
        ("random", "", False, 0, 16),
        ("random", own, True, 0, 16),
    ]


@pytest.mark.parametrize(("elements", "reach"), [(1, 0), (4, 2), (5, 4), (16, 4), (17, 6)])
def test_gathering_kernels_say_how_far_they_reach(elements: int, reach: int) -> None:
    @kernel("gather_scatter")
    def gather(x: torch.Tensor) -> None:
        pass

    x = torch.zeros(elements)
    with segment() as recorder:
        gather(x)
    (found,) = total(recorder.fixed)
    assert found.name == f"{kernel_name(gather)}:2^{reach}"
    assert 4 ** (reach // 2) >= elements  # the power of four that holds all elements ...
    assert reach == 0 or 4 ** (reach // 2 - 1) < elements  # ... and the next one does not
    assert found.nbytes == 4 * elements


def ticking() -> Callable[[], float]:
    ticks: Iterator[int] = itertools.count()
    return lambda: float(next(ticks))


def test_a_clock_times_each_launch() -> None:
    @kernel("streaming")
    def step(x: torch.Tensor) -> None:
        x.add_(1)  # inside: neither counted nor seen by the clock

    x = torch.zeros(10)
    with segment(ticking()) as recorder:
        step(x)
        torch.zeros(5).add_(1)
    assert [(t.cost.name, t.cost.nbytes, t.seconds) for t in recorder.timed] == [
        (kernel_name(step), 40, 1.0),
        ("aten.zeros", 20, 1.0),
        ("aten.add_", 40, 1.0),
    ]


def test_a_stopwatch_counts_nothing_and_notes_what_is_left_out() -> None:
    @unpriced
    def check() -> None:
        pass

    @kernel("sort")
    def inner(x: torch.Tensor) -> torch.Tensor:
        check()  # part of the kernel: not left out
        return x

    with segment(ticking(), counting=False) as recorder:
        inner(torch.zeros(3))
        check()
        torch.zeros(3)
    assert recorder.left_out == 1.0
    assert not recorder.fixed
    assert not recorder.timed
