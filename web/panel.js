// What stands beside a conversation. Each view is a module of its own, fetched when it is first asked for.

import { h, problemBox } from './dom.js';

export const panels = { terminal: 'Terminal', files: 'Files', changes: 'Changes', preview: 'Preview', network: 'Network', startup: 'Start', usage: 'Usage' };

const modules = {
  terminal: () => import('./terminal.js'), files: () => import('./files.js'), changes: () => import('./changes.js'), preview: () => import('./preview.js'),
  network: () => import('./network.js'), startup: () => import('./startup.js'), usage: () => import('./usage.js'),
};

// openPanel shows a view in el and returns what ends it. What a view gets: session (missing of a sandbox without one), sandbox, which returns its id
// now, facts of the conversation, signIn. A view exports open(body, context), which may return what ends it.
export function openPanel(el, id, context) {
  const body = h('div', { class: `view ${id}` }, h('p', { class: 'meta' }, 'Loading…'));
  el.setAttribute('aria-label', panels[id]);
  el.replaceChildren(body);
  let close = null;
  let ended = false;
  const failed = (p) => {
    if (p.status === 401) context.signIn(p);
    else body.replaceChildren(problemBox(p));
  };
  modules[id]().then(async (view) => {
    if (ended) return;
    close = await view.open(body, { ...context, failed });
    if (ended) close?.();
  }).catch((p) => { if (!ended) failed(p); });
  return () => {
    ended = true;
    close?.();
    el.replaceChildren();
  };
}
