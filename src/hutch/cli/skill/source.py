"""Where a skill is taken from: the words that `install` and `preview` share."""

import argparse
from typing import TypedDict

EPILOG = """\
examples:
  hutch skill preview ./pdf-tools                       what it would bring, and what it changes
  hutch skill install pdf-tools.zip
  hutch skill install https://example.org/skills.git --ref v2 --path pdf-tools
  hutch skill install ~/src/skills --git --path pdf-tools   a commit of a local repository, not its working files
"""


def add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="a directory, a zip file or a git URL")
    parser.add_argument("--path", default="", help="which of several skills, below the source")
    parser.add_argument("--ref", default="", help="branch, tag or commit of a repository")
    parser.add_argument("--git", action="store_true", help="the directory is a repository: take a commit from it")


class Named(TypedDict):
    path: str
    ref: str
    local_git: bool


def named(arguments: argparse.Namespace) -> Named:
    return {"path": arguments.path, "ref": arguments.ref, "local_git": arguments.git}
