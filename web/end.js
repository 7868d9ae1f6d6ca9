// The notice that a session has ended: why, what became of its files, and how to go on.

import { call } from './api.js';
import { patch } from './diff.js';
import { button, h, problemBox } from './dom.js';

export function endNotice({ session, reason, again, signIn, patch: text, changed }) {
  const files = h('div');
  const error = h('div');
  const row = h('div', { class: 'row' }, button('New session, same agent and repository', () => again(session), { class: 'primary' }), h('a', { class: 'button', href: '#/' }, 'New sandbox'));
  const el = h('section', { class: 'ended', role: 'alert', 'aria-label': 'The session has ended' }, h('h2', null, 'This session has ended'),
    h('p', null, reason ? `Reason: ${reason}.` : 'Its sandbox is gone.'), h('p', { class: 'meta' }, 'The conversation stays here.'), files, row, error);
  if (text?.trim()) el.insertBefore(h('details', null, h('summary', null, 'What the agent has changed'), patch(text)), row);
  else if (changed.size > 0) el.insertBefore(h('details', null, h('summary', null, 'Files that the agent has changed'), h('ul', null, [...changed].map((path) => h('li', null, h('code', null, path))))), row);
  resume(0);

  // resume offers to go on, as soon as what is left of the sandbox is known.
  async function resume(attempt) {
    try {
      const id = session.sandbox_id || (await call('GET', `v1/sessions/${session.id}`)).sandbox_id;
      if (!id) return;
      const box = await call('GET', `v1/sandboxes/${id}`);
      if (!box.ended_at && attempt < 20) {
        setTimeout(() => resume(attempt + 1), 500);
        return;
      }
      const s3 = box.s3;
      files.replaceChildren(...[
        s3 && (s3.sync_error ? problemBox({ detail: `The files could not be sent to S3: ${s3.sync_error}`, remedy: 'It is tried again.' })
          : s3.sync_on_terminate && h('p', { class: 's3' }, `The volume ${s3.volume} was sent to s3://${s3.bucket ?? ''}/${s3.prefix ?? ''}.`)),
        box.snapshot_error && problemBox({ detail: `The files could not be kept: ${box.snapshot_error}` }),
        box.snapshot_id && h('p', { class: 'meta' }, `Its files are kept as the image ${box.snapshot_id}.`),
      ].filter(Boolean));
      if (box.snapshot_id && !row.querySelector('.resume')) row.insertBefore(button('Resume with its files', go, { class: 'resume' }), row.children[1]);
    } catch (p) {
      if (p.status === 401) signIn(p);
      else if (p.status !== 404) error.replaceChildren(problemBox(p));
    }
  }

  async function go() {
    for (const b of row.querySelectorAll('button')) b.disabled = true;
    try {
      const made = await call('POST', 'v1/sessions', { continues: session.id, limits: session.limits });
      location.hash = `#/s/${made.id}`;
    } catch (p) {
      error.replaceChildren(problemBox(p));
      for (const b of row.querySelectorAll('button')) b.disabled = false;
    }
  }
  return el;
}
