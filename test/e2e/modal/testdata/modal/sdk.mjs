// What a program in JavaScript does with Modal's SDK: create, exec, stdin, files, snapshots of files and of memory.
import assert from "node:assert/strict";
import { ModalClient } from "modal";

const modal = new ModalClient();
const app = await modal.apps.fromName("javascript", { createIfMissing: true });
const image = modal.images.fromRegistry("alpine:3.21");
const sb = await modal.sandboxes.create(app, image, { env: { A: "1" } });

const p = await sb.exec(["sh", "-c", "echo $A; cat; exit 7"]);
await p.stdin.writeText("from stdin");
await p.stdin.close();
assert.equal(await p.stdout.readText(), "1\nfrom stdin");
assert.equal(await p.wait(), 7);

await sb.filesystem.writeText("text ☃", "/d/file.txt");
assert.equal(await sb.filesystem.readText("/d/file.txt"), "text ☃");
assert.deepEqual((await sb.filesystem.listFiles("/d")).map((f) => f.name), ["file.txt"]);

const snapshot = await sb.snapshotFilesystem();
const copy = await modal.sandboxes.create(app, snapshot, { command: ["cat", "/d/file.txt"] });
assert.equal(await copy.stdout.readText(), "text ☃");
assert.equal(await copy.wait(), 0);

const counter = await modal.sandboxes.create(app, image, { command: ["sh", "-c", "while read x; do :; done"], experimentalEnableSnapshot: true });
await (await counter.exec(["sh", "-c", "echo kept >/kept"])).wait();
await counter.exec(["sleep", "1000"]);
const memory = await counter.experimentalSnapshot();
assert.equal(await counter.wait(), 137);
const resumed = await modal.sandboxes.experimentalFromSnapshot(await modal.sandboxSnapshots.fromId(memory.snapshotId));
assert.equal(await resumed.filesystem.readText("/kept"), "kept\n");
const ps = await resumed.exec(["ps"]);
assert.match(await ps.stdout.readText(), /sleep 1000/);
await resumed.terminate();

await sb.terminate();
assert.equal(await sb.wait(), 137);
modal.close?.();
console.log("all is well");
