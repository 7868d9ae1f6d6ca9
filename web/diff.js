// Changes of files, as lines.

import { button, h, windowed } from './dom.js';
import { matches } from './text.js';

// lineDiff returns [sign, line] pairs that turn one text into another.
export function lineDiff(from, to) {
  const a = from === '' ? [] : from.replace(/\n$/, '').split('\n');
  const b = to === '' ? [] : to.replace(/\n$/, '').split('\n');
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const x = a.slice(start, a.length - end);
  const y = b.slice(start, b.length - end);
  const middle = [];
  const found = matches(x, y);
  let i = 0;
  let added = [];
  const flush = (to) => { // removed lines stand before the added ones
    while (i < to) middle.push(['-', x[i++]]);
    for (const line of added) middle.push(['+', line]);
    added = [];
  };
  for (const [j, line] of y.entries()) {
    if (found[j] < 0) added.push(line);
    else {
      flush(found[j]);
      middle.push([' ', x[i++]]);
    }
  }
  flush(x.length);
  return [...a.slice(0, start).slice(-3).map((l) => [' ', l]), ...middle, ...a.slice(a.length - end).slice(0, 3).map((l) => [' ', l])];
}

const kinds = { '+': 'added', '-': 'removed', '@': 'hunk' };

const widest = 2000; // characters of a line that are shown at first

// lines shows [sign, line] pairs. Of a long list it shows the first ones and a button for more.
export const lines = (all, label) => shown(all.length, (i) => all[i], label);

// shown shows count lines, of which at(i) returns [sign, line].
function shown(count, at, label) {
  const el = h('pre', { class: 'diff', tabindex: '0', role: 'group', 'aria-label': label });
  return windowed(el, count, (i) => {
    const [sign, line] = at(i);
    return h('span', { class: kinds[sign] ?? 'same' }, clipped(sign + line), '\n');
  });
}

// clipped returns a line. Of a very long line it returns the beginning and a button for the rest.
export function clipped(line) {
  if (line.length <= widest) return [line];
  const rest = line.slice(widest);
  const more = button(`… ${rest.length.toLocaleString('en')} more characters`, () => more.replaceWith(rest), { class: 'small' });
  return [line.slice(0, widest), more];
}

// pairs returns the texts before and after an edit by a tool call. It knows the field names of the agents'
// tools.
function pairs(tool, input) {
  const i = input ?? {};
  if (typeof pathOf(i) !== 'string') return [];
  const pair = (e) => [e?.old_string ?? e?.oldString, e?.new_string ?? e?.newString];
  const changes = Array.isArray(i.edits) ? i.edits.map(pair) : /^write$/i.test(tool) ? [['', i.content]] : [pair(i)];
  return changes.filter(([a, b]) => typeof a === 'string' && typeof b === 'string');
}

const pathOf = (i) => i.file_path ?? i.filePath ?? i.path;

// edited reports whether a tool call is an edit. edits shows its changes.
export const edited = (tool, input) => pairs(tool, input).length > 0;
export const edits = (tool, input) => pairs(tool, input).map(([a, b]) => lines(lineDiff(a, b), `Changes of ${pathOf(input)}`));

const openMost = 3000; // lines of files that are unfolded at first

// sections returns the parts of a unified diff, one for each file.
function sections(text) {
  const all = [];
  for (let from = 0; from < text.length;) {
    const at = text.indexOf('\ndiff --git ', from);
    const to = at < 0 ? text.length : at + 1;
    const file = text.slice(from, to);
    if (file.trim() !== '') all.push(file.endsWith('\n') ? file.slice(0, -1) : file);
    from = to;
  }
  return all;
}

// counted returns the number of lines of a text behind an offset, and of those that begin with + and -.
function counted(text, from) {
  const n = { all: 0, '+': 0, '-': 0 };
  for (let i = from; ; i++) {
    n.all++;
    if (text[i] === '+' || text[i] === '-') n[text[i]]++;
    i = text.indexOf('\n', i);
    if (i < 0) return n;
  }
}

// patch returns sections of a unified diff, one for each file. The content of a section is built when it is
// opened.
export function patch(text) {
  let opened = 0;
  return sections(text).map((file) => {
    const first = file.startsWith('@@') ? 0 : file.indexOf('\n@@') + 1; // 0 without lines, such as of a binary file
    const [head] = file.split('\n', 1);
    const name = /^diff --git "?a\/.* "?b\/(.*?)"?$/.exec(head)?.[1] ?? head;
    const count = counted(file, first);
    const el = h('details', { class: 'file' }, h('summary', null, h('code', null, name), h('span', { class: 'meta' }, ` +${count['+']} −${count['-']}`)));
    const make = () => {
      if (!el.open || el.childElementCount > 1) return;
      const all = file.slice(first).split('\n');
      el.append(shown(all.length, (i) => [all[i].slice(0, 1), all[i].slice(1)], `Changes of ${name}`));
    };
    el.addEventListener('toggle', make);
    el.open = opened < openMost;
    opened += count.all;
    make();
    return el;
  });
}
