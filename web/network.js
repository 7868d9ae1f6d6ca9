// The sandbox's network policy and its refused connections. A refused connection can be allowed for the life of
// the sandbox.

import { call, follow, poll } from './api.js';
import { button, field, h, problemBox, table, when } from './dom.js';
import { refill } from './focus.js';

const modes = { '': 'The internet', default: 'The internet', allow: 'Only listed hosts', none: 'Nothing' };

// What is shown of used credentials: those of the last events, and so many.
const mostEvents = 1000;
const mostUses = 100;

export async function open(body, { sandbox, failed }) {
  const id = await sandbox();
  if (!id) {
    body.replaceChildren(h('p', null, 'There is no sandbox yet.'));
    return undefined;
  }
  const policy = h('div');
  const denied = h('div');
  const used = h('div', { class: 'uses' });
  const error = h('div');
  const entry = h('input', { type: 'text', placeholder: '*.example.com:443 or 10.1.2.3', autocomplete: 'off', spellcheck: 'false' });
  const form = h('form', { class: 'inline' }, field('Allow until the sandbox ends', entry), h('button', { type: 'submit' }, 'Allow'));
  form.addEventListener('submit', (e) => {
    e.preventDefault();
    if (entry.value.trim() !== '') allow(entry.value.trim());
  });
  body.replaceChildren(h('h2', null, 'Network'), policy, form, error, h('h3', null, 'Refused connections'), denied, h('h3', null, 'Used credentials'), used);
  let box;
  let shown = '';

  async function allow(what) {
    error.replaceChildren();
    const net = box.network;
    const mode = net.mode === 'none' ? 'allow' : net.mode;
    try {
      box = await call('POST', `v1/sandboxes/${id}/network`, { mode, allow: [...new Set([...(net.allow ?? []), what])], deny: (net.deny ?? []).filter((d) => d !== what) });
      entry.value = '';
      show(true);
    } catch (p) {
      error.replaceChildren(problemBox(p));
    }
  }

  function show(force) {
    const now = JSON.stringify([box.network, box.denials, box.status]);
    if (now === shown && !force) return;
    shown = now;
    const list = (label, all) => all?.length > 0 && h('p', null, h('b', null, `${label}: `), all.map((a) => h('code', { class: 'chip' }, a)));
    policy.replaceChildren(h('p', null, h('b', null, 'Network policy: '), modes[box.network.mode ?? ''] ?? box.network.mode), ...[list('Allowed', box.network.allow), list('Denied', box.network.deny)].filter(Boolean));
    form.hidden = Boolean(box.ended_at);
    const allowed = new Set(box.network.allow);
    refill(denied, table('Refused connections', ['Host', 'Reason', 'Time', 'Count'], [...(box.denials ?? [])].reverse().map((d) => {
      const name = d.domain || d.address || '';
      const to = name && d.port && d.protocol !== 'dns' ? `${name.includes(':') ? `[${name}]` : name}:${d.port}` : name;
      const may = to && !box.ended_at && (allowed.has(to) ? h('small', null, 'allowed now') : button('Allow', () => allow(to), { class: 'small', 'aria-label': `Allow until the sandbox ends: ${to}` }));
      return [h('div', null, h('p', null, h('code', null, `${to || '?'} (${d.protocol})`)), may), d.reason, when(d.time), String(d.count)];
    }), 'No connection was refused.'));
  }

  const uses = [];
  function showUses() {
    refill(used, table('Used credentials', ['Request', 'Secret', 'Result', 'Time', 'Count'], [...uses].reverse().map((u) => [h('code', null, `${u.method} ${u.host}${u.path}`.trim()), u.secret, u.refused || String(u.status ?? 'no answer'), when(u.time), String(u.count ?? 1)]), 'No request had the value of a secret.'));
  }
  const unfollow = follow(`v1/events?stream=${id}&tail=${mostEvents}`, {
    event: (name, e) => {
      if (!name.startsWith('credential.')) return;
      uses.push(e.use);
      uses.splice(0, uses.length - mostUses);
      showUses();
    },
    state: () => {}, problem: () => {},
  });

  async function load() {
    try {
      box = await call('GET', `v1/sandboxes/${id}`);
      show();
    } catch (p) {
      stop();
      failed(p);
    }
  }
  const stop = poll(() => (body.contains(document.activeElement) ? null : load()), 2000);
  load();
  showUses();
  return () => {
    unfollow();
    stop();
  };
}
