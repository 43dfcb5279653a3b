# SPDX-License-Identifier: Apache-2.0
"""Typed messages: what they promise, what they refuse."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from heatfhe.ckks.params import Params
from heatfhe.errors import WireError
from heatfhe.files import json_digest
from heatfhe.planning import ProgramName
from heatfhe.wire import (
    JobHead,
    JobOutput,
    JobRequest,
    KeyEntry,
    KeyManifest,
    Limits,
    ModelConfig,
    Price,
    ciphertext_limit,
    job_limits,
    parse,
)
from heatfhe.wire.frame import Header

D = "cd" * 32
PARAMS = Params(
    name="insecure-wire", engine="native", ring_dimension=4096, levels=9, scale_bits=35.0, log_qp=900.0, noise=1e-6,
    promised_bits=15.0, reach=16.0,
)  # fmt: skip
PRICE = Price(seconds_per_prompt_token=1.0, seconds_per_token=2.0, key_bytes=10, bootstraps_per_token=40)
CONFIG = ModelConfig(
    model="m", engine="native", params=PARAMS, plan=D, circuit=D, programs=("generate", "prompt"), rotations=(1, 2, 4),
    conjugation=True, bootstrap_periods=(1, 16), layout={"input": {}}, vocabulary=64, context=16, bundle=D,
    noise_bound=10.0, max_temperature=1.0, price=PRICE, limits={"chunk_bytes": 1024},
)  # fmt: skip
LIMITS = Limits()


def head(**changes: Any) -> JobHead:
    values = {"config_id": D, "plan": D, "key_set": D, "steps": 3, "start": 0, "inputs": 2}
    return JobHead(**{**values, "program": ProgramName.GENERATE, **changes})


def header_of(data: bytes) -> Header:
    message = parse(data, LIMITS, kinds=("job",))
    blocks = tuple((name, len(b), D) for name, b in message.blocks.items())
    return Header(kind="job", plan=message.plan, body=dict(message.body), blocks=blocks, offset=0)


def test_a_configuration_round_trips_and_its_id_covers_what_keys_depend_on() -> None:
    assert ModelConfig.from_json(CONFIG.as_json()) == CONFIG
    assert CONFIG.config_id == json_digest(CONFIG.identity())
    assert replace(CONFIG, rotations=(1, 2)).config_id != CONFIG.config_id
    assert replace(CONFIG, params=replace(PARAMS, levels=8)).config_id != CONFIG.config_id
    assert replace(CONFIG, price=replace(PRICE, key_bytes=11), limits={}).config_id == CONFIG.config_id


def test_levels_of_rotations_are_named_only_where_keys_go_by_level() -> None:
    assert "rotation_levels" not in CONFIG.identity()
    lean = replace(CONFIG, rotation_levels=(9, 0, 3))
    assert ModelConfig.from_json(lean.as_json()) == lean
    assert lean.config_id != CONFIG.config_id


@pytest.mark.parametrize("levels", [[9, 0, 10], [9, 0, -1], [9, 0], [9, 0, 3, 3], [9, 0, 3.0], [9, 0, True], [], "9"])
def test_levels_that_no_key_has_are_refused(levels: Any) -> None:
    """Above the set, below zero, or not one for each rotation."""
    body = CONFIG.as_json()
    body["config"]["rotation_levels"] = levels
    body["config_id"] = json_digest(body["config"])
    with pytest.raises(WireError):
        ModelConfig.from_json(body)


def test_a_configuration_that_was_changed_on_the_way_is_refused() -> None:
    body = CONFIG.as_json()
    body["config"]["rotations"] = [1, 2, 5]
    with pytest.raises(WireError, match="does not match its id"):
        ModelConfig.from_json(body)
    body = CONFIG.as_json()
    body["api_versions"] = [7]
    with pytest.raises(WireError, match="API versions"):
        ModelConfig.from_json(body)


def test_a_configuration_has_one_id() -> None:
    """A whole number where a double belongs would give it a second one; NaN and infinities none at all."""
    body = CONFIG.as_json()
    for odd in (1, float("nan"), float("inf")):
        identity = {**body["config"], "max_temperature": odd}
        claimed = hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        with pytest.raises(WireError, match=r"not written as documented|holds what JSON cannot"):
            ModelConfig.from_json({**body, "config": identity, "config_id": claimed})


def test_a_layout_nested_without_end_is_refused_by_name() -> None:
    """The answer of a hostile server is read by the standard parser; what is too deep to be written has no digest."""
    body, depth, deep = CONFIG.as_json(), 995, 0
    for _ in range(depth):
        deep = [deep]  # type: ignore[assignment]
    written = json.dumps({**body["config"], "layout": {"x": "deep"}}, sort_keys=True, separators=(",", ":"))
    claimed = hashlib.sha256(written.replace('"deep"', "[" * depth + "0" + "]" * depth).encode()).hexdigest()
    with pytest.raises(WireError, match="holds what JSON cannot"):
        ModelConfig.from_json({**body, "config": {**body["config"], "layout": {"x": deep}}, "config_id": claimed})


@pytest.mark.parametrize("ring", [1 << 18, 1 << 31, 1 << 50])
def test_a_ring_nobody_can_hold_is_refused_before_a_row_is_filled(ring: int) -> None:
    """A layout of 2^31 slots made a client take 8 GiB for one row."""
    body = CONFIG.as_json()
    body["config"]["params"]["ring_dimension"] = ring
    body["config_id"] = json_digest(body["config"])
    with pytest.raises(WireError, match=r"more than 131072 coefficients|not legal.* ring_dimension must be"):
        ModelConfig.from_json(body)


def test_parameters_that_lie_about_security_are_refused() -> None:
    body = CONFIG.as_json()
    body["config"]["params"]["name"] = "safe-sounding"
    body["config_id"] = json_digest(body["config"])
    with pytest.raises(WireError, match=r"not legal.*128-bit bound"):
        ModelConfig.from_json(body)


def test_a_key_set_is_named_by_its_content() -> None:
    keys = (KeyEntry(name="rotation-1", size=3, sha256=D), KeyEntry(name="rotation-2", size=4, sha256="ef" * 32))
    manifest = KeyManifest(config_id=D, keys=keys)
    assert KeyManifest.from_json(manifest.as_json()) == manifest
    assert manifest.size == 7
    assert KeyManifest(config_id=D, keys=keys[::-1]).key_set != manifest.key_set
    with pytest.raises(WireError, match="share a name"):
        KeyManifest(config_id=D, keys=(keys[0], keys[0]))
    with pytest.raises(WireError, match="two sizes"):
        KeyManifest(config_id=D, keys=(keys[0], replace(keys[1], sha256=D)))
    with pytest.raises(WireError, match="lists no keys"):
        KeyManifest.from_json({"config_id": D, "keys": []})
    for change in ({"size": 0}, {"size": 1 << 40}, {"size": True}, {"name": "../x"}, {"sha256": "xyz"}, {"extra": 1}):
        body = manifest.as_json()
        body["keys"][0] = {**body["keys"][0], **change}
        with pytest.raises(WireError):
            KeyManifest.from_json(body)


def test_a_job_round_trips_through_its_header() -> None:
    asked = head(program=ProgramName.SAMPLE, parts=2)
    made = JobRequest(head=asked, inputs=(b"a", b"b"), noise=tuple(b"n%d" % i for i in range(6)))
    found = JobHead.from_header(header_of(made.pack()))
    assert found == made.head
    assert found.noise_blocks(1) == ("noise/0002", "noise/0003")
    assert head().noise_blocks(1) == ()


def test_a_prompt_at_once_round_trips_and_counts_its_tokens() -> None:
    made = JobRequest(head=head(inputs=4, prefill=(30, 2)), inputs=(b"a", b"b", b"c", b"d"))
    found = JobHead.from_header(header_of(made.pack()))
    assert found == made.head
    assert (found.packed, found.tokens, head().packed, head().tokens) == (2, 32, 0, 2)
    good = header_of(made.pack())
    for prefill in ([], [30], [30, 0], [30, 4], [30, 2, 1], 30):
        with pytest.raises(WireError, match="job"):
            JobHead.from_header(replace(good, body={**good.body, "prefill": prefill}))


@pytest.mark.parametrize(
    "changes",
    [
        {"program": ProgramName.PROMPT},
        {"program": ProgramName.EMBED},
        {"program": ProgramName.PREFILL},
        {"prefill": (1, 1), "start": 4},
        {"prefill": (1, 2)},
        {"steps": 0},
        {"steps": 5000},
        {"program": ProgramName.LOGITS, "steps": 2},
        {"inputs": 0},
        {"start": -1},
        {"program": ProgramName.LOGITS, "steps": 1, "inputs": 0, "start": 4},
    ],
)
def test_jobs_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="job"):
        head(**changes)


@pytest.mark.parametrize(
    ("changes", "noise", "reason"),
    [
        ({"mode": "peek"}, 0, "one of free, logits"),
        ({}, 2, "noise needs mode free and one entry per step"),
        ({"mode": "logits", "steps": 1}, 1, "noise needs mode free and one entry per step"),
        ({"parts": 2}, 3, "not a multiple of 2 parts"),
    ],
)
def test_a_header_says_mode_and_noise_that_belong_together(changes: dict[str, Any], noise: int, reason: str) -> None:
    good = header_of(JobRequest(head=head(), inputs=(b"a", b"b")).pack())
    assert JobHead.from_header(good).mode == "free"
    blocks = (*good.blocks, *((f"noise/{i:04d}", 1, D) for i in range(noise)))
    with pytest.raises(WireError, match=reason):
        JobHead.from_header(replace(good, body={**good.body, **changes}, blocks=blocks))


@pytest.mark.parametrize(
    "names", [["input/0001"], ["noise/0000", "input/0000"], ["input/0000", "other/0000"], ["input/0000", "input/0002"]]
)
def test_blocks_in_another_order_or_of_another_name_are_refused(names: list[str]) -> None:
    good = header_of(JobRequest(head=head(), inputs=(b"a", b"b")).pack())
    with pytest.raises(WireError, match="in order"):
        JobHead.from_header(replace(good, blocks=tuple((n, 1, D) for n in names)))


def test_an_output_names_its_job_and_step() -> None:
    output = JobOutput(plan=D, job="ab" * 16, step=4, outputs=(b"x", b"y"))
    assert JobOutput.from_message(parse(output.pack(), LIMITS, kinds=("output",))) == output


def test_limits_follow_the_parameters() -> None:
    # two polynomials of 4096 coefficients, one 64-bit word per 28 bits of log2 QP
    assert ciphertext_limit(PARAMS) == 16 * 4096 * (900 // 28 + 2) + 65536
    limits = job_limits(PARAMS, context=16, parts=2)
    assert limits.blocks == 48
    assert limits.total_bytes >= 48 * ciphertext_limit(PARAMS)
