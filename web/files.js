// The files of the sandbox: a tree, and the selected file, to read, change, download or replace.

import { call, Problem, problemIn, url } from './api.js';
import { button, bytes, dialog, field, fill, h, plain, problemBox, sure, when } from './dom.js';
import { files as drafts, kept, newKey } from './drafts.js';
import { refill, take } from './focus.js';
import { openEditor } from './editor.js';
import { isPicture, mostPicture, pictureOf } from './picture.js';

const shownMost = 1 << 20; // maximum of bytes of a file that are shown

export async function open(body, { sandbox, session, failed }) {
  const id = await sandbox();
  if (!id) {
    body.replaceChildren(h('p', null, 'There is no sandbox yet.'));
    return undefined;
  }
  const at = (path, more = '') => `v1/sandboxes/${id}/files${more}?path=${encodeURIComponent(path)}`;
  const top = session?.dir || '/';
  let dir = top;
  let closeEditor = () => {};
  const where = h('input', { type: 'text', 'aria-label': 'Directory', value: dir, spellcheck: 'false', autocomplete: 'off' });
  const list = h('ul', { class: 'tree', role: 'list' });
  const drop = h('div', { class: 'drop' }, list);
  const pick = h('input', { type: 'file', multiple: true, hidden: true, onchange: () => upload([...pick.files]) });
  const result = h('div', { role: 'status' });
  const file = h('div', { class: 'opened' });
  const found = h('div');
  const wanted = h('input', { type: 'search', 'aria-label': 'Search names and texts', placeholder: 'Search names and texts', required: true });
  const search = h('form', { class: 'inline', role: 'search' }, wanted, h('button', { type: 'submit' }, 'Search'));
  search.addEventListener('submit', (e) => {
    e.preventDefault();
    found.replaceChildren(h('p', { class: 'meta', role: 'status' }, 'Searching…'));
    const close = () => {
      found.replaceChildren();
      take(wanted);
    };
    tell(async () => (await import('./filesearch.js')).searchFiles(found, { box: id, dir, text: wanted.value, open: openAt, close })).then(() => { if (result.childElementCount > 0) found.replaceChildren(); });
  });
  const go = h('form', { class: 'inline' }, where, h('button', { type: 'submit' }, 'Go'));
  go.addEventListener('submit', (e) => {
    e.preventDefault();
    enter(where.value || '/');
  });
  body.replaceChildren(h('h2', null, 'Files'), go, h('div', { class: 'row' }, button('Up', () => enter(join(dir, '..')), { class: 'small' }), button('Refresh', () => enter(dir), { class: 'small' }),
    button('New file', () => ask('New file', (name) => edit(join(dir, name), { text: '', tag: null })), { class: 'small' }), button('New directory', () => ask('New directory', async (name) => {
      await call('POST', `v1/sandboxes/${id}/files/mkdir`, { path: join(dir, name) });
      enter(dir);
    }), { class: 'small' }), button('Upload', () => pick.click(), { class: 'small' }), pick), search, result, found, drop, file);

  function ask(label, then) {
    const name = h('input', { type: 'text', required: true, autofocus: true });
    const form = h('form', null, field('Name', name), h('div', { class: 'row' }, h('button', { type: 'submit', class: 'primary' }, 'Create it')));
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
      refill(list, ...rows.map((f) => h('li', null,
        button([h('span', { class: 'name' }, plain(f.kind === 'directory' ? `${f.name}/` : f.name)), f.kind === 'symlink' && h('span', { class: 'meta name' }, `→ ${plain(f.link)}`)], () => (f.kind === 'directory' ? enter(join(dir, f.name)) : read(join(dir, f.name), f)),
          { class: 'entry', title: f.kind, 'data-name': f.name }), kept(`${drafts}${id}:${join(dir, f.name)}`) && h('span', { class: 'meta' }, 'unsaved changes'), h('span', { class: 'meta' }, f.kind === 'directory' ? '' : bytes(f.size_bytes)), h('span', { class: 'meta' }, when(f.modified_at)),
        f.kind === 'directory' && button('Download', () => tell(() => archive(join(dir, f.name))), { class: 'small', 'aria-label': `Download ${plain(f.name)}` }),
        button('Delete', () => sure(`Delete ${plain(f.name)}?`, f.kind === 'directory' ? 'The directory and its contents are deleted.' : 'The file is deleted.', 'Delete it', () => tell(async () => {
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
      if (isPicture(path) && about.size_bytes <= mostPicture) {
        await picture(path);
        return;
      }
      if (about.size_bytes > shownMost) {
        show(path, `It has ${bytes(about.size_bytes)}, more than this view shows.`);
        return;
      }
      const now = await fetchText(path);
      if (now?.text === undefined) show(path, now ? 'It is not text.' : 'It was deleted.');
      else edit(path, now);
    });
  }

  // openAt opens a path, at a line of its text.
  async function openAt(path, line) {
    const about = await tell(() => call('GET', at(path, '/stat')));
    if (!about) return;
    if (about.kind === 'directory') {
      await enter(path);
      return;
    }
    await read(path, about);
    const text = file.querySelector('textarea.code');
    if (!line || !text) return;
    const before = text.value.split('\n').slice(0, line);
    const end = before.join('\n').length;
    text.focus();
    text.setSelectionRange(end - before.at(-1).length, end);
    text.scrollTop = Math.max(0, text.scrollHeight * (line - 5) / text.value.split('\n').length);
  }

  // picture shows a picture in place of a text.
  async function picture(path) {
    const resp = await fetch(url(at(path)), { cache: 'no-store' });
    if (!resp.ok) throw await problemIn(resp);
    show(path, await pictureOf(await resp.blob(), path.split('/').pop()).catch(() => 'The browser cannot show this picture.'));
  }

  // archive downloads a directory as a tar archive, which is made in the sandbox.
  async function archive(path) {
    const name = path.split('/').pop();
    const made = `/tmp/.download-${newKey()}.tar.gz`;
    result.replaceChildren(h('p', null, `Packing ${plain(name)}…`));
    try {
      const r = await call('POST', `v1/sandboxes/${id}/exec`, { args: ['tar', '-C', join(path, '..'), '-czf', made, '--', name], timeout_seconds: 600 }, { patience: 660e3 });
      if (r.returncode !== 0) throw new Problem({ detail: `tar failed: ${(r.stderr || r.reason || '').trim().slice(0, 500)}` });
      const resp = await fetch(url(at(made)), { cache: 'no-store' });
      if (!resp.ok) throw await problemIn(resp);
      const href = URL.createObjectURL(await resp.blob());
      h('a', { href, download: `${name}.tar.gz` }).click();
      setTimeout(() => URL.revokeObjectURL(href), 60e3);
      result.replaceChildren(h('p', null, `Downloaded ${plain(name)}.tar.gz.`));
    } finally {
      call('DELETE', at(made)).catch(() => {}); // the sandbox's end removes it, too
    }
  }

  // fetchText returns the text and the tag of a file. The text is missing if the file is not text. The result
  // is null if the file does not exist.
  async function fetchText(path) {
    const resp = await fetch(url(at(path)), { cache: 'no-store' });
    if (resp.status === 404) return null;
    if (!resp.ok) throw await problemIn(resp);
    const tag = resp.headers.get('ETag');
    try {
      return { tag, text: new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(await resp.arrayBuffer()) };
    } catch {
      return { tag };
    }
  }

  // edit opens a text in the editor.
  function edit(path, { text, tag }) {
    closeEditor();
    closeEditor = openEditor(file, { path, text, tag, draft: `${id}:${path}`, href: url(at(path)).href }, { write: put, fetchText, saved: enterQuietly, tell, closed: () => take(list.querySelector(`[data-name="${CSS.escape(path.split('/').pop())}"]`) ?? where) });
  }

  // show shows a picture, or says why a file is not shown.
  function show(path, why) {
    closeEditor();
    closeEditor = () => {};
    fill(file, [h('h3', null, h('code', null, path)), ...(Array.isArray(why) ? why : [h('p', null, why)]), h('div', { class: 'row' },
      h('a', { class: 'button', href: url(at(path)).href, download: path.split('/').pop() }, 'Download'), button('Close', () => {
        file.replaceChildren();
        take(where);
      }))]);
  }
  async function enterQuietly() {
    const said = [...result.childNodes];
    await enter(dir);
    result.replaceChildren(...said);
  }

  // put stores a file under a condition and returns its tag.
  async function put(path, content, condition = {}) {
    const resp = await fetch(url(at(path)), { method: 'PUT', headers: { 'Content-Type': 'application/octet-stream', ...condition }, body: content });
    if (!resp.ok) throw await problemIn(resp);
    return resp.headers.get('ETag') ?? (await call('GET', `${at(path, '/stat')}&follow=true`)).etag;
  }
  // upload uploads files. It replaces existing files only if the user confirms.
  async function upload(chosen, condition = { 'If-None-Match': '*' }) {
    const there = [];
    await tell(async () => {
      let done = 0;
      for (const f of chosen) {
        result.replaceChildren(h('p', null, `Uploading ${f.name}, ${done + 1} of ${chosen.length}…`));
        try {
          await put(join(dir, f.name), f, condition);
          done++;
        } catch (p) {
          if (p.status !== 412) throw p;
          there.push(f);
        }
      }
      result.replaceChildren(h('p', null, `Uploaded ${done} ${done === 1 ? 'file' : 'files'} to ${dir}.`));
    });
    pick.value = '';
    enterQuietly();
    if (there.length > 0) {
      sure(there.length === 1 ? `Replace ${plain(there[0].name)}?` : `Replace ${there.length} files?`, `These exist already: ${there.map((f) => plain(f.name)).join(', ')}.`, 'Replace them', () => upload(there, {}));
    }
  }
  for (const name of ['dragenter', 'dragover', 'dragleave', 'drop']) {
    drop.addEventListener(name, (e) => {
      e.preventDefault();
      drop.classList.toggle('over', name === 'dragenter' || name === 'dragover');
      if (name === 'drop' && e.dataTransfer.files.length > 0) upload([...e.dataTransfer.files]);
    });
  }
  await enter(dir);
  if (list.childElementCount === 0 && dir !== '/') await enter('/');
  return () => closeEditor();
}

// join resolves a name in a directory; ".." goes up.
function join(dir, name) {
  const parts = dir.split('/').filter(Boolean);
  if (name === '..') parts.pop();
  else parts.push(name);
  return `/${parts.join('/')}`;
}
