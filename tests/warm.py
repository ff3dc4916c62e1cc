"""A warm Python: runs programs without the seconds that it takes to import torch.

    python warm.py serve SOCKET                imports fedmt once, then forks for each command that arrives
    python -IS warm.py call SOCKET fedmt …     a client, which stands in for the program of that name
    python -IS warm.py call SOCKET python-c CODE …

Each command is a separate process, with the client's folder, environment and open files. The client exits
with its status, and a killed client takes the command with it. So a shell cannot tell the difference, except
that the imports have already happened. WARM_PID in the environment names a file for the number of the
process. The server ends when its standard input ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys


def call(path: str, arguments: list[str]) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        command = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(command).encode()], [0, 1, 2])
        status = int(server.recv(16))
    return status if status >= 0 else 128 - status


def serve(path: str) -> None:
    import importlib

    del sys.path[0]  # this folder
    for name in ("commands.cli", "commands.predicting", "training.run", "reports.report", "models.loaded"):
        importlib.import_module(f"fedmt.{name}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        answering: set[int] = set()
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            answering -= {pid for pid in answering if os.waitpid(pid, os.WNOHANG)[0]}
            if sys.stdin in ready:  # its other end was closed
                break
            client, _ = listening.accept()
            with client:
                pid = os.fork()
                if pid == 0:
                    listening.close()
                    answer(client)
                answering.add(pid)
    for pid in answering:
        os.waitpid(pid, 0)


def answer(client: socket.socket) -> None:
    """In a separate process: starts the command, waits for it and reports its status to the client."""
    message, files, _, _ = socket.recv_fds(client, 1 << 20, 3)
    command = os.fork()
    if command == 0:
        client.close()
        become(files, **json.loads(message))
    for file in files:
        os.close(file)
    ready, _, _ = select.select([client, os.pidfd_open(command)], [], [])
    if client in ready:  # the client sends nothing more, so it was killed
        os.kill(command, signal.SIGKILL)
    _, status = os.waitpid(command, 0)
    if client in ready:
        os._exit(0)
    client.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(files: list[int], arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    import atexit
    import traceback
    import types

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    if (told := environment.pop("WARM_PID", None)) is not None:
        with open(told + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.replace(told + ".new", told)
    os.environ.clear()
    os.environ.update(environment)
    # There is no file, so a process that this one spawns has no program to import again.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status: object = None
    try:
        if arguments[0] == "python-c":
            sys.argv, sys.path[:0] = ["-c", *arguments[2:]], [""]
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        else:
            from fedmt.commands import cli

            sys.argv = arguments
            cli.main()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(call(sys.argv[2], sys.argv[3:]))
