"""The calls of E2B's agent, by their paths."""

from hutch.server.e2b.agent import filesystem, processes, watchers
from hutch.server.e2b.agent.connect import ClientStream, Nothing, ServerStream, Unary


def methods(watching: watchers.Watchers) -> dict[str, Unary | ServerStream | ClientStream]:
    """Return every call; those on watchers keep what they began in `watching`."""
    process, files = "/process.Process/", "/filesystem.Filesystem/"
    return {
        process + "Start": ServerStream(processes.StartMessage, processes.start, processes.KEEPALIVE, ends_itself=True),
        process + "Connect": ServerStream(processes.ProcessMessage, processes.connect, processes.KEEPALIVE),
        process + "List": Unary(Nothing, processes.list_processes),
        process + "SendInput": Unary(processes.InputMessage, processes.send_input),
        process + "StreamInput": ClientStream(processes.StreamMessage, processes.stream_input),
        process + "CloseStdin": Unary(processes.ProcessMessage, processes.close_stdin),
        process + "SendSignal": Unary(processes.SignalMessage, processes.send_signal),
        process + "Update": Unary(processes.UpdateMessage, processes.update),
        files + "Stat": Unary(filesystem.PathMessage, filesystem.stat),
        files + "ListDir": Unary(filesystem.ListMessage, filesystem.list_dir),
        files + "MakeDir": Unary(filesystem.PathMessage, filesystem.make_dir),
        files + "Move": Unary(filesystem.MoveMessage, filesystem.move),
        files + "Remove": Unary(filesystem.PathMessage, filesystem.remove),
        files + "WatchDir": ServerStream(watchers.WatchMessage, watchers.watch_dir, watchers.KEEPALIVE),
        files + "CreateWatcher": Unary(watchers.WatchMessage, watching.create),
        files + "GetWatcherEvents": Unary(watchers.WatcherMessage, watching.events),
        files + "RemoveWatcher": Unary(watchers.WatcherMessage, watching.remove),
    }
