"""Options of a method under DDP: steps that stay dense, tensors, and ranks of a node."""

import pytest

import gcsim
from gcsim.errors import InputError
from tests.compressors.ddp.plan import planned, steps_of


def test_a_share_of_the_steps_needs_their_number(alone: None) -> None:
    with pytest.raises(InputError, match="training_steps="):
        gcsim.ddp_hook("topk", dense_steps=0.5)
    model = planned()
    hook = gcsim.ddp_hook("topk", dense_steps=0.5, training_steps=4, ratio=0.1).register(model)
    dense = [
        all(bool((part != 0).all()) for part in updates) for updates in steps_of(model, 0, 1 + 4)
    ]
    # the first is DDP's own; then two of four are dense
    assert dense == [True, True, True, False, False]
    assert hook.measured().steps == 2
    assert hook.measured().sent_bytes < 4 * sum(p.numel() for p in model.parameters()) / 3


def test_a_pattern_of_no_parameter_is_refused(alone: None) -> None:
    hook = gcsim.ddp_hook("topk", dense_tensors={"names": ["*.bias"]})
    with pytest.raises(InputError, match=r"'\*\.bias' matches no tensor of the model"):
        hook.register(planned())


def test_ranks_per_node_are_named_or_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match="devices_per_node: error: is unknown"):
        gcsim.ddp_hook("topk", between="nodes")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    gcsim.ddp_hook("topk", between="nodes")
    with pytest.raises(InputError, match="ranks_per_rack: error: is unknown"):
        gcsim.ddp_hook("topk", between="racks")
