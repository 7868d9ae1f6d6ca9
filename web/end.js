// The notice that a session has ended: the reason, the state of its files, and how to continue.

import { call, follow } from './api.js';
import { patch } from './diff.js';
import { button, bytes, fill, h, plain, problemBox, sure, windowed } from './dom.js';
import { files as edited, intent, keep, leave, left, unsaved } from './drafts.js';
import { disable } from './focus.js';
import { pass } from './unsent.js';

const patience = 60e3; // milliseconds to wait for the state of the files

const paths = (all) => windowed(h('ul'), all.length, (i) => h('li', null, h('code', null, all[i])), { what: 'files' });

// endNotice returns the notice. failed says which step of the session's start failed, '' for none: its reason is at the
// start. unsent has the prompts that were not sent.
export function endNotice({ session, reason, failed, again, signIn, patch: text, changed, unsent }) {
  const files = h('div');
  const error = h('div');
  const prompts = h('div');
  const next = () => {
    const [before, all] = [left(), unsent.take()];
    leave([...before.prompts, ...all.prompts], [before.typed, all.typed].filter(Boolean).join('\n'));
  };
  const row = h('div', { class: 'row' }, button('New session, same agent and repository', () => {
    next();
    again(session);
  }, { class: 'primary' }), h('a', { class: 'button', href: '#/', onclick: next }, 'New session'));
  const el = h('section', { class: 'ended', role: 'alert', tabindex: '-1', 'aria-label': 'The session has ended' }, h('h2', null, 'This session has ended'),
    h('p', null, failed ? `${failed}.` : reason ? `Reason: ${reason}.` : 'Its sandbox has ended.'), h('p', { class: 'meta' }, 'The conversation stays here.'), files, prompts, row, error);
  if (text?.trim()) el.insertBefore(h('details', null, h('summary', null, 'The agent\'s changes'), patch(text)), row);
  else if (changed.size > 0) el.insertBefore(h('details', null, h('summary', null, 'Files with changes of the agent'), paths([...changed])), row);
  resume(0);

  // resume offers to continue, as soon as the remains of the sandbox are known.
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
      const place = s3?.sync_on_terminate && h('div', { class: 's3' }, s3.sync_error ? unsent(s3.sync_error) : `The volume ${s3.volume} was uploaded to s3://${s3.bucket ?? ''}/${s3.prefix ?? ''}.`);
      if (place) sent(id, s3.volume, place);
      fill(files, [
        place || s3?.sync_error && unsent(s3.sync_error),
        box.snapshot_error && problemBox({ detail: `The files could not be kept: ${box.snapshot_error}` }),
        box.snapshot_id && h('p', { class: 'meta' }, `Its files are kept as the snapshot ${box.snapshot_id}.`),
      ]);
      if (box.snapshot_id && !row.querySelector('.resume')) row.insertBefore(button('Continue with its files', go, { class: 'resume' }), row.children[1]);
    } catch (p) {
      if (p.status === 401) signIn(p);
      else if (p.status !== 404) error.replaceChildren(problemBox(p));
    }
  }

  // sent shows how much was uploaded, including later uploads.
  function sent(id, volume, place) {
    const stop = follow('v1/events?tail=200', {
      event: (name, e) => {
        if (!place.isConnected) stop();
        else if (e.sandbox_id !== id) return;
        else if (name === 'volume.sync_failed') place.replaceChildren(unsent(e.reason));
        else if (name === 'volume.synced' && e.direction === 'up') {
          place.replaceChildren(`The volume ${volume} was uploaded to ${e.place}: ${count(e.files, 'file')}, ${bytes(e.bytes)}; unchanged: ${count(e.skipped + e.updated, 'file')}`
            + (e.failed > 0 ? `; ${count(e.failed, 'file')} could not be uploaded.` : '.'));
        }
      },
      state: () => {}, problem: () => {},
    });
    setTimeout(stop, patience);
  }

  async function go() {
    const enable = disable([...row.querySelectorAll('button')]);
    try {
      const body = { continues: session.id, limits: session.limits };
      const once = intent(`resume:${session.id}`, body);
      const made = await call('POST', 'v1/sessions', body, once);
      once.done();
      await pass(made.id, unsent.take());
      location.hash = `#/s/${made.id}`;
    } catch (p) {
      error.replaceChildren(problemBox(p));
      enable();
    }
  }
  // look shows the prompts that were not sent.
  const look = () => fill(prompts, [unsent.view()]);
  look();
  return Object.assign(el, { look });
}

const count = (n, what) => (n === 1 ? `1 ${what}` : `${n} ${what}s`);
const unsent = (why) => problemBox({ detail: `The files could not be uploaded to S3: ${why}`, remedy: 'The server tries again.' });

// ends asks whether to end a session, and ends it. It names edits of files that are not saved, and asks again if changes
// would be lost that are not handed back. act
// shows the problem of an action, and ending learns whether the session is being ended.
export function ends(session, facts, act, ending) {
  const of = `${edited}${session.sandbox_id}:`;
  const edits = unsaved(of);
  const names = edits.slice(0, 5).map((name) => plain(name.slice(of.length))).join(', ') + (edits.length > 5 ? ', …' : '');
  const lost = edits.length > 0 ? ` Your unsaved changes are discarded: ${names}.` : '';
  const end = async (query) => {
    ending(true);
    try {
      await call('DELETE', `v1/sessions/${session.id}${query}`);
      for (const name of edits) keep(name, '');
    } catch (p) {
      ending(false);
      if (p.status === 409 && query) sure('End the session and discard changes?', p.detail, 'End and discard them', () => end(''));
      else act(() => { throw p; });
    }
  };
  sure('End the session?', 'Its sandbox ends, too. The conversation stays readable, and its files are kept as a snapshot.' + lost, 'End it', async () => {
    try { // the data disappears with the sandbox
      facts.patch = await call('GET', `v1/sessions/${session.id}/diff`);
    } catch { /* best effort: the session may have no diff now */ }
    end('?discard=false');
  });
}
