// The form for a schedule: a prompt in a new session, or a command in a new sandbox, at set times.

import { call } from './api.js';
import { button, dialog, field, h, problemBox } from './dom.js';

const kinds = { prompt: 'Send a prompt to an agent', run: 'Run a command' };
const examples = { '@hourly': 'every hour', '@daily': 'every day', '0 7 * * 1-5': 'on weekdays at 7:00', '@every 90m': 'every 90 minutes' };

// newSchedule shows the form. created is called when the schedule exists.
export function newSchedule(created) {
  const text = (attrs) => h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', ...attrs });
  const select = (options) => h('select', null, Object.entries(options).map(([value, label]) => h('option', { value }, label)));
  const name = text({ required: true, placeholder: 'review', autofocus: true });
  const kind = select(kinds);
  const cron = text({ required: true, placeholder: '0 7 * * 1-5', list: 'crons' });
  const zone = text({ placeholder: 'UTC', value: Intl.DateTimeFormat().resolvedOptions().timeZone ?? '' });
  const prompt = h('textarea', { rows: '3', placeholder: 'Look for dead code.' });
  const agent = select({ claude: 'Claude Code', opencode: 'OpenCode', codex: 'Codex', scripted: 'Scripted agent' });
  const repo = text({ placeholder: 'https://github.com/… (or none)' });
  const command = h('textarea', { rows: '3', spellcheck: 'false', placeholder: 'python3 report.py' });
  const image = text({ placeholder: 'that of the server' });
  const retries = h('input', { type: 'number', min: '0', max: '20', value: '0' });
  const error = h('div');
  const ofPrompt = h('div', { class: 'grid' }, field('Agent', agent), field('Repository', repo));
  const ofCommand = h('div', null, field('Command', command, 'A line for the shell'), field('Image', image));
  const prompts = h('div', null, field('Prompt', prompt), ofPrompt);
  const show = () => {
    prompts.hidden = kind.value !== 'prompt';
    ofCommand.hidden = kind.value !== 'run';
    prompt.required = !prompts.hidden;
    command.required = !ofCommand.hidden;
  };
  kind.addEventListener('change', show);
  show();
  const args = () => (kind.value === 'prompt' ? { session: { agent: agent.value, repo: repo.value.trim() || undefined, prompt: prompt.value } }
    : { args: ['sh', '-c', command.value], sandbox: { image: image.value.trim() || undefined } });
  const form = h('form', { onsubmit: async (e) => {
    e.preventDefault();
    error.replaceChildren();
    try {
      await call('POST', 'v1/schedules', { name: name.value.trim(), kind: kind.value, args: args(), cron: cron.value.trim(), zone: zone.value.trim(), retries: Number(retries.value) || -1, new: true });
      el.close();
      created();
    } catch (p) {
      error.replaceChildren(problemBox(p));
    }
  } }, h('h2', null, 'New schedule'), field('Name', name), field('What', kind), prompts, ofCommand,
  h('div', { class: 'grid' }, field('When', cron, 'As in crontab, or @daily'), field('Time zone', zone), field('Retries', retries)),
  h('datalist', { id: 'crons' }, Object.entries(examples).map(([value, label]) => h('option', { value, label }))), error,
  h('div', { class: 'row' }, h('button', { type: 'submit', class: 'primary' }, 'Create'), button('Cancel', () => el.close())));
  const el = dialog('New schedule', form);
  name.focus();
}
