# SPDX-License-Identifier: Apache-2.0
"""What a process that died at a bad moment leaves, and what the next one makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.server import keys as keys_module
from heatfhe.server.keys import FolderKeys, KeyStore
from heatfhe.wire import Refusal
from tests.server.test_stores import manifest_of, send, sha, store


class Killed(BaseException):
    """The process ends here."""


def killed_at_the_check(folder: Path, blob: bytes, *, wrong: bool = False) -> tuple[KeyStore, str]:
    """A store whose process died while it checked the last chunk of a key."""
    keys = store(folder)
    key_set = keys.register("alice", manifest_of({"r": blob}), now=0).key_set

    def die(_path: Path) -> str:
        raise Killed

    sent = bytes([blob[0] ^ wrong]) + blob[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "file_digest", die)
        with pytest.raises(Killed):
            keys.append("alice", key_set, sha(blob), 0, sent, sha(sent))
    assert (folder / "alice" / "partial" / sha(blob)).stat().st_size == len(blob)
    return store(folder), key_set


def test_a_key_set_killed_at_its_last_check_is_whole_when_announced_again(tmp_path: Path) -> None:
    blob = np.random.default_rng(0).bytes(500)
    keys, key_set = killed_at_the_check(tmp_path, blob)
    assert keys.register("alice", manifest_of({"r": blob}), now=1).complete
    assert FolderKeys(tmp_path / "alice", key_set).read("r") == blob
    assert not list((tmp_path / "alice" / "partial").iterdir())


@settings(max_examples=20, deadline=None)
@given(offset=st.integers(0, 500), size=st.integers(0, 500), wrong=st.booleans())
def test_any_chunk_sent_after_such_a_kill_moves_the_upload_on(
    tmp_path_factory: pytest.TempPathFactory, offset: int, size: int, wrong: bool
) -> None:
    """Good bytes become the key, whatever the client sends next; wrong ones are dropped and the upload starts at 0."""
    folder = tmp_path_factory.mktemp("keys")
    blob = np.random.default_rng(0).bytes(500)
    keys, key_set = killed_at_the_check(folder, blob, wrong=wrong)
    chunk = blob[offset : offset + size]
    if not wrong:
        assert keys.append("alice", key_set, sha(blob), offset, chunk, sha(chunk)) == 500
        assert keys.status("alice", key_set).complete
    elif offset or not chunk:
        with pytest.raises(Refusal) as caught:
            keys.append("alice", key_set, sha(blob), offset, chunk, sha(chunk))
        assert caught.value.facts == {"have": 0}
    else:
        assert keys.append("alice", key_set, sha(blob), 0, chunk, sha(chunk)) == len(chunk)


def test_wrong_bytes_found_after_a_kill_are_dropped_when_announced_again(tmp_path: Path) -> None:
    blob = np.random.default_rng(0).bytes(500)
    keys, key_set = killed_at_the_check(tmp_path, blob, wrong=True)
    assert keys.register("alice", manifest_of({"r": blob}), now=1).missing == {sha(blob): 0}
    send(keys, key_set, blob)
    assert keys.status("alice", key_set).complete
