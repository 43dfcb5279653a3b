# SPDX-License-Identifier: Apache-2.0
"""Families, sites, domains and calibrations check themselves and survive their files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.errors import ConfigError, FileFormatError, SiteError
from heatfhe.files import plain
from heatfhe.records import FAMILIES, Calibration, Domain, Site, make_site
from heatfhe.stages import sites
from tests.tiny import tiny_circuit


@given(lo=st.floats(allow_nan=True), hi=st.floats(allow_nan=True))
def test_a_domain_is_finite_and_ordered(lo: float, hi: float) -> None:
    if math.isfinite(lo) and math.isfinite(hi) and lo < hi:
        assert plain(Domain(lo=lo, hi=hi)) == {"lo": lo, "hi": hi, "how": "observed"}
    else:
        with pytest.raises(ConfigError, match="finite lo < hi"):
            Domain(lo=lo, hi=hi)


def test_families_are_the_papers() -> None:
    assert {n: (f.floor, f.max_count) for n, f in FAMILIES.items()} == {
        "norm_goldschmidt": (1, 13), "norm_newton": (0, 3), "softmax_init": (1, 9), "softmax_refine": (1, 12),
    }  # fmt: skip


def test_a_site_bounds_its_count() -> None:
    site = make_site("h.3.ln_2", "norm_newton", 3)
    assert (site.name, site.layer, site.checked(3)) == ("h.3.ln_2/newton", 3, 3)
    with pytest.raises(SiteError, match=r"h\.3\.ln_2/newton: count 4 lies outside \[0, 3\]"):
        site.checked(4)
    with pytest.raises(ConfigError, match="floor <= max_count"):
        Site(name="x", family="norm_newton", layer=0, floor=2, max_count=1)


def test_sites_of_a_circuit_are_in_depth_order() -> None:
    circuit = tiny_circuit(seed=0)
    found = sites(circuit.stages)
    assert [s.layer for s in found] == [0] * 6 + [1] * 6 + [2] * 2
    assert {s.name: s.floor for s in found} == circuit.calibration.floors()
    assert circuit.calibration.floors().keys() == circuit.calibration.counts().keys()


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    calibration = tiny_circuit(seed=0).calibration
    calibration.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json").as_json() == calibration.as_json()
    (tmp_path / "c.json").write_text((tmp_path / "c.json").read_text().replace('"tolerance"', '"tolerence"'))
    with pytest.raises(FileFormatError, match="digest"):
        Calibration.load(tmp_path / "c.json")
