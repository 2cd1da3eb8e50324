"""Signed URLs of files in E2B's sandboxes that name no sandbox: what finding the signer may cost (S13)."""

import base64
import hashlib
from collections.abc import Iterator

import pytest

from hutch.errors import Unauthenticated
from hutch.keeper.store.state_key import StateKey
from hutch.server.e2b.credentials import MAX_COMPARED, SignedRequest, Tokens


@pytest.fixture
def tokens() -> Tokens:
    return Tokens(StateKey())


def signed_with(token: str) -> SignedRequest:
    """Sign a download as E2B's SDKs do."""
    digest = hashlib.sha256(f"a:read:user:{token}".encode()).digest()
    return SignedRequest("a", "user", "v1_" + base64.b64encode(digest).decode().rstrip("="), "", writes=False)


def test_a_signature_is_found_among_sandboxes_and_keys(tokens: Tokens) -> None:
    """(S13) The signer is found among several; another sandbox or another key is not the signer."""
    signed = signed_with(tokens.of("box2", "key2"))
    pairs = [(sandbox, key) for sandbox in ("box1", "box2") for key in ("key1", "key2")]
    assert signed.signer(tokens, pairs) == ("box2", "key2")
    with pytest.raises(Unauthenticated, match=r"^invalid signature$"):
        signed.signer(tokens, pairs[:-1])


def test_a_wrong_signature_costs_a_bounded_search(tokens: Tokens) -> None:
    """(S13, P8) However many sandboxes and keys there are, a stranger's URL is compared with so many at most."""
    asked: list[int] = []

    def pairs() -> Iterator[tuple[str, str]]:
        for number in range(10 * MAX_COMPARED):
            asked.append(number)
            yield f"box{number}", "key"

    with pytest.raises(Unauthenticated, match="E2b-Sandbox-Id"):
        signed_with("no token of ours").signer(tokens, pairs())
    assert len(asked) == MAX_COMPARED + 1
    assert (
        signed_with(tokens.of(f"box{MAX_COMPARED - 1}", "key")).signer(tokens, pairs())[0] == f"box{MAX_COMPARED - 1}"
    )
