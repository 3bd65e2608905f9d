"""A report is one file that shows the result's numbers, and texts of users as texts."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gcsim.analysis.page import charts
from gcsim.analysis.page.page import facts, linked
from gcsim.analysis.page.run import run_page
from gcsim.analysis.plots import style
from gcsim.analysis.report.answer import answer
from gcsim.analysis.report.selection import at_largest
from gcsim.analysis.trained.write import FIGURES, RESULTS, training_page
from gcsim.scenarios.result import Curve, Result, Trained
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult
from tests.analysis.drawn import between, open_result

HOSTILE = "<img src=x onerror=alert(1)></script><b>&amp; %{x}"
COMMAND = "gcsim run 'a b' --seed 3"
LIMIT = 5_000_000
"""Bytes of a report."""
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """Texts, the cells of each table, and the data of the charts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.tables: list[list[list[tuple[str, str | None]]]] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self._order: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        assert not any(name.startswith("on") or name == "src" for name in found), found
        self._inside = tag
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._order = found.get("data-order")
            self.tables[-1][-1].append(("", self._order))
        elif tag in ("a", "link"):
            self.links.append(found["href"] or "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        else:
            self.texts.append(data)
        if self._inside in ("td", "th"):
            self.tables[-1][-1][-1] = (data, self._order)

    @property
    def charts(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.scripts if text.startswith("{")]


def drawn_result(result: Result) -> Result:
    return open_result(
        result, none=between(0.4, 0.4), topk=between(0.035, 0.085), fp16=between(0.19, 0.21)
    )


def test_the_tables_and_charts_have_the_numbers_of_the_result(result: Result) -> None:
    shown = drawn_result(result)
    page = Page(run_page(shown, COMMAND))
    headings, *lines = page.tables[0]
    names = [heading for heading, _ in headings]
    by_label = {line[0][0].lstrip("> =").rstrip(" *"): line for line in lines}
    wanted = {
        "speedup [x]": "speedup_vs_dense", "iteration [ms]": "iteration_s", "NMSE": "nmse",
        "throughput [samples/s]": "throughput_samples_per_s",
    }  # fmt: skip
    assert len(lines) == len(at_largest(shown)) == 3
    for row in at_largest(shown):
        for heading, field in wanted.items():
            _, order = by_label[row.label][names.index(heading)]
            value = getattr(row, field) * (1e3 if heading.endswith("[ms]") else 1)
            assert float(order or "nan") == pytest.approx(value, rel=1e-12)
    speedups, parts = page.charts
    points = {t["name"]: t["y"] for t in speedups["data"] if t.get("mode") == "lines+markers"}
    assert points == {row.label: [row.speedup_vs_dense] for row in shown.rows}
    bars = [trace for trace in parts["data"] if trace["type"] == "bar"]
    assert bars[0]["y"] == [row.label for row in at_largest(shown)]
    # the parts of a bar add up to the iteration, but for the draws, which move only the whole
    backward = next(trace for trace in bars if trace["name"] == "backward")
    assert backward["x"] == [row.backward_s * 1e3 for row in at_largest(shown)]
    (ends,) = [trace for trace in parts["data"] if trace["name"] == "range"]
    row = next(row for row in at_largest(shown) if row.compressor == "topk")
    place = ends["y"].index(row.label)
    assert ends["x"][place] + ends["error_x"]["array"][place] == pytest.approx(
        (row.iteration_high_s or 0) * 1e3
    )


def test_answer_command_scenario_and_sources_are_there(result: Result) -> None:
    page = Page(run_page(result, COMMAND))
    said = "\n".join(page.texts)
    sections = (line.partition(": ") for line in answer(result))
    assert all(word in page.texts or word in said for word, _, _ in sections)
    assert all(text.rstrip(".") in said for _, _, text in sections)
    assert COMMAND in page.texts
    assert "bandwidth: 10 Gbit/s" in said
    assert "a formula of the tests" in said


def test_nothing_is_asked_of_a_network_and_it_is_small(result: Result) -> None:
    text = run_page(result, COMMAND)
    assert len(text.encode()) < LIMIT
    page = Page(text)
    beside = {"results.json", "results.csv", "timeline.json", "scenario.yaml"}
    beside |= {"speedup.png", "breakdown.png", "https://ui.perfetto.dev"}
    assert set(page.links) == {"data:,"} | beside
    assert not {"img", "iframe", "object", "embed", "form"} & set(page.tags)


def test_markup_of_users_is_text(result: Result) -> None:
    rows = tuple(replace(row, label=HOSTILE if row.nmse else row.label) for row in result.rows[:18])
    shown = replace(result, rows=rows, scenario={**result.scenario, "name": HOSTILE},
                    provenance={"gradients": {"source": HOSTILE}})  # fmt: skip
    page = Page(run_page(shown, HOSTILE))
    assert {"b", "img"} & set(page.tags) == set()
    assert page.texts.count(HOSTILE) >= 3
    for chart in page.charts:
        names = [trace["name"] for trace in chart["data"] if "lines" in trace.get("mode", "")]
        assert not any("<" in name for name in names)


def test_sources_can_be_followed() -> None:
    said = linked('see https://a.org/x?a=1&b=2, arXiv 2005.13247; doi:10.1145/1498765. "<b>"')
    assert '<a href="https://a.org/x?a=1&amp;b=2">https://a.org/x?a=1&amp;b=2</a>, ' in said
    assert '<a href="https://arxiv.org/abs/2005.13247">arXiv 2005.13247</a>; ' in said
    assert '<a href="https://doi.org/10.1145/1498765">doi:10.1145/1498765</a>. ' in said
    assert said.endswith("&quot;&lt;b&gt;&quot;")
    assert "<a" not in linked("javascript:alert(1)")


def test_sources_have_units_that_people_use(result: Result) -> None:
    """As `results.json` has them: 200 GFLOP/s, 60 GB/s, 2.2 us, and inputs with their units."""
    latency = {"setting": "cluster.network", "figure": "latency", "value": 1.2e-4, "unit": "s"}
    told = {
        "compute": {"matmul_flop_rate_per_s": 2e11, "copy_bandwidth_bytes_per_s": 6e10},
        "kernels": {"sort": {"launch_s": 2.2e-6, "flop_rate_per_s": None}},
        "steps_run": {"Top-k 1 %": {"step": 2}},
        "estimates": [latency | {"range": [5e-5, 4.4e-4]}, latency | {"range": None}],
    }
    page = Page(run_page(replace(result, provenance=told), COMMAND))
    for pair in (
        ("matmul flop rate", "200 GFLOP/s"), ("copy bandwidth", "60.0 GB/s"),
        ("launch", "2.2 us"), ("flop rate", "-"), ("step", "2"),
    ):  # fmt: skip
        assert pair in zip(page.texts, page.texts[1:], strict=False)
    (rows,) = [one for one in page.tables if one[0][0][0] == "setting"]
    assert [text for text, _ in rows[0]] == ["setting", "figure", "value", "range"]
    assert [row[2][0] for row in rows[1:]] == ["120 us"] * 2
    assert rows[1][3][0] == "50 us to 440 us"


def test_facts_of_a_kind_are_a_table() -> None:
    (rows,) = Page(facts([{"a": 1.23456789, "b": None}, {"a": "x", "c": [1, 2]}])).tables
    assert [[text for text, _ in row] for row in rows] == [
        ["a", "b", "c"], ["1.23457", "-", ""], ["x", "", "1, 2"]
    ]  # fmt: skip


def test_an_axis_has_three_ticks_however_near_its_ends_are() -> None:
    assert charts.ticks_between(0.9, 1.3) == [0.9, 1.0, 1.1, 1.2, 1.3, 1.4]
    assert charts.ticks_between(0.95, 2.6) == [1.0, 1.5, 2.0]
    assert charts.ticks_between(0.3, 30) == [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]


# --- training ------------------------------------------------------------------------------------


def trained(*labels: str) -> TrainingResult:
    def row(label: str) -> TrainedRow:
        return TrainedRow(
            compressor=label, label=label, nodes=4, workers=8, learning_rate=0.1, iteration_s=0.01,
            speedup_per_iteration=1.0, wire_bytes_per_worker=1e6, steps_to_target=(10, 20),
            seconds_to_target=(0.1, 0.2), steps_against_dense=1.0, speedup_to_target=1.25,
            speedup_to_target_low=1.0, speedup_to_target_high=1.5, speedup_to_target_vs_half=None,
            final_accuracy=(0.9, 0.7), final_loss=(0.1, 0.2), ended=("finished", "finished"),
            why=("", ""),
        )  # fmt: skip

    def curve(label: str, seed: int) -> Curve:
        return Curve(
            label=label, seed=seed, learning_rate=0.1, steps=(0, 10), seconds=(0.0, 0.1),
            accuracy=(0.1, 0.9 - 0.2 * seed), loss=(2.0, 1.0), wire_bytes_per_worker=(1e6,),
            nmse=(0.1,),
        )  # fmt: skip

    return TrainingResult(
        scenario={"name": "mine"}, target="accuracy 0.9", measure="accuracy", trained_workers=8,
        data=HOSTILE, rows=tuple(map(row, labels)),
        curves=tuple(curve(label, seed) for label in labels for seed in (0, 1)), wall={},
    )  # fmt: skip


def test_training_shows_the_accuracies_of_all_seeds() -> None:
    page = Page(training_page(trained("none", "topk"), COMMAND))
    _, seconds, steps = page.charts
    for chart, last, start in ((steps, 10, 0), (seconds, 0.1, 1)):
        whiskers, line, mark = (one for one in chart["data"] if one["name"] == "topk")
        assert line["x"][-1] == last
        # seeds end at 90 % and 70 %; the axis is the distance from 100 %
        assert line["customdata"] == pytest.approx([10, 80][start:])
        assert line["y"] == pytest.approx([90, 20][start:])
        # half of the seeds reach 90 % after 10 steps, the others after 20
        assert (mark["x"], mark["y"]) == ([1.5 * last], [10])
        assert whiskers["error_y"]["array"] == pytest.approx([0, 10][start:])
        assert whiskers["error_y"]["arrayminus"] == pytest.approx([0, 10][start:])
    assert [cell for cell, _ in page.tables[0][1]][:2] == ["none", "1.25"]
    assert {*RESULTS, *FIGURES} <= set(page.links)
    assert HOSTILE in page.texts


def test_the_best_seed_is_on_the_axis() -> None:
    easy = replace(trained("none", "topk"), target="accuracy 0.5")
    for chart in Page(training_page(easy, COMMAND)).charts[1:]:  # seeds end at 90 % and 70 %
        assert 10 ** chart["layout"]["yaxis"]["range"][1] < 100 - 90


def test_a_run_shows_the_curves_that_are_known_and_names_the_others(result: Result) -> None:
    """The same charts as the training's own report, on the methods of the run."""
    curves = trained("dense", "Top-k 1%").curves
    text = run_page(replace(result, trained=Trained(measure="accuracy", curves=curves)), COMMAND)
    page = Page(text)
    _, _, steps, seconds = page.charts
    for chart, last in ((steps, 10), (seconds, 0.1)):
        lines = {trace.get("name"): trace for trace in chart["data"]}
        assert lines["Top-k 1%"]["x"][-1] == last
        assert lines["Top-k 1%"]["y"][-1] == pytest.approx(20)
        assert lines["dense"]["line"]["color"] == style.BLACK
        assert set(lines) == {"dense", "Top-k 1%"}
        assert "shapes" not in chart["layout"]  # a run has no target
    assert "Accuracy over steps" in page.texts
    (said,) = [text for text in page.texts if "Not trained" in text]
    assert said.startswith("On 32 nodes, 64 workers.")
    assert "QSGD 4 bit" in said
    assert "Top-k" not in said
    assert "over steps" not in run_page(result, COMMAND)


# --- in a browser --------------------------------------------------------------------------------

PROBE = """
<script>
addEventListener("load", () => setTimeout(() => {
  const table = document.querySelector("table.rows");
  const shown = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
  const found = {charts: document.querySelectorAll("div.chart svg.main-svg").length,
    bars: document.querySelectorAll(".bars path").length, first: shown()};
  const heading = [...table.tHead.rows[0].cells].find(c => c.textContent.startsWith("sent"));
  heading.click();
  setTimeout(() => {
    found.sorted = shown();
    const box = document.querySelector(".dt-search input");
    box.value = "top-k";
    box.dispatchEvent(new Event("input", {bubbles: true}));
    box.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    setTimeout(() => {
      found.filtered = shown();
      const pre = document.createElement("pre");
      pre.id = "found";
      pre.textContent = JSON.stringify(found);
      document.body.append(pre);
    }, 500);
  }, 500);
}, 500));
</script>
"""


IN_A_BROWSER = pytest.mark.skipif(
    BROWSER is None, reason="needs Chromium (Debian's package chromium)"
)


def in_a_browser(folder: Path) -> subprocess.CompletedProcess[str]:
    """Load `report.html`: the document afterwards, and the console on stderr."""
    return subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", "--dump-dom",
            f"file://{folder / 'report.html'}",
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def probed(text: str, probe: str, folder: Path) -> Any:
    """Return the JSON that a script leaves in an element `found`; the page's policy allows it."""
    body = re.search(r"<script>(.*?)</script>", probe, re.DOTALL)
    assert body is not None
    digest = base64.b64encode(hashlib.sha256(body.group(1).encode()).digest()).decode()
    allowed = text.replace("; script-src ", f"; script-src 'sha256-{digest}' ", 1)
    (folder / "report.html").write_text(allowed.replace("</body>", f"{probe}</body>"))
    done = in_a_browser(folder)
    assert "CONSOLE" not in done.stderr, done.stderr
    said = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert said is not None, done.stdout[-2000:]
    return json.loads(Page(f"<p>{said.group(1)}</p>").texts[0])


def test_the_policy_allows_the_pages_own_scripts_and_nothing_from_a_network(result: Result) -> None:
    text = run_page(result, COMMAND)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert text.index("Content-Security-Policy") < text.index("<script")
    rules = dict(rule.split(" ", 1) for rule in policy.group(1).split("; "))
    assert rules["default-src"] == "'none'"
    assert rules.keys() == {"default-src", "script-src", "style-src", "img-src"}
    run = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in run]
    assert rules["script-src"].split() == [f"'sha256-{one}'" for one in digests]


