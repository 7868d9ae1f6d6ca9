// Elements without a framework. Nothing here accepts HTML as text: output of agents, repositories and file
// names becomes text nodes.

import { now } from './api.js';
import { isLost, takeView } from './focus.js';

// h makes an element. A function as attribute is a listener, true is an attribute without value, and null and
// false leave the attribute out.
export function h(tag, attrs, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') el.addEventListener(name.replace(/^on/, ''), value);
    else if (name === 'value') el.value = value;
    else el.setAttribute(name, value === true ? '' : value);
  }
  return add(el, children.flat());
}

const most = 10_000; // arguments of one call: engines have limits from 65,000 on

// add appends children to an element, however many there are.
export function add(el, children) {
  const all = children.filter((c) => c !== null && c !== undefined && c !== false);
  for (let i = 0; i < all.length; i += most) el.append(...all.slice(i, i + most));
  return el;
}

// fill replaces the children of an element.
export function fill(el, children) {
  el.replaceChildren();
  return add(el, children);
}

// windowed returns an element with the first of many parts, and a button for more. part(i) makes the part at
// index i of count.
export function windowed(el, count, part, { first = 400, step = 2000, what = 'lines' } = {}) {
  let shown = 0;
  const more = button('', () => show(step), { class: 'small rest' });
  function show(n) {
    const to = Math.min(count, shown + n);
    const parts = [];
    for (let i = shown; i < to; i++) parts.push(part(i));
    more.remove();
    add(el, parts);
    shown = to;
    if (shown < count) {
      const left = count - shown;
      const number = (n) => n.toLocaleString('en');
      more.textContent = left <= step ? `Show the other ${number(left)} ${what}` : `Show ${number(step)} more of ${number(left)} ${what}`;
      el.append(more);
    }
  }
  show(first);
  return el;
}

// plain escapes the control characters of a path or key, because a tab, DEL or ESC in it would be invisible.
export const plain = (text) => String(text ?? '').replace(/[\u0000-\u001f\u007f-\u009f]/g, (c) => ({ '\t': '\\t', '\n': '\\n', '\r': '\\r' })[c] ?? `\\x${c.charCodeAt(0).toString(16).padStart(2, '0')}`);

// plainLines is plain for text with several lines.
export const plainLines = (text) => String(text).split('\n').map(plain).join('\n');

// own is the address of a file of the page, in the page's version.
export const own = (name) => new URL(name, import.meta.url).href;

export const button = (label, onclick, attrs) => h('button', { type: 'button', onclick, ...attrs }, ...[label].flat());

// field is an input with a label, which screen readers read, too.
export function field(label, input, help) {
  return h('label', { class: 'field' }, h('span', null, label), input, help && h('small', null, help));
}

// ms returns a duration. The limits of the units are those of the rounded numbers: 999.7 is 1.0 s.
export function ms(n) {
  if (n < 9.95) return `${n.toFixed(1)} ms`;
  if (n < 999.5) return `${Math.round(n)} ms`;
  if (n < 59_950) return `${(n / 1000).toFixed(1)} s`;
  const s = Math.round(n / 1000);
  return `${Math.floor(s / 60)} min ${s % 60} s`;
}

export const money = (usd) => `$${usd.toFixed(usd < 1 ? 4 : 2)}`;

export function ago(time) {
  const s = Math.max(0, (now() - new Date(time)) / 1000);
  if (s < 60) return 'just now';
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return new Date(time).toLocaleDateString();
}

// problemBox shows an error, its remedy, and actions, in place.
export function problemBox(p, ...actions) {
  return h('div', { class: 'problem', role: 'alert' },
    h('strong', null, (p.stage ? `${p.stage}: ` : '') + plainLines(p.detail || p.title || String(p))),
    p.remedy && h('p', null, p.remedy), p.request_id && h('small', null, `Request ${p.request_id}`), actions.length > 0 && h('div', { class: 'row' }, actions));
}

