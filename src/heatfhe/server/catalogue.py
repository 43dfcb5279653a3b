# SPDX-License-Identifier: Apache-2.0
"""What is served, and what of a request can be judged by that alone: no state, so every front has one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heatfhe.planning import ProgramName
from heatfhe.server.models import ServedModel, admit
from heatfhe.server.settings import Settings
from heatfhe.server.store.sessions import Session
from heatfhe.wire import JobHead, Limits, Refusal, job_limits


class Catalogue:
    """The models of a server; a model that the settings do not allow is refused here."""

    def __init__(self, settings: Settings, models: Mapping[str, ServedModel]) -> None:
        for model in models.values():
            admit(model, settings)
        self.settings, self.models = settings, dict(models)

    def model(self, name: str) -> ServedModel:
        """A model by name."""
        if name not in self.models:
            raise Refusal("not_found", "this server has no such model", "see GET /v1/models")
        return self.models[name]

    def by_config(self, config_id: str) -> ServedModel:
        """The model with a configuration; 410 when it is no longer served."""
        for model in self.models.values():
            if model.config.config_id == config_id:
                return model
        raise Refusal(
            "stale_config",
            "this configuration is not served any more",
            "fetch the model's configuration again and make keys for it",
        )

    def limits(self, model: ServedModel) -> Limits:
        """How large a job for a model may be."""
        found = job_limits(model.config.params, context=model.config.context, parts=model.parts)
        most = min(found.total_bytes, self.settings.request_bytes)
        return replace(found, block_bytes=min(found.block_bytes, most), total_bytes=most)

    def check_job(self, record: Session, head: JobHead) -> ServedModel:
        """Refuse a job of a session from its header alone, before a ciphertext is read; the session's model."""
        model = self.by_config(record.config_id)
        if head.config_id != record.config_id:
            self.by_config(head.config_id)
            raise Refusal("conflict", "the session was opened for another configuration", "open a session for this one")
        if head.plan != model.config.plan:
            raise Refusal("stale_config", "the job was made for another plan", "fetch the configuration again")
        if head.key_set != record.key_set:
            raise Refusal("key_mismatch", "the session uses another key set", "encrypt under the session's keys")
        if head.program not in model.config.programs:
            raise Refusal(
                "bad_message",
                f"this model's plan has no program {head.program!r}",
                f"it has {', '.join(model.config.programs)}; the operator can plan with it",
            )
        if head.steps > self.settings.max_steps:
            raise Refusal("too_large", f"{head.steps} steps exceed {self.settings.max_steps}", "ask for fewer steps")
        if head.noise and head.parts != model.parts:
            raise Refusal("bad_message", f"noise comes in {model.parts} parts at this plan", "see docs/formats.md")
        if head.program == ProgramName.CLASSIFY and head.inputs != head.steps * model.image:
            raise Refusal(
                "bad_message",
                f"{head.inputs} inputs for {head.steps} images: this plan takes {model.image} for each",
                "see layout.image of the configuration",
            )
        most, blocks = model.prefill
        if head.prefill and not (head.prefill[0] <= most and head.packed == blocks):
            here = f"{most} tokens in {blocks} ciphertexts" if most else "no tokens"
            raise Refusal("bad_message", f"this plan takes {here} at once", "see layout.prefill of the configuration")
        return model
