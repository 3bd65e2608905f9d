"""Nothing goes through a server that no scenario names: every method on every transport."""

from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

import pytest
import torch

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.simulator.cluster import Cluster, Collectives, TransportName
from gcsim.simulator.collectives.dispatch import algorithm_of
from gcsim.simulator.devices.device import Device
from gcsim.simulator.network.links import Link
from gcsim.simulator.push_pull import as_collectives, ways
from gcsim.traces.profile import Compute, Exchange, ModelFacts, Phase, Quality, Step, TrafficProfile
from tests.compressors.shared import Team

STEPS = 3
LINK = Link(name="link", bandwidth=Fraction(10**9), latency=Fraction(1, 10**5))
NOTHING = Compute(stage="encode", fixed=())
TRANSPORTS = [name for name in get_args(TransportName) if name != "custom"]


def cluster(**chosen: Any) -> Cluster:
    return Cluster(
        nodes=4,
        devices_per_node=2,
        device=Device(name="d", title="D", kernels={}, effective_flop_rate=1.0, source="test"),
        network=LINK,
        intra_node=LINK,
        collectives=Collectives(**chosen),
    )


def variants(name: str) -> list[dict[str, Any]]:
    """The defaults, and each push-pull that a parameter chooses."""
    fields = compressor_class(name).Parameters.model_fields
    asked = [key for key, field in fields.items() if "push_pull" in get_args(field.annotation)]
    return [{}, *({key: "push_pull"} for key in asked)]


def profile(records: list[CollectiveRecord]) -> TrafficProfile:
    """Records with nothing around them."""
    exchange = Exchange(computes=(NOTHING,) * (1 + len(records)), collectives=tuple(records))
    return TrafficProfile(
        compressor="any",
        parameters={},
        model=ModelFacts(name="any", parameters=1, layers=(), samples_per_worker=1),
        buckets=(),
        workers=2,
        period=1,
        phases=(Phase(name="step", count=1, steps=(Step(number=0, exchanges=(exchange,)),)),),
        quality=Quality(nmse=0.0, cosine_similarity=1.0),
    )


def titles(found: TrafficProfile, where: Cluster) -> set[str]:
    (phase,) = found.phases
    records = [r for e in phase.steps[0].exchanges for r in e.collectives]
    return {algorithm_of(record, where).title for record in records}


@pytest.mark.parametrize("name", REGISTRY)
def test_no_algorithm_is_a_parameter_server_unless_servers_are_named(name: str) -> None:
    cls = compressor_class(name)
    pushed = False
    for parameters in variants(name):
        first = cls.warmup_steps(check_parameters(name, parameters))
        crew, records = Team(name, [(40, 30), (30,)], **parameters), []
        for step in range(first, first + STEPS):
            generator = torch.Generator().manual_seed(step)
            crew.step([torch.randn(1230, generator=generator) for _ in range(2)], step)
            records += crew.listener.collectives
        asked = [record for record in records if record.kind == "push_pull"]
        pushed = pushed or bool(asked)
        # what the listing says of a method is what its requests say
        assert {record.without_server for record in asked} <= {cls.about.without_server}
        for transport in TRANSPORTS:
            where = cluster(transport=transport)
            found = as_collectives(profile(records), where)
            assert not any("server" in title for title in titles(found, where)), transport
            assert "parameter_server" not in ways(profile(records), where)
            if asked:
                served = replace(where, collectives=replace(where.collectives, servers="per_node"))
                kept = as_collectives(profile(records), served)
                assert any("server" in title for title in titles(kept, served))
    assert pushed == (cls.about.without_server is not None)
