# SPDX-License-Identifier: Apache-2.0
"""One message of every kind that client and server exchange, with fixed content."""

from __future__ import annotations

from typing import Any

from heatfhe.ckks.params import Params
from heatfhe.files import canonical_json
from heatfhe.planning import ProgramName
from heatfhe.wire import JobHead, JobOutput, JobRequest, KeyEntry, KeyManifest, Message, ModelConfig, Price, Refusal

A, B, C = "0a" * 32, "1b" * 32, "2c" * 32
PARAMS = Params(
    name="insecure-golden", engine="native", ring_dimension=4096, levels=9, scale_bits=35.0, log_qp=900.25, noise=1e-6,
    promised_bits=15.0, reach=16.0, pair_levels=1, literal=(("special", 9), ("stc_first", True)),
)  # fmt: skip
CONFIG = ModelConfig(
    model="stories", engine="native", params=PARAMS, plan=A, circuit=B, programs=("generate", "prompt", "sample"),
    rotations=(-4, 1, 2, 2047), conjugation=True, bootstrap_periods=(1, 16, 2048),
    layout={
        "input": {"size": 128, "period": 128, "level": 3},
        "vocabulary": {"size": 1024, "period": 1024, "parts": 1, "level": 2},
    },
    vocabulary=1024, context=128, bundle=C, noise_bound=12.5, max_temperature=0.75,
    price=Price(seconds_per_prompt_token=0.5, seconds_per_token=1.25, key_bytes=123456789, bootstraps_per_token=46),
    limits={"chunk_bytes": 1 << 20, "max_steps": 64},
)  # fmt: skip
MANIFEST = KeyManifest(
    config_id=CONFIG.config_id,
    keys=(KeyEntry(name="relinearise", size=1000, sha256=A), KeyEntry(name="galois-5", size=77, sha256=B)),
)
FREE = JobRequest(
    head=JobHead(config_id=A, plan=B, key_set=C, program=ProgramName.GENERATE, steps=2, start=0, inputs=2),
    inputs=(b"one", b"\x00\xff"),
)
NOISY = JobRequest(
    head=JobHead(config_id=A, plan=B, key_set=C, program=ProgramName.SAMPLE, steps=2, start=5, inputs=1, parts=2),
    inputs=(b"in",),
    noise=(b"n0", b"n1", b"n2", b"n3"),
)
LOGITS = JobRequest(
    head=JobHead(config_id=A, plan=B, key_set=C, program=ProgramName.LOGITS, steps=1, start=7, inputs=1),
    inputs=(b"x" * 40,),
)
OUTPUT = JobOutput(plan=B, job="ef" * 16, step=3, outputs=(b"first", b"", b"third"))
BUNDLE = Message(
    kind="bundle",
    plan=B,
    body={"dtype": "F16", "shape": [2, 3]},
    blocks={"tokenizer/tokenizer.json": b"{}\n", "embedding": bytes(range(12))},
)
BARE = Message(kind="output", plan=C, body={})
REFUSALS = {
    "refusal": Refusal("queue_full", "64 jobs are waiting", "try again later", retry_after=2.5),
    "refusal with facts": Refusal("conflict", "the upload continues elsewhere", "ask where", facts={"have": 4096}),
}
PACKED = {"job free": FREE, "job noise": NOISY, "job logits": LOGITS, "output": OUTPUT, "bundle": BUNDLE, "bare": BARE}


def everything() -> dict[str, Any]:
    """Packed messages in hex, JSON bodies as the text of their canonical form, and the ids made of them."""
    return {
        "packed": {name: message.pack().hex() for name, message in PACKED.items()},
        "bodies": {
            "model configuration": canonical_json(CONFIG.as_json()).decode(),
            "identity": canonical_json(CONFIG.identity()).decode(),
            "price": canonical_json(CONFIG.price.as_json()).decode(),
            "key manifest": canonical_json(MANIFEST.as_json()).decode(),
            "params": canonical_json(PARAMS.as_json()).decode(),
            **{name: canonical_json(refusal.as_json()).decode() for name, refusal in REFUSALS.items()},
        },
        "ids": {"config": CONFIG.config_id, "key set": MANIFEST.key_set, "params": PARAMS.digest},
    }
