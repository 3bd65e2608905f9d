"""What is read of the tools' output, and where a mistake is said to be.

Headers and lines are those of real logs: NVIDIA/nccl-tests issues 107 (without MPI), 252 and 128,
NVIDIA/nccl issue 340 (2020, without `redop`), a public log of version 2.18.3 (all_gather_perf on
two GB10), and of Gloo's benchmark (pytorch/gloo issues 21 and 248, the README of `hydra`, which is
built on Gloo).
"""

from pathlib import Path

import pytest

from gcsim.analysis.calibration.measurements.collectives import Reading, Stated
from gcsim.analysis.calibration.measurements.reading import read
from gcsim.errors import InputError

DATA = Path(__file__).parent / "data"

HEADER = """\
# nccl-tests version 2.18.3 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 4294967296 step: 2(factor) warmup iters: 10
#
# Using devices
#  Rank  0 Group  0 Pid 548419 on spark-fb97 device  0 [000f:01:00] NVIDIA GB10
#  Rank  1 Group  0 Pid 546336 on spark-4440 device  0 [000f:01:00] NVIDIA GB10
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""  # noqa: E501
GATHERED = """\
  1073741824     134217728     float    none      -1  27211.0   39.46   19.73       0  25806.7   41.61   20.80       0
  2147483648     268435456     float    none      -1  50573.4   42.46   21.23       0  48690.4   44.10   22.05       0
  4294967296     536870912     float    none      -1  96986.7   44.28   22.14       0  95610.9   44.92   22.46       0
# Out of bounds values : 0 OK
"""  # noqa: E501


def reading(tmp_path: Path, text: str, stated: Stated | None = None) -> Reading:
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    (found,) = read([path], stated=stated)
    return found


def problems(tmp_path: Path, text: str, stated: Stated | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        reading(tmp_path, text, stated)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]


# --- nccl-tests ----------------------------------------------------------------------------------


def test_a_log_of_nccl_tests_with_ranks_on_two_machines() -> None:
    (found,) = read([DATA / "nccl_tests_8_ranks.txt"])
    assert found.tool == "nccl-tests, NCCL 2.18.5+cuda12.2"
    assert "1 lines of size 0" in found.notes[0]
    assert [(point.nbytes, round(point.seconds, 9)) for point in found.measurements] == [
        (536870912, 10052e-6), (1073741824, 20079e-6), (2147483648, 39871e-6),
        (4294967296, 77194e-6), (8589934592, 158070e-6),
    ]  # fmt: skip  # out of place
    for point in found.measurements:
        assert (point.collective, point.ranks, point.devices_per_node) == ("all_reduce", 8, 4)
        assert (point.element, point.algorithm) == (4, "nccl")
    assert found.measurements[0].place.endswith("nccl_tests_8_ranks.txt:22")


def test_the_size_of_an_all_gather_is_that_of_all_blocks(tmp_path: Path) -> None:
    # the tool's own bandwidth says so: algbw = size / time, busbw = algbw (p - 1) / p
    found = reading(tmp_path, HEADER + GATHERED)
    first = found.measurements[0]
    assert first.collective == "all_gather"
    assert first.nbytes / first.seconds / 1e9 == pytest.approx(39.46, abs=0.005)
    assert found.tool == "nccl-tests 2.18.3"


def test_columns_of_an_old_version_without_redop_and_root(tmp_path: Path) -> None:
    text = """\
./broadcast_perf is another test; this is: ./all_gather_perf -b 8 -e 128M -f 2 -g 2
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
#   Rank  0 Pid  23638 on here device  0 [0x00] Tesla V100-SXM2-32GB
#   Rank  1 Pid  23638 on here device  1 [0x00] Tesla V100-SXM2-32GB
#                                           out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
       65536          8192   float    16.57    1.98    1.98  0e+00    13.83    2.37    2.37  0e+00
      131072         16384   float    23.07    2.84    2.84  0e+00    18.39    3.56    3.56  0e+00
    67108864       8388608   float   1.5e+03  21.40   21.40  0e+00   1560.9   21.50   21.50  0e+00
