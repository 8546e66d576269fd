"""A stand-in for kubelet: the device plugin API v1beta1, from kubelet's side."""

import contextlib
import importlib
import os
import queue
import subprocess
import sys
import threading
from concurrent import futures

import grpc

from lib.netns import ROOT

SECONDS = 30
PROTO = os.path.join(ROOT, "crates", "kube", "proto")


def messages(folder):
    """The API's messages, made of its description."""
    subprocess.run(["protoc", f"-I{PROTO}", f"--python_out={folder}", "api.proto"], check=True)
    sys.path.insert(0, folder)
    return importlib.import_module("api_pb2")


class Plugin:
    """A plugin that has registered: its devices as they change, and calls to it."""

    def __init__(self, api, path, resource):
        self.api = api
        self.resource = resource
        self.channel = grpc.insecure_channel(f"unix:{path}")
        self.lists = queue.Queue()
        threading.Thread(target=self.watch, daemon=True).start()

    def call(self, name, request, answer):
        """One of its calls."""
        call = self.channel.unary_unary(f"/v1beta1.DevicePlugin/{name}",
                                        type(request).SerializeToString, answer.FromString)
        return call(request, timeout=SECONDS)

    def watch(self):
        """Hands on each list of devices, and None when there will be no more."""
        call = self.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch",
                                         self.api.Empty.SerializeToString,
                                         self.api.ListAndWatchResponse.FromString)
        with contextlib.suppress(grpc.RpcError):
            for answer in call(self.api.Empty()):
                self.lists.put(answer.devices)
        self.lists.put(None)

    def next(self):
        """The next list: how many devices there are, and their states; None at the end."""
        devices = self.lists.get(timeout=SECONDS)
        return None if devices is None else (len(devices), {device.health for device in devices})

    def allocate(self, *ids):
        """What a container with these devices gets."""
        request = self.api.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        answer = self.call("Allocate", request, self.api.AllocateResponse)
        return answer.container_responses[0]

    def close(self):
        """Drops the connection."""
        self.channel.close()


class Kubelet:
    """Serves registrations in a directory, until it is stopped."""

    def __init__(self, api, folder):
        self.api = api
        self.folder = folder
        self.registered = queue.Queue()
        # As kubelet does: whatever listened before has to come again.
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(
            self.register, api.RegisterRequest.FromString, api.Empty.SerializeToString)
        self.server.add_generic_rpc_handlers([
            grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler})])
        self.server.add_insecure_port(f"unix:{folder}/kubelet.sock")
        self.server.start()

    def register(self, request, _context):
        """A plugin comes."""
        self.registered.put(request)
        return self.api.Empty()

    def next(self):
        """The next plugin that registers."""
        request = self.registered.get(timeout=SECONDS)
        if request.version != "v1beta1":
            raise ValueError(f"version {request.version}")
        path = os.path.join(self.folder, request.endpoint)
        return Plugin(self.api, path, request.resource_name)

    def stop(self):
        """Ends; its socket goes."""
        self.server.stop(0).wait()
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.folder, "kubelet.sock"))
