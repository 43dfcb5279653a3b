# SPDX-License-Identifier: Apache-2.0
"""What client and server say to each other, as frozen dataclasses that check themselves when read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from heatfhe.ckks import Params
from heatfhe.errors import ConfigError, WireError
from heatfhe.files import json_digest, plain
from heatfhe.planning import ProgramName
from heatfhe.wire.frame import Header, Limits, Message
from heatfhe.wire.strict import Fields

API_VERSIONS = (1,)
# The wire's words for what a job's steps run: whether "free" adds noise shows in its blocks.
MODES = {
    ProgramName.GENERATE: "free",
    ProgramName.SAMPLE: "free",
    ProgramName.LOGITS: "logits",
    ProgramName.CLASSIFY: "classify",
}
_IDENTITY = (
    *("model", "engine", "params", "plan", "circuit", "programs", "rotations", "conjugation", "bootstrap_periods"),
    *("layout", "vocabulary", "context", "bundle", "noise_bound", "max_temperature"),
)
MAX_KEYS, MAX_KEY_BYTES = 4096, 1 << 34
MAX_STEPS = 4096
"""Steps of one job: tokens, or images."""
MAX_RING = 1 << 17  # the largest the security table knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a run costs, before any key is made."""

    seconds_per_prompt_token: float
    seconds_per_token: float
    key_bytes: int
    bootstraps_per_token: int

    def as_json(self) -> dict[str, Any]:
        return plain(self)

    @classmethod
    def from_json(cls, body: Any) -> Price:
        f = Fields(body, of="price")
        price = cls(
            seconds_per_prompt_token=f.number("seconds_per_prompt_token", lo=0, hi=1e9),
            seconds_per_token=f.number("seconds_per_token", lo=0, hi=1e9),
            key_bytes=f.integer("key_bytes", lo=0, hi=1 << 48),
            bootstraps_per_token=f.integer("bootstraps_per_token", lo=0, hi=1 << 24),
        )
        f.done()
        return price


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A served model, as public data. ``config_id`` is the SHA-256 of everything a key set depends on.

    ``layout`` says where a token's embedding and the answer's values lie in the slots. ``bundle`` is the digest of the
    files a client needs besides (tokenizer, embedding tables). ``price`` and ``limits`` may change without a new id.
    """

    model: str
    engine: str
    params: Params
    plan: str
    circuit: str
    programs: tuple[str, ...]
    rotations: tuple[int, ...]
    conjugation: bool
    bootstrap_periods: tuple[int, ...]
    layout: Mapping[str, Any]
    vocabulary: int
    context: int
    bundle: str
    noise_bound: float
    max_temperature: float
    price: Price
    limits: Mapping[str, int] = field(default_factory=dict)
    rotation_levels: tuple[int, ...] = ()
    api_versions: tuple[int, ...] = API_VERSIONS

    def identity(self) -> dict[str, Any]:
        """The part that the config id covers. Levels of rotations are named where keys go by level, and only there."""
        levels = ("rotation_levels",) if self.rotation_levels else ()
        return plain(self, (*levels, *_IDENTITY))

    @property
    def config_id(self) -> str:
        """SHA-256 of the identity's canonical JSON."""
        return json_digest(self.identity())

    def as_json(self) -> dict[str, Any]:
        """The answer to GET /v1/models/{model}."""
        rest = plain(self, ("price", "limits", "api_versions"))
        return {"config_id": self.config_id, "config": self.identity(), **rest}

    @classmethod
    def from_json(cls, body: Any) -> ModelConfig:
        """Read an answer; recomputes the id and refuses one that does not match."""
        top = Fields(body, of="model configuration")
        claimed, identity = top.digest("config_id"), top.object("config")
        price, limits = Price.from_json(top.object("price")), top.object("limits")
        versions = top.integers("api_versions", lo=1, hi=1000, longest=100)
        top.done()
        if not set(versions) & set(API_VERSIONS):
            raise WireError(
                f"the server speaks API versions {versions}, this release {API_VERSIONS}; upgrade the older side"
            )
        if _digest(lambda: identity) != claimed:
            raise WireError("the configuration does not match its id; do not use this server")
        if any(type(v) is not int for v in limits.values()):
            raise WireError("the configuration's limits must be integers; see docs/formats.md")
        f = Fields(identity, of="model configuration")
        try:
            params = Params.from_json(f.object("params"))
        except ConfigError as err:
            raise WireError(f"the server's parameters are not legal: {err}") from err
        if params.ring_dimension > MAX_RING:  # a client fills rows of slots before anything else could stop it
            raise WireError(f"the server's ring has more than {MAX_RING} coefficients; do not use this server")
        slots = params.slots
        config = cls(
            model=f.name("model"),
            engine=f.name("engine"),
            params=params,
            plan=f.digest("plan"),
            circuit=f.digest("circuit"),
            programs=f.names("programs", longest=16),
            rotations=f.integers("rotations", lo=1 - slots, hi=slots - 1, longest=MAX_KEYS),
            rotation_levels=_levels(f, identity, params.levels),
            conjugation=f.flag("conjugation"),
            bootstrap_periods=f.integers("bootstrap_periods", lo=1, hi=slots, longest=64),
            layout=f.object("layout"),
            vocabulary=f.integer("vocabulary", lo=2, hi=1 << 22),
            context=f.integer("context", lo=1, hi=1 << 22),
            bundle=f.digest("bundle"),
            noise_bound=f.number("noise_bound", lo=0, hi=1e6),
            max_temperature=f.number("max_temperature", lo=0, hi=100),
            price=price,
            limits=limits,
            api_versions=versions,
        )
        f.done()
        if config.rotation_levels and len(config.rotation_levels) != len(config.rotations):
            raise WireError("the configuration names a level for some of its rotations; do not use this server")
        if _digest(config.identity) != claimed:  # a whole number where a double belongs: two ids for one configuration
            raise WireError("the configuration's numbers are not written as documented; see docs/formats.md")
        return config


