"""Parquet and Arrow files, folders of `datasets` and of the hub: arrow_parity.py SOURCE_JOB TRANSLATION_JOB.

The files are written by pyarrow in the layouts that Hugging Face's libraries have.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    test_script.skip("pyarrow is not installed")

RECORDS = [{"instruction": f"Do {i}.", "input": "" if i % 3 else f"given {i}", "output": f"d\u00f6ne \U0001f600 {i}",
            "text": f"all of {i}"} for i in range(2500)]


def table(records=RECORDS, text_type=pa.string()):
    columns = {name: pa.array([record.get(name) for record in records], text_type)
               for name in ("instruction", "input", "output", "text")}
    return pa.table({**columns, "number": pa.array(range(len(records)))})


def write_stream(path, data):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data, max_chunksize=1000)


def write_file(path, data):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
        writer.write_table(data, max_chunksize=1000)


def expected(records, names=("instruction", "input", "output")):
    return [{name: record[name] for name in names if record[name]} for record in records]


class Job:
    def __init__(self, program):
        self.program = program

    def read(self, path, *options):
        done = subprocess.run([self.program, str(path), *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refusal(self, path, *options):
        done = subprocess.run([self.program, str(path), *options], capture_output=True, text=True)
        assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr


def check_files(job, folder):
    pq.write_table(table(), folder / "a.parquet", compression="zstd", row_group_size=700)
    pq.write_table(table(text_type=pa.large_string()), folder / "snappy.parquet", compression="snappy")
    write_stream(folder / "stream.arrow", table())
    write_file(folder / "file.arrow", table(text_type=pa.large_string()))
    for name in ("a.parquet", "snappy.parquet", "stream.arrow", "file.arrow"):
        assert job.read(folder / name) == expected(RECORDS), name
    assert job.read(folder / "a.parquet", "--text") == expected(RECORDS, ("text",))


def check_saved_dataset(job, folder):
    """Dataset.save_to_disk, and DatasetDict's."""
    for split, records in (("train", RECORDS[:1500]), ("test", RECORDS[1500:])):
        place = folder / "saved" / split
        place.mkdir(parents=True)
        half = len(records) // 2
        write_stream(place / "data-00000-of-00002.arrow", table(records[:half]))
        write_stream(place / "data-00001-of-00002.arrow", table(records[half:]))
        write_stream(place / "cache-0123456789abcdef.arrow", table(records[:1]))
        (place / "dataset_info.json").write_text("{}")
        (place / "state.json").write_text(json.dumps({"_data_files": [
            {"filename": "data-00000-of-00002.arrow"}, {"filename": "data-00001-of-00002.arrow"}],
            "_split": split}))
    (folder / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert job.read(folder / "saved") == expected(RECORDS[:1500])
    assert job.read(folder / "saved", "--split", "test") == expected(RECORDS[1500:])
    assert job.read(folder / "saved" / "train") == expected(RECORDS[:1500])
    assert "has no split 'validation'; it has: test, train" in job.refusal(folder / "saved", "--split", "validation")
    (folder / "saved" / "train" / "data-00001-of-00002.arrow").unlink()
    assert "lacks the file 'data-00001-of-00002.arrow'" in job.refusal(folder / "saved")


def check_cache_and_hub(job, folder):
    """What load_dataset keeps, and a snapshot of the hub, whose files are links."""
    cache = folder / "cache" / "default" / "0.0.0" / "abc"
    cache.mkdir(parents=True)
    write_stream(cache / "alpaca-train.arrow", table(RECORDS[:10]))
    write_stream(cache / "alpaca-validation.arrow", table(RECORDS[10:15]))
    (cache / "dataset_info.json").write_text("{}")
    assert job.read(cache) == expected(RECORDS[:10])
    assert job.read(folder / "cache", "--split", "validation") == expected(RECORDS[10:15])
    blobs, data = folder / "hub" / "blobs", folder / "hub" / "snapshots" / "0a1b" / "data"
    blobs.mkdir(parents=True)
    data.mkdir(parents=True)
    pq.write_table(table(RECORDS[:20]), blobs / "77aa")
    (data / "train-00000-of-00001-a09b74b3ef9c3b56.parquet").symlink_to("../../../blobs/77aa")
    (data.parent / "README.md").write_text("a card")
    assert job.read(data.parent) == expected(RECORDS[:20])


def check_refusals(job, folder):
    pq.write_table(pa.table({"prompt": ["a"]}), folder / "fields.parquet")
    assert "fields.parquet': record 1 has neither" in job.refusal(folder / "fields.parquet")
    pq.write_table(pa.table({"text": [1, 2]}), folder / "types.parquet")
    assert "column 'text' is of type int64" in job.refusal(folder / "types.parquet")
    pq.write_table(pa.table({"text": ["a", None]}), folder / "null.parquet")
    assert "null.parquet': record 2 has no field 'text': it is null" in job.refusal(folder / "null.parquet")
    whole = (folder / "a.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[:len(whole) // 2])
    assert "cut.parquet': after record 0" in job.refusal(folder / "cut.parquet")
    stream = (folder / "stream.arrow").read_bytes()
    (folder / "cut.arrow").write_bytes(stream[:len(stream) * 2 // 3])
    assert "cut.arrow': after record " in job.refusal(folder / "cut.arrow")
    (folder / "empty.arrow").write_bytes(b"")
    assert "empty.arrow'" in job.refusal(folder / "empty.arrow")
    pq.write_table(table([]), folder / "none.parquet")
    assert "is empty: it has no record" in job.refusal(folder / "none.parquet")


class Pairs(Job):
    """Reads sentence pairs of two languages."""

    def pairs(self, path, source="en", target="it"):
        done = subprocess.run([self.program, "pairs", source, target, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [tuple(json.loads(line)) for line in done.stdout.splitlines()]

    def no_pairs(self, path, source="en", target="it"):
        done = subprocess.run([self.program, "pairs", source, target, str(path)], capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, (done.returncode, done.stdout, done.stderr)
        return done.stderr


def check_sentence_pairs(job, folder):
    """Columns of texts, and OPUS Books' struct of them."""
    pairs = [(f"sentence {i}", f"fr\u00e0se {i}") for i in range(1500)]
    translations = pa.array([{"en": en, "it": it} for en, it in pairs])
    opus = pa.table({"id": [str(i) for i in range(len(pairs))], "translation": translations})
    flat = pa.table({"it": [it for _, it in pairs], "n": range(len(pairs)), "en": [en for en, _ in pairs]})
    for name, data in (("opus", opus), ("flat", flat), ("sliced", pa.concat_tables([opus.slice(0, 7), opus.slice(7)]))):
        pq.write_table(data, folder / f"{name}.parquet", row_group_size=400)
        write_stream(folder / f"{name}.arrow", data)
        for ending in ("parquet", "arrow"):
            assert job.pairs(folder / f"{name}.{ending}") == pairs, (name, ending)
    assert job.pairs(folder / "opus.parquet", "it", "en") == [(it, en) for en, it in pairs]
    snapshot = folder / "opus_books" / "en-it"
    snapshot.mkdir(parents=True)
    pq.write_table(opus, snapshot / "train-00000-of-00001.parquet")
    (folder / "opus_books" / "README.md").write_text("a card")
    assert job.pairs(folder / "opus_books") == pairs
    assert ("opus.parquet': record 1 has no field 'translation.fr' (it has: id, translation.en, translation.it)"
            in job.no_pairs(folder / "opus.parquet", "en", "fr"))
    null = pa.array([{"en": "a", "it": "b"}, None], translations.type)
    pq.write_table(pa.table({"translation": null}), folder / "null_struct.parquet")
    assert "record 2 has no field 'translation.en': it is null" in job.no_pairs(folder / "null_struct.parquet")
    numbers = pa.array([{"en": "a", "it": 1}])
    pq.write_table(pa.table({"translation": numbers}), folder / "numbers.parquet")
    assert "column 'translation.it' is of type int64; it must be a text" in job.no_pairs(folder / "numbers.parquet")


def main():
    job = Job(sys.argv[1])
    support = subprocess.run([job.program, "--support"], capture_output=True, text=True).stdout.strip()
    if support != "yes":
        test_script.skip(f"Arrow cannot be used: {support}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_files(job, folder)
        check_saved_dataset(job, folder)
        check_cache_and_hub(job, folder)
        check_refusals(job, folder)
        check_sentence_pairs(Pairs(sys.argv[2]), folder)
    print("Parquet, Arrow and the folders of Hugging Face's libraries are read")


if __name__ == "__main__":
    main()
