"""Traffic that the suite of papers reads, data/alexnet_traffic.json.gz of the validation.

python -m tests.benchmarks.alexnet_traffic
"""

import gzip
from importlib.resources import files
from pathlib import Path

from gcsim.analysis.validation.suites.papers.order import FILE, PROFILES, scenario_of
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.run import traffic_profiles
from gcsim.scenarios.running.keys import profile_keys
from gcsim.traces.profile import TrafficProfile


def traffic() -> list[TrafficProfile]:
    """Traffic of the methods: stage 1, from the cache or now."""
    scenario = scenario_of({})
    keys = profile_keys(scenario)
    return traffic_profiles(scenario, keys, use_cache=True, progress=SilentProgress())


if __name__ == "__main__":
    packed = gzip.compress(PROFILES.dump_json(traffic()), mtime=0)
    Path(str(files("gcsim.analysis.validation") / "data" / FILE)).write_bytes(packed)
