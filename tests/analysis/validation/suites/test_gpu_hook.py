"""The suite of an H100's stages: what is fitted, and on what it is judged."""

from __future__ import annotations

import pytest

from gcsim.analysis.validation.suites.gpu_hook.suite import SUITE, counts, priced
from gcsim.compressors.queued import Queued

HOST: dict[Queued, float] = {"kernel": 100e-6, "operator": 30e-6, "wait": 70e-6}
ROW = {"launches": "7", "triton_launches": "5", "waits": "2", "device_us": "80"}


def test_a_stage_takes_its_launches_or_its_device() -> None:
    assert counts(ROW) == (5, 2, 2)
    assert priced(ROW, HOST) == pytest.approx(5 * 100e-6 + 2 * 30e-6 + 2 * 70e-6)
    assert priced({**ROW, "device_us": "900"}, HOST) == pytest.approx(900e-6)


def test_half_of_the_methods_serve_the_fit_at_one_size_and_the_others_never() -> None:
    points = SUITE.find().points
    stages = [one for one in points if one.series.startswith("stages")]
    served = {one.method for one in stages if one.fitted}
    others = {one.method for one in stages if one.series == "stages, other methods"}
    assert (len(served), len(others)) == (15, 14)
    assert not served & others
    assert {one.nbytes for one in stages if one.fitted} == {4e6}


def test_an_iteration_is_dense_and_its_buckets_stages() -> None:
    """fp16 on BERT-base: 43.26 ms, 14 buckets and 199 tensors of DDP's code, and 14 stages, whose
    decoding is one launch of torch; the catalogue's price of it is 32 us, of Triton's 98."""
    (one,) = (each for each in SUITE.find().points if each.name == "bert_base, fp16")
    around = 43.26e-3 + 14 * 313e-6 + 199 * 21.8e-6
    assert one.unfitted == pytest.approx(around + 14 * (98e-6 + 32e-6))
    assert one.measured == 68.91e-3
