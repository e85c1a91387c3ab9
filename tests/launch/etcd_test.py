"""Jobs whose nodes find their coordinator through etcd, which outlive etcd and any of their nodes.

Usage: etcd_test.py LOCKSTEP ETCD
"""

import base64
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import time
import unittest
import urllib.request

from launcher import LIMIT, set_launcher
from network import Network, enter_namespaces
from recovery_support import RecoveryCase

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import free_port  # noqa: E402
import test_script  # noqa: E402

set_launcher(sys.argv.pop(1))
ETCD = sys.argv.pop(1)


class Etcd:
    """One server of etcd, which can be killed and started again."""

    def __init__(self, folder, host="127.0.0.1", prefix=(), options=(), trust=None):
        self.folder, self.host, self.prefix = folder, host, prefix
        self.options, self.trust = options, trust  # a context of ssl; None: plain HTTP
        self.protocol = "https" if trust else "http"
        self.token = None
        self.endpoint, self.peer = f"{host}:{free_port()}", f"{host}:{free_port()}"
        self.start()

    def start(self):
        client, peer = f"{self.protocol}://{self.endpoint}", f"http://{self.peer}"
        self.process = subprocess.Popen(
            [*self.prefix, ETCD, "--data-dir", str(self.folder), "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
             "--log-level", "error", "--unsafe-no-fsync", *self.options],
            env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self):
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                return self.call("/v3/kv/range", key="a")
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def call(self, path, **fields):
        return self.post(path, {name: base64.b64encode(value.encode()).decode()
                                for name, value in fields.items()})

    def post(self, path, body):
        headers = {"Authorization": self.token} if self.token else {}
        request = urllib.request.Request(f"{self.protocol}://{self.endpoint}{path}",
                                         json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=5, context=self.trust) as answer:
            return json.load(answer)

    def enable_logins(self):
        """From now on only root may do anything; its password is 'sesame'."""
        self.post("/v3/auth/user/add", {"name": "root", "password": "sesame"})
        self.post("/v3/auth/role/add", {"name": "root"})
        self.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
        self.post("/v3/auth/enable", {})
        self.log_in()

    def log_in(self):
        self.token = None
        self.token = self.post("/v3/auth/authenticate",
                               {"name": "root", "password": "sesame"})["token"]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def keys(self):
        found = self.call("/v3/kv/range", key="/lockstep/", range_end="/lockstep0").get("kvs", [])
        return {base64.b64decode(each["key"]).decode(): base64.b64decode(each["value"]).decode()
                for each in found}


class EtcdCase(RecoveryCase):
    def setUp(self):
        super().setUp()
        self.secret = self.folder / "job.secret"
        self.secret.write_text("0123456789abcdef0123456789abcdef\n")
        self.secret.chmod(0o600)
        self.jobs = []
        self.addCleanup(lambda: [job.kill() for job in self.jobs if job.process.poll() is None])

    def start_etcd(self, **options):
        self.etcd = Etcd(self.folder / "etcd", **options)
        self.addCleanup(lambda: self.etcd.kill())
        self.etcd.wait()

    def node(self, number, *options, nnodes="2", prefix=(), **values):
        job = self.job("--nnodes", nnodes, "--rdzv-backend", "etcd", "--rdzv-endpoint",
                       self.etcd.endpoint, "--rdzv-id", "job1", "--secret-file", str(self.secret),
                       "--node-rank", str(number), *options, run_dir=f"node{number}", prefix=prefix,
                       **values)
        self.jobs.append(job)
        return job

    def leader_first(self, leader, others, *options, **values):
        """Nodes by number; the first has the coordinator."""
        first = self.node(leader, *options, **values)
        first.wait_for_error("this node has the coordinator (term 1)")
        return [first, *(self.node(number, *options, **values) for number in others)]

    def end_well(self, *jobs):
        for job in jobs:
            code, _, err = job.end()
            self.assertEqual(code, 0, err)


