# SPDX-License-Identifier: Apache-2.0
"""What a client has of a generation: its answer, and the conversation it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished generation. ``tokens`` are all that were asked for; ``text`` ends where the model ended it.

    ``near_ties`` counts steps whose runner-up came above half of the leader: what was fed back there was a mixture.
    ``faint`` counts steps whose leader came below half of a clean choice: a weak copy of the word was fed back, and the
    tokens after it may mean nothing. ``exceeded`` is of simulated models: refreshes that met more than was planned for.
    """

    text: str
    tokens: tuple[int, ...]
    session: str
    seconds: float
    near_ties: int = 0
    faint: int = 0
    exceeded: int = 0


@dataclass(slots=True)
class Conversation:
    """A session on the server as the client knows it: how many positions its cache holds, and what was said.

    One without a name is opened by the first question that is asked in it. ``logits`` are those of images.
    """

    session: str = ""
    position: int = 0
    pending: bool = False
    near_ties: int = 0
    faint: int = 0
    exceeded: int = 0
    tokens: list[int] = field(default_factory=list)
    logits: list[tuple[float, ...]] = field(default_factory=list)
