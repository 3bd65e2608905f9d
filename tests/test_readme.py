"""What the README shows works as it stands."""

import json
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.analysis.report.trust import NO_MEMORY, SAFE_NMSE
from gcsim.compressors.base import Worker
from gcsim.compressors.registry import REGISTRY, compressor_class
from gcsim.scenarios.catalog import link as link_of
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.sections.transports import few_cores
from gcsim.simulator.steps.noise import longest
from gcsim.simulator.training import Noise
from gcsim.traces.stage1.shipped import FOLDER, read
from tests.command import gcsim
from tests.process import ROOT, printed

README, TUTORIAL, TRUST = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/tutorial.md", "docs/trust.md")
)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def block(language: str, first_line: str) -> str:
    """Of the README, the tutorial, or the page of scenarios."""
    pages = README + TUTORIAL + (ROOT / "docs/scenarios.md").read_text(encoding="utf-8")
    found = re.search(rf"```{language}\n({re.escape(first_line)}.*?)```", pages, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_scenario_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "my_cluster.yaml"
    path.write_text(block("yaml", "name: my_cluster"))
    shown = gcsim("check", path, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr


def test_the_compressor_runs_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_compressor.py").write_text(block("python", "# my_compressor.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    from gcsim.compressors.registry import check_parameters, create

    kind = "my_compressor:Clipped"
    assert check_parameters(kind, {}).model_dump() == {"limit": 1.0}
    assert create(kind, Worker(rank=0, count=2, seed=0), {"limit": 0.5}) is not None


def written(folder: Path, name: str) -> None:
    """Write the page's example of that file."""
    guide = (ROOT / "docs/writing-a-compressor.md").read_text(encoding="utf-8")
    found = re.search(rf"```python\n(# {name}\n.*?)```", guide, re.DOTALL)
    assert found is not None
    (folder / name).write_text(found.group(1))


def test_the_compressor_of_the_readme_and_those_of_its_guide_pass_every_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcsim.compressors import check
    from gcsim.compressors.conformance import CHECKS

    written(tmp_path, "two_means.py")
    written(tmp_path, "sign_topk.py")
    (tmp_path / "my_compressor.py").write_text(block("python", "# my_compressor.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert check("my_compressor:Clipped", {"limit": 0.5}) == tuple(CHECKS)
    assert check("two_means:TwoMeans") == tuple(CHECKS)
    assert check("two_means:TwoMeans", {"error_feedback": False}) == tuple(CHECKS)
    assert check("sign_topk:SignTopK", {"ratio": 0.1}) == tuple(CHECKS)


def test_the_guides_method_for_gpus_gives_the_same_bytes_on_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no tensor comes to the host."""
    from tests.compressors.gpu.conftest import ON_HOST, equal, host_copies, whole_methods
    from tests.compressors.shared import Team

    written(tmp_path, "sign_topk.py")
    monkeypatch.syspath_prepend(str(tmp_path))

    def run() -> list[Tensor]:
        crew, found = Team("sign_topk:SignTopK", [(30, 70), (0,), (1,)], ratio=0.1), list[Tensor]()
        for step in range(2):
            gradients = torch.randn(2, 2101, generator=torch.Generator().manual_seed(step))
            found += [*crew.step(gradients.unbind(), step), *crew.listener.as_sent[0]]
        return found

    expected = run()
    with whole_methods(), host_copies() as seen:
        assert equal(run(), expected)
    assert max(seen) <= ON_HOST


def test_no_placeholder_is_left() -> None:
    for page in PAGES:
        assert not re.search(r"@[A-Z]+@", page.read_text(encoding="utf-8")), page


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    return re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8"))


def test_what_pages_link_to_exists() -> None:
    assert len(links(PAGES[0])) > 8
    for page in PAGES:
        for target in links(page):
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), (page.name, target)
            assert not anchor or anchor in anchors(found), (page.name, target)


def test_files_that_pages_name_exist() -> None:
    """`rings/allreduce.py`: some file's path ends so."""
    here = [f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.rglob("*.*") if in_tree(path)]
    for page in PAGES:
        named = re.findall(
            r"`([\w/]+/[\w/]+\.(?:py|yaml|csv|md))`", page.read_text(encoding="utf-8")
        )
        for name in named:
            own = "/mine" in name  # that a reader writes
            assert own or any(path.endswith(f"/{name}") for path in here), (page.name, name)


def in_tree(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(ROOT).parts)


def test_a_list_has_an_empty_line_in_front() -> None:
    """Without one the site shows a paragraph."""
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        text = re.sub(r"(?s)```.*?```", "", page.read_text(encoding="utf-8"))
        for before, after in pairwise(text.splitlines()):
            begun = not before or re.match(r" *(- |\d+\. |#)|  ", before)
            assert begun or not re.match(r"- |1\. ", after), (page.name, after)


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs/README.md"
    named = {(index.parent / target).resolve() for target in links(index)}
    assert {page for page in PAGES if page.parent != ROOT} - named == {index}


def test_the_table_has_a_row_for_each_compressor_of_the_scenario() -> None:
    table = block("", "alexnet_32node")
    for choice in load_scenario("alexnet_32node").compressors:
        assert choice.kind in REGISTRY
        rows = [line for line in table.splitlines() if line[2:].startswith(choice.label)]
        assert rows, choice.label


def example(script: str, folder: Path) -> None:
    (folder / script).write_text(block("python", f"# {script}"))
    cache = str(folder / "cache")
    printed(script, folder=folder, PYTHONPATH=str(ROOT), GCSIM_CACHE_DIR=cache)


def run_and_compare(folder: Path, scenario: str) -> dict[str, Any]:
    (folder / scenario).write_text(block("yaml", f"# {scenario}"))
    shown = gcsim("run", scenario, "--json", folder=folder, GCSIM_CACHE_DIR=str(folder / "cache"))
    assert shown.returncode == 0, shown.stderr
    results: dict[str, Any] = json.loads(shown.stdout)
    found = {(row["compressor"], row["nodes"]) for row in results["rows"]}
    assert found == {(c, n) for c in ("none", "fp16", "topk", "powersgd") for n in (2, 4, 8)}
    return results


def test_the_users_own_model_runs_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "my_models.py").write_text(block("python", "# my_models.py"))
    results = run_and_compare(tmp_path, "my_model.yaml")
    assert results["provenance"]["gradients"]["source"] == "live"


def test_the_recording_of_the_readme_is_the_tutorials() -> None:
    """The test below runs that one; the README's adds comments."""
    (shown,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    code = [line.split("  #")[0].rstrip() for line in shown.splitlines() if line[0] != "#"]
    assert "\n".join(code) in block("python", "# train.py")


@pytest.mark.long
def test_the_recorded_training_runs_without_its_code(tmp_path: Path) -> None:
    example("train.py", tmp_path)
    (tmp_path / "train.py").unlink()
    results = run_and_compare(tmp_path, "my_training.yaml")
    assert results["provenance"]["gradients"]["source"] == "recorded"
    assert "measured" in results["provenance"]["compute"]["source"]


@pytest.mark.long
def test_the_profiled_training_runs_with_the_times_of_its_profile(tmp_path: Path) -> None:
    example("profile_training.py", tmp_path)
    results = run_and_compare(tmp_path, "my_profile.yaml")
    assert "profile.json" in results["provenance"]["compute"]["source"]


def test_errors_of_the_page_of_trust_are_those_of_the_validation() -> None:
    """`make validation` writes the one; the other repeats medians of it."""
    page = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
    table = TRUST.split("<!-- table: make validation -->")[1].split("\n\n")[0]
    rows = re.findall(r"\| (\d+) \| ([\d.]+ %) \| ([\d.]+ %) \|", table)
    assert len(rows) == len(table.strip().splitlines()) - 2
    for points, median, bare in rows:
        assert f"median {median} of {points} points (catalogue alone: {bare})" in page, (
            points,
            median,
        )


def test_choices_told_are_those_of_the_validation() -> None:
    page = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
    lines = re.findall(r"Decisions: (\d+) of (\d+) right (.*)", page)
    bare = [
        (int(alone[1]), int(alone[2]))
        for *_, rest in lines
        if (alone := re.search(r"by the catalogue alone (\d+) of (\d+)", rest)) is not None
    ]
    right, decided = (sum(int(line[at]) for line in lines) for at in (0, 1))
    right_alone, decided_alone = (sum(one[at] for one in bare) for at in (0, 1))
    assert f"in {right} of {decided} cases whether" in TRUST
    assert f"right in {right_alone} of the {decided_alone} cases that it can decide" in TRUST
    assert f"gcsim is right in {right_alone} of {decided_alone} cases;" in README


def test_ranges_told_are_those_of_the_validation() -> None:
    """Coverage and Brier scores of the tables `leaving the source out`, on three pages."""
    page = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
    uncertainty = (ROOT / "docs/model/uncertainty.md").read_text(encoding="utf-8")

    def column(source: str, at: int) -> list[str]:
        rows = re.findall(rf"^\| {re.escape(source)} \|(.*)\|$", page, re.MULTILINE)
        return [row.split("|")[at].strip() for row in rows if row.count("|") == 7]

    steps, gains, scores, shares = (column("in all", at) for at in (2, 4, 6, 7))
    kinds = ("catalogue alone", "measured passes stated")
    for kind, held, won, score, share in zip(kinds, steps, gains, scores, shares, strict=True):
        assert f"| {kind} | {held} % | {won} % | {score} | {share} |" in uncertainty
    width = f"{steps[0]} and {steps[1]} % | {gains[0]} and {gains[1]} %"
    grace = " and ".join(column("sands-lab/grace-data", 6))
    assert re.search(rf"\| uncorrected \| {width} \| [\d.]+ \| {grace} \|", uncertainty)
    told = (
        f"{steps[0]} % of its steps from the catalogue alone and {steps[1]} % with measured passes"
    )
    assert told in TRUST
    assert f"{gains[0]} and {gains[1]} % of its gains" in TRUST
    low, high = sorted(steps)
    assert f"{low} to {high} % of the measured steps" in README


def test_the_largest_errors_told_are_those_of_the_validation() -> None:
    """The 90th percentiles of the suites with more than one point."""
    page = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
    found = [
        float(tail)
        for points, tail in re.findall(
            r"^\| \[[\w-]+\]\(.*?\) \| (\d+) \| [\d.]+ \| ([\d.]+)", page, re.M
        )
        if int(points) > 1
    ]
    assert f"off by more than {min(found):.0f} to {max(found):.0f} %, depending" in TRUST


def test_safe_methods_told_are_those_that_are_safe() -> None:
    """By the gradient errors in the shipped profiles of LeNet."""
    profiles = [one.profile() for one in read(FOLDER / "lenet.json.xz").values()]
    near = {one.compressor for one in profiles if one and one.quality.nmse <= SAFE_NMSE}
    safe = [compressor_class(name) for name in near if not name.startswith("torch_")]
    titles = {one.about.title for one in safe if one.about.state == NO_MEMORY}
    assert len(titles) == 4, titles  # dense too
    for name in ("docs/advice.md", "docs/faq.md"):
        page = (ROOT / name).read_text(encoding="utf-8")
        assert "practically the dense one (fp16, bf16, and OmniReduce, which loses nothing)" in page


def test_latencies_told_in_scenarios_are_those_of_the_link() -> None:
    """`120 us (50 to 440) one-way latency with Gloo (`gcsim list links 1gbe`)`."""
    told = (
        r"([\d.]+) us \((\d+) to (\d+)\) one-way latency with Gloo[\s#]+\(`gcsim list links (\w+)`"
    )
    found = [
        one
        for path in (ROOT / "scenarios").glob("*.yaml")
        for one in re.findall(told, path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 9
    for *micro, name in found:
        link = link_of(name, "gloo")
        assert link.latency_range is not None
        figures = [float(value) * 1e6 for value in (link.latency, *link.latency_range)]
        assert figures == pytest.approx([float(value) for value in micro])


def test_widths_told_are_those_of_the_catalogue() -> None:
    """Ends of a bus's goodput, of costs on few cores, and the skew of 8 and 64 workers."""
    page = (ROOT / "docs/model/uncertainty.md").read_text(encoding="utf-8")
    low, high = link_of("pcie3_x16", "nccl").efficiency_range or (0, 0)
    assert f"| {float(low)} to {float(high)} of the copy rate |" in page
    few = few_cores("gloo")
    assert few is not None
    ends = (
        few.per_message_range, few.per_byte_range, few.per_call_range, few.per_copied_byte_range,
    )  # fmt: skip
    shares = [float(one[1] / one[0]) for one in ends if one]
    assert f"by a factor of {min(shares):.0f} to {max(shares):.0f} |" in page
    settings = (ROOT / "docs/scenarios.md").read_text(encoding="utf-8")
    skewed = [float(longest(Noise(skew=Fraction(1)), workers)) - 1 for workers in (8, 64)]
    assert "({:.2f} for 8 workers, {:.2f} for 64)".format(*skewed) in settings
