"""MessagePack: the package where it is installed, else these few lines, which know maps, lists, text, bytes, numbers."""

import struct

try:
    import msgpack
except ImportError:
    msgpack = None


def pack(value):
    if msgpack is not None:
        return msgpack.packb(value, use_bin_type=True, unicode_errors="replace")
    out = bytearray()
    _write(value, out)
    return bytes(out)


def unpack(data):
    if msgpack is not None:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    value, _ = _read(memoryview(data), 0)
    return value


def _write(value, out):
    if value is None:
        out.append(0xC0)
    elif value is True or value is False:
        out.append(0xC3 if value else 0xC2)
    elif isinstance(value, int):
        if 0 <= value < 0x80 or -32 <= value < 0:
            out.append(value & 0xFF)
        else:
            out += struct.pack(">BQ" if value >= 0 else ">Bq", 0xCF if value >= 0 else 0xD3, value)
    elif isinstance(value, float):
        out += struct.pack(">Bd", 0xCB, value)
    elif isinstance(value, str):
        data = value.encode("utf-8", "replace")  # half a pair of surrogates is no text
        out += struct.pack(">BI", 0xDB, len(data)) + data
    elif isinstance(value, (bytes, bytearray, memoryview)):
        out += struct.pack(">BI", 0xC6, len(value)) + bytes(value)
    elif isinstance(value, dict):
        out += struct.pack(">BI", 0xDF, len(value))
        for key, item in value.items():
            _write(key, out)
            _write(item, out)
    elif isinstance(value, (list, tuple)):
        out += struct.pack(">BI", 0xDD, len(value))
        for item in value:
            _write(item, out)
    else:
        raise TypeError(f"{type(value).__name__} cannot be sent")


_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q", 0xCA: ">f", 0xCB: ">d"}
_SIZES = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def _read(data, at):
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    if tag in _NUMBERS:
        size = struct.calcsize(_NUMBERS[tag])
        return struct.unpack_from(_NUMBERS[tag], data, at)[0], at + size
    if tag in _SIZES:
        (size,) = struct.unpack_from(_SIZES[tag], data, at)
        at += struct.calcsize(_SIZES[tag])
        kind = {0xD9: "s", 0xDA: "s", 0xDB: "s", 0xC4: "b", 0xC5: "b", 0xC6: "b", 0xDC: "l", 0xDD: "l"}.get(tag, "m")
    elif tag < 0x90:
        kind, size = "m", tag & 0x0F
    elif tag < 0xA0:
        kind, size = "l", tag & 0x0F
    elif tag < 0xC0:
        kind, size = "s", tag & 0x1F
    else:
        raise ValueError(f"unknown MessagePack tag {tag:#x}")
    if kind == "s":
        return bytes(data[at:at + size]).decode("utf-8", "surrogatepass"), at + size
    if kind == "b":
        return bytes(data[at:at + size]), at + size
    if kind == "l":
        items = []
        for _ in range(size):
            item, at = _read(data, at)
            items.append(item)
        return items, at
    found = {}
    for _ in range(size):
        key, at = _read(data, at)
        found[key], at = _read(data, at)
    return found, at
