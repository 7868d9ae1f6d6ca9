// All sessions, with their usage.

import { all } from './api.js';
import { h, money, table, when } from './dom.js';

export async function open(body, { failed }) {
  const list = h('div');
  const search = h('input', { type: 'search', 'aria-label': 'Search', placeholder: 'Search', oninput: () => show() });
  const archived = h('input', { type: 'checkbox', onchange: () => load() });
  body.replaceChildren(h('div', { class: 'row' }, search, h('label', { class: 'choice' }, archived, h('span', null, 'Only archived ones'))), list);
  let rows = [];
  function show() {
    const wanted = search.value.trim().toLowerCase();
    const found = rows.filter((s) => [s.title, s.repo, s.agent, s.id, s.status].join(' ').toLowerCase().includes(wanted));
    list.replaceChildren(table('Sessions', ['Session', 'Status', 'Agent', 'Repository', 'Turns', 'Cost', 'Last active'], found.map((s) => [h('a', { href: `#/s/${s.id}` }, s.title || 'New session'),
      s.reason ? `${s.status}: ${s.reason}` : s.status, s.agent, s.repo || '–', String(s.turns), money(s.usage.cost_usd), when(s.active_at)]), wanted ? 'No matches.' : 'There is no session.'));
  }
  async function load() {
    try {
      rows = await all(`v1/sessions?${archived.checked ? 'archived' : 'all'}=true`);
      show();
    } catch (p) {
      failed(p);
    }
  }
  await load();
}