def _levels(f: Fields, identity: Mapping[str, Any], most: int) -> tuple[int, ...]:
    """Levels of rotations, where a configuration names any: none of a set's keys reach higher than its levels."""
    return f.integers("rotation_levels", lo=0, hi=most, longest=MAX_KEYS) if "rotation_levels" in identity else ()


def _digest(value: Callable[[], Any]) -> str:
    """The digest of a value from the network; NaN, infinities and what nobody could nest on purpose have none."""
    try:
        return json_digest(value())
    except (ValueError, RecursionError) as err:
        raise WireError("the configuration holds what JSON cannot; do not use this server") from err


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One evaluation key: its name in the key set, its size, and the SHA-256 it is stored under."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyManifest:
    """A key set, as a list of content-addressed blobs for one configuration."""

    config_id: str
    keys: tuple[KeyEntry, ...]

    def __post_init__(self) -> None:
        names = [k.name for k in self.keys]
        if len(set(names)) != len(names):
            raise WireError("key manifest: two keys share a name; list every key once")
        if len({(k.sha256, k.size) for k in self.keys}) != len({k.sha256 for k in self.keys}):
            raise WireError("key manifest: one hash is given two sizes; list the true sizes")

    @property
    def size(self) -> int:
        """Bytes of all keys."""
        return sum(k.size for k in self.keys)

    @property
    def key_set(self) -> str:
        """Identifies the set: SHA-256 of the manifest's canonical JSON."""
        return json_digest(self.as_json())

    def as_json(self) -> dict[str, Any]:
        return plain(self)

    @classmethod
    def from_json(cls, body: Any) -> KeyManifest:
        top = Fields(body, of="key manifest")
        config_id, rows = top.digest("config_id"), top.array("keys", longest=MAX_KEYS)
        top.done()
        if not rows:
            raise WireError("key manifest: it lists no keys; list every evaluation key of the plan")
        keys = []
        for row in rows:
            f = Fields(row, of="key manifest")
            keys.append(
                KeyEntry(name=f.name("name"), size=f.integer("size", lo=1, hi=MAX_KEY_BYTES), sha256=f.digest("sha256"))
            )
            f.done()
        return cls(config_id=config_id, keys=tuple(keys))


