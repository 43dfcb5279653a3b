# SPDX-License-Identifier: Apache-2.0
"""heat serve: serve a Circuit to clients whose data this process cannot read."""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

from heatfhe.cli.console import Console
from heatfhe.cli.listen import Surface, make_listener, make_server
from heatfhe.cli.model_source import add_precision_argument
from heatfhe.errors import ConfigError
from heatfhe.files import atomic_write
from heatfhe.planning import SNAPSHOT_SECONDS
from heatfhe.server import (
    ClientBook,
    FolderLock,
    ModelSource,
    Settings,
    await_folder,
    close_wall,
    create_app,
    log_to_stderr,
    self_signed,
)

HELP = "Serve a Circuit to clients whose data it must not see."
EXAMPLES = """  heat serve default --params insecure-native-12 --insecure --folder served --add-client alice
  heat serve default --params insecure-native-12 --insecure --folder served
  heat serve my-circuit --params native-16-r40 --folder served --host 0.0.0.0 --tls-cert c.pem --tls-key k.pem
  heat serve --folder served --self-signed fhe.lan --add-client alice --hand-out for-alice
  heat serve my-circuit --plan my.plan --folder served --host 0.0.0.0 --self-signed fhe.lan
  heat serve my-circuit --params native-16-r40 --folder /mnt/served --device cuda --ray auto --seats 2:8
  heat serve my-circuit --params native-16-r40 --folder /mnt/served --device cuda --ray auto --seats 2:8 --fronts 4
"""
_FREED_SECONDS = 10.0  # after a kill, the desk and the fronts of that server end by themselves, but not at once
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("model", nargs="?", default="default", help="a Circuit directory, or default")
    parser.add_argument("--circuit", type=Path, metavar="DIR", help="the same, as an option")
    parser.add_argument("--params", metavar="NAME", help="plan for this parameter set when the server starts")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a plan made before with heat plan")
    parser.add_argument("--context", type=int, metavar="T", help="positions of the cache, when planning here")
    add_precision_argument(parser, "; when planning here")
    parser.add_argument("--prefill", type=int, metavar="TOKENS", help="as in heat plan, when planning here")
    parser.add_argument("--name", help="the model's name for clients (default: the circuit's)")
    parser.add_argument("--folder", type=Path, required=True, help="where keys, sessions and jobs are kept")
    parser.add_argument(
        "--store", default="", metavar="URL",
        help="keep keys, requests, outputs and what sessions hold in this object store, e.g. s3://bucket/prefix "
        "(extra s3; see docs/scaling.md)",
    )  # fmt: skip
    parser.add_argument("--key-cache", type=float, default=64.0, metavar="GIB", help="keys of it kept on this machine")
    parser.add_argument(
        "--snapshot-seconds", type=float, default=SNAPSHOT_SECONDS, metavar="S",
        help="seconds of computing between two snapshots of a session, at least; about what a kill may cost",
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8443, help="0 picks a free one")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate in PEM; any --host but this machine needs it")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key in PEM")
    parser.add_argument(
        "--self-signed", action="append", metavar="HOST",
        help="instead: make a certificate for this name or address of the server (repeatable), kept in FOLDER/tls; "
        "clients add --ca FOLDER/tls/certificate.pem",
    )  # fmt: skip
    parser.add_argument(
        "--plain-http", action="store_true", help="no TLS here: something in front of this server has it"
    )
    parser.add_argument("--insecure", action="store_true", help="serve toy parameter sets, which protect nothing")
    parser.add_argument("--simulate", action="store_true", help="run on the clear engine: nothing is encrypted")
    parser.add_argument("--device", action="append", help="cpu (default) or cuda; one running job each")
    parser.add_argument(
        "--option", action="append", default=[], metavar="K=V", help="option of the engine, e.g. threads=2"
    )
    parser.add_argument("--max-temperature", type=float, metavar="T", help="of sampling (default: as calibrated)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes kept per device")
    parser.add_argument(
        "--worker-memory", type=float, metavar="GIB", help="memory cap of a worker (default: 80 %% of RAM)"
    )
    parser.add_argument(
        "--ray", default="", metavar="ADDRESS", help="run jobs on this Ray cluster: HOST:PORT, auto, or local to try it"
    )
    parser.add_argument(
        "--seats", type=_seats, default=(1, 1), metavar="MIN[:MAX]", help="jobs at once on the Ray cluster (default: 1)"
    )
    parser.add_argument(
        "--fronts", type=int, default=0, metavar="N",
        help="with --ray: processes that answer HTTP, around one desk on the cluster (default: all in one process)",
    )  # fmt: skip
    parser.add_argument("--seat-cpus", type=int, default=1, metavar="N", help="cores of a seat without a GPU")
    parser.add_argument("--seat-wait", type=float, default=10.0, metavar="S", help="a wait that adds a seat")
    parser.add_argument("--seat-idle", type=float, default=300.0, metavar="S", help="an idle time that ends a seat")
    parser.add_argument("--client-quota", type=float, default=64.0, metavar="GIB", help="bytes a client may store")
    parser.add_argument("--reserve", type=float, default=0.25, metavar="GIB", help="disk that is always left free")
    parser.add_argument("--queue", type=int, default=64, help="jobs that may wait")
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second and client")
    parser.add_argument("--chunk", type=int, default=8 << 20, metavar="BYTES", help="largest chunk of a key upload")
    parser.add_argument("--add-client", metavar="NAME", help="register a client, print its token, and end")
    parser.add_argument(
        "--hand-out", type=Path, metavar="DIR",
        help="with --add-client: write token.txt there instead of printing it, and certificate.pem with --self-signed",
    )  # fmt: skip
    parser.add_argument("--remove-client", metavar="NAME", help="end a client's token, and end")
    parser.add_argument("--with-client", metavar="NAME", help="register a client, print its token, and serve")
    parser.add_argument("--ends-with", type=int, metavar="PID", help="end when the process that started this one ends")


