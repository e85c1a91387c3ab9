"""What the curves of a run hold in the files of TensorBoard and W&B, read without these: the tests that kill
runs must not depend on them. tools_test.py is about what they see themselves."""

import json
import pathlib
import struct


def fields_of(message):
    """The fields of a message of Protocol Buffers: its number, then a number or bytes."""
    offset = 0

    def varint():
        nonlocal offset
        value = shift = 0
        while True:
            byte = message[offset]
            offset += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while offset < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, message[offset:offset + size]
        offset += size


def first(message, number, default=None):
    return next((value for field, value in fields_of(message) if field == number), default)


def tensorboard_scalars(folder, tag):
    """Steps and values of a curve, as TensorBoard shows it: a session's start takes back what is later."""
    points = []
    for file in sorted(pathlib.Path(folder).glob("events.out.tfevents.*")):
        data, offset = file.read_bytes(), 0
        while offset + 16 <= len(data):
            size, = struct.unpack_from("<Q", data, offset)
            event = data[offset + 12:offset + 12 + size]
            offset += 16 + size
            step = first(event, 2, 0)
            if first(event, 7) is not None:
                points = [point for point in points if point[0] < step]
            for _, value in fields_of(first(event, 5, b"")):
                if first(value, 1) == tag.encode():
                    points.append((step, struct.unpack("<f", first(value, 2))[0]))
    return points


def wandb_records(file):
    data, offset, record = file.read_bytes(), 7, b""
    while offset + 7 <= len(data):
        left = 32768 - offset % 32768
        if left < 7:
            offset += left
            continue
        size, kind = struct.unpack_from("<HB", data, offset + 4)
        record += data[offset + 7:offset + 7 + size]
        offset += 7 + size
        if kind in (1, 4):
            yield record
            record = b""


def wandb_rows(folder, run):
    """All rows of a run, those of the oldest start first."""
    rows = []
    for file in sorted(pathlib.Path(folder).glob(f"wandb/offline-run-*-{run}/run-{run}.wandb")):
        for record in wandb_records(file):
            history = first(record, 2)
            if isinstance(history, bytes):
                items = [value for field, value in fields_of(history) if field == 1]
                rows.append({first(item, 1).decode(): json.loads(first(item, 16)) for item in items})
    return rows


def check_other_curves(folder, run, log):
    """Each step of the log once, in the files for others, too. Raises SystemExit otherwise."""
    expected = [(line["step"], line["loss"]) for line in log if "loss" in line]
    rows = [(row["step"], row["loss"]) for row in wandb_rows(folder, run) if "loss" in row]
    if rows != expected:
        raise SystemExit(f"{folder}: W&B has {rows}, not {expected}")
    single = [(step, struct.unpack("f", struct.pack("f", loss))[0]) for step, loss in expected]
    scalars = tensorboard_scalars(pathlib.Path(folder) / "tensorboard" / "rank_0", "loss")
    if scalars != single:
        raise SystemExit(f"{folder}: TensorBoard has {scalars}, not {single}")
