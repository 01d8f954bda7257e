"""A sweep on a cluster with Ray: the grid prints its commands, Ray's workers run them.

``cockpit sweep mnist_mlp --optimizer SGD Adam --lr 0.01 0.1 --seeds 3 --logdir /shared/sweep --print-commands > jobs.txt``,
then ``python examples/sweep_on_ray.py jobs.txt``. The folder must be one that all machines see; what is finished is not run
again, so the same call goes on after a failure. Where a cluster runs already (``ray start``), ``RAY_ADDRESS=auto`` joins it.
"""

import shlex
import subprocess
import sys
from pathlib import Path


def run(command):
    done = subprocess.run(shlex.split(command), capture_output=True, text=True)
    return command, done.returncode, done.stderr.strip().rpartition("\n")[2]


def main(path, cores_per_run=1.0):
    import ray

    ray.init()
    work = ray.remote(num_cpus=float(cores_per_run))(run)
    waiting = [work.remote(line) for line in Path(path).read_text().splitlines()]
    failed = 0
    while waiting:
        (done,), waiting = ray.wait(waiting)
        command, code, reason = ray.get(done)
        failed += code != 0
        print(f"{f'failed ({reason})' if code else 'done'}: {command} ({len(waiting)} left)", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
