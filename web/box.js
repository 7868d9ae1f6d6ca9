// One sandbox without a conversation: its terminal, files, ports, network and start.

import { call } from './api.js';
import { h, problemBox, tabs } from './dom.js';
import { openPanel, panels } from './panel.js';

export function openBox(main, id, { signIn, tab }) {
  const { changes: _, ...views } = panels;
  const title = h('h1', null, id);
  const about = h('p', { class: 'meta' }, 'Sandbox');
  const choice = tabs('Views of the sandbox', views, (view) => choose(view), () => 'panel-view');
  const panel = h('section', { class: 'panel', id: 'panel-view', role: 'tabpanel', tabindex: '0' });
  main.replaceChildren(h('header', { class: 'top' }, h('div', { class: 'what' }, title, about), choice), panel);
  document.title = `${id} · Harvest`;
  let close = () => {};
  function choose(view, chosen = true) {
    const had = panel.contains(document.activeElement);
    close();
    choice.select(view);
    if (had) choice.take();
    const address = `#/b/${id}/${view}`;
    if (chosen && address !== location.hash) history.pushState(null, '', address);
    else history.replaceState(null, '', address);
    close = openPanel(panel, view, { session: null, facts: { stages: [], turns: [] }, signIn, sandbox: async () => id });
  }
  call('GET', `v1/sandboxes/${id}`).then((b) => {
    title.textContent = b.name || b.id;
    document.title = `${title.textContent} · Harvest`;
    about.textContent = `${b.status} · ${b.image} · ${b.isolation}`;
  }, (p) => {
    if (p.status === 401) signIn(p);
    else about.replaceChildren(problemBox(p));
  });
  const show = (view) => choose(view in views ? view : 'startup', false);
  show(tab);
  return Object.assign(() => close(), { address: `#/b/${id}`, show });
}
