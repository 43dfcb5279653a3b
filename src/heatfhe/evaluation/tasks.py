# SPDX-License-Identifier: Apache-2.0
"""Any scorer as a model of lm-evaluation-harness (the extra lm-eval): log-likelihood, rolling, generation.

lm_eval.simple_evaluate(model=TaskModel(CircuitScorer(circuit)), tasks=["my_task"], task_manager=...)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from heatfhe.errors import ConfigError
from heatfhe.evaluation.scorers import Scorer, likelihoods
from heatfhe.progress import SILENT, Reporter

log = logging.getLogger(__name__)
ANSWER = 256  # tokens of an answer where a task says nothing, as the harness has it


class TaskModel(TemplateLM):
    """A scorer that lm_eval can ask.

    ``diverged`` counts requests with a position whose logits were lost, of ``asked`` in all; ``cut`` those whose
    context lost its first tokens. An answer is the scorer's own choice of tokens, cut at the first stop word: under
    encryption the number of steps is fixed in advance and nothing is drawn at random.
    """

    backend = "causal"

    def __init__(self, scorer: Scorer, *, batch: int = 8, reporter: Reporter = SILENT) -> None:
        super().__init__()
        self.scorer, self.batch, self.reporter = scorer, batch, reporter
        self.asked = self.diverged = self.cut = 0

    @property
    def eot_token_id(self) -> int:
        """The end of text; it stands in front of a text without a context."""
        return int(self.scorer.words.end)

    @property
    def max_length(self) -> int:
        """The longest sequence."""
        return self.scorer.room

    @property
    def tokenizer_name(self) -> str:
        """Names caches of requests."""
        return self.scorer.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids; nothing is added."""
        return list(self.scorer.words.encode(string))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_options: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        found = likelihoods(self.scorer, pairs, batch=self.batch, reporter=self.reporter)
        self.asked += len(found)
        self.diverged += sum(f.diverged for f in found)
        self.cut += sum(len(a) + len(b) > self.scorer.room + 1 for a, b in pairs)
        if self.diverged or self.cut:
            log.warning(
                "%s: of %d requests so far %d diverge and %d lost the first tokens of their context",
                self.scorer.name, self.asked, self.diverged, self.cut,
            )  # fmt: skip
        answers = [(f.nats, f.greedy) for f in found]
        for (asked, _, _), answer in zip(requests, answers, strict=True):
            if asked is not None:
                self.cache_hook.add_partial("loglikelihood", asked, answer)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts: each token once, after as many as fit before it."""
        windows = [self._windows(request.args[0]) for request in requests]
        flat = [(None, *window) for own in windows for window in own]
        scores = iter(self._loglikelihood_tokens(flat))
        totals = [sum(next(scores)[0] for _ in own) for own in windows]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        tokens = self.tok_encode(text)
        cut = get_rolling_token_windows(
            token_list=tokens, prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
        )
        return [make_disjoint_window(window) for window in cut]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers by the scorer's own choice of tokens, up to a stop word."""
        made = []
        task = f"{self.scorer.name}, answers"
        self.reporter.start(task, len(requests))
        for request in requests:
            context, options = request.args
            made.append(self._answer(context, dict(options)))
            self.cache_hook.add_partial("generate_until", request.args, made[-1])
            self.reporter.advance(task)
        self.reporter.done(task)
        return made

    def _answer(self, context: str, options: dict[str, Any]) -> str:
        if options.get("do_sample") or float(options.get("temperature") or 0.0) > 0.0:
            raise ConfigError(
                "a task asks for tokens drawn at random; an encrypted answer is the likeliest one: --gen_kwargs "
                "do_sample=False,temperature=0"
            )
        room = self.scorer.room
        count = min(int(options.get("max_gen_toks") or options.get("max_tokens") or ANSWER), max(1, room // 2))
        prompt = self.tok_encode(context) or [self.eot_token_id]
        kept = prompt[-(room - count) :]
        self.asked += 1
        self.cut += len(kept) < len(prompt)
        tokens = self.scorer.generate(kept, count)
        if self.eot_token_id in tokens:
            tokens = tokens[: tokens.index(self.eot_token_id)]
        until = options.get("until") or []
        text = self.scorer.words.decode(tokens)
        for stop in [until] if isinstance(until, str) else until:
            if stop:
                text = text.split(stop)[0]
        return text
