# SPDX-License-Identifier: Apache-2.0
"""What a service needs, from a plan and prices: seats, memory, storage and traffic for so many clients and tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from heatfhe.ckks import native_set
from heatfhe.errors import ConfigError
from heatfhe.files import plain
from heatfhe.planning.cost import CostTable
from heatfhe.planning.plan import Plan
from heatfhe.planning.program import ProgramName
from heatfhe.planning.tally import key_bytes, tally, weight_bytes

DAY = 86_400
SNAPSHOT_SHARE = 0.1  # of the seconds a job computes, at most this for storing its snapshots
SNAPSHOT_SECONDS = 30.0  # of computing, between two snapshots: about what a kill may cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What clients ask for, and how a server is run. Every client is alike; all but ``peak`` are averages over days.

    A client has ``tokens_per_day`` generated, in answers of ``answer`` tokens to prompts of ``prompt``. The busiest
    hour has ``peak`` times the average, and seats are meant to work for the fraction ``busy`` of it, so that jobs do
    not wait long. A client's keys are opened ``openings_per_day`` times, each in ``opening_seconds``; a seat keeps
    ``resident`` of them open. ``sessions`` of each client are kept, in a store that takes ``store_rate`` MiB a second
    from a seat, with at least ``snapshot_seconds`` of computing between two snapshots.
    """

    clients: int
    tokens_per_day: float
    prompt: int = 32
    answer: int = 32
    peak: float = 2.0
    busy: float = 0.7
    openings_per_day: float = 1.0
    opening_seconds: float = 10.0
    resident: int = 2
    sessions: int = 1
    store_rate: float = 200.0
    snapshot_seconds: float = SNAPSHOT_SECONDS

    def __post_init__(self) -> None:
        for name in ("clients", "tokens_per_day", "prompt", "answer", "resident", "sessions", "store_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 < self.busy <= 1:
            raise ConfigError(f"seats can be busy for a fraction of the time above 0 and up to 1, got {self.busy:g}")
        if not self.peak >= 1:
            raise ConfigError(f"the busiest hour has at least the average, so peak is 1 or more, got {self.peak:g}")
        if min(self.openings_per_day, self.opening_seconds, self.snapshot_seconds) < 0:
            raise ConfigError("openings_per_day, opening_seconds and snapshot_seconds cannot be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What that takes. Sizes are bytes, of ciphertext words alone: headers add less than a thousandth.

    ``seat_seconds_per_day`` is work by the plan's prices; ``seats`` carries its busiest hour. ``worker_bytes`` is one
    open key set: the keys with the half that travels as a seed, encoded weights of the program that needs most, and one
    session's cache. Keys are uploaded once per client. The journal is what sessions write to the store at most: a whole
    cache, ``snapshots_per_request`` times.
    """

    seats: int
    seat_seconds_per_day: float
    seconds_per_request: float
    requests_per_day: float
    snapshots_per_request: int
    worker_bytes: int
    seat_bytes: int
    key_bytes_per_client: int
    session_bytes: int
    storage_bytes: int
    key_upload_bytes: int
    upload_bytes_per_day: int
    download_bytes_per_day: int
    journal_bytes_per_day: int

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return plain(self)


def capacity(plan: Plan, load: Load, cost: CostTable | None = None) -> Capacity:
    """What a load takes on a plan's seats; without a ``cost`` at the prices the plan was made with."""
    if load.prompt + load.answer - 1 > plan.context:
        raise ConfigError(
            f"a prompt of {load.prompt} and an answer of {load.answer} tokens exceed the plan's context of "
            f"{plan.context}; shorten them, or plan with a larger --context"
        )
    if cost is not None and cost.unit != "s":
        raise ConfigError(f"{cost.name} counts {cost.unit}, not seconds; choose another --costs")
    seconds, units, uploaded = _request(plan, load, cost)
    requests = load.clients * load.tokens_per_day / load.answer
    opening = load.clients * load.openings_per_day * load.opening_seconds
    work = requests * seconds + opening
    generate = plan.program(ProgramName.GENERATE)
    token, following = generate.outputs["token"], generate.outputs["next"]
    session = sum(count * _bytes(plan, level) for count, level in plan.cache.values())
    session += len(following.values) * _bytes(plan, following.level)
    snapshots = _snapshots(seconds, units, session / (load.store_rate * 2**20), load.snapshot_seconds)
    keys = key_bytes(plan)
    opened = keys * (2 if plan.params.engine == "native" else 1)  # the half that travels as a seed is expanded
    worker = opened + max(weight_bytes(plan, name) for name in plan.programs) + session
    return Capacity(
        seats=math.ceil(work * load.peak / (DAY * load.busy)),
        seat_seconds_per_day=work,
        seconds_per_request=seconds,
        requests_per_day=requests,
        snapshots_per_request=snapshots,
        worker_bytes=worker,
        seat_bytes=load.resident * worker,
        key_bytes_per_client=keys,
        session_bytes=session,
        storage_bytes=load.clients * (keys + load.sessions * session),
        key_upload_bytes=load.clients * keys,
        upload_bytes_per_day=round(requests * uploaded),
        download_bytes_per_day=round(requests * load.answer * len(token.values) * _bytes(plan, token.level)),
        journal_bytes_per_day=round(requests * snapshots * session),
    )


def _request(plan: Plan, load: Load, cost: CostTable | None) -> tuple[float, int, int]:
    """Seconds, programs run and bytes sent for one prompt and its answer, as a server runs them.

    All but the last token of a prompt fill the cache, one by one or, where the plan can and it is quicker, at once.
    """
    alone, answer = _seconds(plan, ProgramName.PROMPT, cost), load.answer * _seconds(plan, ProgramName.GENERATE, cost)
    each = _bytes(plan, plan.program(ProgramName.PROMPT).inputs["x"].level) // 2  # fresh: half of it is a seed
    rest = load.prompt - 1
    ways = [(rest * alone + answer, rest + load.answer, load.prompt * each)]
    if plan.prefill and rest:
        port, packed = plan.program(ProgramName.PREFILL).inputs["x"], min(plan.prefill, rest)
        at_once = _seconds(plan, ProgramName.PREFILL, cost) + (rest - packed) * alone + answer
        sent = len(port.values) * (_bytes(plan, port.level) // 2) + (load.prompt - packed) * each
        ways.append((at_once, 1 + rest - packed + load.answer, sent))
    return min(ways)


def _snapshots(seconds: float, units: int, cost: float, least: float) -> int:
    """How often the state of a request is stored at most: one snapshot at its end, and before that one whenever a tenth
    of the computing pays for it and ``least`` seconds have been computed since the last."""
    paid = math.floor(SNAPSHOT_SHARE * seconds / cost)
    spaced = 1 + (math.floor(seconds / least) if least else units)
    return max(1, min(units, paid, spaced))


def _seconds(plan: Plan, program: str, cost: CostTable | None) -> float:
    if cost is None:
        return plan.program(program).predicted_seconds
    return sum(row.seconds for row in tally(plan, program, cost).values())


def _bytes(plan: Plan, level: int) -> int:
    """Bytes of a ciphertext's words: exact on the native engine, elsewhere by the bits of the scale."""
    params = plan.params
    if params.engine == "native":
        native = native_set(params)
        return 8 * params.ring_dimension * len(native.chain.rows(level + native.floor))
    return int(2 * params.ring_dimension * (level + 2) * params.scale_bits / 8)
