"""What is accepted and refused as DDP hook, the page about it, and the end of a rank."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.compressors.ddp.measured import Measured, MeasuredBucket, measured_in
from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.compressors.sparsification.by_size.topk import TopK
from gcsim.errors import InputError
from tests.compressors.ddp.plan import ROOT, carried, start_ranks


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def model_of(net: nn.Module | None = None) -> DistributedDataParallel:
    return DistributedDataParallel(net or nn.Linear(30, 20))


@pytest.mark.parametrize(
    "hook",
    [
        lambda: gcsim.ddp_hook("topk", ratio=0.1),
        lambda: gcsim.ddp_hook({"kind": "topk", "ratio": 0.1, "label": "top-k 10 %"}),
        lambda: gcsim.ddp_hook({"kind": "topk"}, ratio=0.1),
        lambda: gcsim.ddp_hook(TopK, ratio=0.1),
        lambda: gcsim.ddp_hook("gcsim.compressors.sparsification.by_size.topk:TopK", ratio=0.1),
    ],
)
def test_a_compressor_is_named_in_any_form(hook: Any, alone: None) -> None:
    model = model_of()
    registered = hook().register(model)
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(4, 30)).sum().backward()
    weight, bias = (p.grad for p in model.parameters())
    assert registered.step == 0
    # one worker, top-k of each tensor: a tenth of 600 and of 20 elements
    assert weight is not None
    assert bias is not None
    assert [int(weight.count_nonzero()), int(bias.count_nonzero())] == [60, 2]
    assert [piece.name for piece in registered.layouts[0].slices] == ["bias", "weight"]


def test_a_class_has_the_name_that_a_scenario_gives_it() -> None:
    # `gcsim compare` and a saved state find the method by this name
    assert gcsim.ddp_hook(TopK, ratio=0.1).kind == "topk"
    own = type("Own", (TopK,), {"__module__": "my_methods"})
    assert gcsim.ddp_hook(own, ratio=0.1).kind == "my_methods:Own"


def test_each_bucket_goes_by_the_method_it_was_given_and_what_it_sends_is_counted(
    alone: None, tmp_path: Path
) -> None:
    # Three linear layers of 30 x 30 under a limit of 3 kB: buckets of one layer or less. Bucket 0
    # stays as it is, the others keep a tenth of each tensor: 90 of 900 elements, 3 of 30.
    net = nn.Sequential(*(nn.Linear(30, 30) for _ in range(3)))
    model = DistributedDataParallel(net, bucket_cap_mb=0.003)
    registered = gcsim.ddp_hook("topk", ratio=0.1, other_buckets={"none": [0]}).register(model)
    with pytest.raises(InputError, match="no step was compressed"):
        registered.measured()
    for _ in range(4):
        model.zero_grad()
        model(torch.ones(4, 30)).square().sum().backward()
    kept = {n: int(p.grad.count_nonzero()) for n, p in net.named_parameters() if p.grad is not None}
    buckets = [[piece.name for piece in registered.layouts[n].slices] for n in registered.layouts]
    assert len(buckets) > 2
    assert all(kept[name] > 3 * 90 for name in buckets[0] if "weight" in name)
    assert all(kept[name] == (90 if "weight" in name else 3) for b in buckets[1:] for name in b)

    found = registered.measured()
    assert (found.compressor, found.workers, found.steps) == ("topk", 1, 3)
    assert found.other_buckets == {"none": [0]}
    # an all-reduce is handed all elements, 4 bytes each; of the rest a tenth travels
    assert found.buckets[0].sent_bytes == 4 * found.buckets[0].elements
    assert all(0 < b.sent_bytes < b.elements for b in found.buckets[1:])
    assert sum(b.elements for b in found.buckets) == 3 * 930
    assert found.iteration_s is not None
    assert 0 < found.computed_s + found.exchanged_s <= 4 * found.iteration_s + 1
    found.write(tmp_path / "measured.json")
    assert measured_in(tmp_path / "measured.json") == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"none": [0], "fp16": [1, 0]}, "bucket 0 has two compressors"),
        ({"nonne": [0]}, "nonne"),
        ({"none": [-1]}, "-1"),
        ({"cser": [0]}, "cser"),
    ],
)
def test_other_buckets_that_cannot_be_are_refused(given: dict[str, list[int]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        gcsim.ddp_hook("topk", other_buckets=given)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("schema", 2, "is not a measurement of schema 1"),
        ("steps", 0, "steps"),
        ("buckets", [], "buckets"),
        ("iteration_s", -1.0, "iteration_s"),
        ("more", 1, "more"),
    ],
)
def test_a_measurement_that_was_changed_is_refused(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    one = MeasuredBucket(elements=10, sent_bytes=40.0, computed_s=0.1, exchanged_s=0.2)
    whole = Measured(
        compressor="none", parameters={}, other_buckets={}, workers=2, rank=0, steps=3,
        iteration_s=0.5, buckets=[one],
    )  # fmt: skip
    whole.write(tmp_path / "m.json")
    body = json.loads((tmp_path / "m.json").read_text())
    (tmp_path / "m.json").write_text(json.dumps({**body, key: value}))
    with pytest.raises(InputError, match=said):
        measured_in(tmp_path / "m.json")


def test_a_loss_that_the_hook_is_told_decides_what_ce_sgd_keeps(alone: None) -> None:
    # Steps 0 ... 4 of the compressor: (first), fallen, risen, as before, fallen. M counts what was
    # kept because the loss fell; the gradient is the same every time, and would always say "kept".
    model = model_of(nn.Linear(30, 20))
    registered = gcsim.ddp_hook("ce_sgd").register(model)
    for loss in (5.0, 3.0, 2.0, 2.5, 2.5, 1.0):  # the first exchange is uncompressed
        registered.loss = loss
        model.zero_grad()
        model(torch.arange(120.0).view(4, 30)).square().sum().backward()
    ((_, member),) = registered._members.values()
    assert member._losses == {0: 1.0}  # type: ignore[attr-defined]
    rewards = [int(one.rewards.max()) for one in member._selections.values()]  # type: ignore[attr-defined]
    assert max(rewards) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: gcsim.ddp_hook("topkk"), "unknown compressor 'topkk'; did you mean 'topk'?"),
        (lambda: gcsim.ddp_hook("topk", ratoi=0.1), "topk has no parameter 'ratoi'"),
        (lambda: gcsim.ddp_hook("topk", ratio=2.0), "topk.ratio = 2.0"),
        (lambda: gcsim.ddp_hook({"ratio": 0.1}), "kind: error: no compressor is named"),
        (lambda: gcsim.ddp_hook(nn.Linear), "Linear is not a subclass of gcsim.Compressor"),  # type: ignore[arg-type]
        (lambda: gcsim.ddp_hook("cser"), "cser: error: workers hold different models"),
        (lambda: gcsim.ddp_hook("qsparse_local_sgd"), "workers hold different models"),
        (lambda: gcsim.ddp_hook("variance"), "variance: error: needs second moments"),
    ],
)
def test_what_ddp_cannot_carry_is_refused_before_a_model_is_touched(wrong: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        wrong()


def test_exactly_what_is_not_refused_is_compared_with_lockstep() -> None:
    accepted = set()
    for name in REGISTRY:
        try:
            gcsim.ddp_hook(name)
        except InputError:
            cls = compressor_class(name)
            local = cls.properties(check_parameters(name, {})).replicas != "identical"
            assert local or cls.requires, name
        else:
            accepted.add(name)
    assert accepted == {name for name, _ in carried()}
    assert len(REGISTRY) - len(accepted) == 9  # 7 with local updates, 2 with second moments


def test_a_model_that_cannot_be_served_is_refused(alone: None) -> None:
    hook = gcsim.ddp_hook("topk")
    with pytest.raises(InputError, match="Linear is not a DistributedDataParallel model"):
        hook.register(nn.Linear(3, 3))
    with pytest.raises(InputError, match=r"parameter weight: error: float64 gradients are not"):
        hook.register(model_of(nn.Linear(3, 3).double()))
    model = model_of()
    hook.register(model)
    with pytest.raises(InputError, match="the hook serves a model already"):
        hook.register(model_of())
    with pytest.raises(InputError, match="it has a hook already"):
        gcsim.ddp_hook("topk").register(model)


def test_sparse_gradients_are_refused(alone: None) -> None:
    model = model_of(nn.Embedding(50, 4, sparse=True))
    gcsim.ddp_hook("topk").register(model)
    with pytest.raises((InputError, RuntimeError), match="sparse gradients are not compressed"):
        model(torch.tensor([1, 2])).sum().backward()


@pytest.mark.long
def test_a_rank_that_leaves_is_noticed(tmp_path: Path) -> None:
    ((survivor, _),) = start_ranks(tmp_path, 2, "left", timeout=60)
    assert survivor[0].startswith("RuntimeError")
    assert survivor[1] < 30  # seconds; the group's time-out is 60


@pytest.mark.long
def test_the_page_s_example_trains(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "train.py").write_text(example, encoding="utf-8")
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    running = [
        subprocess.Popen(
            [sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**environment, "RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank, process in enumerate(running):
            out, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            if rank == 0:
                assert re.fullmatch(r"loss \d\.\d{3}, 19 compressed iterations\n", out)
        found = measured_in(tmp_path / "measured.json")
        assert found is not None
        # a hundredth of 64 x 256, 256, 256 x 10 and 10 elements, 8 bytes each, and frames
        assert (found.compressor, found.workers, found.rank, found.steps) == ("topk", 2, 0, 19)
        assert 8 * (164 + 3 + 26 + 1) <= found.sent_bytes <= 8 * (164 + 3 + 26 + 1) + 4 * 64
    finally:
        for process in running:
            process.kill()
