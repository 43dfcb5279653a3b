# SPDX-License-Identifier: Apache-2.0
"""prepare and restore: swap a model's nonlinearities for sites in place, and put the originals back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from heatfhe.errors import ConfigError, DataError
from heatfhe.models import describe
from heatfhe.sites.activation import ActivationSite
from heatfhe.sites.attention import AttentionSite
from heatfhe.sites.norm import NormSite
from heatfhe.sites.prepared import PrepareConfig, Prepared
from heatfhe.sites.source import load_checkpoint
from heatfhe.stages import Activation, Attention, Norm


def prepare(model: nn.Module | str | Path, config: PrepareConfig | None = None) -> Prepared:
    """Swap every norm, attention and activation for its site, in place; weights and their names stay untouched.

    A string is a checkpoint to load: a folder, a name on the Hugging Face hub, or 'default' for the embedded model.

    >>> prepared = prepare("openai-community/gpt2")               # doctest: +SKIP
    >>> len(prepared.sites)                                       # doctest: +SKIP
    74
    """
    if isinstance(model, (str, Path)):
        model = load_checkpoint(model)
    if any(isinstance(m, (NormSite, AttentionSite, ActivationSite)) for m in model.modules()):
        raise ConfigError("this model is already prepared; restore it first, or use the Prepared that owns it")
    architecture = describe(model)
    prepared = Prepared(model, architecture, config or PrepareConfig())
    shared = prepared.switch, prepared._table
    made: dict[str, nn.Module] = {}
    for stage in architecture.stages:
        if not isinstance(stage, (Norm, Attention, Activation)):
            continue
        path = architecture.paths[stage.name]
        original = model.get_submodule(path)
        if isinstance(stage, Norm):
            if any(getattr(original, part, None) is None for part in ("weight", "bias")[: len(stage.tensors)]):
                kind = type(original).__name__
                raise ConfigError(f"{stage.name}: expected a norm with its parameters, found {kind}; restore it first")
            made[path] = NormSite(original, stage, *shared)
        elif isinstance(stage, Attention):
            made[path] = AttentionSite(original, stage, architecture, *shared)
        else:
            made[path] = ActivationSite(original, stage, prepared.switch)
    for path, site in made.items():
        site.train(model.training)
        _put(model, path, site)
    prepared.switch.hooks.append(model.register_forward_pre_hook(_begin(prepared), with_kwargs=True))
    return prepared


def restore(prepared: Prepared | nn.Module) -> nn.Module:
    """Put the original modules back, with the weights as they are now, and return the model.

    Takes a Prepared or the model it owns. Bit for bit the original when nothing was trained.
    """
    model = prepared.model if isinstance(prepared, Prepared) else prepared
    sites = {path: m for path, m in model.named_modules() if isinstance(m, (NormSite, AttentionSite, ActivationSite))}
    if not sites:
        raise ConfigError(f"{type(model).__name__} is not prepared: it has no sites to restore")
    for path, site in sites.items():
        original = site.original[0]
        if isinstance(site, NormSite):
            for name, parameter in site.named_parameters(recurse=False):
                setattr(original, name, parameter)
        elif isinstance(site, AttentionSite):
            for name, child in site.named_children():
                original.add_module(name, child)
        original.train(model.training)
        _put(model, path, original)
    for site in sites.values():
        while site.switch.hooks:
            site.switch.hooks.pop().remove()
    return model


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _begin(prepared: Prepared) -> Any:
    """A pre-forward hook: evaluate the distributions once, and refuse masks the sites do not apply."""

    def hook(_module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        if isinstance(mask, Tensor) and (mask.ndim != 2 or not bool((mask != 0).all())):
            raise DataError("a prepared model attends over whole rows; cut sequences to one length, do not pad")
        prepared.switch.begin(prepared.halting)

    return hook
