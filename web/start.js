// The card for the start of a session: its finished steps and the current one, with the time of each.

import { call, now } from './api.js';
import { h, ms, problemBox } from './dom.js';

const stages = { sandbox: 'Sandbox', directories: 'Directories', credentials: 'Credentials', repository: 'Repository', agent: 'Agent', mcp: 'MCP servers' };

// What a failed step could not do.
const failures = {
  sandbox: 'The sandbox could not be created', directories: 'The directories could not be created', credentials: 'The credentials of git could not be set', repository: 'The repository could not be cloned',
  agent: 'The agent could not be started',
};

const remedies = { repository: 'Check its address, its branch, and the secret with the credentials of git. Then try again.' };

// The step that follows a finished one. Only finished steps have events.
const following = { sandbox: 'Directories', directories: 'Repository', credentials: 'Repository' };

export class Start {
  // created is the time at which the session was created; making reports whether its sandbox is still being made.
  // Otherwise the events of the past tell how the start ended.
  constructor(created, making) {
    this.making = making;
    this.begun = Date.parse(created);
    this.sum = 0; // milliseconds of the finished steps
    this.list = h('ol', { class: 'stages' });
    this.head = h('summary', null, making && h('span', { class: 'spinner', 'aria-hidden': 'true' }), h('span', null, making ? 'Creating the sandbox' : 'Start of the sandbox'));
    this.el = h('details', { class: 'start', open: making, 'aria-label': 'Start of the sandbox', 'aria-busy': making ? 'true' : null }, this.head, this.list);
    if (!making) return;
    this.next(stages.sandbox);
    call('GET', 'v1/images?limit=1').then(({ data }) => { if (data.length === 0) this.builds(); }, () => {}); // best effort
  }

  // builds explains why the first step of the first session takes long.
  builds() {
    if (this.sum === 0 && !this.finished) this.now.firstChild.textContent = 'Sandbox, and its image, which is built only once';
  }

  get textContent() { return this.el.textContent; }

  next(label) {
    this.now = h('li', { class: 'now' }, h('span', null, label), h('span', { class: 'time' }, ''));
    this.list.append(this.now);
  }

  // stage adds a finished step; more reports whether another one follows.
  stage(s, more) {
    this.now?.remove();
    const [first, ...rest] = s.name.split(' ');
    this.list.append(h('li', null, h('span', null, [stages[first] ?? first, ...rest].join(' ')), h('span', { class: 'time' }, ms(s.ms))));
    this.sum += s.ms;
    if (more) this.next(following[first] ?? 'Working');
  }

  // tick shows the time so far. The current step took the time not used by finished steps.
  tick() {
    if (!this.making || !this.now || this.finished) return;
    const time = Math.max(0, now() - this.begun);
    this.now.lastChild.textContent = ms(Math.max(0, time - this.sum));
    this.head.lastChild.textContent = `Creating the sandbox · ${ms(time)}`;
  }

  // finish shows the result, once.
  finish(ok, reason) {
    this.finished = true;
    const step = /^(\w+)[^:]*: /.exec(reason ?? '')?.[1]; // the reason begins with it
    this.failure = ok ? '' : failures[step] ?? failures.sandbox;
    this.now?.remove();
    this.el.removeAttribute('aria-busy');
    this.head.replaceChildren(h('span', null, ok ? `Sandbox ready in ${ms(this.sum)}` : this.failure));
    this.el.open = !ok;
    if (!ok) this.el.append(problemBox({ detail: reason, remedy: remedies[step] ?? 'Change the settings and try again; "harvest doctor" checks the server\'s machine.' }));
  }
}