@IN_A_BROWSER
def test_a_script_that_is_not_the_pages_own_does_not_run(result: Result, tmp_path: Path) -> None:
    strange = '<pre id="found">1</pre><script>document.title = "changed"</script>'
    text = run_page(result, COMMAND).replace("</body>", f"{strange}</body>")
    (tmp_path / "report.html").write_text(text)
    done = in_a_browser(tmp_path)
    assert "Content Security Policy" in done.stderr
    assert "<title>changed</title>" not in done.stdout


@IN_A_BROWSER
def test_labels_that_are_numbers_are_names(result: Result, tmp_path: Path) -> None:
    kinds = list(dict.fromkeys(row.compressor for row in result.rows))
    labels = {kind: str(10 ** (n + 1)) for n, kind in enumerate(kinds)}
    rows = tuple(replace(row, label=labels[row.compressor]) for row in result.rows)
    probe = """<script>addEventListener("load", () => setTimeout(() => {
      const out = document.createElement("pre"); out.id = "found";
      out.textContent = JSON.stringify([...document.querySelectorAll("div.chart .ytick text")]
        .map(one => one.textContent.trim()));
      document.body.append(out); }, 500));</script>"""
    found = probed(run_page(replace(result, rows=rows), COMMAND), probe, tmp_path)
    assert set(labels.values()) <= set(found)