class Takeover(EtcdCase):
    def setUp(self):
        super().setUp()
        self.start_etcd()

    def test_the_node_that_formed_the_group_is_killed_and_the_others_live_on(self):
        options = ["--min-world", "2", "--max-replacements", "0"]
        leader, first, third = self.leader_first(1, [0, 2], *options, nnodes="3", ranks=1, hold=5)
        self.wait_for_step(5)
        leader.kill()
        self.wait_for("a new coordinator", lambda: any(
            words[0] == "met" and words[1] == "2" for _, _, words in self.lines()))
        self.release()
        self.end_well(first, third)
        self.check_no_step_is_lost(ranks=[0, 2], steps=20)
        self.assertEqual([len(self.pids(slot)) for slot in range(3)], [1, 1, 1])
        self.assertIn("goes on with epoch 1", first.err + third.err)
        self.assertNotIn("/lockstep/job1/coordinator", self.etcd.keys())

    def test_the_node_with_coordinator_and_store_is_killed_and_all_restart(self):
        options = ["--max-restarts", "2"]
        leader, second = self.leader_first(0, [1], *options, hold=5)
        self.wait_for_step(5)
        leader.kill()
        second.wait_for_error("this node has the coordinator (term 2)")
        again = self.node(0, *options)
        second.wait_for_error("restart 1 of 2")
        self.wait_for("the second epoch", lambda: any(
            words[0] == "met" and words[1] == "2" for _, _, words in self.lines()))
        self.release()
        self.end_well(second, again)

    def test_any_other_agent_is_killed_and_the_job_goes_on(self):
        options = ["--max-restarts", "2"]
        leader, second = self.leader_first(0, [1], *options, hold=5)
        self.wait_for_step(5)
        second.kill()
        leader.wait_for_error("restart 1 of 2")
        again = self.node(1, *options)
        self.wait_for("the second epoch", lambda: any(
            words[0] == "met" and words[1] == "2" for _, _, words in self.lines()))
        self.release()
        self.end_well(leader, again)
        self.assertNotIn("term 2", leader.err + again.err)

    def test_etcd_is_killed_and_comes_back_with_and_without_its_data(self):
        options = ["--max-restarts", "1"]
        leader, second = self.leader_first(0, [1], *options, hold=5)
        self.wait_for_step(5)
        for count, loses_data in enumerate((False, True), 1):
            self.etcd.kill()
            leader.wait_for_error("etcd cannot be asked", count)
            second.wait_for_error("etcd cannot be asked", count)
            if loses_data:
                shutil.rmtree(self.etcd.folder)
            self.etcd.start()
            # Each node notices it when it asks next; an end that it has not seen is none to it.
            for job in (leader, second):
                job.wait_for_error("etcd answers again", count)
        leader.wait_for_error("the coordinator's key is in etcd again")
        self.wait_for("the record", lambda: "/lockstep/job1/record" in self.etcd.keys())
        # What is in etcd now is enough for another coordinator.
        leader.kill()
        second.wait_for_error("this node has the coordinator (term 2)")
        second.wait_for_error("goes on with epoch 1")
        again = self.node(0, *options)
        second.wait_for_error("restart 1 of 1")
        self.wait_for("the second epoch", lambda: any(
            words[0] == "met" and words[1] == "2" for _, _, words in self.lines()))
        self.release()
        self.end_well(second, again)

    def test_without_etcd_the_job_runs_on_to_its_end(self):
        leader, second = self.leader_first(0, [1], hold=5)
        self.wait_for_step(5)
        self.etcd.kill()
        leader.wait_for_error("etcd cannot be asked")
        self.release()
        self.end_well(leader, second)

    def test_without_etcd_an_epoch_waits_for_it(self):
        options = ["--max-replacements", "3"]
        leader, second = self.leader_first(0, [1], *options, hold=5)
        self.wait_for_step(5)
        self.etcd.kill()
        leader.wait_for_error("etcd cannot be asked")
        self.kill(3)
        leader.wait_for_error("a replacement takes its place (1 of 3)")
        time.sleep(1)  # nothing is to happen
        self.assertEqual(len(self.pids(3)), 1)
        self.etcd.start()
        leader.wait_for_error("all ranks go on after step")
        self.release()
        self.end_well(leader, second)
        self.check_no_step_is_lost(ranks=4, steps=20)


class Meeting(EtcdCase):
    def setUp(self):
        super().setUp()
        self.start_etcd()

    def test_nodes_may_come_before_etcd(self):
        self.etcd.kill()
        jobs = [self.node(number) for number in range(2)]
        for job in jobs:
            job.wait_for_error("etcd cannot be asked")
        self.etcd.start()
        self.end_well(*jobs)

    def test_one_of_two_servers_is_enough(self):
        self.etcd.endpoint, endpoint = f"127.0.0.1:1,{self.etcd.endpoint}", self.etcd.endpoint
        jobs = [self.node(number) for number in range(2)]
        self.etcd.endpoint = endpoint
        self.end_well(*jobs)
        self.assertNotIn("/lockstep/job1/coordinator", self.etcd.keys())

    def test_what_others_write_leads_nobody_astray(self):
        self.etcd.call("/v3/kv/put", key="/lockstep/job1/coordinator", value="unsigned\n" + json.dumps(
            {"term": 99, "id": "x", "host": "evil", "address": "127.0.0.1", "port": 1}))
        jobs = [self.node(number) for number in range(2)]
        jobs[0].wait_for_error("was not written with this job's secret: ignoring it")
        self.end_well(*jobs)

    def test_a_store_at_the_coordinator_is_refused(self):
        code, _, err = self.node(0, "--store", "local").end()
        self.assertEqual(code, 2)
        self.assertIn("--store local contradicts --rdzv-backend etcd", err)


