// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs in JavaScript that keep numbers; as stores.py.
const fs = require("fs");

const value = (n) => `${n}-${"v".repeat(n % 200)}`;

const stores = {
	"node": async (dir) => {
		const fd = fs.openSync(dir + "/numbers.txt", fs.constants.O_RDWR | fs.constants.O_CREAT | fs.constants.O_APPEND, 0o600);
		const text = fs.readFileSync(fd, "latin1");
		// A last line that is not whole was not acknowledged.
		const whole = text.lastIndexOf("\n") + 1;
		fs.ftruncateSync(fd, whole);
		const lines = text.slice(0, whole).split("\n").slice(0, -1);
		return {
			put: (n) => { fs.writeSync(fd, `${n} ${value(n)}\n`); fs.fsyncSync(fd); },
			all: async () => new Map(lines.map((line) => [+line.split(" ")[0], line.split(" ")[1]])),
			close: () => fs.closeSync(fd),
		};
	},
	"node-lmdb": async (dir) => {
		const db = require("lmdb").open({ path: dir + "/data.mdb", noSubdir: true, mapSize: 1 << 26 });
		return {
			put: async (n) => { await db.put(n, value(n)); await db.flushed; },
			all: async () => new Map([...db.getRange()].map(({ key, value }) => [key, value])),
			close: () => db.close(),
		};
	},
	"node-level": async (dir) => {
		const { ClassicLevel } = require("classic-level");
		const db = new ClassicLevel(dir + "/level");
		await db.open();
		return {
			put: (n) => db.put(String(n), value(n), { sync: true }),
			all: async () => new Map((await db.iterator().all()).map(([k, v]) => [+k, v])),
			close: () => db.close(),
		};
	},
};
const needs = { "node-lmdb": "lmdb", "node-level": "classic-level" };

async function main([what, name, dir, most]) {
	if (what === "list") {
		for (const store in stores) {
			let there = "";
			try { needs[store] && require.resolve(needs[store]); } catch { there = "- "; }
			console.log(there + store);
		}
		return;
	}
	const store = await stores[name](dir);
	const found = await store.all();
	let last = 0;
	while (found.has(last + 1)) {
		last++;
		if (found.get(last) !== value(last)) throw new Error(`${last} has another value`);
	}
	for (const n of found.keys()) if (n > last + 1) throw new Error(`${last} is followed by ${n}`);
	if (what === "dump") {
		console.log(last);
	} else {
		for (let n = last + 1; n <= +(most || 16383); n++) {
			await store.put(n);
			fs.writeSync(1, n + "\n");
			if (!most) await new Promise((done) => setTimeout(done, 1));
		}
	}
	await store.close();
}

main(process.argv.slice(2)).catch((e) => { console.error(e); process.exit(1); });
