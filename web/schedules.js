// Schedules, the results of their runs, new ones, and running one now.

import { all, call, poll } from './api.js';
import { acting, button, h, ms, sure, table, when } from './dom.js';
import { refill } from './focus.js';

export async function open(body, { failed }) {
  const error = h('div');
  const act = acting(error, () => load());
  const list = h('div');
  const runs = h('div');
  const create = button('New schedule', async () => (await import('./newschedule.js')).newSchedule(load), { class: 'primary' });
  body.replaceChildren(h('div', { class: 'row' }, create), error, list, runs);
  let shown = null;
  const at = (name, more) => `v1/schedules/${encodeURIComponent(name)}/${more}`;
  async function history(name) {
    shown = name;
    const { data } = await call('GET', at(name, 'runs?limit=50')).catch((p) => {
      if (p.status !== 404) throw p;
      return {};
    });
    if (!data) { // it was deleted
      shown = null;
      runs.replaceChildren();
      return;
    }
    refill(runs, h('h2', null, `Runs of ${name}`), table('Runs', ['Started', 'Attempt', 'Status', 'Duration', 'Output'], data.map((r) => [when(r.started_at), String(r.attempt), r.reason ? `${r.status}: ${r.reason}` : r.status,
      ms((r.duration_secs ?? 0) * 1000), r.output ? h('code', null, JSON.stringify(r.output).slice(0, 200)) : '–']), 'There is no run yet.'));
  }
  async function load() {
    try {
      refill(list, table('Schedules', ['Schedule', 'Kind', 'Cron', 'Next run', ''], (await all('v1/schedules')).map((s) => [s.name, s.kind, h('code', null, `${s.cron} ${s.zone ?? ''}`), s.paused ? 'paused' : s.next_at ? new Date(s.next_at).toLocaleString() : '–',
        h('div', { class: 'row' }, button('Run now', () => act(async () => {
          await call('POST', at(s.name, 'run'));
          shown = s.name;
        }), { class: 'small', 'aria-label': `Run now: ${s.name}` }), button('Runs', () => act(() => history(s.name)), { class: 'small', 'aria-label': `Runs of ${s.name}` }),
        button(s.paused ? 'Resume' : 'Pause', () => act(() => call('POST', at(s.name, s.paused ? 'resume' : 'pause'))), { class: 'small', 'aria-label': `${s.paused ? 'Resume' : 'Pause'}: ${s.name}` }),
        button('Delete', () => sure(`Delete ${s.name}?`, 'The history of its runs is deleted, too.', 'Delete it', () => act(async () => {
          await call('DELETE', `v1/schedules/${encodeURIComponent(s.name)}`);
          if (shown === s.name) {
            shown = null;
            runs.replaceChildren();
          }
        })), { class: 'small danger', 'aria-label': `Delete ${s.name}` }))]), 'There is no schedule.'));
      if (shown) await history(shown);
    } catch (p) {
      failed(p);
    }
  }
  await load();
  return poll(() => shown && history(shown), 2000);
}
