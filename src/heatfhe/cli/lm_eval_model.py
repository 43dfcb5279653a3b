# SPDX-License-Identifier: Apache-2.0
"""The model ``heat`` of lm_eval: importing this file registers it, since lm_eval finds models only once imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lm_eval.api.registry import register_model

from heatfhe.cli.console import Console
from heatfhe.cli.scorers import open_scorer
from heatfhe.errors import ConfigError
from heatfhe.evaluation import TaskModel


@register_model("heat")
class HeatModel(TaskModel):
    """Made from the options of ``heat lm-eval``, as lm_eval hands them back."""

    @classmethod
    def create_from_arg_obj(cls, arg_dict: Mapping[str, Any], additional_config: Any = None) -> HeatModel:
        """``additional_config`` brings lm_eval's own batch size; its device is ours already."""
        size = (additional_config or {}).get("batch_size") or 8
        if not str(size).isdigit() or int(size) < 1:
            raise ConfigError(f"--batch_size {size}: sequences at a time are a number of at least 1")
        quiet = bool(arg_dict.get("quiet", False))
        scorer = open_scorer(**{k: v for k, v in arg_dict.items() if k != "quiet"})
        return cls(scorer, batch=int(size), reporter=Console(quiet=quiet).reporter)
