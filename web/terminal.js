// The sandbox's terminal: one or several shells, each in a tab of its own.

import { call } from './api.js';
import { button, h, sure, tabs } from './dom.js';
import { openEditors } from './editors.js';
import { load, openShell } from './shell.js';

const mark = 'harvest-terminal'; // the last argument of a shell's command, before its name
const most = 16;

export async function open(body, { sandbox, session }) {
  const id = await sandbox();
  if (!id) {
    body.replaceChildren(h('p', null, 'There is no sandbox yet.'));
    return undefined;
  }
  const [names] = await Promise.all([running(id), load()]);
  const row = h('div', { class: 'row termtabs' });
  const panels = h('div', { class: 'shells' });
  const shells = new Map(); // by name
  body.replaceChildren(h('h2', null, 'Terminal'), row, panels);
  let closed = false;
  let shown;
  const label = (name) => `Shell ${name || '1'}`;

  // show selects a shell, which it opens first if necessary. focus moves the keyboard to it.
  async function show(name, focus) {
    shown = name;
    if (!shells.has(name)) {
      const el = h('div', { class: 'shell', id: `shell-${name || '1'}`, role: 'tabpanel', 'aria-label': label(name) });
      panels.append(el);
      const opening = openShell(el, { id, name, dir: session?.dir });
      shells.set(name, { el, opening });
    }
    draw();
    const shell = await shells.get(name).opening;
    if (closed) shell.close();
    else if (focus && shown === name) shell.take();
  }

  function draw() {
    for (const [name, { el }] of shells) el.hidden = name !== shown;
    const all = tabs('Shells', Object.fromEntries(names.map((name) => [`shell-${name || '1'}`, label(name)])), (tab) => show(names.find((name) => `shell-${name || '1'}` === tab), false), (tab) => tab);
    const had = row.contains(document.activeElement);
    const more = button('New shell', add, { class: 'small', disabled: names.length >= most });
    row.replaceChildren(...(names.length > 1 ? [all] : []), more, ...(names.length > 1 ? [button('End shell', remove, { class: 'small danger' })] : []),
      button('Open in an editor', () => openEditors(session?.id ?? id, session?.dir ?? '/'), { class: 'small' }));
    all.select(`shell-${shown || '1'}`);
    if (had) (names.length > 1 ? all.take : () => more.focus())();
  }

  function add() {
    let n = 2;
    while (names.includes(String(n))) n++;
    names.push(String(n));
    show(String(n), true);
  }

  function remove() {
    const name = shown;
    sure(`End ${label(name)}?`, 'The programs that run in it end, too.', 'End it', async () => {
      const { el, opening } = shells.get(name);
      const shell = await opening;
      shell.end();
      shell.close();
      el.remove();
      shells.delete(name);
      names.splice(names.indexOf(name), 1);
      show(names.at(-1), true);
    });
  }

  // Keep the focus of keyboard users on the tabs.
  show(names[0], !document.activeElement?.matches('[role=tab]:focus-visible'));
  return () => {
    closed = true;
    for (const { opening } of shells.values()) opening.then((shell) => shell.close(), () => {});
  };
}

// running returns the names of the shells that run, the first one first.
async function running(id) {
  const { data } = await call('GET', `v1/sandboxes/${id}/processes?limit=500`).catch(() => ({ data: [] })); // the shells report errors
  const marks = data.filter((p) => p.terminal && !p.exit).map((p) => p.args.at(-1));
  const names = marks.filter((m) => m.startsWith(`${mark}:`)).map((m) => m.slice(mark.length + 1));
  return ['', ...new Set(names.sort((a, b) => a - b))];
}