def unit_kind(program: ProgramName) -> str:
    """The word of a job's events for a run of a program: one with noise is told as generate."""
    return str(ProgramName.GENERATE if program is ProgramName.SAMPLE else program)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHead:
    """Work for one session, without its ciphertexts: encrypted inputs that follow what the session holds, then steps.

    ``program`` is what each step runs. generate and sample (mode "free"): after the inputs the server runs ``steps`` of
    them and returns a near one-hot row for each; to sample there is temperature times Gumbel noise for every step,
    added to the logits before the argmax. logits: the server returns the encrypted logits after the last input;
    ``steps`` is 1. ``start`` is the number of positions the client believes the session's cache holds, so that a replay
    is refused. ``inputs`` counts ciphertexts, of one token each, ``parts`` those each step's noise is split into.
    ``prefill``, if any, are the tokens that open the conversation at once, and how many of the inputs hold them.
    classify: every step is one image, whose rows are as many of the inputs as any other's; its logits are returned, and
    nothing of it stays in the session, so that ``start`` is 0.
    """

    config_id: str
    plan: str
    key_set: str
    program: ProgramName
    steps: int
    start: int
    inputs: int
    parts: int = 1
    prefill: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.program not in MODES:
            raise WireError(f"job: its steps run one of {', '.join(MODES)}")
        logits = self.program == ProgramName.LOGITS
        if not 1 <= self.steps <= MAX_STEPS or (logits and self.steps != 1):
            raise WireError(f"job: steps must lie in 1 to {MAX_STEPS}, and be 1 in mode logits")
        if self.start < 0 or (self.start == 0 and not self.inputs):
            raise WireError("job: a new session needs at least one input")
        if logits and not self.inputs:
            raise WireError("job: mode logits needs at least one input")
        if self.program == ProgramName.CLASSIFY and (self.start or self.prefill or self.inputs % self.steps):
            raise WireError("job: mode classify starts at 0, without a prefill, and every image has as many inputs")
        if self.prefill and (len(self.prefill) != 2 or min(self.prefill) < 1 or self.start):
            raise WireError("job: prefill is tokens and ciphertexts of the first prompt of a session")
        if self.inputs <= self.packed and self.prefill:
            raise WireError("job: after a prefill comes at least one input of one token")

    @property
    def packed(self) -> int:
        """How many inputs hold many tokens each."""
        return self.prefill[1] if self.prefill else 0

    @property
    def tokens(self) -> int:
        """Positions its inputs take."""
        return self.inputs - self.packed + (self.prefill[0] if self.prefill else 0)

    @property
    def positions(self) -> int:
        """Positions of the session's cache that it takes: an image takes none."""
        return 0 if self.program == ProgramName.CLASSIFY else self.tokens + self.steps - 1

    @property
    def mode(self) -> str:
        """The wire's word for the program."""
        return MODES[self.program]

    @property
    def noise(self) -> int:
        """How many ciphertexts of noise come with it."""
        return self.steps * self.parts if self.program == ProgramName.SAMPLE else 0

    def noise_blocks(self, step: int) -> tuple[str, ...]:
        """Names of the blocks with a step's noise; none if the job has no noise."""
        if not self.noise:
            return ()
        return tuple(f"noise/{step * self.parts + part:04d}" for part in range(self.parts))

    @classmethod
    def from_header(cls, header: Header) -> JobHead:
        """Read the header of a message of kind "job"."""
        names = [name for name, _, _ in header.blocks]
        inputs = sum(name.startswith("input/") for name in names)
        noise = len(names) - inputs
        expected = [f"input/{i:04d}" for i in range(inputs)] + [f"noise/{i:04d}" for i in range(noise)]
        if names != expected:
            raise WireError("job: blocks are input/0000, ..., then noise/0000, ..., in order; see docs/formats.md")
        f = Fields(header.body, of="job")
        mode, parts = f.choice("mode", tuple(dict.fromkeys(MODES.values()))), f.integer("parts", lo=1, hi=64)
        if noise % parts:
            raise WireError(f"job: {noise} noise blocks are not a multiple of {parts} parts; see docs/formats.md")
        free = ProgramName.SAMPLE if noise else ProgramName.GENERATE
        named = {MODES[program]: program for program in (free, ProgramName.LOGITS, ProgramName.CLASSIFY)}
        job = cls(
            config_id=f.digest("config_id"),
            plan=header.plan,
            key_set=f.digest("key_set"),
            program=named[mode],
            steps=f.integer("steps", lo=1, hi=MAX_STEPS),
            start=f.integer("start", lo=0, hi=1 << 22),
            inputs=inputs,
            parts=parts,
            prefill=f.integers("prefill", lo=1, hi=1 << 22, longest=2) if "prefill" in header.body else (),
        )
        f.done()
        if "prefill" in header.body and not job.prefill:
            raise WireError("job: an empty prefill is left out")
        if noise != job.noise:
            raise WireError("job: noise needs mode free and one entry per step")
        return job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job's head with its ciphertexts: what a client packs. ``noise`` holds the parts of every step in order."""

    head: JobHead
    inputs: tuple[bytes, ...]
    noise: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.inputs) != self.head.inputs or len(self.noise) != self.head.noise:
            raise WireError("job: the ciphertexts do not match the head")

    def pack(self) -> bytes:
        """Wire form."""
        blocks = {f"input/{i:04d}": data for i, data in enumerate(self.inputs)}
        blocks |= {f"noise/{i:04d}": data for i, data in enumerate(self.noise)}
        names = ("config_id", "key_set", "mode", "steps", "start", "parts")
        body = plain(self.head, names + (("prefill",) if self.head.prefill else ()))
        return Message(kind="job", plan=self.head.plan, body=body, blocks=blocks).pack()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutput:
    """The ciphertexts of one step: near one-hot rows in mode free, logits in mode logits."""

    plan: str
    job: str
    step: int
    outputs: tuple[bytes, ...]

    def pack(self) -> bytes:
        """Wire form."""
        blocks = {f"output/{i:04d}": data for i, data in enumerate(self.outputs)}
        return Message(kind="output", plan=self.plan, body={"job": self.job, "step": self.step}, blocks=blocks).pack()

    @classmethod
    def from_message(cls, message: Message) -> JobOutput:
        """Read a message of kind "output"."""
        f = Fields(message.body, of="output")
        if list(message.blocks) != [f"output/{i:04d}" for i in range(len(message.blocks))]:
            raise WireError("output: blocks are named output/0000 and count from 0; see docs/formats.md")
        result = cls(
            plan=message.plan,
            job=f.identifier("job"),
            step=f.integer("step", lo=0, hi=MAX_STEPS),
            outputs=tuple(message.blocks.values()),
        )
        f.done()
        return result


def ciphertext_limit(params: Params) -> int:
    """Largest ciphertext, in bytes, that any engine writes at these parameters: two polynomials of 32- or 64-bit words.

    Counts one 64-bit word per 28 bits of log2 QP and coefficient (primes of 25 to 31 bits take 32-bit words, OpenFHE's
    of up to 60 bits take 64), plus 64 KiB for headers.
    """
    limbs = int(params.log_qp // 28) + 2
    return 16 * params.ring_dimension * limbs + (1 << 16)


def job_limits(params: Params, *, context: int, parts: int = 1) -> Limits:
    """Limits of a job message: at most a context of inputs and a context of noise, ``parts`` ciphertexts each."""
    most, each = (1 + parts) * context, ciphertext_limit(params)
    total = most * (each + 256) + (1 << 16)
    return Limits(header_bytes=1024 + 256 * most, blocks=most, block_bytes=each, total_bytes=total)
