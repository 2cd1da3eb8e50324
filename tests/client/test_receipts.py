"""Receipts through a client: the same protocol as embedded, read where the server keeps them."""

import pytest

import hutch.sync
from hutch import Hutch
from hutch.errors import Invalid, NotFound
from hutch.keeper.receipts.export import check_export
from tests.client.test_connection import unix
from tests.server.serving import Server


@pytest.mark.parametrize("remote", [False, True])
async def test_receipts_are_the_same_embedded_and_remote(server: Server, remote: bool) -> None:
    """One test for both forms."""
    async with Hutch(unix(server)) if remote else Hutch(store="memory") as hutch:
        async with hutch.box(memory_mb=64) as box:
            await box.exec("exit 3")
            await hutch.receipts.note(box.id, "tool.allowed", {"tool": "exec", "times": 2})
            first, *_, ran, noted = await hutch.receipts.list(box.id)
            assert (first.op, ran.op, ran.exit_code, noted.op) == ("box.created", "exec", 3, "tool.allowed")
            assert ran.who.session == hutch.session and noted.details == {"tool": "exec", "times": 2}
            assert [each.seq for each in await hutch.receipts.list(box.id, after=1, limit=1)] == [2]
            with pytest.raises(Invalid):
                await hutch.receipts.note(box.id, "exec")
        await hutch.receipts.note("", "tool.exec", {"decision": "deny"}, error="refused", duration_ms=2.5)
        [daybook] = [chain.box for chain in await hutch.receipts.chains() if chain.box.startswith("daybook-")]
        noted = (await hutch.receipts.list(daybook))[-1]
        assert (noted.op, noted.error, noted.duration_ms, noted.who.session) == (
            "tool.exec", "refused", 2.5, hutch.session
        )  # fmt: skip
        await hutch.receipts.note(box.id, "note.after", {"said": "when it was gone"})
        assert (await hutch.receipts.list(box.id))[-1].op == "note.after"
        assert box.id in [chain.box for chain in await hutch.receipts.chains()]
        [check] = await hutch.receipts.verify(box.id)
        assert check.ok
        exported = b"".join([piece async for piece in hutch.receipts.export(box.id)])
        [again] = check_export(exported.splitlines(keepends=True))
        assert again.ok and again.count == check.count
        with pytest.raises(NotFound):
            await hutch.receipts.list("z" * 20)


def test_receipts_without_await(server: Server) -> None:
    with hutch.sync.Hutch(store="memory") as local, local.box(memory_mb=64) as box:
        box.exec("true")
        assert [receipt.op for receipt in local.receipts.list(box.id)][-1] == "exec"
        assert check_export(b"".join(local.receipts.export()).splitlines(keepends=True))[0].ok
