# SPDX-License-Identifier: Apache-2.0
"""One generation's requests on a thread of their own, run to their end whatever they bring and whoever listens.

A failed decryption, and a consumer that stops, must not show in what is sent. So nothing that sends waits for the
consumer, and a failure is kept here until the last request has been answered.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from heatfhe.client.link import Link
from heatfhe.client.read import NO_RETRY
from heatfhe.errors import DecryptError, HeatError

Facts = Callable[[dict[str, Any]], None]
_MOST_WAITING = 64


class Exchange:
    """The traffic of one generation. Other requests of the same link wait until it is over.

    A process that ends waits as well, unless ``abandon`` was called: then the server sees that the client is gone.
    """

    def __init__(self, link: Link, traffic: Callable[[Exchange], None]) -> None:
        self._items: queue.SimpleQueue[int | dict[str, Any] | None] = queue.SimpleQueue()
        self._unreadable: Exception | None = None
        self._broken: Exception | None = None
        begun = threading.Event()
        # A daemon, so that an interrupt can end the process; the finalizer waits for it in every other case.
        self._thread = threading.Thread(target=self._run, args=(link, traffic, begun), daemon=True)
        self._at_exit = weakref.finalize(self, _wait, self._thread)
        self._thread.start()
        begun.wait()

    def abandon(self) -> None:
        """Let the process end without the rest."""
        self._at_exit.detach()

    def _run(self, link: Link, traffic: Callable[[Exchange], None], begun: threading.Event) -> None:
        with link.turn:
            begun.set()
            try:
                traffic(self)
            except Exception as err:
                self._broken = err
            finally:
                self._items.put(None)

    # -- for the traffic -----------------------------------------------------------------------------------------------

    def note(self, event: dict[str, Any]) -> None:
        """A public fact for the consumer; dropped if it does not listen."""
        if self._items.qsize() < _MOST_WAITING:
            self._items.put(event)

    def attempt(self, read: Callable[[], int]) -> int | None:
        """The token that an output says, given to the consumer; None if it cannot be read.

        Nothing is raised. The consumer gets the first failure, and no token after it, when the traffic is over.
        """
        try:
            token = read()
        except Exception as err:
            if self._unreadable is None:
                self._unreadable = err if isinstance(err, HeatError) else _unreadable(err)
            return None
        if self._unreadable is None:
            self._items.put(token)
        return token

    # -- for the consumer ----------------------------------------------------------------------------------------------

    def tokens(self, facts: Facts | None = None) -> Iterator[int]:
        """Tokens as they come; what went wrong is raised after the last request."""
        while (item := self._items.get()) is not None:
            if isinstance(item, int):
                yield item
            elif facts is not None:
                facts(item)
        if self._unreadable is not None:
            raise self._unreadable
        if self._broken is not None:
            raise self._broken


def _unreadable(err: Exception) -> DecryptError:
    failure = DecryptError(f"an output cannot be read ({type(err).__name__}). {NO_RETRY}")
    failure.__cause__ = err
    return failure


def _wait(thread: threading.Thread) -> None:
    if thread is not threading.current_thread():
        thread.join()
