// Programs with results that are known, for Node and Bun.
const assert = require('assert');
const crypto = require('crypto');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

// random returns a string of n random characters of one to four bytes.
function random(n, most) {
  let s = '';
  for (const c of crypto.randomBytes(4 * n).values()) {
    if (s.length >= n) break;
    s += String.fromCodePoint([c & 127, 128 + c, 0x4e00 + c, 0x1f600 + (c & 63)][c % most]);
  }
  return s;
}

function utf8(rounds) {
  for (let i = 0; i < rounds; i++) {
    const s = random(1 + i * 7, 1 + i % 4);
    const b = Buffer.from(s, 'utf8');
    assert.strictEqual(b.toString('utf8'), s);
    assert.strictEqual(new TextDecoder().decode(new TextEncoder().encode(s)), s);
    assert.strictEqual(Buffer.from(s, 'utf16le').toString('utf16le'), s);
    assert.deepStrictEqual(Buffer.from(b.toString('base64'), 'base64'), b);
    assert.deepStrictEqual(Buffer.from(b.toString('hex'), 'hex'), b);
    assert.deepStrictEqual(Buffer.from(b.toString('latin1'), 'latin1'), b);
    assert.deepStrictEqual(JSON.parse(JSON.stringify({ s })), { s });
    assert.strictEqual(b.indexOf(0xff), -1);
  }
}

function gc() {
  let kept = [];
  for (let i = 0; i < 60000; i++) {
    kept.push({ i, text: 'x' + i, more: [i, i + 1] });
    if (kept.length > 20000) kept = kept.slice(10000);
  }
  for (const k of kept) assert(k.text === 'x' + k.i && k.more[1] === k.i + 1);
  if (global.gc) global.gc();
}

// (module (func (export "sum") (param i32) (result i32) … the sum of 1 to the parameter
const sum = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 6, 1, 96, 1, 127, 1, 127, 3, 2, 1, 0, 7, 7, 1, 3, 115, 117, 109, 0, 0, 10, 30, 1, 28, 1, 1, 127, 3, 64,
  32, 1, 32, 0, 106, 33, 1, 32, 0, 65, 1, 107, 34, 0, 65, 0, 74, 13, 0, 11, 32, 1, 11]);

async function wasm() {
  for (let i = 0; i < 20; i++) {
    const { instance } = await WebAssembly.instantiate(sum);
    for (let n = 1; n < 2000; n++) assert.strictEqual(instance.exports.sum(n), n * (n + 1) / 2);
  }
}

function worker() {
  return Promise.all([1, 2, 3, 4].map((id) => new Promise((resolve, reject) => {
    const w = new Worker(__filename, { workerData: id });
    w.on('message', (m) => { assert.strictEqual(m, id * 2); w.terminate().then(resolve); });
    w.on('error', reject);
  })));
}

if (!isMainThread) {
  utf8(50);
  gc();
  parentPort.postMessage(workerData * 2);
} else {
  Promise.resolve({ utf8: () => utf8(400), gc, wasm, worker }[process.argv[2]]()).then(() => console.log('ok'), (e) => { console.error(e); process.exit(1); });
}
