// API keys of programs. A key is shown when it is created, and never again.

import { all, call } from './api.js';
import { acting, button, copyButton, field, h, sure, table, when } from './dom.js';
import { refill } from './focus.js';

export async function open(body, { failed }) {
  const error = h('div');
  const act = acting(error, () => load());
  const list = h('div');
  const made = h('div', { role: 'status' });
  const name = h('input', { type: 'text', required: true, autocomplete: 'off', spellcheck: 'false', placeholder: 'purpose' });
  const days = h('input', { type: 'number', min: '0', step: 'any', placeholder: 'never' });
  const scopes = ['read', 'write', 'exec'].map((s) => [s, h('input', { type: 'checkbox', value: s, checked: true })]);
  const make = h('form', { class: 'inline' }, field('New key', name), field('Lifetime, days', days),
    h('fieldset', { class: 'row' }, h('legend', null, 'Scopes'), scopes.map(([s, box]) => h('label', { class: 'choice' }, box, h('span', null, s)))), h('button', { type: 'submit', class: 'primary' }, 'Create'));
  make.addEventListener('submit', (e) => {
    e.preventDefault();
    act(async () => {
      const key = await call('POST', 'v1/keys', { name: name.value.trim(), scopes: scopes.filter(([, b]) => b.checked).map(([s]) => s), expires_in_seconds: Number(days.value) * 86400 || undefined });
      const code = h('code', { class: 'secret' }, key.key);
      made.replaceChildren(h('div', { class: 'hint' }, h('p', null, h('b', null, `The key ${key.name}. `), 'Keep it now: it is shown this once.'), h('p', null, code), h('div', { class: 'row' },
        copyButton(() => key.key, code), button('I have it', () => made.replaceChildren(), { class: 'small' }))));
      make.reset();
    });
  });
  body.replaceChildren(make, error, made, list);
  async function load() {
    try {
      refill(list, table('Keys', ['Key', 'Scopes', 'Role', 'Created', 'Expires', 'Last used', ''], (await all('v1/keys')).map((k) => [k.name, (k.scopes ?? []).join(', '), k.role, when(k.created_at),
        k.expires_at ? new Date(k.expires_at).toLocaleDateString() : 'never', when(k.last_used_at),
        button('Revoke', () => sure(`Revoke ${k.name}?`, 'Requests with this key are denied from now on.', 'Revoke it', () => act(() => call('DELETE', `v1/keys/${k.id}`))), { class: 'small danger', 'aria-label': `Revoke ${k.name}` })]), 'There is no key.'));
    } catch (p) {
      failed(p);
    }
  }
  await load();
}
