"""Chakra's execution traces and PyTorch's flight recorder, where a profile is asked for.

A linked trace is one that PyTorch's own observer wrote here, with the times of the Kineto trace of
the same steps put in as chakra_trace_link does: it has to say what that Kineto trace says.
"""

import json
import pickle
from pathlib import Path

import pytest

from gcsim.errors import InputError
from gcsim.traces.kineto.iterations import check_profile, described, examine_profile
from tests.traces.kineto.linked import linked, of_gpu
from tests.traces.kineto.test_passes import MODEL, cuda_trace


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        check_profile(path)
    return str(caught.value)


def test_a_linked_trace_says_what_its_kineto_trace_says(tmp_path: Path) -> None:
    parameters = linked(tmp_path, "lenet")
    kineto = examine_profile(tmp_path / "kineto.json", parameters)
    found = examine_profile(tmp_path / "linked.json", parameters)
    assert found.times.ready == kineto.times.ready
    assert found.times.forward == kineto.times.forward
    assert found.times.backward == kineto.times.backward
    assert found.batch_size == kineto.batch_size == 4
    assert found.times.source.startswith("Chakra trace, linked.json: median of ")
    assert described(tmp_path / "linked.json").startswith("Chakra trace, the host's clock: ")
    # the observer's own file has no times
    said = refusal(tmp_path / "et.json")
    assert "says which operators ran, and not when; link it to the Kineto trace" in said


def test_kernels_run_when_they_are_launched_or_when_their_stream_is_free(tmp_path: Path) -> None:
    """The hand-written trace, whose passes and gradients are those of its kernels' durations."""
    (tmp_path / "kineto.json").write_text(json.dumps(cuda_trace()))
    (tmp_path / "linked.json").write_text(json.dumps(of_gpu(cuda_trace())))
    kineto = examine_profile(tmp_path / "kineto.json", MODEL).times
    times = examine_profile(tmp_path / "linked.json", MODEL).times
    assert times.processor == "gpu"
    assert times.ready == pytest.approx(kineto.ready)
    assert times.forward == pytest.approx(kineto.forward)
    assert times.backward == pytest.approx(kineto.backward)
    assert "the GPU's rebuilt clock" in times.source


def test_a_flight_recorder_says_nothing_of_passes(tmp_path: Path) -> None:
    path = tmp_path / "fr.json"
    path.write_text(json.dumps({"comm_lib_version": "", "entries": [], "pg_config": {}}))
    said = refusal(path)
    assert "is a dump of PyTorch's flight recorder" in said
    assert "gcsim calibrate link FILE reads its collectives" in said


class Trap:
    """Writes a file when somebody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_never_loaded(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung"), protocol=protocol))
    said = refusal(path)
    assert "is a pickle; a pickle runs code when it is loaded, so gcsim never loads one" in said
    assert "_dump_nccl_trace_json()" in said
    assert not (tmp_path / "sprung").exists()


def test_chakras_protobuf_is_refused_with_what_to_name(tmp_path: Path) -> None:
    # a length, then GlobalMetadata {attr {name: "schema", string_val: "1.1.0-chakra.0.0.4"}}
    attribute = b"\x0a\x06schema\xea\x01\x121.1.0-chakra.0.0.4"
    message = b"\x0a" + bytes([len(attribute)]) + attribute
    path = tmp_path / "rank0.et"
    path.write_bytes(bytes([len(message)]) + message)
    said = refusal(path)
    assert "is a Chakra trace as protobuf (.et)" in said
    assert "name the JSON that chakra_trace_link wrote" in said
