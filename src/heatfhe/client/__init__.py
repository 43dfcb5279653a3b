# SPDX-License-Identifier: Apache-2.0
"""The client: keyrings hold secrets, everything that leaves this room is public or encrypted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatfhe.client.alone import generate, open_engine
from heatfhe.client.client import Client
from heatfhe.client.home import client_folder
from heatfhe.client.keys import read_key_card
from heatfhe.client.local import local_server
from heatfhe.client.sampling import Sampler
from heatfhe.client.talk import Answer, Conversation
from heatfhe.client.trust import check_config
from heatfhe.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from heatfhe.client.keyring_native import NativeKeyring
    from heatfhe.client.keyring_openfhe import OpenFHEKeyring
    from heatfhe.client.proxy import create_proxy
    from heatfhe.engine import KeyringFactory
else:
    from heatfhe.doors import lazy_names

    # A keyring loads its engine, and the proxy loads FastAPI: only for those who use them.
    __getattr__ = lazy_names(
        __name__,
        {
            "NativeKeyring": "keyring_native.NativeKeyring",
            "OpenFHEKeyring": "keyring_openfhe.OpenFHEKeyring",
            "create_proxy": "proxy.create_proxy",
        },
    )

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
    if name == "clear":
        from heatfhe.client.keyring_clear import ClearKeyring

        return ClearKeyring
    if name == "openfhe":
        try:
            from heatfhe.client.keyring_openfhe import OpenFHEKeyring
        except ModuleNotFoundError as err:
            if err.name != "openfhe":  # our own broken import is not a missing extra
                raise
            raise MissingExtraError("openfhe", needed_by="the openfhe keyring") from err
        return OpenFHEKeyring
    if name == "native":
        try:
            from heatfhe.client.keyring_native import NativeKeyring
        except ModuleNotFoundError as err:
            if err.name not in ("numba", "cryptography"):
                raise
            raise MissingExtraError("native", needed_by="the native keyring") from err
        return NativeKeyring
    raise ConfigError(f"unknown engine {name!r}; have: clear, openfhe, native")
