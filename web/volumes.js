// Volumes, creating one, and syncing it with its S3 location.

import { all, call } from './api.js';
import { acting, button, bytes, dialog, field, fill, h, ms, plain, problemBox, sure, table, when } from './dom.js';
import { disable, refill } from './focus.js';

export async function open(body, { failed }) {
  const error = h('div');
  const act = acting(error, () => load());
  const list = h('div');
  const name = h('input', { type: 'text', required: true, autocomplete: 'off', spellcheck: 'false' });
  const make = h('form', { class: 'inline' }, field('New volume', name), h('button', { type: 'submit' }, 'Create'));
  make.addEventListener('submit', (e) => {
    e.preventDefault();
    act(async () => {
      await call('POST', 'v1/volumes', { name: name.value.trim() });
      name.value = '';
    });
  });
  body.replaceChildren(make, error, list);

  function sync(v) {
    const [bucket, prefix] = ['the server\'s own', 'none'].map((placeholder) => h('input', { type: 'text', placeholder, autocomplete: 'off' }));
    const direction = h('select', null, [['up', 'Volume to bucket'], ['down', 'Bucket to volume'], ['both', 'Both ways']].map(([value, label]) => h('option', { value }, label)));
    const dry = h('input', { type: 'checkbox', checked: true });
    const result = h('div', { role: 'status' });
    const go = h('button', { type: 'submit', class: 'primary' }, 'Sync');
    const form = h('form', null, field('Direction', direction), field('Bucket', bucket), field('Prefix', prefix), h('label', { class: 'choice' }, dry, h('span', null, 'Only show the plan')), result,
      h('div', { class: 'row' }, go, button('Close', () => el.close())));
    const el = dialog(`Sync ${v.name}`, h('h2', null, `Sync ${v.name}`), form);
    form.addEventListener('submit', async (e) => {
      e.preventDefault();
      const enable = disable([go]);
      result.replaceChildren(h('p', null, h('span', { class: 'spinner', 'aria-hidden': 'true' }), ' Syncing…'));
      try {
        const r = await call('POST', `v1/volumes/${encodeURIComponent(v.name)}/sync`, { direction: direction.value, bucket: bucket.value.trim() || undefined, prefix: prefix.value.trim() || undefined, dry_run: dry.checked }, { patience: 3600e3 });
        const paths = (label, columns, all, cells) => all?.length > 0 && [h('h3', null, label), table(label, columns, all.slice(0, 200).map(cells))];
        const reasons = (label, all) => paths(label, ['Path', 'Reason'], all, (f) => [h('code', null, plain(f.path)), f.reason]);
        fill(result, [h('p', null, `${r.place}: ${r.files} files, ${bytes(r.bytes)}, ${r.skipped} unchanged, ${r.conflicts} conflicts, ${r.failed} failed, in ${ms(r.duration_ms)}.`),
          paths('Plan', ['Action', 'Path', 'Size', 'Reason'], r.plan, (a) => [a.action, h('code', null, plain(a.path)), bytes(a.size_bytes ?? 0), a.conflict ?? a.reason]),
          reasons('Conflicts', r.decided), reasons('Failures', r.failures)].flat());
      } catch (p) {
        result.replaceChildren(problemBox(p));
      }
      enable();
    });
  }

  // A volume with files not yet uploaded to S3 is deleted only after the user has confirmed their loss.
  function remove(v) {
    const path = `v1/volumes/${encodeURIComponent(v.name)}`;
    sure(`Delete ${v.name}?`, 'The volume and its files are deleted.', 'Delete it', () => act(async () => {
      try {
        await call('DELETE', path);
      } catch (p) {
        if (p.status !== 409 || !p.remedy?.includes('force=true')) throw p;
        sure(`Delete ${v.name} anyway?`, `Some of its files would be lost: ${p.detail.replace(/\.$/, '')}.`, 'Delete it', () => act(() => call('DELETE', `${path}?force=true`)));
      }
    }));
  }

  async function load() {
    try {
      refill(list, table('Volumes', ['Volume', 'Size', 'Files', 'Created', ''], (await all('v1/volumes')).map((v) => [v.name, bytes(v.size_bytes), String(v.files), when(v.created_at), h('div', { class: 'row' },
        button('Sync', () => sync(v), { class: 'small', 'aria-label': `Sync ${v.name}` }),
        button('Delete', () => remove(v), { class: 'small danger', 'aria-label': `Delete ${v.name}` }))]), 'There is no volume.'));
    } catch (p) {
      failed(p);
    }
  }
  await load();
}
