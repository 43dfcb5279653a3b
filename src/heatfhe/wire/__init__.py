# SPDX-License-Identifier: Apache-2.0
"""The wire: versioned messages, digests and size limits. The only room where client and server meet."""

from heatfhe.wire.frame import MEDIA_TYPE, Limits, Message, MessageFile, MessageScanner, TooLargeError, parse
from heatfhe.wire.messages import (
    API_VERSIONS,
    MAX_STEPS,
    MODES,
    JobHead,
    JobOutput,
    JobRequest,
    KeyEntry,
    KeyManifest,
    ModelConfig,
    Price,
    ciphertext_limit,
    job_limits,
    unit_kind,
)
from heatfhe.wire.refusal import STATUS, Refusal
from heatfhe.wire.strict import Fields, is_name, strict_json
from heatfhe.wire.suspicion import looks_secret, name_is_secret

__all__ = [
    "API_VERSIONS",
    "MAX_STEPS",
    "MEDIA_TYPE",
    "MODES",
    "STATUS",
    "Fields",
    "JobHead",
    "JobOutput",
    "JobRequest",
    "KeyEntry",
    "KeyManifest",
    "Limits",
    "Message",
    "MessageFile",
    "MessageScanner",
    "ModelConfig",
    "Price",
    "Refusal",
    "TooLargeError",
    "ciphertext_limit",
    "is_name",
    "job_limits",
    "looks_secret",
    "name_is_secret",
    "parse",
    "strict_json",
    "unit_kind",
]
