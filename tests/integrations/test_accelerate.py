"""A loop of one's own around Accelerate: what `prepare` returns is recorded as it is."""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import gcsim
from gcsim.traces.storage.store import Trace


def test_the_lines_of_the_page_record_a_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with gcsim.record(model, tmp_path / "trace", iterations=3, timed=2, quiet=True) as recording:
        done = False
        while not done:
            inputs = torch.randn(4, 8)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
            accelerator.backward(loss)
            optimizer.step()
            done = recording.step(loss)
    trace = Trace.open(tmp_path / "trace")
    assert trace.iterations == 3
    assert trace.facts.parameters == 8 * 16 + 16 + 16 * 2 + 2
