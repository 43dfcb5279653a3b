# SPDX-License-Identifier: Apache-2.0
"""heat classify: what do images show? Asked privately."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.cli.connect import add_connection, connect
from heatfhe.cli.console import Console, warn_exceeded
from heatfhe.client import Client, Conversation
from heatfhe.errors import ConfigError
from heatfhe.images import digits, image_files, read_image

HELP = """Name what images show, privately: their patches leave this machine encrypted, the labels come back encrypted.

The server learns the model, how many images there are, the time, and who asks; not what they show."""
EXAMPLES = """  heat classify --local --circuit out/digits/HEAT --digits 4
  heat classify --server https://fhe.example --token-file token.txt photos/
  heat classify --server https://fhe.example --token-file token.txt --resize cat.jpg
  heat classify --server https://fhe.example --token-file token.txt --resume
"""
INTERRUPTED = "the server goes on with it: the same command with --resume instead of the images reads the labels"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("images", nargs="?", help="a file, or a folder of images")
    parser.add_argument("--digits", type=int, metavar="N", help="the first N held-out digits of scikit-learn instead")
    parser.add_argument("--resize", action="store_true", help="scale images to the size that the model takes")
    parser.add_argument("--resume", action="store_true", help="read the labels an interrupted command did not")
    add_connection(parser, local=True)


def run(args: argparse.Namespace, console: Console) -> int:
    """Ask and print the labels as they come."""
    if bool(args.images) + (args.digits is not None) + args.resume != 1:
        raise ConfigError("which images? give a file or a folder, or --digits N, or --resume")
    if args.local and args.circuit == "default":
        raise ConfigError("the default model continues text; give --circuit DIR of one that classifies images")
    with connect(args, console) as client:
        if client.config.engine == "clear":
            console.warn("this server only simulates: nothing is encrypted")
        began = time.monotonic()
        talk, names, wanted = Conversation(), list[str](), None
        if args.resume:
            labels = client.resume(_facts(console))
        else:
            names, pixels, wanted = _read(client, args)
            client.check_images(pixels)
            client.keygen(console.reporter)
            client.upload_keys(console.reporter)
            labels = client.classify(pixels, conversation=talk, facts=_facts(console))
        made: list[int] = []
        for label in labels:
            name = names[len(made)] if names else f"image {len(made)}"
            made.append(label)
            console.print(f"{name}: {label}")
        facts: dict[str, Any] = {"labels": made, "images": names, "seconds": round(time.monotonic() - began, 3)}
        if wanted is not None:
            facts["right"] = int(np.sum(wanted == np.array(made)))
            console.print(f"{facts['right']} of {len(made)} are right")
        if talk.logits:
            facts |= {"logits": [list(row) for row in talk.logits]}
        if talk.exceeded:
            warn_exceeded(console, client.config.model, talk.exceeded)
        console.print(f"{len(made)} images in {facts['seconds']:.1f} s")
        console.json(facts)
    return 0


def _read(client: Client, args: argparse.Namespace) -> tuple[list[str], NDArray[Any], NDArray[np.int64] | None]:
    """Names and pixels of the images, and their labels where these are known."""
    grid = client.bundle.grid
    if grid is None:
        raise ConfigError(f"{client.config.model}: continues text and classifies no images; use heat generate")
    if args.digits is None:
        files = image_files(args.images)
        return [f.name for f in files], np.stack([read_image(f, grid.image, resize=args.resize) for f in files]), None
    pixels, labels = digits(held_out=True)
    if not 1 <= args.digits <= len(labels):
        raise ConfigError(f"--digits: 1 to {len(labels)} are held out, got {args.digits}")
    if client.config.vocabulary != 10:
        raise ConfigError(f"--digits: the model has {client.config.vocabulary} classes, digits need 10; give images")
    return [f"digit {k}" for k in range(args.digits)], pixels[: args.digits], labels[: args.digits]


def _facts(console: Console) -> Any:
    """Tells progress on a terminal."""
    if not sys.stderr.isatty():
        return None
    reporter = console.reporter
    reporter.start("classify")

    def tell(event: dict[str, Any]) -> None:
        shown = {k: event[k] for k in ("unit", "units", "bootstrap", "bootstraps", "eta_s", "ahead") if k in event}
        reporter.advance("classify", **shown)

    return tell
