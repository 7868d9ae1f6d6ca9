// The queued prompts of a session, and those held because the turn before them was stopped.

import { call } from './api.js';
import { button, h } from './dom.js';
import { heldOf, hold, list } from './drafts.js';
import { refill } from './focus.js';

export class Queue {
  // act runs a request and shows its error; post sends a prompt and reports whether it was sent.
  constructor(session, act, post) {
    Object.assign(this, { session, act, post, waiting: new Map() });
    this.el = h('ul', { class: 'queue', 'aria-label': 'Queued prompts' });
    this.draw();
  }

  add(message) {
    this.waiting.set(message.id, message);
    this.draw();
  }

  remove(id) {
    this.waiting.delete(id);
    this.draw();
  }

  clear() {
    this.waiting.clear();
    this.draw();
  }

  get held() { return list(heldOf(this.session)); }

  set held(all) {
    hold(this.session, all);
    this.draw();
  }

  // hold takes the waiting prompts out of the queue. The user then sends or discards them.
  async hold() {
    for (const m of [...this.waiting.values()]) {
      try {
        await this.cancel(m.id);
        this.held = [...this.held, m.prompt];
      } catch (p) {
        if (p.status !== 404 && p.status !== 409) throw p; // it was sent meanwhile
      }
    }
  }

  cancel(id) { return call('DELETE', `v1/sessions/${this.session}/messages/${id}`); }

  draw() {
    const row = (prompt, kind, ...buttons) => h('li', { class: kind }, h('span', { class: 'prompt' }, prompt), buttons);
    const without = (at) => this.held.filter((_, i) => i !== at);
    refill(this.el,
      ...[...this.waiting.values()].map((m) => row(m.prompt, null, button('Cancel', () => this.act(() => this.cancel(m.id)), { class: 'small', 'aria-label': `Cancel: ${m.prompt.slice(0, 80)}` }))),
      ...this.held.map((prompt, i) => row(prompt, 'held',
        button('Send next', async () => { if (await this.post(prompt)) this.held = without(i); }, { class: 'small', 'aria-label': `Send next: ${prompt.slice(0, 80)}` }),
        button('Cancel', () => { this.held = without(i); }, { class: 'small', 'aria-label': `Cancel: ${prompt.slice(0, 80)}` }))),
    );
    if (document.activeElement === this.el) this.el.closest('form').querySelector('textarea').focus(); // the last one has gone
  }
}
