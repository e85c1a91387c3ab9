"""Several machines on one: network namespaces with an address each, joined by a switch whose cables
can be pulled. Needs root and iproute2."""

import os
import shutil
import subprocess


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    def __init__(self, nodes):
        self.name = f"ls{os.getpid()}"
        self.nodes = nodes
        self.switch = f"{self.name}s"
        self.namespaces = []
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def possible():
        return os.geteuid() == 0 and shutil.which("ip") is not None

    def _build(self):
        self._add(self.switch)
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")
        for node in range(1, self.nodes + 1):
            namespace = self.namespace(node)
            self._add(namespace)
            ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{node}",
               "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"port{node}", "master", "br0")
            ip("-n", self.switch, "link", "set", f"port{node}", "up")
            ip("-n", namespace, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")
            ip("-n", namespace, "link", "set", "lo", "up")

    def _add(self, namespace):
        ip("netns", "add", namespace)
        self.namespaces.append(namespace)

    def namespace(self, node):
        return f"{self.name}n{node}"

    @staticmethod
    def address(node):
        return f"10.77.0.{node}"

    def command(self, node, *words):
        return ["ip", "netns", "exec", self.namespace(node), *words]

    def cut(self, node):
        ip("-n", self.switch, "link", "set", f"port{node}", "down")

    def mend(self, node):
        ip("-n", self.switch, "link", "set", f"port{node}", "up")

    def close(self):
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
        self.namespaces = []