def run(args: argparse.Namespace, console: Console) -> int:
    """Serve until interrupted."""
    _check_options(args)
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.self_signed:
        args.tls_cert, args.tls_key = map(str, self_signed(args.folder / "tls", args.self_signed))
    book = ClientBook(args.folder / "clients.json")
    if args.add_client or args.remove_client:
        return _clients(args, book, console)
    close_wall()
    _check_certificate(args.tls_cert, args.tls_key)
    if args.self_signed:
        console.print(f"certificate: {args.tls_cert}; clients add --ca with a copy of it")
    if args.host not in LOOPBACK and not ((args.tls_cert and args.tls_key) or args.plain_http):
        raise ConfigError(
            f"{args.host} is not this machine alone: give --tls-cert and --tls-key, or --self-signed HOST, or "
            "--plain-http behind a TLS proxy"
        )
    if args.ray and args.ray != "local" and os.environ.get("RAY_AUTH_MODE") != "token":
        console.warn(
            "whoever reaches a port of this Ray cluster can run code on it; set RAY_AUTH_MODE=token (docs/security.md)"
        )
    patience = _FREED_SECONDS if args.fronts else 0.0
    with await_folder(args.folder, patience) as lock:  # before anything is changed: a server may be running here
        settings = _settings(args, console)
        if not settings.fronts:
            return _serve(args, settings, book, lock, console)
    return _serve_fronts(args, settings, book, console)  # its desk takes the lock


def _check_options(args: argparse.Namespace) -> None:
    if args.self_signed and (args.tls_cert or args.tls_key):
        raise ConfigError("--self-signed makes its own certificate; leave out --tls-cert and --tls-key")
    if args.hand_out and not args.add_client:
        raise ConfigError("--hand-out is of one client; give --add-client NAME with it")
    if args.hand_out and args.hand_out.exists() and not args.hand_out.is_dir():
        raise ConfigError(f"{args.hand_out}: is a file; give --hand-out a folder")


