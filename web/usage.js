// The usage of the session: of the machine over its life, and tokens, costs and time of each turn and in total.

import { call, poll } from './api.js';
import { h, money, ms, table } from './dom.js';
import { openMachine } from './machine.js';
import { plot } from './plot.js';

export async function open(body, { session, facts, sandbox, failed }) {
  const machine = h('section', { class: 'machine' });
  const charts = h('div', { class: 'charts' });
  const list = h('div', { class: 'turns' });
  const box = h('p', { class: 'meta' });
  body.replaceChildren(h('h2', { class: 'sr' }, 'Usage'), machine, ...(session ? [h('h2', null, 'Turns'), charts, list] : []), box);
  let seen = -1;
  let drawn = [];
  let close = () => {};
  async function draw() {
    const turns = facts.turns;
    if (turns.length === seen) return;
    seen = turns.length;
    let cost = 0;
    const rows = turns.map((t, i) => {
      const u = t.usage ?? {};
      cost += u.cost_usd ?? 0;
      return { n: i + 1, input: (u.input_tokens ?? 0) + (u.cache_read_tokens ?? 0) + (u.cache_write_tokens ?? 0), output: u.output_tokens ?? 0, cost, ms: t.ms };
    });
    for (const d of drawn) d.destroy();
    charts.replaceChildren();
    drawn = rows.length < 2 ? [] : await Promise.all([
      plot(charts, 'Tokens by turn', rows.map((r) => r.n), [['in', rows.map((r) => r.input)], ['out', rows.map((r) => r.output)]], { time: false }),
      plot(charts, 'Seconds by turn', rows.map((r) => r.n), [['seconds', rows.map((r) => r.ms / 1000)]], { time: false }),
      plot(charts, 'Cost so far, $', rows.map((r) => r.n), [['dollars', rows.map((r) => r.cost)]], { time: false }),
    ]);
    list.replaceChildren(table('Turns', ['Turn', 'Tokens in', 'Tokens out', 'Duration', 'Cost so far'],
      rows.map((r) => [String(r.n), String(r.input), String(r.output), ms(r.ms), money(r.cost)]), 'There was no turn yet.'));
  }
  await draw();
  const stop = poll(draw, 1000);
  const id = await sandbox().catch(() => null); // the sandbox may be gone
  if (id) {
    close = openMachine(machine, id, { failed: (p) => (p.status === 401 ? failed(p) : machine.replaceChildren()) });
    call('GET', `v1/sandboxes/${id}`).then((b) => { box.textContent = `Cost of the sandbox itself: ${money(b.cost_usd)}.`; }, () => {});
  }
  return () => {
    close();
    stop();
    for (const d of drawn) d.destroy();
  };
}