@IN_A_BROWSER
def test_in_a_browser_it_draws_sorts_and_filters_without_an_error(
    result: Result, tmp_path: Path
) -> None:
    rows = [replace(row, label=HOSTILE) if row.compressor == "qsgd" else row for row in result.rows]
    text = run_page(replace(result, rows=tuple(rows)), COMMAND)
    found = probed(text, PROBE, tmp_path)
    assert found["charts"] >= 2
    assert found["bars"] > 12
    largest = at_largest(replace(result, rows=tuple(rows)))
    assert [plain(label) for label in found["first"]] == [row.label for row in largest]
    sent = [row.label for row in sorted(largest, key=lambda row: row.wire_bytes_per_worker)]
    assert [plain(label) for label in found["sorted"]] == sent
    assert [plain(label) for label in found["filtered"]] == ["Top-k 1%"]


CURVES = """
<script>
addEventListener("load", () => setTimeout(async () => {
  const wait = ms => new Promise(done => setTimeout(done, ms));
  const chart = [...document.querySelectorAll("section")].find(
    one => one.firstChild.textContent == "Accuracy over steps").querySelector("div.chart");
  const layout = () => chart._fullLayout;
  const trace = node => node.__data__[0].trace;
  // the ends of what is drawn, from pixels back to the units of the axes
  const lines = () => Object.fromEntries([...chart.querySelectorAll(".scatterlayer .trace")]
    .filter(node => trace(node).showlegend).map(node => {
      const path = node.querySelector("path.js-line");
      return [trace(node).name, [0, path.getTotalLength()].map(at => {
        const point = path.getPointAtLength(at);
        return [layout().xaxis.p2c(point.x), layout().yaxis.p2c(point.y)];
      })];
    }));
  const mouse = (node, kind, x, y) => node.dispatchEvent(
    new MouseEvent(kind, {clientX: x, clientY: y, bubbles: true}));
  const found = {lines: lines(), whiskers: chart.querySelectorAll("path.yerror").length};
  chart.scrollIntoView();
  const box = chart.getBoundingClientRect();
  mouse(chart.querySelector(".nsewdrag"), "mousemove",
    box.left + layout().xaxis._offset + layout().xaxis.c2p(10) - 1,
    box.top + layout().yaxis._offset + layout().yaxis.c2p(20));
  await wait(300);
  found.hover = [...chart.querySelectorAll(".hoverlayer text")].map(one => one.textContent);
  const entry = [...chart.querySelectorAll(".legend .traces")].find(
    one => one.textContent == "Top-k 1%").querySelector(".legendtoggle");
  mouse(entry, "mousedown", 0, 0);
  mouse(entry, "mouseup", 0, 0);
  await wait(1000);
  found.left = Object.keys(lines());
  found.whiskers_left = chart.querySelectorAll("path.yerror").length;
  document.body.style.maxWidth = "370px";
  await Plotly.Plots.resize(chart);
  found.width = layout().width;
  found.legend = chart.querySelector(".legend .bg").getBoundingClientRect().height;
  found.plot = chart.querySelector(".nsewdrag").getBoundingClientRect().height;
  const pre = document.createElement("pre");
  pre.id = "found";
  pre.textContent = JSON.stringify(found);
  document.body.append(pre);
}, 500));
</script>
"""


