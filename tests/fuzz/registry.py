"""Which kinds of input are fuzzed? A file of `kinds/` and a line here each."""

from tests.fuzz.case import Kind
from tests.fuzz.kinds.caches import CACHES
from tests.fuzz.kinds.devices import DEVICES
from tests.fuzz.kinds.fits import FITS
from tests.fuzz.kinds.hooks import HOOK
from tests.fuzz.kinds.kills import KILLS
from tests.fuzz.kinds.layers import LAYERS
from tests.fuzz.kinds.links import LINKS
from tests.fuzz.kinds.logs import LOGS
from tests.fuzz.kinds.loops import LOOPS
from tests.fuzz.kinds.manifests import MANIFESTS
from tests.fuzz.kinds.profiles import PROFILES
from tests.fuzz.kinds.questions import ADVISE, EXPLAIN
from tests.fuzz.kinds.recordings import RECORD
from tests.fuzz.kinds.results import COMPARE, PLOT
from tests.fuzz.kinds.scenarios import SCENARIOS
from tests.fuzz.kinds.traces import TRACES
from tests.fuzz.kinds.training import REPRODUCE, TRAIN
from tests.fuzz.kinds.user_code import USER_CODE

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        SCENARIOS, LINKS, DEVICES, LAYERS, LOGS, PROFILES, MANIFESTS, TRACES, FITS, CACHES, LOOPS,
        USER_CODE, KILLS, TRAIN, REPRODUCE, ADVISE, EXPLAIN, RECORD, COMPARE, PLOT, HOOK,
    )
}  # fmt: skip
