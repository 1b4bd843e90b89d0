# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs in Python that keep numbers, each in a library's own way.

    stores.py list                     those whose library is there; the others with "-" before
    stores.py write STORE DIR [MOST]   adds numbers after those that are there, and says each when it is durable;
                                       without an end, with a pause of half a millisecond
    stores.py dump STORE DIR           says up to which number all are there, each with its own value
"""

import os
import sys
import time

STORES = {}


def store(name, *modules):
    """A function of a directory that gives how a number is put, and all that there are."""
    def known(function):
        STORES[name] = (modules, function)
        return function
    return known


def value(n):
    return f"{n}-" + "v" * (n % 200)


def sync(path):
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)


@store("python-mmap")
def python_mmap(d):
    import mmap
    import struct
    f = open(os.open(d + "/numbers", os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0, closefd=False)
    if os.fstat(f.fileno()).st_size < 1 << 20:
        os.ftruncate(f.fileno(), 1 << 20)
    m = mmap.mmap(f.fileno(), 1 << 20)

    def put(n):
        struct.pack_into("<Q", m, 8 * n, n)
        m.flush()
    return put, lambda: {n: value(n) for n in range(1, 1 << 17) if struct.unpack_from("<Q", m, 8 * n)[0] == n}


@store("python-append")
def python_append(d):
    fd = os.open(d + "/log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    whole = os.pread(fd, 1 << 26, 0).rpartition(b"\n")[0]
    os.ftruncate(fd, len(whole) + 1 if whole else 0)

    def put(n):
        os.write(fd, f"{n} {value(n)}\n".encode())
        os.fdatasync(fd)

    def every():
        lines = os.pread(fd, 1 << 26, 0).rpartition(b"\n")[0].decode().splitlines()
        return {int(n): v for n, v in (line.split(" ") for line in lines)}
    return put, every


@store("dbm.dumb", "dbm.dumb")
def dumb(d):
    import dbm.dumb
    db = dbm.dumb.open(d + "/dumb")

    def put(n):
        db[str(n)] = value(n)
        db.sync()
        for end in (".dat", ".dir"):
            sync(d + "/dumb" + end)
    return put, lambda: {int(k): db[k].decode() for k in db.keys()}


def sqlite(d, *pragmas):
    import sqlite3
    db = sqlite3.connect(d + "/app.db", isolation_level=None)
    for pragma in ("synchronous=FULL",) + pragmas:
        db.execute("pragma " + pragma).fetchall()
    db.execute("create table if not exists t (n integer primary key, v text)")
    return (lambda n: db.execute("insert into t values (?, ?)", (n, value(n)))), lambda: dict(
        db.execute("select n, v from t"))


SQLITE = {
    "sqlite-delete": ["journal_mode=delete"],
    "sqlite-wal": ["journal_mode=wal"],
    "sqlite-mmap": ["journal_mode=wal", "mmap_size=268435456"],
    "sqlite-truncate": ["journal_mode=truncate"],
}
for of, how in SQLITE.items():
    store(of, "sqlite3")(lambda d, pragmas=how: sqlite(d, *pragmas))


@store("apsw", "apsw")
def apsw_store(d):
    import apsw
    db = apsw.Connection(d + "/app.db")
    db.execute("pragma journal_mode=persist; pragma synchronous=extra")
    db.execute("create table if not exists t (n integer primary key, v text)")
    return (lambda n: db.execute("insert into t values (?, ?)", (n, value(n)))), lambda: dict(
        db.execute("select n, v from t"))


@store("numpy-memmap", "numpy")
def numpy_memmap(d):
    import numpy
    name = d + "/array"
    m = numpy.memmap(name, dtype="u8", mode="r+" if os.path.exists(name) else "w+", shape=(1 << 17,))

    def put(n):
        m[n] = n
        m.flush()
    return put, lambda: {int(n): value(int(n)) for n in m[m > 0]}


def lmdb_with(d, **how):
    import lmdb
    db = lmdb.open(d + "/data.mdb", map_size=1 << 26, subdir=False, lock=False, **how)

    def put(n):
        with db.begin(write=True) as t:
            t.put(b"%d" % n, value(n).encode())

    def every():
        with db.begin() as t:
            return {int(k): v.decode() for k, v in t.cursor()}
    return put, every


@store("lmdb", "lmdb")
def lmdb_store(d):
    return lmdb_with(d)


@store("lmdb-writemap", "lmdb")
def lmdb_writemap(d):
    return lmdb_with(d, writemap=True)


@store("leveldb", "plyvel")
def leveldb(d):
    import plyvel
    db = plyvel.DB(d + "/level", create_if_missing=True, write_buffer_size=20000)
    return (lambda n: db.put(b"%d" % n, value(n).encode(), sync=True)), lambda: {
        int(k): v.decode() for k, v in db}


def rocks(d, module):
    import importlib
    lib = importlib.import_module(module)
    db = lib.Rdict(d + "/rocks")
    how = lib.WriteOptions()
    how.sync = True
    return (lambda n: db.put(n, value(n), write_opt=how)), lambda: dict(db.items())


for of, library in (("rocksdb", "rocksdict"), ("speedb", "speedict")):
    store(of, library)(lambda d, module=library: rocks(d, module))


@store("duckdb", "duckdb")
def duck(d):
    import duckdb
    db = duckdb.connect(d + "/duck.db")
    db.execute("create table if not exists t (n integer, v varchar)")
    return (lambda n: db.execute("insert into t values (?, ?)", (n, value(n)))), lambda: dict(
        db.execute("select n, v from t").fetchall())


@store("hdf5", "h5py")
def hdf5(d):
    import h5py
    f = h5py.File(d + "/file.h5", "a")
    if "numbers" not in f:
        f.create_dataset("numbers", (1 << 14,), dtype="u8")
        f.flush()
    numbers = f["numbers"]

    def put(n):
        numbers[n] = n
        f.flush()
        os.fsync(f.id.get_vfd_handle())
    return put, lambda: {int(n): value(int(n)) for n in numbers[:] if n}


@store("pytables", "tables")
def pytables(d):
    import tables
    f = tables.open_file(d + "/tables.h5", "a")
    if "/numbers" not in f:
        f.create_carray("/", "numbers", tables.UInt64Atom(), (1 << 14,))
    numbers = f.root.numbers

    def put(n):
        numbers[n] = n
        f.flush()
        os.fsync(f.fileno())
    return put, lambda: {int(n): value(int(n)) for n in numbers[:] if n}


@store("netcdf3", "netCDF4")
def netcdf(d):
    import netCDF4
    name = d + "/file.nc"
    made = not os.path.exists(name)
    f = netCDF4.Dataset(name, "w" if made else "a", format="NETCDF3_CLASSIC")
    if made:
        f.createDimension("n", 1 << 14)
        f.createVariable("numbers", "i4", ("n",))[:] = 0
    numbers = f["numbers"]

    def put(n):
        numbers[n] = n
        f.sync()
        sync(name)
    return put, lambda: {int(n): value(int(n)) for n in numbers[:] if n}


@store("zarr", "zarr")
def zarr_store(d):
    import zarr
    group = zarr.open_group(d + "/zarr", mode="a")
    numbers = group.require_array("numbers", shape=(1 << 14,), chunks=(1 << 8,), dtype="u8")

    def put(n):
        numbers[n] = n
        for at, _, names in os.walk(d):
            for name in names:
                sync(at + "/" + name)
            fd = os.open(at, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    return put, lambda: {int(n): value(int(n)) for n in numbers[:] if n}


@store("arrow-memory-map", "pyarrow")
def arrow(d):
    import pyarrow
    name = d + "/arrow"
    f = pyarrow.memory_map(name, "r+") if os.path.exists(name) else pyarrow.create_memory_map(name, 1 << 20)

    def put(n):
        f.seek(8 * n)
        f.write(n.to_bytes(8, "little"))
        f.flush()
        sync(name)

    def every():
        f.seek(0)
        b = f.read()
        numbers = (int.from_bytes(b[i:i + 8], "little") for i in range(0, len(b), 8))
        return {n: value(n) for n in numbers if n}
    return put, every


@store("diskcache", "diskcache")
def disk_cache(d):
    import diskcache
    cache = diskcache.Cache(d + "/cache", sqlite_synchronous=2)
    return (lambda n: cache.set(n, value(n))), lambda: {n: cache[n] for n in cache}


@store("semidbm", "semidbm")
def semi(d):
    import semidbm
    db = semidbm.open(d + "/semi", "c")

    def put(n):
        db[str(n)] = value(n)
        db.sync()
    return put, lambda: {int(k): db[k].decode() for k in db.keys()}


@store("zodb", "ZODB")
def zodb(d):
    import transaction
    import ZODB
    import ZODB.FileStorage
    from BTrees.IOBTree import IOBTree
    db = ZODB.DB(ZODB.FileStorage.FileStorage(d + "/Data.fs"))
    root = db.open().root()
    if "t" not in root:
        root["t"] = IOBTree()
        transaction.commit()

    def put(n):
        root["t"][n] = value(n)
        transaction.commit()
    return put, lambda: dict(root["t"])


@store("unqlite", "unqlite")
def unq(d):
    import unqlite
    db = unqlite.UnQLite(d + "/unqlite")

    def put(n):
        db[str(n)] = value(n)
        db.commit()
    return put, lambda: {int(k): v.decode() for k, v in db}


@store("lsm", "lsm")
def lsm_store(d):
    import lsm
    db = lsm.LSM(d + "/lsm", transaction_log=True)
    db.write_safety = lsm.SAFETY_FULL
    return (lambda n: db.insert(str(n), value(n))), lambda: {int(k): v.decode() for k, v in db}


@store("kuzu", "kuzu")
def kuzu_store(d):
    import kuzu
    db = kuzu.Connection(kuzu.Database(d + "/graph", buffer_pool_size=1 << 26, max_db_size=1 << 30))
    db.execute("create node table if not exists t (n int64 primary key, v string)")

    def every():
        rows, found = db.execute("match (t:t) return t.n, t.v"), {}
        while rows.has_next():
            n, v = rows.get_next()
            found[n] = v
        return found
    return (lambda n: db.execute("create (:t {n: $n, v: $v})", {"n": n, "v": value(n)})), every


@store("mdbx", "mdbx")
def mdbx_store(d):
    import mdbx
    env = mdbx.Env(d + "/x.mdbx", flags=mdbx.MDBXEnvFlags.MDBX_NOSUBDIR, maxdbs=1)

    def put(n):
        with env.rw_transaction() as t:
            with t.open_map() as m:
                m.put(t, b"%d" % n, value(n).encode())
            t.commit()

    def every():
        with env.ro_transaction() as t, t.open_map() as m, t.cursor(m) as cursor:
            return {int(k): v.decode() for k, v in cursor.iter()}
    return put, every


@store("persist-queue", "persistqueue")
def persist_queue(d):
    import persistqueue
    queue = persistqueue.FIFOSQLiteQueue(d + "/queue", auto_commit=True)

    def every():
        return {item["data"][0]: item["data"][1] for item in queue.queue()}
    return (lambda n: queue.put((n, value(n)))), every


@store("litequeue", "litequeue")
def lite_queue(d):
    import litequeue
    queue = litequeue.LiteQueue(d + "/lite.db")
    queue.conn.execute("pragma synchronous=full")

    def every():
        rows = queue.conn.execute("select data from " + queue.table).fetchall()
        return {int(text.split("-")[0]): text for (text,) in rows}
    return (lambda n: queue.put(value(n))), every


@store("pickledb", "pickledb")
def pickle_db(d):
    import pickledb
    db = pickledb.PickleDB(d + "/pickle.json")
    if hasattr(db, "load"):
        db.load()

    def put(n):
        db.set(str(n), value(n))
        db.save()
        sync(d + "/pickle.json")
    return put, lambda: {int(k): db.get(k) for k in db.all()}


@store("usearch", "usearch")
def u_search(d):
    import numpy
    from usearch.index import Index
    name = d + "/index"
    index = Index(ndim=4)
    if os.path.exists(name):
        index.load(name)

    def put(n):
        index.add(n, numpy.array([n, 1, 2, 3], dtype="f4"))
        index.save(name + ".new")
        sync(name + ".new")
        os.rename(name + ".new", name)
        fd = os.open(d, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return put, lambda: {int(n): value(int(n)) for n in index.keys}


@store("whoosh", "whoosh")
def whoosh_store(d):
    import whoosh.index
    from whoosh.fields import ID, STORED, Schema
    if whoosh.index.exists_in(d):
        index = whoosh.index.open_dir(d)
    else:
        index = whoosh.index.create_in(d, Schema(n=ID(stored=True), v=STORED))

    def put(n):
        writer = index.writer()
        writer.add_document(n=str(n), v=value(n))
        writer.commit()
        os.sync()

    def every():
        with index.searcher() as searcher:
            return {int(f["n"]): f["v"] for f in searcher.documents()}
    return put, every


@store("tantivy", "tantivy")
def tantivy_store(d):
    import tantivy
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("n", stored=True, indexed=True)
    builder.add_text_field("v", stored=True)
    index = tantivy.Index(builder.build(), path=d)

    def put(n):
        writer = index.writer(heap_size=15_000_000, num_threads=1)
        writer.add_document(tantivy.Document(n=n, v=value(n)))
        writer.commit()
        writer.wait_merging_threads()

    def every():
        index.reload()
        s = index.searcher()
        hits = s.search(tantivy.Query.all_query(), 1 << 14).hits
        docs = (s.doc(address) for _, address in hits)
        return {doc["n"][0]: doc["v"][0] for doc in docs}
    return put, every


def last_of(found):
    n = 0
    while n + 1 in found:
        n += 1
        if found[n] != value(n):
            sys.exit(f"number {n} has another value: {found[n]!r}")
    beyond = [k for k in found if k > n + 1]
    if beyond:
        sys.exit(f"{n} is followed by {min(beyond)}")
    return n


def is_there(modules):
    import importlib
    try:
        for module in modules:
            importlib.import_module(module)
        return True
    except ImportError:
        return False


def main():
    what = sys.argv[1]
    if what == "list":
        for name, (modules, _) in STORES.items():
            print(name if is_there(modules) else "- " + name + " " + " ".join(modules))
        return
    name, d = sys.argv[2:4]
    put, every = STORES[name][1](d)
    last = last_of(every())
    if what == "dump":
        print(last)
        sys.stdout.flush()
        return
    paced = len(sys.argv) <= 4
    most = (1 << 14) - 1 if paced else int(sys.argv[4])
    for n in range(last + 1, most + 1):
        put(n)
        os.write(1, b"%d\n" % n)
        if paced:
            time.sleep(0.0005)


main()
