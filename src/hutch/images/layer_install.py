"""From a verified blob to an unpacked layer of the store: once for each diff id, all of it or nothing."""

import os
import secrets

from hutch.errors import Refused
from hutch.images import unpack
from hutch.images.decompression import Unpacked
from hutch.images.store import Layer, Store


def place(store: Store, blob: str, diff_id: str) -> bool:
    """Unpack the blob unless its layer is there; whether it had to. Refused if it is not what the image says it is."""
    if store.layer(diff_id) is not None:
        return False
    with store.working_on(diff_id):
        if store.layer(diff_id) is not None:
            return False  # somebody else has done it while we waited
        with store.draft() as work, store.open_blob(blob) as packed:
            root = os.path.join(work, "root")
            os.mkdir(root, 0o755)
            facts = unpack.unpack(Unpacked(packed, store.settings.bounds), root, store.settings.bounds)
            if facts.diff_id != diff_id:
                raise Refused(
                    f"layer {blob} holds {facts.diff_id}, and the image says {diff_id}",
                    remedy="whoever made or served the image has changed it: do not use it",
                )
            store.add_layer(diff_id, root, described(diff_id, facts))
    return True


def described(diff_id: str, facts: unpack.Facts) -> Layer:
    return Layer(
        directory=f"{diff_id.partition(':')[2][:32]}.{secrets.token_hex(4)}",
        bytes=facts.bytes,
        entries=facts.entries,
        devices=facts.devices,
        one_owner=os.geteuid() != 0,
    )