// acting returns a function that awaits an action, shows its error in place of an earlier one, and then calls done.
export function acting(error, done) {
  return async (what) => {
    error.replaceChildren();
    try {
      await what();
    } catch (p) {
      error.replaceChildren(problemBox(p));
    }
    done();
  };
}

// copyButton copies a text. If the browser allows copying only for secure origins, it selects the text instead.
export function copyButton(text, from) {
  const b = button('Copy', async () => {
    try {
      await navigator.clipboard.writeText(text());
      b.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(from);
      b.textContent = 'Selected';
    }
    setTimeout(() => { b.textContent = 'Copy'; }, 1500);
  }, { class: 'small copy', 'aria-label': 'Copy' });
  return b;
}

// soon calls draw once with the next frame. It also works in hidden tabs, which have no frames.
export function soon(draw) {
  let done = false;
  const run = () => {
    if (!done) draw();
    done = true;
  };
  requestAnimationFrame(run);
  setTimeout(run, 100);
}

export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

export const when = (time) => (time ? h('time', { datetime: time, title: time }, ago(time)) : '–');

// dialog shows a window over the page. Esc closes and removes it. The focus returns to the element that had it
// before, or to the view if that is gone.
export function dialog(label, ...children) {
  const el = h('dialog', { 'aria-label': label, onclose: () => {
    el.remove();
    if (isLost()) takeView();
  } }, children);
  document.body.append(el);
  el.showModal();
  return el;
}

// sure asks for confirmation before an action that cannot be undone.
export function sure(title, text, yes, act) {
  const el = dialog(title, h('h2', null, title), h('p', null, text), h('div', { class: 'row' }, button(yes, () => {
    el.close();
    act();
  }, { class: 'danger' }), button('Keep it', () => el.close(), { autofocus: true })));
}

// table shows rows of cells below column names. Cells are texts or elements.
export function table(label, columns, rows, none = 'There is nothing yet.') {
  if (rows.length === 0) return h('p', { class: 'meta' }, none);
  return h('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': label }, h('table', { class: 'list' }, h('thead', null, h('tr', null, columns.map((c) => h('th', { scope: 'col' }, c || h('span', { class: 'sr' }, 'Actions'))))),
    h('tbody', null, rows.map((cells) => h('tr', null, cells.map((c) => h('td', null, typeof c === 'string' ? plain(c) : c ?? '–')))))));
}

// tabs is a row of buttons, one of them selected, each of which controls the panel whose id panel(id) returns. The
// arrow keys, Home and End move between them. The selected one is always in sight.
export function tabs(label, names, choose, panel) {
  const all = Object.entries(names).map(([id, name]) => button(name, () => choose(id), { role: 'tab', id: `tab-${id}`, 'data-tab': id, 'aria-controls': panel(id), 'aria-selected': 'false', tabindex: '-1' }));
  const el = h('div', { class: 'tabs', role: 'tablist', 'aria-label': label }, all);
  const selected = () => all.find((b) => b.getAttribute('aria-selected') === 'true');
  const reveal = () => {
    const [row, b] = [el.getBoundingClientRect(), selected()?.getBoundingClientRect()];
    if (!b) return;
    if (b.left < row.left) el.scrollLeft -= row.left - b.left;
    else if (b.right > row.right) el.scrollLeft += b.right - row.right;
  };
  el.addEventListener('keydown', (e) => {
    const at = all.indexOf(document.activeElement);
    const next = { ArrowRight: (at + 1) % all.length, ArrowLeft: (at - 1 + all.length) % all.length, Home: 0, End: all.length - 1 }[e.key];
    if (at < 0 || next === undefined) return;
    e.preventDefault();
    all[next].focus();
    all[next].click();
  });
  new ResizeObserver(reveal).observe(el);
  return Object.assign(el, {
    select(id) {
      for (const b of all) {
        b.setAttribute('aria-selected', String(b.dataset.tab === id));
        b.tabIndex = b.dataset.tab === id ? 0 : -1;
      }
      reveal();
    },
    take: () => selected()?.focus(),
  });
}
