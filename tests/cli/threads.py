"""The threads that the libraries make."""

import os
import subprocess

from cli.opening import CC, FLAGS, HERE


def threads(causeway, check, scratch):
    """Each has had its first memory when the call that made it returns."""
    program = os.path.join(scratch, "threads")
    subprocess.run([CC, *FLAGS, "-O2", "-o", program, f"{HERE}/threads.c", "-libverbs",
                    "-lrdmacm"], check=True)
    done = causeway("run", "--", program)
    check("new threads have had their first memory", done.returncode == 0 and "listen" in
          done.stdout, done)
