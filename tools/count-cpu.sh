#!/usr/bin/env bash
# Run a command and print the CPU minutes that it used: a run's duration depends on the machine, and on who else uses it.
# The exit code is the command's. Processes that nobody waited for are not counted.
set -u

status=0
"$@" || status=$?
# Not through a pipe, whose subshell would have a clock of its own.
times > >(awk -F'[ ms]+' 'NR == 2 { printf "CPU minutes used: %.2f\n", $1 + $3 + ($2 + $4) / 60 }')
wait $!
exit "$status"
