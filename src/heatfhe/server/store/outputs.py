# SPDX-License-Identifier: Apache-2.0
"""The outputs of a job, one message per step: ``output-0003`` in a folder, ``output-0003/<sha256>`` in an object store.

Nothing but its name says which bytes an output should have. On a disk the file system is trusted with that, as it
always was, and the message has a digest of every part for the client; an object from elsewhere is checked first.
"""

from __future__ import annotations

from heatfhe.server.store.folder_objects import FolderObjects
from heatfhe.server.store.objects import Objects, sha256_of


def output_name(step: int) -> str:
    """What the output of a step is called."""
    return f"output-{step:04d}"


def put_output(job: Objects, step: int, data: bytes) -> None:
    """Store a step's output; the same bytes again change nothing."""
    name = output_name(step)
    job.put(name if isinstance(job, FolderObjects) else f"{name}/{sha256_of(data)}", data)


def has_outputs(job: Objects, steps: int) -> bool:
    """Whether the outputs of all steps are there."""
    there = {name.partition("/")[0] for name in job.listing()}
    return all(output_name(step) in there for step in range(steps))


def get_output(job: Objects, step: int) -> bytes | None:
    """A step's output from a store, checked unless it is a folder; None where there is none."""
    if isinstance(job, FolderObjects):
        return job.read(output_name(step))
    for name in job.listing(output_name(step)):
        return job.get(name, name.rpartition("/")[2])
    return None
