"""Runs pages, and the commands on them, in forks of one process that has torch loaded already.

    python tests/page_server.py SOCKET

A request is one connection: the caller's three standard handles, then JSON to the end. The answer
is the exit code as text, or nothing if the fork was killed. A fork takes milliseconds where
a new process takes two seconds to import torch, and there are more than a hundred commands.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

BACKLOG = 16
HANDLES = (0, 1, 2)
HELD = "run", "compare", "sweep"
SMALL = {
    "run.rounds": "1",
    "local.steps": "1",
    "executor.kind": "serial",
    "data.limit": "400",
    "partition.min_samples": "2",
    "evaluate.last": "[]",
}
USUAL = {"record.embedding": "0"}  # unless the page says otherwise: the picture takes longest
ELSEWHERE = ("cifar10", "cifar100", "mnist", "fashion-mnist")  # data that are not on every machine
IMPORTED = (  # torch._dynamo comes with the first step of torch's optimisers, in two seconds
    *(
        "coterie.cli.main",
        "coterie.report.progress",
        "coterie.experiment.run",
        "coterie.report.page",
    ),
    *("sklearn.datasets", "sklearn.manifold", "torch._dynamo"),
)
STUB = "#!{python} -IS\nimport sys\nsys.path.insert(0, {folder!r})\n{body}\n"


def ask(address: str, request: dict[str, Any], handles: tuple[int, ...] = HANDLES) -> int:
    """Send a request and wait for its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        data = json.dumps({"folder": str(Path.cwd()), "environment": dict(os.environ), **request})
        socket.send_fds(connection, [b"-"], list(handles))
        connection.sendall(data.encode())
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(16)
    return int(answer) if answer else 1


def write_stub(folder: Path, address: str) -> None:
    """A program `coterie` for the folder that comes first on the path of shell blocks."""
    body = f"import page_server\nsys.exit(page_server.ask({address!r}, dict(words=sys.argv[1:])))"
    file = folder / "coterie"
    file.write_text(
        STUB.format(python=sys.executable, folder=str(Path(__file__).parent), body=body)
    )
    file.chmod(0o755)


def find_data(words: list[str]) -> str:
    """The data set that a command names, by itself or as the folder of its configuration."""
    for word in words:
        if word.startswith("data.name="):
            return word.partition("=")[2]
    config = words[words.index("--config") + 1] if "--config" in words else "".join(words[:1])
    return config.partition("/")[0]


def shrink(words: list[str], more: list[str], stand_ins: str) -> list[str]:
    """A command of a page, made small: one round of one step, in this process.

    Data that are not in the folder are stood in for, and such a run is described only; tables of
    papers are described unless they are asked for at the smoke scale.
    """
    command, given = words[0] if words else "", words[1:]
    if command == "reproduce" and given and "smoke" not in given:
        return [*words, *more, "--dry-run"]
    if command not in HELD or "--resume" in given:
        return [*words, *more]
    stated = {word.partition("=")[0] for word in given}
    keys = {**SMALL, **{key: value for key, value in USUAL.items() if key not in stated}}
    data = find_data(given)
    roots = [word.partition("=")[2] for word in given if word.startswith("data.root=")]
    if data == "sites":
        keys |= {"data.limit": "0"}
        if not any(Path(root).exists() for root in roots):
            keys |= {"data.root": f"{stand_ins}/sites"}
    elif data in ELSEWHERE:
        keys |= {"data.name": "arrays", "data.root": f"{stand_ins}/images.npz"}
    described = command == "run" and "data.root" in keys and "--dry-run" not in given
    keys |= dict(word.split("=", 1) for word in more)
    kept = [word for word in given if word.partition("=")[0] not in keys]
    return [command, *kept, *(f"{k}={v}" for k, v in keys.items()), *["--dry-run"][:described]]


def run_blocks(page: str, blocks: list[dict[str, Any]]) -> int:
    """The blocks of a page in order: Python in one namespace, the shell block by block."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        place = f"{page}:{block['line']}"
        try:
            if block["language"] == "python":
                source = "\n" * block["line"] + block["text"]
                exec(compile(source, page, "exec"), namespace)
            else:
                environment = {**os.environ, "PAGE_WITH": json.dumps(block["with"])}
                command = ["bash", "-eo", "pipefail", "-c", block["text"]]
                subprocess.run(command, env=environment, check=True)
        except BaseException:
            traceback.print_exc()
            print(f"the block at {place} failed", file=sys.stderr)
            return 1
    return 0


def run_script(script: str) -> int:
    """A Python file as the main program."""
    import runpy

    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    return 0


def run_command(words: list[str]) -> NoReturn:
    """A command line of `coterie`, made small."""
    from coterie.cli.main import main

    more = json.loads(os.environ.pop("PAGE_WITH", "[]"))
    main(shrink(words, more, os.environ["PAGE_STAND_INS"]))


def perform(request: dict[str, Any]) -> int:
    """Do what a request asks for, in a fork of its own."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    if "blocks" in request:
        return run_blocks(request["page"], request["blocks"])
    if "script" in request:
        return run_script(request["script"])
    return run_command(request["words"])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The request of a connection and the handles that came with it."""
    _, handles, *_ = socket.recv_fds(connection, 1, len(HANDLES))
    with connection.makefile("rb") as stream:
        return json.loads(stream.read()), handles


def answer(connection: socket.socket) -> NoReturn:
    """In the fork: take over the caller's handles, do the work, send the exit code."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request, handles = receive(connection)
        for number, handle in zip(HANDLES, handles, strict=True):
            os.dup2(handle, number)
            os.close(handle)
        code = perform(request)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            connection.sendall(str(code).encode())
        os._exit(code)


def serve(address: str) -> None:
    """Import what is slow to import, then fork for every connection; end with the caller."""
    from coterie.evaluate.shared import head

    for module in IMPORTED:
        import_module(module)
    for name in ("STEPS", "EPOCHS"):  # of linear classifiers: a twentieth
        setattr(head, name, getattr(head, name) // 20)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen(BACKLOG)
        Path(f"{address}.new").rename(address)  # who sees it can connect
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                answer(connection)
            connection.close()


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    serve(sys.argv[1])
