"""Prestarted children copy the pages that their boxes will write to; a fork of the zygote shows which."""

import json
import subprocess
import sys

# In a process of its own, because it forks: of 64 pages every second one is written to.
PROGRAM = """
import json, mmap, os, resource
from hutch.providers.native.spawn import prefault

PAGES = range(0, 64, 2)
memory = mmap.mmap(-1, 64 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(b"x" * len(memory))

def perform():
    for page in PAGES:
        memory[page * mmap.PAGESIZE] = 0

def copied(prefault):
    'How many pages a fork copies while it performs; what it finds there, of all pages.'
    reader, writer = os.pipe()
    if os.fork() == 0:
        prefault()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        perform()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        kept = all(memory[page * mmap.PAGESIZE + 1] == ord("x") for page in range(64))
        os.write(writer, json.dumps([faults, kept]).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(reader, 100))

without = copied(lambda: None)
prefault.learn_pages(perform)
noted = prefault.PageRanges()
if os.fork() == 0:
    perform()
    noted.note(*(os.open(f"/proc/self/{name}", os.O_RDONLY) for name in ("maps", "pagemap")))
    os._exit(0)
os.wait()
ours_is_untouched = memory[0] == ord("x")
print(json.dumps([without, copied(prefault.prefault_pages), copied(noted.prefault), ours_is_untouched]))
"""


def test_what_was_learned_is_copied_ahead() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    (faults, kept), (fewer, kept_too), noted, ours_is_untouched = json.loads(output)
    assert faults >= 32, "each page is copied when it is first written to"
    assert fewer <= faults - 32, "they were copied before"
    assert kept and kept_too and ours_is_untouched
    assert noted[0] <= faults - 32 and noted[1], "a fork tells the next one what it has written to"
