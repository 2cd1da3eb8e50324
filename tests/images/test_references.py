"""Image references: what people write, and the one full form of each."""

import pytest

from hutch.errors import Invalid
from hutch.images.references import parse

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "full", "short"),
    [
        ("debian", "docker.io/library/debian:latest", "debian:latest"),
        ("debian:12", "docker.io/library/debian:12", "debian:12"),
        ("team/app", "docker.io/team/app:latest", "team/app:latest"),
        ("localhost/app", "localhost/app:latest", "localhost/app:latest"),
        ("127.0.0.1:5000/a/b:1.0", "127.0.0.1:5000/a/b:1.0", "127.0.0.1:5000/a/b:1.0"),
        ("host.example/app", "host.example/app:latest", "host.example/app:latest"),
        (f"debian@{DIGEST}", f"docker.io/library/debian@{DIGEST}", f"debian@{DIGEST}"),
        (f"debian:12@{DIGEST}", f"docker.io/library/debian:12@{DIGEST}", f"debian:12@{DIGEST}"),
        ("[::1]:5000/app", "[::1]:5000/app:latest", "[::1]:5000/app:latest"),
    ],
)
def test_every_name_has_one_full_form(text: str, full: str, short: str) -> None:
    reference = parse(text)
    assert (str(reference), reference.short) == (full, short)
    assert parse(str(reference)) == reference


@pytest.mark.parametrize(
    "text",
    [
        "",
        "UPPER",
        "a//b",
        "a:",
        "a b",
        "a/../b",
        "../a",
        "a:b:c",
        "-a",
        "a@sha256:12",
        "a@md5:" + "0" * 32,
        "a\n",
        "a:t\0",
    ],
)
def test_what_is_no_name_is_invalid(text: str) -> None:
    with pytest.raises(Invalid, match="is not an image reference"):
        parse(text)


def test_another_default_registry() -> None:
    assert str(parse("app", "hub.example:5000")) == "hub.example:5000/app:latest"
