"""Finds the code of README and guides: fenced blocks with their language, and the commands that people would type."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
SHELL = frozenset({"console", "sh", "bash", ""})
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block of a document."""

    document: str
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A line to type, and what the document shows below it."""

    typed: str
    answer: str = ""


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted(GUIDES.glob("*.md"))]


def blocks(document: Path) -> list[Block]:
    return [Block(document.stem, *found) for found in _BLOCK.findall(document.read_text())]


def commands(block: Block) -> list[Command]:
    """The commands of a shell block. With prompts (`$ ` or `# `), every other line is an answer."""
    text = block.text.replace("\\\n", " ")
    if block.language != "console":
        lines = [line.strip() for line in text.splitlines()]
        return [Command(line) for line in lines if line and not line.startswith("#")]
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith(("$ ", "# ")):
            found.append(Command(line[2:].strip()))
        elif found:
            found[-1] = Command(found[-1].typed, f"{found[-1].answer}{line}\n")
    return found


def words(command: str) -> list[str]:
    """The words of a command without its comment."""
    return shlex.split(command, comments=True)
