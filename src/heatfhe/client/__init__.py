# SPDX-License-Identifier: Apache-2.0
"""The client: keyrings hold secrets, everything that leaves this room is public or encrypted."""

__all__: list[str] = []
