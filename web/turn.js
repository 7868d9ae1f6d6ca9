// The parts of a conversation: messages, tool calls, questions, as elements that events fill.

import { call, now } from './api.js';
import { bare, coloured } from './ansi.js';
import { clipped, edited, edits } from './diff.js';
import { add, button, copyButton, fill, h, ms, problemBox, soon, windowed } from './dom.js';
import { disable } from './focus.js';
import { markdown } from './markdown.js';

const shownMost = 4000; // characters of a prompt

export function userMessage(prompt) {
  const text = h('div', { class: 'text' }, prompt.slice(0, shownMost));
  const el = h('article', { class: 'message user', 'aria-label': 'You' }, text);
  if (prompt.length > shownMost) {
    const more = button(`Show all ${prompt.length} characters`, () => {
      text.textContent = prompt;
      more.remove();
    }, { class: 'small' });
    text.append('… ', more);
  }
  return { el, words: () => prompt };
}

// note is a remark between the messages.
export const note = (text) => h('p', { class: 'note' }, text);

// Parts of a conversation make their elements when they are first shown. In a long conversation, most never
// are.

// Message is a text of the agent. Its pieces are drawn once per frame, and those of a long text less often.
export class Message {
  constructor(thinking) {
    this.text = '';
    this.thinking = thinking;
  }

  get el() {
    if (!this.made) {
      this.body = h('div', { class: 'text' });
      this.made = this.thinking
        ? h('details', { class: 'message thought' }, h('summary', null, 'Thoughts'), this.body)
        : h('article', { class: 'message agent', 'aria-label': 'Agent' }, this.body);
      this.draw();
    }
    return this.made;
  }

  words() { return this.text; }

  add(piece) {
    this.text += piece;
    if (this.due || !this.made) return;
    this.due = true;
    const draw = () => {
      this.due = false;
      if (!this.complete) this.draw();
    };
    if (this.text.length > 20_000) setTimeout(draw, 250);
    else soon(draw);
  }

  finish(text) {
    if (this.complete && (text ?? this.text) === this.text) return;
    this.text = text ?? this.text;
    this.complete = true;
    if (this.made) this.draw();
  }

  draw() {
    this.body.replaceChildren(markdown(this.text, this.complete));
    this.made.classList.toggle('streaming', !this.complete);
  }
}

const about = (input) => {
  if (typeof input !== 'object' || input === null) return input ? String(input) : '';
  const known = input.command ?? input.file_path ?? input.filePath ?? input.path ?? input.pattern ?? input.url ?? input.query ?? input.description;
  if (typeof known === 'string') return known;
  // JSON would double backslashes and hide line ends.
  return Object.entries(input).map(([name, value]) => `${name}: ${typeof value === 'string' ? value : JSON.stringify(value)}`).join('\n');
};

// folded is how many lines of output are shown at first.
const folded = 12;

const few = 2000; // lines of output added to the page at once
const shortest = 100; // milliseconds, below which the duration of a tool call is not exact
const wide = 10_000; // characters of a line added at once

// Tool is a card for a tool call.
export class Tool {
  constructor(e) {
    this.tool = e.tool ?? 'Tool';
    this.input = e.input;
    this.edit = edited(this.tool, e.input);
    this.text = '';
    this.said = 'running';
    this.running = true;
    this.open = this.edit;
    this.remarks = [];
  }

  get el() {
    if (!this.made) this.build();
    return this.made;
  }

  words() { return `${this.tool} ${about(this.input)} ${bare(this.text)} ${this.remarks.join(' ')}`; }

  build() {
    const brief = about(this.input);
    this.state = h('span', { class: 'state' });
    this.output = h('pre', { class: 'output', tabindex: '0', role: 'group', 'aria-label': 'Output', hidden: true });
    this.more = button('', () => {
      this.all = !this.all;
      this.draw();
    }, { class: 'small', hidden: true });
    this.notes = h('div', { class: 'notes' });
    const input = this.edit ? edits(this.tool, this.input) : brief.includes('\n') || brief.length > 80 ? [h('pre', { tabindex: '0' }, brief)] : [];
    this.made = h('details', { class: 'tool' },
      h('summary', null, h('b', null, this.tool), h('code', null, brief.split('\n')[0].slice(0, 200)), this.state),
      h('div', { class: 'body' }, input, this.output, h('div', { class: 'row' }, this.more), this.notes));
    this.made.open = this.open;
    this.draw();
  }

