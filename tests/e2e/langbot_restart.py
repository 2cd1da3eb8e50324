"""One LangBot before and after a restart of Hutch. Arguments: address, key, phase."""

import sys

import langbot_sdk as bot
import scenarios

PHASE = sys.argv[3]


async def before():
    async with bot.connected("restart") as client:
        where = bot.context("restart")
        await client.execute(bot.spec("a", "echo kept > file", network="on", host_path="/nowhere/tenants/x"), where)
        await client.create_session(bot.spec("mcp-shared", persistent=True), where)
        process = bot.models.BoxManagedProcessSpec(process_id="p", command="python3", args=["-c", bot.ECHO])
        await client.start_managed_process("mcp-shared", process, where)
        path, headers = bot.relay_of(where, "mcp-shared", "p")
        async with bot.attached(path, headers) as relay:
            await relay.send("one")
            assert (await relay.recv()).strip() == "<one>"


async def after():
    async with bot.connected("restart") as client:
        where = bot.context("restart")
        assert {each["session_id"] for each in await client.get_sessions(where)} == {"a", "mcp-shared"}
        assert (
            await client.execute(bot.spec("a", "cat file", network="on", host_path="/nowhere/tenants/x"), where)
        ).stdout == "kept"
        info = await client.get_managed_process("mcp-shared", "p", where)
        assert (info.status.value, info.command, info.args[0]) == ("running", "python3", "-c"), info
        path, headers = bot.relay_of(where, "mcp-shared", "p")
        async with bot.attached(path, headers) as relay:
            await relay.send("two")
            assert (await relay.recv()).strip() == "<two>", "the answer to an earlier client was repeated"
        await client.shutdown()


scenarios.run([before if PHASE == "before" else after])
