"""Texts of many kinds, the same on every call, and the files in which programs exchange them."""

import pathlib
import random
import struct
import sysconfig

EMOJI = ["\U0001f600", "\U0001f469\u200d\U0001f4bb", "\U0001f3f3\ufe0f\u200d\U0001f308", "\u2764\ufe0f",
         "\U0001f1ea\U0001f1fa", "\U0001f44d\U0001f3fd"]
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\x85", "\u200b", "\u180e", "\n\n   "]
WORDS = ("the of and to in is that it was for on are as with his they at be this from I have or by one had "
         "not but what all were when we there can an your which their said if do will each about how up out "
         "them then she many some so these would other into has more her two like him see time could no make "
         "than first been its who now people my made over did down only way find use may water long little "
         "very after words called just where most know don't it's we'll they've I'm he'd you're").split()


def english(rng, count):
    sentences = []
    for _ in range(count):
        words = [rng.choice(WORDS) for _ in range(rng.randrange(4, 20))]
        sentences.append(" ".join(words).capitalize() + rng.choice([".", "!", "?", "...", ";"]))
    return rng.choice([" ", "\n"]).join(sentences)


def source_code(limit_bytes):
    """The standard library of Python: code, comments and English, a file a text."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    texts, total = [], 0
    for path in sorted(folder.glob("*.py")):
        text = path.read_bytes().decode("utf-8", errors="ignore")
        texts.append(text)
        total += len(text)
        if total > limit_bytes:
            break
    return texts


def any_characters(rng, count, first, last):
    codes = (rng.randrange(first, last) for _ in range(count))
    return "".join(rng.choice(SPACES) if rng.random() < 0.1 else chr(code)
                   for code in codes if not 0xD800 <= code < 0xE000)


def characters_at_edges(short=False):
    """Code points after a letter, a digit and a sign each, so that their class decides where pieces end.

    All of planes 0 and 1, where nearly all scripts are, and some of the rest; or a tenth of that.
    """
    codes = [*range(0x20000), *range(0x20000, 0x110000, 97)]
    if short:
        codes = [*range(0x700), *range(0x700, 0x110000, 101)]
    codes = [code for code in codes if not 0xD800 <= code < 0xE000]
    return ["".join(f"a{chr(code)}\n1{chr(code)}\n!{chr(code)}\n" for code in codes[start:start + 0x2000])
            for start in range(0, len(codes), 0x2000)]


def mixed(short=False):
    """At least 5 MB, or a tenth of that: English, code, scripts, CJK, emoji, odd white space."""
    rng = random.Random(1)
    texts = source_code(300_000 if short else 3_500_000)
    texts += [english(rng, 200) for _ in range(5 if short else 50)]
    for first, last in ((0x20, 0x7f), (0xa0, 0x530), (0x530, 0x1100), (0x1100, 0x3000), (0x3040, 0x9fff),
                        (0xac00, 0xd7a3), (0x10000, 0x11000), (0x1f300, 0x1faff), (0x20, 0x2fa1f)):
        texts += [any_characters(rng, 800 if short else 8000, first, last) for _ in range(4)]
    texts += ["".join(rng.choice(EMOJI + SPACES + WORDS) for _ in range(400 if short else 4000)) for _ in range(8)]
    texts += ["\u6211\u4eec\u5728\u8bad\u7ec3\u6a21\u578b\uff0c\u5b83\u5f88\u5c0f\u3002" * 40, "", " ", "\n",
              "a" * 5000, " " * 5000, "'" * 99, "1234567890" * 200]
    return texts


def write_records(path, records):
    with open(path, "wb") as file:
        for record in records:
            file.write(struct.pack("<Q", len(record)) + record)


def read_records(path, element_bytes=1):
    content = pathlib.Path(path).read_bytes()
    records, at = [], 0
    while at < len(content):
        length = struct.unpack_from("<Q", content, at)[0] * element_bytes
        records.append(content[at + 8:at + 8 + length])
        at += 8 + length
    return records


def read_ids(path):
    return [list(struct.unpack(f"<{len(record) // 4}i", record)) for record in read_records(path, 4)]
