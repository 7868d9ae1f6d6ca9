// The conversation of the sessions that a resumed session continues.

import { all, call, follow } from './api.js';
import { Conversation, ownPrompt } from './conversation.js';
import { Message, note, userMessage } from './turn.js';

const most = 20; // earlier sessions

// past returns the parts of the earlier conversation, the oldest first; none if the session continues none. state gets the
// state of the connection, and signal ends the loading.
export async function past(session, { state, signal }) {
  let parts = [];
  let id = session.continues;
  for (let n = 0; id && n < most; n++) {
    const [old, before] = await Promise.all([call('GET', `v1/sessions/${id}`), conversation(id, { state, signal })]);
    parts = [...before, note('Continued: the new session starts here'), ...parts];
    id = old.continues;
  }
  return parts;
}

// conversation returns the conversation of a session that has ended. The server removes old events: of turns without
// events, it has the prompt and the reply.
async function conversation(id, connection) {
  const at = `v1/sessions/${id}`;
  const parts = [];
  const sent = new Set();
  let removed = false;
  const c = new Conversation({ id }, (part) => {
    parts.push(part);
    return part;
  });
  await replay(`${at}/events`, connection, (name, e) => {
    removed ||= name === 'stream.pruned';
    if (name === 'message.sent') sent.add(e.message.id);
    if (!removed || sent.size > 0) c.show(name, e);
  }, (name, err) => parts.push(note(`An event (${name}) could not be shown: ${err.message}`)));
  c.settle();
  if (!removed) return parts;
  const messages = await all(`${at}/messages`);
  return [...messages.filter((m) => !sent.has(m.id)).flatMap(turn), ...parts];
}

// lastEvent returns the id of the newest event of a stream, 0 if there is none: a stream begins with the id of the event
// before its first one.
export const lastEvent = (path, connection) => until(`${path}?tail=0`, connection, (end) => ({ begins: end, event: () => {} }));

// replay passes the events that a stream has now to event, and the errors of event to broken.
async function replay(path, connection, event, broken) {
  const last = await lastEvent(path, connection);
  if (last === 0) return;
  await until(path, connection, (end) => {
    let over = false;
    return {
      event(name, e, id) {
        if (over) return;
        over = id >= last || name === 'stream.pruned' && e.first > last;
        if (over) end();
        event(name, e);
      },
      broken,
    };
  });
}

// until follows a stream until a handler calls end, and returns the value that it passes.
const until = (path, { state, signal }, handlers) => new Promise((resolve, reject) => {
  signal.throwIfAborted();
  const stop = follow(path, { ...handlers((value) => {
    stop();
    resolve(value);
  }), state, problem: reject });
  signal.addEventListener('abort', () => {
    stop();
    reject(signal.reason);
  }, { once: true });
});

const ends = { failed: 'The turn failed.', stopped: 'Stopped.' };

function turn(m) {
  if (m.state === 'cancelled') return [];
  const reply = new Message(false);
  reply.finish(m.reply ?? '');
  const parts = [request(m)];
  if (m.reply) parts.push(reply);
  if (ends[m.state]) parts.push(note(ends[m.state]));
  return parts;
}

function request(m) {
  if (m.purpose) return note(ownPrompt);
  if (m.own) return note(`The agent continued by itself: ${m.prompt}`);
  return userMessage(m.prompt);
}
