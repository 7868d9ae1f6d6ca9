// One shell of a sandbox, on the terminal's library. The shell continues without a viewer. The last client to
// connect controls it, until another one takes over.

import { call, socket } from './api.js';
import { button, dialog, h, own, problemBox } from './dom.js';
import { isDark, onTheme } from './theme.js';

const stdin = 0;
const stdout = 1;
const control = 3;
const end = 4;
const most = 1 << 20; // maximum of bytes in flight
const piece = 64 << 10;
const repetition = 500; // milliseconds after connecting in which earlier output arrives again

const colours = () => (isDark() ? { background: '#101311', foreground: '#e4e8e4', cursor: '#e4e8e4' } : { background: '#fbfcfa', foreground: '#1b1f1c', cursor: '#1b1f1c', selectionBackground: '#b8d8c8' });

let libraries;
// load loads the libraries.
export function load() {
  libraries ??= Promise.all([import('./vendor/xterm.js'), import('./vendor/fit.js'), import('./vendor/graphemes.js'), new Promise((done, failed) => {
    document.head.append(h('link', { rel: 'stylesheet', href: own('vendor/xterm.css'), onload: done, onerror: () => failed(new Error('The terminal\'s style could not be loaded.')) }));
  })]).then(([{ Terminal }, { FitAddon }, { UnicodeGraphemesAddon }]) => ({ Terminal, FitAddon, UnicodeGraphemesAddon }));
  return libraries;
}