"""
    found = reading(tmp_path, text)
    seconds = [point.seconds for point in found.measurements]
    assert seconds == pytest.approx([16.57e-6, 23.07e-6, 1500e-6])
    assert {point.devices_per_node for point in found.measurements} == {2}  # one machine


def test_a_redop_that_is_empty_moves_no_column(tmp_path: Path) -> None:
    text = HEADER + GATHERED.replace("none      -1", "          -1")
    found = reading(tmp_path, text)
    seconds = [point.seconds for point in found.measurements]
    assert seconds == pytest.approx([27211e-6, 50573.4e-6, 96986.7e-6])


def test_without_the_programs_name_the_columns_decide_or_the_user(tmp_path: Path) -> None:
    header = HEADER.replace("all_gather_perf", "unknown")
    reduced = GATHERED.replace("none", " sum")
    found = reading(tmp_path, header + reduced)
    assert {point.collective for point in found.measurements} == {"reduce_scatter"}
    ambiguous = problems(tmp_path, header + GATHERED)
    assert "a.txt:12: error: this may be an all-gather or an all-to-all" in ambiguous[0]
    told = reading(tmp_path, header + GATHERED, Stated(collective="all_to_all"))
    assert {point.collective for point in told.measurements} == {"all_to_all"}


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        ("  268435456     float    none      -1  50573.4", "  268435456     float", 13, "cut off"),
        ("50573.4", "50573.4[0] NCCL", 13, "is not a time in microseconds"),
        ("50573.4", "0.00", 13, "a time of 0.00 us; times are positive"),
        ("268435456     float", "268435456     thing", 13, "'thing' is not a type of nccl-tests"),
        ("Rank  1", "Rank  0", 3, "ran separately; build nccl-tests with MPI=1"),
        ("Rank  1 Group  0", "Rank  1 Group  1", 3, "split into 2 groups"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(
    tmp_path: Path, before: str, after: str, line: int, message: str
) -> None:
    text = HEADER + GATHERED
    assert before in text
    found = problems(tmp_path, text.replace(before, after))
    assert found[0].startswith(f"a.txt:{line}: error: ")
    assert message in found[0]


# --- Gloo's benchmark ----------------------------------------------------------------------------


def test_a_log_of_gloos_benchmark() -> None:
    (found,) = read([DATA / "gloo_benchmark_4_processes.txt"])
    assert found.line_rate is None
    sizes = [point.nbytes for point in found.measurements]
    assert (sizes[0], sizes[-1]) == (16, 4 * 67108864)  # float32: told by its GiB/s
    assert found.measurements[-1].seconds == 0.325352  # the median, p50
    for point in found.measurements:
        assert (point.ranks, point.collective) == (4, "all_reduce")
        assert (point.algorithm, point.element) == ("gloo_ring", 4)


def test_a_giga_of_gloo_is_2_to_the_30_and_tells_half_precision(tmp_path: Path) -> None:
    # 5,000,000 elements in 17,251 us at 1.073 GB/s (pytorch/gloo issue 248): 4 bytes an element,
    # also with 2^30; the same line at half that rate is float16
    line = "    5000000      14301      17251      21113      23075        {}        961\n"
    head = """\
Device:      tcp, pci=0000:04:00.0, iface=enp4s0, speed=40000, addr=[10.10.10.1]
Algorithm:   allreduce_ring_chunked
Options:     processes=2, inputs=1, threads=1

   elements   min (us)   p50 (us)   p99 (us)   max (us)   avg (GB/s)    samples
       1000         10         20         30         40        0.186        961
      10000        100        200        300        400        0.186        961
"""
    full = reading(tmp_path, head + line.format("1.073"))
    half = reading(tmp_path, head + line.format("0.537"))
    assert [point.nbytes for point in full.measurements] == [4000, 40000, 20_000_000]
    assert [point.nbytes for point in half.measurements] == [2000, 20000, 10_000_000]
    assert full.line_rate == 5e9  # speed=40000 are Mbit/s


@pytest.mark.parametrize(
    ("before", "after", "place", "message"),
    [
        ("processes=4, ", "", "a.txt:1", "the number of processes is missing"),
        ("processes=4, ", "processes=400000, ", "a.txt:6", "400,000 ranks are more than 100,000"),
        ("        684 ", "          0 ", "a.txt:6", "a median of 0; times are positive; --nanos"),
        ("       1000\n         64", "\n         64", "a.txt:6", "the line is cut off"),
    ],
)
def test_what_is_wrong_with_a_log_of_gloo(
    tmp_path: Path, before: str, after: str, place: str, message: str
) -> None:
    text = (DATA / "gloo_benchmark_4_processes.txt").read_text(encoding="utf-8")
    assert before in text
    found = problems(tmp_path, text.replace(before, after))
    assert found[0].startswith(f"{place}: error: ")
    assert message in found[0]


# --- CSV -----------------------------------------------------------------------------------------

CSV = """\
# backend: gloo
# line_rate: 100 Mbit/s
ranks,collective,seconds,bytes

