// The files of the sandbox: a tree, and the file that was chosen in it, to read, change, fetch or replace.

import { call, problemIn, url } from './api.js';
import { button, bytes, dialog, field, h, plain, problemBox, sure, when } from './dom.js';

const shownMost = 1 << 20; // bytes of a file that is shown

export async function open(body, { sandbox, session, failed }) {
  const id = await sandbox();
  if (!id) {
    body.replaceChildren(h('p', null, 'There is no sandbox yet.'));
    return undefined;
  }
  const at = (path, more = '') => `v1/sandboxes/${id}/files${more}?path=${encodeURIComponent(path)}`;
  const top = session?.dir || '/';
  let dir = top;
  const where = h('input', { type: 'text', 'aria-label': 'Directory', value: dir, spellcheck: 'false', autocomplete: 'off' });
  const list = h('ul', { class: 'tree', role: 'list' });
  const drop = h('div', { class: 'drop' }, list);
  const pick = h('input', { type: 'file', multiple: true, hidden: true, onchange: () => upload(pick.files) });
  const result = h('div', { role: 'status' });
  const file = h('div', { class: 'opened' });
  const go = h('form', { class: 'inline' }, where, h('button', { type: 'submit' }, 'Go'));
  go.addEventListener('submit', (e) => {
    e.preventDefault();
    enter(where.value || '/');
  });
  body.replaceChildren(h('h2', null, 'Files'), go, h('div', { class: 'row' }, button('Up', () => enter(join(dir, '..')), { class: 'small' }), button('Refresh', () => enter(dir), { class: 'small' }),
    button('New file', () => ask('New file', (name) => show(join(dir, name), '')), { class: 'small' }), button('New directory', () => ask('New directory', async (name) => {
      await call('POST', `v1/sandboxes/${id}/files/mkdir`, { path: join(dir, name) });
      enter(dir);
    }), { class: 'small' }), button('Upload', () => pick.click(), { class: 'small' }), pick), result, drop, file);

  function ask(label, then) {
    const name = h('input', { type: 'text', required: true, autofocus: true });
    const form = h('form', null, field('Name', name), h('div', { class: 'row' }, h('button', { type: 'submit', class: 'primary' }, 'Make it')));
    const el = dialog(label, h('h2', null, label), form);
    form.addEventListener('submit', (e) => {
      e.preventDefault();
      el.close();
      tell(() => then(name.value));
    });
  }
  async function tell(what) {
    result.replaceChildren();
    try {
      return await what();
    } catch (p) {
      if (p.status === 401) failed(p);
      result.replaceChildren(problemBox(p));
      return undefined;
    }
  }

  async function enter(path) {
    await tell(async () => {
      const rows = [];
      for (let cursor = ''; rows.length < 5000;) {
        const page = await call('GET', `${at(path, '/list')}&limit=1000${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
        rows.push(...page.data);
        cursor = page.next_cursor;
        if (!cursor) break;
      }
      dir = path;
      where.value = path;
      rows.sort((a, b) => (b.kind === 'directory') - (a.kind === 'directory') || a.name.localeCompare(b.name));
      list.replaceChildren(...rows.map((f) => h('li', null,
        button([h('span', { class: 'name' }, plain(f.kind === 'directory' ? `${f.name}/` : f.name)), f.kind === 'symlink' && h('span', { class: 'meta name' }, `→ ${plain(f.link)}`)], () => (f.kind === 'directory' ? enter(join(dir, f.name)) : read(join(dir, f.name), f)),
          { class: 'entry', title: f.kind }), h('span', { class: 'meta' }, f.kind === 'directory' ? '' : bytes(f.size_bytes)), h('span', { class: 'meta' }, when(f.modified_at)),
        button('Delete', () => sure(`Delete ${plain(f.name)}?`, f.kind === 'directory' ? 'The directory and all that is in it is deleted.' : 'The file is deleted.', 'Delete it', () => tell(async () => {
          await call('DELETE', `${at(join(dir, f.name))}&recursive=true`);
          enter(dir);
        })), { class: 'small danger', 'aria-label': `Delete ${plain(f.name)}` }))));
      if (rows.length === 0) list.append(h('li', { class: 'meta' }, 'The directory is empty. Drop files here.'));
    });
  }

  async function read(path, about) {
    await tell(async () => {
      if (about.kind === 'symlink' && (await call('GET', `${at(path, '/stat')}&follow=true`)).kind === 'directory') {
        enter(path);
        return;
      }
      if (about.size_bytes > shownMost) {
        show(path, null, `It has ${bytes(about.size_bytes)}, more than is shown here.`);
        return;
      }
      const resp = await fetch(url(at(path)), { cache: 'no-store' });
      if (!resp.ok) throw await problemIn(resp);
      try {
        show(path, new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(await resp.arrayBuffer()));
      } catch {
        show(path, null, 'It is no text.');
      }
    });
  }

  // show opens a file; text null is of what cannot be shown.
  function show(path, text, why) {
    const edit = h('textarea', { class: 'code', 'aria-label': `Contents of ${path}`, spellcheck: 'false', rows: '18' });
    edit.value = text ?? '';
    const save = button('Save', () => tell(async () => {
      await put(path, edit.value);
      result.replaceChildren(h('p', null, `Saved ${path}.`));
      if (path.startsWith(dir)) enterQuietly();
    }), { class: 'primary' });
    edit.addEventListener('keydown', (e) => {
      if (e.key === 's' && (e.ctrlKey || e.metaKey)) {
        e.preventDefault();
        save.click();
      }
    });
    file.replaceChildren(h('h3', null, h('code', null, path)), text === null ? h('p', null, why) : edit, h('div', { class: 'row' },
      text !== null && save, h('a', { class: 'button', href: url(at(path)).href, download: path.split('/').pop() }, 'Download'), button('Close', () => file.replaceChildren())));
    if (text !== null) edit.focus();
  }
  async function enterQuietly() {
    const said = [...result.childNodes];
    await enter(dir);
    result.replaceChildren(...said);
  }

  async function put(path, content) {
    const resp = await fetch(url(at(path)), { method: 'PUT', headers: { 'Content-Type': 'application/octet-stream' }, body: content });
    if (!resp.ok) throw await problemIn(resp);
  }
  async function upload(files) {
    await tell(async () => {
      let done = 0;
      for (const f of files) {
        result.replaceChildren(h('p', null, `Sending ${f.name}, ${done + 1} of ${files.length}…`));
        await put(join(dir, f.name), f);
        done++;
      }
      result.replaceChildren(h('p', null, `Sent ${done} ${done === 1 ? 'file' : 'files'} to ${dir}.`));
    });
    pick.value = '';
    enterQuietly();
  }
  for (const name of ['dragenter', 'dragover', 'dragleave', 'drop']) {
    drop.addEventListener(name, (e) => {
      e.preventDefault();
      drop.classList.toggle('over', name === 'dragenter' || name === 'dragover');
      if (name === 'drop' && e.dataTransfer.files.length > 0) upload(e.dataTransfer.files);
    });
  }
  await enter(dir);
  if (list.childElementCount === 0 && dir !== '/') await enter('/');
  return undefined;
}

// join goes from a directory to a name in it; ".." goes up.
function join(dir, name) {
  const parts = dir.split('/').filter(Boolean);
  if (name === '..') parts.pop();
  else parts.push(name);
  return `/${parts.join('/')}`;
}
