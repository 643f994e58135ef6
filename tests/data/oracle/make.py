"""Trims a full set of oracle answers to what the repository keeps beside this file (about 1.7 MB).

Usage: python3 make.py FOLDER        (plain Python; FOLDER holds oracle/ and oracle-long/)

short/NAME/cases.json and long/NAME/cases.json are kept whole, so that prompts, logits and greedy replies of every case
can be checked. rows.safetensors keeps the text cases of the checkpoint that the repository ships: whole where a case is
short, else some rows of every layer, whose indices stand in the int32 tensor "CASE.rows". pictures.safetensors keeps the
first case with a picture in the same way, its pixels as the bytes they were made of: value = (byte - 127.5) / 127.5.
"""

import json
import os
import shutil
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHIPPED = "lfm3-vl-demo-4bit"
# Answers kept without their checkpoint serve to check the chat template (tools, long prompts).
NAMES = [SHIPPED, "lfm3-demo-4bit-g32"]
WHOLE_ROWS = 64
IMAGE = 4001  # the placeholder's id


def read(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


def write(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def kept_rows(count):
    """The first rows, those around each page border and the last ones."""
    near = {row for border in range(64, count, 64) for row in (border - 1, border, border + 1)}
    return sorted({0, 1, 2} | near | set(range(count - 8, count)))


def trim_case(name, count, rows, tensors):
    out = {}
    if len(rows) < count:
        out[f"{name}.rows"] = ("I32", [len(rows)], struct.pack(f"<{len(rows)}i", *rows))
    for key, (dtype, shape, data) in tensors.items():
        if key.startswith(f"{name}.layer."):
            size = len(data) // shape[0]
            out[key] = (dtype, [len(rows), *shape[1:]], b"".join(data[r * size : (r + 1) * size] for r in rows))
    out[f"{name}.logits"] = tensors[f"{name}.logits"]
    return out


def trim(cases, tensors):
    out = {}
    for case in cases:
        name, count = case["name"], len(case["prompt_ids"])
        if "grid_thw" in case or f"{name}.logits" not in tensors:
            continue
        out |= trim_case(name, count, range(count) if count <= WHOLE_ROWS else kept_rows(count), tensors)
    return out


def trim_picture(cases, tensors):
    case = next(case for case in cases if f"{case['name']}.pixels" in tensors)
    name, ids = case["name"], case["prompt_ids"]
    rows = [i for i, id in enumerate(ids) if id == IMAGE]
    # Rows of the picture, those around it and the last ones.
    kept = {0, rows[0] - 1, rows[0], rows[0] + 1, rows[len(rows) // 2], rows[-1], rows[-1] + 1, len(ids) - 2, len(ids) - 1}
    out = trim_case(name, len(ids), sorted(kept), tensors)
    _, shape, data = tensors[f"{name}.pixels"]
    values = struct.unpack(f"<{len(data) // 4}f", data)
    out[f"{name}.pixels"] = ("U8", shape, bytes(round(v * 127.5 + 127.5) for v in values))
    out[f"{name}.vision"] = tensors[f"{name}.vision"]
    return out


def main(folder):
    for source, target in [("oracle", "short"), ("oracle-long", "long")]:
        for name in NAMES:
            path, out = f"{folder}/{source}/{name}", f"{HERE}/{target}/{name}"
            if not os.path.exists(f"{path}/cases.json"):
                continue
            os.makedirs(out, exist_ok=True)
            shutil.copyfile(f"{path}/cases.json", f"{out}/cases.json")
            if name == SHIPPED:
                with open(f"{path}/cases.json") as file:
                    cases, tensors = json.load(file), read(f"{path}/rows.safetensors")
                write(f"{out}/rows.safetensors", trim(cases, tensors))
                if source == "oracle":
                    write(f"{out}/pictures.safetensors", trim_picture(cases, tensors))


main(sys.argv[1])
