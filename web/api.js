// Requests to the server, and its event streams. All addresses are relative to the page's, so that it may stand behind a path prefix.

const base = new URL('.', document.baseURI);
export const url = (path) => new URL(path, base);

// Problem is an error as the server tells it (RFC 9457), or as this page does where the server could not be asked.
export class Problem extends Error {
  constructor(fields) {
    super(fields.detail || fields.title);
    Object.assign(this, fields);
  }
}

const unreachable = () => new Problem({
  code: 'unavailable', retryable: true, detail: 'The server cannot be reached.', remedy: 'It may be restarting. If this stays, start it with: harvest up',
});

async function problemOf(resp) {
  try {
    return new Problem({ ...(await resp.json()), status: resp.status });
  } catch {
    return new Problem({ status: resp.status, retryable: resp.status >= 500, detail: `The server answered with ${resp.status}.`, remedy: 'Is there a proxy between? Try again, or look at the server\'s log.' });
  }
}

const sleep = (time) => new Promise((done) => { setTimeout(done, time); });

// call sends a request. A POST carries a key by which the server does it once, however often it arrives: so it is safe to send it again
// when nothing is heard.
export async function call(method, path, body) {
  const headers = {};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (method === 'POST') headers['Idempotency-Key'] = Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join('-');
  for (let attempt = 0; ; attempt++) {
    try {
      const resp = await fetch(url(path), { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: 'no-store' });
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

// silence is how long a stream may say nothing, not even that it lives, before it is taken for broken.
const silence = 45e3;

// follow reads an event stream from its beginning, and goes on behind the last event it has whenever it breaks off: none is lost and
// none comes twice. It returns what ends it.
export function follow(path, { event, state, problem }) {
  let last = null;
  let stopped = false;
  let abort;
  let wake = () => {};
  const online = () => wake();
  addEventListener('online', online);
  const run = async () => {
    for (let wait = 250; !stopped; wait = Math.min(wait * 2, 5000)) {
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
          if (frame.data !== '' && !(id !== null && last !== null && id <= last)) event(frame.name, JSON.parse(frame.data), id);
          if (id !== null && (last === null || id > last)) last = id;
        });
      } catch (err) {
        if (!stopped && err.name !== 'AbortError' && !(err instanceof TypeError) && !(err instanceof Problem)) console.error(err);
      }
      if (stopped) return;
      state('reconnecting');
      await Promise.race([sleep(wait), new Promise((done) => { wake = done; })]);
    }
  };
  run();
  return () => {
    stopped = true;
    removeEventListener('online', online);
    abort?.abort();
  };
}

// read takes server-sent events apart (https://html.spec.whatwg.org/multipage/server-sent-events.html).
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
      for (let line of lines) {
        if (line.endsWith('\r')) line = line.slice(0, -1);
        if (line === '') {
          take(frame);
          frame = { id: null, name: 'message', data: '' };
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