def _check_certificate(certificate: str | None, key: str | None) -> None:
    """Refuse what TLS cannot start with before anything is planned."""
    if (certificate is None) != (key is None):
        raise ConfigError("--tls-cert and --tls-key belong together; give both")
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as err:  # an SSLError is one too
        missing = [name for name in (certificate, key) if name is not None and not Path(name).is_file()]
        why = f"{missing[0]}: no such file" if missing else f"{certificate} and {key} are not a certificate and its key"
        raise ConfigError(f"{why}; --tls-cert and --tls-key take PEM files ({err.strerror or err})") from err


def _clients(args: argparse.Namespace, book: ClientBook, console: Console) -> int:
    if args.remove_client:
        known = book.remove(args.remove_client)
        console.print(f"{args.remove_client}: {'removed' if known else 'was not known'}")
        console.json({"client": args.remove_client, "removed": known})
        return 0
    if args.hand_out:
        return _hand_out(args, book, console)
    token = book.add(args.add_client)
    console.print(f"token of {args.add_client}, shown only now:\n{token}")
    console.json({"client": args.add_client, "token": token})
    return 0


def _hand_out(args: argparse.Namespace, book: ClientBook, console: Console) -> int:
    """Everything a client needs of this server, in one folder; its token is on no screen and in no log."""
    args.hand_out.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = {"token.txt": f"{book.add(args.add_client)}\n".encode()}
    if args.self_signed:
        files["certificate.pem"] = Path(args.tls_cert).read_bytes()
    for name, data in files.items():
        with atomic_write(args.hand_out / name) as f:
            os.chmod(f.fileno(), 0o600)
            f.write(data)
    ca = f" --ca {args.hand_out / 'certificate.pem'}" if args.self_signed else ""
    console.print(f"for {args.add_client}, in {args.hand_out}: {' and '.join(files)}; hand them over on a safe way")
    console.print(f"there: heat generate --server URL{ca} --token-file {args.hand_out / 'token.txt'} ...")
    console.json({"client": args.add_client, "hand_out": str(args.hand_out), "files": list(files)})
    return 0


def _settings(args: argparse.Namespace, console: Console) -> Settings:
    source = _source(args, console)
    memory = args.worker_memory * (1 << 30) if args.worker_memory else 0.8 * _memory()
    return Settings(
        folder=args.folder,
        models=(source,),
        store=args.store,
        key_cache_bytes=int(args.key_cache * (1 << 30)),
        snapshot_seconds=args.snapshot_seconds,
        insecure=args.insecure,
        simulate=args.simulate,
        devices=tuple(args.device or ["cpu"]),
        resident_workers=args.workers,
        worker_bytes=int(memory) if memory else None,
        queue_jobs=args.queue,
        client_bytes=int(args.client_quota * (1 << 30)),
        reserve_bytes=int(args.reserve * (1 << 30)),
        chunk_bytes=args.chunk,
        requests_per_second=args.rate,
        request_burst=max(1, int(4 * args.rate)),
        ray=args.ray,
        seats=args.seats,
        seat_cpus=args.seat_cpus,
        fronts=args.fronts,
        grow_seconds=args.seat_wait,
        idle_seconds=args.seat_idle,
    )


def _source(args: argparse.Namespace, console: Console) -> ModelSource:
    from heatfhe.assets import default_circuit
    from heatfhe.circuit import Circuit

    path = args.circuit or (default_circuit() if args.model == "default" else Path(args.model))
    plan_path = args.plan
    circuit = Circuit.load(path)
    if plan_path is None:
        if args.params is None:
            raise ConfigError(
                "a server needs --plan FILE, or --params NAME to plan with; heat plan --help lists the sets"
            )
        plan_path = _planned(circuit, args, console)
    name = args.name or "".join(c if c.isalnum() or c in "._-" else "-" for c in circuit.name)
    options = dict(_option(text) for text in args.option)
    if not args.simulate:
        cores = args.seat_cpus if args.ray else (os.cpu_count() or 1) // len(args.device or ["cpu"])
        options.setdefault("threads", max(1, cores))
    ordered = tuple(sorted(options.items()))
    return ModelSource(
        name=name,
        plan=plan_path.resolve(),
        circuit=Path(path).resolve(),
        options=ordered,
        max_temperature=args.max_temperature,
    )


