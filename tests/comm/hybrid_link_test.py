"""Two machines (network namespaces) of two ranks: what collectives of the backend hybrid put on the
link between them. Give it the program link_job."""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from network import Network, enter_namespaces  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

JOB = None
SIZE = 4 << 20  # of the tensors
LIMIT = 120  # seconds


def rank_environment(network, rank, machines=2, each=2, port=29511):
    """Of a rank in the namespace of machine rank // each, whose numbers begin with 1."""
    return dict(os.environ, RANK=str(rank), WORLD_SIZE=str(machines * each),
                LOCAL_RANK=str(rank % each), LOCAL_WORLD_SIZE=str(each),
                GROUP_RANK=str(rank // each), LOCKSTEP_MACHINE=f"m{rank // each}",
                MASTER_ADDR=network.address(1), MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                GLOO_SOCKET_IFNAME="eth0")


class LinkTest(unittest.TestCase):
    def count(self):
        """Tensors of SIZE bytes that each operation put on the link, both ways together."""
        if missing := Network.missing():
            self.skipTest(missing)
        network = Network(2)
        try:
            return self.count_on(network)
        finally:
            network.close()

    def count_on(self, network):
        ranks = [subprocess.Popen(network.command(rank // 2 + 1, JOB),
                                  env=rank_environment(network, rank), text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                 for rank in range(4)]
        self.addCleanup(lambda: [rank.kill() for rank in ranks if rank.poll() is None])
        outputs = [rank.communicate(timeout=LIMIT) for rank in ranks]
        for rank, (_, errors) in zip(ranks, outputs):
            self.assertEqual(rank.returncode, 0, errors)
        said = dict(line.split() for line in outputs[0][0].splitlines())
        self.assertEqual(said.pop("backend"), "hybrid")
        return {name: int(count) / SIZE for name, count in said.items()}

    def test_each_machine_sends_a_tensor_once(self):
        tensors = self.count()
        # The sums go there, and the result comes back. The rest are headers and acknowledgements.
        overhead = 1.12
        for name, least in {"all_reduce": 2, "ordered": 2, "broadcast": 1}.items():
            self.assertGreaterEqual(tensors[name], least, tensors)
            self.assertLess(tensors[name], least * overhead, tensors)
        # Rank by rank: Gloo's ring carries 3/4 of a tensor there, as sums and as results, on the
        # connection to each side; shards that are added in rank order 4 halves each way.
        self.assertGreater(tensors["all_reduce_gloo"], 3 * 0.99, tensors)
        self.assertGreater(tensors["ordered_flat"], 4 * 0.99, tensors)


if __name__ == "__main__":
    JOB = sys.argv.pop(1)
    enter_namespaces()
    test_script.main()