  unfold(open) {
    this.open = open;
    if (this.made) this.made.open = open;
  }

  add(text) {
    this.text += text;
    if (!this.open) this.unfold(true);
    if (!this.due && this.made) {
      this.due = true;
      soon(() => {
        this.due = false;
        this.draw();
      });
    }
  }

  finish(e) {
    this.text = e.text ?? this.text;
    if (this.edit && !e.failed) this.text = '';
    const code = /exit (?:status|code):? (\d+)/i.exec(this.text)?.[1];
    const stopped = e.failed && e.interrupted && !e.denied; // by a person, which is no failure
    this.said = e.denied ? 'denied' : stopped ? 'stopped' : !e.failed ? (this.isCommand() ? 'exit 0' : 'done') : code !== undefined ? `exit ${code}` : 'failed';
    // The server measures when it reads the agent's lines, which may come together.
    if (e.took_ms) this.said += ` · ${e.took_ms < shortest ? 'under 0.1 s' : ms(e.took_ms)}`;
    this.running = false;
    this.failed = Boolean(e.failed) && !stopped;
    this.unfold(this.failed || stopped || this.edit || this.isCommand());
    if (this.made) this.draw();
  }

  isCommand() { return /^(bash|shell|exec)$/i.test(this.tool); }

  draw() {
    this.state.textContent = this.said;
    this.made.classList.toggle('running', this.running);
    this.made.classList.toggle('failed', Boolean(this.failed));
    const lines = this.text.replace(/\n$/, '').split('\n');
    const long = lines.length > folded;
    this.output.hidden = this.text === '';
    this.show(long && !this.all ? lines.slice(-folded) : lines);
    this.more.hidden = !long;
    this.more.textContent = this.all ? 'Show the end only' : `Show all ${lines.length} lines`;
    if (this.text !== '' && !this.copy) {
      this.copy = copyButton(() => bare(this.text), this.output);
      this.more.after(this.copy);
    }
    this.notes.replaceChildren();
    windowed(this.notes, this.remarks.length, (i) => h('small', null, this.remarks[i]), { what: 'remarks' });
  }

  // show adds lines of output to the card. Of many lines it adds the first ones and a button for more.
  show(lines) {
    const widest = lines.reduce((n, l) => Math.max(n, l.length), 0);
    if (lines.length <= few && widest <= wide) fill(this.output, coloured(lines.join('\n')));
    else {
      this.output.replaceChildren();
      windowed(this.output, lines.length, (i) => h('span', null, lines[i].length > wide ? clipped(bare(lines[i])) : coloured(lines[i]), i < lines.length - 1 && '\n'), { first: few });
    }
  }

  note(text) {
    this.remarks.push(text);
    if (this.made) this.draw();
  }
}

// left describes the time until the agent decides a question itself.
const left = (deadline) => `Without an answer in ${ms(1000 * Math.max(0, Math.ceil((Date.parse(deadline) - now()) / 1000)))}, the agent decides itself.`;