def _planned(circuit: Any, args: argparse.Namespace, console: Console) -> Path:
    """A plan with every program, kept in the folder so that a restart serves the same configuration."""
    from heatfhe.planning import ProgramName, default_cost, plan, preset

    context, params = args.context or circuit.room, preset(args.params)
    cost = default_cost(params, (args.device or ["cpu"])[0])
    kind = ("" if args.precision is None else f"-p{args.precision:g}") + (
        "" if cost == default_cost(params) else f"-{cost}"
    )
    kind += f"-prefill-{args.prefill}" if args.prefill else ""
    path: Path = args.folder / "plans" / f"{circuit.digest[:16]}-{args.params}-{context}{kind}.json"
    if not path.exists():
        console.print(f"planning {circuit.name} for {args.params} ...")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (ProgramName.GENERATE, ProgramName.PROMPT, ProgramName.LOGITS, ProgramName.SAMPLE)
        programs = text if circuit.grid is None else None
        more = {"precision": args.precision, "prefill": args.prefill}
        plan(circuit, params, context=context, programs=programs, cost=cost, **more).save(path)
    return path


def _seats(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    try:
        return int(least), int(most or least)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must read MIN or MIN:MAX, e.g. 2:8") from None


def _option(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"--option {text!r} must read NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _surface(args: argparse.Namespace) -> Surface:
    return Surface(certificate=args.tls_cert, key=args.tls_key, count_addresses=not args.plain_http)


def _serve(args: argparse.Namespace, settings: Settings, book: ClientBook, lock: FolderLock, console: Console) -> int:
    """Everything in this process."""
    log_to_stderr()
    app = create_app(settings, lock=lock)
    listener = make_listener(args.host, args.port)
    facts = _facts(args, settings, book, listener, console)
    server = make_server(app, _surface(args))
    threading.Thread(target=_announce, args=(server, facts, console), daemon=True).start()
    if args.ends_with is not None:
        threading.Thread(target=_end_with, args=(server, args.ends_with), daemon=True).start()
    server.run(sockets=[listener])
    if not server.started:
        raise ConfigError("the server did not start; its log says why")
    return 0


def _serve_fronts(args: argparse.Namespace, settings: Settings, book: ClientBook, console: Console) -> int:
    """HTTP processes here, the desk on Ray."""
    from heatfhe.cli.fronts import serve_fronts

    log_to_stderr()
    listener = make_listener(args.host, args.port, patience=_FREED_SECONDS)

    def announce(more: dict[str, Any]) -> None:
        _tell({**_facts(args, settings, book, listener, console), **more}, console)

    serve_fronts(settings, _surface(args), listener, announce=announce, ends_with=args.ends_with)
    return 0


def _facts(
    args: argparse.Namespace, settings: Settings, book: ClientBook, listener: socket.socket, console: Console
) -> dict[str, Any]:
    """What is announced once the server answers."""
    token = book.add(args.with_client) if args.with_client else None  # an old token ends only when this can serve
    if not book.clients():
        console.warn("no client is registered yet; add one with: heat serve --folder FOLDER --add-client NAME")
    url = f"{_surface(args).scheme}://{args.host}:{listener.getsockname()[1]}"
    return {"url": url, "models": [m.name for m in settings.models], **({"token": token} if token else {})}


def _end_with(server: Any, parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    server.should_exit = True


def _announce(server: Any, facts: dict[str, Any], console: Console) -> None:
    while not server.started and not server.should_exit:
        time.sleep(0.02)
    if server.started:
        _tell(facts, console)


def _tell(facts: dict[str, Any], console: Console) -> None:
    console.print(f"serving {', '.join(facts['models'])} at {facts['url']}  (stop with Ctrl-C; sessions are kept)")
    if "token" in facts:
        console.print(f"token: {facts['token']}")
    if console.as_json:
        print(json.dumps(facts), flush=True)


def _memory() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal"))
    except (OSError, StopIteration):
        return 0.0
