// The sessions beside every view: pinned ones, then the newest, on request by repository. The search also finds what
// the page has not loaded: by prompts and replies, and in the archive.

import { call } from './api.js';
import { ago, fill, h, soon } from './dom.js';
import { prefer, preference } from './drafts.js';

const states = { running_tool: 'running a tool', waiting_for_input: 'waiting for your answer' };
const grouped = 'by-repository';
const pause = 300; // milliseconds without input, after which the server searches

// repoName is the end of a repository's address.
const repoName = (url) => (url ?? '').replace(/\/+$/, '').replace(/\.git$/, '').split(/[/:]/).slice(-2).join('/') || 'No repository';

// sessionList returns the list with its controls. shown returns the open session, waits whether something of a session
// is in the inbox.
export function sessionList({ shown, waits }) {
  const list = h('ul', { class: 'sessions' });
  const search = h('input', { type: 'search', 'aria-label': 'Search sessions', placeholder: 'Search', oninput: look });
  const byRepo = h('input', { type: 'checkbox', checked: preference(grouped) === 'yes', onchange: () => {
    prefer(grouped, byRepo.checked ? 'yes' : '');
    draw();
  } });
  let sessions = null; // null: they are not known yet
  let found = { text: '', data: [] }; // what the server has found
  let timer;
  let drawing = false;

  function look() {
    draw();
    clearTimeout(timer);
    const text = search.value.trim();
    if (text === '' || text === found.text) return;
    timer = setTimeout(async () => {
      const { data } = await call('GET', `v1/sessions?all=true&limit=200&q=${encodeURIComponent(text)}`).catch(() => ({ data: [] })); // the loaded ones were searched
      found = { text, data };
      draw();
    }, pause);
  }

  function matches(text) {
    const lower = text.toLowerCase();
    const local = sessions.filter((s) => [s.title, s.repo, s.agent, s.id, s.status].join(' ').toLowerCase().includes(lower));
    const known = new Map((found.text === text ? found.data : []).map((s) => [s.id, s]));
    for (const s of local) known.set(s.id, s);
    return [...known.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
  }

  const row = (s) => h('li', null, h('a', { href: `#/s/${s.id}`, 'aria-current': s.id === shown() ? 'page' : null, class: waits(s.id) ? 'waits' : null },
    h('span', { class: 'title' }, s.title || 'New session'), h('span', { class: 'meta' }, h('i', { class: 'dot', 'data-status': s.status }), `${states[s.status] ?? s.status} · ${ago(s.active_at)}`, s.archived && ' · archived', waits(s.id) && h('span', { class: 'sr' }, ', in the inbox'))));

  function draw() {
    if (!sessions) return;
    const text = search.value.trim();
    const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
    if (text) {
      const all = matches(text);
      fill(list, all.map(row));
      if (all.length === 0) list.append(h('li', { class: 'meta' }, found.text === text ? 'No matches.' : 'Searching…'));
    } else {
      const pinned = sessions.filter((s) => s.pinned);
      const rest = sessions.filter((s) => !s.pinned);
      const groups = [['Pinned', pinned]].concat(byRepo.checked ? [...Map.groupBy(rest, (s) => repoName(s.repo))] : [[pinned.length > 0 ? 'Others' : '', rest]]);
      fill(list, groups.filter(([, of]) => of.length > 0).flatMap(([name, of]) => (name ? h('li', { class: 'group' }, h('span', { class: 'meta' }, name), h('ul', { 'aria-label': name }, of.map(row))) : of.map(row))));
      if (sessions.length === 0) list.append(h('li', { class: 'meta' }, 'No sessions yet.'));
    }
    if (focused) list.querySelector(`a[href="${focused}"]`)?.focus();
  }

  return {
    parts: [search, list, h('label', { class: 'choice' }, byRepo, h('span', null, 'By repository'))],
    draw,
    sessions: () => sessions ?? [],
    set(all) {
      sessions = all;
      draw();
    },
    add: (made) => sessions?.unshift(made),
    problem: (box) => list.replaceChildren(h('li', null, box)),
    // changed shows the new state and title of a session, and reports whether the list has it.
    changed(id, status, title) {
      const s = sessions?.find((v) => v.id === id);
      if (s && (s.status !== status || (title && s.title !== title))) {
        Object.assign(s, { status }, title && { title });
        if (!drawing) soon(() => {
          drawing = false;
          draw();
        });
        drawing = true;
      }
      return Boolean(s);
    },
  };
}
