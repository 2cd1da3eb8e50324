"""Images of the native engine: pulled from registries, imported from archives, or built here; layers are shared.

A box stands on one with `hutch run --image oci:NAME`.
"""
