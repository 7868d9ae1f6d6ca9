// The lists. Each is a module with a title and open(body, context), loaded on first use.

import { h, problemBox } from './dom.js';

export const lists = {
  sandboxes: 'Sandboxes', sessions: 'Sessions', images: 'Images', volumes: 'Volumes', secrets: 'Secrets', schedules: 'Schedules', keys: 'Keys', costs: 'Costs', audit: 'Audit log', doctor: 'Doctor',
};

const modules = {
  sandboxes: () => import('./sandboxes.js'), sessions: () => import('./sessions.js'), images: () => import('./images.js'), volumes: () => import('./volumes.js'), secrets: () => import('./secrets.js'),
  schedules: () => import('./schedules.js'), keys: () => import('./keys.js'), costs: () => import('./costs.js'), audit: () => import('./audit.js'), doctor: () => import('./doctor.js'),
};

export function openList(main, id, { signIn }) {
  const body = h('div', { class: `list-view of-${id}` }, h('p', { class: 'meta' }, 'Loading…'));
  main.replaceChildren(h('div', { class: 'scroll' }, h('h1', null, lists[id]), body));
  document.title = `${lists[id]} · Harvest`;
  let close = null;
  let ended = false;
  const failed = (p) => {
    if (ended) return;
    if (p.status === 401) signIn(p);
    else body.replaceChildren(problemBox(p));
  };
  modules[id]().then(async (view) => {
    if (ended) return;
    close = await view.open(body, { failed });
    if (ended) close?.();
  }).catch(failed);
  return () => {
    ended = true;
    close?.();
  };
}
