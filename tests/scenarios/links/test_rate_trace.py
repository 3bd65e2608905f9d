"""Rates that change over time, as points and as files: what is read, and what is refused."""

from fractions import Fraction
from pathlib import Path

import pytest

from gcsim.errors import InputError, InternalError
from gcsim.scenarios.links.csv_table import MOST_POINTS, RATE_UNITS
from gcsim.scenarios.links.rate_trace import TraceSection, read_traces
from gcsim.scenarios.reading.checking import Section, check
from gcsim.scenarios.reading.document import read, read_file
from gcsim.scenarios.sections.link import LinkSection
from gcsim.simulator.network.rate_trace import RateTrace
from tests.scenarios.links.files import TRACED, File, built, csv, link, problem

MS = Fraction(1, 1000)
US = Fraction(1, 10**6)
MBIT = Fraction(10**6, 8)

# --- points ---


def test_points_make_a_trace_in_the_place_of_the_bandwidth() -> None:
    points = "[[0 s, 50 Mbit/s], [1 s, 20 Mbit/s]]"
    found = link(f"{{latency: 7 ms, trace: {{points: {points}, duration: 4 s, after: repeat}}}}")
    assert found.trace == RateTrace(
        times=(Fraction(0), Fraction(1)),
        rates=(50 * MBIT, 20 * MBIT),
        duration=Fraction(4),
        after="repeat",
    )
    assert found.rate == found.bandwidth == Fraction(50 + 3 * 20, 4) * MBIT  # on average
    # The last rate lasts as long as the ones before it; held for ever, it has no end.
    shorter = link(f"{{latency: 7 ms, trace: {{points: {points}, after: repeat}}}}")
    assert shorter.trace is not None
    assert shorter.trace.duration == 2
    held = link(f"{{latency: 7 ms, trace: {{points: {points}, after: hold}}}}")
    assert held.rate == 20 * MBIT


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("{points: [[0 s, 1 Mbit/s]]}", "a.yaml:3:3: error: network.trace: the rate after the "
         "end of the trace is missing; write `after: repeat` (it begins again) or "
         "`after: hold` (the last rate forever)"),
        ("{after: hold}", "network.trace: neither `file` nor `points` are given"),
        ("{file: c.csv, points: [[0 s, 1 B/s]], after: hold}", "both `file` and `points` are giv"),
        ("{points: [], after: hold}", "a.yaml:3:19: error: network.trace.points: must have at"),
        ("{points: [[1 s, 1 Mbit/s]], after: hold}", "network.trace: point 0 is at 1 s; the first "
         "is at 0 s; state the rate from 0 s"),
        ("{points: [[0 s, 1 B/s], [2 s, 1 B/s], [1 s, 1 B/s]], after: hold}", "network.trace: "
         "point 2 is at 1 s and comes after 2 s; times must ascend"),
        ("{points: [[0 s, 1 B/s], [1 s, -1 B/s]], after: hold}", "a.yaml:3:34: error: "
         "network.trace.points.1: -1 B/s is negative"),
        ("{points: [[0 s]], after: hold}", "points.0: ['0 s'] is not a time and a rate; write"),
        ("{points: [[0 s, 0 B/s]], after: hold}", "network.trace: the last rate, which holds for"),
        ("{points: [[0 s, 0 B/s], [1 s, 0 B/s]], after: repeat}", "network.trace: no rate that "
         "repeats is positive; nothing would ever get through"),
        ("{points: [[0 s, 1 B/s]], after: repeat}", "network.trace: the end of the last rate "
         "is missing: there is only one rate; write `duration:`, the length of the whole "
         "trace"),
        ("{points: [[0 s, 1 B/s], [1 s, 1 B/s], [3 s, 1 B/s]], after: repeat}", "is missing: "
         "the intervals are not all equal; write `duration:`"),
        ("{points: [[0 s, 1 B/s], [3 s, 1 B/s]], duration: 3 s, after: repeat}", "network.trace: "
         "the trace ends at 3 s, before its last rate begins"),
        ("{file: c.csv, after: never}", "network.trace.after = 'never': is not a choice; known: h"),
        ("{file: c.csv, after: hold}", "a.yaml:3:17: error: network.trace.file: there is no file "
         "c.csv; paths are relative to the scenario file's folder"),
        ("{file: ., after: hold}", "network.trace.file: there is no file "),
    ],
)  # fmt: skip
def test_a_mistake_in_a_trace_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in problem(f"network:\n  latency: 1 ms\n  trace: {trace}\n", tmp_path)


# --- files of rates ------------------------------------------------------------------------------


def test_a_file_says_what_points_say(tmp_path: Path) -> None:
    points = "[[0 s, 50.5 Mbit/s], [0.5 s, 0 B/s], [1 s, 2e1 Mbit/s]]"
    source = "given in the scenario (rates from c.csv)"
    wanted = link(
        f"{{latency: 1 ms, trace: {{points: {points}, after: repeat}}, source: {source}}}"
    )
    text = "# measured\nseconds,mbit_per_second\n0, 50.5\n\n 0.5 ,0\n# late\n1.0,2e1\n"
    assert csv(tmp_path, text) == wanted
    windows = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    assert csv(tmp_path, windows) == wanted
    assert csv(tmp_path, text.replace("seconds,mbit", "Seconds, Mbit")) == wanted


