// The sandbox's terminal. The shell goes on when nobody looks; whoever connects last has it, and can be taken over by the next one.

import { socket } from './api.js';
import { button, dialog, h, own, problemBox } from './dom.js';

const stdin = 0;
const stdout = 1;
const control = 3;
const end = 4;
const most = 1 << 20; // bytes that may be under way
const piece = 64 << 10;

export async function open(body, { sandbox }) {
  const id = await sandbox();
  if (!id) {
    body.replaceChildren(h('p', null, 'There is no sandbox yet.'));
    return undefined;
  }
  const [{ Terminal }, { FitAddon }] = await Promise.all([import('./vendor/xterm.js'), import('./vendor/fit.js'), style()]);
  const screen = h('div', { class: 'screen' });
  const bar = h('div', { class: 'row termbar' });
  const title = h('span', { class: 'meta title' });
  const state = h('span', { class: 'meta', role: 'status' });
  body.replaceChildren(h('h2', null, 'Terminal'), h('div', { class: 'row' }, state, title, h('span', { class: 'meta hintkey' }, 'Ctrl+F6 leaves the terminal')), bar, screen);

  const withStyles = withoutStyles();
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const term = new Terminal({
    cursorBlink: !matchMedia('(prefers-reduced-motion: reduce)').matches, fontSize: 13, scrollback: 5000, screenReaderMode: false,
    fontFamily: 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace',
    theme: dark ? { background: '#101311', foreground: '#e4e8e4', cursor: '#e4e8e4' } : { background: '#fbfcfa', foreground: '#1b1f1c', cursor: '#1b1f1c', selectionBackground: '#b8d8c8' },
    minimumContrastRatio: 4.5, linkHandler: { activate: (_, to) => follow(to), allowNonHttpProtocols: false },
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(screen);
  fit.fit();
  term.attachCustomKeyEventHandler((e) => { // all other keys are the shell's, Tab, too
    if (e.type !== 'keydown' || !e.ctrlKey || e.key !== 'F6') return true;
    e.preventDefault();
    document.querySelector('[role=tab][aria-selected=true]')?.focus();
    return false;
  });
  term.onTitleChange((text) => { title.textContent = text.slice(0, 120); });

  let ws = null;
  let closed = false;
  let queue = [];
  let sent = 0;
  let tries = 0;

  const message = (kind, data) => {
    const frame = new Uint8Array(data.length + 1);
    frame[0] = kind;
    frame.set(data, 1);
    ws.send(frame);
  };
  const utf8 = new TextEncoder();
  const order = (what) => { if (ws?.readyState === WebSocket.OPEN) message(control, utf8.encode(JSON.stringify(what))); };
  function pump() {
    while (queue.length > 0 && ws?.readyState === WebSocket.OPEN && sent + queue[0].length <= most) {
      const data = queue.shift();
      sent += data.length;
      message(stdin, data);
    }
  }
  const type = (data) => {
    for (let at = 0; at < data.length; at += piece) queue.push(data.slice(at, at + piece));
    pump();
  };
  term.onData((text) => type(utf8.encode(text)));
  term.onBinary((text) => type(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  term.onResize(({ rows, cols }) => order({ resize: { rows, cols } }));
  const sizes = new ResizeObserver(() => { if (screen.clientHeight > 0) fit.fit(); });
  sizes.observe(screen);

  function connect() {
    bar.replaceChildren();
    state.textContent = 'Connecting…';
    term.reset();
    queue = [];
    sent = 0;
    let over = null;
    ws = socket(`v1/sandboxes/${id}/terminal?rows=${term.rows}&cols=${term.cols}`);
    ws.onmessage = ({ data }) => {
      const bytes = new Uint8Array(data);
      const rest = bytes.subarray(1);
      if (bytes[0] === stdout) term.write(rest);
      else if (bytes[0] === control) {
        const c = JSON.parse(new TextDecoder().decode(rest));
        if (c.started) {
          tries = 0;
          state.textContent = 'Connected';
        }
        if (c.stdin_read) {
          sent -= c.stdin_read;
          pump();
        }
      } else if (bytes[0] === end) over = JSON.parse(new TextDecoder().decode(rest));
    };
    ws.onclose = () => {
      if (closed) return;
      if (over?.problem) ended(over.problem.code === 'conflict' ? 'Somebody else has the terminal now.' : '', 'Take it over', over.problem);
      else if (over?.exit) ended(`The shell has ended with ${over.exit.returncode}.`, 'New shell');
      else if (tries++ < 8) {
        state.textContent = 'Connection lost; trying again…';
        setTimeout(() => { if (!closed) connect(); }, Math.min(250 * 2 ** tries, 5000));
      } else ended('The terminal cannot be reached. The sandbox may have ended.', 'Try again');
    };
  }
  function ended(text, again, problem) {
    state.textContent = text;
    bar.replaceChildren(...[problem && !text && problemBox(problem), button(again, () => {
      tries = 0;
      connect();
      term.focus();
    }, { class: 'primary' })].filter(Boolean));
  }
  connect();
  if (!document.activeElement?.matches('[role=tab]:focus-visible')) term.focus(); // who goes through the views by keys goes on
  return () => {
    closed = true;
    ws?.close();
    sizes.disconnect();
    term.dispose();
    withStyles();
  };
}

// follow opens an address that a program in the terminal has made a link. It is shown before: what a link says and where it leads may differ.
function follow(to) {
  if (!/^https?:/i.test(to)) return;
  const el = dialog('Open a link', h('h2', null, 'Open this link?'), h('p', null, h('code', null, to)), h('div', { class: 'row' },
    h('a', { class: 'button primary', href: to, target: '_blank', rel: 'noopener noreferrer nofollow', onclick: () => el.close() }, 'Open it'), button('Stay here', () => el.close(), { autofocus: true })));
}

let styled;
function style() {
  styled ??= new Promise((done, failed) => {
    document.head.append(h('link', { rel: 'stylesheet', href: own('vendor/xterm.css'), onload: done, onerror: () => failed(new Error('The terminal\'s style could not be loaded.')) }));
  });
  return styled;
}

// withoutStyles makes elements for the library as long as it is there: it makes style elements and style attributes, neither of which the
// Content-Security-Policy allows. Here the former become style sheets, and the latter properties, which scripts may set. It returns what ends that.
function withoutStyles() {
  const sheets = [];
  const make = (tag) => Document.prototype.createElement.call(document, tag);
  document.createElement = (tag) => {
    if (tag !== 'style') {
      const el = make(tag);
      el.setAttribute = (name, value) => {
        if (name === 'style') el.style.cssText = value;
        else Element.prototype.setAttribute.call(el, name, value);
      };
      return el;
    }
    const sheet = new CSSStyleSheet();
    sheets.push(sheet);
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    const el = make('span');
    el.hidden = true;
    Object.defineProperty(el, 'textContent', { set: (text) => sheet.replaceSync(text), get: () => '' });
    return el;
  };
  return () => {
    delete document.createElement;
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => !sheets.includes(s));
  };
}
