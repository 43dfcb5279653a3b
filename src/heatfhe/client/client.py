# SPDX-License-Identifier: Apache-2.0
"""heatfhe.Client: asks a server for text without showing it the prompt or the answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from heatfhe.approx import gumbel_noise
from heatfhe.client.bundle import LIMITS as BUNDLE_LIMITS
from heatfhe.client.bundle import Bundle
from heatfhe.client.home import default_home, private_folder, private_home
from heatfhe.client.keys import KeyFolder
from heatfhe.client.layout import Layout
from heatfhe.client.leftovers import sweep
from heatfhe.client.link import Link
from heatfhe.client.pending import PendingJobs
from heatfhe.client.read import read_logits, read_token, round_to_bits
from heatfhe.client.sampling import Sampler, check_temperature, fresh_generator
from heatfhe.client.trust import check_config, key_request, trusted_bits
from heatfhe.engine import Keyring, KeyringFactory
from heatfhe.errors import ConfigError, WireError
from heatfhe.files import atomic_write
from heatfhe.progress import SILENT, Reporter
from heatfhe.wire import (
    MEDIA_TYPE,
    JobHead,
    JobOutput,
    JobRequest,
    Limits,
    ModelConfig,
    Refusal,
    ciphertext_limit,
    parse,
)

_TOKENIZER_BYTES = 256 << 20
Facts = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished generation. ``tokens`` are all that were asked for; ``text`` ends where the model ended it.

    ``near_ties`` counts steps whose runner-up came above half of the leader: what was fed back there was a mixture.
    """

    text: str
    tokens: tuple[int, ...]
    session: str
    seconds: float
    near_ties: int = 0


@dataclass(slots=True)
class Conversation:
    """A session on the server as the client knows it: how many positions its cache holds, and what was said."""

    session: str
    position: int = 0
    pending: bool = False
    near_ties: int = 0
    tokens: list[int] = field(default_factory=list)


