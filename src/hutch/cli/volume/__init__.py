"""Volumes: named directories that outlive boxes, to be the workspace of one or several of them.

A box works in one with `hutch box create --workspace volume:NAME`.
"""
