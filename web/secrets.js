// Secrets by name. Their values go to the server and never come back.

import { all, call } from './api.js';
import { acting, button, dialog, field, h, sure, table, when } from './dom.js';
import { refill } from './focus.js';
import { logins } from './logins.js';

// placesOf returns the hosts of a binding as text, one a line.
const placesOf = (binding) => (binding?.hosts ?? []).map((p) => [p.host, p.inject].filter(Boolean).join(' ')).join('\n');

// bindingOf returns the binding of a text: hosts, one a line, or the name of a known service. before keeps its rules.
function bindingOf(text, before) {
  const places = text.split('\n').map((line) => line.trim()).filter(Boolean);
  if (places.length === 1 && /^[a-z0-9-]+$/.test(places[0])) return { ...before, hosts: undefined, preset: places[0] };
  return places.length === 0 ? {} : { ...before, hosts: places.map((line) => ({ host: line.split(/\s+/, 1)[0], inject: line.replace(/^\S+\s*/, '') || undefined })) };
}

// bind asks for the hosts of a secret.
function bind(s, act) {
  const hosts = h('textarea', { rows: '6', spellcheck: 'false', placeholder: 'api.example.org bearer' });
  hosts.value = placesOf(s.binding);
  const form = h('form', null, field('Hosts', hosts, 'A domain on each line, or "*.example.org" for all below it. After it may stand how requests without a credential get the value, such as bearer. Or the name of a service, such as github. Without a host, new sandboxes have the value.'),
    h('div', { class: 'row' }, h('button', { type: 'submit', class: 'primary' }, 'Save'), button('Cancel', () => el.close())));
  form.addEventListener('submit', (e) => {
    e.preventDefault();
    el.close();
    act(() => call('POST', 'v1/secrets', { name: s.name, pairs: {}, mode: 'merge', binding: bindingOf(hosts.value, s.binding) }));
  });
  const el = dialog(`Hosts of ${s.name}`, h('h2', null, `Hosts of ${s.name}`), form);
}

export async function open(body, { failed }) {
  const error = h('div');
  const act = acting(error, () => load());
  const list = h('div');
  const input = (attrs) => h('input', { type: 'text', required: true, autocomplete: 'off', spellcheck: 'false', ...attrs });
  const [name, variable, value] = [input({ placeholder: 'anthropic' }), input({ placeholder: 'ANTHROPIC_API_KEY' }), input({ type: 'password', autocomplete: 'new-password' })];
  const service = h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', placeholder: 'api.example.org, or github' });
  const add = h('form', { class: 'inline' }, field('Secret', name), field('Variable', variable), field('Value', value), field('Only for the host', service), h('button', { type: 'submit', class: 'primary' }, 'Set'));
  add.addEventListener('submit', (e) => {
    e.preventDefault();
    const [secret, key] = [name.value.trim(), variable.value.trim()];
    const set = () => act(async () => {
      await call('POST', 'v1/secrets', { name: secret, pairs: { [key]: value.value }, mode: known.has(secret) ? 'merge' : undefined, binding: service.value.trim() ? bindingOf(service.value.replaceAll(',', '\n')) : undefined });
      add.reset();
    });
    if (!known.get(secret)?.includes(key)) set();
    else sure(`Replace ${key} of ${secret}?`, 'Its value is deleted. Running sandboxes keep it.', 'Replace it', set);
  });
  const [accounts, loadLogins] = logins(() => load());
  body.replaceChildren(h('p', { class: 'meta' }, 'Agents and sandboxes get them by name. Their values are never shown again. Of a secret for certain hosts, sandboxes have a placeholder: the server puts the value into their requests to these hosts.'), add, error, list, accounts);
  let known = new Map(); // variables of the stored secrets, by name
  async function load() {
    try {
      const rows = await all('v1/secrets');
      known = new Map(rows.map((s) => [s.name, s.keys]));
      refill(list, table('Secrets', ['Secret', 'Variables', 'Goes to', 'From', 'Changed', 'Last used', ''], rows.map((s) => [s.name, s.keys.map((k) => h('code', { class: 'chip' }, k)).reduce((span, k) => (span.append(k), span), h('span')),
        s.binding ? h('code', null, s.binding.hosts.slice(0, 3).map((p) => p.host).join(', ') + (s.binding.hosts.length > 3 ? ', …' : '')) : 'sandboxes',
        s.origin === 'stored' ? 'stored' : 'the server\'s environment', when(s.updated_at), when(s.last_used_at),
        s.origin === 'stored' && h('div', { class: 'row' }, button('Hosts', () => bind(s, act), { class: 'small', 'aria-label': `Hosts of ${s.name}` }), button('Delete', () => sure(`Delete ${s.name}?`, s.binding ? 'Requests of sandboxes with its placeholder no longer get the value.' : 'Running sandboxes keep it.', 'Delete it', () => act(() => call('DELETE', `v1/secrets/${encodeURIComponent(s.name)}`))), { class: 'small danger', 'aria-label': `Delete ${s.name}` }))]), 'There is no secret.'));
      await loadLogins();
    } catch (p) {
      failed(p);
    }
  }
  await load();
}
