// The checks of the server's machine, with remedies for the failed ones.

import { call } from './api.js';
import { button, h } from './dom.js';
import { disable } from './focus.js';

export async function open(body, { failed }) {
  const list = h('ul', { class: 'findings' });
  const again = button('Check again', () => load());
  body.replaceChildren(h('div', { class: 'row' }, again), list);
  async function load() {
    const enable = disable([again]);
    list.replaceChildren(h('li', null, h('span', { class: 'spinner', 'aria-hidden': 'true' }), ' A trial sandbox is created, which takes some seconds…'));
    try {
      const { data } = await call('GET', 'v1/doctor', undefined, { patience: 120e3 });
      list.replaceChildren(...data.map((f) => h('li', { class: f.ok ? 'ok' : f.needed ? 'fail' : 'weak' }, h('b', null, `${f.ok ? '✓' : f.needed ? '✗' : '!'} ${f.name}`), h('span', null, f.ok ? '' : f.needed ? ' (does not work) ' : ' (weak) '), h('p', null, f.detail), f.remedy && h('p', null, `→ ${f.remedy}`))));
    } catch (p) {
      failed(p);
    }
    enable();
  }
  await load();
}
