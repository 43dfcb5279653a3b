# SPDX-License-Identifier: Apache-2.0
"""Every format a stranger can hand us, as one small valid example, how it is changed, and what may come of it.

A changed file or message, its hashes recomputed, is either **refused** with a child of HeatError, or read as exactly
what it says. "Exactly" is the law of each format:

- JSON files and messages (cost and noise tables, calibration, plan, configuration, manifest, the circuit's and the
  checkpoint's headers): the record, written again, is the JSON that was read (1 and 1.0 are one number); nothing is
  dropped, filled in or bent. It is legal by its own checks, and used once (prices asked, rotations listed, three tokens
  run) without an error of another kind.
- Frames: the message, packed again, is the bytes that were read.
- Archives: the ciphertext or key, written again, is the bytes that were read, a ciphertext's scale being the canonical
  one of its level; every residue lies below its prime.
- Tensors of circuits and checkpoints: names, shapes, types and bytes are those of the file, all finite, and none is
  missing or unknown.

So whatever is accepted is valid, and says what it is: it equals the original, or its digest (of a plan, a circuit, a
configuration, a manifest, a message, a state.json) differs from the original's, and whoever pinned that sees it. What
no hash can tell is another valid thing in its place: a ciphertext of something else, other weights under hashes of
their own. docs/security.md says so.
"""

from __future__ import annotations

from pathlib import Path

from tests.mutations.keys import archives, key_files
from tests.mutations.law import Format
from tests.mutations.messages import frames, messages
from tests.mutations.tables import circuit_folder, tables


def every_format(folder: Path) -> list[Format]:
    """All of them but checkpoints, which need torch (``checkpoints``)."""
    return [*tables(folder), circuit_folder(folder), *messages(), *frames(folder), *archives(), *key_files(folder)]