2,all_reduce,0.1,1000
2,AllReduce,0.2,2000
2,all-gather,0.3,3000
"""


def test_a_csv_in_any_order_of_columns(tmp_path: Path) -> None:
    found = reading(tmp_path, CSV)
    assert [(p.collective, p.nbytes, p.seconds) for p in found.measurements] == [
        ("all_reduce", 1000, 0.1), ("all_reduce", 2000, 0.2), ("all_gather", 3000, 0.3),
    ]  # fmt: skip
    assert {point.algorithm for point in found.measurements} == {"gloo"}
    assert found.line_rate == 12.5e6


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("2,AllReduce,0.2,2000", "2,AllReduce,0.2",
         "a.txt:6: error: has 3 values, the header 4; is the line cut off?"),
        ("0.2,", "0,", "a.txt:6: error: a time of 0 s; times are positive"),
        ("0.2,", "1e302,", "a.txt:6: error: a time of 1e+302 s is more than a day"),
        ("0.2,", "nan,", "a.txt:6: error: seconds: 'nan' is not a number"),
        (",2000", ",2e3", "a.txt:6: error: bytes: '2e3' is not a number of bytes (1 or more)"),
        (",2000", f",{2**34 + 1}", "a.txt:6: error: 17,179,869,185 bytes are more than 16 GiB"),
        ("2,AllReduce", "100001,AllReduce", "a.txt:6: error: 100,001 ranks are more than 100,000"),
        ("2,AllReduce", "1,AllReduce", "a.txt:6: error: ranks: '1' is not a number of ranks"),
        ("AllReduce", "broadcast", "a.txt:6: error: 'broadcast' is not a collective that gcsim"),
        ("seconds", "time", "a.txt:3: error: the table needs the headings collective, ranks, "
         "bytes, seconds; found: ranks, collective, time, bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_csv(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert problems(tmp_path, CSV.replace(before, after, 1))[0].startswith(message)


def test_a_csv_may_say_the_type_of_the_elements(tmp_path: Path) -> None:
    text = "dtype,collective,ranks,bytes,seconds\n" + "".join(
        f"{dtype},all_reduce,2,{nbytes},0.1\n"
        for dtype in ("bfloat16", "float64")
        for nbytes in (1000, 2000, 4000)
    )
    found = reading(tmp_path, text).measurements
    assert {(point.dtype, point.element) for point in found} == {("bfloat16", 2), ("float64", 8)}
    (wrong,) = problems(
        tmp_path, text.replace("float64,all_reduce,2,1000", "float,all_reduce,2,1000")
    )
    assert wrong.startswith(
        "a.txt:5: error: dtype: 'float' is not a type of all-reduces; did you mean"
    )


def test_a_thousand_wrong_lines_are_not_listed(tmp_path: Path) -> None:
    text = "collective,ranks,bytes,seconds\n" + "all_reduce,2,1,0\n" * 1000
    found = problems(tmp_path, text)
    assert len(found) == 6
    assert found[-1] == "a.txt:7: error: and 995 lines more"


# --- all files together --------------------------------------------------------------------------


def test_different_numbers_of_ranks_need_a_choice(tmp_path: Path) -> None:
    text = CSV + "4,all_reduce,0.1,1000\n4,all_reduce,0.2,2000\n4,all_reduce,0.4,4000\n"
    (found,) = problems(tmp_path, text)
    assert found == (
        "a.txt:5: error: different numbers of ranks were measured: 2 at a.txt:5, 4 at a.txt:8; "
        "select one with --ranks 4; given several times, --ranks fits one link to all of them"
    )
    assert len(reading(tmp_path, text, Stated(ranks=(4,))).measurements) == 3
    assert len(reading(tmp_path, text, Stated(ranks=(2, 4))).measurements) == 6
    (missing,) = problems(tmp_path, text, Stated(ranks=(8,)))
    assert missing.startswith("--ranks: error: nothing was measured on 8 ranks; there are")


def test_two_sizes_are_too_few(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, CSV.replace("3000", "2000"))
    assert found.startswith("a.txt: error: 2 different sizes were measured; a fit needs 3")


def test_an_unknown_format_names_those_that_are_known(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "PK\x03\x04")
    assert found.startswith("a.txt: error: has an unknown format")
    assert "output of nccl-tests, from its '# nThread ...' line on (nccl-tests)" in found


def test_a_pickle_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\x80\x04\x95\x0c\x00\x00\x00\x8c\x02os\x8c\x06system\x93.")
    with pytest.raises(InputError, match="is a pickle; a pickle runs code when it is loaded"):
        read([path])
