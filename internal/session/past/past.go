// Package past gives an agent the conversation so far: its own record of it, or else the last messages.
package past

import (
	"context"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/shell"
	"github.com/RelevanceAI/harvest/internal/session/volumes"
)

// Limits of the messages that an agent without a record receives.
const (
	recallMost  = 10      // messages: prompts and replies
	recallBytes = 8 << 10 // of each
)

// inheritScript copies an agent's state to a session that does not have any: FROM TO.
const inheritScript = `
[ -d "$1" ] && [ -z "$(ls -A "$2" 2>/dev/null)" ] || exit 0
mkdir -p "$2"
cp -a "$1/." "$2/"`

// Inherit copies the agent's records of a continued session to the one that continues it, so that the agent resumes its
// own conversation. It is a copy, since both sessions may be continued. It logs a failure.
func Inherit(ctx context.Context, box shell.Sandbox, from, to string) {
	_, result, err := box.Run(ctx, shell.Script{Text: inheritScript,
		Params: []string{volumes.StateDir(from), volumes.StateDir(to)}})
	if err != nil || result.ReturnCode != 0 { // the agent receives the last messages instead
		logf.Errorf(ctx, "copy the agent's record of session %s: %v, %s", from, err,
			shell.LastLines(result.Stderr, result.Why()))
	}
}

// Gone reports whether an agent has no record of a conversation.
func Gone(ctx context.Context, box shell.Sandbox, k agent.Keeper, setup agent.Setup) bool {
	env := maps.Clone(setup.Env)
	env["CONVERSATION"] = setup.Conversation
	_, result, err := box.Run(ctx, shell.Script{
		Text: `for f in ` + k.Kept() + `; do [ ! -e "$f" ] || exit 0; done; exit 3`, Env: env})
	// Otherwise it exists, or that is unknown: the agent reports an error if it cannot resume.
	return err == nil && result.ReturnCode == 3
}

// Prompt returns a prompt preceded by the last messages of the conversation.
func Prompt(messages []string, prompt string) string {
	return "This continues an earlier conversation, of which you have no record. " +
		"It ended with these messages, the oldest first:\n\n" +
		strings.Join(messages, "\n\n") + "\n\nThis is the user's next message:\n\n" + prompt
}

// Messages returns the last messages of a session, and of the sessions that it continues, as texts.
func Messages(ctx context.Context, store records.Store, s records.Session) ([]string, error) {
	var all []string
	for seen := map[string]bool{}; !seen[s.ID]; {
		seen[s.ID] = true
		messages, err := store.Messages(ctx, s.ID)
		if err != nil {
			return nil, err
		}
		var texts []string
		for _, msg := range messages {
			if msg.Purpose != "" || slices.Contains([]records.MessageState{records.Queued, records.Held,
				records.Running, records.Cancelled}, msg.State) {
				continue
			}
			who := "User"
			if msg.Own {
				who = "Notification"
			}
			texts = append(texts, quoted(who, msg.Prompt))
			if msg.Reply != "" {
				texts = append(texts, quoted("You", msg.Reply))
			}
		}
		all = append(texts, all...)
		if len(all) >= recallMost || s.Continues == "" {
			break
		}
		if s, err = store.Session(ctx, s.Continues); errors.KindOf(err) == errors.NotFound {
			break
		} else if err != nil {
			return nil, err
		}
	}
	return all[max(len(all)-recallMost, 0):], nil
}

// quoted returns a message in the form for the agent. Every line is marked as a quotation, so that the agent does not
// take it for a new message of the user.
func quoted(who, text string) string {
	text = strings.TrimRightFunc(strings.TrimLeft(text, "\r\n"), unicode.IsSpace) // code may begin indented
	if len(text) > recallBytes {
		text = strings.ToValidUTF8(text[:recallBytes], "") + "…"
	}
	return who + ":\n> " + strings.ReplaceAll(text, "\n", "\n> ")
}
