"""Warm interpreters: a template process with the libraries imported is forked into boxes of this machine.

    keeper --request--> template --fork--> entry --setns, clone--> kernel guest (in the box) --fork--> kernel

The template is exec'd with an empty environment, runs no user's code and reads nothing that a box wrote. The entry
waits for a box, with the pages copied that it will write to, as a rehearsal has shown. It joins the box's control group
and namespaces, and goes on there with its memory as another process: the kernel guest, a second guest of the box,
without any privilege, whose jobs are kernels: forks of itself that run no exec, and so have pandas imported already.
"""
