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


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "topk", "ratio": 0.01, "warm_up": {"steps": 3, "from": 0.5}},
        {"kind": "dgc", "ratio": 0.01, "warmup_epochs": 1, "steps_per_epoch": 3},
        {"kind": "powersgd", "rank": 1, "start": 3},
    ],
)
def test_a_warm_up_is_not_measured(given: dict[str, object], alone: None) -> None:
    """Its three steps send more than the settled ones, which a run predicts: those of a hook
    without a warm-up."""
    settled = {"kind": given["kind"], "ratio": 0.01} if "ratio" in given else {**given, "start": 0}
    sent = []
    for options in (given, settled):
        model = planned()
        hook = gcsim.ddp_hook(options).register(model)
        list(steps_of(model, 0, 1 + 3))
        if options is given:
            with pytest.raises(InputError, match="no step was compressed"):
                hook.measured()
            list(steps_of(model, 0, 2))
            assert hook.measured().steps == 2
        sent.append(hook.measured().sent_bytes)
    assert sent[0] == pytest.approx(sent[1], rel=0.1)


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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"between": "node", "devices_per_node": 8}, "between: error: 'node' is none of workers"),
        ({"devices_per_node": 8}, "devices_per_node: error: has no effect .* say between='nodes'"),
        ({"between": "nodes", "ranks_per_rack": 8}, "ranks_per_rack: .* say between='racks'"),
    ],
)
def test_a_place_that_has_no_effect_is_refused(given: dict[str, object], said: str) -> None:
    """These compressed between all workers, or between nodes, as if nothing were said."""
    with pytest.raises(InputError, match=said):
        gcsim.ddp_hook("topk", **given)  # type: ignore[arg-type]
