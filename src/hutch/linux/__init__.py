"""Linux itself: kernel calls, processes, control groups, seccomp, Landlock, netlink. Any provider may use it."""
