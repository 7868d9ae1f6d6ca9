// The prompts that a session could not send: those that its end cancelled, those held back, and the half-typed one. The
// next session offers them.

import { hold, heldOf, keep, kept, list, promptOf } from './drafts.js';
import { h, windowed } from './dom.js';

export class Unsent {
  constructor(session) {
    this.session = session;
    this.name = `passed:${session}`; // set once the next session has the cancelled ones
    this.cancelled = [];
  }

  cancel(prompt) { this.cancelled.push(prompt); }

  // sent forgets the cancelled prompts: after them, the person has sent another one.
  sent() { this.cancelled = []; }

  get all() {
    return { prompts: [...(kept(this.name) ? [] : this.cancelled), ...list(heldOf(this.session))], typed: kept(promptOf(this.session)) };
  }

  // take returns the prompts and removes them from this session.
  take() {
    const { all } = this;
    keep(this.name, 'yes');
    hold(this.session, []);
    keep(promptOf(this.session), '');
    return all;
  }

  // give moves the prompts to another session.
  give(session) {
    const { prompts, typed } = this.take();
    hold(session, prompts);
    keep(promptOf(session), typed);
  }

  // view returns a list of the prompts, null if there are none.
  view() {
    const { prompts, typed } = this.all;
    const texts = typed ? [...prompts, typed] : prompts;
    if (texts.length === 0) return null;
    return h('div', null, h('h3', null, 'Prompts that were not sent'), windowed(h('ul', { class: 'unsent' }), texts.length, (i) => h('li', null, texts[i].slice(0, most)), { first: 20, what: 'prompts' }),
      h('p', { class: 'meta' }, 'The next session offers them.'));
  }
}

const most = 1000; // characters of a prompt that are shown
