"""File operations of the guest: each is a request and its answer, run in short steps on the loop."""
