// Images, and the registered repositories with images: the age of the images, how far they are behind, and the
// log of a running build.

import { all, call, follow } from './api.js';
import { acting, button, bytes, field, h, ms, problemBox, sure, table, when } from './dom.js';
import { refill } from './focus.js';

export async function open(body, { failed }) {
  const error = h('div');
  const act = acting(error, () => load());
  const [images, repos, log, builds] = [h('div'), h('div'), h('pre', { class: 'build', tabindex: '0', role: 'group', 'aria-label': 'Log of the build', hidden: true }), h('div')];
  const address = h('input', { type: 'text', required: true, placeholder: 'https://github.com/…', autocomplete: 'off', spellcheck: 'false' });
  const add = h('form', { class: 'inline' }, field('Register a repository', address), h('button', { type: 'submit' }, 'Register'));
  add.addEventListener('submit', (e) => {
    e.preventDefault();
    act(() => call('POST', 'v1/repos', { url: address.value.trim() }));
  });
  body.replaceChildren(error, h('h2', null, 'Repositories'), add, repos, builds, log, h('h2', null, 'Images'), images);
  let unfollow = () => {};

  // watch shows the builds of a repository, and the log of the running one live.
  async function watch(r) {
    unfollow();
    log.hidden = false;
    log.textContent = '';
    const past = async () => builds.replaceChildren(h('h3', null, `Builds of ${r.name}`), table('Builds', ['Started', 'Reason', 'Mode', 'Status', 'Duration'],
      (await call('GET', `v1/repos/${r.id}/builds?limit=20`)).data.map((b) => [when(b.started_at), b.cause, b.mode ?? '–', b.error ? `${b.failed_stage}: ${b.error}` : b.status, ms(b.duration_secs * 1000)]), 'There is no build yet.'));
    await act(past);
    unfollow = follow(`v1/repos/${r.id}/events?tail=500`, {
      state() {},
      problem(p) { error.replaceChildren(problemBox(p)); },
      event(name, e) {
        if (name === 'repo.stage') log.append(`── ${e.stage}${e.command ? `: ${e.command}` : ''}\n`);
        else if (name === 'repo.log') log.append(e.text);
        else if (name === 'repo.build_ended') {
          log.append(`── ${e.build?.status ?? 'ended'}\n`);
          past();
        }
        log.scrollTop = log.scrollHeight;
      },
    });
  }

  async function load() {
    try {
      const [known, kept] = await Promise.all([all('v1/images'), all('v1/repos').catch(() => [])]);
      refill(repos, table('Repositories', ['Repository', 'Status', 'Built', 'Checked', 'Commits behind', 'Commit', ''], kept.map((r) => [r.name, r.reason ? `${r.status}: ${r.reason}` : r.status, when(r.built_at), when(r.checked_at), r.image_id ? h('span', { class: 'behind' }, r.commits_behind) : '–',
        h('code', null, (r.commit ?? '').slice(0, 10) || '–'), h('div', { class: 'row' }, button('Log', () => watch(r), { class: 'small', 'aria-label': `Log of ${r.name}` }),
          button('Build', () => act(async () => {
            const built = call('POST', `v1/repos/${r.id}/build`, {}, { patience: 5000 }).catch((p) => { if (p.code !== 'unavailable') throw p; });
            await Promise.all([built, watch(r)]);
          }), { class: 'small' }),
          button('Unregister', () => sure(`Unregister ${r.name}?`, 'Its unused images are deleted.', 'Unregister it', () => act(() => call('DELETE', `v1/repos/${r.id}`))), { class: 'small danger' }))]), 'No repository is registered.'));
      refill(images, table('Images', ['Image', 'Kind', 'Size', 'Built', 'Duration', 'Missing', ''], known.map((i) => [h('span', null, i.names?.length ? i.names.join(', ') : i.id), i.kind, bytes(i.size_bytes), when(i.built_at), ms((i.build_seconds ?? 0) * 1000),
        (i.missing ?? []).map((m) => m.name).join(', ') || '–',
        button('Delete', () => sure(`Delete ${i.names?.[0] ?? i.id}?`, 'New sandboxes can no longer use it.', 'Delete it', () => act(() => call('DELETE', `v1/images/${i.id}`))), { class: 'small danger', 'aria-label': `Delete ${i.names?.[0] ?? i.id}` })]), 'There is no image yet. The first sandbox builds one.'));
    } catch (p) {
      failed(p);
    }
  }
  await load();
  return () => unfollow();
}