// openShell shows the shell called name in el, which must be in the page. dir is where a new one begins. The result
// has take, which gives it the focus, end, which kills the shell, and close.
export async function openShell(el, { id, name, dir }) {
  const { Terminal, FitAddon, UnicodeGraphemesAddon } = await load();
  const screen = h('div', { class: 'screen' });
  const bar = h('div', { class: 'row termbar' });
  const title = h('span', { class: 'meta termtitle' });
  const state = h('span', { class: 'meta', role: 'status' });
  el.replaceChildren(h('div', { class: 'row' }, state, title, h('span', { class: 'meta hintkey' }, 'Ctrl+F6 leaves the terminal')), bar, screen);

  const withStyles = withoutStyles();
  const term = new Terminal({
    cursorBlink: !matchMedia('(prefers-reduced-motion: reduce)').matches, fontSize: 13, scrollback: 5000, screenReaderMode: false,
    fontFamily: 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace', theme: colours(), allowProposedApi: true, // for the widths of characters
    minimumContrastRatio: 4.5, linkHandler: { activate: (_, to) => follow(to), allowNonHttpProtocols: false },
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.loadAddon(new UnicodeGraphemesAddon()); // an emoji of several characters is one, two columns wide
  term.open(screen);
  fit.fit();
  term.attachCustomKeyEventHandler((e) => { // all other keys, including Tab, go to the shell
    if (e.type === 'keydown' && e.ctrlKey && e.shiftKey && e.code === 'KeyC') {
      e.preventDefault();
      if (term.hasSelection()) navigator.clipboard?.writeText(term.getSelection()).catch(() => {});
      return false;
    }
    if (e.type !== 'keydown' || !e.ctrlKey || e.key !== 'F6') return true;
    e.preventDefault();
    document.querySelector('[role=tab][aria-selected=true]')?.focus();
    return false;
  });
  let live = Infinity; // when output is no longer the repetition of earlier output, in milliseconds
  const past = () => performance.now() < live;
  term.parser.registerOscHandler(52, (data) => past() || copyAsked(data));
  silence(term.parser, past);
  term.onTitleChange((text) => { title.textContent = text.slice(0, 120); });
  const paint = () => { term.options.theme = colours(); };
  const ignore = onTheme(paint);

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
  const keys = keyBar((text) => type(utf8.encode(text)), term);
  screen.before(keys.el);
  term.onData((text) => type(utf8.encode(keys.held(text))));
  term.onBinary((text) => type(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  term.onResize(({ rows, cols }) => order({ resize: { rows, cols } }));
  const sizes = new ResizeObserver(() => { if (screen.clientHeight > 0) fit.fit(); });
  sizes.observe(screen);

  function connect() {
    bar.replaceChildren();
    live = Infinity;
    state.textContent = 'Connecting…';
    term.reset();
    queue = [];
    sent = 0;
    let over = null;
    ws = socket(`v1/sandboxes/${id}/terminal?rows=${term.rows}&cols=${term.cols}${name && `&name=${name}`}${dir ? `&dir=${encodeURIComponent(dir)}` : ''}`);
    ws.onmessage = ({ data }) => {
      const bytes = new Uint8Array(data);
      const rest = bytes.subarray(1);
      if (bytes[0] === stdout) term.write(rest);
      else if (bytes[0] === control) {
        const c = JSON.parse(new TextDecoder().decode(rest));
        if (c.started) {
          live = performance.now() + repetition;
          tries = 0;
          state.textContent = 'Connected';
          order({ resize: { rows: term.rows, cols: term.cols } }); // it may have changed meanwhile
        }
        if (c.stdin_read) {
          sent -= c.stdin_read;
          pump();
        }
      } else if (bytes[0] === end) over = JSON.parse(new TextDecoder().decode(rest));
    };
    ws.onclose = () => {
      if (closed) return;
      if (over?.problem) ended(over.problem.code === 'conflict' ? 'Another browser controls the shell now.' : '', 'Take it over', over.problem);
      else if (over?.exit) ended(`The shell has ended with exit code ${over.exit.returncode}.`, 'New shell');
      else if (tries++ < 8) {
        state.textContent = 'Connection lost; trying again…';
        setTimeout(again, Math.min(250 * 2 ** tries, 5000));
      } else ended('The shell cannot be reached. The sandbox may have ended.', 'Try again');
    };
  }
  // again connects, unless the sandbox has ended meanwhile.
  async function again() {
    try {
      const box = await call('GET', `v1/sandboxes/${id}`);
      if (box.ended_at) {
        state.textContent = 'The sandbox has ended.';
        bar.replaceChildren();
        return;
      }
    } catch { /* connect reports it */ }
    if (!closed) connect();
  }
  function ended(text, again, problem) {
    state.textContent = text;
    bar.replaceChildren(...[problem && !text && problemBox(problem), button(again, () => {
      tries = 0;
      connect();
      term.focus();
    }, { class: 'primary' })].filter(Boolean));
  }
  again();
  return {
    take: () => term.focus(),
    end: () => order({ signal: 'SIGHUP' }),
    close() {
      closed = true;
      ws?.close();
      sizes.disconnect();
      ignore();
      term.dispose();
      withStyles();
    },
  };
}

// silence leaves out the terminal's answers to questions of programs in the past: such an answer would be typed into the
// shell, which does not wait for it. The questions are those for the status (n), the device (c), modes ($p), settings
// (DCS $q) and colours.
function silence(parser, past) {
  for (const id of [{ final: 'n' }, { prefix: '?', final: 'n' }, { final: 'c' }, { prefix: '>', final: 'c' }, { prefix: '=', final: 'c' },
    { intermediates: '$', final: 'p' }, { prefix: '?', intermediates: '$', final: 'p' }]) parser.registerCsiHandler(id, past);
  parser.registerDcsHandler({ intermediates: '$', final: 'q' }, past);
  for (const id of [4, 10, 11, 12]) parser.registerOscHandler(id, (data) => past() && data.includes('?'));
}

// copyAsked asks whether a program may write to the clipboard (OSC 52). It never reads the clipboard for a
// program.
function copyAsked(data) {
  const [, coded] = /^[^;]*;(.*)$/s.exec(data) ?? [];
  if (!coded || coded === '?') return true;
  let text;
  try {
    text = new TextDecoder().decode(Uint8Array.from(atob(coded), (c) => c.charCodeAt(0)));
  } catch {
    return true;
  }
  const el = dialog('Copy', h('h2', null, 'Copy this to the clipboard?'), h('p', null, 'A program in the terminal asks for it.'), h('pre', { tabindex: '0' }, text.slice(0, 2000)), h('div', { class: 'row' },
    button('Copy', () => {
      el.close();
      navigator.clipboard?.writeText(text).catch(() => {});
    }, { class: 'primary' }), button('Not now', () => el.close(), { autofocus: true })));
  return true;
}

// keyBar has the keys that phone keyboards lack. Ctrl applies to the next key.
function keyBar(type, term) {
  let ctrl = false;
  const hold = button('Ctrl', () => {
    ctrl = !ctrl;
    hold.setAttribute('aria-pressed', String(ctrl));
    term.focus();
  }, { class: 'small', 'aria-pressed': 'false' });
  const key = (label, text, name) => button(label, () => {
    type(text);
    term.focus();
  }, { class: 'small', 'aria-label': name ?? label });
  const el = h('div', { class: 'row termkeys', role: 'toolbar', 'aria-label': 'Keys' }, key('Esc', '\x1b'), hold, key('Tab', '\t'), key('←', '\x1b[D', 'Left'), key('↑', '\x1b[A', 'Up'), key('↓', '\x1b[B', 'Down'), key('→', '\x1b[C', 'Right'));
  // held returns the text to send for a typed text while Ctrl is held.
  const held = (text) => {
    if (!ctrl || text.length !== 1) return text;
    hold.click();
    return String.fromCharCode(text.toUpperCase().charCodeAt(0) & 0x1f);
  };
  return { el, held };
}

// follow opens an address that a program in the terminal has linked. It shows the address first, because a
// link's text and its target may differ.
function follow(to) {
  if (!/^https?:/i.test(to)) return;
  const el = dialog('Open a link', h('h2', null, 'Open this link?'), h('p', null, h('code', null, to)), h('div', { class: 'row' },
    h('a', { class: 'button primary', href: to, target: '_blank', rel: 'noopener noreferrer nofollow', onclick: () => el.close() }, 'Open it'), button('Not now', () => el.close(), { autofocus: true })));
}

// withoutStyles replaces document.createElement while the library is in use. The library creates style elements
// and style attributes, and the Content-Security-Policy forbids both. The replacement turns the former into style
// sheets, and the latter into properties, which scripts may set. It returns a function that ends this, when all
// shells are closed.
let users = 0;
const sheets = [];
function withoutStyles() {
  if (users++ === 0) document.createElement = createElement;
  return () => {
    if (--users > 0) return;
    delete document.createElement;
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => !sheets.includes(s));
    sheets.length = 0;
  };
}

function createElement(tag) {
  const make = (name) => Document.prototype.createElement.call(document, name);
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
}
