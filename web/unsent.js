// The prompts that the end of a session cancelled, and its half-typed one. The next session offers them.

import { call } from './api.js';
import { keep, kept, promptOf } from './drafts.js';
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

  get all() { return { prompts: kept(this.name) ? [] : [...this.cancelled], typed: kept(promptOf(this.session)) }; }

  // take returns the prompts and removes them from this session.
  take() {
    const { all } = this;
    keep(this.name, 'yes');
    keep(promptOf(this.session), '');
    return all;
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

// pass gives prompts and a half-typed one to a session, which holds the prompts. Those that it does not accept become a
// part of the half-typed one.
export async function pass(session, { prompts, typed }) {
  const rest = [...prompts];
  try {
    while (rest.length > 0) {
      await call('POST', `v1/sessions/${session}/messages`, { prompt: rest[0], hold: true });
      rest.shift();
    }
  } catch { /* the prompt's text shows what is left */ }
  keep(promptOf(session), [...rest, typed].filter(Boolean).join('\n'));
}
