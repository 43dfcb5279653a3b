# SPDX-License-Identifier: Apache-2.0
"""What a client checks before it makes keys, and how it keeps and reads things."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heatfhe.client import check_config, load_keyring
from heatfhe.client.bundle import Bundle
from heatfhe.client.layout import Layout
from heatfhe.client.pending import PendingJobs
from heatfhe.client.read import read_logits, read_token, round_to_bits
from heatfhe.errors import ConfigError, DecryptError, WireError
from heatfhe.planning.params import preset
from heatfhe.server import ModelSource, Settings
from heatfhe.server.program import describe_model
from heatfhe.wire import ModelConfig, Price

D = "ab" * 32
SECURE = preset("native-16-r40")


def config(**changes: object) -> ModelConfig:
    layout = {
        "input": {"size": 768, "period": 1024, "level": 13},
        "vocabulary": {"size": 50257, "period": 32768, "parts": 2, "level": 13},
    }
    price = Price(seconds_per_prompt_token=1.0, seconds_per_token=1.0, key_bytes=1, bootstraps_per_token=1)
    made = ModelConfig(
        model="m", engine="native", params=SECURE, plan=D, circuit=D, programs=("generate", "prompt"), rotations=(1,),
        conjugation=True, bootstrap_periods=(1,), layout=layout, vocabulary=50257, context=128, bundle=D,
        noise_bound=30.0, max_temperature=1.0, price=price,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_only_parameters_of_128_bits_pass_by_default() -> None:
    check_config(config())
    with pytest.raises(ConfigError, match=r"NO SECURITY.*--insecure"):
        check_config(config(params=preset("insecure-native-12")))
    check_config(config(params=preset("insecure-native-12")), insecure=True)
    with pytest.raises(ConfigError, match="NOT be encrypted"):
        check_config(config(engine="clear"), insecure=True)
    with pytest.raises(ConfigError, match="unknown engine"):
        check_config(config(engine="other"))


def test_a_server_cannot_talk_a_set_into_being_secure() -> None:
    """The claim is recomputed from log2 QP here, and by the keyring from the primes themselves."""
    body = config().as_json()
    body["config"]["params"]["log_qp"] = 100_000.0
    from heatfhe.files import json_digest

    body["config_id"] = json_digest(body["config"])
    with pytest.raises(WireError, match="128-bit bound"):
        ModelConfig.from_json(body)
    pytest.importorskip("numba", reason="the native keyring needs the native extra")
    from heatfhe.client.trust import key_request

    lying = config(params=replace(SECURE, log_qp=SECURE.log_qp - 500))
    with pytest.raises(ConfigError, match="claims"):
        load_keyring("native")(key_request(lying))


def test_a_layout_that_does_not_fit_is_refused() -> None:
    assert Layout.of(config()).parts == 2
    bad = [
        {"input": {"size": 768, "period": 1000, "level": 13}},
        {"input": {"size": 2000, "period": 1024, "level": 13}},
        {"input": {"size": 768, "period": 1024, "level": 99}},
        {"vocabulary": {"size": 50257, "period": 32768, "parts": 1, "level": 13}},
        {"vocabulary": {"size": 7, "period": 32768, "parts": 2, "level": 13}},
        {"more": {}},
    ]
    for change in bad:
        with pytest.raises(WireError):
            Layout.of(config(layout={**config().layout, **change}))


def test_a_bundle_is_checked_against_the_configuration(source: ModelSource, tmp_path: Path) -> None:
    model = describe_model(source, Settings(folder=tmp_path, models=(source,), simulate=True))
    bundle = Bundle.read(model.bundle, model.config)
    assert bundle.encode("w5 w6") == [5, 6]
    assert bundle.decode([5, 6, 63, 7]) == "w5 w6"
    assert bundle.end == 63
    assert np.abs(bundle.rows([1, 2]).mean(axis=-1)).max() < 1e-15
    with pytest.raises(WireError, match="do not match"):
        Bundle.read(model.bundle[:-1] + b"x", model.config)
    with pytest.raises(ConfigError, match="outside the vocabulary"):
        bundle.rows([64])


def test_reading_names_a_position_and_never_a_value() -> None:
    row = np.zeros(16)
    row[5], row[6] = 0.9, 0.1
    assert read_token(row, 3) == (5, False)
    row[6] = 0.6
    assert read_token(row, 3) == (5, True)
    for broken in (np.zeros(16), np.full(16, np.nan), row * 100):
        with pytest.raises(DecryptError, match="position 7") as caught:
            read_token(broken, 7)
        assert "100" not in str(caught.value)
    with pytest.raises(DecryptError, match="position 2"):
        read_logits(np.array([np.inf, 1.0]), 2)
    assert np.array_equal(round_to_bits(np.array([0.3, -0.7]), 2.9), [0.25, -0.75])


def test_pending_jobs_hold_what_was_sent(tmp_path: Path) -> None:
    jobs = PendingJobs(tmp_path / "jobs")
    assert jobs.latest(D) is None
    jobs.add("key-1", session="s", steps=3, config_id=D, data=b"sealed")
    jobs.add("key-1", session="other", steps=9, config_id=D, data=b"other")
    jobs.note("key-1", "job-1")
    found = jobs.latest(D)
    assert found is not None
    assert (found.session, found.steps, found.job, found.data) == ("s", 3, "job-1", b"sealed")
    assert jobs.latest("cd" * 32) is None
    jobs.remove_job("job-1")
    assert jobs.latest(D) is None
    assert list((tmp_path / "jobs").iterdir()) == []


def test_keyrings_are_found_by_name() -> None:
    from heatfhe.client.keyring_clear import ClearKeyring

    assert load_keyring("clear") is ClearKeyring
    with pytest.raises(ConfigError, match="unknown engine 'x'"):
        load_keyring("x")
