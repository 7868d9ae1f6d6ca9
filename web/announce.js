// New messages for screen readers. They are read out politely: one by one, when the reader is idle.

import { h } from './dom.js';

const longest = 300; // characters of a message that are read out; all of it is in the conversation
const kept = 5; // messages in the document
const calm = 500; // milliseconds without an event after which the past of a session counts as loaded
const flood = 5; // more messages than this at once are only counted

// announcer returns an element with the messages, and heard(), to be called for each event: say(text) reads a text
// out if the event is new and not one of the past. acted() says that the person did something: what follows is new.
export function announcer() {
  const el = h('div', { class: 'sr news', 'aria-live': 'polite' });
  let last = 0; // when the last event came
  let current = false; // the past is loaded
  let waiting = [];
  const flush = () => {
    const all = waiting.length > flood ? [`${waiting.length} new messages`] : waiting;
    waiting = [];
    for (const text of all) el.append(h('p', null, text));
    while (el.childElementCount > kept) el.firstChild.remove();
  };
  const settled = () => { current ||= last > 0 && performance.now() - last > calm; };
  return {
    el,
    // current reports whether events are new.
    get current() {
      settled();
      return current;
    },
    acted() {
      current = true;
    },
    heard() {
      settled();
      last = performance.now();
    },
    say(text) {
      if (!current || !text.trim()) return;
      if (waiting.length === 0) setTimeout(flush, 100);
      waiting.push(text.length > longest ? `${text.slice(0, longest)}…` : text);
    },
  };
}
