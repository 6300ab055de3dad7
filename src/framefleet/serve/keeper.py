"""Keeps one command on its owner's behalf, and leaves nothing of it behind. A script of its own, standard library only.

    python -I -S keeper.py GRACE_S CORES COMMAND...          CORES: 0,1,2 or - for as they are

It runs in a session of its own and prints the command's process id, which is also that of its process group. The
command's output goes to stderr. When stdin ends (the owner let go, or died in whatever way), or on SIGTERM, the command
is told to end, and killed after GRACE_S. Whatever it leaves alive is killed: a dead vLLM API server leaves its engine
running, and an engine may have moved to another process group; as a subreaper this process is parent to all of them.
The exit code is the command's, 128 + N for signal N.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILLING_S = 10.0
"""A process that waits for a broken device may never end; then this one goes all the same."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Keep the command until it ends or must end."""
    grace_s, cores, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if cores != "-":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    woken = _wake_up_on((*_SIGNALS, signal.SIGCHLD))
    try:
        child = subprocess.Popen(  # noqa: S603 - the owner's command
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            process_group=0,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509 - no threads
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]!r}: {error.strerror}\n")
        return 127
    os.write(sys.stdout.fileno(), f"{child.pid}\n".encode())
    if _wait(child, woken, None, is_owned=True) is None:
        child.send_signal(signal.SIGTERM)
        _wait(child, woken, time.monotonic() + float(grace_s), is_owned=False)
    _kill_all(child)
    code = child.returncode if child.returncode is not None else -signal.SIGKILL
    return 128 - code if code < 0 else code


def _wake_up_on(numbers: tuple[signal.Signals, ...]) -> socket.socket:
    """A socket that becomes readable with each of these signals; they have no other effect."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)  # noqa: FBT003
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return ours


def _wait(child: subprocess.Popen[bytes], woken: socket.socket, until_s: float | None, *, is_owned: bool) -> int | None:
    """The command's exit code; None when the time is over, or, where `is_owned`, the owner wants it ended."""
    watched = [woken, sys.stdin] if is_owned else [woken]
    while child.poll() is None:
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        readable, _, _ = select.select(watched, [], [], left_s)
        if sys.stdin in readable and not os.read(sys.stdin.fileno(), 64):
            return None
        if woken in readable and is_owned and set(woken.recv(64)) & set(_SIGNALS):
            return None
        if woken in readable and not is_owned:
            woken.recv(64)
        if not readable and left_s is not None:
            return None
    return child.returncode


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """Until no descendant is left. Those of a killed one become ours, so this goes on until there is none."""
    until_s = time.monotonic() + _KILLING_S
    while time.monotonic() < until_s:
        for pid in _descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not _reap(child):
            return
        time.sleep(0.02)


def _reap(child: subprocess.Popen[bytes]) -> bool:
    """Collect those that ended, the command by its own object, which keeps the code; whether any is left."""
    try:
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == child.pid:
                child.poll()
            else:
                os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        return False
    return True


def _descendants(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # gone meanwhile
                continue
    found: list[int] = []
    generation = {root}
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        found += generation
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
