// The agent's plan: its steps, above the prompt, as the agent has written them last.

import { fill, h } from './dom.js';

const marks = { completed: '✓', in_progress: '▸', pending: '○' };
const words = { completed: 'done', in_progress: 'in work', pending: 'open' };

export class Plan {
  constructor() {
    this.summary = h('summary', null);
    this.list = h('ol', null);
    this.el = h('details', { class: 'plan', hidden: true }, this.summary, this.list);
  }

  set(steps) {
    const done = steps.filter((s) => s.status === 'completed').length;
    const now = steps.find((s) => s.status === 'in_progress') ?? steps.find((s) => s.status !== 'completed');
    this.el.hidden = steps.length === 0;
    this.summary.textContent = `Plan: ${done} of ${steps.length}${now ? ` · ${now.text}` : ''}`;
    fill(this.list, steps.map((s) => h('li', { 'data-step': s.status }, h('span', { 'aria-hidden': 'true' }, marks[s.status] ?? '○'), ' ', s.text, h('span', { class: 'sr' }, `, ${words[s.status] ?? s.status}`))));
  }
}
