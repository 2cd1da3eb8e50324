"""Why a peer is not in the result: it is not there, or it broke."""


class PeerMissing(Exception):
    """The peer cannot be measured on this machine; the message says why."""


class PeerFailed(Exception):
    """The peer was there and then did not do what it was asked."""
