// Secrets by name. Their values go to the server and never come back.

import { all, call } from './api.js';
import { acting, button, field, h, sure, table, when } from './dom.js';
import { refill } from './focus.js';

export async function open(body, { failed }) {
  const error = h('div');
  const act = acting(error, () => load());
  const list = h('div');
  const input = (attrs) => h('input', { type: 'text', required: true, autocomplete: 'off', spellcheck: 'false', ...attrs });
  const [name, variable, value] = [input({ placeholder: 'anthropic' }), input({ placeholder: 'ANTHROPIC_API_KEY' }), input({ type: 'password', autocomplete: 'new-password' })];
  const add = h('form', { class: 'inline' }, field('Secret', name), field('Variable', variable), field('Value', value), h('button', { type: 'submit', class: 'primary' }, 'Set'));
  add.addEventListener('submit', (e) => {
    e.preventDefault();
    const [secret, key] = [name.value.trim(), variable.value.trim()];
    const set = () => act(async () => {
      await call('POST', 'v1/secrets', { name: secret, pairs: { [key]: value.value }, mode: known.has(secret) ? 'merge' : undefined });
      add.reset();
    });
    if (!known.get(secret)?.includes(key)) set();
    else sure(`Replace ${key} of ${secret}?`, 'Its value is deleted. Running sandboxes keep it.', 'Replace it', set);
  });
  body.replaceChildren(h('p', { class: 'meta' }, 'Agents and sandboxes get them by name. Their values are never shown again.'), add, error, list);
  let known = new Map(); // variables of the stored secrets, by name
  async function load() {
    try {
      const rows = await all('v1/secrets');
      known = new Map(rows.map((s) => [s.name, s.keys]));
      refill(list, table('Secrets', ['Secret', 'Variables', 'From', 'Changed', 'Last used', ''], rows.map((s) => [s.name, s.keys.map((k) => h('code', { class: 'chip' }, k)).reduce((span, k) => (span.append(k), span), h('span')),
        s.origin === 'stored' ? 'stored' : 'the server\'s environment', when(s.updated_at), when(s.last_used_at),
        s.origin === 'stored' && button('Delete', () => sure(`Delete ${s.name}?`, 'Running sandboxes keep it.', 'Delete it', () => act(() => call('DELETE', `v1/secrets/${encodeURIComponent(s.name)}`))), { class: 'small danger', 'aria-label': `Delete ${s.name}` })]), 'There is no secret.'));
    } catch (p) {
      failed(p);
    }
  }
  await load();
}
