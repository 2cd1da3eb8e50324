"""Live forks: a kernel's memory is copied into a kernel of another box, which goes on from there.

    kernel K of box A --fork--> copy C, parked      kernel guest of box B --fork--> placeholder H, parked
    copier (a process beside the keeper): stops C and H, makes H's memory and registers those of C, ends C

H has the identity, limits, filter and namespaces of box B from its start, and gets nothing of box A but the bytes of
memory: no descriptor, no process, no right. So the boxes are as far apart as any two.
"""
