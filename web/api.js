// Requests to the server, and its event streams. All addresses are relative to the page, so that it may be
// served below a path prefix.

import { newKey } from './drafts.js';

const base = new URL('.', document.baseURI);
export const url = (path) => new URL(path, base);

// Problem is an error from the server (RFC 9457), or from this page if the server could not be reached.
export class Problem extends Error {
  constructor(fields) {
    super(fields.detail || fields.title);
    Object.assign(this, fields);
  }
}

const unreachable = () => new Problem({
  code: 'unavailable', retryable: true, detail: 'The server cannot be reached.', remedy: 'It may be restarting. If it does not return, start it with: harvest up',
});

async function problemOf(resp) {
  try {
    return new Problem({ ...(await resp.json()), status: resp.status });
  } catch {
    return new Problem({ status: resp.status, retryable: resp.status >= 500, detail: `The server responded with ${resp.status}.`, remedy: 'Try again. Check the server\'s log, and any proxy in front of the server.' });
  }
}

let ahead = 0; // milliseconds by which the server's clock is ahead of this one

// now returns the time by the server's clock, to which all times of its records refer.
export const now = () => Date.now() + ahead;

// compareClocks sets ahead from an answer to a request that began at a time. The answer has the server's time in
// seconds; it was sent between the begin and now.
function compareClocks(resp, begun) {
  const at = Date.parse(resp.headers.get('Date'));
  const [least, most] = [at - Date.now(), at + 1000 - begun];
  ahead = least > 0 || most < 0 ? (least + most) / 2 : 0;
}

const sleep = (time) => new Promise((done) => { setTimeout(done, time); });

// call sends a request, up to five times if no answer arrives within patience (milliseconds). A POST carries an
// idempotency key, either new or given, so that the server acts on it once.
export async function call(method, path, body, { patience = 30e3, key = newKey() } = {}) {
  const headers = {};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (method === 'POST') headers['Idempotency-Key'] = key;
  for (let attempt = 0; ; attempt++) {
    try {
      const begun = Date.now();
      const resp = await fetch(url(path), {
        method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: 'no-store', signal: AbortSignal.timeout(patience),
      });
      compareClocks(resp, begun);
      if (!resp.ok) throw await problemOf(resp);
      const text = await resp.text();
      return (resp.headers.get('Content-Type') ?? '').startsWith('application/json') ? JSON.parse(text) : text;
    } catch (err) {
      if (err instanceof Problem && err.status !== 503) throw err;
      if (attempt === 4) throw err instanceof Problem ? err : unreachable();
      await sleep(250 * 2 ** attempt);
    }
  }
}

// silence is how long a stream may send nothing, not even a heartbeat, before it counts as broken.
const silence = 45e3;

// unseen is how long a hidden page keeps its stream. Browsers open six connections to a server for all their
// tabs together, so streams of background tabs would block the requests of the visible one.
const unseen = 20e3;

