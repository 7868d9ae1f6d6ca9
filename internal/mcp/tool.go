package mcp

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Locks serialize the changes of each sandbox.
type Locks struct {
	mu  sync.Mutex
	all map[string]*heldLock // guarded by mu
}

type heldLock struct {
	sync.Mutex
	users int
}

// lock waits for the lock of a sandbox. The returned function releases it.
func (l *Locks) lock(id string) func() {
	l.mu.Lock()
	if l.all == nil {
		l.all = map[string]*heldLock{}
	}
	one := l.all[id]
	if one == nil {
		one = &heldLock{}
		l.all[id] = one
	}
	one.users++
	l.mu.Unlock()
	one.Lock()
	return func() {
		one.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.all, id)
		}
	}
}

// kind says what a tool may do, for clients that ask their user before calls.
type kind int

const (
	reads   kind = iota // changes nothing
	changes             // changes an environment, which can be undone
	destroys
)

// answer is the result of a tool.
type answer struct {
	text   string
	image  *sdk.ImageContent // instead of text
	failed bool
	notes  []string // facts after the text
	at     *place   // whose name and directory follow
}

// arguments describe the arguments of a tool, by name.
type arguments map[string]string

// input is the type of a tool's arguments.
type input interface{ arguments() arguments }

// tools is a server of the protocol, to which tools are added.
type tools struct {
	*sdk.Server
	ready func(ctx context.Context) error
}

// add adds a tool.
func add[In input](to tools, name, title, description string, k kind,
	call func(ctx context.Context, tell progress, in In) (answer, error)) {
	destructive, open := k == destroys, name != "read" && name != "list" && name != "search"
	var zero In
	schema, err := jsonschema.For[In](nil)
	if err != nil { // impossible for the types of this package: TestTools checks the descriptions
		schema = &jsonschema.Schema{Type: "object"}
	}
	for argument, text := range zero.arguments() {
		if property := schema.Properties[argument]; property != nil {
			property.Description = text
		}
	}
	sdk.AddTool(to.Server, &sdk.Tool{Name: name, Title: title, Description: description, InputSchema: schema,
		Annotations: &sdk.ToolAnnotations{Title: title, ReadOnlyHint: k == reads, DestructiveHint: &destructive,
			OpenWorldHint: &open}},
		func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, any, error) {
			var a answer
			err := to.ready(ctx)
			if err == nil {
				a, err = call(ctx, progressOf(ctx, req), in)
			}
			if err != nil {
				a.text, a.failed, a.image = failure(err), true, nil
			}
			return a.result(), nil, nil
		})
}

// result returns the answer as content: the text, then one line of facts.
func (a answer) result() *sdk.CallToolResult {
	out := &sdk.CallToolResult{IsError: a.failed}
	notes := a.notes
	if a.at != nil {
		notes = append(notes, fmt.Sprintf("environment %s, working directory %s", a.at.name, a.at.dir))
		if a.at.note != "" {
			notes = append(notes, a.at.note)
		}
	}
	text := a.text
	if len(notes) > 0 {
		if text != "" {
			text = strings.TrimSuffix(text, "\n") + "\n\n"
		}
		text += "[" + strings.Join(notes, "; ") + "]"
	}
	if a.image != nil {
		out.Content = append(out.Content, a.image)
	}
	out.Content = append(out.Content, &sdk.TextContent{Text: strings.ToValidUTF8(text, "\uFFFD")})
	return out
}

// remedies are the next steps after errors without their own.
var remedies = map[errors.Kind]string{
	errors.Invalid:         "correct the arguments and call the tool again",
	errors.Unauthenticated: "ask the user for a valid key: harvest key create",
	errors.Denied:          "ask the user: the key does not allow it",
	errors.NotFound:        "call environment_list for the names of environments",
	errors.Conflict:        "call environment_list for the states of environments",
	errors.Gone:            "call environment_create to create a new environment",
	errors.Exhausted:       "remove environments that you no longer need with environment_remove, or try again later",
	errors.Unsupported:     "ask the user to run: harvest doctor",
	errors.Unavailable:     "call the tool again; if it fails again, ask the user to run: harvest doctor",
	errors.Timeout:         "give a larger timeout_seconds",
	errors.Canceled:        "call the tool again if the result is still needed",
	errors.Internal:        "ask the user to look at the log of the server",
}

// failure is the text of an error, with the next step.
func failure(err error) string {
	remedy := errors.RemedyOf(err)
	if remedy == "" {
		remedy = remedies[errors.KindOf(err)]
	}
	return fmt.Sprintf("error: %s\nnext: %s", errors.Message(err), remedy)
}

// progress reports the progress of a call to its client.
type progress func(message string)

// pause is the least time between two reports.
const pause = 300 * time.Millisecond

// progressOf returns the progress of a call, which is silent if its client does not want it.
func progressOf(ctx context.Context, req *sdk.CallToolRequest) progress {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func(string) {}
	}
	var mu sync.Mutex
	var last time.Time
	var n float64
	return func(message string) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < pause {
			return
		}
		last = time.Now()
		n++
		// Best effort: a client that has gone needs no progress.
		_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: n,
			Message: strings.ToValidUTF8(message, "\uFFFD")})
	}
}
