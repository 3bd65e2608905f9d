"""Facts of the user's cluster that are not stated, and their possible values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gcsim.scenarios import catalog
from gcsim.scenarios.advice.question import SUPPOSED_HALF, Question
from gcsim.scenarios.findings import Answer, OpenAdvice
from gcsim.scenarios.sections.link import carrier, entry_name
from gcsim.scenarios.sections.network_words import ETHERNET, supposes_rdma


def open_questions(question: Question) -> Iterator[Answer]:
    """Yield answers that would change the scenario."""
    cluster = question.scenario.cluster
    if cluster.workers == 1:
        return
    bus, _, layout = cluster.intra_node.name.partition("_")
    if cluster.nodes == 1 and bus.startswith("pcie"):
        usual = not question.states_setting("cluster", "intra_node")
        ways = _WAYS if layout == "x16" else _PEER if layout == "host" and usual else {}
        for way, words in ways.items():
            setting = f"cluster.intra_node={bus}_{way}"
            yield _answer(words, f"--set {setting}", setting)
    sharded = question.scenario.training.sharded
    if not question.states_loop and not sharded:
        for name, words in (("ddp", "PyTorch, which the hook needs"), ("own", "no overlap")):
            if (setting := f"training.loop={name}") not in question.supposed:
                yield _answer(words, f"--loop {name}", setting)
    if cluster.nodes > 1 and not cluster.groups:
        yield from _of_the_network(question)
    for ends in () if sharded or question.states_setting("training", "between") else _ENDS:
        if 1 < cluster.ranks_in(ends) < cluster.workers:
            words = f"the GPUs of a {ends[:-1]} sum first, then the {ends} exchange"
            yield _answer(words, f"--set {_BETWEEN}{ends}", f"{_BETWEEN}{ends}")
    precision = question.scenario.training.precision
    if (
        not question.states_setting("training", "precision")
        and SUPPOSED_HALF not in question.supposed
    ):
        yield _answer("", "--precision fp16", "training.precision=fp16")
    elif precision in ("fp16", "bf16") and not question.states_setting("training", "gradients"):
        setting = f"training.gradients={precision}"
        yield _answer("gradients stored so", f"--set {setting}", setting)


_BETWEEN = "training.between="
_RDMA, _TCP = "RDMA", "TCP"
_ENDS: tuple[Literal["nodes", "racks"], ...] = ("nodes", "racks")


def _of_the_network(question: Question) -> Iterator[Answer]:
    """Yield answers on the link between nodes: a rate limit, RDMA or TCP."""
    cluster = question.scenario.cluster
    link = cluster.at_one_nic.network
    if carrier(cluster.collectives.transport, link.name).endswith("TCP"):
        wired = ETHERNET.match(link.name)
        if wired and not question.states_setting("cluster", "network", "limited"):
            words = "tc or the provider caps the bandwidth and drops bursts"
            yield _answer(words, "--limited", "cluster.network.limited=true")
        remote = f"{entry_name(link)}_roce"
        if cluster.collectives.transport == "nccl" and remote in catalog.links():
            yield _answer(_RDMA, f"--network {remote}", f"cluster.network={remote}")
    elif isinstance(said := question.stated("cluster", "network"), str) and supposes_rdma(said):
        yield _answer(_TCP, f'--network "{said} TCP"', f'cluster.network="{said} TCP"')


_WAYS = {
    "peer": "one PCIe switch: PIX or PXB",
    "across": "two sockets: SYS",
    "host": "via SHM: NCCL_P2P_DISABLE, NCCL_P2P_LEVEL or no P2P driver",
}
"""Ways between two GPUs of a node without NVLink, which the board does not determine."""
_PEER = {"peer": "a driver that allows peer access: via P2P"}
"""The way between GeForce boards with such a driver (`gcsim validate pcie` has boxes with both)."""


_WHICH_WAY = (
    "find out how the GPUs talk: NCCL_DEBUG=INFO logs via P2P or via SHM, "
    "nvidia-smi topo -m shows the way"
)
"""Command whose output decides between these ways (NCCL: src/transport/p2p.cc and shm.cc)."""
_WHICH_CARRIER = (
    "find out whether NCCL uses RDMA: NCCL_DEBUG=INFO logs NET/IB (RDMA, also RoCE) or "
    "NET/Socket (TCP)"
)
"""Command whose output decides between RDMA and TCP (NCCL: transport/net_ib.cc, net_socket.cc)."""
_DECIDES = 1.5  # factor between dense iterations from which RDMA or TCP is asked for first


def to_find_out(found: OpenAdvice, dense_s: float) -> str | None:
    """Return a command that decides whether this answer holds, if it matters for the `dense_s`
    seconds of dense training."""
    if any(one.startswith("cluster.intra_node=") for one in found.answer.overrides):
        return _WHICH_WAY
    matters = max(found.dense_s / dense_s, dense_s / found.dense_s) >= _DECIDES
    return _WHICH_CARRIER if matters and found.answer.words in {_RDMA, _TCP} else None


def is_choice(answer: Answer) -> bool:
    """Whether an answer is a choice of the user rather than a fact of the cluster."""
    return any(one.startswith(_BETWEEN) for one in answer.overrides)


def _answer(words: str, option: str, setting: str) -> Answer:
    return Answer(words=words, option=option, overrides=(setting,))