// question is a form for a question of the agent: questions with choices, or whether a tool may run.
export function question(session, e) {
  const form = h('form', { class: 'question', 'aria-label': 'The agent asks' });
  const error = h('div');
  const send = async (body) => {
    form.answering = form.contains(document.activeElement);
    const enable = disable([...form.querySelectorAll('button, input, textarea')]);
    try {
      await call('POST', `v1/sessions/${session}/answers/${encodeURIComponent(e.id)}`, body);
    } catch (p) {
      error.replaceChildren(problemBox(p));
      enable();
      return false;
    }
    return true;
  };
  const time = e.deadline && h('p', { class: 'meta deadline', title: new Date(e.deadline).toLocaleString() });
  let answered; // sends the answers to all questions
  const row = h('div', { class: 'row' });
  if (e.questions?.length) {
    const asked = e.questions.map((q, n) => {
      const own = h('input', { type: 'text', 'aria-label': `Another answer to: ${q.text}`, placeholder: q.options?.length ? 'Another answer' : 'Your answer', autocomplete: 'off' });
      const choices = (q.options ?? []).map((o) => h('input', { type: q.multiple ? 'checkbox' : 'radio', name: `q${n}`, value: o.label }));
      form.append(h('fieldset', null, h('legend', null, q.text),
        choices.map((c, i) => h('label', { class: 'choice' }, c, h('span', null, q.options[i].label, q.options[i].description && h('small', null, ` ${q.options[i].description}`)))), own));
      return () => [q.text, own.value.trim() || choices.filter((c) => c.checked).map((c) => c.value).join(', ')];
    });
    answered = () => send({ allow: true, answers: Object.fromEntries(asked.map((get) => get())) });
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      const open = asked.findIndex((get) => get()[1] === '');
      if (open < 0) answered();
      else {
        error.replaceChildren(h('p', { role: 'alert' }, 'Choose or write an answer to each question.'));
        form.querySelectorAll('fieldset')[open].querySelector('input[type=text]').focus();
      }
    });
    row.append(h('button', { type: 'submit', class: 'primary' }, 'Answer'), button('No answer', () => send({ allow: false, message: 'the person gave no answer' })));
  } else {
    if (e.text) form.append(h('p', null, 'The agent proposes this plan:'), h('pre', { tabindex: '0' }, e.text));
    else add(form, [h('p', null, h('b', null, e.tool ?? 'A tool'), ' asks to run:'), edits(e.tool, e.input), h('pre', { tabindex: '0' }, about(e.input))].flat());
    form.addEventListener('submit', (event) => event.preventDefault());
    const reason = h('input', { type: 'text', 'aria-label': 'Reason, if you deny', placeholder: 'Reason, if you deny', autocomplete: 'off' });
    row.append(button('Allow', () => send({ allow: true }), { class: 'primary' }), button('Allow always', () => send({ allow: true, always: true })),
      button('Deny', () => send({ allow: false, message: reason.value.trim() || 'the person said no' })), reason);
  }
  add(form, [time, error, row]);
  form.tick = () => { if (time) time.textContent = left(e.deadline); };
  form.tick();

  const open = () => [...form.querySelectorAll('fieldset')].find((f) => !f.querySelector('input:checked') && f.querySelector('input[type=text]').value === '');
  // wants names the question that say answers.
  form.wants = () => {
    if (!e.questions?.length) return 'Allow or deny above';
    return e.questions.length > 1 && open() ? `Your answer to: ${open().querySelector('legend').textContent}` : 'Your answer';
  };
  // say takes words of the prompt as the answer to the first question without one, and sends the answers if they are
  // complete. It reports whether it took the words. Only a button decides an approval.
  form.say = async (words) => {
    if (!e.questions?.length) {
      error.replaceChildren(h('p', { role: 'alert' }, 'Nothing is decided yet: press Allow or Deny.'));
      form.scrollIntoView({ block: 'nearest' });
      return false;
    }
    const next = open();
    if (next) next.querySelector('input[type=text]').value = words;
    return open() ? true : answered();
  };

  // settle replaces the form with the question and its answer; answer is undefined without one. It reports whether the
  // form had the focus.
  form.settle = (answer) => {
    const asked = e.questions?.length
      ? e.questions.map((q) => h('p', null, h('b', null, q.text), ' ', answer?.answers?.[q.text] ?? (answer ? 'no answer' : 'not answered')))
      : [h('p', null, h('b', null, e.tool ?? 'A tool'), ` asked to run: ${!answer ? 'not answered' : answer.always ? 'allowed always' : answer.allow ? 'allowed' : 'denied'}`), h('pre', { tabindex: '0' }, e.text || about(e.input))];
    if (answer?.message && !answer.allow) asked.push(h('p', null, `“${answer.message}”`));
    const had = form.answering || form.contains(document.activeElement);
    form.classList.add('settled');
    form.setAttribute('aria-label', 'The agent asked');
    fill(form, asked);
    return had;
  };
  return form;
}
