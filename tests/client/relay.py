# SPDX-License-Identifier: Apache-2.0
"""A relay on loopback between a client and a server: keeps every byte sent to the server, cuts where it is told."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Forwards connections. When the bytes sent to the server pass the next of ``places``, the connection is cut."""

    def __init__(self, port: int, places: list[int] | None = None) -> None:
        self._target, self._places = port, list(places or [])
        self.sent, self.cuts = bytearray(), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._back, args=(far, near), daemon=True).start()
                threading.Thread(target=self._forth, args=(near, far), daemon=True).start()

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65_536):
                near.sendall(data)
        near.close()

    def _forth(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(1024 if self._places else 65_536):
                cut = bool(self._places) and len(self.sent) + len(data) >= self._places[0]
                if cut:
                    data = data[: max(0, self._places.pop(0) - len(self.sent))]
                    self.cuts += 1
                far.sendall(data)
                self.sent += data
                if cut:
                    break
        for end in (near, far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()
