// The views beside a conversation. Each view is a module of its own, loaded on first use; that of the changes has no
// libraries of its own, and loads with the conversation.

import * as changes from './changes.js';
import { h, problemBox } from './dom.js';

export const panels = { terminal: 'Terminal', files: 'Files', changes: 'Changes', preview: 'Preview', network: 'Network', startup: 'Start', usage: 'Usage' };

const modules = {
  terminal: () => import('./terminal.js'), files: () => import('./files.js'), changes: async () => changes, preview: () => import('./preview.js'),
  network: () => import('./network.js'), startup: () => import('./startup.js'), usage: () => import('./usage.js'),
};

// openPanel shows a view in el and returns a function that closes it. A view gets session (missing for a
// sandbox without one), sandbox, which returns the current sandbox's id, facts of the conversation, and signIn.
// A view exports open(body, context), which may return a function that closes it.
export function openPanel(el, id, context) {
  const body = h('div', { class: `view of-${id}` }, h('p', { class: 'meta' }, 'Loading…'));
  el.setAttribute('aria-labelledby', `tab-${id}`);
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
