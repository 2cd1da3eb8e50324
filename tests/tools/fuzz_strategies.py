"""Strategies for hostile tool calls, as a model or somebody behind it might write them. Nothing is called here."""

from typing import Any

from hypothesis import strategies as st

HOST = "@HOST@"
"""Stands for the directory of the host that no call may reach."""
JOB = "@JOB@"
"""Stands for the job that flips symlinks."""
TOKEN = "hutch-fuzz-"
"""Part of every name that calls make, so that one of them on the host would be found."""

LONG = {"@LONG@": "x" * 5000, "@UP@": "../" * 2000, "@DEEP@": "a/" * 3000, "@HUGE@": "y" * 300_000}
"""Absurd lengths, written out only when a call is made."""

FLIPPING = """
mkdir -p real; echo inside > real/secret; ln -sfn real flip
while :; do ln -sfn @HOST@ .f; mv -T .f flip; ln -sfn real .f; mv -T .f flip; done
"""
SETTING = r"""
ln -sfn / root; ln -sfn @HOST@ host; ln -sfn @HOST@/secret hostfile; ln -sfn /proc/1/root proc; ln -sfn loop loop
ln -sfn ../../../../../../../..@HOST@/secret up; ln -sfn /proc/self/fd fds; ln -sfn host/secret chain; mkdir -p d/e/f
printf 'caf\xe9\r\nx\r\n' > latin.txt; printf '\xff\xfea\0b\0' > wide.txt; head -c 3000 /dev/urandom > r.bin
mkfifo pipe; touch $'odd\xff\xfe' $'new\nline' $'esc\x1b[2J' -- '-rf'; printf 'a%.0s' $(seq 60) > aaa; echo text > t.txt
"""

odd_text = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", " ", ".", "..", "/", "~", "-", "\0", "a\0b", "\n", "\ud800", "é" * 130, "𝕏" * 64, "x" * 256]),
    st.sampled_from([*LONG, "\u202e", "%2e%2e%2f", "..\\..\\", "$HOME", "`id`", "{a,b", "\udcff"]),
)
inside = st.sampled_from(
    [
        "t.txt", "latin.txt", "wide.txt", "r.bin", "d", "d/e/f", "aaa", "pipe", "new\nline", "-rf", ".", "/tmp",
        "/workspace/t.txt", "/etc/passwd", "output:x:stdout", "output:", "output:../..:stdout",
        "/workspace/../etc/hostname", f"output:{JOB}:stdout",
    ]
)  # fmt: skip
outside = st.sampled_from(
    [
        HOST, f"{HOST}/secret", f"/..{HOST}/secret", f"../../../../../..{HOST}/secret", f"/proc/1/root{HOST}/secret",
        f"/proc/self/root{HOST}/secret", f"/proc/self/cwd/../..{HOST}/secret", f"root{HOST}/secret", "host/secret",
        "hostfile", "up", "chain", "proc/etc/shadow", f"proc{HOST}/secret", "fds/0", "fds/3", "loop", "loop/x",
        "flip/secret", "flip/../secret", f"flip/{TOKEN}new", f"host/{TOKEN}new", f"root{HOST}/{TOKEN}new",
        "/dev/stdin", "/dev/mem", "/proc/1/mem", "/proc/1/environ", "/proc/self/mem", "/sys/kernel", "/proc/kcore",
        "/proc/sys/kernel/hostname", "/dev/fd/3", "/run", "/proc/1/fd/3",
    ]
)  # fmt: skip
made = st.builds(lambda number: f"{TOKEN}{number}", st.integers(0, 20))
paths = st.one_of(inside, outside, outside, made, odd_text, st.builds(lambda a, b: f"{a}/{b}", outside, odd_text))
numbers = st.one_of(st.integers(0, 50), st.sampled_from([0, 1, 2**31, 2**53, 2**63, "7", None]))
sizes = st.one_of(st.integers(1, 200), st.sampled_from([1, 7.0, "30", 5000, None]))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), odd_text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(odd_text, inner, max_size=3)),
    max_leaves=6,
)
texts = st.one_of(st.sampled_from(["x", "text", "café", "a\r\nb", "inside", "\x00", "é" * 100]), odd_text)
commands = st.one_of(
    st.sampled_from(
        [
            f"cat {HOST}/secret", f"echo {TOKEN} > {HOST}/{TOKEN}e", "cat flip/secret", "cat host/secret hostfile",
            "ln -sfn t.txt link", f"ln -sfn {HOST}/secret t.txt", "rm -f t.txt; echo text > t.txt", "exit 3",
            "printf '\\xff\\xfe'", "seq 1 20000", "kill -9 $$", f"ls -la {HOST} / /proc/1/root",
            "cd /; find . -name secret", "cat /proc/1/environ /proc/1/cmdline",
        ]
    ),
    odd_text,
    st.lists(odd_text, max_size=3),
)  # fmt: skip
boxes = st.sampled_from(["first", "second", "first", "second", "zzz", "../x"])
whiles = st.sampled_from([0.05, 0.2, "0.1", "0.05s", None])
encodings = st.sampled_from(
    [
        "utf-8",
        "latin-1",
        "utf-16",
        "utf-16-le",
        "shift_jis",
        "cp1252",
        "rot13",
        "hex",
        "idna",
        "punycode",
        "utf-7",
        "\0",
    ]
)


