// The editor of one file. It writes only the user's changes, and never overwrites later changes by others.

import { files, keep, kept } from './drafts.js';
import { button, dialog, h } from './dom.js';
import { lineDiff, lines } from './diff.js';
import { disable } from './focus.js';
import { merged, shownOf } from './text.js';

const pause = 300; // milliseconds from a keystroke until the draft is stored

// openEditor shows the text of a file in box. file has path, text, tag (of that version; null for a new file),
// href and name of the draft. write(path, text, headers) stores a text and returns its tag; fetchText(path)
// reads the file again; saved is called after each save, and closed when the user has closed the editor.
export function openEditor(box, file, { write, fetchText, saved, tell, closed }) {
  let { text: original, tag } = file;
  let fresh = tag === null; // a new file, which was never saved
  const name = `${files}${file.draft}`;
  const edit = h('textarea', { class: 'code', 'aria-label': `Contents of ${file.path}`, spellcheck: 'false', rows: '18' });
  const note = h('div', { role: 'status' });
  const discard = button('Discard changes', () => tell(async () => {
    const now = await fetchText(file.path); // it may have changed since the edits began
    if (now && now.text === undefined) note.replaceChildren(h('p', null, 'The file is no longer text. Close it to leave it as it is.'));
    else reset(now?.text ?? '', now?.tag ?? null, now ? 'Your changes were discarded.' : 'Your changes were discarded. The file no longer exists.');
  }), { hidden: true });
  edit.value = shownOf(original);

  const draft = read(kept(name));
  if (draft && draft.text !== shownOf(original)) {
    edit.value = draft.text;
    if (draft.tag !== tag) note.replaceChildren(h('p', null, 'The file has changed since you edited it. Save asks before it replaces the file.'));
    else note.replaceChildren(h('p', null, 'These are your unsaved changes.'));
    ({ original, tag } = draft);
  } else keep(name, '');

  const changed = () => edit.value !== shownOf(original) || tag === null;
  let timer;
  function store() {
    clearTimeout(timer);
    discard.hidden = !changed() || fresh;
    const empty = tag === null && edit.value === '';
    keep(name, changed() && !empty ? JSON.stringify({ original, tag, text: edit.value }) : '');
  }
  edit.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(store, pause);
  });
  edit.addEventListener('blur', store);
  addEventListener('pagehide', store);

  function reset(text, to, said) {
    [original, tag] = [text, to];
    edit.value = shownOf(text);
    store();
    note.replaceChildren(h('p', null, said));
  }

  const save = button('Save', () => tell(async () => {
    if (!changed()) {
      note.replaceChildren(h('p', null, 'There is nothing to save.'));
      return;
    }
    await send(tag === null ? { 'If-None-Match': '*' } : { 'If-Match': tag });
  }), { class: 'primary' });

  async function send(condition) {
    const text = merged(original, edit.value);
    const enable = disable([save]);
    note.replaceChildren();
    try {
      const to = await write(file.path, text, condition);
      const typed = edit.value; // keep text typed meanwhile
      [original, tag, fresh] = [text, to, false];
      edit.value = typed;
      store();
      note.replaceChildren(h('p', null, `Saved ${file.path}.`));
      saved();
    } catch (p) {
      if (p.status !== 412) throw p;
      await conflict();
    } finally {
      enable();
    }
  }

  // conflict asks how to resolve a file that has changed since the editor read it.
  async function conflict() {
    const theirs = await fetchText(file.path);
    const title = tag === null ? 'The file exists already' : theirs ? 'The file has changed' : 'The file was deleted';
    const shown = h('div');
    const el = dialog(title, h('h2', null, title), h('p', null, theirs ? `${file.path} has changed since you opened it.` : `${file.path} no longer exists.`), h('div', { class: 'row' },
      theirs?.text !== undefined && button('Compare', () => shown.replaceChildren(lines(lineDiff(shownOf(theirs.text), edit.value), 'Your changes'))),
      button('Replace', () => done(() => send(theirs ? { 'If-Match': theirs.tag } : { 'If-None-Match': '*' })), { class: 'danger' }),
      theirs?.text !== undefined && button('Discard changes', () => done(() => reset(theirs.text, theirs.tag, 'Your changes were discarded.'))),
      button('Keep editing', () => el.close(), { autofocus: true })), shown);
    const done = (what) => {
      el.close();
      tell(what);
    };
  }

  edit.addEventListener('keydown', (e) => {
    if (e.key === 's' && (e.ctrlKey || e.metaKey)) {
      e.preventDefault();
      save.click();
    }
  });
  const close = () => {
    store();
    removeEventListener('pagehide', store);
  };
  box.replaceChildren(h('h3', null, h('code', null, file.path)), note, edit, h('div', { class: 'row' }, save, discard, h('a', { class: 'button', href: file.href, download: file.path.split('/').pop() }, 'Download'),
    button('Close', () => {
      close();
      box.replaceChildren();
      closed();
      saved();
    })));
  discard.hidden = !changed() || fresh;
  edit.focus();
  return close;
}

// read returns a stored draft, null if it does not exist.
function read(stored) {
  try {
    return stored ? JSON.parse(stored) : null;
  } catch {
    return null;
  }
}