@pytest.mark.parametrize(
    ("unit", "per_second"),
    [("bit", Fraction(1, 8)), ("kbit", 125), ("mbit", 125_000), ("gbit", 125_000_000),
     ("byte", 1), ("kbyte", 1000), ("mbyte", 10**6), ("gbyte", 10**9)],
)  # fmt: skip
def test_the_header_says_the_unit(tmp_path: Path, unit: str, per_second: Fraction) -> None:
    found = csv(tmp_path, f"seconds,{unit}_per_second\n0,3\n1,6\n").trace
    assert found is not None
    assert found.rates == (3 * per_second, 6 * per_second)
    assert f"{unit}_per_second" in RATE_UNITS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c.csv: error: is empty; begin with seconds,mbit_per_second; units: bit_per_second"),
        ("seconds,mbit_per_second\n", "c.csv: error: has a header and no rates"),
        ("0,1\n1,2\n", "c.csv:1: error: '0,1' is not the header seconds,UNIT; begin with seconds"),
        (
            "seconds,mbits_per_second\n0,1\n",
            "c.csv:1: error: 'seconds,mbits_per_second' is not the header seconds,UNIT; did you "
            "mean 'mbit_per_second'?",
        ),
        (
            "seconds,mbit_per_second\n0,1\n1,x\n",
            "c.csv:3: error: 'x' is not a number; a row is a time in seconds, a comma and a rate",
        ),
        ("seconds,mbit_per_second\n0,1\n\n1,-2\n", "c.csv:4: error: -2 is negative"),
        ("seconds,mbit_per_second\n0,1,2\n", "c.csv:2: error: '0,1,2' has 3 values, not 2"),
        ("seconds,mbit_per_second\n0,\n", "c.csv:2: error: '' is not a number"),
        ("seconds,mbit_per_second\n0,1e99\n", "1e99 is neither 0 nor between 1e-12 and 1e15"),
        (
            "seconds,mbit_per_second\n0,1\n2,1\n1,1\n",
            "c.csv:4: error: line 4 is at 1 s and comes after 2 s; times must ascend",
        ),
        ("seconds,mbit_per_second\n1,1\n", "c.csv:2: error: line 2 is at 1 s; the first is at 0 s"),
        ("seconds,mbit_per_second\n0,0\n1,0\n", "c.csv: error: no rate that repeats is positive"),
        ("seconds,mbit_per_second\n0,1\n", "c.csv: error: the end of the last rate is missing"),
        (b"seconds,mbit_per_second\n0,\xff\n", "c.csv:2:1: error: is not UTF-8 text (byte 0xff)"),
        (b"#" * (1 << 20) + b"\n", "c.csv: error: is larger than 1 MiB"),
        (
            "seconds,bit_per_second\n" + "".join(f"{n},1\n" for n in range(MOST_POINTS + 1)),
            "c.csv: error: has 10,001 rates; 10,000 are allowed; average over longer intervals",
        ),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(
    tmp_path: Path, text: str | bytes, expected: str
) -> None:
    with pytest.raises(InputError) as caught:
        csv(tmp_path, text)
    (found,) = (str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems)
    assert expected in found


def test_a_file_that_is_wrong_throughout_is_not_listed_throughout(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        csv(tmp_path, "seconds,mbit_per_second\n" + "0;1\n" * 500)
    assert len(caught.value.problems) == 6
    assert "and 495 more of the rows" in str(caught.value.problems[-1])


def test_a_files_path_counts_from_the_scenarios_folder_and_an_options_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcsim.scenarios.reading.overrides import apply

    (tmp_path / "there").mkdir()
    rows = "seconds,mbit_per_second\n0,{}\n1,{}\n"
    (tmp_path / "there" / "c.csv").write_text(rows.format(1, 1))
    (tmp_path / "c.csv").write_text(rows.format(7, 7))
    monkeypatch.chdir(tmp_path)
    path = Path("there") / "a.yaml"
    path.write_text(TRACED)
    assert built(read_file(path), path).rate == MBIT
    document = read_file(path)
    assert apply(document, ["network.trace.file=c.csv"]) == []
    assert built(document, path).rate == 7 * MBIT
    document = read_file(path)
    assert apply(document, ["network.trace={file: ../c.csv, after: hold}"]) == []
    with pytest.raises(InputError, match=r"--set network.trace: error: .* there is no file"):
        built(document, path)


def test_every_wrong_file_is_named_wherever_it_stands(tmp_path: Path) -> None:
    class Cluster(Section):
        nics: dict[str, LinkSection]
        racks: list[File]

    text = (
        "nics:\n  '3':\n    latency: 1 s\n    trace: {file: a.csv, after: hold}\n"
        "    up: {latency: 1 s, trace: {file: b.csv, after: hold}}\n"
        "racks:\n- network:\n    latency: 1 s\n    trace: {file: c.csv, after: hold}\n"
    )
    document = read(text, "a.yaml")
    section, faults = check(Cluster, document)
    assert not faults
    assert section is not None
    found = [str(entry) for entry in read_traces(section, document, tmp_path / "a.yaml")]
    assert [entry.split("; ")[0].replace(f"{tmp_path}/", "") for entry in found] == [
        "a.yaml:4:19: error: nics.3.trace.file: there is no file a.csv",
        "a.yaml:5:38: error: nics.3.up.trace.file: there is no file b.csv",
        "a.yaml:9:19: error: racks.0.network.trace.file: there is no file c.csv",
    ]


def test_a_file_that_nobody_read_is_our_mistake() -> None:
    section = TraceSection.model_validate({"file": "c.csv", "after": "hold"})
    with pytest.raises(InternalError, match=r"the rates of c\.csv were not read"):
        _ = section.rates
