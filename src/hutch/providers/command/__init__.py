"""Engines that are a program on this machine, started once for each box with our guest inside it."""
