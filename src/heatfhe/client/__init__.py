# SPDX-License-Identifier: Apache-2.0
"""The client: keyrings hold secrets, everything that leaves this room is public or encrypted."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from heatfhe.client.alone import generate, open_engine
from heatfhe.client.client import Client
from heatfhe.client.home import client_folder
from heatfhe.client.keys import read_key_card
from heatfhe.client.local import local_server
from heatfhe.client.sampling import Sampler
from heatfhe.client.talk import Answer, Conversation
from heatfhe.client.trust import check_config
from heatfhe.doors import lazy_names
from heatfhe.errors import ConfigError

# A keyring loads its engine, and the proxy loads FastAPI: only for those who use them.
_KEYRINGS = {
    "clear": "keyring_clear.ClearKeyring",
    "openfhe": "keyring_openfhe.OpenFHEKeyring",
    "native": "keyring_native.NativeKeyring",
}
if TYPE_CHECKING:
    from heatfhe.client.keyring_native import NativeKeyring
    from heatfhe.client.keyring_openfhe import OpenFHEKeyring
    from heatfhe.client.proxy import create_proxy
    from heatfhe.engine import KeyringFactory
else:
    given = {"NativeKeyring": _KEYRINGS["native"], "OpenFHEKeyring": _KEYRINGS["openfhe"]}
    __getattr__ = lazy_names(__name__, given | {"create_proxy": "proxy.create_proxy"})

__all__ = [
    "Answer",
    "Client",
    "Conversation",
    "NativeKeyring",
    "OpenFHEKeyring",
    "Sampler",
    "check_config",
    "client_folder",
    "create_proxy",
    "generate",
    "load_keyring",
    "local_server",
    "open_engine",
    "read_key_card",
]


def load_keyring(name: str) -> KeyringFactory:
    """The keyring of an engine, by the engine's name."""
    if name not in _KEYRINGS:
        raise ConfigError(f"unknown engine {name!r}; have: {', '.join(_KEYRINGS)}")
    return cast("KeyringFactory", lazy_names(__name__, _KEYRINGS)(name))
