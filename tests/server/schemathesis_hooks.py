# SPDX-License-Identifier: Apache-2.0
"""Tells schemathesis that a heatfhe message is raw bytes."""

import schemathesis

schemathesis.serializer.alias("application/vnd.heatfhe.message", "application/octet-stream")
