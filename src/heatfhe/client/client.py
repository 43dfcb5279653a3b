# SPDX-License-Identifier: Apache-2.0
"""heatfhe.Client: asks a server for text without showing it the prompt or the answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from heatfhe.client.bundle import LIMITS as BUNDLE_LIMITS
from heatfhe.client.bundle import Bundle
from heatfhe.client.exchange import Exchange, Facts
from heatfhe.client.home import client_folder, private_folder
from heatfhe.client.keys import KeyFolder
from heatfhe.client.layout import Layout
from heatfhe.client.leftovers import sweep
from heatfhe.client.link import Link
from heatfhe.client.pending import PendingJobs
from heatfhe.client.sampling import Sampler, check_temperature, fresh_generator
from heatfhe.client.steps import Asked, Steps, session_state
from heatfhe.client.talk import Answer, Conversation
from heatfhe.client.trust import check_config, trusted_bits
from heatfhe.engine import Keyring, KeyringFactory, key_request
from heatfhe.errors import ConfigError, WireError
from heatfhe.files import atomic_write
from heatfhe.planning import ProgramName
from heatfhe.progress import SILENT, Reporter
from heatfhe.wire import MAX_STEPS, Fields, ModelConfig

_TOKENIZER_BYTES = 256 << 20
_PATCH_PIXELS = 1 << 16  # at most, of all channels


class Client:
    """One client of one server's model.

    ``folder`` holds keys (the secret at mode 0600, never sent). ``transport`` is httpx's: tests join a client to an app
    with it. ``verify`` is a file with the certificate to trust, for a server that has its own; ``notice`` is told when
    the server does not answer and is tried again. ``insecure`` and ``simulate`` allow trials with toy parameters or
    without encryption; both are refused by default.

    >>> client = Client("https://fhe.example", token="heat_...", folder=Path("keys"))       # doctest: +SKIP
    >>> client.generate("Once upon a time", tokens=8).text                                  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        model: str | None = None,
        folder: str | Path | None = None,
        insecure: bool = False,
        simulate: bool = False,
        transport: httpx.BaseTransport | None = None,
        keyring: KeyringFactory | None = None,
        patience: float = 120.0,
        verify: str | Path | bool = True,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        trusted = str(verify) if isinstance(verify, Path) else verify
        self._link = Link(url, token=token, transport=transport, patience=patience, verify=trusted, notice=notice)
        self._model, self._insecure, self._simulate = model, insecure, simulate
        self._folder = None if folder is None else Path(folder)
        self._factory = keyring
        self._keyring: Keyring | None = None
        self._key_set: str | None = None
        self._unanswered: dict[tuple[str, str], str] = {}  # idempotency keys by configuration and key set
        self._exchange: Exchange | None = None

    def close(self) -> None:
        """Let what is on its way end, then the connections; keys and sessions stay."""
        self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            self.close()
        elif self._exchange is not None:
            self._exchange.abandon()  # the user's own choice; docs/security.md says what it shows

    # -- model and keys ------------------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """Names of the models this server has."""
        return [Fields(row, of="model").name("model") for row in self._listing("models")]

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
        table = max(self.config.vocabulary, _PATCH_PIXELS) * self.layout.width * 8
        most = min(table + _TOKENIZER_BYTES, BUNDLE_LIMITS.total_bytes)
        data = self._link.ask("GET", f"/v1/models/{self.config.model}/bundle", most=most).content
        found = Bundle.read(data, self.config)
        sweep(path.parent)
        with atomic_write(path) as f:
            f.write(data)
        return found

    def _own(self, name: str) -> Path:
        return private_folder(client_folder(self._folder) / name)

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

    @property
    def keyring(self) -> Keyring:
        """The secret half, loaded or made."""
        return self.keygen()

    def keygen(self, reporter: Reporter = SILENT) -> Keyring:
        """Load the keys for the model's plan, or make exactly those it needs; once for a client."""
        from heatfhe.client import load_keyring

        if self._keyring is None:
            factory = self._factory if self._factory is not None else load_keyring(self.config.engine)
            self._keyring = self.keys.open(factory, key_request(self.config), reporter)
        return self._keyring

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
            return Conversation(session, *session_state(self._link, session))
        asked = (self.config.config_id, self.upload_keys(reporter))
        with self._link.turn:
            # A server that was lost may have opened it: until an answer comes, the next try repeats the key.
            key = self._unanswered.pop(asked, None) or secrets.token_hex(16)
            try:
                body = dict(zip(("config_id", "key_set"), asked, strict=True))
                answer = self._link.ask("POST", "/v1/sessions", body=body, headers={"idempotency-key": key})
            except BaseException:
                self._unanswered[asked] = key
                raise
        return Conversation(Fields(answer.json(), of="session").identifier("session"))

    def sessions(self) -> list[dict[str, Any]]:
        """Sessions this client has on the server."""
        return self._listing("sessions")

    def key_sets(self) -> list[dict[str, Any]]:
        """Key sets this client has on the server."""
        return self._listing("key_sets")

    def _listing(self, name: str) -> list[Any]:
        body = self._link.json("GET", f"/v1/{name.replace('_', '')}")
        return Fields(body, of=name).array(name, longest=1 << 20)

    def delete_session(self, session: str) -> None:
        """Delete a session with its encrypted cache."""
        self._link.ask("DELETE", f"/v1/sessions/{session}")

    def delete_key_set(self, key_set: str) -> None:
        """Delete evaluation keys on the server; the client's own stay."""
        self._link.ask("DELETE", f"/v1/keysets/{key_set}")
        self._key_set = None

    # -- generation ----------------------------------------------------------------------------------------------------

    def check(
        self,
        prompt: str | Sequence[int],
        tokens: int = 16,
        *,
        sampler: Sampler | None = None,
        interactive: bool = False,
        conversation: Conversation | None = None,
    ) -> list[int]:
        """Token ids of a prompt, or the reason why it cannot be asked. No session is opened for that."""
        sampler, talk = sampler or Sampler(), conversation or Conversation()
        if ProgramName.CLASSIFY in self.config.programs:
            raise ConfigError(f"{self.config.model}: classifies images and continues no text; use heat classify")
        if sampler.needs_logits and not interactive:
            raise ConfigError(
                "top_p and repetition_penalty need decrypted logits; use interactive mode for them: heat generate "
                "--interactive, or interactive=True in Python"
            )
        if tokens < 1:
            raise ConfigError(f"at least one token must be asked for, got {tokens}")
        if interactive and ProgramName.LOGITS not in self.config.programs:
            raise ConfigError(
                "this server's plan returns no logits, so it has no interactive mode; run freely instead, or ask its "
                "operator for one that does: heat plan --programs generate,prompt,logits,sample"
            )
        if sampler.temperature > 0 and not interactive:
            check_temperature(sampler.temperature, self.config)
        ids = self.bundle.encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
        self.bundle.check(ids)
        if not ids and (interactive or not talk.position):
            raise ConfigError("the prompt holds no token; write something")
        last = talk.position + talk.pending + len(ids) + tokens - 1
        if last > self.config.context:
            raise ConfigError(
                f"prompt and answer take {last} positions, the model's context is {self.config.context}; "
                "shorten the prompt or ask for fewer tokens (--tokens, or max_tokens through heat proxy)"
            )
        return ids

    def generate(self, prompt: str | Sequence[int], tokens: int = 16, *, keep: bool = False, **options: Any) -> Answer:
        """All of an answer; options as in ``stream``. Its session is deleted unless ``keep``."""
        began, conversation = time.monotonic(), options.pop("conversation", None) or Conversation()
        made = tuple(self.stream(prompt, tokens, conversation=conversation, keep=keep, **options))
        text = self.bundle.decode(made) if self.bundle.tokenizer else ""
        return Answer(
            text=text,
            tokens=made,
            session=conversation.session,
            seconds=time.monotonic() - began,
            near_ties=conversation.near_ties,
            faint=conversation.faint,
            exceeded=conversation.exceeded,
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
        keep: bool | None = None,
        facts: Facts | None = None,
        rng: np.random.Generator | None = None,
        stop: Callable[[], bool] = bool,
    ) -> Iterator[int]:
        """Token ids as they come. What is sent is fixed here: neither their values nor how many are read change it.

        Whoever leaves the loop leaves the rest to a thread, for which other requests of this client wait. An output
        that cannot be read raises an error when everything has been fetched.

        Free running (default): the server chooses under encryption, greedily or by added noise. ``interactive``: every
        step returns encrypted logits, and the client samples (top-p, repetition penalty). ``stop_early`` ends at the
        model's end of text and thereby tells the server how long the answer is. ``stop`` is asked while the job runs:
        once it is true the rest is cancelled, and the server sees when. The session is opened unless ``conversation``
        has one, and deleted at the end unless ``keep``; by default a conversation's own is kept.
        """
        with self._link.turn:  # a generation that someone left may still move the conversation
            ids = self.check(prompt, tokens, sampler=sampler, interactive=interactive, conversation=conversation)
        talk, end = conversation or Conversation(), self.bundle.end if stop_early else None
        steps, ours = self._steps(), not talk.session
        if ours:
            talk.session = self.open().session
        keep = not ours if keep is None else keep
        asked = Asked(talk=talk, ids=ids, tokens=tokens, sampler=sampler or Sampler(), end=end, keep=keep, stop=stop)
        rng = fresh_generator() if rng is None else rng
        work = steps.interactive if interactive else steps.free
        return self._conduct(talk, keep, ours, lambda out: work(asked, rng, out)).tokens(facts)

    def check_images(self, images: Any) -> NDArray[np.float64]:
        """Rows of images (N, channels, height, width), or the reason why they cannot be asked about."""
        if ProgramName.CLASSIFY not in self.config.programs:
            raise ConfigError(f"{self.config.model}: continues text and classifies no images; use heat generate")
        rows = self.bundle.image_rows(images)
        most = self.config.limits.get("max_steps", MAX_STEPS)
        if rows.ndim != 3 or not 1 <= len(rows) <= most:
            raise ConfigError(f"give 1 to {most} images at once (N, channels, height, width), got {np.shape(images)}")
        return rows

    def classify(
        self, images: Any, *, conversation: Conversation | None = None, facts: Facts | None = None
    ) -> Iterator[int]:
        """Labels of images (N, channels, height, width) as they come; their logits are in ``conversation``.

        All are sent at once, each as its projected patches, encrypted; the session is deleted at the end. The server
        learns how many images there are. What is sent does not depend on what is read.

        >>> list(client.classify(pixels))                                                       # doctest: +SKIP
        """
        with self._link.turn:
            rows = self.check_images(images)
        talk, steps = conversation or Conversation(), self._steps()
        talk.session = self.open().session
        return self._conduct(talk, False, True, lambda out: steps.classify(rows, talk, False, out)).tokens(facts)

    def resume(self, facts: Facts | None = None) -> Iterator[int]:
        """Go on with the job an interrupted client left: all its tokens, or labels, from the first."""
        with self._link.turn:
            found = self.pending.latest(self.config.config_id)
        if found is None:
            raise ConfigError("no unfinished job of this model is on this machine; ask again")
        talk = Conversation(found.session)
        if found.interactive:
            self.pending.remove(found.key)
            self._forget(talk)
            raise ConfigError("an interactive answer cannot be resumed, and its session was deleted; ask again")
        steps = self._steps()
        return self._conduct(talk, found.keep, False, lambda out: steps.again(found, talk, out)).tokens(facts)

    def _steps(self) -> Steps:
        """Everything a generation needs, made or fetched before it begins."""
        return Steps(
            link=self._link,
            config=self.config,
            layout=self.layout,
            bundle=self.bundle,
            keyring=self.keyring,
            key_set=self.upload_keys(),
            bits=self._bits,
            pending=self.pending,
        )

    def _conduct(self, talk: Conversation, keep: bool, ours: bool, work: Callable[[Exchange], None]) -> Exchange:
        """Do the work on a thread of its own, and leave the session as it should be, however the work ends."""

        def traffic(out: Exchange) -> None:
            try:
                work(out)
            except Exception:
                with suppress(WireError):
                    self._leave(talk, keep and not ours)  # nobody has heard of a session that was opened for this
                raise
            self._leave(talk, keep)

        self._exchange = Exchange(self._link, traffic)
        return self._exchange

    @cached_property
    def pending(self) -> PendingJobs:
        """Jobs whose answers have not all been read."""
        return PendingJobs(self._own("jobs"))

    def _leave(self, talk: Conversation, keep: bool) -> None:
        """Bring a kept session's position up to date, or delete the session. One with a lost job waits for resume."""
        if self.pending.waits(talk.session):
            return
        if keep:
            talk.position, talk.pending = session_state(self._link, talk.session)
        else:
            self._forget(talk)

    def _forget(self, talk: Conversation) -> None:
        try:
            self.delete_session(talk.session)
        except WireError:
            return  # it expires by itself; the answer is there
