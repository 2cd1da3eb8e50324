"""App boxes: web applications from templates, each in a box of its own.

An app is a box with a label, a job and a port. Whatever is known of it is read from its box, so no server and no
process has to remember it. This package uses the protocols of `hutch.api` alone.
"""
