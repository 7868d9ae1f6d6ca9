// Costs by day: of models as reported by the agents, of sandboxes by the configured prices.

import { all } from './api.js';
import { h, money, table } from './dom.js';
import { plot } from './plot.js';

const shown = 30; // days

export async function open(body, { failed }) {
  let sandboxes;
  let sessions;
  try {
    [sandboxes, sessions] = await Promise.all([all('v1/sandboxes?all=true', 10_000), all('v1/sessions?all=true', 10_000)]);
  } catch (p) {
    failed(p);
    return undefined;
  }
  const day = (time) => new Date(time).toISOString().slice(0, 10);
  const days = new Map();
  for (let i = shown - 1; i >= 0; i--) days.set(day(Date.now() - i * 86400e3), { sandboxes: 0, models: 0, count: 0 });
  for (const b of sandboxes) {
    const d = days.get(day(b.created_at));
    if (d) d.sandboxes += b.cost_usd;
    if (d) d.count++;
  }
  for (const s of sessions) {
    const d = days.get(day(s.active_at ?? s.created_at));
    if (d) d.models += s.usage.cost_usd;
  }
  const rows = [...days];
  const sum = rows.reduce((n, [, d]) => n + d.sandboxes + d.models, 0);
  const chart = h('div', { class: 'charts wide-chart' });
  body.replaceChildren(h('p', null, h('b', null, money(sum)), ` in ${shown} days. A sandbox counts on the day of its creation, a session on the day of its last turn, in UTC.`), chart,
    table('Costs by day', ['Day', 'Cost of sandboxes', 'Sandboxes created', 'Cost of models', 'Total cost'], rows.reverse().filter(([, d]) => d.count > 0 || d.models > 0).map(([name, d]) => [name, money(d.sandboxes), String(d.count), money(d.models), money(d.sandboxes + d.models)]), 'There are no costs.'));
  rows.reverse();
  const drawn = await plot(chart, 'Cost by day, $', rows.map(([name]) => new Date(name).getTime() / 1000), [['total', rows.map(([, d]) => d.sandboxes + d.models)]], { bars: true });
  return () => drawn.destroy();
}
