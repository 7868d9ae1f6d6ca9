package session

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/github"
	"github.com/RelevanceAI/harvest/session/workspace"
)

// pushed is the work on a pushed branch.
type pushed struct{ workspace.Work }

// Limits of the parts of a pull request's text, in bytes. Together they are below maxPullBody.
const (
	maxTemplate = 28 << 10
	maxSummary  = 28 << 10
	maxSubjects = 50 // commits that are listed
)

// pushed reads the work on the branch of a session.
func (m *Manager) pushed(ctx context.Context, s Session, repo workspace.Repository) (pushed, error) {
	w, err := m.tree(s, s.SandboxID).Pushed(ctx, repo, github.Templates())
	w.Stat = cut(w.Stat, maxSummary)
	if len(w.Template) > maxTemplate {
		w.Template = "" // it would leave no room for the text
	}
	return pushed{w}, err
}

// list returns the subjects of the commits as a list.
func (p pushed) list() string {
	var b strings.Builder
	for _, subject := range p.Subjects[:min(len(p.Subjects), maxSubjects)] {
		fmt.Fprintf(&b, "- %s\n", subject)
	}
	if more := len(p.Subjects) - maxSubjects; more > 0 {
		fmt.Fprintf(&b, "- and %d more commits\n", more)
	}
	return strings.TrimSpace(b.String())
}

// prompt returns the prompt that asks the agent for the text of a pull request.
func (p pushed) prompt() string {
	text := "This request is from Harvest, not from the user, whose conversation continues afterwards. Write the text of a pull request for the work on this branch. " +
		"Change no file, make no commit, and ask nothing. Reply with the text and nothing else.\n\n" +
		"The first line is the title: plain text, at most 72 characters. After an empty line follows the description in Markdown: what changed and why, " +
		"what a reviewer should look at, and how it was tested. Be brief. Claim nothing that you did not do. Leave out secrets, tokens and private paths.\n\n"
	if p.Template != "" {
		text += "The repository has a template for the description. Keep all of its headings, in their order, and fill it in:\n\n" + p.Template + "\n\n"
	}
	return text + "The commits:\n\n" + p.list() + "\n\nThe changed files:\n\n" + p.Stat
}

// summary asks the agent for the title and the text of a pull request.
func (p pushed) summary(ctx context.Context, r *runner) (title, text string, err error) {
	reply, err := r.ask(ctx, PurposePull, p.prompt())
	if err != nil {
		return "", "", err
	}
	title, text = splitSummary(reply)
	if text == "" {
		return "", "", errors.Newf(errors.Unavailable, "its reply has no description")
	}
	return title, text, nil
}

// splitSummary splits a reply of the agent into a title and a description. Agents may enclose the reply in a code block
// or mark the title as a heading.
func splitSummary(reply string) (head, text string) {
	reply = strings.TrimSpace(reply)
	if lines := strings.Split(reply, "\n"); len(lines) > 2 && strings.HasPrefix(lines[0], "```") &&
		strings.TrimSpace(lines[len(lines)-1]) == "```" {
		reply = strings.TrimSpace(strings.Join(lines[1:len(lines)-1], "\n"))
	}
	first, rest, _ := strings.Cut(reply, "\n")
	first = strings.Trim(strings.TrimLeft(strings.TrimSpace(first), "# "), "*` ")
	if label := "title:"; len(first) > len(label) && strings.EqualFold(first[:len(label)], label) {
		first = strings.Trim(first[len(label):], "*` ")
	}
	return title(first), cut(strings.TrimSpace(rest), maxSummary)
}

// cut shortens a text to most bytes and says so.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "\n\n[the rest is left out]"
}

// fill returns a text that the agent wrote if it has all headings of the template, in their order; otherwise the text,
// and the template below it.
func fill(template, text string) string {
	have := headings(text)
	for _, want := range headings(template) {
		i := slices.Index(have, want)
		if i < 0 {
			return strings.TrimSpace(text + "\n\n" + template)
		}
		have = have[i+1:]
	}
	return text
}

// headings returns the headings of a text in Markdown, those in code blocks and comments excepted.
func headings(text string) (all []string) {
	code, comment := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case comment:
			comment = !strings.Contains(line, "-->")
		case strings.HasPrefix(line, "```"):
			code = !code
		case code:
		case strings.HasPrefix(line, "<!--"):
			comment = !strings.Contains(line, "-->")
		case strings.HasPrefix(line, "#"):
			if name := strings.TrimLeft(line, "#"); len(line)-len(name) <= 6 && strings.HasPrefix(name, " ") {
				all = append(all, strings.TrimSpace(strings.TrimRight(name, "# ")))
			}
		}
	}
	return all
}

// ask sends the agent a prompt of Harvest's own and returns its reply. The turn is one of the session, with events, cost
// and limits; its messages have the purpose. ask does not wait for other turns: Conflict. Its time limit is SummaryWait.
func (r *runner) ask(ctx context.Context, purpose, prompt string) (string, error) {
	if !needsModel(r.m.opts.Agents[r.session().Agent]) {
		return "", errors.Newf(errors.Unsupported, "the agent has no model")
	}
	var m Message
	ended := make(chan Message, 1)
	err := r.call(ctx, func() (err error) {
		if r.current != nil || len(r.queue) > 0 || r.held || !r.ready {
			return errors.Newf(errors.Conflict, "it works on another prompt")
		}
		if err := r.exhausted(); err != nil {
			return err
		}
		if m, err = r.enqueue(ctx, prompt, purpose); err == nil {
			r.waiters[m.ID] = ended
		}
		return err
	})
	if err != nil {
		return "", err
	}
	limit := time.NewTimer(r.m.opts.SummaryWait)
	defer limit.Stop()
	select {
	case m = <-ended:
		if m.State != Completed {
			return "", errors.Newf(errors.Unavailable, "its turn is %s: %s", m.State, cut(m.Reply, 500))
		}
		return m.Reply, nil
	case <-r.gone:
		return "", hasEnded(r.id)
	case <-limit.C:
		r.withdraw(ctx, m.ID, "it exceeded its time limit")
		return "", errors.Newf(errors.Timeout, "it exceeded %s", r.m.opts.SummaryWait)
	case <-ctx.Done():
		r.withdraw(ctx, m.ID, "the caller disconnected")
		return "", errors.Wrapf(ctx.Err(), "ask the agent of session %s", r.id)
	}
}

// withdraw ends a turn that ask began.
func (r *runner) withdraw(ctx context.Context, id, why string) {
	_ = r.call(context.WithoutCancel(ctx), func() error { // fails only if the session has ended
		delete(r.waiters, id)
		if r.current != nil && r.current.ID == id {
			r.interrupt(why)
			return nil
		}
		return r.cancel(id)
	})
}

// tellWaiter passes a message that has ended to the caller that waits for it.
func (r *runner) tellWaiter(m Message) {
	if ended := r.waiters[m.ID]; ended != nil {
		ended <- m
		delete(r.waiters, m.ID)
	}
}
