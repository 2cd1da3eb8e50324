"""Boxes that stay from one command to the next, without a server.

A box is named by its name, its id, or at least the first four characters of its id. It lives for 15 minutes
after the last command that used it (`hutch box create --keep` sets another time); a persistent box then loses its
processes and keeps its files. All commands of a user are one session, which holds the lease of the boxes it uses.
"""
