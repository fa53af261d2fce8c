"""Running a function in its own process under strace, with faults put into its system calls."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import ZooError

CALLS = (
    "openat,read,pread64,write,pwrite64,sendfile,copy_file_range,lseek,ftruncate,close,fsync,"
    "fdatasync,rename,renameat,renameat2,link,linkat,symlink,mkdir,mkdirat,rmdir,unlink,unlinkat,"
    "fchmod,fchmodat,newfstatat,fstat,lstat,getdents64,mmap"
)
"""The system calls that a fault is put into: all that touch files, on x86 and on Arm."""
NEVER_FAIL = {"mmap", "close", "lseek"}
"""Those in which a process is killed, but which are not made to fail: the interpreter's own memory
comes by `mmap`, and an error of `close` is none of the data's after an `fsync`."""
WRITES = {"write", "pwrite64", "sendfile", "copy_file_range", "fsync", "openat", "mkdir", "link"}

_LONGEST = 300.0  # seconds; a process that takes longer hangs, and is ended by SIGTERM

DONE, REFUSED, CRASHED = 0, 2, 3


@dataclass(frozen=True)
class Fault:
    """What happens in a call: SIGKILL before it, or an error in its place.

    Args:
        call: a system call.
        number: which of these calls, from 1, counted in each thread.
        kind: "KILL", "EIO", or "ENOSPC", which then lasts.
    """

    call: str
    number: int
    kind: str

    def option(self) -> str:
        what = "signal=KILL" if self.kind == "KILL" else f"error={self.kind}"
        lasts = "+" if self.kind == "ENOSPC" else ""
        return f"inject={self.call}:{what}:when={self.number}{lasts}"


@dataclass(frozen=True)
class Run:
    """How a process ended: DONE, REFUSED (a `ZooError`), CRASHED (another exception) or a negative
    signal; what strace wrote of it; and the exception."""

    status: int
    log: str
    error: str


def available() -> bool:
    """Whether strace is here and may trace."""
    try:
        command = ["strace", "-o", "/dev/null", "true"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def traced(action: Callable[[], object], folder: Path, fault: Fault | None = None) -> Run:
    """Run `action` in a fork of this process. No call is counted before it begins."""
    log, error = folder / "strace.log", folder / "error.txt"
    # Waited for by a call that is not traced, so that it takes part in no count.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    process = os.fork()
    if process == 0:
        signal.sigwait({signal.SIGUSR1})
        os._exit(_child(action, error))
    command = ["strace", "-f", "-y", "-s", "0", "-o", str(log), "-p", str(process)]
    command += ["-e", "trace=?" + CALLS.replace(",", ",?")]
    command += ["-e", fault.option()] if fault is not None else []
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    while "attached" not in (line := tracer.stderr.readline()):
        assert line, "strace cannot attach"
    os.kill(process, signal.SIGUSR1)
    watch = threading.Timer(_LONGEST, os.kill, (process, signal.SIGTERM))
    watch.start()
    _, status = os.waitpid(process, 0)
    watch.cancel()
    tracer.wait()
    tracer.stderr.close()
    told = error.read_text() if error.exists() else ""
    return Run(os.waitstatus_to_exitcode(status), log.read_text(), told)


def _child(action: Callable[[], object], error: Path) -> int:
    try:
        action()
    except ZooError:
        return REFUSED
    except BaseException:
        with contextlib.suppress(OSError):  # the fault may last
            error.write_text(traceback.format_exc())
        return CRASHED
    return DONE


def faults_of(log: str) -> list[Fault]:
    """A fault of each kind for each call in a log."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in log.splitlines():
        if found := re.match(r"(\d+) +(\w+)\(", line):
            counts[found[1], found[2]] += 1
    most: dict[str, int] = {}
    for (_, call), count in counts.items():
        most[call] = max(count, most.get(call, 0))
    faults: list[Fault] = []
    for call, count in sorted(most.items()):
        for number in range(1, count + 1):
            faults.append(Fault(call, number, "KILL"))
            if call not in NEVER_FAIL:
                faults.append(Fault(call, number, "EIO"))
            if call in WRITES:
                faults.append(Fault(call, number, "ENOSPC"))
    return faults
