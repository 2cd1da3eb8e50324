"""The front matter: what is accepted, what is refused by name, and what an edit leaves alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.errors import HutchError, Invalid
from hutch.skills.manifest import check_name, edit_manifest, is_skill_name, parse, split
from tests.skills.make_skill import manifest

FULL = b"""\xef\xbb\xbf---
# a comment
name: pdf-tools   # trailing
description: >
  Reads PDFs
  and more.
license: Apache-2.0
compatibility: Needs poppler
metadata:
  author: someone
  version: 1.10
  released: 2024-01-01
allowed-tools: Bash(git:*) Read
x-unknown: {a: [1, 2]}
hutch:
  tools:
    - name: extract
      description: Take the text out.
      parameters: {type: object, properties: {file: {type: string}}}
      command: [scripts/extract.py, --json]
    - {name: shell, command: "echo hi"}
  dependencies: {pip: ["pypdf>=4"], npm: [left-pad]}
  permissions: {network: false, paths: [out, "data:ro"], tools: [read]}
---

# Body
---
not front matter
"""


def test_the_open_format_and_ours() -> None:
    found = parse(FULL)
    assert (found.name, found.description, found.license) == ("pdf-tools", "Reads PDFs and more.", "Apache-2.0")
    assert found.metadata == {"author": "someone", "version": "1.1", "released": "2024-01-01"}
    assert found.allowed_tools == ("Bash(git:*)", "Read")
    assert [tool.name for tool in found.tools] == ["extract", "shell"]
    assert found.tools[1].command == ("sh", "-c", "echo hi")
    assert (found.dependencies.python, found.dependencies.node) == (("pypdf>=4",), ("left-pad",))
    permissions = found.permissions
    assert (permissions.network, permissions.paths, permissions.tools) == (False, ("out", "data:ro"), ("read",))
    assert found.warnings == ("unknown field 'x-unknown' is kept and ignored",)
    assert split(FULL.decode())[1].startswith("\n# Body\n---\n")


def test_ours_may_stand_under_metadata() -> None:
    found = parse(manifest(more="metadata:\n  hutch: {permissions: {network: true}}\n  a: b\n").encode())
    assert (found.permissions.network, found.metadata) == (True, {"a": "b"})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"name: a\n", "does not begin"),
        (b"---\nname: a\n", "no closing line"),
        (b"---\n- a\n---\n", "not a list of"),
        (b"---\nname: Bad_Name\ndescription: x\n---\n", "not a valid skill name"),
        (b"---\nname: a--b\ndescription: x\n---\n", "not a valid skill name"),
        (b"---\nname: a\n---\n", "`description` must be text"),
        (b"---\nname: a\ndescription: ''\n---\n", "not empty"),
        (b"---\nname: a\ndescription: " + b"x" * 1025 + b"\n---\n", "1024 are allowed"),
        (b"---\nname: a\nname: b\ndescription: x\n---\n", "is given twice"),
        (b"---\na: &x [1]\nb: *x\n---\n", "aliases"),
        (b"---\nname: !!python/object/apply:os.system ['true']\ndescription: x\n---\n", "not valid YAML"),
        (b"---\nname: a\ndescription: x\nhutch: {tools: [{name: t}]}\n---\n", "command"),
        (b"---\nname: a\ndescription: x\nhutch: {tools: [{name: T, command: [x]}]}\n---\n", "not a valid tool name"),
        (b"---\nname: a\ndescription: x\nhutch: {tools: [{name: t, command: [../x]}]}\n---\n", "out of the skill"),
        (b"---\nname: a\ndescription: x\nhutch: {permissions: {network: maybe}}\n---\n", "permissions"),
        (b"---\nname: a\ndescription: x\nhutch: {permissions: {paths: [../etc]}}\n---\n", "not plain"),
        (b"---\nname: a\ndescription: x\nhutch: {dependencies: {apt: [vim]}}\n---\n", "apt"),
        (b"---\nname: a\ndescription: x\nhutch: {dependencies: {pip: [--index-url=x]}}\n---\n", "not a requirement"),
        (b"---\nname: a\ndescription: \xff\n---\n", "not UTF-8"),
        (b"---\n" + b"a: " + b"[" * 5000 + b"\n---\n", "nested too deeply"),
        (b"---\n" + b"a: 1\n" * 20_000 + b"---\n", "more than"),
    ],
)
def test_errors_name_the_field(content: bytes, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        parse(content)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_answer_or_a_typed_error(noise: bytes) -> None:
    for content in (noise, b"---\n" + noise + b"\n---\n", b"---\nname: a\ndescription: b\n" + noise + b"\n---\n"):
        try:
            parse(content)
        except HutchError:
            continue


def test_an_edit_keeps_every_other_byte() -> None:
    """An edit keeps unknown front matter (lesson 40)."""
    new = edit_manifest(FULL, description='Now: "other"')
    assert parse(new).description == 'Now: "other"'
    before, after = (
        FULL.split(b"description: >\n  Reads PDFs\n  and more.\n"),
        new.split(b'description: "Now: \\"other\\""\n'),
    )
    assert before == after
    assert edit_manifest(FULL, body="# New\n") == FULL[: FULL.index(b"\n# Body")] + b"# New\n"
    windows = b"---\r\nname: a # n\r\ndescription: old # why\r\nz: 1\r\n---\r\nbody\r\n"
    assert edit_manifest(windows, description="new") == windows.replace(b"old", b'"new"')


def test_names() -> None:
    assert is_skill_name("a") and is_skill_name("a1-b2") and is_skill_name("x" * 64)
    for name in ("", "-a", "a-", "a--b", "A", "a_b", "a.b", "a/b", "..", "x" * 65, "ä", "a\n"):
        with pytest.raises(Invalid):
            check_name(name)
