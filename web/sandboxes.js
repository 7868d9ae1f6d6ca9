// The sandboxes and their actions.

import { all, call, now } from './api.js';
import { acting, button, h, money, sure, table, when } from './dom.js';
import { refill } from './focus.js';

export async function open(body, { failed }) {
  const error = h('div');
  const act = acting(error, () => load());
  const list = h('div');
  const ended = h('input', { type: 'checkbox', onchange: () => load() });
  body.replaceChildren(h('label', { class: 'choice' }, ended, h('span', null, 'Show ended sandboxes, too')), error, list);
  async function load() {
    try {
      const rows = await all(`v1/sandboxes?all=${ended.checked}`);
      refill(list, table('Sandboxes', ['Sandbox', 'Status', 'Image', 'Isolation', 'Created', 'Cost', ''], rows.map((b) => [
        h('a', { href: `#/b/${b.id}` }, b.name || b.id), b.reason ? `${b.status}: ${b.reason}` : b.status, b.image, b.isolation, when(b.created_at), money(b.cost_usd),
        !b.ended_at && h('div', { class: 'row' }, button('Extend by an hour', () => act(() => call('POST', `v1/sandboxes/${b.id}/extend`, { timeout_seconds: Math.ceil((new Date(b.expires_at) - (b.suspended_at ? new Date(b.suspended_at) : now())) / 1000) + 3600 })), { class: 'small' }),
          b.status === 'suspended' && button('Wake', () => act(() => call('POST', `v1/sandboxes/${b.id}/wake`, {}, { patience: 300e3 })), { class: 'small' }),
          b.status === 'running' && button('Suspend', () => act(() => call('POST', `v1/sandboxes/${b.id}/suspend`, {}, { patience: 300e3 })), { class: 'small' }),
          button('Snapshot', () => act(() => call('POST', `v1/sandboxes/${b.id}/snapshot`, {}, { patience: 300e3 })), { class: 'small' }),
          button('End', () => sure(`End ${b.name || b.id}?`, b.snapshot_on_end ? 'Its files are kept as a snapshot.' : 'Its files that are not in a volume are deleted.', 'End it', () => act(() => call('DELETE', `v1/sandboxes/${b.id}`, undefined, { patience: 300e3 }))), { class: 'small danger', 'aria-label': `End ${b.name || b.id}` })),
      ]), 'There is no sandbox.'));
    } catch (p) {
      failed(p);
    }
  }
  await load();
}
