#!/usr/bin/env bash
# Run the tests: first those marked `alone`, one by one, then those that may run beside each other.
#
# A test that fails is run once more, alone. If it passes then, the run goes on and names it as unsteady at the
# end; if it fails or skips, the run fails. After a pytest that died, the tests that had not ended well are run in one
# process.
# Arguments go to pytest (paths, -k, ...).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022

export PYTHONHASHSEED=0
# Not below TMPDIR: tests have run directories there, and the path of a Unix socket has 108 bytes.
scratch=$(mktemp -d /tmp/hutch-test.XXXXXX)
# Not if a mount was left there: rm would follow it into the host's own files.
trap 'grep -qF " $scratch/" /proc/self/mountinfo || rm -rf --one-file-system "$scratch"' EXIT
export HYPOTHESIS_STORAGE_DIRECTORY=$scratch/hypothesis

python=.venv/bin/python
arguments=("$@")
runs=()     # names of the pytest runs, in order
unsteady=() # tests that passed at their second run only
empty=0     # phases that selected no test
stuck_seconds=2400
# A busy machine may need more than pyproject.toml grants somebody who waits; some tests have a limit of their own, and
# a process that is stuck in the kernel goes after the longest of them.
patience=(--timeout=600 -o faulthandler_timeout=2000)

# run NAME OPTION...: one pytest, its output shown and kept in $scratch/NAME.log. Returns pytest's exit code.
run() {
  local name=$1 log=$scratch/$1.log pid
  shift
  runs+=("$name")
  echo "== ${name//-/ }"
  # Written to a file, not through a pipe: a process that a test left behind would hold the pipe open for ever.
  : >"$log"
  "$python" -m pytest --basetemp="$scratch/$name" "${patience[@]}" "$@" "${arguments[@]}" >>"$log" 2>&1 </dev/null &
  pid=$!
  end_if_stuck "$pid" "$log" &
  tail -n +1 -f --pid="$pid" "$log"
  wait "$pid"
}

# end_if_stuck PID LOG: end a pytest whose log has stood still for longer than any single test may take. A slow machine
# only makes the run longer; a limit on the whole run would end it there and then run every test again.
end_if_stuck() {
  while sleep 5 && kill -0 "$1" 2>/dev/null; do
    (($(date +%s) - $(stat -c %Y "$2") > stuck_seconds)) || continue
    echo "== no test has ended for $stuck_seconds seconds" >>"$2"
    kill -INT "$1" # pytest shows where it was
    sleep 60
    kill -KILL "$1" 2>/dev/null
  done
}

# phase NAME MARK OPTION...: run the tests that MARK selects, and those that failed a second time.
phase() {
  local name=$1 mark=$2 code before
  shift 2
  local cache=$scratch/cache-$name
  HUTCH_TEST_PROGRESS=$scratch/progress-$name run "$name" -m "$mark" -o cache_dir="$cache" "$@"
  code=$?
  case $code in
    0) return 0 ;;
    1) ;;
    5) empty=$((empty + 1)); return 0 ;;
    *) the_rest "$name" "$mark" "$code"; return 0 ;;
  esac

  before=$("$python" tools/failed_tests.py "$cache") || finish 1 "$name failed in a way that has no second run"
  run "$name-second-run" -m "$mark" -o cache_dir="$cache" -p no:xdist --last-failed --last-failed-no-failures=none \
    --junit-xml="$scratch/second.xml"
  code=$?
  ((code == 0)) || finish "$code" "$name failed twice"
  # A test that was not selected again stays in the list of failures; one that skipped has proven nothing.
  [[ -z $("$python" tools/failed_tests.py "$cache") ]] && grep -q 'skipped="0"' "$scratch/second.xml" ||
    finish 1 "$name: not every failed test passed at its second run"
  mapfile -t -O "${#unsteady[@]}" unsteady <<<"$before"
}

# the_rest NAME MARK CODE: pytest itself died, or lost a worker with the tests it had yet to run. Those that had not
# ended well are run in one process, and then must pass. What has passed is not run again, or a slow machine that breaks
# a run would have to do all of it twice.
the_rest() {
  local name=$1 mark=$2 code
  echo "== $name ended with pytest's exit code $3: the tests that had not ended well, in one process"
  HUTCH_TEST_PROGRESS=$scratch/progress-$name run "$name-rest" -m "$mark" -p no:xdist
  code=$?
  # 5: pytest died after its last test, and nothing is left to run.
  ((code == 0 || code == 5)) || finish "$code" "$name died, and its rest then failed in one process"
  unsteady+=("$name: pytest died with exit code $3")
}

# finish CODE [REASON]: name what was unsteady, repeat the summary line of every pytest run, and end.
finish() {
  local name
  echo
  ((${#unsteady[@]})) && printf 'unsteady: %s\n' "${unsteady[@]}"
  [[ -n ${2-} ]] && echo "FAILED: $2"
  for name in "${runs[@]}"; do
    echo "-- ${name//-/ }"
    grep -aE '^=+ .* in [0-9.]+s.* =+$' "$scratch/$name.log" | tail -n 1
  done
  exit "$1"
}

# First, so that this one process compiles all test files and not each of three workers.
phase alone "alone and not proof" -p no:xdist
# No new worker for one that died: with loadfile, xdist 3.8 then waits for ever (pytest-xdist issue 1378).
phase together "not alone and not proof" -n 3 --dist loadfile --max-worker-restart=0
if ((${#arguments[@]} == 0)); then
  # What a bot's own process does, once more on the event loop that uvicorn chooses where it is installed.
  arguments=(-k "embedded or test_embedding" tests/both tests/guides/test_embedding.py)
  export HUTCH_TEST_LOOP=uvloop
  phase uvloop "not alone and not proof" -n 2 --dist loadfile --max-worker-restart=0
fi
((empty < 2)) || finish 5 "no test was selected"
finish 0
