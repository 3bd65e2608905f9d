"""What is explained of a method adds up to what a run says of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.registry import REGISTRY, compressor_class
from gcsim.scenarios import catalog
from gcsim.scenarios.explained import Explanation, _fused, chosen, explain
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.run import run
from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.devices.clocks import UNHIDDEN
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.profile import Compute
from tests.command import gcsim

FILE = """\
model: {layers: net.csv}
batch_size: 2
gradients: {source: synthetic, workers: 2, iterations: 2}
compute: {forward: 1 ms, backward: 2 ms}
ddp: {bucket: 64 KiB}
cluster: {nodes: [2, 4], devices_per_node: 1, device: v100, network: 10gbe,
  collectives: {transport: textbook}}
compressors: [none, {kind: topk, ratio: 0.01, label: mine}, qsgd, {kind: cser}, ef_block_sgdm]
"""


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"fc{n}.weight,200x100,40000\n" for n in range(3))
    Path("net.csv").write_text(f"name,shape,forward_flops\n{rows}")
    Path("s.yaml").write_text(FILE)
    return load_scenario("s.yaml")


def explained(scenario: Scenario, label: str) -> Explanation:
    return explain(scenario, chosen(scenario, label), SilentProgress())


def test_kernels_and_collectives_add_up_to_the_runs(scenario: Scenario) -> None:
    result = run(scenario)
    for choice in scenario.compressors:
        found = explained(scenario, choice.label)
        priced = result.provenance["kernels"]["priced_s"][choice.label]
        assert found.seconds == pytest.approx(sum(priced.values()), rel=1e-9, abs=1e-15)
        kernels = sum(kernel.seconds for kernel in found.kernels)
        assert kernels == pytest.approx(found.seconds, rel=1e-9, abs=1e-15)
        row = next(r for r in result.rows if (r.label, r.nodes) == (choice.label, 4))
        algorithms = {one.algorithm for one in found.collectives}
        assert algorithms == set(result.provenance["algorithms"][choice.label])
        if not row.via:  # a stripe's answer is sent, too
            sent = sum(one.sent for one in found.collectives)
            assert sent == pytest.approx(row.wire_bytes_per_worker)
        assert found.fused_s <= found.seconds
        assert (found.nodes, found.workers) == (4, 4)
    assert {one.bucket for one in explained(scenario, "mine").collectives} == {0, 1, 2}


@pytest.mark.parametrize("transport", ["gloo", "nccl"])
def test_the_explained_parts_are_the_runs_encoding_and_decoding(
    scenario: Scenario, transport: str
) -> None:
    """Of every method that ships: kernels but for those of servers, and the framework's code."""
    Path("net.csv").write_text("name,shape,forward_flops\nfc.weight,64x32,4096\nfc.bias,64,0\n")
    kinds = [kind for kind in REGISTRY if "second_moments" not in compressor_class(kind).requires]
    settings = [
        f"compressors=[{', '.join(kinds)}]",
        f"cluster.collectives={{transport: {transport}}}",
        "cluster.nodes=[4]",
        "uncertainty.draws=0",
    ]
    small = load_scenario(scenario.name + ".yaml", settings)
    rows = {row.label: row for row in run(small).rows}
    assert len(kinds) > 40
    for choice in small.compressors:
        found, row = explained(small, choice.label), rows[choice.label]
        assert found.encode_s == pytest.approx(row.encode_s, rel=1e-9, abs=1e-15), choice.label
        assert found.decode_s == pytest.approx(row.decode_s, rel=1e-9, abs=1e-15), choice.label
        together = found.seconds + found.framework_s
        servers = sum(one.seconds for one in found.kernels if one.stage == "server")
        both = found.encode_s + found.decode_s
        rounded = 1e-9  # picoseconds, once a computation
        assert together - servers - rounded <= both <= together + rounded, choice.label


def test_fused_is_one_launch_and_one_pass() -> None:
    elements = 10**6
    steps = tuple(
        KernelCost(kind="streaming", name=name, launches=1, elements=elements, nbytes=8 * elements)
        for name in ("a", "b", "c")
    )
    sort = KernelCost(kind="sort", name="sort", launches=1, elements=elements, nbytes=elements)
    gpu = catalog.device("v100")
    device = replace(gpu, host={})  # the GPU's own clock
    prices, rate = PriceList(device), device.kernels["streaming"]
    naive = Compute(stage="encode", fixed=(*steps, sort))
    gained = prices.compute_time(naive, 1) - prices.compute_time(_fused(naive, elements), 1)
    # three passes of 8 MB become one, three launches one; the sort stays
    assert rate.bandwidth is not None
    expected = 2 * (float(rate.launch) + 8e6 / float(rate.bandwidth))
    assert gained / 1e12 == pytest.approx(expected, rel=1e-6)
    # its host queues two operators instead of four; a slow one takes longer than the GPU
    gpu = replace(gpu, host={what: rate.faster(0.1) for what, rate in gpu.host.items()})
    queued = PriceList(gpu)
    of_torch = tuple(replace(one, name=f"aten.{one.name}") for one in (*steps, sort))
    naive = Compute(stage="encode", fixed=of_torch)
    saved = queued.compute_time(naive, 1) - queued.compute_time(_fused(naive, elements), 1)
    hidden = float(UNHIDDEN) * gained / 1e12  # of the GPU's own clock
    assert saved / 1e12 == pytest.approx(2 * gpu.host["operator"].launch + hidden, rel=1e-6)
    short = KernelCost(kind="streaming", launches=2, elements=100, nbytes=800)
    of_short = _fused(Compute(stage="encode", fixed=(short,)), elements).fixed[0]
    assert (of_short.launches, of_short.nbytes) == (1, 800)  # less than a pass stays what it is


def test_the_command_shows_it_in_80_cells(scenario: Scenario) -> None:
    here = Path.cwd()
    done = gcsim("explain", "mine", "--scenario", "s.yaml", "-q", folder=here, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = explained(scenario, "mine")
    dearest = next(kernel for kernel in found.kernels if kernel.stage == "encode")
    first = next(line for line in done.stdout.splitlines() if line.startswith("encode"))
    assert first.split()[1:3] == [dearest.name, dearest.kind]
    assert "kernels were fused" in " ".join(done.stdout.split())
    shown = gcsim("explain", "mine", "--scenario", "s.yaml", "--json", "-q", folder=here)
    assert json.loads(shown.stdout) == json.loads(json.dumps(found.document()))


def test_a_method_that_the_scenario_has_not_is_run_with_its_defaults(scenario: Scenario) -> None:
    del scenario
    here = Path.cwd()
    done = gcsim("explain", "fp16", "--scenario", "s.yaml", folder=here)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("scenario: s (--scenario chooses another)")
    assert done.stdout.startswith("fp16 on ")
    stated = gcsim(
        "explain", "{kind: topk, ratio: 10 %}", "--scenario", "s.yaml", "--json", "-q", folder=here
    )
    # a tenth of 3 x 20,000 elements, a value and an index of four bytes each
    sent = sum(one["sent"] for one in json.loads(stated.stdout)["collectives"])
    assert sent == pytest.approx(8 * 6000, rel=0.02)
    wrong = gcsim("explain", "topkk", "--scenario", "s.yaml", "-q", folder=here)
    assert wrong.returncode == 2
    assert wrong.stderr == "error: unknown compressor 'topkk'; did you mean 'topk'?\n"
