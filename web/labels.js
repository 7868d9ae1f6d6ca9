// What a person does with a session for the lists: a title, a pin, the archive.

import { call } from './api.js';
import { acting, button, dialog, field, fill, h } from './dom.js';

// labelMenu returns a button with a menu. over reports whether the session has ended; changed is called after changes.
export function labelMenu(session, { over, changed }) {
  const error = h('div');
  const act = acting(error, () => {});
  const items = h('div', { class: 'actions', popover: true, id: 'session-actions', onbeforetoggle: (e) => { if (e.newState === 'open') draw(); } });
  const open = h('button', { type: 'button', popovertarget: items.id }, 'More');

  async function change(body) {
    const { title, pinned, archived } = await call('PATCH', `v1/sessions/${session.id}`, body);
    Object.assign(session, { title, pinned, archived });
    changed();
  }
  const choice = (label, body) => button(label, () => act(async () => {
    await change(body);
    items.hidePopover();
  }));

  function draw() {
    const at = open.getBoundingClientRect();
    items.style.top = `${at.bottom + 4}px`;
    items.style.left = `${Math.max(8, Math.min(at.left, document.documentElement.clientWidth - 216))}px`;
    error.replaceChildren();
    fill(items, [button('Rename', () => {
      items.hidePopover();
      rename();
    }), session.pinned ? choice('Unpin', { pinned: false }) : choice('Pin', { pinned: true }),
    session.archived ? choice('Take out of the archive', { archived: false }) : over() && choice('Archive', { archived: true }), error]);
  }

  function rename() {
    const title = h('input', { type: 'text', maxlength: '200', placeholder: 'the beginning of the first prompt', value: session.title ?? '', autofocus: true });
    const problem = h('div');
    const form = h('form', { onsubmit: (e) => {
      e.preventDefault();
      acting(problem, () => {})(async () => {
        await change({ title: title.value });
        el.close();
      });
    } }, h('h2', null, 'Rename'), field('Title', title), problem, h('div', { class: 'row' }, h('button', { type: 'submit', class: 'primary' }, 'Rename'), button('Not now', () => el.close())));
    const el = dialog('Rename', form);
    title.select();
  }

  return [open, items];
}
