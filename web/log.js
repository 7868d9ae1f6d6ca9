// A conversation of any length. Of a long one, the document contains only the visible part and some parts
// around it.

import { h, soon } from './dom.js';
import { note } from './turn.js';

const few = 150; // up to this many parts, all are in the document, where the browser's own search finds them
const around = 300; // pixels above and below the visible part
const flood = 40; // more parts than this at once are replayed history, not read one by one
const guess = 90; // assumed height of a part that was never drawn

// elementOf returns the element of a part. A part that cannot be shown does not stop the others.
function elementOf(part) {
  try {
    return part.el ?? part;
  } catch (err) {
    console.error(err);
    return note(`A part of the conversation could not be shown: ${err.message}`);
  }
}

export class Log {
  constructor(label, moved) {
    this.list = []; // of { part, box, height }; a part is an element, or makes its element when el is read
    this.items = h('div', { class: 'items' });
    this.before = h('div');
    this.after = h('div');
    this.el = h('div', { class: 'log', role: 'log', 'aria-label': label, 'aria-live': 'off', tabindex: '0' }, this.before, this.items, this.after);
    this.first = 0;
    this.shown = 0; // number of parts at the last drawing
    this.last = 0;
    this.pinned = true; // follows the end, unless the user has scrolled up
    this.above = 0;
    this.el.addEventListener('scroll', () => {
      if (this.el.scrollHeight - this.el.scrollTop - this.el.clientHeight < 40) this.pinned = true;
      else if (this.el.scrollTop < this.above) this.pinned = false;
      this.above = this.el.scrollTop;
      moved(this.pinned);
      this.draw();
    }, { passive: true });
    this.sizes = new ResizeObserver((all) => this.measured(all));
    this.sizes.observe(this.el);
    this.moved = moved;
  }

  // scroll sets the position. Its scroll event comes later and must not count as one of the user's.
  scroll(to) {
    this.el.scrollTop = to;
    this.above = this.el.scrollTop;
  }

  put(part) {
    this.list.push({ part, box: null, height: guess });
    this.later();
    return part;
  }

  remove(part) {
    const at = this.list.findIndex((i) => i.part === part);
    if (at < 0) return;
    const [item] = this.list.splice(at, 1);
    item.box?.remove();
    if (at < this.first) this.first--;
    if (at < this.last) this.last--;
    this.later();
  }

  end() {
    this.pinned = true;
    this.later();
  }

  later() {
    if (this.due) return;
    this.due = true;
    const run = () => {
      this.due = false;
      this.shown = this.list.length;
      this.draw();
      this.moved(this.pinned);
    };
    if (this.list.length - this.shown > flood) setTimeout(run, 200);
    else soon(run);
  }

  // range returns the parts that belong in the document, and the heights of all parts before and after them.
  range() {
    const n = this.list.length;
    if (n <= few) return [0, n, 0, 0];
    const view = this.el.clientHeight;
    let [first, last, before, after, y] = [n, n, 0, 0, 0];
    let total = 0;
    for (const i of this.list) total += i.height;
    const top = this.pinned ? total - view : this.el.scrollTop;
    for (let at = 0; at < n; at++) {
      const height = this.list[at].height;
      if (y + height < top - around) before += height;
      else if (y > top + view + around) after += height;
      else {
        first = Math.min(first, at);
        last = at + 1;
      }
      y += height;
    }
    return [Math.min(first, last), last, before, after];
  }

  draw() {
    const [first, last, before, after] = this.range();
    if (first !== this.first || last !== this.last || this.items.childElementCount !== last - first) this.fill(first, last, before, after);
    if (this.pinned) this.scroll(this.el.scrollHeight);
  }

  fill(first, last, before, after) {
    const top = this.el.getBoundingClientRect().top;
    const anchor = this.pinned ? null : [...this.items.children].find((c) => c.getBoundingClientRect().bottom > top);
    const was = anchor?.getBoundingClientRect().top;
    const fresh = [];
    const wanted = new Set();
    let place = null;
    for (let at = last - 1; at >= first; at--) {
      const item = this.list[at];
      if (!item.box) item.box = h('div', { class: 'item' }, elementOf(item.part));
      wanted.add(item.box);
      if (item.box.parentNode !== this.items || item.box.nextSibling !== place) {
        this.items.insertBefore(item.box, place);
        this.sizes.observe(item.box);
        item.box.entry = item;
        fresh.push(item);
      }
      place = item.box;
    }
    for (const box of [...this.items.children]) {
      if (wanted.has(box)) continue;
      this.sizes.unobserve(box);
      box.remove();
    }
    [this.first, this.last] = [first, last];
    this.before.style.height = `${before}px`;
    this.after.style.height = `${after}px`;
    for (const item of fresh) item.height = item.box.offsetHeight;
    if (anchor?.isConnected) this.scroll(this.el.scrollTop + anchor.getBoundingClientRect().top - was);
  }

  measured(all) {
    const top = this.el.getBoundingClientRect().top;
    let moved = 0;
    for (const { target } of all) {
      if (!target.entry || !target.isConnected) continue;
      const height = target.offsetHeight;
      if (target.getBoundingClientRect().bottom < top) moved += height - target.entry.height;
      target.entry.height = height;
    }
    if (this.pinned) this.scroll(this.el.scrollHeight);
    else if (moved !== 0) this.scroll(this.el.scrollTop + moved);
    this.moved(this.pinned);
  }

  // find returns the positions of a text.
  find(text) {
    const wanted = text.toLowerCase();
    return this.list.flatMap(({ part }, at) => ((part.words ? part.words() : part.textContent).toLowerCase().includes(wanted) ? [at] : []));
  }

  // show scrolls a part into view.
  show(at) {
    this.pinned = false;
    for (let pass = 0; pass < 3; pass++) { // heights become known on the way
      let y = 0;
      for (let i = 0; i < at; i++) y += this.list[i].height;
      this.scroll(Math.max(0, y - this.el.clientHeight / 3));
      this.draw();
    }
    for (const el of this.items.querySelectorAll('.found')) el.classList.remove('found');
    this.list[at].box?.classList.add('found');
    this.list[at].box?.scrollIntoView({ block: 'center' });
    this.above = this.el.scrollTop;
  }

  close() { this.sizes.disconnect(); }
}