class Client:
    """One client of one server's model.

    ``folder`` holds keys (the secret at mode 0600, never sent). ``transport`` is httpx's: tests join a client to an app
    with it. ``insecure`` and ``simulate`` allow trials with toy parameters or without encryption; both are refused by
    default.

    >>> client = Client("https://fhe.example", token="heat_...", folder=Path("keys"))       # doctest: +SKIP
    >>> client.generate("Once upon a time", tokens=8).text                                  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        model: str | None = None,
        folder: Path | None = None,
        insecure: bool = False,
        simulate: bool = False,
        transport: httpx.BaseTransport | None = None,
        keyring: KeyringFactory | None = None,
        patience: float = 120.0,
        verify: str | bool = True,
    ) -> None:
        self._link = Link(url, token=token, transport=transport, patience=patience, verify=verify)
        self._model, self._insecure, self._simulate = model, insecure, simulate
        self._folder = folder if folder is not None else default_home()
        self._factory = keyring
        self._key_set: str | None = None

    def close(self) -> None:
        """End the connections; keys and sessions stay."""
        self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- model and keys ------------------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """Names of the models this server has."""
        return [str(row["model"]) for row in self._link.json("GET", "/v1/models")["models"]]

    @cached_property
    def config(self) -> ModelConfig:
        """The model's configuration, checked against this installation's own security table."""
        name = self._model
        if name is None:
            names = self.models()
            if len(names) != 1:
                raise ConfigError(f"the server has {len(names)} models ({', '.join(names)}); choose one with model=")
            name = names[0]
        config = ModelConfig.from_json(self._link.json("GET", f"/v1/models/{name}"))
        if config.model != name:
            raise WireError("the server answers for another model; do not use this server")
        check_config(config, insecure=self._insecure, simulate=self._simulate)
        return config

    @cached_property
    def bundle(self) -> Bundle:
        """Tokenizer and embeddings, kept on disk under their digest."""
        path = self._own("bundles") / self.config.bundle
        if path.exists():
            try:
                return Bundle.read(path.read_bytes(), self.config)
            except WireError:
                path.unlink()
        table = self.config.vocabulary * self.layout.width * 8
        most = min(table + _TOKENIZER_BYTES, BUNDLE_LIMITS.total_bytes)
        data = self._link.ask("GET", f"/v1/models/{self.config.model}/bundle", most=most).content
        found = Bundle.read(data, self.config)
        sweep(path.parent)
        with atomic_write(path) as f:
            f.write(data)
        return found

    def _own(self, name: str) -> Path:
        return private_folder(private_home(self._folder) / name)

    @cached_property
    def layout(self) -> Layout:
        """Where things lie in the slots."""
        return Layout.of(self.config)

    @cached_property
    def _bits(self) -> float:
        return trusted_bits(self.config.params)

    @cached_property
    def keys(self) -> KeyFolder:
        """The keys on this disk for the model's configuration."""
        return KeyFolder(self._own("keys"), self.config)

    @cached_property
    def keyring(self) -> Keyring:
        """The secret half, loaded or made."""
        return self.keygen()

    def keygen(self, reporter: Reporter = SILENT) -> Keyring:
        """Load the keys for the model's plan, or make exactly those it needs."""
        from heatfhe.client import load_keyring

        factory = self._factory if self._factory is not None else load_keyring(self.config.engine)
        return self.keys.open(factory, key_request(self.config), reporter)

    def upload_keys(self, reporter: Reporter = SILENT) -> str:
        """Make sure that the server has every evaluation key; returns the key set's id."""
        if self._key_set is None:
            _ = self.keyring
            chunk = self.config.limits.get("chunk_bytes", 1 << 20)
            self._key_set = self.keys.upload(self._link, max(1 << 10, min(chunk, 64 << 20)), reporter)
        return self._key_set

    # -- sessions ------------------------------------------------------------------------------------------------------

    def open(self, session: str | None = None, reporter: Reporter = SILENT) -> Conversation:
        """A new session, or one that the server still has."""
        if session is not None:
            row = self._link.json("GET", f"/v1/sessions/{session}")
            return Conversation(session, int(row["position"]), bool(row["pending"]))
        body = {"config_id": self.config.config_id, "key_set": self.upload_keys(reporter)}
        return Conversation(str(self._link.json("POST", "/v1/sessions", body=body)["session"]))

    def sessions(self) -> list[dict[str, Any]]:
        """Sessions this client has on the server."""
        return list(self._link.json("GET", "/v1/sessions")["sessions"])

    def key_sets(self) -> list[dict[str, Any]]:
        """Key sets this client has on the server."""
        return list(self._link.json("GET", "/v1/keysets")["key_sets"])

    def delete_session(self, session: str) -> None:
        """Delete a session with its encrypted cache."""
        self._link.ask("DELETE", f"/v1/sessions/{session}")

    def delete_key_set(self, key_set: str) -> None:
        """Delete evaluation keys on the server; the client's own stay."""
        self._link.ask("DELETE", f"/v1/keysets/{key_set}")
        self._key_set = None

    # -- generation ----------------------------------------------------------------------------------------------------

    def generate(self, prompt: str | Sequence[int], tokens: int = 16, **options: Any) -> Answer:
        """All of an answer; options as in ``stream``."""
        began, keep = time.monotonic(), options.pop("keep", False)
        conversation = options.pop("conversation", None)
        conversation = self.open() if conversation is None else conversation
        made = tuple(self.stream(prompt, tokens, conversation=conversation, **options))
        if not keep:
            self._forget(conversation)
        text = self.bundle.decode(made) if self.bundle.tokenizer else ""
        return Answer(
            text=text,
            tokens=made,
            session=conversation.session,
            seconds=time.monotonic() - began,
            near_ties=conversation.near_ties,
        )

    def stream(
        self,
        prompt: str | Sequence[int],
        tokens: int = 16,
        *,
        sampler: Sampler | None = None,
        interactive: bool = False,
        stop_early: bool = False,
        conversation: Conversation | None = None,
        facts: Facts | None = None,
        rng: np.random.Generator | None = None,
    ) -> Iterator[int]:
        """Token ids as they come. The number of steps is fixed here and does not depend on what they turn out to be.

        Free running (default): the server chooses under encryption, greedily or by added noise. ``interactive``: every
        step returns encrypted logits, and the client samples (top-p, repetition penalty). ``stop_early`` ends at the
        model's end of text and thereby tells the server how long the answer is.
        """
        sampler = Sampler() if sampler is None else sampler
        if sampler.needs_logits and not interactive:
            raise ConfigError("top_p and repetition_penalty need decrypted logits; use interactive mode for them")
        if tokens < 1:
            raise ConfigError(f"at least one token must be asked for, got {tokens}")
        ids = self.bundle.encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
        conversation = self.open() if conversation is None else conversation
        last = conversation.position + conversation.pending + len(ids) + tokens - 1
        if last > self.config.context:
            raise ConfigError(
                f"prompt and answer take {last} positions, the model's context is {self.config.context}; "
                "shorten the prompt or ask for fewer tokens"
            )
        if interactive and "logits" not in self.config.programs:
            raise ConfigError("this server's plan returns no logits, so it has no interactive mode; run freely instead")
        rng = fresh_generator() if rng is None else rng
        steps = self._interactive if interactive else self._free
        yield from steps(conversation, ids, tokens, sampler, stop_early, facts, rng)

    def _free(
        self,
        talk: Conversation,
        ids: list[int],
        tokens: int,
        sampler: Sampler,
        stop_early: bool,
        facts: Facts | None,
        rng: np.random.Generator,
    ) -> Iterator[int]:
        noise: list[bytes] = []
        if sampler.temperature > 0:
            check_temperature(sampler.temperature, self.config)
            for _ in range(tokens):
                row = gumbel_noise(rng, self.config.vocabulary, sampler.temperature)
                noise += [self.keyring.encrypt(v, level=self.layout.noise_level) for v in self.layout.place_words(row)]
        job = self._submit(talk, ids, mode="free", steps=tokens, noise=noise)
        talk.tokens += ids
        yield from self._collect(talk, job, tokens, stop_early, facts)

    def _collect(
        self, talk: Conversation, job: str, tokens: int, stop_early: bool, facts: Facts | None
    ) -> Iterator[int]:
        for parts in self._outputs(job, tokens, facts):
            row = self.layout.read_words([self.keyring.decrypt(p) for p in parts])
            token, tie = read_token(row, len(talk.tokens))
            talk.tokens.append(token)
            talk.near_ties += tie
            yield token
            if stop_early and token == self.bundle.end:
                self._link.json("POST", f"/v1/jobs/{job}/cancel")
                break
        self._refresh(talk)

    def _interactive(
        self,
        talk: Conversation,
        ids: list[int],
        tokens: int,
        sampler: Sampler,
        stop_early: bool,
        facts: Facts | None,
        rng: np.random.Generator,
    ) -> Iterator[int]:
        fresh = list(ids)
        for _ in range(tokens):
            job = self._submit(talk, fresh, mode="logits", steps=1)
            talk.tokens += fresh
            (parts,) = self._outputs(job, 1, facts)
            row = self.layout.read_words([self.keyring.decrypt(p) for p in parts])
            logits = read_logits(round_to_bits(row, self._bits), len(talk.tokens))
            fresh = [sampler.choose(logits, talk.tokens, rng)]
            self._refresh(talk)
            yield fresh[0]
            if stop_early and fresh[0] == self.bundle.end:
                return

    def _submit(self, talk: Conversation, ids: list[int], *, mode: str, steps: int, noise: Sequence[bytes] = ()) -> str:
        rows = self.bundle.rows(ids)
        inputs = tuple(self.keyring.encrypt(self.layout.place_row(r), level=self.layout.input_level) for r in rows)
        head = JobHead(
            config_id=self.config.config_id,
            plan=self.config.plan,
            key_set=self.upload_keys(),
            mode=mode,
            steps=steps,
            start=talk.position,
            inputs=len(inputs),
            noise=steps if noise else 0,
            parts=self.layout.parts,
        )
        data = JobRequest(head=head, inputs=inputs, noise=tuple(noise)).pack()
        return self._post(talk.session, secrets.token_hex(16), data, steps)

    def _post(self, session: str, key: str, data: bytes, steps: int) -> str:
        """Send a job. Its bytes are kept until it ends, so that a client that dies goes on with the same ones."""
        self.pending.add(key, session=session, steps=steps, config_id=self.config.config_id, data=data)
        headers = {"content-type": MEDIA_TYPE, "idempotency-key": key}
        try:
            answer = self._link.ask("POST", f"/v1/sessions/{session}/jobs", content=data, headers=headers).json()
        except Refusal:
            self.pending.remove(key)
            raise
        job = str(answer["job"])
        self.pending.note(key, job)
        return job

    @cached_property
    def pending(self) -> PendingJobs:
        """Jobs whose answers have not all been read."""
        return PendingJobs(self._own("jobs"))

    def resume(self, facts: Facts | None = None) -> Iterator[int]:
        """Go on with the job an interrupted client left: all its tokens, from the first."""
        found = self.pending.latest(self.config.config_id)
        if found is None:
            raise ConfigError("no unfinished job of this model is on this machine; ask anew")
        job = self._post(found.session, found.key, found.data, found.steps)
        yield from self._collect(Conversation(found.session), job, found.steps, False, facts)

    def _outputs(self, job: str, steps: int, facts: Facts | None) -> Iterator[tuple[bytes, ...]]:
        """Ciphertexts of every step, in order. Every output is fetched, whatever the ones before it said."""
        step, state, quiet = 0, "queued", 0
        parts, size = self.layout.parts, ciphertext_limit(self.config.params)
        limits = Limits(blocks=parts, block_bytes=size, total_bytes=parts * (size + 512) + 65_536)
        while step < steps:
            for event in self._link.events(f"/v1/jobs/{job}/events"):
                quiet = 0
                if facts is not None:
                    facts(event)
                state = str(event.get("state", state))
                while step < min(steps, int(event.get("outputs", 0))):
                    data = self._link.ask("GET", f"/v1/jobs/{job}/outputs/{step}", most=limits.total_bytes).content
                    output = JobOutput.from_message(parse(data, limits, kinds=("output",)))
                    if (output.job, output.step, output.plan) != (job, step, self.config.plan):
                        raise WireError("an output belongs to another job, step or plan; do not use this server")
                    yield output.outputs
                    step += 1
            record = self._link.json("GET", f"/v1/jobs/{job}")
            if record["state"] in ("failed", "cancelled") and step >= int(record["outputs"]):
                self.pending.remove_job(job)
                raise Refusal(
                    str(record["error"] or record["state"]),
                    f"the job {record['state']} after {step} of {steps} steps: {record['message'] or 'no reason'}",
                    "ask anew",
                )
            quiet += 1
            if step < steps and quiet > 1:
                time.sleep(min(0.1 * quiet, 2.0))
        self.pending.remove_job(job)

    def _refresh(self, talk: Conversation) -> None:
        row = self._link.json("GET", f"/v1/sessions/{talk.session}")
        talk.position, talk.pending = int(row["position"]), bool(row["pending"])

    def _forget(self, talk: Conversation) -> None:
        try:
            self.delete_session(talk.session)
        except (Refusal, WireError):
            return  # it expires by itself; the answer is there
