"""The chains that netlink shows are those that `nft` made, in a network namespace of the test's own."""

import subprocess
import sys

import pytest

PROGRAM = """
import subprocess
from hutch.providers.native.network.nft_chains import closed_forward_chain
subprocess.run(["nft", "-f", "-"], input={rules!r}, text=True, check=True)
print(closed_forward_chain())
"""
OPEN = """
table ip filter {
  chain FORWARD { type filter hook forward priority 0; policy accept; }
  chain plain { }
}
table inet local {
  chain input { type filter hook input priority 0; policy drop; }
}
"""
CLOSED = """
table ip6 six {
  chain stop { type filter hook forward priority 10; policy drop; }
}
"""
MANY = "\n".join(f"table ip t{number} {{ chain a{number} {{ }}\n chain b{number} {{ }}\n }}" for number in range(300))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "expected"),
    [("", "None"), (OPEN, "None"), (OPEN + CLOSED, "ip6 six stop"), (MANY + OPEN + CLOSED, "ip6 six stop")],
)
def test_a_chain_that_drops_forwarded_packets_is_found(rules: str, expected: str) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    done = subprocess.run(
        [*alone, sys.executable, "-c", PROGRAM.format(rules=rules)], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout.strip(), done.stderr) == (expected, "")
