"""What do workers and parameter servers handle in an exchange?

Each worker sends a stripe to every server and gets one back, rounded up to whole bytes. Servers are
processes of their own: on nodes, or on machines beside them.
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.host import Traffic


def traffic(call: Call) -> Traffic:
    """What the ranks handle in it."""
    return _traffic(call, call.pulled)


def allgather_traffic(call: Call) -> Traffic:
    """The same of an all-gather."""
    return _traffic(call, sum(call.sent))


def allreduce_traffic(call: Call) -> Traffic:
    """The same of an all-reduce."""
    return _traffic(call, call.nbytes)


def _traffic(call: Call, pulled: int) -> Traffic:
    cluster, servers = call.cluster, call.cluster.servers
    stripes = [-(-size // servers) - (-pulled // servers) for size in call.sent]
    size = np.array(stripes, dtype=np.int64) * servers
    workers = Traffic.of_ranks([2 * servers] * len(stripes), size, cluster.devices_per_node)
    places = np.arange(servers, dtype=np.int64)
    dedicated = cluster.collectives.server_hosts == "dedicated"
    return Traffic(
        ends=np.append(workers.ends, np.full(servers, 2 * len(stripes))),
        nbytes=np.append(workers.nbytes, np.full(servers, sum(stripes))),
        machines=np.append(
            workers.machines, places + cluster.nodes if dedicated else places % cluster.nodes
        ),
    )
