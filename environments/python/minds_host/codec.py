"""MessagePack: the package where it is installed, else these few lines, which know maps, lists, text, bytes, numbers."""

import struct

try:
    import msgpack
except ImportError:
    msgpack = None


def pack(value):
    if msgpack is not None:
        return msgpack.packb(value, use_bin_type=True, unicode_errors="replace")
    parts = []
    _write(value, parts.append)
    return b"".join(parts)


def unpack(data):
    if msgpack is not None:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    value, _ = _read(data, 0)
    return value


_SMALL = [bytes([n]) for n in range(256)]
_U64, _I64, _F64 = (struct.Struct(form).pack for form in (">BQ", ">Bq", ">Bd"))
_LENGTH = struct.Struct(">BI").pack


def _write(value, out):
    kind = type(value)
    if kind is str:
        data = value.encode("utf-8", "replace")  # half a pair of surrogates is no text
        size = len(data)
        out(_SMALL[0xA0 | size] if size < 32 else _LENGTH(0xDB, size))
        out(data)
    elif kind is dict:
        size = len(value)
        out(_SMALL[0x80 | size] if size < 16 else _LENGTH(0xDF, size))
        for key, item in value.items():
            _write(key, out)
            _write(item, out)
    elif kind is list or kind is tuple:
        size = len(value)
        out(_SMALL[0x90 | size] if size < 16 else _LENGTH(0xDD, size))
        for item in value:
            _write(item, out)
    elif kind is int:
        if -32 <= value < 128:
            out(_SMALL[value & 0xFF])
        else:
            out(_U64(0xCF, value) if value >= 0 else _I64(0xD3, value))
    elif kind is float:
        out(_F64(0xCB, value))
    elif value is None:
        out(b"\xc0")
    elif kind is bool:
        out(b"\xc3" if value else b"\xc2")
    elif isinstance(value, (bytes, bytearray, memoryview)):
        out(_LENGTH(0xC6, len(value)))
        out(bytes(value))
    else:  # a subclass is written as what it is one of
        for base in (str, dict, list, tuple, int, float):
            if isinstance(value, base):
                return _write(list(value) if base is tuple else base(value), out)
        raise TypeError(f"{kind.__name__} cannot be sent")


def _read(data, at):
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if 0xA0 <= tag < 0xC0:
        end = at + (tag & 0x1F)
        return data[at:end].decode("utf-8", "surrogatepass"), end
    if tag < 0x90:
        return _map(data, at, tag & 0x0F)
    if tag < 0xA0:
        return _list(data, at, tag & 0x0F)
    if tag in _NUMBERS:
        number = _NUMBERS[tag]
        return number.unpack_from(data, at)[0], at + number.size
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag not in _SIZED:
        raise ValueError(f"unknown MessagePack tag {tag:#x}")
    width, kind = _SIZED[tag]
    size = int.from_bytes(data[at:at + width], "big")
    at += width
    if kind is dict:
        return _map(data, at, size)
    if kind is list:
        return _list(data, at, size)
    end = at + size
    return (data[at:end].decode("utf-8", "surrogatepass") if kind is str else data[at:end]), end


def _map(data, at, size):
    found = {}
    for _ in range(size):
        key, at = _read(data, at)
        found[key], at = _read(data, at)
    return found, at


def _list(data, at, size):
    items = []
    for _ in range(size):
        item, at = _read(data, at)
        items.append(item)
    return items, at


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    tag: struct.Struct(">" + form)
    for tag, form in zip((0xCA, 0xCB, 0xCC, 0xCD, 0xCE, 0xCF, 0xD0, 0xD1, 0xD2, 0xD3), "fdBHIQbhiq")
}
_SIZED = {
    0xC4: (1, bytes), 0xC5: (2, bytes), 0xC6: (4, bytes), 0xD9: (1, str), 0xDA: (2, str), 0xDB: (4, str),
    0xDC: (2, list), 0xDD: (4, list), 0xDE: (2, dict), 0xDF: (4, dict),
}
