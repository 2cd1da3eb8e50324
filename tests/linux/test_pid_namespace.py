"""A large process continues inside a pid namespace with the memory that it has, and without a fork."""

import json
import subprocess
import sys

PROGRAM = """
import json, os, sys, threading
from hutch.linux import kernel
from hutch.linux.pid_namespace import fork_into_pid_namespace

kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
reader, writer = os.pipe()
forked = os.fork()
if forked == 0:
    content = [number * number for number in range(100_000)]
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
    descriptors = sorted(os.listdir("/proc/self/fd"))
    outside = fork_into_pid_namespace()
    thread = threading.Thread(target=content.append, args=(7,))
    thread.start()
    thread.join()
    child = os.fork()
    if child == 0:
        os._exit(content[-1])
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = sorted(os.listdir(f"/proc/{outside}/fd"))
    told = {"pid": os.getpid(), "outside": outside, "child": ended, "sum": sum(content), "same": left == descriptors}
    os.write(writer, json.dumps(told).encode())
    os._exit(5)
ends = dict(os.waitpid(-1, 0) for _ in range(2))
told = json.loads(os.read(reader, 4096))
told["before"] = os.waitstatus_to_exitcode(ends.pop(forked))
told["after"] = {str(pid): os.waitstatus_to_exitcode(status) for pid, status in ends.items()}
print(json.dumps(told))
"""


def test_the_fork_is_the_first_process_of_its_namespace() -> None:
    """It keeps its memory and descriptors, may have threads and children, and the old process ends without a step."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["pid"] == 1 and answer["child"] == 7 and answer["same"]
    assert answer["sum"] == sum(number * number for number in range(100_000)) + 7
    assert answer["before"] == -9 and answer["after"] == {str(answer["outside"]): 5}
