"""How callers reach a box: handles, leases, sessions, scopes, and what each surface shows of it."""
