// Search in a directory of the sandbox and below it: in names, and in the lines of texts.

import { call, Problem } from './api.js';
import { button, h, plain, windowed } from './dom.js';

const perFile = 20; // lines of one file that are found at most
const shown = 300; // characters of a line
const left = ['.git', 'node_modules']; // directories that are not searched

// find runs a program in the sandbox, without which nothing is found. Exit code 1 means that there is no match.
async function find(box, args) {
  const r = await call('POST', `v1/sandboxes/${box}/exec`, { args, timeout_seconds: 60 }, { patience: 90e3 });
  if (r.timed_out) throw new Problem({ detail: 'The search has taken more than a minute.', remedy: 'Search in a smaller directory.' });
  if (r.returncode > 1 && !r.stdout) throw new Problem({ detail: `${args[0]} failed: ${r.stderr.trim().slice(0, 500)}`, remedy: 'The image needs find, and grep of GNU.' });
  return r;
}

// searchFiles searches, and shows the result in el. open opens a path, at a line if there is one.
export async function searchFiles(el, { box, dir, text, open, close }) {
  const glob = text.replace(/[\\*?[\]]/g, '\\$&');
  const [names, lines] = await Promise.all([
    find(box, ['find', dir, '(', ...left.flatMap((name, i) => (i ? ['-o', '-name', name] : ['-name', name])), ')', '-prune', '-o', '-iname', `*${glob}*`, '-print0']),
    find(box, ['grep', '-rnIiF', '--null', '-m', String(perFile), ...left.map((name) => `--exclude-dir=${name}`), '-e', text, '--', dir]),
  ]);
  const below = (path) => plain(path.slice(dir === '/' ? 1 : dir.length + 1) || path);
  const rows = names.stdout.split('\0').filter((path) => path && path !== dir).map((path) => h('li', null, button(below(path), () => open(path), { class: 'small' })));
  for (const line of lines.stdout.split('\n')) {
    const [, path, number, found] = /^([^\0]+)\0(\d+):(.*)$/.exec(line) ?? [];
    if (path) rows.push(h('li', null, button(`${below(path)}:${number}`, () => open(path, Number(number)), { class: 'small' }), h('code', null, plain(found.slice(0, shown)))));
  }
  const cut = names.truncated || lines.truncated;
  el.replaceChildren(h('p', { class: 'meta', role: 'status' }, rows.length === 0 ? `Nothing in ${plain(dir)} has "${text}" in its name or its text.` : `${rows.length} matches in ${plain(dir)}${cut ? '; the middle of a longer list is left out' : ''}.`,
    ` Without ${left.join(' and ')}. `, button('Close', close, { class: 'small' })), windowed(h('ul', { class: 'matches' }), rows.length, (i) => rows[i], { first: 200, step: 500, what: 'matches' }));
}
