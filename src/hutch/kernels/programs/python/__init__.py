"""The Python kernel. It runs in a box, with whatever Python 3.8 or newer the box has and the standard library.

Its modules are sent through the kernel's input at its start, so nothing has to be installed in the box. They are named
by relative imports only, because there the package has another name.
"""
