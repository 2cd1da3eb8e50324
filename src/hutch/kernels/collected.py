"""What a run printed and showed, within the bounds of a result."""

from hutch.model.code import CodeResult, Display, Language

MAX_DISPLAYS = 256
MAX_DISPLAY_BYTES = 24 << 20
"""Size of all displays of one result together."""


class BoundedText:
    """Keeps the beginning and the end of a text: 60 and 40 % of `limit` characters."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit * 3 // 5
        self._tail_limit = limit - self._head_limit
        self._head: list[str] = []
        self._head_size = 0
        self._tail = ""
        self.total = 0

    def add(self, text: str) -> None:
        self.total += len(text)
        room = self._head_limit - self._head_size
        if room > 0:
            self._head.append(text[:room])
            self._head_size += min(room, len(text))
            text = text[room:]
        if text:
            # Cut only now and then, so that many small pieces do not copy the tail each time.
            self._tail += text
            if len(self._tail) > 2 * self._tail_limit + 4096:
                self._tail = self._tail[-self._tail_limit :] if self._tail_limit else ""

    @property
    def text(self) -> str:
        tail = self._tail[-self._tail_limit :] if self._tail_limit else ""
        head = "".join(self._head)
        lost = self.total - len(head) - len(tail)
        return f"{head}\n[... {lost} characters left out ...]\n{tail}" if lost > 0 else head + tail


class Collected:
    """Collects the pieces of one run."""

    def __init__(self, keep_output: int) -> None:
        self._texts = {"stdout": BoundedText(keep_output), "stderr": BoundedText(keep_output)}
        self._displays: list[Display] = []
        self._display_bytes = 0
        self.dropped = 0

    def print(self, stream: str, text: str) -> None:
        self._texts[stream].add(text)

    def show(self, display: Display) -> bool:
        """Keep a display if the bounds allow it; return whether they do."""
        size = sum(len(mime) + len(form) for mime, form in display.data.items())
        if len(self._displays) >= MAX_DISPLAYS or self._display_bytes + size > MAX_DISPLAY_BYTES:
            self.dropped += 1
            return False
        self._displays.append(display)
        self._display_bytes += size
        return True

    def result(self, kernel: str, language: Language) -> CodeResult:
        out, err = self._texts["stdout"], self._texts["stderr"]
        return CodeResult(
            kernel=kernel, language=language, stdout=out.text, stderr=err.text, stdout_total=out.total,
            stderr_total=err.total, displays=tuple(self._displays), displays_dropped=self.dropped,
        )  # fmt: skip
