"""Groups of nodes in a scenario: their normal form, and their problems.

cluster:
      network: 100gbe                          # of all groups that name none
      batch: by_speed                          # or equal
      groups:
        - {nodes: 4, device: a100_sxm_80gb, devices_per_node: 8, intra_node: nvlink3}
        - {nodes: 8, device: v100, devices_per_node: 4, network: 25gbe, per_hour: 9.80}

Before its check a document is rewritten: each group gets all keys of its own, and the first group's
keys become the cluster's. A single group becomes a cluster without groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from gcsim.errors import InputError, Problem
from gcsim.scenarios.reading.checking import unknown_key
from gcsim.scenarios.reading.document import Document, Keys
from gcsim.scenarios.sections.cluster import ClusterSection, GroupSection

_GROUPS: Keys = ("cluster", "groups")
_ONE_EACH = ("device", "network")  # keys without a default
_OWN = ("devices_per_node", *_ONE_EACH, "nics_per_node", "intra_node")
_OF_ALL = {"batch_size": "batch_size", "per_hour": "cost.per_hour"}
"""Keys of a group, and the scenario's keys that replace them if there is a single group."""
_ONLY_THEIRS = {
    "nodes": "each group has its own number of nodes",
    "device": "each group has its own device",
    "nics": "a node with another NIC is a group of one node",
}


def bring_to_form(document: Document) -> None:
    """Rewrite `cluster.groups` in place. Raises `InputError` for groups without nodes or device,
    groups together with keys of a cluster without groups, or a `--set` that no group uses."""
    cluster = document.data.get("cluster")
    if not isinstance(cluster, dict) or cluster.get("groups") is None:
        return
    problems = list(_problems(document, cluster))
    if problems:
        raise InputError(document.sorted(problems))
    groups = cluster["groups"]
    for key in _OWN:
        shared: Keys = ("cluster", key)
        if key in groups[0]:
            document.written[shared] = (*_GROUPS, 0, key)
        for number, group in enumerate(groups):
            if key in cluster and key not in group:
                group[key] = deepcopy(cluster[key])
                _place(document, shared, (*_GROUPS, number, key))
        if key in groups[0]:
            cluster[key] = groups[0].pop(key)
            document.forget(shared)
            _place(document, (*_GROUPS, 0, key), shared)
    cluster["nodes"] = sum(group["nodes"] for group in groups)
    if len(groups) == 1:
        del cluster["groups"]


def cost_of_node(cluster: ClusterSection, usual: float | None) -> float | None:
    """Return the mean cost of a node per hour; `usual`: of groups without their own. None if it is
    not stated."""
    groups = [(group.nodes, group.per_hour or usual) for group in cluster.groups or ()]
    costs = [nodes * cost for nodes, cost in groups if cost is not None]
    return sum(costs) / sum(nodes for nodes, _ in groups) if costs else usual


def _place(document: Document, old: Keys, new: Keys) -> None:
    """Let a moved value keep its place in the file."""
    for places in (document.values, document.keys):
        for key_path in [one for one in places if one[: len(old)] == old]:
            places[(*new, *key_path[len(old) :])] = places[key_path]


def _problems(document: Document, cluster: dict[str, Any]) -> Iterator[Problem]:
    groups = cluster["groups"]
    if not isinstance(groups, list) or not groups or not all(isinstance(g, dict) for g in groups):
        hint = "write a list: groups: [{nodes: 4, device: a100}, {nodes: 8, device: v100}]"
        yield document.problem(_GROUPS, " is not a list of groups of nodes", hint)
        return
    for key, why in _ONLY_THEIRS.items():
        if key in cluster:
            hint = "move it into the groups, or leave cluster.groups out"
            yield document.problem(("cluster", key), f" with groups: {why}", hint, of_key=True)
    for number, group in enumerate(groups):
        at: Keys = (*_GROUPS, number)
        nodes = group.get("nodes")
        missing = [key for key in _ONE_EACH if key not in group and key not in cluster]
        missing += ["nodes"] if nodes is None else []
        unknown = [key for key in group if key not in GroupSection.model_fields] if missing else []
        for key in unknown:  # a misspelled key is not missing
            yield unknown_key(document, (*at, key), list(GroupSection.model_fields))
        for key in missing if not unknown else ():
            yield document.problem(at, f": key {key!r} is missing", f"write the group's {key}")
        if nodes is not None and (
            not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1
        ):
            message = f" = {nodes!r:.40} is not a number of nodes"
            hint = "write 1 or more, and leave empty groups out"
            yield document.problem((*at, "nodes"), message, hint)
    for key in _OWN:
        own = [number for number, group in enumerate(groups) if key in group]
        changed = [where for where in document.values if where[:2] == ("cluster", key)]
        if len(own) == len(groups) and any(document.place(w).startswith("--") for w in changed):
            hint = f"change that of a group: cluster.groups.0.{key}"
            yield document.problem(changed[0], ": every group has its own", hint)
    for key, instead in _OF_ALL.items():
        if len(groups) == 1 and key in groups[0]:
            yield document.problem(
                (*_GROUPS, 0, key), ": there is only one group", f"write it as {instead}"
            )
    priced = [group.get("per_hour") is not None for group in groups]
    if any(priced) and not all(priced) and not document.data.get("cost"):
        hint = "write the group's per_hour, or cost: {per_hour: ...} for groups without one"
        at = (*_GROUPS, priced.index(False))
        yield document.problem(at, ": key 'per_hour' is missing", hint)
