package pulls

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/text"
)

// Limits of the parts of a pull request's text, in bytes. Together they are below maxPullBody.
const (
	maxTemplate = 28 << 10
	maxSummary  = 28 << 10
	maxSubjects = 50 // commits that are listed
)

// limit shortens the parts of the text that the agent did not write.
func (p *Proposal) limit() {
	p.Work.Stat = text.Cut(p.Work.Stat, maxSummary)
	if len(p.Work.Template) > maxTemplate {
		p.Work.Template = "" // it would leave no room for the text
	}
}

// list returns the subjects of commits as a list.
func list(subjects []string) string {
	var b strings.Builder
	for _, subject := range subjects[:min(len(subjects), maxSubjects)] {
		fmt.Fprintf(&b, "- %s\n", subject)
	}
	if more := len(subjects) - maxSubjects; more > 0 {
		fmt.Fprintf(&b, "- and %d more commits\n", more)
	}
	return strings.TrimSpace(b.String())
}

// prompt returns the prompt that asks the agent for the text of a pull request.
func (p *Proposal) prompt() string {
	prompt := "This request is from Harvest, not from the user, whose conversation continues afterwards. " +
		"Write the text of a pull request for the work on this branch. " +
		"Change no file, make no commit, and ask nothing. Reply with the text and nothing else.\n\n" +
		"The first line is the title: plain text, at most 72 characters. " +
		"After an empty line follows the description in Markdown: what changed and why, " +
		"what a reviewer should look at, and how it was tested. Be brief. Claim nothing that you did not do. " +
		"Leave out secrets, tokens and private paths.\n\n"
	if p.Work.Template != "" {
		prompt += "The repository has a template for the description. " +
			"Keep all of its headings, in their order, and fill it in:\n\n" + p.Work.Template + "\n\n"
	}
	return prompt + "The commits:\n\n" + list(p.Work.Subjects) + "\n\nThe changed files:\n\n" + p.Work.Stat
}

// summary asks the agent for the title and the text of a pull request.
func (p *Proposal) summary(ctx context.Context) (title, body string, err error) {
	reply, err := p.Ask(ctx, p.prompt())
	if err != nil {
		return "", "", err
	}
	title, body = splitSummary(reply)
	if body == "" {
		return "", "", errors.Newf(errors.Unavailable, "the agent's reply has no description")
	}
	return title, body, nil
}

// splitSummary splits a reply of the agent into a title and a description. Agents may enclose the reply in a code block
// or mark the title as a heading.
func splitSummary(reply string) (head, body string) {
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
	return text.Title(first), text.Cut(strings.TrimSpace(rest), maxSummary)
}

// fill returns a text that the agent wrote if it has all headings of the template, in their order; otherwise the text,
// and the template below it.
func fill(template, body string) string {
	have := headings(body)
	for _, want := range headings(template) {
		i := slices.Index(have, want)
		if i < 0 {
			return strings.TrimSpace(body + "\n\n" + template)
		}
		have = have[i+1:]
	}
	return body
}

// headings returns the headings of a text in Markdown, those in code blocks and comments excepted.
func headings(markdown string) (all []string) {
	code, comment := false, false
	for line := range strings.Lines(markdown) {
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
