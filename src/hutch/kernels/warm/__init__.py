"""Warm interpreters: a template process with the libraries imported is forked into boxes of this machine.

    keeper --request--> template --fork--> entry --setns, fork--> kernel guest (in the box) --fork--> kernel

The template is exec'd with an empty environment, runs no user's code and reads nothing that a box wrote. The entry
joins the box's control group and namespaces and ends. The kernel guest is a second guest of the box, without any
privilege, whose jobs are kernels: forks of itself that run no exec, and so have pandas imported already.
"""