class Guarded(EtcdCase):
    """An etcd that asks who is there, and shows who it is."""

    def conf(self, *values):
        return ["--rdzv-conf", ",".join(values)]

    def ends_in(self, *options, words, **values):
        """A node never gets to etcd, and says why."""
        job = self.node(0, *options, **values)
        self.assertIn(words, job.wait_for_error("etcd cannot be asked"))
        job.kill()

    def certificate(self, name, *options):
        key, path = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                        f"/CN={name}", "-keyout", str(key), "-out", str(path), *options],
                       check=True, capture_output=True)
        return str(path), str(key)

    def test_a_user_with_a_password_whose_token_is_forgotten(self):
        self.start_etcd(options=["--auth-token", "simple", "--auth-token-ttl", "1"])
        self.etcd.enable_logins()
        self.ends_in(words="user name is empty")
        with_user = self.conf("user=root")
        self.ends_in(*with_user, words="authentication failed",
                     env={"LOCKSTEP_ETCD_PASSWORD": "wrong"})
        leader, second = self.leader_first(0, [1], *with_user, hold=5,
                                           env={"LOCKSTEP_ETCD_PASSWORD": "sesame"})
        self.wait_for_step(5)
        # A server that is started again knows no tokens.
        self.etcd.kill()
        leader.wait_for_error("etcd cannot be asked")
        self.etcd.start()
        leader.wait_for_error("etcd answers again")
        self.release()
        self.end_well(leader, second)

    def start_with_certificate(self, *options):
        """Which is for 127.0.0.1. Returns its file."""
        cert, key = self.certificate("server", "-addext", "subjectAltName=IP:127.0.0.1")
        trust = ssl.create_default_context(cafile=cert)
        if options:
            trust.load_cert_chain(*self.own)
            # Etcd's gateway shows the server's own certificate to the server behind it.
            clients = self.folder / "clients.pem"
            clients.write_text(pathlib.Path(self.own[0]).read_text() + pathlib.Path(cert).read_text())
            options = [*options, "--trusted-ca-file", str(clients)]
        self.start_etcd(trust=trust, options=["--cert-file", cert, "--key-file", key, *options])
        return cert

    @unittest.skipUnless(shutil.which("openssl"), "certificates are made with openssl")
    def test_https_and_a_password_in_a_file(self):
        cert = self.start_with_certificate()
        self.etcd.enable_logins()
        password = self.folder / "password"
        password.write_text("sesame\n")
        password.chmod(0o600)
        other, _ = self.certificate("other", "-addext", "subjectAltName=IP:127.0.0.1")
        wanted = ["protocol=https", "user=root", f"password_file={password}"]
        self.ends_in(*self.conf(*wanted, f"cacert={other}"), words="certificate verify failed")
        jobs = [self.node(number, *self.conf(*wanted, f"cacert={cert}")) for number in range(2)]
        self.end_well(*jobs)
        self.assertNotIn("sesame", jobs[0].err + jobs[1].err)

    @unittest.skipUnless(shutil.which("openssl"), "certificates are made with openssl")
    def test_certificates_of_both(self):
        self.own = self.certificate("node", "-addext", "extendedKeyUsage=clientAuth")
        cert = self.start_with_certificate("--client-cert-auth")
        wanted = ["protocol=https", f"cacert={cert}"]
        self.ends_in(*self.conf(*wanted), words="TLS")
        shown = [f"cert={self.own[0]}", f"key={self.own[1]}"]
        jobs = [self.node(number, *self.conf(*wanted, *shown)) for number in range(2)]
        self.end_well(*jobs)

    @unittest.skipUnless(shutil.which("openssl"), "certificates are made with openssl")
    def test_a_certificate_for_another_name_is_not_believed(self):
        cert = self.start_with_certificate()
        self.etcd.endpoint = self.etcd.endpoint.replace("127.0.0.1", "localhost")
        self.ends_in(*self.conf("protocol=https", f"cacert={cert}"), words="ostname mismatch")


@unittest.skipIf(Network.missing(), Network.missing())
class CutOff(EtcdCase):
    """Node 1 of the network has etcd, nodes 2 to 4 the job's."""

    def setUp(self):
        super().setUp()
        self.network = Network(4)
        self.addCleanup(self.network.close)
        self.start_etcd(host=self.network.address(1), prefix=self.network.command(1))

    def start_etcd(self, **options):
        self.etcd = Etcd(self.folder / "etcd", **options)
        self.addCleanup(lambda: self.etcd.kill())

    def node(self, number, *options, **values):
        return super().node(number, *options, prefix=self.network.command(number + 2), **values)

    def test_a_leader_that_is_cut_off_is_replaced_and_comes_back_as_a_node(self):
        options = ["--min-world", "2", "--rejoin-after", "1", "--max-restarts", "1"]
        leader, first, third = self.leader_first(1, [0, 2], *options, nnodes="3", ranks=1, hold=5)
        self.wait_for_step(5)
        self.network.cut(3)
        self.wait_for("the others", lambda: any(
            words[0] == "met" and words[1] == "2" for _, _, words in self.lines()))
        self.network.mend(3)
        leader.wait_for_error("the coordinator here gives up")
        self.wait_for("all", lambda: any(
            words[0] == "met" and words[1] == "3" for _, _, words in self.lines()))
        self.release()
        self.end_well(leader, first, third)
        worlds = {int(words[1]): int(words[7]) for _, _, words in self.lines() if words[0] == "met"}
        self.assertEqual(worlds, {1: 3, 2: 2, 3: 3})


if __name__ == "__main__":
    enter_namespaces()
    test_script.main(verbosity=2)
