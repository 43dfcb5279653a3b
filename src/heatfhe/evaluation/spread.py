# SPDX-License-Identifier: Apache-2.0
"""Independent pieces of work, done here one after the other or on a Ray cluster at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from heatfhe.errors import MissingExtraError
from heatfhe.progress import SILENT, Reporter


def spread(
    task: Callable[[int], int],
    numbers: Sequence[int],
    *,
    ray: str,
    cpus: int = 1,
    gpus: int = 0,
    name: str = "windows",
    after: Mapping[int, Sequence[int]] | None = None,
    reporter: Reporter = SILENT,
) -> list[int]:
    """What a task gives for every number, computed on the Ray cluster at the address ``ray`` (``local``: this machine).

    A task keeps its own results in a folder that every machine sees: one that is lost with its process runs again,
    three times at most, and whatever is finished stays when this is interrupted. The task and what it holds are
    pickled, so it is a function of a module with plain values. Its first error ends the whole. ``after`` names for a
    number those whose results must be there before it begins; others begin in the order given.
    """
    try:
        from heatfhe.evaluation.ray_tasks import run_all
    except ModuleNotFoundError as err:
        if err.name != "ray":
            raise
        raise MissingExtraError("ray", needed_by="work on a Ray cluster") from err
    return run_all(task, numbers, address=ray, cpus=cpus, gpus=gpus, name=name, after=after or {}, reporter=reporter)
