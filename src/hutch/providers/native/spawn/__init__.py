"""The spawner: the process that forks boxes, the children it keeps ready, and the keeper's end of both."""
