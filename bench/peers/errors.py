"""Why a peer is not in the result: it is not installed, or it failed."""


class PeerMissing(Exception):
    """The peer cannot be measured on this machine; the message says why."""


class PeerFailed(Exception):
    """The peer was started and then did not do what it was asked."""
