"""The programs that run inside a box as its kernels, and how they are started there."""
