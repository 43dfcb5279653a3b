# SPDX-License-Identifier: Apache-2.0
"""What a client checks before it makes keys, and how it keeps and reads things."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatfhe.ckks.params import Params
from heatfhe.client import Sampler, check_config, load_keyring
from heatfhe.client.bundle import Bundle
from heatfhe.client.layout import Layout
from heatfhe.client.pending import PendingJob, PendingJobs
from heatfhe.client.read import is_faint, read_logits, read_token, round_to_bits
from heatfhe.client.trust import key_request as client_request
from heatfhe.client.trust import trusted_bits
from heatfhe.engine import KeyRequest
from heatfhe.engine import key_request as server_request
from heatfhe.errors import ConfigError, DecryptError, WireError
from heatfhe.files import write_json
from heatfhe.planning import plan
from heatfhe.planning.params import preset
from heatfhe.server import ModelSource, Settings
from heatfhe.server.work.program import describe_model
from heatfhe.wire import ModelConfig, Price
from tests.ckks.test_baby_steps import with_words
from tests.golden.make import HERE, tiny
from tests.server.serving import ROOT, joined

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is a development dependency")
given, settings = hypothesis.given, hypothesis.settings
st = pytest.importorskip("hypothesis.strategies")

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
    with pytest.raises(ConfigError, match=r"openfhe-16: 122 bits: .*less than the 128 bits wanted.*--insecure"):
        check_config(config(engine="openfhe", params=preset("openfhe-16")))
    check_config(config(engine="openfhe", params=preset("openfhe-16")), insecure=True)
    with pytest.raises(ConfigError, match="NOT be encrypted"):
        check_config(config(engine="clear"), insecure=True)
    with pytest.raises(ConfigError, match="unknown engine"):
        check_config(config(engine="other"))


def test_keys_for_levels_that_the_set_lacks_are_refused() -> None:
    check_config(config(rotations=(1, 2), rotation_levels=(SECURE.levels, 0)))
    for levels in ((SECURE.levels + 1, 0), (-1, 0), (3,), (1, 2, 3)):
        with pytest.raises(ConfigError, match="levels"):
            check_config(config(rotations=(1, 2), rotation_levels=levels))


def test_a_client_makes_the_keys_that_the_servers_engine_asks_for(tmp_path: Path) -> None:
    """Where keys go by level, the levels reach the client through the configuration."""
    made = plan(tiny(), with_words(preset("insecure-native-11"), cts_babies=8, key_levels=True))
    made.save(tmp_path / "tiny.plan")
    source = ModelSource(name="tiny", plan=tmp_path / "tiny.plan", circuit=HERE / "tiny")
    told = ModelConfig.from_json(describe_model(source, Settings(folder=tmp_path, models=(source,))).config.as_json())
    assert len(told.rotation_levels) == len(told.rotations) > 0
    assert min(told.rotation_levels) < max(told.rotation_levels) <= told.params.levels
    assert client_request(told) == server_request(made)


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


def forged(params: Params, **changes: object) -> Params:
    """A set with fields that no constructor checked."""
    made = replace(params)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


@settings(deadline=None)
@given(claimed=st.floats() | st.integers() | st.none() | st.text(max_size=3))
def test_a_server_cannot_choose_how_finely_logits_are_read(claimed: Any) -> None:
    """The smaller of its claim and our own set's value, never below zero; what is no finite number is no claim."""
    finite = isinstance(claimed, (int, float)) and abs(claimed) < math.inf
    for name, own in (("native-16-r40", 17.0), ("native-16-r35", 15.0), ("insecure-native-12", 18.0)):
        bits = trusted_bits(forged(preset(name), promised_bits=claimed))
        assert bits == (max(0.0, min(own, claimed)) if finite else own)


def test_a_set_we_do_not_know_is_trusted_with_the_least_of_ours() -> None:
    """A name proves nothing: only a set whose every other field is ours has our value."""
    assert trusted_bits(forged(SECURE, name="native-17")) == 17.0
    assert trusted_bits(forged(SECURE, scale_bits=30.0, promised_bits=60.0)) == 15.0
    assert trusted_bits(forged(preset("insecure-openfhe-12"), levels=7, promised_bits=60.0)) == 12.0
    assert trusted_bits(forged(preset("insecure-openfhe-12"), engine="other", promised_bits=60.0)) == 10.0


@settings(deadline=None)
@given(bits=st.floats(), values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8))
def test_rounding_never_fails_on_a_value(bits: float, values: list[float]) -> None:
    """2^1020 times a logit of 16 overflows and 2^1020 times one of 15 does not: a test of the logit."""
    row = round_to_bits(np.array(values), trusted_bits(forged(SECURE, promised_bits=bits)))
    assert np.isfinite(row).all()
    assert np.abs(row - values).max() <= 0.5


