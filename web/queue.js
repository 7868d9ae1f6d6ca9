// The queue of a session: its queued prompts, and those that are held because a turn was stopped. Both are on the server.

import { all, call } from './api.js';
import { button, h } from './dom.js';
import { refill } from './focus.js';

export class Queue {
  // act runs a request and shows its error.
  constructor(session, act) {
    Object.assign(this, { at: `v1/sessions/${session}`, act, prompts: new Map(), left: new Set() });
    this.el = h('ul', { class: 'queue', 'aria-label': 'Queue' });
  }

  // add adds a prompt, or moves it to the end with its new state.
  add(message) {
    this.prompts.delete(message.id);
    this.prompts.set(message.id, message);
    this.draw();
  }

  remove(id) {
    this.left.add(id);
    this.prompts.delete(id);
    this.draw();
  }

  clear() {
    this.prompts.clear();
    this.draw();
  }

  // load adds the prompts whose events the server no longer has.
  async load() {
    for (const m of await all(`${this.at}/messages`)) {
      if ((m.state === 'queued' || m.state === 'held') && !m.purpose && !this.left.has(m.id)) this.add(m);
    }
  }

  cancel(id) { return call('DELETE', `${this.at}/messages/${id}`); }

  // release queues a held prompt, or all of them.
  release(id) { return call('POST', `${this.at}/release${id ? `?message=${id}` : ''}`); }

  draw() {
    const small = (label, m, what) => button(label, () => this.act(what), { class: 'small', 'aria-label': `${label}: ${m.prompt.trim().slice(0, 80)}` });
    const row = (m) => h('li', { class: m.state === 'held' ? 'held' : null }, m.state === 'held' && h('span', { class: 'meta' }, 'Held'), h('span', { class: 'prompt' }, m.prompt),
      m.state === 'held' && small('Send next', m, () => this.release(m.id)), small('Cancel', m, () => this.cancel(m.id)));
    const of = (state) => [...this.prompts.values()].filter((m) => m.state === state);
    const held = of('held');
    refill(this.el, ...of('queued').map(row), ...held.map(row),
      held.length > 1 && h('li', { class: 'all' }, button(`Send all ${held.length} held prompts`, () => this.act(() => this.release()), { class: 'small' })));
    if (document.activeElement === this.el) this.el.closest('form').querySelector('textarea').focus(); // the last one has gone
  }
}
