# SPDX-License-Identifier: Apache-2.0
"""What a server keeps on disk, written so that a process killed at any moment leaves it whole."""