def test_the_client_rounds_to_its_own_bits(source: ModelSource, tmp_path: Path) -> None:
    """Whatever the configuration says, what the sampler sees is a multiple of 2^-bits."""
    model = describe_model(source, Settings(folder=tmp_path, models=(source,), simulate=True))
    assert model.config.params.promised_bits == 30.0  # of a set that this installation does not know
    seen = []

    class Watching(Sampler):
        def choose(self, logits: np.ndarray, seen_: Sequence[int], rng: np.random.Generator) -> int:
            seen.append(logits)
            return super().choose(logits, seen_, rng)

    with joined(source, tmp_path) as app, app.client() as client:
        client.generate([1, 2, 3], 2, interactive=True, sampler=Watching())
    for row in seen:
        assert np.array_equal(row * 2.0**12, np.round(row * 2.0**12))
    assert len(seen) == 2


@pytest.mark.parametrize("temperature", [1e-320, 1e-9, 1.0, 1e300])
@pytest.mark.parametrize("penalty", [1e-300, 1.0, 1e6, 1e308])
def test_choosing_never_fails_on_plausible_logits(temperature: float, penalty: float) -> None:
    sampler = Sampler(temperature=temperature, top_p=0.9, repetition_penalty=penalty)
    for row in (np.full(8, 1e6), np.full(8, -1e6), np.linspace(-1e6, 1e6, 8), np.zeros(8)):
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            assert 0 <= sampler.choose(row, [0, 7], np.random.default_rng(0)) < 8


def test_no_message_advises_to_reveal_a_failure() -> None:
    """Every error of a decryption says what running again would show."""
    words = "The client does not retry, because a retry would reveal the failure. Run it again if you accept that leak."
    for read in (read_token, read_logits):
        with pytest.raises(DecryptError) as caught:
            read(np.full(16, np.nan), 7)
        assert str(caught.value).endswith(words)
    for path in (ROOT / "src" / "heatfhe" / "client").glob("*.py"):
        assert "run the request again" not in path.read_text()
    pytest.importorskip("numba", reason="the native keyring needs the native extra")
    request = KeyRequest(params=preset("insecure-native-tiny"), rotations=())
    ring, stranger = load_keyring("native")(request), load_keyring("native")(request)
    with pytest.raises(DecryptError) as caught:
        ring.decrypt(stranger.encrypt(np.ones(1024), level=3))
    assert str(caught.value).endswith(words)


def test_the_default_folder_is_its_owners_alone(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made at 0700, and one that an older release left open is closed."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    with joined(source, tmp_path) as app:
        for found in (None, 0o755):
            if found is not None:
                for folder in (".heatfhe", ".heatfhe/keys", ".heatfhe/jobs", ".heatfhe/bundles"):
                    (home / folder).chmod(found)
            with app.client(folder=None) as client:
                client.generate([1], 1)
            modes = {p.name: p.stat().st_mode & 0o777 for p in [home / ".heatfhe", *(home / ".heatfhe").iterdir()]}
            assert modes == dict.fromkeys((".heatfhe", "keys", "jobs", "bundles"), 0o700)


def test_a_folder_of_the_users_keeps_its_mode(source: ModelSource, tmp_path: Path) -> None:
    """--keys may name a place that others use as well; what we make in it is private."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with joined(source, tmp_path) as app:
        with app.client(folder=shared) as client:
            client.generate([1], 1)
        with app.client(folder=tmp_path / "new" / "keys") as client:
            client.generate([1], 1)
    assert shared.stat().st_mode & 0o777 == 0o755
    assert {p.stat().st_mode & 0o777 for p in shared.iterdir()} == {0o700}
    assert (tmp_path / "new" / "keys").stat().st_mode & 0o777 == 0o700


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
    assert not is_faint(row)
    assert is_faint(0.4 * row / row.max())
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
    sent = PendingJob(key="key-1", session="s", steps=3, config_id=D, mode="free", keep=False, job="", data=b"sealed")
    jobs.add(sent)
    jobs.add(replace(sent, session="other", steps=9, data=b"other"))
    jobs.note("key-1", "job-1")
    assert jobs.latest(D) == replace(sent, job="job-1")
    assert jobs.latest("cd" * 32) is None
    assert (jobs.waits("s"), jobs.waits("other")) == (True, False)
    jobs.remove("key-1")
    assert jobs.latest(D) is None
    assert not jobs.waits("s")
    assert list((tmp_path / "jobs").iterdir()) == []


def test_pending_jobs_of_the_first_version_are_read_and_broken_ones_passed_over(tmp_path: Path) -> None:
    """What it did not say is taken as it was then: free running, and a session that stays."""
    body = {"session": "s", "steps": 3, "config_id": D, "job": "job-1"}
    write_json(tmp_path / "key-1.json", "heatfhe-pending-job", 1, body)
    (tmp_path / "key-1.bin").write_bytes(b"sealed")
    (tmp_path / "key-2.json").write_bytes(b"{")
    found = PendingJobs(tmp_path).latest(D)
    assert found is not None
    assert (found.session, found.steps, found.mode, found.keep, found.data) == ("s", 3, "free", True, b"sealed")


def test_keyrings_are_found_by_name() -> None:
    from heatfhe.client.keyring_clear import ClearKeyring

    assert load_keyring("clear") is ClearKeyring
    with pytest.raises(ConfigError, match="unknown engine 'x'"):
        load_keyring("x")
