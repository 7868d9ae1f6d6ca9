// The audit log: who changed what, newest first.

import { all } from './api.js';
import { h, table } from './dom.js';

export async function open(body, { failed }) {
  const list = h('div');
  const search = h('input', { type: 'search', 'aria-label': 'Search', placeholder: 'Search', oninput: () => show() });
  body.replaceChildren(search, list);
  let rows = [];
  function show() {
    const wanted = search.value.trim().toLowerCase();
    const found = rows.filter((l) => JSON.stringify(l).toLowerCase().includes(wanted));
    list.replaceChildren(table('Audit log', ['Time', 'Account', 'Address', 'Request', 'Status', 'Request id'], found.map((l) => [new Date(l.time).toLocaleString(), `${l.account}${l.key_id ? ` · ${l.key_id}` : ''}`, l.sandbox_id ?? l.address ?? 'this machine',
      h('div', null, h('code', null, `${l.method} ${l.path}`), l.secret && h('small', null, ` with the secret ${l.secret}${l.count > 1 ? `, ${l.count} times` : ''}${l.refused ? `: ${l.refused}` : ''}`)), String(l.status), h('code', null, l.request_id ?? '')]), 'No matches.'));
  }
  try {
    rows = await all('v1/audit', 1000);
    show();
  } catch (p) {
    failed(p);
  }
}
