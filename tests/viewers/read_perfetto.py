"""Reads a trace with Perfetto's own classes and prints the content as JSON: read_perfetto.py FILE.

The classes do not know Perfetto's GPU extensions, so this script reads them by their field numbers."""

import json
import sys
from collections import Counter

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb


def fields(data):
    """Returns the fields of a message as pairs (field number, value)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            size = varint()
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {key & 7}")


def of(message, number):
    return [value for field, value in fields(message.SerializeToString()) if field == number]


trace = pb.Trace.FromString(open(sys.argv[1], "rb").read())
names, kernels, queues, calls, gpu, links, threads, texts = {}, {}, {}, Counter(), [], {}, {}, {}
api = None
for packet in trace.packet:
    assert packet.trusted_packet_sequence_id == 1
    interned = packet.interned_data
    names.update({one.iid: one.name for one in interned.event_names})
    queues.update({one.iid: one.name for one in interned.gpu_specifications})
    texts.update({one.iid: one.str.decode() for one in interned.debug_annotation_string_values})
    for kernel in of(interned, 1000):
        kernel = pb.InternedComputeKernel.FromString(kernel)
        kernels[kernel.iid] = (kernel.name, kernel.demangled_name)
    for context in interned.graphics_contexts:
        api = pb.InternedGraphicsContext.Api.Name(context.api)
    if packet.HasField("track_descriptor") and packet.track_descriptor.HasField("thread"):
        thread = packet.track_descriptor.thread
        threads[thread.tid] = thread.thread_name
    if packet.HasField("track_event"):
        event = packet.track_event
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            calls[names[event.name_iid]] += 1
            stack = [texts[one.string_value_iid] for one in event.debug_annotations if one.name == "stack"]
            for correlation in of(event, 3000):
                for number, submitted in fields(correlation):
                    assert number == 1
                    links[submitted] = stack[0]
    if packet.HasField("gpu_render_stage_event"):
        event = packet.gpu_render_stage_event
        launch = event.launch
        gpu.append(
            {
                "id": event.event_id,
                "start": packet.timestamp,
                "duration": event.duration,
                "gpu": event.gpu_id,
                "queue": queues[event.hw_queue_iid],
                "stage": queues[event.stage_iid],
                "kernel": kernels.get(event.kernel_iid),
                "grid": [launch.grid_size.x, launch.grid_size.y, launch.grid_size.z],
                "block": [launch.workgroup_size.x, launch.workgroup_size.y, launch.workgroup_size.z],
            }
        )
for event in gpu:
    event["launched_by"] = links.get(event["id"])
print(json.dumps({"api": api, "calls": calls, "gpu": gpu, "threads": threads}))
