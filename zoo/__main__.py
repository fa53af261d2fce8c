"""The `zoo` command as a process: start fast, end fast."""

from __future__ import annotations

import os  # which Python has imported already; what it has not, Ctrl-C could interrupt here
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


def main() -> None:
    """Run the command line and end the process, which the kernel tears down faster than Python.

    An interrupt from here on ends it with the status 130 and without a traceback.
    """
    try:
        status = _run()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        status = 1
    except OSError as error:
        if error.filename is not None:  # not an error of a stream, so unexpected
            raise
        import errno

        # No stream is "not found": that is a folder for temporary files, which torch may ask for.
        what = "" if error.errno == errno.ENOENT else "cannot write the output: "
        sys.stderr.write(f"error: {what}{error.strerror}\n")
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _run() -> int:
    """Run the command line and return its exit status.

    Start-up time matters: `zoo list` should feel like `ls`. The garbage collector is off, since
    imports create little garbage. Pydantic's plugins are off: they run merely because they are
    installed, which the zoo's trust model excludes, and finding them reads the metadata of every
    package.
    """
    import gc
    import signal
    import warnings

    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _make_writable()
    warnings.showwarning = _show_warning
    if "LOCAL_RANK" not in os.environ:  # not under torchrun: blocked processes run no handlers
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # not ignored, as under nohup
                # As Ctrl-C: removes half-written files, keeps partial downloads to be resumed.
                signal.signal(number, signal.default_int_handler)
    from zoo.cli import run

    status = run(sys.argv[1:])
    sys.stdout.flush()
    return status


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning in the style of the zoo's errors, without the line of code that issued it."""
    from zoo.wording import printable_lines

    sys.stderr.write(f"warning: {printable_lines(str(message))}\n")


def _make_writable() -> None:
    """Make output to closed streams vanish, and replace characters that stdout cannot encode; but
    names of files, which may have bytes that are no characters, are written as they are."""
    import codecs
    import io

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("zoo", _substitute)
        sys.stdout.reconfigure(errors="zoo")


def _substitute(error: UnicodeError) -> tuple[bytes, int]:
    """Return the bytes for characters that stdout cannot encode, and where these end."""
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    # Python decodes a byte of a file's name that is no character as U+DC80 to U+DCFF.
    codes = (ord(one) - 0xDC00 for one in characters)
    return bytes(code if 0x80 <= code <= 0xFF else ord("?") for code in codes), error.end


if __name__ == "__main__":
    main()
