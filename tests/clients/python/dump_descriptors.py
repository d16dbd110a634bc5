"""Writes the protobuf descriptors inside the official client to standard output.

The output is one encoded FileDescriptorSet; the test that runs this compares it with ours.
"""

import sys

from google.protobuf import descriptor_pb2
from rocketmq.grpc_protocol import admin_pb2, definition_pb2, service_pb2

found = descriptor_pb2.FileDescriptorSet()
for module in (definition_pb2, service_pb2, admin_pb2):
    module.DESCRIPTOR.CopyToProto(found.file.add())
sys.stdout.buffer.write(found.SerializeToString())
