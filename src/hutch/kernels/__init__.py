"""Code interpreters in boxes: kernels of Python, JavaScript, TypeScript and Bash that keep their state.

A kernel is a job of its box, so it has the box's limits and identity, and survives its keeper. It is started from
programs that are sent through its own input, or forked from a prepared interpreter where the engine can do that.
"""
