"""From an image's USER to a user of a box: names are looked up in the image's own /etc/passwd."""

from collections.abc import Sequence

from hutch.images import merged_view

BOX_USER = 1000


def of_box(user: str, layers: Sequence[str]) -> str:
    """ "user", "root" or a number; empty if the image names none, or one that nobody can be.

    The group is left out: a box's user has the group of its own number.
    """
    name = user.partition(":")[0]
    if not name:
        return ""
    number = int(name) if name.isascii() and name.isdigit() else _number(name, layers)
    if number is None or number >= 65536:
        return ""
    return {0: "root", BOX_USER: "user"}.get(number, str(number))


def _number(name: str, layers: Sequence[str]) -> int | None:
    if name == "root":
        return 0
    for row in merged_view.read(layers, "etc/passwd").splitlines():
        fields = row.split(":")
        if len(fields) > 2 and fields[0] == name and fields[2].isascii() and fields[2].isdigit():
            return int(fields[2])
    return None
