// Logins to providers, which the server keeps and renews.

import { all, call } from './api.js';
import { acting, button, dialog, field, h, problemBox, sure, table, when } from './dom.js';
import { refill } from './focus.js';

const states = { none: 'not logged in', ready: 'ready', expired: 'the token has ended', failed: 'no longer accepted' };

// logins returns the part of the view with the logins, and a function that loads them. changed is called after a change.
export function logins(changed) {
  const error = h('div');
  const list = h('div');
  const act = acting(error, changed);
  async function load() {
    const rows = await all('v1/logins');
    refill(list, table('Logins', ['Login', 'Status', 'Renewed', 'Last used', ''], rows.map((l) => [l.title || l.provider, l.reason || states[l.state] || l.state, when(l.renewed_at), when(l.last_used_at),
      h('div', { class: 'row' }, button(l.state === 'none' ? 'Log in' : 'Log in again', () => act(() => begin(l, changed)), { class: 'small', 'aria-label': `Log in to ${l.provider}` }),
        l.state !== 'none' && button('Log out', () => sure(`Log out of ${l.provider}?`, 'Requests of sandboxes with its placeholder are refused from then on.', 'Log out', () => act(() => end(l))), { class: 'small danger', 'aria-label': `Log out of ${l.provider}` }))])));
  }
  return [h('section', null, h('h2', null, 'Logins'), h('p', { class: 'meta' }, 'Subscriptions, for agents in sandboxes. Sandboxes have a placeholder.'), error, list), load];
}

// begin begins a login, and shows what to do at the provider.
async function begin(l, changed) {
  const path = `v1/logins/${encodeURIComponent(l.provider)}`;
  const attempt = await call('POST', path, {});
  const problem = h('div');
  let closed = false;
  const code = h('input', { type: 'text', required: true, autocomplete: 'off', spellcheck: 'false' });
  const finish = async (body) => {
    problem.replaceChildren();
    try {
      await call('POST', `${path}/finish`, body, { patience: new Date(attempt.expires_at) - Date.now() + 60e3 });
      el.close();
      changed();
    } catch (p) {
      if (!closed) problem.replaceChildren(problemBox(p));
    }
  };
  const cancel = button('Cancel', () => el.close());
  const form = h('form', null, field('Code, or the address to which the browser was led', code), h('div', { class: 'row' }, h('button', { type: 'submit', class: 'primary' }, 'Log in'), cancel));
  form.addEventListener('submit', (e) => {
    e.preventDefault();
    finish({ code: code.value.trim() });
  });
  const el = dialog(`Log in to ${l.provider}`, h('h2', null, `Log in to ${l.title || l.provider}`), h('p', null, h('a', { href: attempt.url, target: '_blank', rel: 'noopener noreferrer' }, 'Open the page of the provider'), ', and allow the access.'),
    attempt.user_code ? h('p', null, 'Type this code there: ', h('code', null, attempt.user_code)) : form, problem, attempt.user_code && h('div', { class: 'row' }, cancel));
  el.addEventListener('close', () => { closed = true; });
  if (attempt.user_code) finish({});
}

async function end(l) {
  const done = await call('DELETE', `v1/logins/${encodeURIComponent(l.provider)}`);
  if (done && !done.revoked) throw { detail: `The login is deleted here, but ${done.reason}.`, remedy: done.remedy };
}
