"""`hutch mcp` on standard input and output: one client, one desk, until its end of the pipe is closed."""

from mcp.server.stdio import stdio_server

from hutch.mcp.serving.server import MakeDesk, OneDesk, options_of, server_on


async def serve(make: MakeDesk) -> None:
    desk = OneDesk(make)
    server = server_on(desk)
    try:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, options_of(server))
    finally:
        await desk.close()
