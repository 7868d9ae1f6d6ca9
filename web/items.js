// The panel of the inbox: the items, each with the form that answers it, or a button that marks it as seen.

import { acting, button, dialog, h, money, when } from './dom.js';
import { isLost, take } from './focus.js';
import { answerable } from './inbox.js';
import { notifyChoice } from './notify.js';
import { question } from './turn.js';

const outcomes = { completed: 'Done', failed: 'Failed', stopped: 'Stopped', ended: 'Ended' };
const kinds = { approval: 'Approval', question: 'Question', silent: 'Silent', login: 'Login' };

// openItems shows the panel. waiting returns the items, onchange calls a function after each change of them.
export function openItems({ waiting, see, onchange }) {
  const error = h('div');
  const act = acting(error, () => {});
  const list = h('ul', { 'aria-label': 'Inbox' });
  const none = h('p', { class: 'meta' }, 'Nothing waits for you.');
  const seeAll = button('Mark all as seen', () => act(() => see({ all: true })), { class: 'small' });
  const heading = h('h2', null, 'Inbox');
  const rows = new Map(); // by number: an open form keeps what the person has entered
  const el = dialog('Inbox', heading, error, list, none, notifyChoice(), h('div', { class: 'row' }, seeAll, button('Close', () => el.close(), { class: 'small' })));
  el.classList.add('waiting');

  // row makes the row of an item.
  function row(i) {
    const name = i.title || 'New session';
    const link = i.session_id ? h('a', { href: `#/s/${i.session_id}`, onclick: () => el.close() }, name) : h('a', { href: '#/secrets', onclick: () => el.close() }, i.secret);
    const who = [i.agent, i.sub_agent && `sub-agent ${i.sub_agent}`].filter(Boolean).join(', ');
    const head = h('p', { class: 'meta' }, h('b', null, i.kind === 'finished' ? outcomes[i.outcome] ?? i.outcome : kinds[i.kind] ?? i.kind), ' · ', link, who && ` · ${who}`, ' · ', when(i.since), i.cost_usd ? ` · ${money(i.cost_usd)}` : '');
    if (!answerable(i)) return h('li', null, head, h('p', null, i.what), button('Seen', () => act(() => see({ numbers: [i.number] })), { class: 'small', 'aria-label': `Seen: ${name}: ${i.what}` }));
    if (i.cut) return h('li', null, head, h('p', null, i.what), h('p', { class: 'meta' }, 'It is too long for this list: answer it in the session.'));
    return h('li', null, head, question(i.session_id, { ...i, id: i.question_id }));
  }

  function draw() {
    const items = waiting();
    for (const [n, r] of rows) {
      if (items.some((i) => i.number === n)) continue;
      r.remove();
      rows.delete(n);
    }
    let before = null;
    for (const i of items) {
      if (!rows.has(i.number)) {
        const r = row(i);
        rows.set(i.number, r);
        if (before) before.after(r);
        else list.prepend(r);
      }
      before = rows.get(i.number);
    }
    none.hidden = items.length > 0;
    seeAll.hidden = items.every(answerable);
    if (isLost()) take(heading); // the row with the focus has gone
  }
  draw();
  take(heading);
  const ignore = onchange(draw);
  const timer = setInterval(() => { for (const form of list.querySelectorAll('form.question')) form.tick(); }, 1000);
  el.addEventListener('close', () => {
    ignore();
    clearInterval(timer);
  });
}
