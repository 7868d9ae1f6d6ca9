// The command palette: everything that the page can go to, by name.

import { dialog, fill, h } from './dom.js';

const most = 40; // entries that are shown

// openPalette shows entries, each { name, kind, run }, and runs the one that is chosen.
export function openPalette(entries) {
  if (document.querySelector('dialog')) return; // another question is open
  let found = [];
  let at = 0;
  const list = h('ul', { id: 'palette-list', role: 'listbox', 'aria-label': 'Commands' });
  const input = h('input', { type: 'text', role: 'combobox', 'aria-label': 'Command', 'aria-expanded': 'true', 'aria-controls': list.id, 'aria-autocomplete': 'list', placeholder: 'Go to a session or a view', autocomplete: 'off', spellcheck: 'false', oninput: () => look() });
  const none = h('p', { class: 'meta', role: 'status' });
  const el = dialog('Commands', input, list, none);
  el.classList.add('palette');

  function look() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = entries.filter((e) => words.every((w) => `${e.kind} ${e.name}`.toLowerCase().includes(w))).slice(0, most);
    fill(list, found.map((e, i) => h('li', { role: 'option', id: `palette-${i}`, onclick: () => run(e) }, e.name, h('span', { class: 'meta' }, e.kind))));
    none.textContent = found.length === 0 ? 'No matches.' : '';
    go(0);
  }
  function go(to) {
    at = found.length === 0 ? 0 : (to + found.length) % found.length;
    for (const [i, row] of [...list.children].entries()) row.setAttribute('aria-selected', String(i === at));
    if (found.length > 0) {
      input.setAttribute('aria-activedescendant', `palette-${at}`);
      list.children[at].scrollIntoView({ block: 'nearest' });
    } else input.removeAttribute('aria-activedescendant');
  }
  function run(e) {
    el.close();
    e.run();
  }
  input.addEventListener('keydown', (e) => {
    if (e.key === 'ArrowDown') go(at + 1);
    else if (e.key === 'ArrowUp') go(at - 1);
    else if (e.key === 'Enter' && found.length > 0 && !e.isComposing) run(found[at]);
    else return;
    e.preventDefault();
  });
  look();
  input.focus();
}