// follow reads an event stream from its beginning. When the stream breaks, it reconnects after the last event
// it received, so that no event is lost or repeated. It returns a function that stops it. If the handler of an
// event fails, the error goes to broken, and the following events are still handled. begins gets the id after which a
// connection begins.
export function follow(path, { event, state, problem, broken, begins }) {
  let last = null;
  let stopped = false;
  let abort;
  let wake = () => {};
  const online = () => wake();
  addEventListener('online', online);
  let hiding;
  let paused = false;
  const seen = () => {
    clearTimeout(hiding);
    if (document.hidden) {
      hiding = setTimeout(() => {
        paused = true;
        abort?.abort();
      }, unseen);
    } else if (paused) {
      paused = false;
      wake();
    }
  };
  document.addEventListener('visibilitychange', seen);
  const run = async () => {
    for (let wait = 250; !stopped; wait = Math.min(wait * 2, 5000)) {
      while (paused && !stopped) {
        state('paused');
        await new Promise((done) => { wake = done; });
      }
      if (stopped) return;
      abort = new AbortController();
      try {
        const resp = await fetch(url(path), {
          headers: { Accept: 'text/event-stream', ...(last === null ? {} : { 'Last-Event-ID': String(last) }) }, signal: abort.signal, cache: 'no-store',
        });
        if (!resp.ok) {
          const p = await problemOf(resp);
          if (resp.status < 500 && resp.status !== 429) {
            problem(p);
            return;
          }
          throw p;
        }
        state('live');
        await read(resp.body, abort, (frame) => {
          wait = 250;
          const id = frame.id === null ? null : Number(frame.id);
          const known = id !== null && last !== null && id <= last;
          if (id !== null && !known) last = id; // also if the event cannot be shown: the stream continues after it
          if (frame.data === '' && id !== null) begins?.(id);
          if (frame.data === '' || known) return;
          try {
            event(frame.name, JSON.parse(frame.data), id);
          } catch (err) {
            console.error(`event ${frame.id} (${frame.name}):`, err);
            broken?.(frame.name, err);
          }
        });
      } catch (err) {
        if (!stopped && err.name !== 'AbortError' && !(err instanceof TypeError) && !(err instanceof Problem)) console.error(err);
      }
      if (stopped) return;
      if (paused) continue;
      state('reconnecting');
      await Promise.race([sleep(wait), new Promise((done) => { wake = done; })]);
    }
  };
  run();
  return () => {
    stopped = true;
    clearTimeout(hiding);
    removeEventListener('online', online);
    document.removeEventListener('visibilitychange', seen);
    abort?.abort();
    wake();
  };
}

// breathe lets the browser draw and handle input before the next work. It uses no timer, because timers of
// background pages are throttled.
const { port1, port2 } = new MessageChannel();
const breathing = [];
port1.onmessage = () => breathing.shift()();
const breathe = () => new Promise((done) => {
  breathing.push(done);
  port2.postMessage(null);
});

const stint = 10; // milliseconds of work on events in one go

// read parses server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
async function read(body, abort, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let frame = { id: null, name: 'message', data: '' };
  let timer;
  try {
    for (;;) {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), silence);
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      let until = performance.now() + stint;
      for (let line of lines) {
        if (line.endsWith('\r')) line = line.slice(0, -1);
        if (line === '') {
          take(frame);
          frame = { id: null, name: 'message', data: '' };
          if (performance.now() > until) {
            await breathe();
            until = performance.now() + stint;
          }
          continue;
        }
        const [, name, text] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (name === 'id') frame.id = text;
        else if (name === 'event') frame.name = text;
        else if (name === 'data') frame.data += (frame.data && '\n') + text;
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

// socket opens a WebSocket, relative to the page like all other addresses.
export function socket(path) {
  const to = url(path);
  to.protocol = to.protocol === 'https:' ? 'wss:' : 'ws:';
  const ws = new WebSocket(to);
  ws.binaryType = 'arraybuffer';
  return ws;
}

// all returns all pages of a list, up to a maximum of rows.
export async function all(path, most = 2000) {
  const rows = [];
  for (let cursor = ''; rows.length < most;) {
    const page = await call('GET', `${path}${path.includes('?') ? '&' : '?'}limit=500${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    rows.push(...page.data);
    cursor = page.next_cursor;
    if (!cursor) break;
  }
  return rows;
}

// single returns a function that runs what, one run at a time. All calls during a run share one further run.
export function single(what) {
  let running = null;
  let next = null;
  const run = () => {
    running = Promise.resolve(what()).finally(() => { running = null; });
    return running;
  };
  return () => {
    if (next) return next;
    if (!running) return run();
    const again = () => {
      next = null;
      return run();
    };
    next = running.then(again, again);
    return next;
  };
}

// poll runs what again and again, each time milliseconds after it has ended, so that its requests never overlap. A
// hidden page skips runs. It returns a function that stops it.
export function poll(what, time) {
  let timer;
  let stopped = false;
  const run = async () => {
    try {
      if (!document.hidden) await what();
    } catch { /* what reports its errors */ }
    if (!stopped) timer = setTimeout(run, time);
  };
  timer = setTimeout(run, time);
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}

// problemIn reads the error from an answer of fetch.
export { problemOf as problemIn };
