// Package pulls opens and updates the pull requests of sessions on GitHub. The agent writes their text; if it cannot,
// the text is a list of the commits.
package pulls

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/github"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// Request contains the fields of a session's pull request. Empty fields are filled: the text by the agent.
type Request struct {
	Repository string
	Title      string
	Body       string
	Base       string // target branch; "" means the session's starting branch
	Ready      bool   // not a draft
	NoSummary  bool   // do not ask the agent for the text; the text of an existing pull request stays
}

// Pull is a session's pull request.
type Pull struct {
	github.Pull
	New     bool   // it was just opened
	Updated bool   // its commits or its text have changed
	Summary string // source of its text, one of the constants below
	Note    string // one sentence about what the caller may not expect; "" for nothing
}

// The sources of a pull request's text.
const (
	SummaryAgent   = "agent"   // the agent wrote it
	SummaryCommits = "commits" // a list of the commits
	SummaryGiven   = "given"   // by the caller
	SummaryKept    = "kept"    // the text that it had
)

// Limits of a pull request, in bytes. GitHub accepts 256 characters of a title and 65,536 of a body.
const (
	maxPullTitle = 256
	maxPullBody  = 60_000
)

// Check returns Invalid if a field is invalid.
func (p Request) Check() error {
	switch {
	case len(p.Title) > maxPullTitle || strings.ContainsAny(p.Title, "\n\r\x00"):
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid title: %d bytes, or several lines", len(p.Title)),
			"give one line of at most %d bytes", maxPullTitle)
	case len(p.Body) > maxPullBody || strings.ContainsRune(p.Body, 0):
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid text: %d bytes, or a NUL byte", len(p.Body)),
			"give text of at most %d bytes", maxPullBody)
	}
	return git.CheckBranch(p.Base)
}

// Proposal is a pull request that is being opened or updated.
type Proposal struct {
	Request Request
	Hub     *github.Client
	Path    string // of the repository, such as "owner/name"
	Session string // ID
	Name    string // of the session: the title without a better one
	Branch  string // with the work
	Work    workspace.Work
	// Ask asks the agent and returns its reply.
	Ask func(ctx context.Context, prompt string) (string, error)
}

// pullText is the title and the body of a pull request.
type pullText struct {
	title, body  string
	source, note string // as in Pull
}

// text returns the text of the pull request. It asks the agent unless the caller gave one.
func (p *Proposal) text(ctx context.Context) pullText {
	p.limit()
	t := pullText{title: p.Request.Title, body: p.Request.Body, source: SummaryGiven}
	if t.body == "" {
		said := strings.TrimSpace(list(p.Work.Subjects) + "\n\n" + p.Work.Template)
		t.source = SummaryCommits
		if !p.Request.NoSummary {
			switch title, summary, err := p.summary(ctx); {
			case err != nil:
				t.note = errors.Message(err)
			default:
				t.title, said, t.source = cmp.Or(t.title, title), fill(p.Work.Template, summary), SummaryAgent
			}
		}
		t.body = said
	}
	t.title = logf.Redacted(cmp.Or(t.title, p.Name, p.Branch))
	t.body = logf.Redacted(marks().ReplaceAllString(t.body,
		"")) + "\n\n---\nThe work of an agent in Harvest session " + p.Session + "."
	return t
}

// Open opens the pull request.
func (p *Proposal) Open(ctx context.Context, base string) (Pull, error) {
	t := p.text(ctx)
	if t.note != "" {
		t.note = "its text lists the commits, because the agent wrote none: " + t.note
	}
	made, err := p.Hub.OpenPull(ctx, p.Path, github.PullRequest{
		Title: t.title, Body: p.mark(t).attach(t.body), Head: p.Branch, Base: base, Draft: !p.Request.Ready,
	})
	return Pull{Pull: made, New: true, Summary: t.source, Note: t.note}, err
}

// Update updates a pull request whose branch was pushed. Title and body stay if a person has changed them there.
func (p *Proposal) Update(ctx context.Context, old github.Pull) (Pull, error) {
	before, rest := readMark(old.Body)
	ownTitle, ownBody := before.title == digest(old.Title), before.body == digest(rest)
	made := Pull{Pull: old, Summary: SummaryKept, Updated: before.head != p.Work.Head}
	if p.Request.Ready && old.Draft {
		made.Note = "it is still a draft; mark it as ready on GitHub"
	}
	setTitle, setBody := p.Request.Title != "" || ownTitle, p.Request.Body != "" || ownBody
	switch given := p.Request.Title != "" || p.Request.Body != ""; {
	case given:
		p.Request.NoSummary = p.Request.NoSummary || before.head == p.Work.Head || !ownBody
	case p.Request.NoSummary || before.head == p.Work.Head:
		return made, nil
	case !ownTitle && !ownBody:
		made.Note = "its text was changed on GitHub, or is not Harvest's, and stays"
		return made, nil
	}
	t := p.text(ctx)
	if t.source == SummaryCommits && p.Request.Title == "" { // a summary of the agent is worth more
		made.Note = "its text stays, because the agent wrote no new one: " + t.note
		return made, nil
	}
	after, change := p.mark(t), github.PullChange{Title: t.title}
	if !setTitle {
		after.title, change.Title = before.title, ""
	}
	if !setBody || t.source == SummaryCommits {
		after.body, t.body = before.body, rest
	} else {
		made.Summary = t.source
	}
	change.Body = after.attach(t.body)
	updated, err := p.Hub.UpdatePull(ctx, p.Path, old.Number, change)
	made.Pull, made.Updated = updated, true
	return made, err
}

// mark is the last line of a body: an HTML comment, by which Harvest recognizes later whether a person has changed the
// text. Fields are digests of the texts that Harvest wrote, "-" for texts that the caller gave.
type mark struct{ session, head, title, body string }

var marks = pattern.New(`(?m)^<!-- harvest (ses_\w+) head=(\w*) title=([\w-]+) body=([\w-]+) -->\s*$`)

// mark returns the mark for a text.
func (p *Proposal) mark(t pullText) mark {
	after := mark{p.Session, p.Work.Head, digest(t.title), digest(t.body)}
	if p.Request.Title != "" {
		after.title = "-"
	}
	if p.Request.Body != "" {
		after.body = "-"
	}
	return after
}

// attach returns a body with the mark.
func (k mark) attach(body string) string {
	return fmt.Sprintf("%s\n\n<!-- harvest %s head=%s title=%s body=%s -->", body, k.session, k.head,
		cmp.Or(k.title, "-"), cmp.Or(k.body, "-"))
}

// readMark returns the mark of a body and the text around it.
func readMark(body string) (k mark, rest string) {
	at := marks().FindAllStringSubmatchIndex(body, -1)
	if len(at) == 0 {
		return mark{}, body
	}
	last := at[len(at)-1]
	group := func(n int) string { return body[last[2*n]:last[2*n+1]] }
	rest = strings.TrimRight(body[:last[0]], "\r\n")
	if behind := strings.TrimSpace(body[last[1]:]); behind != "" {
		rest += "\n\n" + behind
	}
	return mark{group(1), group(2), group(3), group(4)}, rest
}

// digest identifies a text. GitHub stores the line ends of browsers.
func digest(text string) string {
	sum := sha256.Sum256([]byte(strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n"))))
	return hex.EncodeToString(sum[:8])
}