@IN_A_BROWSER
def test_in_a_browser_curves_are_drawn_named_and_hidden(result: Result, tmp_path: Path) -> None:
    """Twelve methods: two of the run's, and ten more so that the legend is long."""
    labels = ["dense", "Top-k 1%", *(f"another method, number {n}" for n in range(10))]
    row = result.rows[0]
    rows = (*result.rows, *(replace(row, label=label, compressor="fp16") for label in labels[2:]))
    first, last = 0.1, {"dense": 0.5, "Top-k 1%": 0.9}
    curves = [
        replace(curve, accuracy=(first, last.get(curve.label, 0.3) - 0.2 * curve.seed))
        for curve in trained(*labels).curves
    ]
    told = Trained(measure="accuracy", curves=tuple(curves))
    found = probed(run_page(replace(result, rows=rows, trained=told), COMMAND), CURVES, tmp_path)
    for label in labels:  # the median of two seeds, at steps 0 and 10
        ends = (0, 100 * (1 - first)), (10, 100 * (1.1 - last.get(label, 0.3)))
        assert found["lines"][label] == [pytest.approx(end, abs=0.3) for end in ends]
    assert found["whiskers"] == 2 * len(labels)  # at both steps
    assert "80 at 10 steps" in found["hover"]
    assert "Top-k 1%" in found["hover"]
    assert found["left"] == [label for label in labels if label != "Top-k 1%"]
    assert found["whiskers_left"] == 2 * (len(labels) - 1)
    assert found["width"] < 400
    assert found["legend"] < found["plot"]


def plain(label: str) -> str:
    """Without the marks before and after it."""
    return re.sub(r"^[>=!] ", "", label).removesuffix(" *")
