// Search in a conversation: in all of it, not only in the visible part.

import { button, h } from './dom.js';

export function finder(log) {
  const count = h('span', { class: 'meta', role: 'status' });
  const input = h('input', { type: 'search', 'aria-label': 'Search the conversation', placeholder: 'Search the conversation', oninput: () => look() });
  const open = button('Search', () => toggle(el.hidden), { 'aria-expanded': 'false' });
  const el = h('div', { class: 'find row', hidden: true, role: 'search' }, input, count, button('↑', () => go(-1), { class: 'small', 'aria-label': 'Previous match' }),
    button('↓', () => go(1), { class: 'small', 'aria-label': 'Next match' }), button('Close', () => toggle(false), { class: 'small' }));
  let found = [];
  let at = 0;

  function toggle(on) {
    el.hidden = !on;
    open.setAttribute('aria-expanded', String(on));
    if (on) input.focus();
    else open.focus();
  }
  function look() {
    found = input.value.trim() === '' ? [] : log.find(input.value.trim());
    at = found.length;
    if (found.length > 0) go(-1);
    else count.textContent = input.value.trim() === '' ? '' : 'No matches.';
  }
  function go(step) {
    if (found.length === 0) return;
    at = (at + step + found.length) % found.length;
    count.textContent = `${at + 1} of ${found.length}`;
    log.show(found[at]);
  }
  input.addEventListener('keydown', (e) => {
    if (e.key === 'Enter') go(e.shiftKey ? 1 : -1);
    else if (e.key === 'Escape') toggle(false);
  });
  return { el, button: open };
}
