// The agent's changes, by file, and the ways to take them out of the sandbox: committed, as a patch, to the
// origin, or as a pull request.

import { call, poll, Problem, url } from './api.js';
import { patch } from './diff.js';
import { button, dialog, field, fill, h, problemBox, windowed } from './dom.js';
import { disable } from './focus.js';

const long = { patience: 300e3 };

export async function open(body, { session, sandbox, facts, signIn }) {
  const at = `v1/sessions/${session.id}`;
  const files = h('div', { class: 'patches' }, h('p', null, 'Loading…'));
  const result = h('div', { role: 'status' });
  const fresh = h('div', { role: 'status' });
  let shown = null; // the changes as text
  let turns = facts.turns.length; // turns of which the changes are known
  const which = h('select', { 'aria-label': 'Repository', onchange: () => load() }, (session.repositories ?? []).map((r) => h('option', { value: r.name }, r.name)));
  which.hidden = (session.repositories ?? []).length < 2;
  const repository = () => which.value || undefined;
  const query = () => (which.hidden ? '' : `?repository=${encodeURIComponent(which.value)}`);
  const save = h('a', { class: 'button', href: '#', download: `${session.id}.patch` }, 'Download');
  const actions = [
    button('Commit', commit),
    button('Bring up to date', () => act('Bringing the branch up to date…', () => call('POST', `${at}/sync`, { repository: repository() }, long),
      (r) => (r.failed ? problemBox({ detail: `Nothing was changed: ${r.reason}`, remedy: r.need || r.tried }) : `The branch is on top of ${r.commits ?? 0} new commits of ${r.onto || 'its origin'}.`))),
    button('Push', () => act('Pushing…', () => call('POST', `${at}/push`, { repository: repository() }, long), (r) => `Pushed the branch ${r.branch}, at ${String(r.commit ?? '').slice(0, 10)}.`)),
    button('Pull request', pull),
  ];
  body.replaceChildren(h('h2', null, 'Changes'), h('div', { class: 'row' }, which, button('Refresh', () => load()), save, ...actions), result, fresh, files);

  // act does what a button, or the form of a dialog, is for. An open dialog closes when that has succeeded; else it
  // keeps its text and shows the problem.
  const act = async (doing, what, told, el) => {
    const enable = disable(el ? [...actions, ...el.querySelectorAll('[type=submit]')] : actions);
    const problem = el?.querySelector('[role=status]');
    const at = (node) => (el?.open ? problem : result).replaceChildren(node);
    at(h('p', null, h('span', { class: 'spinner', 'aria-hidden': 'true' }), ` ${doing}`));
    try {
      const said = told(await what());
      enable(); // before the dialog returns the focus to its button
      el?.close();
      at(typeof said === 'string' ? h('p', null, said) : said);
    } catch (p) {
      enable();
      if (p.status === 401) signIn(p);
      at(problemBox(p));
    }
    load();
  };

  // git runs a git command in the repository, as the agent would.
  async function git(...args) {
    const r = await call('POST', `v1/sandboxes/${await sandbox()}/exec`, { args: ['git', ...args], workdir: session.repositories?.find((one) => one.name === which.value)?.dir ?? session.dir }, long);
    if (r.returncode !== 0) throw new Problem({ detail: `git ${args[0]} failed: ${(r.stderr || r.stdout || r.reason || '').trim().slice(0, 2000)}` });
    return r.stdout.trim();
  }

  function commit() {
    const text = h('textarea', { rows: '4', required: true, autofocus: true });
    const form = h('form', null, field('Commit message', text), h('div', { role: 'status' }), h('div', { class: 'row' }, h('button', { type: 'submit', class: 'primary' }, 'Commit all changes'), button('Not now', () => el.close())));
    const el = dialog('Commit', h('h2', null, 'Commit'), form);
    form.addEventListener('submit', (e) => {
      e.preventDefault();
      act('Committing…', async () => {
        if (facts.working) throw new Problem({ detail: 'The agent is at work in the repository.', remedy: 'Wait until its turn has ended, or stop it.' });
        await git('add', '--all');
        return git('commit', '--message', text.value);
      }, (said) => `Committed: ${said.split('\n')[0]}`, el);
    });
  }

  function pull() {
    const title = h('input', { type: 'text', placeholder: 'the agent writes it', autofocus: true });
    const text = h('textarea', { rows: '5', placeholder: 'the agent writes it' });
    const ready = h('input', { type: 'checkbox' });
    const form = h('form', null, field('Title', title), field('Text', text), h('label', { class: 'choice' }, ready, h('span', null, 'Ready for review, not a draft')), h('div', { role: 'status' }),
      h('div', { class: 'row' }, h('button', { type: 'submit', class: 'primary' }, 'Open it'), button('Not now', () => el.close())));
    const el = dialog('Open a pull request', h('h2', null, 'Open a pull request'), form);
    form.addEventListener('submit', (e) => {
      e.preventDefault();
      act('Opening a pull request…', () => call('POST', `${at}/pull-request`, { repository: repository(), title: title.value, body: text.value, ready: ready.checked }, long),
        (r) => h('p', null, r.new ? 'Opened ' : r.updated ? 'Updated ' : 'There was one already: ', /^https?:/.test(r.url) ? h('a', { href: r.url, target: '_blank', rel: 'noopener noreferrer' }, r.url) : r.url, r.note ? `: ${r.note}` : ''), el);
    });
  }

  async function load() {
    save.href = url(`${at}/diff${query()}`).href;
    try {
      const text = await call('GET', `${at}/diff${query()}`);
      fresh.replaceChildren();
      if (text === shown) return;
      shown = text;
      if (text.trim() === '') fill(files, [h('p', null, 'There are no changes yet.')]);
      else {
        const all = patch(text);
        files.replaceChildren();
        windowed(files, all.length, (i) => all[i], { first: 300, step: 1000, what: 'files' });
      }
    } catch (p) {
      if (p.status === 401) signIn(p);
      else files.replaceChildren(problemBox(p));
      shown = null;
    }
  }

  // look loads the changes of new turns. It does not replace changes that a person may be reading.
  async function look() {
    if (facts.turns.length === turns) return;
    turns = facts.turns.length;
    if (!shown?.trim()) await load();
    else if (await call('GET', `${at}/diff${query()}`) !== shown) fresh.replaceChildren(h('p', null, 'There are new changes. ', button('Show them', () => load(), { class: 'small' })));
  }
  await load();
  return poll(look, 1000);
}
