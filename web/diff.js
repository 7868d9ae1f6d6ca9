// Changes of files, as lines.

import { h } from './dom.js';

const most = 2000; // lines of which a comparison is made; the effort grows with their square

// lineDiff returns [sign, line] for going from one text to another.
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
  if (x.length * y.length > most * most) {
    middle.push(...x.map((l) => ['-', l]), ...y.map((l) => ['+', l]));
  } else { // the longest common subsequence
    const width = y.length + 1;
    const table = new Uint32Array((x.length + 1) * width);
    for (let i = x.length - 1; i >= 0; i--) {
      for (let j = y.length - 1; j >= 0; j--) {
        table[i * width + j] = x[i] === y[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
      }
    }
    let i = 0;
    let j = 0;
    while (i < x.length || j < y.length) {
      if (i < x.length && j < y.length && x[i] === y[j]) {
        middle.push([' ', x[i]]);
        i++;
        j++;
      } else if (i < x.length && (j === y.length || table[(i + 1) * width + j] >= table[i * width + j + 1])) middle.push(['-', x[i++]]);
      else middle.push(['+', y[j++]]);
    }
  }
  return [...a.slice(0, start).slice(-3).map((l) => [' ', l]), ...middle, ...a.slice(a.length - end).slice(0, 3).map((l) => [' ', l])];
}

const kinds = { '+': 'added', '-': 'removed', '@': 'hunk' };

// lines shows [sign, line] pairs.
export function lines(all, label) {
  return h('pre', { class: 'diff', tabindex: '0', role: 'group', 'aria-label': label },
    all.map(([sign, line]) => h('span', { class: kinds[sign] ?? 'same' }, `${sign}${line}\n`)));
}

// pairs are the texts before and after that a tool call would bring about, by the names that the agents' tools use.
function pairs(tool, input) {
  const i = input ?? {};
  if (typeof pathOf(i) !== 'string') return [];
  const pair = (e) => [e?.old_string ?? e?.oldString, e?.new_string ?? e?.newString];
  const changes = Array.isArray(i.edits) ? i.edits.map(pair) : /^write$/i.test(tool) ? [['', i.content]] : [pair(i)];
  return changes.filter(([a, b]) => typeof a === 'string' && typeof b === 'string');
}

const pathOf = (i) => i.file_path ?? i.filePath ?? i.path;

// edited tells whether a tool call is an edit, and edits shows what it would change.
export const edited = (tool, input) => pairs(tool, input).length > 0;
export const edits = (tool, input) => pairs(tool, input).map(([a, b]) => lines(lineDiff(a, b), `Change of ${pathOf(input)}`));

// patch shows a unified diff, a section for each file.
export function patch(text) {
  const files = text.split(/^(?=diff --git )/m).filter((f) => f.trim() !== '');
  return files.map((file) => {
    const all = file.replace(/\n$/, '').split('\n');
    const first = all.findIndex((l) => l.startsWith('@@'));
    const body = first < 0 ? all : all.slice(first);
    const name = /^diff --git "?a\/.* "?b\/(.*?)"?$/.exec(all[0])?.[1] ?? all[0];
    const count = (sign) => body.filter((l) => l.startsWith(sign)).length;
    return h('details', { class: 'file', open: true }, h('summary', null, h('code', null, name), h('span', { class: 'meta' }, ` +${count('+')} −${count('-')}`)),
      lines(body.map((l) => [l.slice(0, 1), l.slice(1)]), `Change of ${name}`));
  });
}
