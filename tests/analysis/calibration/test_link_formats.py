"""What is read of iperf3, ping, DeepSpeed, Horovod, nccl-tests' JSON, a flight recorder and
a profile.

The files in `data/` have the form in which the tools write them: iperf3 3.12 (src/iperf_locale.c,
iperf_api.c), iputils 20221126 (ping/ping_common.c), DeepSpeed 0.15.4 (deepspeed/utils/
comms_logging.py), Horovod 0.28 (horovod/common/timeline.cc), nccl-tests 2.18 (src/util.cu), PyTorch
2.13 (FlightRecorderDetail.hpp), Kineto of 2026 (output_json.cpp). Their figures are put together,
those of nccl-tests from the log beside it.
"""

import json
from pathlib import Path

import pytest

from gcsim.analysis.calibration.link.direct import direct, report_direct
from gcsim.analysis.calibration.measurements.collectives import Reading, Stated
from gcsim.analysis.calibration.measurements.reading import read
from gcsim.errors import InputError
from gcsim.scenarios import catalog

DATA = Path(__file__).parent / "data"


def data(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def reading(folder: Path, text: str, stated: Stated | None = None) -> Reading:
    path = folder / "a.txt"
    path.write_text(text, encoding="utf-8")
    (found,) = read([path], stated=stated)
    return found


def problem(folder: Path, text: str, stated: Stated | None = None) -> str:
    with pytest.raises(InputError) as caught:
        reading(folder, text, stated)
    return str(caught.value.problems[0]).replace(f"{folder}/", "")


# --- iperf3 --------------------------------------------------------------------------------------


def test_what_the_receiver_got_of_all_streams_and_the_intervals_around_it(tmp_path: Path) -> None:
    found = reading(tmp_path, data("iperf3_2_streams.txt"))
    assert found.goodput is not None
    assert found.measurements == ()
    assert found.latency is None
    assert found.goodput.value == 9.22e9 / 8
    # of the intervals 9.38, 9.41 and 9.25 the 90th percentile; the omitted one does not count
    assert found.goodput.high * 8 == pytest.approx(9.404e9)
    assert found.goodput.low == found.goodput.value
    assert found.goodput.how == "TCP, 2 streams, 3.04 s"
    assert any("measure with -P 1" in note for note in found.notes)


def test_the_json_says_the_same_with_more_digits(tmp_path: Path) -> None:
    found = reading(tmp_path, data("iperf3.json"))
    assert found.goodput is not None
    assert found.goodput.value == pytest.approx(4_690_000_000 / 4.002)
    assert found.goodput.low * 8 == pytest.approx(9.31e9 + 0.3 * 0.09e9)
    assert any("round trips of 813 us under this load" in note for note in found.notes)


def test_bytes_count_in_1024s_and_both_directions_of_bidir_count(tmp_path: Path) -> None:
    text = """\
[ ID][Role] Interval           Transfer     Bitrate         Retr
[  5][TX-C]   0.00-1.00   sec   302 MBytes  302 MBytes/sec   20             sender
[  5][TX-C]   0.00-1.01   sec   297 MBytes  300 MBytes/sec                  receiver
[  9][RX-C]   0.00-1.00   sec   428 MBytes  428 MBytes/sec    1             sender
[  9][RX-C]   0.00-1.01   sec   424 MBytes  400 MBytes/sec                  receiver
"""
    found = reading(tmp_path, text)
    assert found.goodput is not None
    assert found.goodput.value == 350 * 1024**2
    assert (found.goodput.low, found.goodput.high) == (300 * 1024**2, 400 * 1024**2)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("Interval           Transfer     Bitrate ", "Interval           Transfer     Speed ",
         "a.txt:4: error: the table needs the headings [ ID], Interval, Transfer, Bitrate; found: "
         "[ ID], Interval, Transfer, Speed"),
        ("receiver", "recei", "a.txt:1: error: has no result: no line ends with 'sender' or"),
        ("9.22 Gbits", "0.00 Gbits", "a.txt:1: error: nothing was received"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_iperf3(tmp_path: Path, before: str, after: str, message: str) -> None:
    text = data("iperf3_2_streams.txt").replace(before, after)
    assert text != data("iperf3_2_streams.txt")
    if "recei" in before:
        text = text.replace("sender", "sen")
    assert problem(tmp_path, text).startswith(message)


def test_a_failed_test_of_iperf3_says_why(tmp_path: Path) -> None:
    body = {"start": {"version": "iperf 3.12"}, "intervals": [], "test_start": 0, "end": {}}
    failed = json.dumps(body | {"error": "unable to connect to server: Connection refused"})
    assert "the test failed: 'unable to connect to server" in problem(tmp_path, failed)
    assert "has no end.sum_received.bits_per_second" in problem(tmp_path, json.dumps(body))
    cut = problem(tmp_path, data("iperf3.json")[:2000])
    assert "a.txt:105:6: error: is cut off or not JSON" in cut


# --- ping ----------------------------------------------------------------------------------------


def test_half_of_the_median_round_trip_without_the_first(tmp_path: Path) -> None:
    found = reading(tmp_path, data("ping.txt"))
    assert found.latency is not None
    # 0.118, 0.119, 0.121 and 0.127 ms: median 0.120, 90th percentile 0.121 + 0.7 * 0.006
    assert found.latency.value == pytest.approx(60e-6)
    assert found.latency.low == pytest.approx(59e-6)
    assert found.latency.high == pytest.approx(0.1252e-3 / 2)
    assert "1 of 6 packets were lost" in found.notes[0]


def test_without_single_replies_the_summary_tells(tmp_path: Path) -> None:
    lines = data("ping.txt").splitlines(keepends=True)
    found = reading(tmp_path, lines[0] + "".join(lines[6:]))
    assert found.latency is not None
    assert found.latency.value == pytest.approx(0.266e-3 / 2)
    assert found.latency.high == pytest.approx((0.266e-3 + 0.289e-3) / 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.1.5 ms\n", "a.txt:1: error: '0.1.5' is"),
        ("64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=-1 ms\n", "is not a round trip in mill"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_ping(tmp_path: Path, text: str, message: str) -> None:
    assert message in problem(tmp_path, text)


# --- a link of both ------------------------------------------------------------------------------


def test_goodput_of_one_file_and_latency_of_the_other() -> None:
    readings = read([DATA / "iperf3.json", DATA / "ping.txt"])
    found = direct(readings, line_rate=1.25e9, name="mine").link
    assert (float(found.bandwidth), float(found.latency)) == (1.25e9, 60e-6)
    assert float(found.efficiency) == pytest.approx(4_690_000_000 / 4.002 / 1.25e9, rel=1e-4)
    # ping does not see the programs: the range ends by the width of the catalogue's beyond
    like = catalog.link("10gbe").latency_range
    assert like is not None
    assert found.latency_range is not None
    low, high = map(float, found.latency_range)
    assert low == pytest.approx(59e-6)
    assert high == pytest.approx(0.1252e-3 / 2 + float(like[1] - like[0]))


def test_what_is_missing_keeps_the_catalogues_range() -> None:
    like = catalog.link("10gbe")
    fast = direct(read([DATA / "iperf3.json"]), line_rate=None, name="mine")
    assert fast.link.latency_range == like.latency_range
    assert fast.link.efficiency == 1
    assert "not measured: as 10gbe" in {f[0]: f[3] for f in fast.figures}["latency"]
    near = direct(read([DATA / "ping.txt"]), line_rate=1.25e9, name="mine")
    assert near.link.efficiency_range == like.efficiency_range
    with pytest.raises(InputError, match="not the bandwidth"):
        direct(read([DATA / "ping.txt"]), line_rate=None, name="mine")


# --- nccl-tests, JSON ----------------------------------------------------------------------------


def test_the_json_of_nccl_tests_is_the_log() -> None:
    (log,) = read([DATA / "nccl_tests_8_ranks.txt"])
    (found,) = read([DATA / "nccl_tests_8_ranks.json"])
    assert found.tool == "nccl-tests, NCCL 2.18.5"
    for one, other in zip(found.measurements, log.measurements, strict=True):
        assert (one.collective, one.ranks, one.devices_per_node) == ("all_reduce", 8, 4)
        assert (one.nbytes, one.seconds, one.dtype) == (other.nbytes, other.seconds, other.dtype)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"results"', '"result"', "the table needs the headings config, results; found: version"),
        ('"size":536870912', '"bytes":1',
         "a.txt: results[1]: error: the table needs the headings size, type, out_of_place or "
         "in_place with a time; found: bytes, count"),
        ('"time":10052.0', '"time":-1', "a.txt: results[1]: error: a time of -1"),
        ('"float"', '"thing"', "a.txt: results[1]: error: 'thing' is not a type of nccl-tests"),
        ('"group":0,"pid":1887', '"group":1,"pid":1887', "a.txt: config: error: the ranks are"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_json(tmp_path: Path, before: str, after: str, message: str) -> None:
    text = data("nccl_tests_8_ranks.json")
    assert before in text
    (tmp_path / "a.txt").write_text(text.replace(before, after))
    with pytest.raises(InputError) as caught:
        read([tmp_path / "a.txt"], "nccl-tests-json")
    assert message in str(caught.value.problems[0]).replace(f"{tmp_path}/", "")


# --- DeepSpeed -----------------------------------------------------------------------------------


def test_the_summary_of_deepspeed(tmp_path: Path) -> None:
    found = reading(tmp_path, data("deepspeed_8_ranks.txt"))
    points = {(p.collective, p.nbytes): p for p in found.measurements}
    assert {p.ranks for p in found.measurements} == {8}  # 13.55 / 14.35 is 7 / 8
    assert points["all_reduce", 100 << 20].seconds == pytest.approx(74.42e-3)
    assert points["all_gather", 8 * (6 << 20)].seconds == pytest.approx(17.96e-3)
    assert points["reduce_scatter", round(678.86 * (1 << 20))].seconds == pytest.approx(252.81e-3)
    assert any("left out: barrier, broadcast" in note for note in found.notes)


def test_where_stragglers_are_told_apart_their_wait_does_not_count(tmp_path: Path) -> None:
    titles = ("Comm. Op", "Message Size", "Count", "Total comm lat(ms)", "Total straggler(ms)",
              "Avg comm lat(ms)", "Avg straggler(ms)")  # fmt: skip
    rows = [("", f"{size} MB", "3", "30.00", "9.00", f"{size}.00", "3.00") for size in (10, 20, 40)]
    text = (
        data("deepspeed_8_ranks.txt")
        + "_" * 31 + "\nBreakdown with straggler effect\n" + "-" * 31 + "\n"
        + "".join(f"{title: <20}" for title in titles) + "\nall_reduce\n"
        + "".join("".join(f"{cell: <20}" for cell in row) + "\n" for row in rows)
    )  # fmt: skip
    found = reading(tmp_path, text)
    assert [p.seconds for p in found.measurements] == [0.01, 0.02, 0.04]
    assert {p.ranks for p in found.measurements} == {8}


def test_hosts_before_lines_and_lines_of_other_ranks_move_nothing(tmp_path: Path) -> None:
    plain = reading(tmp_path, data("deepspeed_8_ranks.txt")).measurements
    lines = [f"worker-0: {line}\n" for line in data("deepspeed_8_ranks.txt").splitlines()]
    lines[5:5] = ["worker-1: [2025-03-04 10:00:01,002] [INFO] step 20\n", "worker-1: done\n"]
    mixed = reading(tmp_path, "".join(["worker-1:   12 parameters\n", *lines])).measurements
    told = [(p.collective, p.nbytes, p.seconds, p.ranks) for p in plain]
    assert [(p.collective, p.nbytes, p.seconds, p.ranks) for p in mixed] == told


def test_verbose_lines_of_old_and_new_versions(tmp_path: Path) -> None:
    # the second form: DeepSpeed 0.7 (docs/_tutorials/comms-logging.md), with `rank=0 |`, two blanks
    lines = [
        f"[2025-03-04 10:00:00,123] [INFO] [logging.py:128:log_dist] [Rank 0] {rank}comm op: "
        f"all_reduce{caller} | time (ms): {size}.00 | msg size: {size}.0 MB | algbw (Gbps): "
        f"100.00{blank}| busbw (Gbps): 75.00"
        for size, rank, caller, blank in (
            (1, "", "", " "), (2, "rank=0 | ", "", "  "), (4, "", " | [Caller Func: f]", " "),
        )
    ]  # fmt: skip
    found = reading(tmp_path, "\n".join(lines))
    assert [(p.nbytes >> 20, p.seconds, p.ranks) for p in found.measurements] == [
        (1, 0.001, 4), (2, 0.002, 4), (4, 0.004, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("Avg Latency(ms)", "Avg Time(ms)   ",
         "a.txt:1: error: the table needs the headings Comm. Op, Message Size, Count, Avg "
         "Latency(ms), busbw_avg (Gbps); found: Comm. Op, Message Size, Count, Total Latency(ms), "
         "Avg Time(ms)"),
        ("512.0 KB ", "512.0 XB ", "a.txt:5: error: is not a line under Message Size, Count"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_deepspeed(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    text = data("deepspeed_8_ranks.txt").replace("reduce_scatter_tensor", "reduce")
    assert message in problem(tmp_path, text.replace(before, after))


def test_ranks_that_bandwidths_do_not_tell_are_asked_for(tmp_path: Path) -> None:
    text = data("deepspeed_8_ranks.txt").replace("19.73", "22.54").replace("157.69", "180.21")
    text = text.replace("18.52", "21.17").replace("19.57", "22.37").replace("19.62", "22.42")
    text = text.replace("12.55", "14.35")
    assert "the number of ranks is missing" in problem(tmp_path, text)
    found = reading(tmp_path, text, Stated(ranks=(16,)))
    assert {p.ranks for p in found.measurements} == {16}


# --- Horovod -------------------------------------------------------------------------------------


def test_a_timeline_of_horovod_with_fused_tensors() -> None:
    (found,) = read([DATA / "horovod_4_ranks.json"])
    sizes = sorted({p.nbytes for p in found.measurements})
    # fc2; fc1 with its bias, which were fused; conv: float32
    assert sizes == [4 * 10 * 512, 4 * (512 * 1024 + 512), 4 * 2048 * 2048]
    assert {(p.ranks, p.algorithm, p.collective) for p in found.measurements} == {
        (4, "gloo", "all_reduce")
    }
    times = sorted(p.seconds for p in found.measurements if p.nbytes == sizes[1])
    assert times == pytest.approx([3.4e-3, 3.44e-3], abs=2e-6)
    assert any("GLOO_BCAST" in note for note in found.notes)


def test_a_timeline_that_names_no_rank_needs_them(tmp_path: Path) -> None:
    events = [e for e in json.loads(data("horovod_4_ranks.json")) if e["ph"] != "X"]
    assert "set it with --ranks" in problem(tmp_path, json.dumps(events))
    found = reading(tmp_path, json.dumps(events), Stated(ranks=(2,)))
    assert {p.ranks for p in found.measurements} == {2}


# --- PyTorch's flight recorder -------------------------------------------------------------------


def test_durations_of_a_flight_recorder() -> None:
    (found,) = read([DATA / "flight_recorder_4_ranks.json"])
    points = [(p.collective, p.nbytes, p.seconds) for p in found.measurements]
    assert points[:3] == [
        ("all_reduce", 4 * 262144, 0.911e-3),
        ("all_reduce", 4 * 6553600, 18.02e-3),
        ("all_reduce", 4 * 2097152, 5.921e-3),
    ]
    last = found.measurements[-1]
    assert (last.collective, last.nbytes) == ("all_gather", 4 * 2_000_000)
    assert last.seconds == pytest.approx(2.91e-3)
    assert {(p.ranks, p.algorithm, p.dtype) for p in found.measurements} == {(4, "nccl", "float32")}
    notes = "\n".join(found.notes)
    assert "3 all_reduce of 25 MiB" in notes
    assert "left out: nccl:broadcast" in notes
    assert "1 collective without a duration left out" in notes


def test_a_flight_recorder_without_durations_says_what_to_set(tmp_path: Path) -> None:
    body = json.loads(data("flight_recorder_4_ranks.json"))
    for entry in body["entries"]:
        entry.pop("duration_ms", None)
    said = problem(tmp_path, json.dumps(body))
    assert "has the sizes of collectives (3 all_reduce of 1 MiB" in said
    assert "TORCH_NCCL_ENABLE_TIMING=1" in said
    for entry in body["entries"]:
        entry["profiling_name"] = entry["profiling_name"].replace("nccl", "gloo")
    assert "it does not time Gloo" in problem(tmp_path, json.dumps(body))


def test_of_several_ranks_dumps_the_shortest_duration_counts(tmp_path: Path) -> None:
    body = json.loads(data("flight_recorder_4_ranks.json"))
    for number in range(2):
        for entry in body["entries"]:
            if "duration_ms" in entry:  # rank 1 waits longer, but where it comes last
                shorter = number == 1 and entry["collective_seq_id"] % 3 == 0
                entry["duration_ms"] += -0.5 if shorter else number
        (tmp_path / f"fr_{number}.json").write_text(json.dumps(body))
    alone = read([tmp_path / "fr_0.json"])[0].measurements
    both = read([tmp_path / "fr_0.json", tmp_path / "fr_1.json"])
    points = {p.call: p.seconds for one in both for p in one.measurements}
    assert sum(len(one.measurements) for one in both) == len(alone)
    for point in alone:
        last = int(point.call.split()[1]) % 3 == 0
        assert points[point.call] == pytest.approx(point.seconds - (0.5e-3 if last else 0))
    assert len(both[1].measurements) == sum(int(p.call.split()[1]) % 3 == 0 for p in alone)


def test_a_note_moves_no_cursor(tmp_path: Path) -> None:
    found = reading(tmp_path, data("ping.txt").replace("PING node-1", "PING 127.\x02"))
    link = direct([found], line_rate=1.25e9, name="mine")
    assert "127.\\x02 is this machine" in " ".join(" ".join(report_direct(link, [found])).split())


def test_ranks_of_a_flight_recorder_are_those_of_the_process_group(tmp_path: Path) -> None:
    text = data("flight_recorder_4_ranks.json").replace("[0, 1, 2, 3]", "[]")
    assert "set it with --ranks" in problem(tmp_path, text)
    found = reading(tmp_path, text, Stated(ranks=(8,), devices_per_node=2))
    assert {(p.ranks, p.devices_per_node) for p in found.measurements} == {(8, 2)}


# --- PyTorch's profiler --------------------------------------------------------------------------


def test_kernels_of_a_profile() -> None:
    """An all-gather's bytes are its output's, a reduce-scatter's its input's; what is no kernel,
    has no size or unequal parts is left out."""
    (found,) = read([DATA / "torch_profile_4_ranks.json"])
    assert [(p.collective, p.nbytes, p.seconds, p.dtype) for p in found.measurements] == [
        ("all_reduce", 4 * 262144, 0.911e-3, "float32"),
        ("all_reduce", 4 * 6553600, 18.02e-3, "float32"),
        ("all_reduce", 2 * 2097152, 5.921e-3, "float16"),
        ("all_gather", 4 * 2_000_000, 2.91e-3, "float32"),
        ("reduce_scatter", 4 * 2_000_000, 2.88e-3, "float32"),
    ]
    assert {(p.ranks, p.algorithm) for p in found.measurements} == {(4, "nccl")}
    assert "left out: broadcast, all_to_allv, ncclDevKernel_AllGather_RING_LL" in found.notes[1]


def test_of_several_ranks_profiles_the_shortest_kernel_counts(tmp_path: Path) -> None:
    body = json.loads(data("torch_profile_4_ranks.json"))
    (tmp_path / "0.json").write_text(json.dumps(body))
    for event in body["traceEvents"]:
        event["dur"] += -100 if event["args"].get("Seq") == 3 else 100
    (tmp_path / "1.json").write_text(json.dumps(body))
    both = read([tmp_path / "0.json", tmp_path / "1.json"])
    assert [p.call for p in both[0].measurements] == ["0 2", "0 4", "0 5", "0 6"]
    assert [p.call for p in both[1].measurements] == ["0 3"]
    for event in body["traceEvents"]:
        event["args"].pop("Seq", None)
    (tmp_path / "1.json").write_text(json.dumps(body))
    (alone,) = read([tmp_path / "1.json"])
    assert any("not numbered" in note for note in alone.notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dur": None}, "a duration of None us"),
        ({"args": {"In msg nelems": "x"}}, "has no NCCL kernel"),
    ],
)
def test_a_profile_with_mistakes_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    body = json.loads(data("torch_profile_4_ranks.json"))
    for event in body["traceEvents"]:
        event.update(change)
    assert said in problem(tmp_path, json.dumps(body))


# --- all -----------------------------------------------------------------------------------------


def test_a_profile_is_sent_to_the_scenario(tmp_path: Path) -> None:
    said = problem(tmp_path, '{"schemaVersion": 1, "traceEvents": []}')
    assert "has no NCCL kernel" in said
    assert "`compute: {profile: FILE}`" in said


def test_deep_nesting_is_a_mistake_of_the_file(tmp_path: Path) -> None:
    text = "[" * 100_000 + '"NEGOTIATE_ALLREDUCE" "ph"'
    assert problem(tmp_path, text).startswith("a.txt:1:2: error: is nested too deeply")