def _one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def _noisy(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Now and then anything at all: seldom, or hardly a call would get past the check of its arguments."""
    return st.integers(0, 24).flatmap(lambda number: anything if number == 13 else value)


def _arguments(*needed: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The needed fields and some of the others; or, seldom, fields that are not there."""
    noisy = {name: _noisy(value) for name, value in fields.items()}
    usual = st.fixed_dictionaries(
        {name: noisy[name] for name in needed},
        optional={name: value for name, value in noisy.items() if name not in needed},
    )
    strange = st.dictionaries(odd_text, anything, max_size=3)
    return st.integers(0, 24).flatmap(lambda number: strange if number == 13 else usual)


CALLS = {
    "exec": _arguments("command", command=commands, cwd=inside, stdin=texts, timeout=whiles,
                       env=st.dictionaries(odd_text, odd_text, max_size=2)),
    "job": _arguments("action", "job", "command", "input", command=commands,
                      action=_one_of("start", "read", "write", "signal", "wait", "list"),
                      job=_one_of(JOB, JOB, "x", "../x"), offset=numbers, limit=sizes,
                      stream=_one_of("stdout", "stderr"), wait=whiles, input=texts, signal=_one_of("0", "CONT", "x")),
    "read": _arguments("path", path=paths, offset=numbers, limit=sizes, unit=_one_of("bytes", "lines"),
                       numbered=st.booleans()),
    "read as": _arguments("path", "encoding", path=paths, encoding=encodings),
    "write": _arguments("path", "content", path=paths, content=texts, append=st.booleans(),
                        newline=_one_of("crlf", "keep")),
    "write as": _arguments("path", "content", "encoding", path=paths, content=texts, encoding=encodings),
    "write bytes": _arguments("path", "content_base64", path=paths, content_base64=_one_of("YQ==", "?", "")),
    "edit": _arguments("path", "old", "new", path=paths, old=texts, new=texts, replace_all=st.booleans()),
    "edit as": _arguments("path", "old", "new", "encoding", path=inside, old=texts, new=texts, encoding=encodings),
    "glob": _arguments("pattern", path=paths, limit=sizes, pattern=st.one_of(
        paths, _one_of("**", f"{HOST}/*", "host/*", "flip/*", "/etc/**/secret", "[", "{a"))),
    "grep": _arguments("pattern", path=paths, glob=paths, limit=sizes, timeout=whiles, pattern=st.one_of(
        _one_of(".", "(a+)+$", "(", "secret", "[", "(?P<x>", "a{99999999}"), odd_text)),
    "send_file": _arguments("path", path=paths, name=odd_text),
    "box_query": _arguments("action", action=_one_of("list", "current", "providers", "x")),
    "box_lifecycle": _arguments("action", "box", box=boxes, name=odd_text,
                                action=_one_of("switch", "release", "renew", "takeover", "destroy", "x")),
    "box_operation": _arguments("action", "source_path", action=_one_of("copy_file", "copy_file", "screenshot"),
                                source_path=paths, target_path=paths, source_box=boxes, target_box=boxes),
    "list_skills": _arguments(),
    "activate_skill": _arguments("name", name=odd_text),
}  # fmt: skip
"""By tool; a second word only distinguishes several kinds of calls of one tool."""
_WEIGHTS = ["read", "write", "edit", "glob", "grep"] * 4 + ["exec", "job", "send_file", "box_operation"] * 3 + [*CALLS]

_named = st.sampled_from(_WEIGHTS).flatmap(lambda name: st.tuples(st.just(name.split()[0]), CALLS[name]))
_strange = st.tuples(odd_text, anything)
a_call = st.integers(0, 49).flatmap(lambda number: _strange if number == 13 else _named)
