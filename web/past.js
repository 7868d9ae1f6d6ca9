// The conversation of the sessions that a resumed session continues.

import { all, call } from './api.js';
import { Message, note, userMessage } from './turn.js';

const most = 20; // earlier sessions

// past returns the parts of the earlier conversation, the oldest first; none if the session continues none.
export async function past(session) {
  const parts = [];
  let id = session.continues;
  for (let n = 0; id && n < most; n++) {
    const at = `v1/sessions/${id}`;
    const [old, messages] = await Promise.all([call('GET', at), all(`${at}/messages`)]);
    parts.unshift(...messages.flatMap(turn), note('Resumed: the conversation continues from here'));
    id = old.continues;
  }
  return parts;
}

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
  if (m.purpose) return note('Harvest asked the agent for the text of a pull request.');
  if (m.own) return note(`The agent continued by itself: ${m.prompt}`);
  return userMessage(m.prompt);
}
