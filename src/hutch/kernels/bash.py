"""The Bash kernel's protocol: a shell that reads commands from its input and marks on both streams where each ends.

It needs no program of ours in the box. A marker is random, so what the code prints cannot be taken for one by accident.
"""

import codecs
import re
import shlex
from collections.abc import Iterator, Mapping

from hutch.kernels.messages import Done, Message, Printed
from hutch.model.code import CodeError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def run_script(run: str, code: str, env: Mapping[str, str]) -> bytes:
    """Return the input that runs the code once.

    The code is sourced, so that `declare` makes variables of the shell itself, and an interrupt returns from it.
    """
    saved = "".join(
        f"__hutch_{name}_set=${{{name}+x}}; __hutch_{name}=${{{name}-}}; export {name}={shlex.quote(value)}\n"
        for name, value in env.items()
    )
    restored = "".join(
        f'if [ -n "$__hutch_{name}_set" ]; then {name}=$__hutch_{name}; else unset {name}; fi; '
        f"unset __hutch_{name}_set __hutch_{name}\n"
        for name in env
    )
    return (
        f"trap 'return 130' INT\n{saved}"
        f". <(printf %s {shlex.quote(code)}) </dev/null\n"
        f"__hutch_status=$?; trap : INT\n{restored}"
        f"printf '%s %d\\n' {run} $__hutch_status >&2; printf '%s %d\\n' {run} $__hutch_status\n"
    ).encode()


class BashOutput:
    """Turns the shell's raw output into messages of one run."""

    def __init__(self, run: str, count: int) -> None:
        self._run = run
        self._count = count
        self._marker = re.compile(re.escape(run.encode()) + rb" (\d+)\n")
        self._rest = {"stdout": b"", "stderr": b""}
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._rest}
        self._ended: set[str] = set()
        self.consumed = {"stdout": 0, "stderr": 0}
        """Bytes of each stream up to the end of this run."""

    def feed(self, stream: str, data: bytes) -> Iterator[Message]:
        if stream in self._ended:
            return
        data = self._rest[stream] + data
        found = self._marker.search(data)
        if found is None:
            # A marker may have arrived in part; nothing that could be its beginning is passed on yet.
            keep = len(self._run) + 8
            cut = max(0, len(data) - keep) if self._run.encode()[:1] in data[-keep:] else len(data)
            self._rest[stream] = data[cut:]
            yield from self._printed(stream, data[:cut])
            return
        self._ended.add(stream)
        self.consumed[stream] += found.end() - found.start()
        yield from self._printed(stream, data[: found.start()], final=True)
        if len(self._ended) == 2:
            yield Done(run=self._run, count=self._count, error=_error(int(found[1])))

    def _printed(self, stream: str, data: bytes, *, final: bool = False) -> Iterator[Message]:
        self.consumed[stream] += len(data)
        text = self._decoders[stream].decode(data, final=final)
        if text:
            yield Printed(run=self._run, name=stream, text=text)


def _error(status: int) -> CodeError | None:
    if status == 0:
        return None
    if status == 130:
        return CodeError(name="KeyboardInterrupt", value="interrupted", traceback="interrupted")
    return CodeError(name="ExitStatus", value=str(status), traceback=f"the last command ended with status {status}")


def is_name(text: str) -> bool:
    """Return whether this can be the name of an environment variable."""
    return _NAME.fullmatch(text) is not None
