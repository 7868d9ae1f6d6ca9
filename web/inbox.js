// The inbox: what waits for a person, in all sessions. The bell shows how much there is, and so does the page's title.

import { all, call, follow, single } from './api.js';
import { button, h, own } from './dom.js';
import { notify } from './notify.js';

const hiddenPause = 15e3; // milliseconds between looks of a hidden page, which has no stream

// openInbox shows the bell in an element. shown returns the session that the page shows;
// changed is called after each change, and signIn when the cookie has ended.
export function openInbox(el, { shown, changed: tell, signIn }) {
  const items = new Map(); // that wait, by number
  const gone = new Set(); // numbers of items that are closed: an older list may still have them
  const asked = new Set(); // numbers of items that were marked as seen
  const listeners = new Set();
  let loaded = false; // what comes later is news
  const number = h('b', { 'aria-hidden': 'true' });
  const bell = button([h('i', { 'aria-hidden': 'true' }), number], show, { class: 'bell', 'aria-label': 'Inbox' });
  const said = h('span', { class: 'sr', role: 'status' });

  // inView reports whether the person sees what an item is about.
  const inView = (item) => !document.hidden && item.session_id !== undefined && item.session_id === shown();

  function take(item) {
    if (item.state !== 'waiting') {
      gone.add(item.number);
      items.delete(item.number);
    } else if (!gone.has(item.number)) {
      const fresh = loaded && !items.has(item.number) && !inView(item);
      items.set(item.number, item);
      if (fresh) notify(item);
    }
  }

  function changed() {
    const count = items.size;
    number.textContent = count > 0 ? String(count) : '';
    bell.setAttribute('aria-label', count > 0 ? `Inbox: ${count} waiting` : 'Inbox');
    entitle();
    look();
    for (const draw of listeners) draw();
    tell();
  }

  // entitle writes the number of items that are out of view before the title that the views set.
  const title = document.querySelector('title');
  function entitle() {
    const count = [...items.values()].filter((i) => !inView(i)).length;
    const plain = document.title.replace(/^\(\d+\) /, '');
    const wanted = count > 0 ? `(${count}) ${plain}` : plain;
    if (document.title !== wanted) document.title = wanted;
    // The icon of the tab says whether somebody waits for an answer, or something is done.
    const all = [...items.values()];
    const href = own(all.some(answerable) ? 'icon-waiting.svg' : count > 0 ? 'icon-done.svg' : 'icon.svg');
    if (icon.href !== href) icon.href = href;
  }
  const icon = document.querySelector('link[rel=icon]');
  new MutationObserver(entitle).observe(title, { childList: true });

  // look marks the results of the session in view as seen.
  function look() {
    const results = [...items.values()].filter((i) => inView(i) && !answerable(i) && !asked.has(i.number));
    if (results.length === 0) return;
    for (const i of results) asked.add(i.number);
    see({ numbers: results.map((i) => i.number) }).catch(() => {}); // they stay in the inbox
  }

  const see = (what) => call('POST', 'v1/inbox/seen', what);

  const load = single(async () => {
    const found = await all('v1/inbox').catch((p) => {
      if (p.status === 401) signIn(p);
      return null;
    });
    if (!found) return;
    for (const n of [...items.keys()]) if (!found.some((i) => i.number === n)) items.delete(n);
    for (const item of found) take(item);
    loaded = true;
    changed();
  });

  const stop = follow('v1/inbox/events?tail=0', {
    event(name, item) {
      if (name !== 'inbox.added' && name !== 'inbox.closed') return;
      take(item);
      if (name === 'inbox.added' && !inView(item)) said.textContent = `Inbox: ${item.title ?? ''} ${item.what}`;
      changed();
    },
    begins: load, // what was added while there was no stream is in the list
    state() {},
    problem(p) { if (p.status === 401) signIn(p); },
  });
  const timer = setInterval(() => { if (document.hidden) load(); }, hiddenPause);
  const visible = () => changed();
  document.addEventListener('visibilitychange', visible);
  addEventListener('hashchange', visible);

  async function show() {
    const { openItems } = await import('./items.js');
    openItems({
      waiting: () => [...items.values()].sort((a, b) => b.number - a.number), see,
      onchange(draw) {
        listeners.add(draw);
        return () => listeners.delete(draw);
      },
    });
  }

  el.replaceChildren(bell, said);
  return {
    waits: (id) => [...items.values()].some((i) => i.session_id === id && !inView(i)),
    close() {
      stop();
      clearInterval(timer);
      document.removeEventListener('visibilitychange', visible);
      removeEventListener('hashchange', visible);
      items.clear();
      entitle();
    },
  };
}

// answerable reports whether an item leaves the inbox by an answer.
export const answerable = (item) => item.kind === 'approval' || item.kind === 'question';
