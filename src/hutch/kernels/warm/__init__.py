"""Warm interpreters: a template process with the libraries imported is forked into boxes of this machine.

    keeper --request--> template --fork--> kernel guest --setns, clone--> in the box: serves kernels as jobs
                                 --fork--> first kernel --setns, clone--> in the box: its first job

The template is exec'd with an empty environment, runs no user's code and reads nothing that a box wrote. Both forks
wait for a box, with the pages copied that they will write to, as rehearsals have shown. Each joins the box's control
group and namespaces, and goes on there with its memory as another process, without any privilege. The kernel guest is
a second guest of the box; kernels after the first are forks of it that run no exec, and so have pandas imported too.
"""
