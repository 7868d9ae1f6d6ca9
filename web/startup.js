// The start of the sandbox: a bar for each step, in order.

import { call } from './api.js';
import { ago, bytes, h, ms, problemBox } from './dom.js';

export async function open(body, { facts, sandbox, session }) {
  let box = null;
  let problem = null;
  try {
    const id = await sandbox();
    if (id) box = await call('GET', `v1/sandboxes/${id}`);
  } catch (p) {
    problem = p;
  }
  body.replaceChildren(h('h2', null, 'Start'));
  if (session) body.append(...waterfall('The session', facts.stages));
  if (box) {
    body.append(...waterfall('Its sandbox', box.stages ?? []));
    body.append(h('h3', null, 'The sandbox'), h('dl', null, ...Object.entries({
      Id: box.id, Status: box.status, Isolation: box.isolation, Image: box.image, Created: ago(box.created_at), Expires: new Date(box.expires_at).toLocaleString(),
      Booted: box.warm ? 'ahead of time' : 'for this', Cores: box.limits?.cpu, Memory: box.limits && bytes(box.limits.memory_bytes), Disk: box.limits && bytes(box.limits.disk_bytes),
    }).filter(([, v]) => v).flatMap(([k, v]) => [h('dt', null, k), h('dd', null, String(v))])));
  }
  if (problem) body.append(problemBox(problem));
}

function waterfall(label, stages) {
  if (stages.length === 0) return [];
  const sum = stages.reduce((n, s) => n + s.ms, 0) || 1;
  let before = 0;
  const rows = stages.map((s) => {
    const bar = h('span', { class: 'span' });
    bar.style.marginLeft = `${(before / sum) * 100}%`;
    bar.style.width = `${Math.max(0.5, (s.ms / sum) * 100)}%`;
    before += s.ms;
    return h('tr', null, h('th', { scope: 'row' }, s.name), h('td', { class: 'time' }, ms(s.ms)), h('td', { class: 'lane', 'aria-hidden': 'true' }, bar));
  });
  return [h('h3', null, `${label}: ${ms(sum)}`), h('table', { class: 'waterfall', 'aria-label': `${label}, by step` }, h('tbody', null, rows))];
}
