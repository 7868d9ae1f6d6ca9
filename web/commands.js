// The agent's own commands, offered while a prompt that is being written is the beginning of their name.

import { button, fill, h } from './dom.js';

const most = 8; // that are shown

export class Commands {
  constructor(input) {
    Object.assign(this, { input, all: [] });
    this.el = h('div', { class: 'commands', role: 'group', 'aria-label': 'Commands of the agent', hidden: true });
  }

  set(all) {
    this.all = all ?? [];
    this.show();
  }

  show() {
    const typed = this.input.value;
    const found = /^\/\S*$/.test(typed) ? this.all.filter((c) => `/${c.name}`.startsWith(typed)) : [];
    this.el.hidden = found.length === 0;
    fill(this.el, found.slice(0, most).map((c) => button([`/${c.name} `, h('span', { class: 'meta' }, [c.hint, c.description].filter(Boolean).join(' – '))], () => this.take(c))));
  }

  take(c) {
    this.input.value = `/${c.name} `;
    this.input.dispatchEvent(new Event('input'));
    this.input.focus();
  }
}
