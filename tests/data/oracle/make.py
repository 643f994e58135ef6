"""Trims a full set of oracle answers to what the repository keeps beside this file (about 1.5 MB).

Usage: python3 make.py FOLDER        (plain Python; FOLDER holds oracle/ and oracle-long/)

short/NAME/cases.json and long/NAME/cases.json are kept whole, so that prompts, logits and greedy replies of every case
can be checked. rows.safetensors keeps the text cases of the checkpoint that the repository ships: whole where a case is
short, else some rows of every layer, whose indices stand in the int32 tensor "CASE.rows".
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


def trim(cases, tensors):
    out = {}
    for case in cases:
        name, count = case["name"], len(case["prompt_ids"])
        if "grid_thw" in case or f"{name}.logits" not in tensors:
            continue
        rows = range(count) if count <= WHOLE_ROWS else kept_rows(count)
        if count > WHOLE_ROWS:
            out[f"{name}.rows"] = ("I32", [len(rows)], struct.pack(f"<{len(rows)}i", *rows))
        for key, (dtype, shape, data) in tensors.items():
            if key.startswith(f"{name}.layer."):
                size = len(data) // shape[0]
                out[key] = (dtype, [len(rows), *shape[1:]], b"".join(data[r * size : (r + 1) * size] for r in rows))
        out[f"{name}.logits"] = tensors[f"{name}.logits"]
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
                    write(f"{out}/rows.safetensors", trim(json.load(file), read(f"{path}/rows.safetensors")))


main(sys.argv[1])
